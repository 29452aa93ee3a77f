"""A process that is killed at any moment loses nothing that a flush said was durable, and exports nothing twice."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.eventfiles import events_in
from tests.waiting import until

from ackwise.stores.journal import recover

KILLS = 10

WRITER = """
import asyncio, random, sys
from ackwise.middleware.events import Event, EventCode
from ackwise.stores.journal import Journal

async def main():
    journal = Journal(sys.argv[1], group_id="billing", roll_events=300)
    await journal.open()
    seq = 1
    while True:
        for _ in range(random.randint(1, 100)):
            journal.record(Event(EventCode.CLAIMED, "orders", 3, seq, "bill", exec_id=seq, dedup_key=f"key-{seq}"))
            seq += 1
        await journal.flush()
        print(journal.writer_id, seq - 1, flush=True)

asyncio.run(main())
"""


def acknowledged_before_death(root: Path, acknowledgements: int) -> tuple[int, int]:
    """The writer and the last sequence number that it said was durable. It is killed while it goes on writing."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(acknowledgements)]
        process.kill()
        lines += process.stdout.readlines()
    writer_id, seq = [line for line in lines if line.endswith("\n")][-1].split()
    return int(writer_id), int(seq)


@pytest.mark.slow  # ten processes, one after the other
async def test_ten_kills_lose_nothing_that_was_acknowledged_and_double_nothing(tmp_path: Path) -> None:
    chance = random.Random(20260101)
    acknowledged = dict(acknowledged_before_death(tmp_path, chance.randint(1, 200)) for _ in range(KILLS))
    # What rolled for a worker goes on with what it has begun when the worker is gone.
    rolled = await until(lambda: recover(tmp_path), lambda rolled: not rolled.live)
    assert rolled.unreadable == []
    found: dict[int, list[int]] = {writer_id: [] for writer_id in acknowledged}
    for path in (tmp_path / "events").rglob("[!.]*.parquet"):
        for event in events_in(path):
            found[event["writer_id"]].append(event["seq"])
    assert len(acknowledged) == KILLS
    for writer_id, seq in acknowledged.items():
        assert sorted(found[writer_id]) == list(range(len(found[writer_id]))), "a hole or a duplicate"
        assert len(found[writer_id]) > seq, "acknowledged and lost"
    assert list((tmp_path / "wal").glob("*.wal")) == []
