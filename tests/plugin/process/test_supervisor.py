"""Worker processes that are kept: with real processes that only say that they joined, without Kafka."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.fakes import Clock
from tests.waiting import PATIENCE, turns, until

from ackwise.plugin.process.supervisor import LINE, Backoff, Supervisor, supervised

#: Says that it has joined, writes its process id below its number, and waits for what the test does. SIGTERM ends it with 0.
WORKER = """
import os, signal, socket, sys
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
line = socket.socket(fileno=int(os.environ["_ACKWISE_SUPERVISOR"]))
if len(sys.argv) > 1:
    sys.exit(int(sys.argv[1]))
line.send(b"1")
with Path(os.environ["WORKER_NUMBER"]).open("a") as file:
    file.write(f"{os.getpid()} ")
try:
    line.recv(1)
except ConnectionResetError:  # it died before it read what was sent
    pass
Path(f"orphan-{os.environ['WORKER_NUMBER']}").touch()
"""


class NoDelay(Backoff):
    """Starts again at once."""

    FIRST = LONGEST = 0.0


def test_the_back_off_doubles_up_to_a_minute_and_begins_anew_after_a_worker_that_ran() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    assert [backoff.ended() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    backoff.started()
    clock.now += 59
    assert backoff.ended() == 60
    backoff.started()
    clock.now += 60
    assert backoff.ended() == 1


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pids(folder: Path, number: int) -> list[int]:
    """Of the processes that joined as worker `number`, the one that runs last."""
    file = folder / str(number)
    return [int(each) for each in file.read_text().split(" ")[:-1]] if file.exists() else []


@asynccontextmanager
async def supervising(*arguments: tuple[str, ...]) -> AsyncIterator[tuple[Supervisor, asyncio.Task[int]]]:
    """Keep a worker for each of `arguments`; at the end all are stopped."""
    supervisor = Supervisor([(sys.executable, "-c", WORKER, *each) for each in arguments], backoff=NoDelay)
    running = asyncio.create_task(supervisor.run())
    await asyncio.sleep(0)  # now it takes signals
    try:
        yield supervisor, running
    finally:
        supervisor._on_stop(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            await running


@pytest.mark.slow  # starts two processes and stops them
async def test_a_signal_stops_all_and_ends_with_0(folder: Path) -> None:
    async with supervising((), ()) as (_, running):
        await until(lambda: bool(pids(folder, 1) and pids(folder, 2)))
    assert running.result() == 0


async def test_one_that_is_stopped_while_it_is_being_started_is_stopped_too(folder: Path) -> None:
    async with supervising((), (), ()) as (_, running):
        pass
    assert running.result() == 0


@pytest.mark.slow  # starts two processes, and one of them again
async def test_one_that_dies_is_started_again_and_the_others_go_on(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ackwise")
    async with supervising((), ()) as (_, running):
        await until(lambda: bool(pids(folder, 1) and pids(folder, 2)))
        os.kill(pids(folder, 1)[0], signal.SIGKILL)
        await until(lambda: len(pids(folder, 1)) == 2)
        assert len(pids(folder, 2)) == 1
    assert running.result() == 0
    [record] = [record for record in caplog.records if vars(record)["event"] == "worker process ended"]
    assert vars(record)["fields"] == {"worker": 1, "code": 128 + signal.SIGKILL, "retry_in": 0.0}


@pytest.mark.slow  # starts two processes, and each of them again
async def test_a_hangup_restarts_each_after_the_one_before_it_has_joined(folder: Path) -> None:
    async with supervising((), ()) as (supervisor, _):
        await until(lambda: bool(pids(folder, 1) and pids(folder, 2)))
        joined = supervisor._workers[0].has_joined
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: len(pids(folder, 1)) == 2)
        await until(lambda: joined.is_set() or len(pids(folder, 2)) == 2)
        await until(lambda: len(pids(folder, 2)) == 2)
        assert joined.is_set()
        assert [len(pids(folder, number)) for number in (1, 2)] == [2, 2]


@pytest.mark.slow  # starts processes, one of which never joins
async def test_the_next_is_not_restarted_before_the_one_before_it_has_joined(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with supervising((), ()) as (supervisor, _):
        await until(lambda: all(worker.has_joined.is_set() for worker in supervisor._workers))
        first, second = supervisor._workers
        first._command = (sys.executable, "-c", "import time; time.sleep(3600)")  # never joins
        asked: list[signal.Signals] = []
        with monkeypatch.context() as patch:
            patch.setattr(second, "signal", asked.append)
            supervisor._roll_again.set()
            await until(lambda: first.replaced is None and not first.has_joined.is_set() and first._process is not None)
            await turns(10)
            assert asked == []


@pytest.mark.slow  # starts processes that end at once
async def test_what_one_can_not_start_with_none_can(folder: Path) -> None:
    supervisor = Supervisor([(sys.executable, "-c", WORKER, "2")] * 2)
    async with asyncio.timeout(PATIENCE):
        assert await supervisor.run() == 2
    assert pids(folder, 1) == []


@pytest.mark.slow  # starts a process until it joins again
async def test_once_one_has_joined_a_refusal_is_tried_again(folder: Path) -> None:
    async with supervising(()) as (supervisor, running):
        await until(lambda: supervisor._has_joined and bool(pids(folder, 1)))
        worker = supervisor._workers[0]
        whole, worker._command = worker._command, (sys.executable, "-c", WORKER, "2")
        os.kill(pids(folder, 1)[0], signal.SIGKILL)
        await until(lambda: not worker.has_joined.is_set())
        worker._command = whole
        await until(lambda: len(pids(folder, 1)) == 2)
    assert running.result() == 0


@pytest.mark.slow  # starts two processes and kills one
async def test_the_exit_code_is_that_of_the_worker_that_did_not_drain(folder: Path) -> None:
    async with supervising((), ()) as (supervisor, running):
        await until(lambda: bool(pids(folder, 1) and pids(folder, 2)))
        supervisor._stop.set()
        os.kill(pids(folder, 1)[0], signal.SIGKILL)
    assert running.result() == 128 + signal.SIGKILL


@pytest.mark.slow  # starts a process that ignores signals
async def test_the_third_signal_kills_what_hangs(folder: Path) -> None:
    hanging = 'import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen("ready", "w")\ntime.sleep(3600)'
    supervisor = Supervisor([(sys.executable, "-c", hanging)])
    running = asyncio.create_task(supervisor.run())
    await until((folder / "ready").exists)
    for _ in range(3):
        supervisor._on_stop(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE):
        assert await running == 128 + signal.SIGKILL


@pytest.mark.slow  # starts a supervisor in a process, with a worker below it
async def test_workers_see_that_their_supervisor_is_gone(folder: Path) -> None:
    keep = "import asyncio, sys; from ackwise.plugin.process.supervisor import Supervisor; asyncio.run(Supervisor([sys.argv[1:]]).run())"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", keep, sys.executable, "-c", WORKER)
    await until(lambda: bool(pids(folder, 1)))
    process.kill()
    await process.wait()
    await until((folder / "orphan-1").exists)


async def test_a_worker_tells_its_supervisor_and_drains_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = socket.socketpair()
    asked = asyncio.Event()
    monkeypatch.setenv(LINE, str(its.detach()))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    joined = asyncio.Event()
    joined.set()
    ours.setblocking(False)
    with supervised(joined, asyncio.Event()):
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.get_running_loop().sock_recv(ours, 1) == b"1"
            assert LINE not in os.environ
            ours.close()
            await asked.wait()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


async def test_without_a_supervisor_nothing_is_told() -> None:
    assert LINE not in os.environ
    with supervised(asyncio.Event(), asyncio.Event()):
        await asyncio.sleep(0)


#: Notes each SIGTERM, and ends with 0 once the test says so.
DRAINING = """
import os, signal, socket, time
from pathlib import Path
def note(*_):
    with Path("asked").open("a") as file:
        file.write("x")
signal.signal(signal.SIGTERM, note)
socket.socket(fileno=int(os.environ["_ACKWISE_SUPERVISOR"])).send(b"1")
while not Path("end").exists():
    time.sleep(0.01)
"""


@pytest.mark.slow  # starts a process that drains until it is told to end
async def test_one_that_drains_for_a_restart_is_not_asked_again_by_a_stop(folder: Path) -> None:
    supervisor = Supervisor([(sys.executable, "-c", DRAINING)])
    running = asyncio.create_task(supervisor.run())
    await until(lambda: supervisor._workers[0].has_joined.is_set())
    supervisor._roll_again.set()
    await until((folder / "asked").exists)
    supervisor._on_stop(signal.SIGTERM)
    (folder / "end").touch()
    async with asyncio.timeout(PATIENCE):
        assert await running == 0
    assert (folder / "asked").read_text() == "x"


async def test_a_worker_that_drains_already_is_left_alone_when_its_supervisor_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = socket.socketpair()
    asked, stop = asyncio.Event(), asyncio.Event()
    monkeypatch.setenv(LINE, str(its.detach()))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    stop.set()
    with supervised(asyncio.Event(), stop):
        ours.close()
        await turns(20)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    assert not asked.is_set()
