"""`SQLOutbox`: the outbox of one SQL database, with its status, checks and cleanup; `ServerOutbox` is the one on a server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple, TypeVar

from ackwise.middleware.storage.outbox import HalfMessage, OutboxStatus, Parked, RowState, TransactionOutcome
from ackwise.stores.protocol.outbox import BARRIERS_KEPT, Keeping, Sends, Wakes, half_message_of, parked_of, text_of
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.operation import Steps
from ackwise.stores.sql.outboxdialect import OF_RELAY, Dialect, Operations, asked, changed, missing_rights, require_rights
from ackwise.stores.sql.outboxrelaying import Preparing, Relaying
from ackwise.stores.sql.outboxwriting import Block, Business, Rows, transaction
from ackwise.stores.sql.schema import Layout, Maintenance, SQLStore, complaints, create, refuse_jumped, required

_AT_ONCE: Final = 1000
"""Rows that one step of the cleanup deletes, or one of `requeue` changes, which takes some milliseconds."""

_RELAYS_KEPT: Final = 86400.0
"""Seconds that a lease is kept after its end."""

#: Stands for the rows in LOCAL_COMMIT that are delayed.
_DELAYED: Final = -1

#: A state may come in several parts.
_COUNTED: Final = "SELECT %s, number, age, (SELECT value FROM {meta} WHERE name = 'relay_kind') FROM {counted %s} AS c"
_OWNERS: Final = """
SELECT r.owner, (SELECT count(*) FROM {shards} AS s WHERE s.owner = r.owner AND s.leased_until > {now}) FROM {relays} AS r
WHERE r.leased_until > {now} ORDER BY r.owner
"""
_COLUMNS: Final = "id, topic, message_id, message_key, attempts, checks, cause, {ms created}"
_LISTED: Final = f"SELECT {_COLUMNS}, NULL, NULL FROM {{rows}} WHERE state = {{%s}} AND id > :after ORDER BY id LIMIT :limit"
_PARKED, _EXPIRED = (_LISTED % state.name for state in (RowState.MESSAGE_ERROR, RowState.EXPIRED))
_PREPARED: Final = """
SELECT id, topic, message_id, tx_id, producer_group, checks, {ms created} FROM {rows} {by_due}
WHERE state = {PREPARED} AND id > :after ORDER BY id LIMIT :limit"""
_SHOWN: Final = f"SELECT {_COLUMNS}, headers, value FROM {{rows}} WHERE state = {{MESSAGE_ERROR}} AND id = :id"
_ALL_PARKED: Final = "SELECT id FROM {rows} {by_due} WHERE state = {MESSAGE_ERROR} AND id > :after ORDER BY id LIMIT :limit"
_LAST_PARKED: Final = "SELECT max(id) FROM {rows} {by_due} WHERE state = {MESSAGE_ERROR}"
_REQUEUE: Final = """UPDATE {rows} {by_id} SET state = {LOCAL_COMMIT}, expires = {expiry},
    next_at = CASE WHEN attempts = 0 THEN {decided_at} WHEN due IS NULL THEN {sooner} ELSE {now} END, attempts = 0, checks = 0, cause = NULL
