"""The command line on apps of Faust. Nothing is started, and Faust is imported by nobody but the user's module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers import RawKafka

APPS = """
import faust
from ackwise.plugin.faust import App

async def loop(stream):
    async for _ in stream:
        pass

app = faust.App({group!r}, broker="kafka://{brokers}", topic_partitions=2, topic_replication_factor=1)
app.use(create_topics="never")
typed = App({group!r}, broker="kafka://{brokers}")
bare = faust.App({group!r}, broker="kafka://{brokers}")
only_internal = App({group!r}, broker="kafka://{brokers}")
for each in (app, typed, bare):
    each.agent(each.topic({topic!r}), name="bill")(loop)
app.agent(name="inner")(loop)
only_internal.agent(name="inner")(loop)
"""


class Folder:
    """A folder with apps, and the command line called in it."""

    def __init__(self, folder: Path, group: str = "shop", brokers: str = "127.0.0.1:1", topic: str = "orders") -> None:
        self._folder = folder
        (folder / "worker.py").write_text(APPS.format(group=group, brokers=brokers, topic=topic))

    def ackwise(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ackwise.plugin.cli", *arguments]
        environment = os.environ | variables
        return subprocess.run(command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def topics(self, command: str, group: str) -> tuple[int, dict[str, str]]:
        done = self.ackwise("topics", command, "worker:app", "--json", ACKWISE_CONSUME_LATER__LEVELS="1s 1h")
        assert done.stderr == ""
        return done.returncode, {line["topic"].removeprefix(group): line["todo"] for line in json.loads(done.stdout)["topics"]}


def test_an_app_is_explained_without_a_broker_and_leaves_no_file(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for app in ("app", "typed"):
        done = folder.ackwise("explain", f"worker:{app}", "--json", ACKWISE_CONSUME_LATER__LEVELS="1s 1h")
        assert (done.returncode, done.stderr) == (0, "")
        explained = json.loads(done.stdout)
        assert explained["group"] == "shop"
        assert {"topic": "orders", "use": "source of bill"} in explained["topics"]
        assert {"name": "consume_later.levels", "value": "1s 1h", "source": "ACKWISE_CONSUME_LATER__LEVELS"} in explained["settings"]
        assert explained["failures"][0]["when"] == "the agent raises"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["worker.py"]


def test_an_app_that_does_not_use_ackwise_or_is_run_by_faust_or_is_none_is_told_how(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    bare = "error worker:bare is an app of Faust that does not use Ackwise; call app.use() right after it is made\n"
    of_faust = "error worker:app is an app of Faust; run it with faust -A worker:app worker\n"
    for command, app, said in (("explain", "bare", bare), ("run", "bare", bare), ("run", "app", of_faust)):
        done = folder.ackwise(command, f"worker:{app}")
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    assert "did you mean worker:typed" in folder.ackwise("explain", "worker:type").stderr


def test_faust_is_not_imported_for_an_app_of_another_host(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "import sys\nfrom ackwise import App\nsys.modules['faust'] = None\n"
        "app = App('billing')\n\n@app.agent('orders')\nasync def bill(value: bytes) -> None: ...\n"
    )
    done = Folder(tmp_path).ackwise("explain", "plain:app")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_doctor_looks_at_what_an_app_of_faust_needs(tmp_path: Path) -> None:
    done = Folder(tmp_path).ackwise("doctor", "worker:app", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    found = {finding["subject"]: finding["found"] for finding in json.loads(done.stdout)["findings"]}
    assert found["app"] == "group shop, reads orders, shop-inner"
    assert "connection refused" in found["brokers"]


@pytest.mark.kafka
async def test_topics_are_made_without_those_that_faust_makes(tmp_path: Path, raw_kafka: RawKafka) -> None:
    group, source = raw_kafka.new_group(), await raw_kafka.new_topic(3)
    folder = Folder(tmp_path, group, raw_kafka.bootstrap, source)
    code, todo = folder.topics("check", group)
    assert (code, todo) == (
        1,
        {source: "nothing"} | dict.fromkeys((".retry", ".dlq", ".delay", ".control"), "create"),
    )
    code, todo = folder.topics("create", group)
    assert (code, set(todo.values())) == (0, {"nothing"})
    assert f"{group}-inner" not in await raw_kafka.topics()


@pytest.mark.kafka
async def test_topics_that_nothing_measures_yet_are_left_to_the_first_worker(tmp_path: Path, raw_kafka: RawKafka) -> None:
    group = raw_kafka.new_group()
    folder = Folder(tmp_path, group, raw_kafka.bootstrap)
    done = folder.ackwise("topics", "create", "worker:only_internal")
    assert (done.returncode, done.stdout) == (2, "")
    assert "reads only topics that Faust creates, and none exists yet to size the others by; start a worker" in done.stderr
    assert not any(topic.startswith(group) for topic in await raw_kafka.topics())
