"""Routes: which messages are sent for the changes of a source. `MappedRows` calls a user's function, `OutboxRows` sends outbox rows.

`OutboxRows` deletes a row from the table once it is acknowledged, and the table decides. Rows found there at the start of a session are
sent from there: rows older than the slot, rows whose deletion was cut short, and after a lost slot all unsent rows. Updates are looked up
there too, since the log may omit the value of an updated row.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ackwise.middleware.errors import AckwiseError, PublishRefused, StoreUnavailable
from ackwise.middleware.log import Log
from ackwise.middleware.message.keys import refuse_async
from ackwise.middleware.message.outgoing import Acked, MessageSender, Outgoing, SendFailed
from ackwise.middleware.storage.changes import Change, Operation, SourceBusy, UnreadableChange
from ackwise.middleware.storage.outbox import SHARDS, Failed, Holder, OutboxRow, OutboxStore, RowState, Sent, UnreadableRow
from ackwise.middleware.usercode import Returned, Stops, called, class_name, close_coroutine, is_a, where_raised
from ackwise.plugin.outbox.idranges import IdRanges
from ackwise.plugin.outbox.outboxwindow import failure_of, key_of
from ackwise.plugin.outbox.readsize import ReadSize


class ChangeMessage(NamedTuple):
    """A message on its way, with the row that it is made of if that is one of the outbox."""

    message: Outgoing
    position: str
    """Of the commit; empty for a row that was read from the table."""
    row: OutboxRow | None = None


class Aside(enum.Enum):
    """What else a change may call for."""

    NOTHING = "nothing"
    """It is no message, or was sent already."""
    TABLE = "table"
    """The log alone does not say what to send: what waits in the table is read."""


Verdict = ChangeMessage | Aside


class Failures(NamedTuple):
    """What became of changes that Kafka did not acknowledge."""

    parked: Sequence[ChangeMessage] = ()
    again_in: float | None = None
    """Seconds until the first of those that wait in the table is due; `None` if there are none."""
    held: Sequence[ChangeMessage] = ()
    """In no table, so that the log waits for them."""


class Route(Protocol):
    """What becomes of changes. All methods may raise `Unavailable`: then another session starts where the position stands."""

    async def open(self) -> None:
        """Connect, before the source is opened. Raises `StoreUnavailable` or `ConfigurationError`."""

    async def begin(self) -> None:
        """A session starts, and this process is the one that reads. Raises `ConfigurationError`."""

    async def keep(self) -> float | None:
        """Renew what has to be renewed, every few seconds; the seconds until the table is to be looked into, if it is."""
        ...

    def judge(self, change: Change) -> Verdict:
        """Decide on `change`. Raise `UnreadableChange`; nothing after it is sent then."""
        ...

    async def waiting(self) -> Sequence[ChangeMessage]:
        """Return a part of the rows that wait in the table; empty once all were returned and sent."""
        ...

    async def due(self) -> float | None:
        """Return the seconds until the next row of the table is due; `None` if none waits for its time."""
        ...

    async def begun(self, waiting: Sequence[ChangeMessage]) -> tuple[Sequence[ChangeMessage], Sequence[ChangeMessage]]:
        """Those of the table's rows that may be sent now, and never expire from now on; and those whose time was over before."""
        ...

    async def expire(self, expired: Sequence[ChangeMessage]) -> None:
        """The events of these are durable: they are never sent."""

    async def unheld(self, change_messages: Sequence[ChangeMessage]) -> Sequence[ChangeMessage]:
        """Those that may be sent; the others wait in the table behind an earlier row of their key."""
        ...

    async def sent(self, sent: Sequence[tuple[ChangeMessage, Acked]]) -> None:
        """Kafka acknowledged these, and their events are durable."""

    async def failed(self, failed: Sequence[tuple[ChangeMessage, SendFailed]]) -> Failures:
        """Kafka did not acknowledge these: write down what can wait in a table. Raise `PublishRefused`, which ends the relay, for what can
        neither wait nor be parked."""
        ...

    async def end(self) -> None:
        """Finish what is under way; the session ends. Raises nothing of the store's."""


