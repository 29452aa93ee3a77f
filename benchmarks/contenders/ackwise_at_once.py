"""Ackwise with an agent of single messages and `concurrency`: without an order, or with the order `key`."""

from __future__ import annotations

import os
import signal
from typing import Any

from benchmarks.contenders.at_once import at_once, wait_and_count
from benchmarks.contenders.meter import Meter, Task, read_task

from ackwise.middleware.message.message import Message
from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import ConsumeLater, RetryInPlace
from ackwise.plugin.app import App


def main(task: Task) -> None:
    """Wait and count, until all are there."""
    meter, shape = Meter(task), at_once(task)
    app = App(task.group, brokers=task.brokers)
    app.use(ConsumeLater(), DeadLetter())
    by_key: dict[str, Any] = {"order": "key", "in_place": RetryInPlace(16)} if shape.how == "key" else {}

    async def handle(message: Message[bytes]) -> None:
        if await wait_and_count(meter, shape.wait):
            os.kill(os.getpid(), signal.SIGTERM)

    app.agent(task.topic, max_batch=task.batch, concurrency=shape.width, **by_key)(handle)
    app.run()
    meter.report()


if __name__ == "__main__":
    main(read_task())
