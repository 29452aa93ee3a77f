"""`TransactionalProducer`: messages that are sent if, and only if, a local transaction commits. RocketMQ: `TransactionMQProducer`."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.events import EventSink
from ackwise.middleware.log import Log
from ackwise.middleware.message.outgoing import Outgoing, outgoing_of
from ackwise.middleware.policies.policies import Outbox
from ackwise.middleware.storage.outbox import FIRST_CHECK, MAX_CHECKS, NEXT_CHECK, BarrierStore, OutboxStore, TransactionOutcome
from ackwise.middleware.storage.rowtime import At, Delay, Expires, timing_of
from ackwise.plugin.consumer.workerstate import CheckCounts
from ackwise.plugin.handlers.decoder import is_async, name_of
from ackwise.plugin.outbox.checkback import Check, CheckBack, CheckSchedule
from ackwise.plugin.outbox.halfmessages import HalfMessages, LocalTransaction
from ackwise.plugin.outbox.outboxrelay import AloneSettings, name_of_outbox, new_relay
from ackwise.plugin.registry import open_outbox
from ackwise.plugin.settings.hostsettings import DEFAULT_BROKERS

if TYPE_CHECKING:
    from typing import Self


log = Log()

Local = Callable[[LocalTransaction], Awaitable[TransactionOutcome | None]]
"""RocketMQ's `executeLocalTransaction`."""

#: A column of the outbox, and a field of logs and events.
_GROUP: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")

#: Seconds for what is being sent, and for a check that is under way, when the producer is left; the next process goes on.
_END: Final = 15.0


_NO_COROUTINE: Final = (
    "the local transaction of send_in_transaction {found}, which can't be awaited; write `async def local(tx)`, which returns a "
    "TransactionOutcome or None"
)


