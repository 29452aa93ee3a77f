"""`OutboxRows`: what a handler under `Transactional` published, as rows of the outbox in its transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from ackwise.middleware.disposition import Done
from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.outbox import Outbox, OutboxTransaction
from ackwise.middleware.outgoing import Outgoing
from ackwise.middleware.run import Run
from ackwise.middleware.transaction import Transaction
from ackwise.middleware.worker import Worker

__all__ = ["OutboxRows"]


class _Published(NamedTuple):
    run: Run
    message: Outgoing


class OutboxRows:
    """Takes what the handler published for those of `mine` that are done, so that nobody else sends it. The others send nothing.

    Raises `TransactionAborted` for a message that no row can hold, and without an outbox: it is the handler's failure.
    """

    def __init__(self, worker: Worker, handler: str, transaction: Transaction, mine: Sequence[Run]) -> None:
        self._worker = worker
        self._handler = handler
        self._published = [_Published(run, message) for run in mine if isinstance(run.disposition, Done) for message in run.publishes]
        self._writer = self._filled(transaction) if self._published else None
        for run in mine:
            run.publishes = []

    def _filled(self, transaction: Transaction) -> OutboxTransaction:
        writer = _required(self._worker.outbox).writer(transaction.connection)
        try:
            for _, message in self._published:
                writer.add(message)
        except ConfigurationError as error:
            raise TransactionAborted(str(error)) from None
        return writer

    async def write(self) -> None:
        """Write the rows, once the transaction is known to be the one that began. Raises `StoreUnavailable`, `TransactionAborted`."""
        if self._writer is not None:
            await self._writer.flush()

    def tell(self) -> None:
        """They have committed: relays of this process need not wait until they look again, and the books know of them."""
        if self._writer is None:
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
