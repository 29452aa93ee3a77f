"""`ackwise topics skip` on a real broker: what nobody can read is passed on purpose, and nothing else ever is."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from tests.failures.test_unreadable import committed_at
from tests.servers import RawKafka, connected
from tests.waiting import until
from typer.testing import CliRunner

from ackwise.plugin.aiokafkahost import host_of
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.topics.group import Group

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

APP = """
from ackwise import App, ConsumeLater, Events, Transactional

app = App({group!r}, brokers={brokers!r}, commit_interval=0.1, session_timeout=6)
app.use(ConsumeLater(levels="1s"), Events("events"))
{more}
given = []

@app.agent({topic!r})
async def bill(value: bytes) -> None:
    given.append(value)
"""

OFFSETS = 'app.use(Transactional("sqlite:///offsets.db", mode="offsets"))'


class Shop:
    """An app in its own folder."""

    def __init__(self, raw: RawKafka, topic: str, more: str = "") -> None:
        self.raw, self.topic, self.group = raw, topic, raw.new_group()
        self.module = f"worker_{self.group.replace('-', '_')}"
        Path(f"{self.module}.py").write_text(APP.format(group=self.group, brokers=raw.bootstrap, topic=topic, more=more))

    @property
    def given(self) -> list[bytes]:
        given: list[bytes] = self._module.given
        return given

    @property
    def _module(self) -> Any:
        return importlib.import_module(self.module)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        group: Group = self._module.app.group()
        running = asyncio.create_task(host_of(group.slots, group.settings, group.agents).run(stop))
        try:
            yield
        finally:
            stop.set()
            await running

    async def ackwise(self, *arguments: str) -> tuple[int, str]:
        """The exit code of a command and what it says, as one line."""
        done = await asyncio.to_thread(CliRunner().invoke, new_app(), arguments)
        return done.exit_code, " ".join(done.output.split())

    async def skip(self, records: str, *options: str) -> tuple[int, str]:
        return await self.ackwise("topics", "skip", f"{self.module}:app", records, *options)

    async def committed(self, partition: TopicPartition) -> int | None:
        return (await self.raw.committed(self.group)).get(partition)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("worker_")]:
        del sys.modules[name]


async def send_batch(raw: RawKafka, topic: str, *values: bytes, compression: str | None = None) -> None:
    """Send all values in one record batch."""
    async with connected(AIOKafkaProducer(bootstrap_servers=raw.bootstrap, compression_type=compression)) as producer:
        batch = producer.create_batch()
        for value in values:
            batch.append(timestamp=None, key=None, value=value)
        await (await producer.send_batch(batch, topic, partition=0))


@pytest.mark.parametrize("more", ["", OFFSETS], ids=["claims", "offsets in a database"])
async def test_what_nobody_can_read_is_passed_on_purpose_and_is_no_loss(
    more: str, raw_kafka: RawKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(raw_kafka, await raw_kafka.new_topic(), more)
    partition = TopicPartition(shop.topic, 0)
    await send_batch(raw_kafka, shop.topic, b"a", b"b", b"c")
    await send_batch(raw_kafka, shop.topic, b"d" * 50, b"e" * 50, compression="zstd")
    await send_batch(raw_kafka, shop.topic, b"f", b"g")
    monkeypatch.setattr("aiokafka.codec.cramjam", None)
    async with shop.working():
        await committed_at(raw_kafka, shop.group, partition, 3)
        await until(lambda: "partition unreadable" in caplog.text)
        code, said = await shop.skip(f"{shop.topic}/0/3-4", "--yes")
        assert (code, "still has members (1); stop all of its workers first" in said) == (2, True)
    for wrong in ("2-4", "3-5", "4-4", "0-1", "5-6"):
        code, said = await shop.skip(f"{shop.topic}/0/{wrong}", "--yes")
        assert (code, f"name {shop.topic}/0/3-4, or less of its end" in said) == (2, True)
    code, said = await shop.skip(f"{shop.topic}/0/3-4")
    assert (code, said) == (
        0,
        f"{shop.topic}/0/3-4 can't be read (UnsupportedCodecError), in a record batch of 3 to 4 nothing was changed; add --yes to skip it",
    )
    assert await shop.committed(partition) == 3
    code, said = await shop.skip(f"{shop.topic}/0/3-4", "--yes")
    assert (code, "skipped; the group continues at 5" in said) == (0, True)
    assert await shop.committed(partition) == 5
    async with shop.working():
        await committed_at(raw_kafka, shop.group, partition, 7)
    assert shop.given == [b"a", b"b", b"c", b"f", b"g"]
    code, said = await shop.ackwise("why", f"{shop.topic}/0/3", "events")
    assert (code, "skipped on purpose" in said) == (0, True), said


def verdicts(run: Path) -> Any:
    return json.loads((run / "summary.json").read_text())["verdicts"]


@pytest.mark.spark
@pytest.mark.nightly  # the audit knows skipped records from events that tests/spark make
@pytest.mark.timeout(400)
async def test_what_was_passed_on_purpose_is_said_by_reconcile_and_is_no_anomaly(
    raw_kafka: RawKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(raw_kafka, await raw_kafka.new_topic())
    partition = TopicPartition(shop.topic, 0)
    await send_batch(raw_kafka, shop.topic, b"a")
    await send_batch(raw_kafka, shop.topic, b"b" * 50, b"c" * 50, compression="zstd")
    await send_batch(raw_kafka, shop.topic, b"d")
    monkeypatch.setattr("aiokafka.codec.cramjam", None)
    async with shop.working():
        await committed_at(raw_kafka, shop.group, partition, 1)
    assert (await shop.skip(f"{shop.topic}/0/1-2", "--yes"))[0] == 0
    async with shop.working():
        await committed_at(raw_kafka, shop.group, partition, 4)
    command = [sys.executable, "-m", "ackwise.plugin.cli", "reconcile", "events", "--out", "run"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdicts(Path("run")) == {"EXACTLY_ONCE": 2, "SKIPPED": 2}


async def test_what_can_be_read_is_never_passed(raw_kafka: RawKafka) -> None:
    shop = Shop(raw_kafka, await raw_kafka.new_topic())
    partition = TopicPartition(shop.topic, 0)
    code, said = await shop.skip(f"{shop.topic}/0/0", "--yes")
    assert (code, "has committed nothing" in said) == (2, True)
    await send_batch(raw_kafka, shop.topic, b"a")
    async with shop.working():
        await committed_at(raw_kafka, shop.group, partition, 1)
    code, said = await shop.skip(f"{shop.topic}/0/1", "--yes")
    assert (code, "has nothing from 1 on that can't be read" in said) == (2, True)
    await send_batch(raw_kafka, shop.topic, b"b")
    code, said = await shop.skip(f"{shop.topic}/0/1", "--yes")
    assert (code, f"{shop.topic}/0/1 can be read and is not done; start a worker" in said) == (2, True)
    code, said = await shop.skip("elsewhere/0/1", "--yes")
    assert (code, f"group '{shop.group}' reads no topic 'elsewhere'" in said) == (2, True)
    assert await shop.committed(partition) == 1


async def test_what_nobody_can_read_on_the_retry_topic_is_passed_too(
    raw_kafka: RawKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(raw_kafka, await raw_kafka.new_topic())
    retry = TopicPartition(f"{shop.group}.retry", 0)
    await send_batch(raw_kafka, shop.topic, b"a")
    async with shop.working():
        await committed_at(raw_kafka, shop.group, TopicPartition(shop.topic, 0), 1)
    await send_batch(raw_kafka, retry.topic, b"d" * 50, b"e" * 50, compression="zstd")
    monkeypatch.setattr("aiokafka.codec.cramjam", None)
    async with shop.working():
        await until(lambda: f"topic={retry.topic}" in caplog.text)
    code, said = await shop.skip(f"{retry.topic}/0/0-1", "--yes")
    assert (code, "skipped; the group continues at 2" in said) == (0, True), said
    assert await shop.committed(retry) == 2


async def test_records_of_the_delay_topic_and_those_that_are_named_wrongly_are_refused_in_a_sentence(raw_kafka: RawKafka) -> None:
    shop = Shop(raw_kafka, "orders")
    code, said = await shop.skip(f"{shop.group}.delay/3/3-4", "--yes")
    refusal = f"read by the relay in group '{shop.group}.relay'; stop all workers, and move that group to 5 on partition 3"
    assert (code, refusal in said) == (2, True), said
    for records in ("orders", "orders/1", "orders/0/5-3", "orders/x/1", "or ders/0/1", "orders/0/1-2-3"):
        code, said = await shop.skip(records)
        assert (code, "names no records; write TOPIC/PARTITION/FIRST-LAST" in said or "ends before it starts" in said) == (2, True), records
