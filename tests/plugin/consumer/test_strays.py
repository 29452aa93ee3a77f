"""Topics of before a group's configuration was changed: what is left in them is found, and said wherever one looks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from tests.waiting import PATIENCE, until
from typer.testing import CliRunner

from ackwise import App, Broadcasting, DeadLetter, Message
from ackwise.errors import ConfigurationError
from ackwise.middleware.errors import Unavailable
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.wire import dead_letter, retry_copy
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.operate.brokerchecks import topics as doctor_of_topics
from ackwise.plugin.settings.config import Config
from ackwise.plugin.topics.leftovers import find_strays, reading
from ackwise.testing import MemoryKafka
from ackwise.testing.hostile.client import hostile_client
from ackwise.testing.kafka.group import Committed

LARGE = {"max_message_bytes": 2_000_000}
MODULE = """
from ackwise import App, ConsumeLater, DeadLetter
app = App("billing", brokers={brokers!r})
app.use(DeadLetter("graves"))

@app.agent("orders")
async def bill(value: bytes) -> None: ...
"""


@pytest.fixture
async def kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka(longest_fetch=0.05) as kafka:
        kafka.create_topic("orders")
        yield kafka


def app_of(kafka: MemoryKafka, *used: Any, **settings: Any) -> App:
    app = App("billing", brokers=kafka.bootstrap, config=Config(), session_timeout=6.0, drain_timeout=5.0, **settings)
    for each in used:
        app.use(each)

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None: ...

    return app


def put(kafka: MemoryKafka, topic: str, number: int) -> None:
    """So many copies, or dead letters, of before."""
    if not kafka.has_topic(topic):
        kafka.create_topic(topic, 14 if "delay" in topic else 1, **LARGE)
    for offset in range(number):
        origin = Origin("orders", 0, offset, 5)
        message, common = Delivery(*origin, b"k", b"v", (), origin), {"topic": topic, "partition": 0, "group": "billing", "handler": "bill"}
        made: Any = (
            retry_copy(message, due=4_000_000_000_000, now_ms=5, reason="E", **common)  # type: ignore[arg-type]
            if "delay" in topic or "send" in topic or "retry" in topic
            else dead_letter(message, now_ms=5, reason="rejected", failure=None, **common)  # type: ignore[arg-type]
        )
        kafka.produce(topic, made.value, key=made.key, partition=int("delay" in topic), headers=made.headers)


async def found(app: App) -> dict[str, int]:
    group = app.group()
    strays = await find_strays(group.settings, group.names)
    assert strays.unread is None
    return {stray.topic: stray.records for stray in strays.found}


async def test_dead_letters_in_the_default_topic_are_found_once_the_app_names_another(kafka: MemoryKafka) -> None:
    put(kafka, "billing.dlq", 2)
    assert await found(app_of(kafka)) == {}
    assert await found(app_of(kafka, DeadLetter("graves"))) == {"billing.dlq": 2}


async def test_a_topic_of_dead_letters_is_remembered_whatever_the_next_deployment_names(kafka: MemoryKafka) -> None:
    async with app_of(kafka, DeadLetter("graves")).running() as worker:
        await worker.ready()
        await until(lambda: any(record.key == b"letters/graves" for record in kafka.records("billing.control", 0)))
    put(kafka, "graves", 4)
    assert await found(app_of(kafka)) == {"graves": 4}
    assert await found(app_of(kafka, DeadLetter("tombs"))) == {"graves": 4}
    assert await found(app_of(kafka, DeadLetter("graves"))) == {}


def module(kafka: MemoryKafka, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with the app, for commands; each test has one of its own."""
    name = f"app_{folder.name}"
    (folder / f"{name}.py").write_text(MODULE.format(brokers=kafka.bootstrap))
    monkeypatch.chdir(folder)
    return f"{name}:app"


async def ackwise(*arguments: str) -> Any:
    done = await asyncio.to_thread(CliRunner().invoke, new_app(), [*arguments, "--json"], prog_name="ackwise")
    assert done.stdout, (done.output, done.exception)
    return done.exit_code, json.loads(done.stdout)