class OpenSender(MessageSender, Protocol):
    """A sender that connects, and closes."""

    async def start(self) -> None:
        """Connect. Raises `Unavailable` if no broker answers, `ConfigurationError` for options that can't be used."""

    async def stop(self) -> None:
        """Close in bounded time; nothing is sent after that. Raises nothing of the client's."""


Mapping = Callable[[Change], Outgoing | None]
"""What to send for a change; `None`: nothing. The relay gives it the change's id."""


class MappedRows:
    """The route of tables that are no outbox. What can't be sent stops the relay, since there is no row to park."""

    def __init__(self, mapping: Mapping) -> None:
        refuse_async(mapping, "the function that maps changes")
        self._mapping = mapping

    async def open(self) -> None:
        """Do nothing."""

    async def begin(self) -> None:
        """Do nothing."""

    async def keep(self) -> float | None:
        """There is no table to look into."""
        return None

    def judge(self, change: Change) -> Verdict:
        """Return the function's verdict. Raise `UnreadableChange` with the place of an error, not its text, which may quote a row."""
        outcome = called(self._mapping, change)
        if not isinstance(outcome, Returned):
            error = outcome.error
            if isinstance(outcome, Stops) or is_a(error, AckwiseError):
                raise error
            raise UnreadableChange(
                f"{self._name} raised {class_name(error)} at {where_raised(error)} for change {change.number} of {change.table}, "
                f"committed at {change.position}; nothing from there on is sent: correct it, and start again"
            ) from error
        made = outcome.value
        if made is None:
            return Aside.NOTHING
        if not is_a(made, Outgoing):
            close_coroutine(made)
            raise UnreadableChange(
                f"{self._name} returned {class_name(made)} for a change of {change.table}; return an Outgoing, or None to send nothing"
            )
        return ChangeMessage(dataclasses.replace(made, message_id=change.id), change.position)

    async def waiting(self) -> Sequence[ChangeMessage]:
        """Return nothing: rows from before the slot are not sent."""
        return ()

    async def due(self) -> float | None:
        """There is no table to look into."""
        return None

    async def begun(self, waiting: Sequence[ChangeMessage]) -> tuple[Sequence[ChangeMessage], Sequence[ChangeMessage]]:
        """All of them."""
        return waiting, ()

    async def expire(self, expired: Sequence[ChangeMessage]) -> None:
        """Do nothing: no change expires."""

    async def unheld(self, change_messages: Sequence[ChangeMessage]) -> Sequence[ChangeMessage]:
        """All of them."""
        return change_messages

    async def sent(self, sent: Sequence[tuple[ChangeMessage, Acked]]) -> None:
        """Do nothing: only the position is stored."""

    async def failed(self, failed: Sequence[tuple[ChangeMessage, SendFailed]]) -> Failures:
        """Hold the log. Raise `PublishRefused`."""
        for change_message, failure in failed:
            if not failure.retriable:
                raise PublishRefused(
                    f"{failure.cause}: message {change_message.message.message_id}, committed at {change_message.position}; "
                    "nothing from there on is sent. "
                    f"Let the topic take it, or let {self._name} return None for it, and start again"
                )
        return Failures(held=[change_message for change_message, _ in failed])

    async def end(self) -> None:
        """Do nothing."""

    @property
    def _name(self) -> str:
        return f"{getattr(self._mapping, '__module__', '?')}:{getattr(self._mapping, '__qualname__', type(self._mapping).__name__)}"


log = Log()

#: Seconds that the shards are ours without word from us. The slot has one reader, so no other relay waits for them.
_LEASE: Final = 30.0

#: Rows that are read from the table at once; and rows that failed, of which no payload is read.
_ROWS: Final = 500
_PAGE: Final = 10_000

#: Every how many calls of `keep` the table is looked into in any case: a safety net for what the log and the deletions should report.
_LOOK_EVERY: Final = 6

#: Rows that may wait for their deletion beside what is sent: a crash of the relay sends as many again.
_MOST_UNDELETED: Final = 5_000

#: Seconds for rows to gather until they are deleted: a statement for each of them would cost the processor that reads and sends.
_GATHER: Final = 0.02

