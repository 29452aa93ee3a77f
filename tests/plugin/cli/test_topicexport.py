"""`ackwise topics export`, as a user calls it. Its texts stand in `tests/formats`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers import RawKafka

APP = """
from ackwise import App, Broadcasting, ConsumeLater

app = App("{group}", brokers="{brokers}", relay="{relay}")
app.use(ConsumeLater(levels="1s 1h"))

@app.agent("{topic}")
async def bill(value: bytes) -> None: ...

everywhere = App("prices", brokers="{brokers}")
everywhere.use(Broadcasting("a"))

@everywhere.agent("{topic}")
async def learn(value: bytes) -> None: ...
"""


def export(folder: Path, *words: str, app: str = "app", **facts: str) -> tuple[int, str]:
    """The exit code, and what was printed."""
    given = {"group": "billing", "brokers": "127.0.0.1:1", "relay": "inside", "topic": "orders"} | facts
    (folder / "shop.py").write_text(APP.format(**given))
    command = [sys.executable, "-m", "ackwise.plugin.cli", "topics", "export", f"shop:{app}", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow  # processes
def test_with_partitions_no_broker_is_asked_and_one_role_has_the_user_that_is_named(tmp_path: Path) -> None:
    code, said = export(tmp_path, "--partitions", "500", "--role", "producer", "--principal", "shop")
    assert code == 0
    assert "--topic billing.retry --partitions 500 --replication-factor 3" in said
    assert "--topic billing.delay --partitions 14 --replication-factor 3" in said
    assert said.count("--allow-principal User:shop ") == said.count("kafka-acls.sh") == 2


@pytest.mark.slow  # processes
def test_a_worker_may_do_what_a_relay_may_unless_that_is_apart(tmp_path: Path) -> None:
    words = ("--partitions", "1", "--role", "worker")
    assert "--group billing.relay --operation Read\n" in export(tmp_path, *words)[1]
    assert "--group billing.relay --operation Describe\n" in export(tmp_path, *words, relay="apart")[1]


@pytest.mark.slow  # processes
@pytest.mark.parametrize(
    ("words", "app", "sentence"),
    [
        (("--format", "ansible"), "app", "there is no format 'ansible'; choose one of acls, terraform, strimzi"),
        (("--role", "boss"), "app", "there is no role 'boss'; choose of worker, relay, producer, canceller, operator, dashboard"),
        (("--principal", "User:x"), "app", "--principal names the user of one role; give that with --role"),
        ((), "everywhere", "broadcasts and sends nothing back, so it has no topics"),
        ((), "app", "127.0.0.1:1"),
    ],
    ids=["format", "role", "principal", "broadcasting", "brokers"],
)
def test_what_can_not_be_printed_is_one_sentence(tmp_path: Path, words: tuple[str, ...], app: str, sentence: str) -> None:
    code, said = export(tmp_path, *words, app=app)
    assert code == 2
    assert sentence in " ".join(said.split())
    assert "Traceback" not in said


@pytest.mark.kafka
@pytest.mark.slow  # processes
async def test_topics_are_as_wide_as_the_brokers_say_that_the_source_is(tmp_path: Path, raw_kafka: RawKafka) -> None:
    source, group = await raw_kafka.new_topic(3, max_message_bytes=5000), raw_kafka.new_group()
    code, said = export(tmp_path, group=group, brokers=raw_kafka.bootstrap, topic=source)
    assert code == 0
    assert f"--topic {group}.retry --partitions 3 --replication-factor 1 \\\n  --config max.message.bytes=136072" in said
    code, said = export(tmp_path, group=group, brokers=raw_kafka.bootstrap, topic="missing")
    assert code == 2
    assert "topic 'missing', which an agent consumes, does not exist" in " ".join(said.split())
