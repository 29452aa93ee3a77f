"""One server of a test run: a child process with a folder and its own port, that can be killed, frozen and started again."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which
from typing import Protocol

import pytest

#: Seconds; the slowest needs two on an idle machine.
START_TIMEOUT = 60.0
STOP_TIMEOUT = 15.0


class Missing(Exception):
    """A program that a server is started with is not on this machine."""


class Endpoint(Protocol):
    """What listens at a port of this machine: a server of whomever, or a proxy."""

    @property
    def port(self) -> int:
        """Where it listens."""
        ...


def program(name: str) -> str:
    """Where `name` is; also PostgreSQL's programs, which Debian keeps off the PATH. Raises `Missing`."""
    found = which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    candidates = [found, *sorted(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), reverse=True)]
    if (path := next(filter(None, candidates), None)) is None:
        raise Missing(f"{name} is not installed; `python3 .ci/servers.py` as root installs it")
    return path


@contextmanager
def skip_if_missing(what: str) -> Iterator[None]:
    """A machine that can't start `what` skips the test and says why; for CI that is a failure."""
    try:
        yield
    except Missing as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"needs {what}: {error}")


def free_port() -> int:
    """A port below the range that the system hands out by itself: nobody is given it while its server is unavailable.

    Nor the port 10,000 above it, where the nodes of a Redis Cluster talk to each other.
    """
    while True:
        port = random.randrange(10_000, 22_000)
        with socket.socket() as probe, socket.socket() as bus, suppress(OSError):
            for end, number in ((probe, port), (bus, port + 10_000)):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                end.bind(("127.0.0.1", number))
            return port


def greets(port: int) -> bool:
    """Whether a MariaDB or MySQL sends the packet that starts a session."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
        connection.settimeout(1.0)
        return len(connection.recv(5)) == 5
    return False


class Server:
    """`command` is what to run; `is_ready` tells whether it serves; `stop` is what it takes for the wish to shut down.

    Its output is in `server.log` of its folder.
    """

    def __init__(
        self, folder: Path, port: int, command: Sequence[str], is_ready: Callable[[], bool], *, stop: signal.Signals = signal.SIGTERM
    ) -> None:
        self.folder = folder
        self.port = port
        self._stop = stop
        self._command = command
        self._is_ready = is_ready
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has said."""
        return (self.folder / "server.log").read_text("utf-8", errors="replace")

    def start(self) -> None:
        """Start it, and return once it serves; raises `AssertionError` with the end of its log if it does not."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        # It ends with us, however we end: the guard waits for the end of a pipe that only we hold open.
        guard = ["/bin/sh", "-c", 'read -r _; kill -KILL "$1"', "guard", str(self._process.pid)]
        self._guard = subprocess.Popen(
            guard, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + START_TIMEOUT
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                ended = self._process.returncode
                self.kill()
                raise AssertionError(f"{self._command[0]} did not come up (code {ended}): {self.log[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Let it shut down in order, or kill it if it does not."""
        self._end(self._stop)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it, and start it again on its data and port."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP for all of its processes: connections stay open, and nobody answers once this returns."""
        assert self._process is not None
        self._signal(signal.SIGSTOP)
        while not _are_stopped([self._process.pid, *_children(self._process.pid)]):
            time.sleep(0.001)

    def thaw(self) -> None:
        """Let a frozen one go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        # PostgreSQL's processes are each their own group, so that the group of the first is not all of them.
        children = _children(self._process.pid)
        os.killpg(self._process.pid, number)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, number)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                self._signal(number)  # with the processes that it made
            else:
                self._process.send_signal(number)
            self._signal(signal.SIGCONT)
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                self._signal(signal.SIGKILL)
            self._process.wait()
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
        self._process = self._guard = None


def _are_stopped(processes: Sequence[int]) -> bool:
    """Whether they all are stalled, or are no more."""
    listed = ",".join(map(str, processes))
    states = subprocess.run(["ps", "-o", "stat=", "-p", listed], capture_output=True, text=True, check=False).stdout.split()
    return all(state[0] in "TZ" for state in states)


def _children(parent: int) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=", "-o", "ppid="], capture_output=True, text=True, check=True).stdout.split()
    return [int(pid) for pid, ppid in zip(listed[::2], listed[1::2], strict=True) if int(ppid) == parent]


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """`server` while the block runs."""
    server.start()
    try:
        yield server
    finally:
        server.stop()