#: Seconds after which a row that the log told of is looked for again: the log reports a commit a moment before a statement sees it.
_SEEN_AFTER: Final = (0.02, 0.2, 2.0)


class OutboxRows:
    """The route of the outbox `store`. `read_row` makes a row of what the log says; `owner` is the name of the only reader.

    A row that Kafka does not acknowledge waits in the table with its key, and is parked once it has failed `max_attempts` times.
    """

    def __init__(
        self,
        store: OutboxStore,
        read_row: Callable[[Change], OutboxRow | None],
        *,
        owner: str,
        name: str,
        on_error: str = "block",
        max_attempts: int = 30,
    ) -> None:
        self._store, self._read_row, self._owner, self._name = store, read_row, owner, name
        self._blocks, self._max_attempts = on_error == "block", max_attempts
        self._tokens: dict[int, int] = {}
        self._failed: set[int] = set()  #: rows that wait in the table, or are parked
        self._keys: dict[tuple[str, bytes], int] = {}  #: that wait for one of them, with the first of each: what is older goes
        self._swept = IdRanges()  #: rows that were sent from the table, and are not sent again when the log comes to them
        self._undeleted: dict[int, Sent] = {}
        self._unseen: list[Sent] = []
        self._deleting: asyncio.Task[None] | None = None
        self._keeps = 0
        self._read_size = ReadSize(name)
        self._awaited: dict[int, Sent] = {}  #: rows that expire, and that the log told of
        self._unreadable: list[UnreadableRow] = []  #: what the log told of and is not parked yet

    async def open(self) -> None:
        """Connect, and create what is missing."""
        await self._store.open()

    async def begin(self) -> None:
        """Own the table, and delete what was sent before. Raises `ConfigurationError` if relays of the table send its rows."""
        self._unreadable.clear()  # the log is read again
        await self._store.claim_relay("cdc")
        await self._own()
        await self._delete()

    async def keep(self) -> float | None:
        """Renew the lease. Return when a row of the table is due again; at once if it was not looked into for a while."""
        await self._own()
        self._keeps += 1
        return 0.0 if self._keeps % _LOOK_EVERY == 0 else await self._store.next_due(self._tokens)

    async def _own(self) -> None:
        self._tokens = dict(await self._store.own(self._owner, lease=_LEASE, share=SHARDS))
        if len(self._tokens) < SHARDS:
            raise SourceBusy(f"another relay owns {SHARDS - len(self._tokens)} of the {SHARDS} shards of the outbox {self._name}")

    def judge(self, change: Change) -> Verdict:
        """An insert to be sent is sent from the log; a row with a time, and one that an update lets go, are looked up in the table."""
        row: Any = change.row
        if change.operation is Operation.UPDATE:
            lets_go = row["state"] == RowState.LOCAL_COMMIT and row["attempts"] == 0 and not row["behind"]
            return Aside.TABLE if lets_go and row["id"] not in self._swept else Aside.NOTHING
        try:
            row = self._read_row(change)
        except UnreadableRow as error:
            self._unreadable.append(error)
            return Aside.TABLE
        if row is None or row.id in self._failed or row.id in self._swept:
            return Aside.NOTHING
        if row.expires and not row.is_delayed:
            self._awaited[row.id] = Sent(row.id, row.shard)
        return Aside.TABLE if row.is_delayed or row.expires else ChangeMessage(row.message, change.position, row)

    async def waiting(self) -> Sequence[ChangeMessage]:
        """The next rows of the table that are due, by id.

        What failed is learnt again each time: a row that was sent or requeued meanwhile lets its key go, and would be held forever.
        """
        await self._finish_deletion()
        await self._delete()
        await self._free()
        await self._learn_failed()
        await self._await_visible()
        while True:
            while self._unreadable:
                await self._park_unreadable(self._unreadable[0])
                del self._unreadable[0]
            try:
                rows = await self._read_size.read(
                    lambda most: self._store.pending(self._tokens, limit=_ROWS, most=most, block_key=self._blocks)
                )
            except UnreadableRow as error:
                self._unreadable.append(error)
            else:
                if rows or not self._store.has_more:
                    return [ChangeMessage(row.message, "", row) for row in rows]

    async def _await_visible(self) -> None:
        """Begin the rows that expire and that the log told of, once a statement sees them: the next rows of their keys go after them."""
        for delay in (*_SEEN_AFTER, 0.0):
            if not self._awaited:
                return
            begun = await self._store.begin(list(self._awaited.values()), self._tokens)
            for id in (*begun.may_go, *begun.expired):
                self._awaited.pop(id, None)
            if self._awaited:
                await asyncio.sleep(delay)
        self._awaited.clear()  # they were sent before

    async def due(self) -> float | None:
        """See `Route.due`; it is also asked for when a row that failed is due again."""
        return await self._store.next_due(self._tokens)

    async def begun(self, waiting: Sequence[ChangeMessage]) -> tuple[Sequence[ChangeMessage], Sequence[ChangeMessage]]:
        """See `Route.begun`."""
        if not (timed := _sent_of(waiting)):
            return waiting, ()
        begun = await self._store.begin(timed, self._tokens)
        may_go = [each for each in waiting if each.row is None or not each.row.expires or each.row.id in begun.may_go]
        return may_go, [each for each in waiting if each.row is not None and each.row.id in begun.expired]

    async def expire(self, expired: Sequence[ChangeMessage]) -> None:
        """See `Route.expire`."""
        if await self._store.expire(_sent_of(expired), self._tokens):
            row = next(row for _, _, row in expired if row is not None)
            log.warning("outbox rows expired unsent", outbox=self._name, rows=len(expired), row=row.id, topic=row.message.topic)

    async def _free(self) -> None:
        """Let rows of the table go on that wait behind none any more; newer ones of their keys come after them, from the log."""
        while await self._store.free(block_key=self._blocks):
            pass

    async def _park_unreadable(self, unreadable: UnreadableRow) -> None:
        """Another program wrote it so; nothing waits for it forever. Raises `UnreadableChange` if it is not in the table."""
        if unreadable.id in self._failed:
            return
        if not await self._written([Failed(unreadable.id, unreadable.shard, str(unreadable), None)]):
            raise UnreadableChange(
                f"outbox {self._name}: {unreadable}; it is not in the table and can't be parked, and nothing behind it in the log is sent"
            )
        await self._learn_failed()
        log.error(
            "outbox row unreadable and parked",
            outbox=self._name,
            row=unreadable.id,
            topic=unreadable.topic,
            cause=str(unreadable),
        )

    async def unheld(self, change_messages: Sequence[ChangeMessage]) -> Sequence[ChangeMessage]:
        """Those whose key is free. The others stay in the table; one that is not there was deleted with its insert, and is sent."""
        held = [change_message.row for change_message in change_messages if change_message.row and self._is_held(change_message.row)]
        if not held:
            return change_messages
        await self._finish_deletion()
        waiting = await self._store.hold([row.id for row in held])
        for delay in _SEEN_AFTER:
            if unseen := [row.id for row in held if row.id not in waiting]:
                await asyncio.sleep(delay)
                waiting |= await self._store.hold(unseen)
        return [change_message for change_message in change_messages if change_message.row is None or change_message.row.id not in waiting]

    def _is_held(self, row: OutboxRow) -> bool:
        key = key_of(row)
        return key is not None and row.id > self._keys.get(key, row.id)

    async def _written(self, failures: Sequence[Failed]) -> set[int]:
        """Write failures down; return the ids of those that were there to be written."""
        written, left = set[int](), [*failures]
        for delay in (0.0, *_SEEN_AFTER):
            await asyncio.sleep(delay)
            if count := await self._store.failed(left, self._tokens):
                there = {failure.id for failure in left} if count == len(left) else {holder.id async for holder in self._holders()}
                written |= {failure.id for failure in left if failure.id in there}
                left = [failure for failure in left if failure.id not in there]
            if not left:
                break
        return written

    async def sent(self, sent: Sequence[tuple[ChangeMessage, Acked]]) -> None:
        """Delete the rows, beside what is sent next. A row that is not there any more was deleted before.

        What is sent while a deletion is under way goes with the next one: no send waits for the database to commit it.
        """
        for change_message, _ in sent:
            if change_message.row is not None and not change_message.position:
                self._swept.add(change_message.row.id)
        self._undeleted.update((row.id, Sent(row.id, row.shard)) for (_, _, row), _ in sent if row is not None)
        if self._deleting is not None and (self._deleting.done() or len(self._undeleted) >= _MOST_UNDELETED):
            await self._finish_deletion()
        if self._deleting is None:
            self._deleting = asyncio.create_task(self._delete_all(), name="ackwise deletes sent rows of the outbox")

    async def failed(self, failed: Sequence[tuple[ChangeMessage, SendFailed]]) -> Failures:
        """Let the rows wait in the table with their keys, or park them. Raise `PublishRefused` for a refused one that is not there."""
        await self._finish_deletion()
        parked, held, again = list[ChangeMessage](), list[ChangeMessage](), list[float]()
        pairs = [
            (row, answer, failure_of(row, answer, max_attempts=self._max_attempts)) for (_, _, row), answer in failed if row is not None
        ]
        written = await self._written([failure for _, _, failure in pairs])
        for (change_message, _), (row, answer, failure) in zip(failed, pairs, strict=True):
            if row.id not in written:
                if not answer.retriable:
                    raise PublishRefused(
                        f"{failure.cause}: row {row.id} of the outbox {self._name} is not in the table and can't be parked; nothing from "
                        "there on is sent. Let the topic take it, and start again"
                    )
                held.append(change_message)
                continue
            self._note(Holder(row.id, row.message.topic, row.message.key, failure.again_in is None))
            if failure.again_in is None:
                parked.append(change_message)
                self._log_parked(row, failure)
            else:
                again.append(failure.again_in)
        return Failures(parked, min(again, default=None), held)

    def _log_parked(self, row: OutboxRow, failure: Failed) -> None:
        log.error(
            "outbox row parked",
            outbox=self._name,
            row=row.id,
            topic=row.message.topic,
            message_id=row.message.message_id,
            attempts=row.attempts + 1,
            holds_key=self._blocks and row.message.key is not None,
            cause=failure.cause,
        )

    async def end(self) -> None:
        """Wait for the last deletion. What could not be deleted is, when the next session starts."""
        try:
            await self._finish_deletion()
        except StoreUnavailable:
            log.debug("rows that were sent are not deleted yet", outbox=self._name, rows=len(self._undeleted))

    async def _finish_deletion(self) -> None:
        deleting, self._deleting = self._deleting, None
        if deleting is not None:
            await deleting

    async def _delete_all(self) -> None:
        while self._undeleted:
            if len(self._undeleted) < _ROWS:
                await asyncio.sleep(_GATHER)
            await self._delete()

    async def _delete(self) -> None:
        new = list(self._undeleted.values())
        if done := [*self._unseen, *new]:
            deleted = await self._store.sent(done, self._tokens)
            # The log reports a commit a moment before a statement sees it: what was not there is asked for once more.
            self._unseen = new if deleted < len(done) else []
            for row in new:
                self._undeleted.pop(row.id, None)

    async def _learn_failed(self) -> None:
        """Which rows failed, and whose keys wait for them."""
        self._failed.clear()
        self._keys.clear()
        async for holder in self._holders():
            self._note(holder)

    async def _holders(self) -> AsyncIterator[Holder]:
        after = 0
        while page := await self._store.holders(limit=_PAGE, after=after):
            after = page[-1].id
            for holder in page:
                yield holder

    def _note(self, holder: Holder) -> None:
        self._failed.add(holder.id)
        if holder.key is not None and (self._blocks or not holder.is_parked):
            key = holder.topic, holder.key
            self._keys[key] = min(holder.id, self._keys.get(key, holder.id))


def _sent_of(change_messages: Sequence[ChangeMessage]) -> list[Sent]:
    """The rows that may expire."""
    return [Sent(row.id, row.shard) for _, _, row in change_messages if row is not None and row.expires]
