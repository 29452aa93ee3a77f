"""`InboxTransaction`: one transaction of an inbox, around the statements of a handler, on any driver."""

from __future__ import annotations

import abc
import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar

from ackwise.middleware.errors import StoreUnavailable, TransactionAborted, TransactionCommitted
from ackwise.middleware.store import ClaimKey
from ackwise.middleware.transaction import Finish, Permit, Place, TransactionAnswer
from ackwise.stores.sql import inbox
from ackwise.stores.sql.connections import at_once
from ackwise.stores.sql.inbox import Fence, Statements
from ackwise.stores.sql.operation import Answer, Failure, Packet, run
from ackwise.stores.sql.watching import ENDING, Effect, Effects

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
    """A connection in a transaction of ours, which is out of autocommit until a commit or a rollback was answered. A runner."""

    statements: Statements
    address: str
    """The database's, without secrets."""
    timeout: float | None
    """Seconds that each of our statements may take; `None`: the driver sees to that."""
    connection: C
    """For the handler."""
    commits_with: Packet = ()
    """What commits in the trip that writes what is finished; no packet: `commit` is a step of its own."""

    @property
    @abc.abstractmethod
    def is_open(self) -> bool:
        """Whether a transaction is open on it, as far as the driver knows."""

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
        """The error of ours for one of the driver's."""

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
    """A transaction of the inbox that has begun in `session`."""

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
        await self._write()  # what a handler has ended would otherwise go on in a transaction of its own
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
        """Look for the rows that it claimed. Where nobody answers, the next claim is granted: that is as before."""
        try:
            return await self._within(run(inbox.was_committed(self._statements, self._claimed, self._mark), self._session), _SILENT)
        except StoreUnavailable:
            return False

    async def _within(self, doing: Coroutine[Any, Any, T], why: str) -> T:
        """Bound a step by the timeout, and raise our error for the driver's; `why` says what it can mean that the time is up."""
        session = self._session
        try:
            async with asyncio.timeout(session.timeout):
                return await doing
        except TimeoutError:
            raise StoreUnavailable(f"{session.address}: no answer within {session.timeout:g} s; {why}") from None
        except Failure as failure:
            raise session.unavailable(failure.error) from None
