"""A relay in its own process, as `ackwise relay --outbox` runs it, so that it can be killed and stopped.

The one argument is JSON: url, brokers, lease, batch, and `halt`: null, or [call, when, signal]: the process sends itself that signal at
that call of the outbox, "before" or "after" it, the first time that the call has rows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from typing import Any

from ackwise.middleware.policies.policies import Outbox
from ackwise.plugin.outbox.outboxrelay import AloneSettings, relay_outbox_apart
from ackwise.plugin.registry import open_outbox


def halting(store: Any, call: str, when: str, number: int) -> None:
    """Let the process halt at a call of `store`."""
    real, has_halted = getattr(store, call), False

    def halt(rows: Any) -> None:
        nonlocal has_halted
        if rows and not has_halted:
            has_halted = True
            os.kill(os.getpid(), number)

    async def halted(*arguments: Any, **options: Any) -> Any:
        if when == "before":
            halt(arguments[0])
        answer = await real(*arguments, **options)
        if when == "after":
            halt(answer)
        return answer

    setattr(store, call, halted)


async def relay(url: str, brokers: str, lease: float, batch: int, halt: list[Any] | None) -> None:
    store, stop = open_outbox(url), asyncio.Event()
    if halt is not None:
        halting(store, *halt)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await relay_outbox_apart(store, Outbox(url, lease=lease, batch=batch, poll=0.1), AloneSettings(brokers), stop)


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s %(message)s")
    asyncio.run(relay(**json.loads(sys.argv[1])))
