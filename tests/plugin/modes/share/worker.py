"""A worker in a share group, in this process or in one of its own, so that it can be killed: the one argument is JSON."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ackwise import App, ConsumeLater, Dedup, Message, Share


def run(ledger: Path, message: Message[bytes]) -> None:
    """Write down what ran; it is on the disk when this returns."""
    file = os.open(ledger, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    os.write(file, (json.dumps([message.value.decode(), message.reconsume_times + 1]) + "\n").encode())
    os.fsync(file)
    os.close(file)


def make_app(
    *,
    brokers: str,
    group: str,
    topic: str,
    folder: str,
    share: dict[str, Any],
    app: dict[str, Any],
    dedup: bool = True,
    store: Any = None,
    hangs: bool = False,
    handler: Callable[[Message[bytes]], Any] | None = None,
) -> App:
    """An app that writes down what it runs; a `handler` is awaited before that."""
    quick: dict[str, Any] = {"commit_interval": 0.1, "clock_skew": 0.0, "drain_timeout": 5.0, "session_timeout": 6.0}
    made = App(group, brokers=brokers, **(quick | app))
    made.use(Share(**{"lock": 2.0, **share}), ConsumeLater(levels="0.2s 0.5s"))
    if dedup:
        made.use(Dedup(store or f"sqlite:///{folder}/claims.db", lease=1.0))

    @made.agent(topic, name="bill")
    async def bill(message: Message[bytes]) -> None:
        if handler is not None:
            await handler(message)
        if hangs:
            sys.stdout.write(f"began {message.value.decode()}\n")
            sys.stdout.flush()
            await asyncio.Event().wait()
        run(Path(folder) / "ledger", message)

    return made


async def _main(arguments: dict[str, Any]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await make_app(**arguments).serve(stop)


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1])))
