"""`InboxTransaction`: one inbox transaction around a handler's statements, on any driver; `ServerInbox` is the base for servers."""

from __future__ import annotations

import abc
import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

from ackwise.middleware.errors import StoreUnavailable, TransactionAborted, TransactionCommitted
from ackwise.middleware.storage.claimstore import ClaimKey
from ackwise.middleware.storage.transaction import Finish, Permit, Place, Progress, TransactionAnswer
from ackwise.stores.sql import inbox
from ackwise.stores.sql.connections import Connections, Driver, Pool, at_once
from ackwise.stores.sql.inbox import Fence, Statements, take_over
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Runner, Steps, run
from ackwise.stores.sql.schema import Maintenance, SQLStore
from ackwise.stores.sql.watching import ENDING, Effect, Effects, Watch, Watcher

C = TypeVar("C")
T = TypeVar("T")

_ROLLBACK_TIMEOUT: Final = 1.0
"""Seconds; a connection that takes longer is cut, which rolls back as well."""

_HELD: Final = "another transaction may hold a key of this batch, or the server does not answer"
_TAKEN: Final = "another worker may be taking the partition over, or the server does not answer"
_SILENT: Final = "the server does not answer"
_DOUBT: Final = "it is not known whether it committed; the next claim tells"

_COMMITTED: Final = (
    "the handler ended the transaction that it writes in, and what it wrote until then is committed; it is not run again: see what it "
    "did, and redrive its dead letters if that is right"
)


class Session(abc.ABC, Generic[C]):
    """A connection in our transaction, which is out of autocommit until a commit or a rollback was answered. A runner."""

    statements: Statements
    address: str
    """The database's, without secrets."""
    timeout: float | None
    """Seconds that each of our statements may take; `None`: the driver sees to that."""
    connection: C
    """For the handler."""
    commits_with: Packet = ()
    """Commits in the trip that writes finished keys; no packet: `commit` is its own step."""

    @property
    @abc.abstractmethod
    def is_open(self) -> bool:
        """True while a transaction is open on it, as far as the driver knows."""

    @abc.abstractmethod
    async def send(self, packet: Packet) -> Sequence[Answer]:
        """See `Runner.send`."""

    async def regain(self) -> None:  # there may be nothing to do
        """The handler is done: make the session what it was before, so that our statements are ours. Raises `Failure`."""

    @abc.abstractmethod
    async def commit(self) -> None:
        """Raises `Failure`, and `TransactionAborted` if the database refuses what the handler wrote."""

    @abc.abstractmethod
    async def rollback(self, *, is_marked: bool) -> bool:
        """Return whether the transaction was still there, as far as one can tell; `is_marked` says that nothing has finished it."""

    @abc.abstractmethod
    async def cut(self) -> None:
        """Disconnect at once, which rolls back what is open."""

    @abc.abstractmethod
    def unavailable(self, error: Exception) -> StoreUnavailable:
        """Our error for one of the driver's."""

    def after(self, effects: Effects) -> None:  # as above
        """See `Watcher.after`."""