WHERE state = {MESSAGE_ERROR} AND id {among ids}"""

_OLD_BARRIERS: Final = """
b.created < {at before} AND NOT EXISTS (SELECT 1 FROM {rows} AS r WHERE r.tx_id = b.tx_id AND r.tx_id <> '' AND r.state = {PREPARED})"""
_FORGET_RELAYS: Final = "DELETE FROM {relays} WHERE leased_until < {at before}"


class _Forgotten(NamedTuple):
    """Records that are found without a lock, and looked at again as they are deleted."""

    find: str
    forget: str


def _rows(condition: str) -> _Forgotten:
    return _Forgotten(
        f"SELECT id FROM {{rows}} {{by_due}} WHERE {condition} LIMIT {_AT_ONCE}", f"{{deleting}} WHERE r.id {{among ids}} AND {condition}"
    )


_ROLLED_BACK: Final = _rows("state = {LOCAL_ROLLBACK} AND created < {at before}")
_LONG_EXPIRED: Final = _rows("state = {EXPIRED} AND next_at < {at before}")
# Of a row that was sent, `next_at` is when it goes; of a parked one it is when it was parked.
_SENT: Final = _rows("state = {GLOBAL_COMMIT} AND next_at < {at before}")
_LONG_PARKED: Final = _rows("state = {MESSAGE_ERROR} AND coalesce(next_at, created) < {at before}")
_BARRIERS: Final = _Forgotten(
    f"SELECT b.tx_id FROM {{barrier}} AS b WHERE {_OLD_BARRIERS} LIMIT {_AT_ONCE}",
    "{deleting_barriers} WHERE b.tx_id {among ids} AND " + _OLD_BARRIERS,
)


class Inspecting(Operations):
    """The operator's view of an outbox."""

    @asked(repeats=True)
    def status(self) -> Steps[OutboxStatus]:
        return (yield from self._status())

    @asked(repeats=True)
    def parked(self, *, limit: int = 100, after: int = 0) -> Steps[list[Parked]]:
        return [parked_of(row) for row in (yield from self._sql.read(self._sql.say(_PARKED, limit=limit, after=after)))]

    @asked(repeats=True)
    def expired(self, *, limit: int = 100, after: int = 0) -> Steps[list[Parked]]:
        return [parked_of(row) for row in (yield from self._sql.read(self._sql.say(_EXPIRED, limit=limit, after=after)))]

    @asked(repeats=True)
    def show(self, row: int) -> Steps[Parked | None]:
        rows = yield from self._sql.read(self._sql.say(_SHOWN, id=row))
        return parked_of(rows[0]) if rows else None

    @asked(repeats=True)
    def prepared(self, *, limit: int = 100, after: int = 0) -> Steps[list[HalfMessage]]:
        return [half_message_of(row) for row in (yield from self._sql.read(self._sql.say(_PREPARED, limit=limit, after=after)))]

    async def requeue(self, rows: Collection[int] | None = None) -> int:
        """See `OutboxStore.requeue`. By id, some at a time: what was requeued stays so if the database does not answer any more."""
        requeued, ids, last = 0, sorted(rows or ()), await self._last_parked() if rows is None else 0
        after = 0
        while some := ids[:_AT_ONCE] if rows is not None else await self._parked_ids(after, last):
            requeued += await self._requeue(some)
            after, ids = some[-1], ids[_AT_ONCE:]
        return requeued

    @asked(repeats=True)
    def _last_parked(self) -> Steps[int]:
        return (yield from self._sql.first(_LAST_PARKED)) or 0

    @asked(repeats=True)
    def _parked_ids(self, after: int, last: int) -> Steps[list[int]]:
        """Return the next parked rows after one, up to the `last`: those that are parked again meanwhile are behind it or left."""
        found = yield from self._sql.read(self._sql.say(_ALL_PARKED, after=after, limit=_AT_ONCE))
        return [id for (id,) in found if id <= last]

    @asked(repeats=True)
    def _requeue(self, ids: list[int]) -> Steps[int]:
        return self._woken(changed((yield from self._sql.write(self._sql.say(_REQUEUE, ids=ids)))), TransactionOutcome.COMMIT)

    def _complaints(self) -> Steps[list[str]]:
        """Return what is wrong or unwise about tables that are there, one sentence each."""
        yield from self._sql.require_settings()
        said = yield from missing_rights(self._sql, OF_RELAY)
        if not said:
            said = [*(yield from self._sql.settings()), *_of_rows((yield from self._status()))]
        return said

    def _clean(self) -> Steps[int]:
        """Delete rows that need not be kept, unneeded barriers, and relays that are gone; return how many records.

        A clock that jumps from now on deletes no more than is forgotten now.
        """
        now, deleted = float((yield from self._sql.first("SELECT {epoch}"))), 0
        if self._sql.has_server:
            refuse_jumped(now, self._address)
        for (find, forget), age in self._forgotten():
            look = self._sql.say(find, before=now - age)
            while found := [id for (id,) in (yield from self._sql.read(look))]:
                deleted += changed((yield from self._sql.write(self._sql.say(forget, before=now - age, ids=found))))
        yield from self._sql.write(self._sql.say(_FORGET_RELAYS, before=now - _RELAYS_KEPT))
        return deleted

    def _forgotten(self) -> Iterator[tuple[_Forgotten, float]]:
        """Yield the rows to delete, with their age in seconds."""
        yield _ROLLED_BACK, self.keeping.retention
        yield _LONG_EXPIRED, self.keeping.retention
        yield _SENT, 0.0
        if self.keeping.parked is not None:
            yield _LONG_PARKED, self.keeping.parked
        yield _BARRIERS, max(self.keeping.retention, BARRIERS_KEPT)

    def _status(self) -> Steps[OutboxStatus]:
        wheres = [(int(RowState.LOCAL_COMMIT), where) for where in self._sql.waiting]
        wheres += [(int(state), f"state = {state:d}") for state in (RowState.PREPARED, RowState.MESSAGE_ERROR, RowState.EXPIRED)]
        wheres.append((_DELAYED, f"state = {RowState.LOCAL_COMMIT:d} AND next_at IS NOT NULL AND due IS NOT NULL"))
        counts = yield from self._sql.read(self._sql.say(" UNION ALL ".join(_COUNTED % (state, where) for state, where in wheres)))
        owners = yield from self._sql.read(self._sql.say(_OWNERS))

        def of(state: int) -> tuple[int, float | None]:
            some = [(number, age) for found, number, age, _ in counts if found == state]
            return sum(number for number, _ in some), max((max(0.0, float(age)) for _, age in some if age is not None), default=None)

        kind = counts[0][3]
        return OutboxStatus(
            *of(RowState.LOCAL_COMMIT),
            *of(RowState.PREPARED),
            *of(RowState.MESSAGE_ERROR),
            {text_of(owner): count for owner, count in owners},
            None if kind is None else text_of(kind),
            of(_DELAYED)[0],
            of(RowState.EXPIRED)[0],
        )


