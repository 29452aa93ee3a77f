"""Records with timestamps before 1970, such as Go's zero time: they come back, die under their own reason, and are redriven."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ackwise import App, ConsumeLater, Dedup, Message
from ackwise.middleware.events import Event
from ackwise.middleware.message.message import delivery_of
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.operate.deadletter import read_letter
from ackwise.plugin.registry import open_sink
from ackwise.testing import TestApp

#: One millisecond before 1970, Kafka's "no timestamp" and what is next to it, Go's zero time, and the first and last that there are.
_TIMES = (-1, -2, -62_135_596_800_000, -(2**63), 2**62)


@pytest.mark.parametrize("timestamp_ms", _TIMES)
async def test_a_record_of_any_timestamp_comes_back_and_dies_for_its_own_reason(timestamp_ms: int, tmp_path: Path) -> None:
    app, seen = App("billing", brokers="127.0.0.1:1"), list[int]()
    app.use(Dedup("memory://"), ConsumeLater(1))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        seen.append(message.timestamp_ms)
        raise ValueError

    async with TestApp(app) as worker:
        (offset,) = worker.kafka.produce("orders", b"1", timestamp=timestamp_ms / 1000)
        (record,) = worker.kafka.records("orders")
        place = ("orders", 0, offset)
        first = await worker.fate(place)  # type: ignore[arg-type]
        assert first.kind == "later"
        assert (await worker.redeliver(first)).kind == "dead"
        (letter,) = worker.dead_letters
        events = list(worker.events)
    assert seen == [record.timestamp] * 2
    found = read_letter(delivery_of(("billing.dlq", 0), letter), "billing")
    assert (found.problem, found.reason) == ("", "max-reconsume-times")
    assert found.delivery.origin == ("orders", 0, offset, record.timestamp)
    verdict = await why(events, tmp_path / "events", f"orders/0/{offset}")
    assert verdict == "DEAD_LETTERED"


async def why(events: Sequence[Event], folder: Path, place: str) -> str:
    """The verdict of `ackwise why`, from `events` in files as a worker writes them."""
    sink = open_sink(str(folder), group="billing", mode="before_settle", permissions=0o600, facts={"sources": ["orders"]})
    await sink.open()
    for event in events:
        sink.record(event)
    await sink.close()
    found = await asyncio.to_thread(CliRunner().invoke, new_app(), ["why", place, str(folder), "--json"], prog_name="ackwise")
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    (message,) = json.loads(found.stdout)["messages"]
    return str(message["verdict"])