async def test_start_check_doctor_and_status_say_it(
    kafka: MemoryKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(kafka, "billing.dlq", 2)
    app = module(kafka, tmp_path, monkeypatch)
    async with app_of(kafka, DeadLetter("graves")).running() as worker:
        await worker.ready()
    assert "dead letters remain in the previous dead-letter topic: group=billing topic=billing.dlq records=2" in caplog.text
    code, checked = await ackwise("topics", "check", app)
    said = {each["topic"]: each["advice"] for each in checked["topics"] if each["role"] == "earlier"}
    assert code == 0, "a worker can start"
    assert "ackwise dlq list billing --dlq billing.dlq shows them" in said["billing.dlq"]
    findings = [finding.found for finding in await doctor_of_topics(app_of(kafka, DeadLetter("graves")).group())]
    assert "'billing.dlq' has 2 records" in findings[-1]
    _, standing = await ackwise("status", app)
    assert "2 dead letters are open in billing.dlq, where they went before; ackwise dlq list with --dlq shows them" in standing["findings"]


@pytest.mark.parametrize("topic", ["old_delay_billing", "old_retry_billing"])
async def test_a_start_with_the_default_names_is_refused_while_copies_wait_under_those_before(
    kafka: MemoryKafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(kafka, topic, 4)
    place = int("delay" in topic)
    kafka.group("billing.relay" if "delay" in topic else "billing").offsets[topic, place] = Committed(1, "")
    with pytest.raises(ConfigurationError, match=rf"topic '{topic}' has something .* that waits \(partition {place}, offset 1; 3 in all\)"):
        await asyncio.wait_for(app_of(kafka).serve(asyncio.Event()), PATIENCE)
    findings = await doctor_of_topics(app_of(kafka).group())
    assert [finding.found for finding in findings if finding.verdict == "problem" and f"topic '{topic}' has something" in finding.found]
    app = module(kafka, tmp_path, monkeypatch)
    _, checked = await ackwise("topics", "check", app)
    assert topic in str(next(each["faults"] for each in checked["topics"] if each["role"] == "retry"))
    _, standing = await ackwise("status", app)
    assert any(topic in sentence and "3 in all" in sentence for sentence in standing["findings"])


@pytest.mark.parametrize("topic", ["billing.retry", "billing.delay"])
async def test_broadcasting_is_refused_while_copies_of_the_group_of_before_wait(kafka: MemoryKafka, topic: str) -> None:
    put(kafka, topic, 2)
    app = app_of(kafka, Broadcasting("web-1"))
    with pytest.raises(
        ConfigurationError,
        match=rf"topic '{topic}' has something .* \(partition {int('delay' in topic)}, offset 0; 2 in all\), and an app that broad",
    ):
        await asyncio.wait_for(app.serve(asyncio.Event()), PATIENCE)
    kafka.group("billing.relay").offsets["billing.delay", 1] = Committed(2, "")
    kafka.group("billing").offsets["billing.retry", 0] = Committed(2, "")
    async with app_of(kafka, Broadcasting("web-1")).running() as worker:
        await worker.ready()


async def test_a_client_that_raises_anything_keeps_no_worker_from_its_start(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def raise_anything(*_: object) -> None:
        raise KeyError("orders")

    monkeypatch.setattr("ackwise.plugin.topics.leftovers.CopyReader.topics", raise_anything)
    async with app_of(kafka).running() as worker:
        await worker.ready()
    assert "topics of an earlier configuration not checked: group=billing error=KeyError" in caplog.text
    assert "copies under other topic names not checked: group=billing error=KeyError" in caplog.text


async def test_a_short_answer_about_offsets_is_no_answer(kafka: MemoryKafka) -> None:
    group, partition = app_of(kafka).group(), TopicPartition("orders", 0)
    async with reading(group.settings, group.names) as reader:
        assert (await reader.left([partition], {}))[partition].end == 0
        reader._patience = 0.0
        with hostile_client("topics.ListOffsets:short"), pytest.raises(Unavailable, match="leaves out the partition orders/0"):
            await reader.left([partition], {})