class TransactionalProducer:
    """Send messages if, and only if, a local transaction commits:

        async with TransactionalProducer("orders", "postgresql://…/shop", brokers="localhost:9092") as producer:
            async with producer.prepare([Outgoing("paid", b"…", key=b"42")]) as tx:
                async with connection.transaction():
                    await tx.barrier(connection)  # the first statement
                    await connection.execute("UPDATE …")

    The messages are durable in `outbox` (a URL, a store, or a policy `Outbox`) before the block starts, and sent to `brokers` once it
    has committed: by a relay in here, unless the policy says `relay="apart"`. The row that `tx.barrier` inserts belongs to the local
    transaction, so that its database knows whether that committed: it is asked when the block ends, and after a crash by any instance of
    `producer_group`. `business` (a URL or a store) is the database of the local transactions where that is not the outbox's own. Where
    they are none of SQL, give a `check` instead: a coroutine function that takes a half message (`Prepared`) and returns a
    `TransactionOutcome`, RocketMQ's `checkLocalTransaction`. It may also return what to send, an `Outgoing` or the bytes of the value,
    which means COMMIT, and `Wait("10m")` while the answer is not there yet.

    A check comes `first_check` after the half message, the next ones every `check_every`; after `max_checks` that were answered
    it is parked, with an error in the log, and never discarded. `sink`, which is open, takes the events. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        producer_group: str,
        outbox: str | OutboxStore | Outbox,
        *,
        brokers: str = DEFAULT_BROKERS,
        business: str | BarrierStore | None = None,
        check: Check | None = None,
        first_check: float | str = FIRST_CHECK,
        check_every: float | str = NEXT_CHECK,
        max_checks: int = MAX_CHECKS,
        client_id: str = "ackwise",
        client_options: Mapping[str, object] | None = None,
        sink: EventSink | None = None,
    ) -> None:
        if not isinstance(producer_group, str) or not _GROUP.fullmatch(producer_group):
            found = "a URL" if "://" in str(producer_group) else repr(producer_group)  # which may hold a password
            raise ConfigurationError(f"producer_group is {found}; use up to 100 letters, digits, '.', '_' and '-'")
        _refuse_what_can_not_be_awaited(check)
        self._group = producer_group
        self._schedule = CheckSchedule(first_check, check_every, max_checks)  # type: ignore[arg-type]  # texts become seconds there
        self._made: list[Any] = []
        self._policy = outbox if isinstance(outbox, Outbox) else Outbox(outbox)
        self._settings = AloneSettings(brokers, client_id, dict(client_options or {}))
        self._sink = sink
        self._outbox: OutboxStore = self._opened_here(self._policy.store)
        self._business: BarrierStore | None = None if business is None else self._opened_here(business)
        barriers = self._business or (self._outbox if check is None else None)
        name = name_of_outbox(self._policy)
        self._half_messages = HalfMessages(self._outbox, producer_group, barriers, first_check=self._schedule.first, name=name, sink=sink)
        self._check_back = CheckBack(
            self._outbox, producer_group=producer_group, business=self._business, check=check, schedule=self._schedule, sink=sink, name=name
        )
        self._uses_barrier_of_outbox = barriers is self._outbox
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = AsyncExitStack()

    def __repr__(self) -> str:
        return f"<TransactionalProducer {self._group!r}>"

    async def __aenter__(self) -> Self:
        """Open the databases, start to send and to check. Raises `ConfigurationError`, `StoreUnavailable`."""
        if self._stop.is_set() or self._tasks:
            raise ConfigurationError("this TransactionalProducer was entered before; make a new one")
        async with AsyncExitStack() as opening:
            for store in self._made:
                opening.push_async_callback(store.close)
            await self._outbox.open()
            if self._business is not None:
                await self._business.open()  # type: ignore[attr-defined]  # a business database with a barrier is opened like an outbox
            await self._refuse_one_writer()
            self._open = opening.pop_all()
        self._begin(self._check_back.run(self._stop), "check-back")
        if self._policy.relay == "worker":
            relay = new_relay(self._outbox, self._policy, self._settings, sink=self._sink, is_alone=True)
            self._begin(relay.run(self._stop), "outbox relay")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Stop checking and sending, and close what was opened here. Raises what ended one of them before, unless the block raised.

        What is committed and not sent is in the outbox: the next relay sends it.
        """
        self._stop.set()
        done, late = await asyncio.wait(self._tasks, timeout=_END)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        await self._open.aclose()
        if error is None:
            for task in done:
                task.result()

    @property
    def counts(self) -> CheckCounts:
        """Return the results of the checks since the start."""
        return self._check_back.counts

    def prepare(
        self,
        messages: Outgoing | Sequence[Outgoing],
        *,
        first_check: float | str | None = None,
        delay: Delay = None,
        at: At = None,
        expires: Expires = None,
    ) -> AbstractAsyncContextManager[LocalTransaction]:
        """Make `messages` durable, let the block be the local transaction, and decide about them when it ends.

        What the block raises is raised. A block that ended well and has not committed, as its database says, sends nothing and raises
        `TransactionAborted`. An end that is not known, such as a connection that was lost during COMMIT, is left to the check-back, which
        comes after `first_check`. `delay`, `at` and `expires` are as for a row of an outbox, and count from the commit. Raises
        `StoreUnavailable` if the messages can't be made durable, and `ConfigurationError` if one is no
        `Outgoing`; then the block has not started.
        """
        self._require_running()
        given, timing = [messages] if isinstance(messages, Outgoing) else outgoing_of(messages), timing_of(delay, at, expires)
        return self._half_messages.prepare(given, first_check=first_check, timing=timing)

    async def send_in_transaction(
        self,
        messages: Outgoing | Sequence[Outgoing],
        local: Local,
        *,
        first_check: float | str | None = None,
        delay: Delay = None,
        at: At = None,
        expires: Expires = None,
    ) -> TransactionOutcome:
        """`prepare` around a call of `local`, as RocketMQ's `sendMessageInTransaction`; returns how the local transaction ended.

        `local` may return a `TransactionOutcome`; `None` is COMMIT. With a barrier its database decides. Raises what `prepare` and `local`
        raise, and `ConfigurationError` for one that can't be awaited.
        """
        _refuse_plain_function(local)
        async with self.prepare(messages, first_check=first_check, delay=delay, at=at, expires=expires) as transaction:
            working: Any = local(transaction)
            if not inspect.isawaitable(working):
                raise ConfigurationError(_NO_COROUTINE.format(found=f"returned {type(working).__name__}"))
            told = await working
            if told is not None:
                transaction.tell(told)
        return transaction.ended

    def _opened_here(self, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        store = open_outbox(given)
        self._made.append(store)
        return store

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.add(asyncio.create_task(work, name=f"ackwise {name}"))

    def _require_running(self) -> None:
        """Prepare nothing that would not be sent or checked. Raises what ended one of the two, and `ConfigurationError` outside."""
        if not self._tasks or self._stop.is_set():
            raise ConfigurationError("the TransactionalProducer is not started; use `async with TransactionalProducer(…) as producer:`")
        for task in self._tasks:
            if task.done():
                task.result()

    async def _refuse_one_writer(self) -> None:
        """SQLite has one writer: while a local transaction is open in its file, no other connection could prepare, check or send."""
        if not type(self._outbox).__module__.startswith("ackwise.stores.sqlite"):
            return
        same = self._uses_barrier_of_outbox or (
            self._business is not None and await self._business.database_id() == await self._outbox.database_id()
        )
        if same:
            raise ConfigurationError(
                "the outbox of a TransactionalProducer is the SQLite file of its local transactions, and no other can write to that "
                "while one is open; give half messages their own file, such as 'sqlite:///half.db', and business='sqlite:///shop.db'"
            )


def _refuse_plain_function(local: object) -> None:
    """Before anything is written. A lambda, or an object that can be called, may return a coroutine: that is not known before."""
    is_plain = (inspect.isfunction(local) or inspect.ismethod(local)) and local.__name__ != "<lambda>" and not is_async(local)
    if is_plain or not callable(local):
        name = name_of(local) if callable(local) else type(local).__name__
        raise ConfigurationError(_NO_COROUTINE.format(found=f"is {name!r}"))


def _refuse_what_can_not_be_awaited(check: object) -> None:
    if check is None or (callable(check) and is_async(check)):
        return
    name = name_of(check) if callable(check) else type(check).__name__
    raise ConfigurationError(
        f"check is {name!r}, which is no coroutine function; write `async def check(half)`, which returns TransactionOutcome.COMMIT, "
        "ROLLBACK or UNKNOWN, what to send, or Wait('10m')"
    )
