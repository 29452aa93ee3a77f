"""A worker that leaves while its event log can't be written, and the one after it: against a Kafka in memory, with the audit."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from tests.spark.reconciling import reconciled
from tests.waiting import PATIENCE, until

from ackwise import App, Batch, Dedup, Events
from ackwise.middleware.errors import EventLogUnavailable
from ackwise.middleware.events import Event, EventCode
from ackwise.stores.journal.sink import Journal
from ackwise.testing import MemoryKafka


@pytest.mark.slow  # two workers run, one after the other
async def test_what_succeeded_is_not_run_again_and_the_audit_has_it_as_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: Counter[int] = Counter()
    seen: list[Event] = []
    is_full, write = False, Journal._make_durable

    async def make_durable(journal: Journal) -> None:
        if is_full:
            raise EventLogUnavailable("the disk is full")
        await write(journal)

    monkeypatch.setattr(Journal, "_make_durable", make_durable)

    def worker(name: str) -> App:
        app = App("billing", brokers=kafka.bootstrap, commit_interval=0.05, drain_timeout=0.5)
        app.use(Dedup(f"sqlite:///{tmp_path}/claims.db"), Events(str(tmp_path / name)), seen.append)

        @app.agent("orders")
        async def bill(batch: Batch[bytes]) -> None:
            nonlocal is_full
            is_full = name == "first"
            ran.update(message.offset for message in batch)

        return app

    async with MemoryKafka() as kafka, asyncio.timeout(PATIENCE):
        kafka.create_topic("orders", 1)
        for number in range(3):
            kafka.produce("orders", b"%d" % number, partition=0)
        with pytest.raises(EventLogUnavailable):
            async with worker("first").running():
                await until(lambda: len(ran) == 3)
        is_full = False
        seen.clear()
        async with worker("second").running():
            await until(lambda: any(event.code is EventCode.COMMITTED and event.range_end == 3 for event in seen))
    assert set(ran.values()) == {1}
    result = reconciled(tmp_path / "first", tmp_path / "second", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    verdicts = json.loads((tmp_path / "out" / "summary.json").read_text())["verdicts"]
    assert {name: number for name, number in verdicts.items() if number} == {"EXACTLY_ONCE": 3}
