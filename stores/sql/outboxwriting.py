"""Rows in the transaction of the business, and the block of `outbox.transaction`, on an asynchronous connection, which is a `Business`.

start          BEGIN, SAVEPOINT        or SAVEPOINT alone in the transaction that is open already
before         the rows, then …        a savepoint of the business, or what ends the transaction
after          forget the rows …       that belong to what was rolled back
finish         RELEASE, the rows       the savepoint is there as long as the transaction is the one that started
commit         COMMIT                  but in a transaction that is somebody else's
undo           ROLLBACK, or TO it
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.asyncblock import asynchronous_block
from ackwise.middleware.storage.rowtime import At, Delay, Expires
from ackwise.stores.protocol.outbox import Buffer, RowColumns, Sends
from ackwise.stores.sql.operation import Failure, Packet, Problem, Runner, Statement, Steps, SyncRunner, run, run_now
from ackwise.stores.sql.watching import ENDING, Effect, Effects, undoes

T = TypeVar("T")

ENDED: Final = (
    "the transaction was ended inside the block of outbox.transaction: by a commit, a change of a table's definition, or by going on after "
    "a deadlock or an error that undoes all of it; {count} messages are not part of it: leave its end to the block, and let such an "
    "error pass"
)

_CLOSED: Final = (
    "add or send was called after its transaction had ended: it was ended inside the block of outbox.transaction; "
    "leave its end to the block"
)

_IN_DOUBT: Final = "it is not known whether the transaction committed: what it wrote and what it sends is there together, or none of it"

_NUMBERS: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Writes:
    """The statements of one database, for one connection of the business."""

    insert: Callable[[Sequence[RowColumns], Packet], Steps[None]]
    """Inserts rows to be sent, in their order, which is that of their ids; the packet goes with its first row."""
    begin: Packet = (Statement("BEGIN"),)
    """Starts a transaction, out of autocommit."""
    commit: Packet = (Statement("COMMIT"),)
    """Commits it; then the connection is in autocommit again if it was."""
    rollback: Packet = (Statement("ROLLBACK"),)
    restore: Packet = ()
    """Statements that remain after another statement has ended the transaction."""
    open: Packet = ()
    """Fails where no transaction is open, if the driver does not know what an error did to it."""
    is_marked: bool = True
    """Whether a savepoint marks our transaction: elsewhere the driver knows whether it is open, and no other starts by itself."""
    proof: Packet = ()
    """Fails in our transaction if it has no mark and is broken, which COMMIT would silently roll back."""
    proves_first: bool = False
    """Whether the savepoint is released before rows are written, in the same trip: elsewhere they can still be undone afterwards."""
    at_once: bool = False
    """True if the call that adds a row writes it."""
    as_ours: Callable[[Steps[None]], Steps[None]] = lambda steps: steps
    """Takes steps with the rights that the connection came with, though other rights are in force now."""


class Rows(Buffer):
    """The rows of a transaction that the caller manages."""

    def __init__(self, business: Business) -> None:
        super().__init__()
        self._sql, self._business, self._is_open = business.sql, business, business.is_open
        self._proof: Packet = business.sql.open
        self._acts_as_another = False

    def add(self, message: Outgoing, *, delay: Delay = None, at: At = None, expires: Expires = None) -> str:
        """See `OutboxTransaction.add`. Raises `StoreUnavailable` too where rows are written at once."""
        message_id = super().add(message, delay=delay, at=at, expires=expires)
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
        """The error where the transaction is not the one that started."""
        return TransactionAborted(ENDED.format(count=len(self.rows)))


class Block(Rows):
    """The block of `outbox.transaction`. It watches what is executed on the connection."""

    def __init__(self, business: Business) -> None:
        super().__init__(business)
        self.is_joined = business.is_open()
        self._proof = ()
        self._name = f"ackwise_outbox_{next(_NUMBERS)}"
        self.has_ended = False  #: by what was executed inside the block

    @property
    def commits(self) -> bool:
        """True if its rows are committed with its end."""
        return self.has_written and (self.has_ended or not self.is_joined)

    def begin(self) -> Packet:
        """Return what starts a transaction, or a savepoint in the one that is open."""
        return [*(() if self.is_joined else self._sql.begin), *self._marked("SAVEPOINT")]

    def finish(self) -> Steps[None]:
        """Write what is left, unless the transaction was ended in the block; then nothing else may be open."""
        if not self.has_ended:
            yield from self._complete()
        elif self._is_open():
            raise self.ended()

    def commit(self) -> Packet:
        """Return what commits that which `start` started; nothing if it is joined."""
        if self.is_joined:
            return ()
        return self._sql.restore if self.has_ended else self._sql.commit

    def undo(self) -> Packet:
        """Return what undoes the block, and nothing before it."""
        if not self._is_open() and (self.has_ended or not self._sql.open):
            return () if self.is_joined else self._sql.restore
        if self.is_joined:
            return [*self._marked("ROLLBACK TO SAVEPOINT"), *self._marked("RELEASE SAVEPOINT")]
        return self._sql.rollback

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

    def _complete(self) -> Steps[None]:
        """Write what is left, with the proof that the transaction is still the one that started. Nothing may come after it."""
        if not (self._sql.open or self._is_open()):
            raise self.ended()
        proof = self._marked("RELEASE SAVEPOINT") or (() if self.rows else self._sql.proof)
        if self._sql.proves_first and self.rows:
            self._proof, proof = proof, ()
        if self.rows:
            yield from self.flushing()
        if proof:
            yield proof

    def _ends(self, effects: Effects) -> bool:
        return not self.has_ended and not ENDING.isdisjoint(effects)

    def _marked(self, what: str) -> Packet:
        return [Statement(f"{what} {self._name}")] if self.is_joined or self._sql.is_marked else []


@dataclass(slots=True)
class Business:
    """A connection through one driver, for one block or writer."""

    sql: Writes
    runner: Runner
    is_open: Callable[[], bool]
    """Returns True while a transaction is open, as far as the driver knows."""
    watched: Callable[[Block], AbstractContextManager[None]]
    """Lets a block see what is executed."""
    close: Callable[[], Awaitable[None] | None]
    """Ends the connection, which undoes what is open on it."""
    as_error: Callable[[Exception], Exception]
    """The driver's error of our statement as one of Ackwise."""
    timeout: float
    """Seconds that it may take to undo a block."""
    now: SyncRunner | None = None
    """The way to the database where waiting is impossible: in a call that adds a row, or before a statement that is watched."""
    look: Callable[[], Awaitable[None]] | None = None
    """Checks for an open transaction, if the driver may have missed its end. Raises none of the driver's errors."""
    begins_by_itself: bool = False
    """True if the next statement starts a transaction where none is open."""
    waits_to_begin: bool = False
    """True if a failed start raises an error of Ackwise, not the driver's."""

    async def run(self, steps: Steps[T]) -> T:
        """Return what steps in the transaction that is open return. Raises `AckwiseError`."""
        try:
            return await run(steps, self.runner)
        except Failure as failure:
            raise self.as_error(failure.error) from None

    async def write(self, steps: Steps[None], rows: Rows) -> None:
        """Take steps that belong to `rows` to the database. Raises `AckwiseError`."""
        try:
            await run(steps, self.runner)
        except Failure as failure:
            raise self._error(failure, rows) from None

    def write_first(self, steps: Steps[None], rows: Rows) -> Awaitable[None] | None:
        """The same before a statement that is watched: at once, if waiting is impossible."""
        if self.now is None:
            return self.write(steps, rows)
        try:
            return run_now(steps, self.now)
        except Failure as failure:
            raise self._error(failure, rows) from None

    async def begin(self, block: Block) -> None:
        """Start a block; what could not start whole is undone."""
        try:
            await self.runner.send(block.begin())
        except BaseException as error:
            # Where the driver does not know what an error did, the connection may be out of autocommit with nothing open.
            if not block.is_joined and (self.is_open() or self.sql.open):
                await self.undo(block)
            if isinstance(error, Failure):
                raise (self.as_error(error.error) if self.waits_to_begin else error.error) from None
            raise

    async def commit(self, block: Block) -> None:
        """End a block. Without an answer the connection is closed: what sets it back to autocommit would commit."""
        try:
            if packet := block.commit():
                await self.runner.send(packet)
        except Failure as failure:
            if failure.problem is Problem.LOST:
                await self._close()
                raise StoreUnavailable(f"{self.as_error(failure.error)}; {_IN_DOUBT}") from None
            if self.is_open():
                await self.undo(block)
            raise failure.error from None
        except BaseException:
            await self._close()
            raise

    async def undo(self, block: Block) -> None:
        """Undo a block, if need be by closing the connection."""
        try:
            if packet := block.undo():
                async with asyncio.timeout(self.timeout):
                    await self.runner.send(packet)
        except (Failure, TimeoutError):
            await self._close()
        except BaseException:
            await self._close()
            raise

    async def _close(self) -> None:
        if (closing := self.close()) is not None:
            await closing

    def _error(self, failure: Failure, rows: Rows) -> Exception:
        error = self.as_error(failure.error)
        return rows.ended() if failure.problem is Problem.ENDED and not isinstance(error, TransactionAborted) else error


