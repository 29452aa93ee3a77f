"""`Buffer`: the messages that a transaction has added and not written; and which transaction `Outbox.send` means."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from ackwise.middleware.errors import TransactionAborted
from ackwise.middleware.message import Headers
from ackwise.middleware.outbox import OutboxTransaction
from ackwise.middleware.outgoing import Outgoing, new_message_id
from ackwise.stores.protocol.outboxrows import RowColumns, columns_of

BROKEN: Final = (
    "the transaction of the outbox failed before its rows were written, because an error of {database} was caught inside it; nothing of it "
    "stays: let the error pass, or run what may fail in a savepoint"
)
_CLOSED: Final = (
    "add or send was called after its transaction of the outbox had ended; send inside the block of outbox.transaction(connection)"
)


class Sending(abc.ABC):
    """`send` of a transaction, and of an outbox."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        message_id: str | None = None,
    ) -> str:
        message_id = new_message_id() if message_id is None else message_id
        return self._take(Outgoing(topic, value, key, headers, partition, message_id=message_id))

    @abc.abstractmethod
    def _take(self, message: Outgoing) -> str:
        """Return the id of a message that becomes part of a transaction."""


class Buffer(Sending):
    """What was added and not written, in the order of the calls; the half of an `OutboxTransaction` that waits for nothing."""

    def __init__(self) -> None:
        self.rows: list[RowColumns] = []
        self.has_written = False  #: whether rows of it went to the database
        self._closed = ""  #: why nothing is added any more

    def close(self, why: str = _CLOSED) -> None:
        """Take no messages any more."""
        self._closed = self._closed or why

    def add(self, message: Outgoing) -> str:
        if self._closed:
            raise TransactionAborted(self._closed)
        self.rows.append(columns_of(message))
        return message.message_id

    def _take(self, message: Outgoing) -> str:
        return self.add(message)

    def written(self, count: int) -> None:
        """The first `count` rows are in the database."""
        del self.rows[:count]
        self.has_written = True


class Sends(Sending):
    """`Outbox.send` for an outbox: the transaction that is open around the call, in this task or in one that it began."""

    def __init__(self) -> None:
        self._current: ContextVar[OutboxTransaction | None] = ContextVar("ackwise outbox transaction", default=None)

    @contextmanager
    def within(self, transaction: OutboxTransaction) -> Iterator[None]:
        """Until the block ends, `send` means `transaction`."""
        before = self._current.get()
        self._current.set(transaction)
        try:
            yield
        finally:
            # A token would be refused where the block is left in another context, as a fixture or a generator may.
            if self._current.get() is transaction:
                self._current.set(before)

    def _take(self, message: Outgoing) -> str:
        transaction = self._current.get()
        if transaction is None:
            raise TransactionAborted(
                "outbox.send was called outside of a transaction of this outbox; "
                "call it inside `async with outbox.transaction(connection):`"
            )
        return transaction.add(message)
