"""Ackwise with a batch agent of raw bytes: `plain`, with `dedup` in memory, or with `dedup+events`."""

from __future__ import annotations

import os
import signal

from benchmarks.contenders.meter import Meter, Task, read_task
from benchmarks.contenders.phases import Phases

from ackwise.middleware.message.batch import Batch
from ackwise.middleware.policies.policies import DeadLetter, Dedup, Events
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.plugin.app import App


def main(task: Task) -> None:
    """Count, until all are there; the phases are timed where the variant asks for it."""
    meter = Meter(task)
    wanted = task.variant.split("+")
    phases = Phases() if "phases" in wanted else None
    app = App(task.group, brokers=task.brokers)
    app.use(ConsumeLater(), DeadLetter())
    if "dedup" in wanted:
        app.use(Dedup("memory://"))
    if "events" in wanted:
        app.use(Events(f"{task.folder}/events"))

    async def count(batch: Batch[bytes]) -> None:
        if phases is not None:
            phases.start()
        if meter.count(len(batch)):
            if phases is not None:
                phases.stop()
            os.kill(os.getpid(), signal.SIGTERM)

    app.agent(task.topic, max_batch=task.batch)(count)
    if phases is not None:
        phases.watch()
    app.run()
    meter.report(None if phases is None else phases.found)


if __name__ == "__main__":
    main(read_task())
