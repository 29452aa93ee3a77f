"""Supervised worker: its side of the socket to the supervisor that started its process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from ackwise.middleware.log import Log

__all__ = ["LINE", "NUMBER", "supervised"]

log = Log()

#: The environment variable with the number of a worker process, from 1 on: for ports and files of its own.
NUMBER: Final = "WORKER_NUMBER"

#: That with the file descriptor of the socket. It is no entry of the configuration, whose prefix it lacks.
LINE: Final = "_ACKWISE_SUPERVISOR"


@contextmanager
def supervised(has_joined: asyncio.Event, stop: asyncio.Event) -> Iterator[None]:
    """Tell the supervisor once `has_joined`, and drain if it is gone; without a supervisor, or after `stop`, do nothing.

    Its end of the socket closes when it dies, however it does: what it left behind would be restarted by nobody.
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
    log.warning("the supervisor is gone, the worker stops")
    os.kill(os.getpid(), signal.SIGTERM)
