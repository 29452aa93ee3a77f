"""`ackwise topics` and `ackwise doctor` on a real broker, as a user calls them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from tests.servers import RawKafka
from tests.tables import each

from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.wire import retry_copy

APP = """
from ackwise import App, ConsumeLater, RetryInPlace

app = App({group!r}, brokers={brokers!r}, create_topics="never")
app.use(ConsumeLater(levels="1s 1h"))

@app.agent({topic!r}, {options})
async def bill(value: bytes) -> None: ...
"""


class Shop:
    """A folder with an app whose group no other test uses."""

    def __init__(self, folder: Path, raw: RawKafka) -> None:
        self._folder = folder
        self._raw = raw
        self.group = raw.new_group()

    async def consume(self, topic: str, options: str = "") -> None:
        source = APP.format(group=self.group, brokers=self._raw.bootstrap, topic=topic, options=options)
        (self._folder / "worker.py").write_text(source)

    def ackwise(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ackwise.plugin.cli", *arguments]
        return subprocess.run(command, cwd=self._folder, capture_output=True, text=True, timeout=60, check=False)

    def topics(self, command: str) -> tuple[int, dict[str, Any]]:
        """The exit code, and what is said of each topic, without the group's name."""
        done = self.ackwise("topics", command, "worker:app", "--json")
        assert done.stderr == ""
        return done.returncode, {line["topic"].removeprefix(self.group): line for line in json.loads(done.stdout)["topics"]}


@pytest.fixture
async def shop(tmp_path: Path, raw_kafka: RawKafka) -> Shop:
    return Shop(tmp_path, raw_kafka)


async def test_check_changes_nothing_and_create_makes_what_is_missing_once(shop: Shop, raw_kafka: RawKafka) -> None:
    source = await raw_kafka.new_topic(3)
    await shop.consume(source)
    code, lines = shop.topics("check")
    assert (code, [line["todo"] for line in lines.values()]) == (1, ["nothing", *["create"] * 4])
    assert not any(topic.startswith(f"{shop.group}.") for topic in await raw_kafka.topics())
    code, lines = shop.topics("create")
    assert (code, {line["todo"] for line in lines.values()}) == (0, {"nothing"})
    assert [line["done"] for line in lines.values()] == [None, *["created"] * 4]
    assert lines[".control"]["found"]["cleanup_policy"] == "compact"
    assert {line["found"]["partitions"] for topic, line in lines.items() if topic not in (".control", ".delay")} == {3}
    assert lines[".delay"]["found"]["partitions"] == 14
    assert shop.topics("check")[0] == 0
    code, lines = shop.topics("create")
    assert (code, {line["done"] for line in lines.values()}) == (0, {None})


async def test_delay_topics_that_keep_the_clocks_of_producers_are_told_of_and_changed(shop: Shop, raw_kafka: RawKafka) -> None:
    await shop.consume(await raw_kafka.new_topic(1))
    assert shop.topics("create")[0] == 0
    await raw_kafka.alter(f"{shop.group}.delay", message_timestamp_type="CreateTime", max_message_bytes=2_000_000, retention_ms=-1)
    code, lines = shop.topics("check")
    assert (code, [topic for topic, line in lines.items() if line["advice"]]) == (0, [".delay"])
    code, lines = shop.topics("create")
    assert (code, [topic for topic, line in lines.items() if line["done"]]) == (0, [".delay"])
    assert shop.topics("check")[1][".delay"]["found"]["timestamp_type"] == "LogAppendTime"


async def test_a_transaction_that_is_open_in_the_delay_topic_is_told_of_while_it_is(shop: Shop, raw_kafka: RawKafka) -> None:
    await shop.consume(await raw_kafka.new_topic(1))
    assert shop.topics("create")[0] == 0
    producer = AIOKafkaProducer(bootstrap_servers=raw_kafka.bootstrap, transactional_id=shop.group)
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(f"{shop.group}.delay", b"hangs", partition=3)
            code, lines = shop.topics("check")
        assert (code, "no relay reads partition 3 from offset 0 on until it ends" in lines[".delay"]["advice"]) == (0, True)
    finally:
        await producer.stop()
    assert shop.topics("check")[1][".delay"]["advice"] is None


async def test_where_only_the_user_can_mend_something_nothing_is_created(shop: Shop, raw_kafka: RawKafka) -> None:
    await shop.consume("oders")
    done = shop.ackwise("topics", "create", "worker:app")
    assert (done.returncode, done.stderr) == (1, "")
    assert (
        "topic 'oders', which an agent consumes, does not exist or is hidden from this client; create it first (for development: "
        in done.stdout
    )
    assert not any(topic.startswith(f"{shop.group}.") for topic in await raw_kafka.topics())


