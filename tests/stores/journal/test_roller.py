"""The process that rolls logs: the worker imports nothing for it, and neither needs the other to end well."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.eventfiles import events_in
from tests.stores.journal.test_recovery import claimed, write_log
from tests.waiting import until

from ackwise.middleware.errors import EventLogUnavailable
from ackwise.stores.journal import Journal, recover
from ackwise.stores.journal.roller import Roller

WORKER = """
import asyncio, sys
from ackwise.middleware.events import Event, EventCode
from ackwise.stores.journal import Journal, recover

async def main():
    journal = Journal(sys.argv[1], group_id="g", roll_events=2)
    await journal.open()
    for offset in range(4):
        journal.record(Event(EventCode.CLAIMED, "orders", 0, offset, "bill"))
        await journal.flush()
    await journal.close()
    print(*{name.partition(".")[0] for name in sys.modules} & {"numpy", "pyarrow"})

asyncio.run(main())
"""

KILLED = """
import sys, time
from pathlib import Path
from ackwise.stores.journal.roller import Roller

roller = Roller(Path(sys.argv[1]))
roller.roll([])
print(roller._process.pid, flush=True)
time.sleep(1000)
"""


def test_a_worker_whose_logs_are_rolled_imports_no_pyarrow(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", WORKER, str(tmp_path)], capture_output=True, check=True, timeout=100)
    assert (ran.stdout, ran.stderr) == (b"\n", b"")
    assert [event["seq"] for event in events_in(*sorted((tmp_path / "events").rglob("*.parquet")))] == list(range(6))
    assert list((tmp_path / "wal").iterdir()) == []


def test_logs_of_a_process_that_died_are_rolled_by_the_next_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    roller = Roller(tmp_path)
    try:
        roller.roll([])
        assert roller._process is not None
        os.kill(roller._process.pid, signal.SIGKILL)
        log = write_log(tmp_path, [[claimed(0)]])
        with caplog.at_level(logging.WARNING):
            assert roller.roll([log]).live == [log]
        assert [record.message.partition(":")[0] for record in caplog.records] == ["the process that rolls event logs died"]
        assert [path.suffix for path in roller.roll([log]).rolled] == [".parquet"]
        assert not log.exists()
    finally:
        roller.close()


def test_what_is_no_answer_ends_the_process_and_its_logs_are_rolled_by_the_next_one(tmp_path: Path) -> None:
    roller, log = Roller(tmp_path), write_log(tmp_path, [[claimed(0)]])
    try:
        roller._process = subprocess.Popen(
            [sys.executable, "-c", "print('a greeting', flush=True); input(); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert roller.roll([log]).live == [log]
        assert [path.suffix for path in roller.roll([log]).rolled] == [".parquet"]
    finally:
        roller.close()


async def test_a_journal_that_can_not_be_closed_leaves_no_process_and_may_be_closed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, [[claimed(0)]])
    journal = Journal(tmp_path, group_id="g")
    await journal.open()
    process = await until(lambda: journal._roller._process)

    async def full(journal: Journal) -> None:
        raise EventLogUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_make_durable", full)
        with pytest.raises(EventLogUnavailable):
            await journal.close()
    await until(process.poll, lambda code: code == 0)
    await journal.close()
    assert [path.suffix for path in (tmp_path / "events").rglob("events-*")] == [".parquet"] * 2


async def test_a_journal_starts_no_process_until_there_is_a_log_to_roll(tmp_path: Path) -> None:
    other, journal = Journal(tmp_path, group_id="g"), Journal(tmp_path, group_id="g", roll_events=2)
    await other.open()  # its log is its own
    await journal.open()
    await asyncio.wrap_future(journal._roll_thread.submit(lambda: None))
    assert journal._roller._process is None
    journal.record(claimed(0))
    await journal.flush()
    await until(lambda: journal._roller._process)
    await journal.close()
    await other.close()


def a_silent_process() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "import time; time.sleep(20)"]  # nobody waits for that who gives up
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_a_journal_does_not_wait_forever_for_a_process_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ackwise.stores.journal.sink._LONGEST_CLOSE", 0.01)
    journal = Journal(tmp_path, group_id="g")
    await journal.open()
    with a_silent_process() as silent:
        journal._roller._process = silent
        with caplog.at_level(logging.WARNING):
            await journal.close()
        assert silent.returncode == -signal.SIGKILL
    assert [record.message.partition(":")[0] for record in caplog.records] == ["rolling event logs took too long"]
    (log,) = (tmp_path / "wal").iterdir()
    assert [path.suffix for path in recover(tmp_path).rolled] == [".parquet"]
    assert not log.exists()


def test_who_gave_up_rolling_starts_no_process(tmp_path: Path) -> None:
    roller, log = Roller(tmp_path), write_log(tmp_path, [[claimed(0)]])
    roller.give_up()
    assert roller.roll([log]).live == [log]
    assert roller._process is None


def test_the_process_has_a_low_priority_beside_its_worker_and_ends_when_that_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        roller = int(worker.stdout.readline())
        assert os.getpriority(os.PRIO_PROCESS, roller) > os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getsid(roller) == os.getsid(worker.pid)  # a priority counts within a session
        assert os.getpgid(roller) != os.getpgid(worker.pid)  # Ctrl-C is for the worker
        worker.kill()
        assert worker.stderr.read() == b""  # both had it open: it ends with the last of them