class Turning:
    """A watcher of a handler's statements, which may neither end the transaction nor change the session for good.

    What a handler is about to change is read before, and `put_back` afterwards.
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self.put_back: Packet = ()

    def is_about_to(self, effects: Effects) -> bool:
        """Return whether the state of the session has to be read before a statement with `effects`. Raises `TransactionAborted`."""
        if not ENDING.isdisjoint(effects):
            raise TransactionAborted(inbox.REFUSED)
        return bool(self._statements.state) and not (self.put_back or _CHANGES.isdisjoint(effects))

    def found(self, state: Sequence[Any]) -> None:
        """That is what it was."""
        self.put_back = self._statements.put_back(state)


_CHANGES: Final = frozenset({Effect.ACTS_AS, Effect.SESSION, Effect.ANYTHING})


class InboxTransaction:
    """A transaction of the inbox that has started in `session`."""

    def __init__(self, session: Session[Any], retention: float) -> None:
        self.connection = session.connection
        self._session, self._statements = session, session.statements
        self._retention = retention
        self._mark = secrets.randbits(62) + 1
        self._transaction: str | None = None
        self._claimed: list[bytes] = []
        self._finishes: list[Finish] = []
        self._is_regained = self._is_finished = False

    async def claim(self, keys: Sequence[ClaimKey]) -> list[TransactionAnswer]:
        self._claimed += [key.id for key in keys]
        steps = inbox.claim(self._statements, keys, self._mark, self._retention)
        answers, transaction = await self._within(run(steps, self._session), _HELD)
        self._transaction = transaction or self._transaction
        return answers

    async def finish(self, finishes: Sequence[Finish]) -> None:
        self._finishes += finishes
        self._is_finished = False
        if self._session.commits_with:
            try:
                await at_once(self._regain(), lambda rest: self._within(rest, _SILENT))
            except Failure as failure:  # at once, as of a connection that is closed
                raise self._session.unavailable(failure.error) from None
        else:
            await self._write()

    async def lock(self, owner: str, topic: str, partition: int, generation: int) -> int:
        steps = inbox.lock(self._statements, Fence(owner, topic, partition, generation))
        next, self._transaction = await self._within(run(steps, self._session), _TAKEN)
        return next

    async def advance(self, owner: str, topic: str, partition: int, generation: int, next: int) -> None:
        await self._write()  # what a handler has ended would otherwise go on in its own transaction
        steps = inbox.advance(self._statements, Fence(owner, topic, partition, generation), next)
        await self._within(run(steps, self._session), _SILENT)

    async def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> list[Permit]:
        return await self._within(run(inbox.permits(self._statements, owner, copies), self._session), _SILENT)

    async def __aenter__(self) -> InboxTransaction:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Commit, or roll back if the block raised. Raises `TransactionCommitted` where the transaction had gone, and was committed."""
        if error is not None:
            await self._undo(error)
            return
        try:
            await self._commit()
        except BaseException as raised:
            await self._undo(raised)
            raise

    async def _undo(self, error: BaseException) -> None:
        is_gone = not await self._roll_back() or isinstance(error, TransactionAborted)
        if is_gone and await self._was_committed():
            raise TransactionCommitted(_COMMITTED) from error

    async def _commit(self) -> None:
        if self._session.commits_with and not self._is_finished:
            await self._within(self._finish(self._session.commits_with), _DOUBT)
            return
        await self._write()
        await self._within(self._session.commit(), _DOUBT)

    async def _write(self) -> None:
        """Write what is finished, once."""
        if self._is_finished:
            return
        await self._within(self._finish(()), _SILENT)
        if not self._session.is_open:
            raise TransactionAborted(inbox.ENDED)
        self._is_finished = True

    async def _regain(self) -> None:
        if not self._is_regained:
            self._is_regained = True
            await self._session.regain()

    async def _finish(self, then: Packet) -> None:
        await self._regain()
        done = inbox.Done(self._finishes, self._claimed, self._mark, self._transaction)
        await run(inbox.finish(self._statements, done, self._retention, then), self._session)

    async def _roll_back(self) -> bool:
        """Return whether the transaction was there; cut the connection where that takes too long."""
        try:
            async with asyncio.timeout(_ROLLBACK_TIMEOUT):
                return await self._session.rollback(is_marked=not self._is_finished)
        except (Failure, TimeoutError):
            await self._session.cut()
        except BaseException:
            await self._session.cut()
            raise
        return True

    async def _was_committed(self) -> bool:
        """Look for the rows that it claimed. Where the database does not answer, the next claim is granted: that is as before."""
        try:
            return await self._within(run(inbox.was_committed(self._statements, self._claimed, self._mark), self._session), _SILENT)
        except StoreUnavailable:
            return False

    async def _within(self, doing: Coroutine[Any, Any, T], why: str) -> T:
        """Run a step under the timeout; map the driver's errors to ours. `why` ends the message on timeout."""
        session = self._session
        try:
            async with asyncio.timeout(session.timeout):
                return await doing
        except TimeoutError:
            raise StoreUnavailable(f"{session.address}: no answer within {session.timeout:g} s; {why}") from None
        except Failure as failure:
            raise session.unavailable(failure.error) from None


P = TypeVar("P", bound=Pool[Any])


