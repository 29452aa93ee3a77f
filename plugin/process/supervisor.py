"""`Supervisor` of worker processes: starts and restarts them, and forwards signals; `supervised` is the side of a worker.

Each process starts from scratch, so that a restart loads new code. By its socket a worker reports that it has joined its group, and
notices the end of the supervisor.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from ackwise.middleware.log import Log, said

log = Log()

#: The environment variable with the number of a worker process, from 1 on: for ports and its own files.
NUMBER: Final = "WORKER_NUMBER"

#: That with the file descriptor of the socket. It is no entry of the configuration, whose prefix it lacks.
LINE: Final = "_ACKWISE_SUPERVISOR"


@contextmanager
def supervised(has_joined: asyncio.Event, stop: asyncio.Event) -> Iterator[None]:
    """Tell the supervisor once `has_joined`, and drain if it is gone; without a supervisor, or after `stop`, do nothing.

    Its end of the socket closes when it dies, however it does: what it left behind would not be restarted.
    """
    descriptor = os.environ.pop(LINE, None)  # a process that this one starts has no such line
    if descriptor is None:
        yield
        return
    loop = asyncio.get_running_loop()
    with socket.socket(fileno=int(descriptor)) as line:
        line.setblocking(False)
        telling = asyncio.create_task(_tell(line, has_joined), name="ackwise supervised")
        loop.add_reader(line, _on_end, loop, line, stop)
        try:
            yield
        finally:
            loop.remove_reader(line)
            telling.cancel()


async def _tell(line: socket.socket, has_joined: asyncio.Event) -> None:
    await has_joined.wait()
    with suppress(OSError):
        line.send(b"1")


def _on_end(loop: asyncio.AbstractEventLoop, line: socket.socket, stop: asyncio.Event) -> None:
    loop.remove_reader(line)
    if stop.is_set():  # it drains already, and a second signal would cancel what runs
        return
    log.warning("supervisor is gone")
    os.kill(os.getpid(), signal.SIGTERM)


#: The exit code of a worker that said in one sentence why it can't start.
REFUSED: Final = 2

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


class Backoff:
    """Seconds until a worker that ended is started again: 1, doubled up to 60; 1 again after one that ran for a minute."""

    FIRST, LONGEST, FINE = 1.0, 60.0, 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._delay = self.FIRST
        self._started = clock()

    def started(self) -> None:
        """It was started now."""
        self._started = self._clock()

    def ended(self) -> float:
        """It ended now; returns how long to wait."""
        if self._clock() - self._started >= self.FINE:
            self._delay = self.FIRST
        delay, self._delay = self._delay, min(self.LONGEST, self._delay * 2)
        return delay


class _Worker:
    """One worker: its process, and after that has ended the next one."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self.has_joined = asyncio.Event()  #: the process that runs now is a member of its group
        self.replaced: asyncio.Event | None = None  #: set once the process that was asked to stop for a new one has ended
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._asked: signal.Signals | None = None  # what a process is sent that is just being started

    async def run(self) -> int:
        """Start a process and return its exit code, -n after signal n, once it has ended. Raises `OSError` if it can't be started."""
        self._asked = None
        ours, its = socket.socketpair()
        with ours:
            with its:
                ours.setblocking(False)
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    env={**os.environ, NUMBER: str(self.number), LINE: str(its.fileno())},
                    pass_fds=(its.fileno(),),
                    process_group=0,  # Ctrl-C reaches the supervisor alone, which asks them; otherwise it would be their second signal
                )
            log.info("a worker process was started", worker=self.number, pid=self._process.pid)
            if self._asked is not None:
                self.signal(self._asked)
            listening = asyncio.create_task(self._listen(ours))
            try:
                return await self._process.wait()
            finally:
                listening.cancel()
                self._process = None
                self.has_joined.clear()

    async def _listen(self, line: socket.socket) -> None:
        with suppress(OSError):
            if await asyncio.get_running_loop().sock_recv(line, 1):
                self.has_joined.set()

    def ask_to_drain(self) -> None:
        """Send SIGTERM, unless its process was sent one before: a second one cancels what runs."""
        if self._asked is None:
            self.signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process that runs or is just being started, if one does."""
        self._asked = number
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                # Its own `send_signal` waits for one that has died, and asyncio then knows no more how it did: the exit code is 255.
                os.kill(self._process.pid, number)


class Supervisor:
    """Keeps one worker process for each of `commands`."""

    def __init__(self, commands: Sequence[Sequence[str]], *, backoff: Callable[[], Backoff] = Backoff) -> None:
        self._workers = [_Worker(number, command) for number, command in enumerate(commands, 1)]
        self._backoff = backoff
        self._stop = asyncio.Event()
        self._signals = 0  # that asked to stop
        self._has_joined = False  # any of them, ever
        self._is_refused = False
        self._codes: list[int] = []  # of the processes that ended after the stop
        self._roll_again = asyncio.Event()

    async def run(self) -> int:
        """Run until SIGINT or SIGTERM, and return the exit code once all processes have ended: 0 if each drained.

        SIGHUP restarts them one after the other. A second signal to stop is passed on as well, the third kills them. Where one ends with
        `REFUSED` before any has ever joined its group, all are stopped: what one can't start with, none can.
        """
        loop = asyncio.get_running_loop()
        for number in _STOPS:
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._roll_again.set)
        rolling = asyncio.create_task(self._roll())
        try:
            async with asyncio.TaskGroup() as group:
                for worker in self._workers:
                    group.create_task(self._keep(worker))
        finally:
            rolling.cancel()
            for number in (*_STOPS, signal.SIGHUP):
                loop.remove_signal_handler(number)
        return REFUSED if self._is_refused else next(filter(None, self._codes), 0)

    def _on_stop(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals == 1:
            log.info("stop requested for all worker processes", signal=number.name, workers=len(self._workers))
            self._drain_all()
            return
        for worker in self._workers:
            worker.signal(signal.SIGTERM if self._signals < 3 else signal.SIGKILL)

    def _drain_all(self) -> None:
        self._stop.set()
        for worker in self._workers:
            worker.ask_to_drain()

    async def _keep(self, worker: _Worker) -> None:
        """Start the process of `worker`, again whenever it ends, until all stop."""
        backoff = self._backoff()
        while not self._stop.is_set():
            backoff.started()
            joining = asyncio.create_task(self._note_join(worker))
            try:
                code = await worker.run()
            except OSError as error:
                code = None
                log.warning("a worker process can't be started now", worker=worker.number, error=said(error))
            joining.cancel()
            if self._stop.is_set():
                self._codes.append(self._after_stop(code))
            elif code == REFUSED and not self._has_joined:
                log.error("worker process could not start", worker=worker.number, code=code)
                self._is_refused = True
                self._drain_all()
            elif worker.replaced is not None:
                worker.replaced.set()
                worker.replaced = None
            else:
                delay = backoff.ended()
                log.warning("worker process ended", worker=worker.number, code=_as_shell(code), retry_in=delay)
                await _wait(self._stop, delay)

    def _after_stop(self, code: int | None) -> int:
        """The exit code that counts: a process that the first signal met before it could take signals had nothing to drain."""
        return 0 if code is None or (code == -signal.SIGTERM and self._signals < 2) else _as_shell(code)

    async def _note_join(self, worker: _Worker) -> None:
        await worker.has_joined.wait()
        self._has_joined = True

    async def _roll(self) -> None:
        """At each SIGHUP let each process drain and the next one join, before the one after it; a new SIGHUP starts another round."""
        while True:
            await self._roll_again.wait()
            self._roll_again.clear()
            log.info("rolling restart of worker processes started", workers=len(self._workers))
            for worker in self._workers:
                await worker.has_joined.wait()
                replaced = worker.replaced = asyncio.Event()
                worker.ask_to_drain()
                await replaced.wait()
                await worker.has_joined.wait()
            log.info("all worker processes were restarted", workers=len(self._workers))


def _as_shell(code: int | None) -> int:
    """An exit code as a shell has it: 128 + n after signal n, and 126 of what could not be started."""
    return 126 if code is None else 128 - code if code < 0 else code


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
