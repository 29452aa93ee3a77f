"""`OutboxRows`: what a handler under `Transactional` published, as rows of the outbox in its transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ackwise.middleware.disposition import Done
from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.outbox import Outbox
from ackwise.middleware.outgoing import Outgoing
from ackwise.middleware.run import Run
from ackwise.middleware.worker import Worker

__all__ = ["OutboxRows"]


class _Published(NamedTuple):
    run: Run
    message: Outgoing


class OutboxRows:
    """Takes what the handler published for those of `mine` that are done, so that nobody else sends it. The others send nothing."""

    def __init__(self, worker: Worker, handler: str, mine: Sequence[Run]) -> None:
        self._worker = worker
        self._handler = handler
        self._published = [_Published(run, message) for run in mine if isinstance(run.disposition, Done) for message in run.publishes]
        for run in mine:
            run.publishes = []

    async def write(self, connection: Any) -> None:
        """Write the rows, once the transaction on `connection` is known to be the one that began: some databases insert at once.

        Raises `StoreUnavailable`, and `TransactionAborted`, the handler's failure, for what no row can hold and without an outbox.
        """
        if not self._published:
            return
        writer = _required(self._worker.outbox).writer(connection)
        try:
            for _, message in self._published:
                writer.add(message)
        except ConfigurationError as error:
            raise TransactionAborted(str(error)) from None
        await writer.flush()

    def tell(self) -> None:
        """They have committed: relays of this process need not wait until they look again, and the books know of them."""
        if not self._published:
            return
        _required(self._worker.outbox).wake()
        for run, message in self._published:
            run.succeeded = True
            if self._worker.sink is not None:
                topic, partition, offset, _ = run.delivery.origin
                attrs = json.dumps({"outbox": self._worker.outbox_name, "origin": f"{topic}/{partition}/{offset}"})
                self._worker.sink.record(
                    Event(EventCode.OUTBOX_STORED, message.topic, handler=self._handler, dedup_key=message.message_id, attrs=attrs)
                )


def _required(outbox: Outbox | None) -> Outbox:
    if outbox is None:
        raise TransactionAborted("a handler under Transactional published, and the app has no outbox; use Outbox(url) beside Transactional")
    return outbox
