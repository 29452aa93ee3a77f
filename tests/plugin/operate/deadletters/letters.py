"""Letters as workers write them, put into a Kafka in memory, and the commands about them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from typer.testing import CliRunner

from ackwise.middleware.message.disposition import Failure
from ackwise.middleware.message.message import Delivery, Headers, Origin, delivery_of
from ackwise.middleware.message.wire import Copy, dead_letter, parse_copy, shrink
from ackwise.plugin.cli.root import new_app
from ackwise.testing import MemoryKafka

APP = """
from dataclasses import dataclass
from ackwise import App

app = App("billing", brokers={brokers!r})

@dataclass
class Order:
    id: str
    amount: int

@app.agent("orders")
async def bill(order: Order) -> None: ...
"""


def failure(error: str = "KeyError", function: str = "bill", line: int = 31, message: str = "'vat'") -> Failure:
    """What a handler raised, with a library's frame below it."""
    frames = [("/srv/shop/billing.py", line, function), ("/usr/lib/python3.12/site-packages/money/tax.py", 8, "rate")]
    lines = [f'  File "{file}", line {number}, in {name}\n    …' for file, number, name in frames]
    return Failure(error, message, "\n".join(["Traceback (most recent call last):", *lines, f"{error}: {message}"]))


def letter(
    offset: int = 0,
    *,
    handler: str = "bill",
    topic: str = "orders",
    key: bytes | None = b"ann",
    value: bytes | None = b'{"id": "a", "amount": 1}',
    headers: Headers = (("trace", b"t"),),
    reason: str = "max-reconsume-times",
    why: Failure | None = None,
    attempt: int = 6,
    replay_id: bytes | None = None,
    group: str = "billing",
    shrunk: int = 0,
    timestamp_ms: int = 1_000,
) -> Copy:
    """The letter of the message at `offset`; `shrunk`: so many things are left out."""
    origin = Origin(topic, 0, offset, timestamp_ms)
    message = Delivery(*origin, key, value, headers, origin, attempt=attempt, replay_id=replay_id)
    copy = dead_letter(
        message, topic=f"{group}.dlq", partition=0, group=group, handler=handler, now_ms=1, reason=reason, failure=why or failure()
    )
    for _ in range(shrunk):
        smaller = shrink(copy)
        assert smaller is not None
        copy = smaller
    return copy


class Shop:
    """The group `billing`, with letters, and an app of it in `folder`."""

    def __init__(self, kafka: MemoryKafka, folder: Path) -> None:
        self.kafka = kafka
        self.module = f"shop_{folder.name}"
        self.app = f"{self.module}:app"
        self.folder = folder
        self.write_app(APP)

    def write_app(self, text: str) -> None:
        (self.folder / f"{self.module}.py").write_text(text.format(brokers=self.kafka.bootstrap, folder=str(self.folder)))

    def bury(self, *letters: Copy, partition: int = 0, timestamp: float | None = None) -> None:
        for each in letters:
            self.kafka.produce(
                "billing.dlq", each.value, key=each.key, headers=each.headers, partition=partition, timestamp=timestamp
            )  # fmt: skip

    async def ackwise(self, *arguments: str, code: int = 0) -> Any:
        """What a command prints; as it is, or read from its JSON."""
        runner = CliRunner(env={"COLUMNS": "400"})
        found = await asyncio.to_thread(runner.invoke, new_app(), ["dlq", *arguments], prog_name="ackwise")
        assert found.exit_code == code, (found.output, found.exception)
        return json.loads(found.stdout) if "--json" in arguments else found.output

    async def run(self, *arguments: str, code: int = 0) -> Any:
        """As `ackwise`, for commands that heed signals: here they come to nobody, since only a main thread can take them."""
        with mock.patch("ackwise.plugin.cli.dlq.stop_by_signal", asyncio.Event):
            return await self.ackwise(*arguments, code=code)

    def copies(self) -> list[Delivery]:
        """What is in the retry topic, as a worker reads it."""
        return [
            parse_copy(delivery_of(("billing.retry", 0), record), "billing")
            for record in self.kafka.records("billing.retry")
        ]  # fmt: skip

    def states(self) -> Mapping[str, Sequence[object]]:
        """The state and the number of redrives of each letter, as the topic says."""
        found = {}
        for record in self.kafka.records("billing.dlq.state"):
            said = json.loads(record.value or b"")
            found[os.fsdecode(record.key or b"").rpartition("/")[0]] = (said["state"], said["replays"])
        return found