class ServerSession(Session[C]):
    """A connection of a pool that is ours for one batch."""

    def __init__(
        self,
        connection: C,
        statements: Statements,
        driver: Driver[Any, C],
        runner: Runner,
        watched: Callable[[C, Watcher[Any]], Watch[Any]],
    ) -> None:
        self.connection, self.statements = connection, statements
        self.address = driver.address
        self.timeout: float | None = driver.timeout
        self._driver, self._runner = driver, runner
        self._watch, self._turning = watched(connection, self), Turning(statements)

    @abc.abstractmethod
    async def begin(self) -> None:
        """Raises `Failure`."""

    @abc.abstractmethod
    def tidying(self) -> Packet:
        """Return what puts back what the handler did to the session, once its transaction has ended."""

    async def send(self, packet: Packet) -> Sequence[Answer]:
        return await self._runner.send(packet)

    def before(self, effects: Effects) -> Awaitable[object] | None:
        return self._look() if self._turning.is_about_to(effects) else None

    async def regain(self) -> None:
        """See `Session.regain`. Statements are still watched: a task that the handler left behind may execute some."""
        if self._turning.put_back:
            await self.send(self._turning.put_back)

    async def cut(self) -> None:
        self.unwatch()
        self._driver.cut(self.connection)

    def unwatch(self) -> None:
        """Its transaction has ended, and nothing is to be seen any more."""
        self._watch.stop()

    def unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(str(self._driver.as_store_error(error, self._driver.timeout)))

    async def _look(self) -> None:
        try:
            (answer,) = await self.send(self.statements.state)
        except Failure as failure:
            raise failure.error from None  # a handler knows the driver's errors
        self._turning.found(answer.rows[0])


class ServerInbox(SQLStore[Connections[P, C]]):
    """An inbox on `connections`; `session` makes of one what a batch works with, and `maintenance` finds out the statements."""

    def __init__(
        self, connections: Connections[P, C], maintenance: Maintenance[Statements], session: Callable[[C, Statements], ServerSession[C]]
    ) -> None:
        self._statements: Statements | None = None

        def prepare() -> Steps[None]:
            self._statements = yield from maintenance.prepare()

        super().__init__(connections, Maintenance(prepare, maintenance.create, maintenance.check, maintenance.clean))
        self._session = session

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[InboxTransaction]:
        """See `TransactionalStore.start`; waits for a connection, and replaces a lost one before anything was done."""
        pool = self._connections.require_open()
        connection, session = await self._begin(pool)
        try:
            async with InboxTransaction(session, retention) as transaction:
                yield transaction
        finally:
            await self._give_back(pool, connection, session)

    async def take_over(self, owner: str, topic: str, partition: int, *, position: int) -> Progress:
        """See `OffsetsStore.take_over`; waits up to the timeout for a batch of the owner before."""
        return (await self.take_over_many(owner, {(topic, partition): position}))[topic, partition]

    async def take_over_many(self, owner: str, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Progress]:
        """See `OffsetsStore`; waits up to the timeout for batches of the owners before."""
        self._connections.require_open()
        statements = self._known()
        return await self._connections.run(lambda: take_over(statements, owner, positions))

    def _known(self) -> Statements:
        assert self._statements is not None, "open() has found them"
        return self._statements

    async def _begin(self, pool: P) -> tuple[C, ServerSession[C]]:
        replaced = False
        while True:
            connection = await self._connections.acquire(pool)
            session = self._session(connection, self._known())
            try:
                async with asyncio.timeout(self._connections.timeout):
                    await session.begin()
            except BaseException as raised:
                await session.cut()
                await self._connections.release(pool, connection)
                if not isinstance(raised, Failure | TimeoutError):
                    raise
                error, problem = (raised.error, raised.problem) if isinstance(raised, Failure) else (raised, Problem.BUSY)
                if replaced or problem is not Problem.LOST:
                    raise self._connections.unavailable(error) from None
                replaced = True
                await self._connections.replace(pool)
            else:
                return connection, session

    async def _give_back(self, pool: P, connection: C, session: ServerSession[C]) -> None:
        """Return no connection to the pool that is not as it was."""
        session.unwatch()
        try:
            if tidying := session.tidying():
                async with asyncio.timeout(self._connections.timeout):
                    await session.send(tidying)
        except (Failure, TimeoutError):
            await session.cut()
        except BaseException:
            await session.cut()
            raise
        finally:
            await self._connections.release(pool, connection)
