"""Rows in the transaction of the business, and the block of `outbox.transaction`: what is asked of a database and when, without I/O.

begin          BEGIN, SAVEPOINT        or SAVEPOINT alone in the transaction that is open already
before         the rows, then …        a savepoint of the business, or what ends the transaction
after          forget the rows …       that belong to what was rolled back
finish         RELEASE, the rows       the savepoint is there as long as the transaction is the one that began
commit         COMMIT                  but in a transaction that is somebody else's
undo           ROLLBACK, or TO it
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ackwise.middleware.errors import TransactionAborted
from ackwise.middleware.outgoing import Outgoing
from ackwise.stores.protocol.outboxrows import RowColumns
from ackwise.stores.protocol.outboxwriting import Buffer
from ackwise.stores.sql.operation import Packet, Statement, Steps
from ackwise.stores.sql.watching import ENDING, Effect, Effects, undoes

__all__ = ["ENDED", "Block", "Rows", "Writes"]

ENDED: Final = (
    "the transaction was ended inside the block of outbox.transaction: by a commit, a change of a table's definition, or by going on after "
    "a deadlock or an error that undoes all of it; {count} messages are not part of it: leave its end to the block, and let such an "
    "error pass"
)

_CLOSED: Final = (
    "add or send was called after its transaction had ended: it was ended inside the block of outbox.transaction; "
    "leave its end to the block"
)

_NUMBERS: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Writes:
    """The statements of one database, for one connection of the business."""

    insert: Callable[[Sequence[RowColumns], Packet], Steps[None]]
    """Inserts rows to be sent, in their order, which is that of their ids; the packet goes with the first of its own."""
    begin: Packet = (Statement("BEGIN"),)
    """Begins a transaction, out of autocommit."""
    commit: Packet = (Statement("COMMIT"),)
    """Commits it; then the connection is in autocommit again if it was."""
    rollback: Packet = (Statement("ROLLBACK"),)
    restore: Packet = ()
    """What is left to do where somebody else has ended the transaction."""
    open: Packet = ()
    """Fails where no transaction is open, if the driver does not know what an error did to it."""
    is_marked: bool = True
    """Whether a savepoint marks a transaction of ours: elsewhere the driver knows whether it is open, and no other begins by itself."""
    proves_first: bool = False
    """Whether the savepoint is released before rows are written, in the same trip: elsewhere they can still be undone afterwards."""
    at_once: bool = False
    """Whether a row is written by the call that adds it."""
    as_ours: Callable[[Steps[None]], Steps[None]] = lambda steps: steps
    """Takes steps with the rights that the connection came with, though somebody else's count now."""


class Connection(Protocol):
    """That of the business."""

    sql: Writes

    def is_open(self) -> bool:
        """Return whether a transaction is open, as far as the driver knows."""
        ...

    def write(self, steps: Steps[None], rows: Rows) -> Awaitable[None]:
        """Take steps that belong to `rows` to the database. Raises `AckwiseError`."""
        ...

    def write_first(self, steps: Steps[None], rows: Rows) -> Awaitable[None] | None:
        """The same before a statement that is watched: at once, if nobody can wait."""
        ...


class Rows(Buffer):
    """The rows of a transaction that somebody else looks after."""

    def __init__(self, business: Connection) -> None:
        super().__init__()
        self._sql, self._business, self._is_open = business.sql, business, business.is_open
        self._proof: Packet = business.sql.open
        self._acts_as_another = False

    def add(self, message: Outgoing) -> str:
        """See `OutboxTransaction.add`. Raises `StoreUnavailable` too where rows are written at once."""
        message_id = super().add(message)
        if self._sql.at_once:
            try:
                self._business.write_first(self.flushing(), self)
            finally:
                self.rows.clear()
        return message_id

    async def flush(self) -> None:
        """See `OutboxTransaction.flush`; the time that it may take is the connection's own."""
        if self.rows:
            await self._business.write(self.flushing(), self)

    def flushing(self) -> Steps[None]:
        """Write what was added, if anything was."""
        if count := len(self.rows):
            if not (self._sql.open or self._is_open()):
                raise self.ended()
            writing = self._sql.insert(self.rows[:count], self._proof)
            yield from self._sql.as_ours(writing) if self._acts_as_another else writing
            self.written(count)

    def ended(self) -> TransactionAborted:
        """The error where the transaction is not the one that began."""
        return TransactionAborted(ENDED.format(count=len(self.rows)))


class Block(Rows):
    """The block of `outbox.transaction`. It watches what is executed on the connection."""

    def __init__(self, business: Connection) -> None:
        super().__init__(business)
        self.is_joined = business.is_open()
        self._proof = ()
        self._name = f"ackwise_outbox_{next(_NUMBERS)}"
        self.has_ended = False  #: by what was executed inside the block

    @property
    def commits(self) -> bool:
        """Whether rows of it are committed with its end."""
        return self.has_written and (self.has_ended or not self.is_joined)

    def begin(self) -> Steps[None]:
        """Begin a transaction, or a savepoint in the one that is open."""
        yield [*(() if self.is_joined else self._sql.begin), *self._marked("SAVEPOINT")]

    def finish(self) -> Steps[None]:
        """Write what is left, unless the transaction was ended in the block; then nothing else may be open."""
        if not self.has_ended:
            yield from self._complete()
        elif self._is_open():
            raise self.ended()

    def commit(self) -> Steps[None]:
        """Commit what `begin` began."""
        if self.has_ended:
            yield from self._restore()
        elif not self.is_joined:
            yield self._sql.commit

    def undo(self) -> Steps[None]:
        """Undo the block, and nothing before it."""
        if not self._is_open() and (self.has_ended or not self._sql.open):
            yield from self._restore()
        elif self.is_joined:
            yield [*self._marked("ROLLBACK TO SAVEPOINT"), *self._marked("RELEASE SAVEPOINT")]
        else:
            yield self._sql.rollback

    def before(self, effects: Effects) -> Any:
        """See `Watcher.before`: what was added before a savepoint, or what may end the transaction, is written before it."""
        if self._sql.at_once:
            # All rows are written. What commits by itself there comes after the end of the transaction, and would stay without them.
            if Effect.COMMITS_BY_ITSELF in effects:
                raise self.ended()
        elif not undoes(effects):
            return self._business.write_first(self._complete() if self._ends(effects) else self.flushing(), self)
        return None

    def after(self, effects: Effects) -> None:
        """See `Watcher.after`: what was not written belongs to what was rolled back."""
        if undoes(effects):
            self.rows.clear()
        self._acts_as_another = self._acts_as_another or Effect.ACTS_AS in effects
        if self._ends(effects):
            self.has_ended = True
            self.close(_CLOSED)

    def _restore(self) -> Steps[None]:
        if self._sql.restore and not self.is_joined:
            yield self._sql.restore

    def _complete(self) -> Steps[None]:
        """Write what is left, with the proof that the transaction is still the one that began. Nothing may come after it."""
        if not (self._sql.open or self._is_open()):
            raise self.ended()
        proof = self._marked("RELEASE SAVEPOINT")
        if self._sql.proves_first and self.rows:
            self._proof, proof = proof, ()
        yield from self.flushing()
        if proof:
            yield proof

    def _ends(self, effects: Effects) -> bool:
        return not self.has_ended and not ENDING.isdisjoint(effects)

    def _marked(self, what: str) -> Packet:
        return [Statement(f"{what} {self._name}")] if self.is_joined or self._sql.is_marked else []
