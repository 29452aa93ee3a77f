"""`transaction`: the block of `outbox.transaction` on an asynchronous connection of the business, which is a `Business` here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.stores.protocol.outboxwriting import Sends
from ackwise.stores.sql.operation import Failure, Problem, Runner, Steps, SyncRunner, run, run_now
from ackwise.stores.sql.outbox.writing import Block, Rows, Writes

__all__ = ["Business", "require", "transaction"]

T = TypeVar("T")

_IN_DOUBT: Final = "it is not known whether the transaction committed: what it wrote and what it sends is there together, or none of it"


@dataclass(slots=True)
class Business:
    """A connection through one driver, for one block or writer."""

    sql: Writes
    runner: Runner
    is_open: Callable[[], bool]
    """Whether a transaction is open, as far as the driver knows."""
    watched: Callable[[Block], AbstractContextManager[None]]
    """Lets a block see what is executed."""
    close: Callable[[], Awaitable[None] | None]
    """Ends the connection, which undoes what is open on it."""
    as_error: Callable[[Exception], Exception]
    """The driver's error of a statement of ours as one of Ackwise."""
    timeout: float
    """Seconds that it may take to undo a block."""
    now: SyncRunner | None = None
    """The way to the database where nobody can wait: in a call that adds a row, or before a statement that is watched."""
    look: Callable[[], Awaitable[None]] | None = None
    """Finds out whether a transaction is open, if the driver may have missed an end. Raises nothing of the driver's."""
    begins_by_itself: bool = False
    """Whether a transaction begins with the next statement, where none is open."""
    waits_to_begin: bool = False
    """Whether what is raised because it could not begin is an error of Ackwise, and not the driver's."""

    async def run(self, steps: Steps[T]) -> T:
        """Return what steps in the transaction that is open return. Raises `AckwiseError`."""
        try:
            return await run(steps, self.runner)
        except Failure as failure:
            raise self.as_error(failure.error) from None

    async def write(self, steps: Steps[None], rows: Rows) -> None:
        """See `Connection.write`."""
        try:
            await run(steps, self.runner)
        except Failure as failure:
            raise self._error(failure, rows) from None

    def write_first(self, steps: Steps[None], rows: Rows) -> Awaitable[None] | None:
        """See `Connection.write_first`."""
        if self.now is None:
            return self.write(steps, rows)
        try:
            return run_now(steps, self.now)
        except Failure as failure:
            raise self._error(failure, rows) from None

    async def know(self) -> None:
        """See `look`."""
        if self.look is not None:
            await self.look()

    async def begin(self, block: Block) -> None:
        """Begin a block; what could not begin whole is undone."""
        try:
            await run(block.begin(), self.runner)
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
            await run(block.commit(), self.runner)
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
            async with asyncio.timeout(self.timeout):
                await run(block.undo(), self.runner)
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


def require(connection: Any, kinds: Any, database: str, driver: str) -> None:
    """Raise `ConfigurationError` for what is no connection of `driver`."""
    if not isinstance(connection, kinds):
        raise ConfigurationError(
            f"the {database} outbox got a {type(connection).__name__}, and writes through connections of {driver}; "
            "for a session of SQLAlchemy use SQLAlchemyOutbox"
        )


@asynccontextmanager
async def transaction(business: Business, sends: Sends, wake: Callable[[], Any]) -> AsyncIterator[Block]:
    """See `Outbox.transaction`; `wake` is called once rows are committed."""
    await business.know()
    block = Block(business)
    await business.begin(block)
    try:
        with business.watched(block), sends.within(block):
            yield block
        if block.has_ended:
            await business.know()
        await business.write(block.finish(), block)
    except BaseException:
        await business.undo(block)
        raise
    finally:
        block.close()
    await business.commit(block)
    if block.commits:
        wake()