async def test_a_source_for_development_is_created_once_and_a_worker_can_start(shop: Shop, raw_kafka: RawKafka) -> None:
    source = f"{shop.group}-payments"
    await shop.consume(source)
    advice = f"ackwise topics create MODULE:APP --source {source} --partitions 3"
    assert advice in shop.ackwise("topics", "check", "worker:app").stdout
    assert advice in shop.ackwise("doctor", "worker:app", "--json").stdout
    create = "topics", "create", "worker:app", "--source", source, "--partitions", "3"
    done = shop.ackwise(*create)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"topic '{source}' was created with 3 partitions and 1 replica\n", "")
    assert not any(topic.startswith(f"{shop.group}.") for topic in await raw_kafka.topics())
    done = shop.ackwise(*create[:-1], "5")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"topic '{source}' exists already, with 3 partitions and 1 replica\n", "")
    done = shop.ackwise(*create, "--json")
    (line,) = json.loads(done.stdout)["topics"]
    assert (done.returncode, line["topic"], line["role"], line["found"]["partitions"], line["done"]) == (0, source, "source", 3, None)
    assert shop.topics("create")[0] == 0


async def test_a_source_has_the_partitions_that_the_brokers_give_where_none_are_named(shop: Shop, raw_kafka: RawKafka) -> None:
    source = f"{shop.group}.eu"
    await shop.consume("orders", f"pattern=r'{source}'")
    done = shop.ackwise("topics", "create", "worker:app", "--source", source, "--json")
    (line,) = json.loads(done.stdout)["topics"]
    assert (done.returncode, line["found"]["partitions"], line["found"]["replication"], line["done"]) == (0, 1, 1, "created")


@each(
    ("arguments", "sentence"),
    [
        (("--source", "oders"), "no agent of group 'GROUP' reads topic 'oders'; its agents read 'orders', what matches x.+"),
        (("--source", "GROUP.retry"), "no agent of group 'GROUP' reads topic 'GROUP.retry'; its agents read 'orders'"),
        (("--source", "x.dlq"), "topic 'x.dlq' is called like one that Ackwise makes for a group 'x'"),
        (("--source", "x y"), "topic 'x y' can't be created ("),
        (("--partitions", "3"), "--partitions is for the topics of --source; name them, or leave it out"),
    ],
)
async def test_a_source_that_no_worker_would_read_is_refused(
    shop: Shop, raw_kafka: RawKafka, arguments: tuple[str, str], sentence: str
) -> None:
    await shop.consume("orders", "pattern='x.+'")
    done = shop.ackwise("topics", "create", "worker:app", *(argument.replace("GROUP", shop.group) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence.replace("GROUP", shop.group) in done.stderr


async def test_a_copy_from_before_an_order_is_named_and_a_worker_is_not_to_start(shop: Shop, raw_kafka: RawKafka) -> None:
    source = await raw_kafka.new_topic(1)
    await shop.consume(source)
    assert shop.topics("create")[0] == 0
    origin = Origin(source, 0, 7, 1000)
    waiting = retry_copy(
        Delivery(*origin, b"k", b"v", (), origin), topic=f"{shop.group}.delay", partition=0, group=shop.group, handler="bill", due=1,
        now_ms=0, reason="E",
    )  # fmt: skip
    await raw_kafka.produce(waiting.topic, waiting.value, headers=[(name, value or b"") for name, value in waiting.headers], partition=5)
    assert shop.topics("check")[0] == 0
    await shop.consume(source, "order='key', in_place=RetryInPlace(3)")
    code, lines = shop.topics("check")
    assert (code, [topic for topic, line in lines.items() if line["todo"] == "mend"]) == (1, [".delay"])
    assert "has a copy for agent 'bill' from before it had order='key' (partition 5, offset 0)" in lines[".delay"]["faults"][0]
    refused = shop.ackwise("run", "worker:app")
    assert (refused.returncode, "from before it had order='key'" in refused.stderr) == (2, True)


async def test_the_doctor_finds_no_problem_where_a_worker_can_start(shop: Shop, raw_kafka: RawKafka) -> None:
    await shop.consume(await raw_kafka.new_topic())
    done = shop.ackwise("doctor", "worker:app", "--json")
    problems = [finding["found"] for finding in json.loads(done.stdout)["findings"] if finding["verdict"] == "problem"]
    assert (done.returncode, problems) == (1, [f"3 are missing or too narrow, {shop.group}.retry first"])
    assert shop.topics("create")[0] == 0
    done = shop.ackwise("doctor", "worker:app")
    assert (done.returncode, done.stderr) == (0, "")
    assert "all 5 are there and fit" in done.stdout
