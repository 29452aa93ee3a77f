"""`PostgresChanges`: the changes of a PostgreSQL database by logical replication."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.changes import Change, ChangesLost, SourceBusy, SourceStatus, UnreadableChange
from ackwise.stores.postgres.driver import Asyncpg
from ackwise.stores.postgres.replication import coverage, slot
from ackwise.stores.postgres.replication.connection import LogData, ReplicationConnection, parse_frame, status_update
from ackwise.stores.postgres.replication.coverage import Coverage, Table
from ackwise.stores.postgres.replication.reader import Reader
from ackwise.stores.postgres.replication.slot import Progress, format_lsn, parse_lsn
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.url import parse
from ackwise.stores.protocol.options import CDC
from ackwise.stores.protocol.outbox import keeping_of
from ackwise.stores.sql.changes import LogChanges
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps

if TYPE_CHECKING:
    from ackwise.stores.postgres.replication.reader import Columns

T = TypeVar("T")

#: PostgreSQL's rule for the name of a slot.
_SLOT_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")

#: Seconds between reports of the acknowledged position, if it moved, and if it did not; wal_sender_timeout is 60 by default.
_REPORT, _REPORT_IDLE = 1.0, 5.0

#: Of a row of the outbox, what has to be in the log.
_OUTBOX_COLUMNS: Final = ("id", "message_id", "shard", "topic", "message_key", "partition", "headers", "value", "state", "attempts")

_RESOLVE: Final = """
SELECT c.oid, n.nspname, c.relname, c.relkind = 'p' AS is_partitioned
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)
"""

#: The types that domains stand for, also those of domains of domains.
_BASES: Final = """
WITH RECURSIVE domains AS (
    SELECT oid, typbasetype AS base FROM pg_type WHERE typtype = 'd'
    UNION SELECT domains.oid, typbasetype FROM domains JOIN pg_type ON pg_type.oid = domains.base AND typtype = 'd'
)
SELECT domains.oid, base FROM domains JOIN pg_type ON pg_type.oid = base WHERE typtype <> 'd'
"""

#: What a source of tables has to be told of, and one of the outbox, from which rows are deleted once they were sent.
_TABLES_NEED: Final = ("insert", "update", "delete", "truncate")
_OUTBOX_NEEDS: Final = ("insert", "update", "truncate")


class PostgresChanges(LogChanges):
    """Changes of the outbox of `url`, or of `tables` (`schema.table`), which the replication slot `name` keeps the log for.

    `create` makes publication and slot where they are missing; `replace_lost` starts again after a slot was lost.
    Raises `ConfigurationError`.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "ackwise",
        publication: str = "ackwise",
        tables: Sequence[str] = (),
        create: bool = False,
        replace_lost: bool = False,
    ) -> None:
        if not _SLOT_NAME.fullmatch(name):
            raise ConfigurationError(f"the slot is called {name!r}; use up to 63 lower-case letters, digits and '_'")
        if not publication or "\0" in publication or len(publication.encode()) > 63:
            raise ConfigurationError(f"the publication is called {publication!r}; give a name of up to 63 bytes")
        self._url, options = parse(keeping_of(url)[0])  # the URL may be that of the outbox
        self._publication, self._timeout, self._tables = publication, options.timeout, Tables(options.schema, options.prefix)
        driver = Asyncpg(
            CDC,
            self._url,
            None,
            timeout=options.timeout,
            max_size=1,
            statement_cache_size=options.statement_cache_size,
            session={"application_name": "ackwise cdc", "synchronous_commit": "local"},  # what is reported has to be remembered first
            maintenance_session={"application_name": "ackwise cdc"},
            is_bounded=True,
        )
        super().__init__(Connections(driver), name, tables, create=create, replace_lost=replace_lost, within=options.timeout)
        self._known: dict[Table, Columns] = {}
        self._bases: dict[int, int] = {}
        self._settled: int | None = None
        self._accepted = 0
        self._wanted: dict[Table, int] = {}
        self._covered: Coverage = {}
        self._stream: ReplicationConnection | None = None
        self._reader: Reader | None = None
        self._progress = Progress()
        self._reported = 0
        self._remembered = 0
        self._has_changes = False

    async def open(self) -> None:
        """Check everything, make what is to be made, and start to read. Raises as `ChangeSource.open`."""
        await self._stop_stream()
        await self._connections.open(self._require_settings)
        stream = await self._connect()
        try:
            system_id, timeline = await stream.identify()
            start = await self._prepare(system_id, timeline)
            await stream.start(self.name, self._publication)
        except BaseException:
            await stream.close()
            raise
        self._ready.clear()
        self._progress = Progress(parse_lsn(start))
        identity = f"{system_id}-{timeline}-{self.name}"
        self._reader = Reader(
            self._wanted,
            identity,
            self._known,
            self._progress,
            settled=self._settled or 0,
            accepted=self._accepted,
            bases=self._bases,
            codec=stream.codec,
        )
        self._stream, self._end, self._reported, self._remembered = stream, None, 0, parse_lsn(start)
        self._create = self._replace_lost = False  # said for this start, not for one after the next loss
        self._reporting = asyncio.create_task(self._report_on(), name="ackwise reports its position to PostgreSQL")

    async def _receive(self, limit: int) -> None:
        if self._stream is None or self._reader is None:
            raise self._not_open()
        frames = await self._stream.receive(limit)
        try:
            for data in frames:
                frame = parse_frame(data)
                if isinstance(frame, LogData):
                    if unknown := self._reader.unknown_types(frame.payload):
                        await self._learn_types(unknown)
                    if (said := self._reader.read(frame.payload)) is not None:
                        self._ready.append(said)
                        self._has_changes |= isinstance(said, Change)
                    continue
                self._progress.passed(frame.end)
                if frame.wants_reply:
                    self._report()
        except (UnreadableChange, ValueError) as error:
            self._end = UnreadableChange(f"{self.address}: {error}")
        except ChangesLost as error:
            self._end = self._uncovered(str(error))

    async def _learn_types(self, unknown: Collection[int]) -> None:
        """Learn which types are domains; what is gone since is no domain, as enumerations are none."""
        self._bases |= {oid: oid for oid in unknown} | await self._ask(_bases())

    def _uncovered(self, what: str) -> ChangesLost:
        """The error that ends the relay when `what`, a sentence, changed which rows are read."""
        missing = "Changes that are in no log are missing in Kafka" if self._given else "Rows that wait in the table are sent from there"
        return ChangesLost(
            f"{self.address}: {what}; the position in the log stays before it. {missing}. Put the table or the publication right, "
            "then start once with --replace-lost-slot to read on"
        )

    def acknowledge(self, position: str) -> None:
        """Everything up to the end of this transaction was sent."""
        self._progress.acknowledge(parse_lsn(position))

    async def hold(self, why: str | None) -> None:
        """See `ChangeSource.hold`."""
        await self._ask(slot.hold(self._tables, self.name, why))

    async def beat(self) -> SourceStatus:
        """Write a heartbeat, and return how far it has come. Raises `StoreUnavailable`."""
        await self._remember()
        return await self._ask(self._status())

    async def _connect(self) -> ReplicationConnection:
        try:
            return await ReplicationConnection.connect(self._url, address=self.address, timeout=self._timeout)
        except StoreUnavailable as error:
            # An ordinary connection of this user works, so is it the attribute?
            if not await self._ask(_first("SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user")):
                raise ConfigurationError(
                    f"{error}; this user has no attribute REPLICATION: ALTER ROLE … REPLICATION gives it "
                    "(on RDS: GRANT rds_replication TO …)"
                ) from None
            raise

    async def _prepare(self, system_id: str, timeline: int) -> str:
        """Where the slot stands, once everything is there, and the tables to read are known."""
        await self._ask(slot.ensure_table(self._tables))
        seen = await self._ask(slot.look_at(self.name))
        if seen is not None and seen.active:
            raise SourceBusy(f"{self.address}: another relay reads from the slot {self.name}")
        # After the look at the slot: a relay that ends remembers its position first, so the slot is never beyond what is read now.
        known = await self._ask(slot.recall(self._tables, self.name))
        decision = slot.decide(
            self.name, seen, known, system_id, timeline, create=self._create, replace_lost=self._replace_lost, remains=self._remains()
        )
        self._wanted = dict([await self._ask(self._resolved(table)) for table in self._given or [self._tables.named("outbox")]])
        heartbeat, _ = await self._ask(self._resolved(self._tables.named("cdc")))
        publishing = slot.ensure_publication(
            self._publication,
            [*self._wanted, heartbeat],
            columns=() if self._given else _OUTBOX_COLUMNS,
            needs=_TABLES_NEED if self._given else _OUTBOX_NEEDS,
            create=self._create,
        )
        self._found = await self._ask(publishing)
        await self._cover(known)  # before a slot is made: what changes from now on is seen
        if decision.says is not None:
            self._found = (decision.says, *self._found)
        if decision.drops:
            await self._ask(_first("SELECT pg_drop_replication_slot($1)", self.name))
        if decision.makes:
            await self._make_slot()
            seen = await self._ask(slot.look_at(self.name))
        if seen is None or seen.confirmed is None:
            raise StoreUnavailable(f"{self.address}: the replication slot {self.name} is not ready; it is tried again")
        await self._learn_types(())
        covered = json.dumps(self._covered)
        await self._ask(slot.remember(self._tables, self.name, slot.Known(system_id, timeline, seen.confirmed, covered)))
        return seen.confirmed

    async def _cover(self, known: slot.Known | None) -> None:
        """Look at what the tables depend on, and compare it with what it was when the position was kept. Raises `ChangesLost`."""
        now = await self._ask(coverage.look(self._publication, [*self._wanted]))
        before: Coverage = json.loads(known.coverage) if known is not None and known.coverage is not None else {}
        changed = coverage.difference(before, now, self._publication, [*self._wanted])
        if self._replace_lost:
            self._accepted = parse_lsn(now.end)
        elif changed is not None:
            raise self._uncovered(changed)
        if changed is not None:
            self._found = (f"{changed}; reading goes on, as --replace-lost-slot says", *self._found)
        self._covered = now.coverage
        if self._settled is None:
            self._settled = parse_lsn(now.end)

    async def _make_slot(self) -> None:
        try:
            making = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')"
            await self._connections.maintained(lambda: _first(making, self.name))
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"{error}; the slot {self.name} could not be made: it waits for every open transaction (see pg_stat_activity), "
                "and max_replication_slots and max_wal_senders must leave room for it"
            ) from None

    def _resolved(self, table: str) -> Steps[tuple[Table, int]]:
        try:
            (found,) = yield [Statement(_RESOLVE, (table,))]
        except Failure as failure:
            if failure.problem is not Problem.REFUSED:
                raise
            raise ConfigurationError(
                f"{self.address}: {table} can't be the name of a table; write schema.table, with double quotes around a part that has "
                "a dot, a capital or a special character"
            ) from None
        if not found.rows:
            advice = "correct --table" if self._given else "run `ackwise outbox init URL`"
            raise ConfigurationError(f"{self.address}: there is no table {table}; {advice}")
        ((oid, schema, name, is_partitioned),) = found.rows
        if is_partitioned:
            raise ConfigurationError(f"{self.address}: {table} is partitioned, and the log names its partitions; name those with --table")
        return Table(schema, name), oid

    def _require_settings(self) -> Steps[None]:
        if (level := (yield from _first("SHOW wal_level"))) != "logical":
            raise ConfigurationError(
                f"{self.address}: wal_level is {level}, and change data capture needs logical; "
                "set wal_level = logical and restart PostgreSQL"
            )

    def _status(self) -> Steps[SourceStatus]:
        seen = yield from slot.look_at(self.name)
        if seen is None:
            raise ChangesLost(f"{self.address}: there is no replication slot {self.name}")
        found = (*(yield from slot.held(self._tables, self.name)), *self._found, *slot.findings(self.name, seen))
        return SourceStatus(self.name, seen.confirmed, seen.active, seen.behind, seen.retained, seen.now_ms, found)

    async def _report_on(self) -> None:
        """Report the position again and again: the server forgets a reader that is silent, however long Kafka is unavailable."""
        idle = 0.0
        while True:
            await asyncio.sleep(_REPORT)
            idle += _REPORT
            if self._has_changes:  # heartbeats alone are remembered with the next one, or each would bring another
                await self._try_to_remember()
                self._has_changes = self._progress.waits
            if self._remembered > self._reported or idle >= _REPORT_IDLE:
                idle = 0.0
                with contextlib.suppress(StoreUnavailable):  # the reader will see it, too
                    self._report()

    async def _try_to_remember(self) -> None:
        """Remember the position in bounded time, if the database takes it; otherwise a little more is read again one day."""
        if self._progress.done > self._remembered:
            with contextlib.suppress(AckwiseError):
                await self._remember()

    async def _remember(self) -> None:
        """Keep the position, if what the tables depend on is as it was. Otherwise reading ends: raises `ChangesLost`."""
        done = self._progress.done  # before the look: what changes later is seen the next time
        if await self._ask(self._kept(done)):
            self._remembered = max(self._remembered, done)

    def _kept(self, done: int) -> Steps[int]:
        now = yield from coverage.look(self._publication, [*self._wanted])
        if (changed := coverage.difference(self._covered, now, self._publication, [*self._wanted])) is not None:
            self._end = self._uncovered(changed)
            raise self._end
        return (yield from slot.beat(self._tables, self.name, format_lsn(done)))

    def _report(self) -> None:
        """Report what is remembered and no more: a slot that is beyond that was moved, or made again, by another program."""
        if self._stream is not None:
            self._reported = self._remembered
            self._stream.send(status_update(self._reported))

    async def _stop_stream(self) -> None:
        await self._stop_reporting()
        stream = self._stream
        if stream is not None:
            try:
                await self._try_to_remember()
                with contextlib.suppress(StoreUnavailable):
                    self._report()
            finally:
                self._stream = None
                await stream.close()


def _bases() -> Steps[dict[int, int]]:
    (found,) = yield [Statement(_BASES)]
    return {row[0]: row[1] for row in found.rows}


def _first(text: str, *values: object) -> Steps[Any]:
    """Return the first value of the first row."""
    (found,) = yield [Statement(text, values)]
    return found.rows[0][0]