def _of_rows(found: OutboxStatus) -> Iterator[str]:
    if found.waiting and not found.owners and found.relay_kind != "cdc":
        yield f"{found.waiting} rows wait and no relay has its lease; start a worker with Outbox, or `ackwise relay --outbox URL`"
    if found.parked:
        yield f"{found.parked} rows are parked, the oldest for {found.oldest_parked:.0f} s; see `ackwise outbox show URL`"


T = TypeVar("T")


class SQLOutbox(Relaying, Preparing, Inspecting, Sends):
    """Each operation is a generator of statements, which the outbox of a database runs on its connections."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}>"

    def transaction(self, connection: Any) -> AbstractAsyncContextManager[Block]:
        """See `Outbox.transaction`. Errors of `connection` are its driver's own, those of writing rows `AckwiseError`."""
        return transaction(self._through(connection), connection, self, self.wake)

    def writer(self, connection: Any) -> Rows:
        return Rows(self._through(connection))


class ServerOutbox(SQLOutbox, SQLStore[Connections[Any, Any]]):
    """`located` finds the table of the rows, which a business may not see under its name; `business` leads there through a connection."""

    def __init__(
        self,
        connections: Connections[Any, Any],
        sql: Dialect,
        layout: Layout,
        keeping: Keeping,
        wakes: Wakes,
        located: Callable[[], Steps[str]],
        business: Callable[[Any, str, str, float], Business],
    ) -> None:
        SQLOutbox.__init__(self, sql, connections.address, connections.timeout, keeping, wakes)
        maintenance = Maintenance(
            self._prepare, lambda: create(layout), lambda: complaints(layout, self._complaints), lambda: required(layout, self._clean)
        )
        SQLStore.__init__(self, connections, maintenance)
        self._layout, self._located, self._business = layout, located, business
        self._rows = sql.tables["rows"]

    def _prepare(self) -> Steps[None]:
        yield from self._sql.require_settings()
        yield from create(self._layout)
        yield from require_rights(self._sql, self._address)
        self._rows = yield from self._located()

    async def _run(self, begin: Callable[[], Steps[T]], *, repeats: bool = True) -> T:
        return await self._connections.run(begin, repeats=repeats)

    def _through(self, connection: Any) -> Business:
        return self._business(connection, self._rows, self._address, self._timeout)