#: Drivers whose connections Django has.
_OF_DJANGO: Final = ("sqlite3",)


def require(connection: Any, kinds: Any, database: str, driver: str) -> None:
    """Raise `ConfigurationError` for what is no connection of `driver`."""
    if isinstance(connection, kinds):
        return
    package = type(connection).__module__.partition(".")[0]
    found = "None" if connection is None else f"a {type(connection).__name__}" + (f" of {package}" if package != "builtins" else "")
    if package != "django" and connection is not None:
        remedy = "for a session of SQLAlchemy use SQLAlchemyOutbox"
    elif driver in _OF_DJANGO:
        remedy = (
            "Django has one connection for each thread and opens it at the first statement: take django.db.connection.connection inside "
            "of transaction.atomic(), after a statement, in the thread of that block, and hand it over"
        )
    else:
        remedy = f"Django has none of those: give one of {driver} to the block, and let what belongs together be written through it"
    raise ConfigurationError(f"the {database} outbox got {found}, and writes through connections of {driver}; {remedy}")


@asynchronous_block
async def transaction(business: Business, connection: Any, sends: Sends, wake: Callable[[], Any]) -> AsyncIterator[Block]:
    """See `Outbox.transaction`; `business` leads through `connection`, and `wake` is called once rows are committed."""
    if business.look is not None:
        await business.look()
    block = Block(business)
    await business.begin(block)
    try:
        with business.watched(block), sends.within(block, connection):
            yield block
        if block.has_ended and business.look is not None:
            await business.look()
        await business.write(block.finish(), block)
    except BaseException:
        await business.undo(block)
        raise
    finally:
        block.close()
    await business.commit(block)
    if block.commits:
        wake()
