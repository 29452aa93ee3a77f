"""A network that takes its time: its own proxy process that keeps what passes for `delay` seconds, each way.

    python -m benchmarks.claiming.network --target PORT --delay 0.00025

It prints the port that it listens on, and ends when its standard input does. epoll waits for whole milliseconds, so this one waits
by select(). What the proxy itself adds, about as much again on a busy machine, is measured by `echo_times`, not assumed.
"""

from __future__ import annotations

import argparse
import asyncio
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_ECHOES: Final = 1000


class _Side(asyncio.Protocol):
    """One side of a connection; what it receives leaves by the other side after the delay."""

    def __init__(self, delay: float, target: int | None) -> None:
        self._delay = delay
        self._target = target
        self._transport: asyncio.Transport | None = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._target is not None:
            transport.pause_reading()
            self._connecting = asyncio.ensure_future(self._connect(self._target, transport))

    async def _connect(self, target: int, transport: asyncio.Transport) -> None:
        self.other = other = _Side(self._delay, None)
        other.other = self
        await asyncio.get_running_loop().create_connection(lambda: other, "127.0.0.1", target)
        transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        asyncio.get_running_loop().call_later(self._delay, self.other.send, data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            asyncio.get_running_loop().call_later(self._delay, self.other.end)

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def end(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def _serve(target: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(_Side, delay, target), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextmanager
def delayed(port: int, delay: float) -> Iterator[int]:
    """A port that leads to `port`, `delay` seconds away each way, while the block runs."""
    command = [sys.executable, "-m", "benchmarks.claiming.network", "--target", str(port), "--delay", str(delay)]
    with subprocess.Popen(command, cwd=_CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.communicate()


class EchoTimes(NamedTuple):
    """Medians of how long 100 bytes take to a server that sends them back, in seconds."""

    straight: float
    delayed: float


def echo_times(delay: float) -> EchoTimes:
    """What a round trip takes without the network, and with it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        with delayed(port, delay) as slow:
            return EchoTimes(_echo_time(port), _echo_time(slow))


def _echo(server: socket.socket) -> None:
    for _ in range(2):
        with server.accept()[0] as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := connection.recv(1000):
                connection.sendall(data)


def _echo_time(port: int) -> float:
    times: list[float] = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_ECHOES):
            started = time.perf_counter()
            connection.sendall(b"." * 100)
            connection.recv(1000)
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description="A proxy that delays.")
    parser.add_argument("--target", type=int, required=True, help="port on 127.0.0.1")
    parser.add_argument("--delay", type=float, required=True, help="seconds, each way")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_serve(options.target, options.delay))


if __name__ == "__main__":
    main()
