"""The replication slot with its publication, its row in our table `ackwise_cdc`, and `Progress`, the position that may be confirmed.

The publication selects the tables of the log; it is checked, and created where it is missing.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.storage.changes import ChangesLost
from ackwise.stores.postgres.replication.coverage import Table
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps


def format_lsn(lsn: int) -> str:
    """The text that PostgreSQL writes for `lsn`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The number of a text such as `16/B374D848`. Raises `ValueError`."""
    high, separator, low = text.partition("/")
    if not separator or len(high) > 8 or len(low) > 8:
        raise ValueError(f"{text!r} is no log sequence number")
    return int(high, 16) << 32 | int(low, 16)


class Progress:
    """How far the log was read, and up to where nothing is outstanding.

    The server drops the log before the position that is reported as `done`, and starts there after a crash. So it is the end of
    a transaction all of whose changes were acknowledged, or, while none is outstanding, the end of what the server has looked through.
    """

    def __init__(self, start: int = 0) -> None:
        self.done = start  #: May be reported.
        self._outstanding: deque[int] = deque()  # ends of transactions that were read whole and not acknowledged, in their order
        self._is_inside = False

    @property
    def waits(self) -> bool:
        """Return True if a position was read and not acknowledged."""
        return self._is_inside or bool(self._outstanding)

    def begin(self) -> None:
        """A transaction starts: from now on something is outstanding."""
        self._is_inside = True

    def commit(self, end: int) -> None:
        """It was read whole; `end` is where it ends."""
        self._is_inside = False
        self._outstanding.append(end)

    def acknowledge(self, end: int) -> None:
        """Everything up to the end of a transaction was acknowledged. What was never read can't be."""
        while self._outstanding and self._outstanding[0] <= end:
            self.done = max(self.done, self._outstanding.popleft())

    def passed(self, position: int) -> None:
        """The server has sent everything that there is before `position`: an idle source goes forward with it."""
        if not self.waits:
            self.done = max(self.done, position)


_OPERATIONS: Final = ("insert", "update", "delete", "truncate")
_PUBLICATION: Final = f"SELECT {', '.join(f'pub{each}' for each in _OPERATIONS)}, pubviaroot FROM pg_publication WHERE pubname = $1"
# As JSON, since columns came with later versions.
_TABLES: Final = "SELECT to_jsonb(t)::text FROM pg_publication_tables t WHERE pubname = $1"


#: The tables of these, with their children, that have no changes in the log or whose own UPDATE a publication would break.
_BREAKING: Final = """
WITH RECURSIVE given AS (
    SELECT to_regclass(name)::oid AS table FROM unnest($1::text[]) AS name
    UNION SELECT inhrelid FROM pg_inherits JOIN given ON inhparent = given.table
)
SELECT c.oid::regclass::text, c.relkind::text, c.relpersistence::text FROM given JOIN pg_class AS c ON c.oid = given.table
WHERE c.relkind NOT IN ('r', 'p') OR c.relpersistence <> 'p' OR (c.relkind = 'r' AND c.relreplident <> 'f' AND NOT EXISTS (
    SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisvalid
    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
))
ORDER BY 1
"""

#: The children of tables that are not among them, each with its parent.
_CHILDREN: Final = """
WITH RECURSIVE given AS (SELECT to_regclass(name)::oid AS oid FROM unnest($1::text[]) AS name)
SELECT inhparent::regclass::text, inhrelid::regclass::text FROM pg_inherits JOIN given ON inhparent = given.oid
WHERE inhrelid NOT IN (SELECT oid FROM given) ORDER BY 1, 2
"""


def ensure_publication(
    name: str, tables: Sequence[Table], *, columns: Collection[str], needs: Sequence[str], create: bool
) -> Steps[tuple[str, ...]]:
    """Check that the publication has `tables` (the first are required and the last is the heartbeat's) as they are.

    `columns` of each required table must be in it, and `needs` are the operations. With `create` it is made if it is missing.
    Returns findings. Raises `ConfigurationError`.
    """
    made = (
        f"CREATE PUBLICATION {_quoted(name)} FOR TABLE {', '.join(table.quoted for table in tables)} WITH (publish = '{', '.join(needs)}')"
    )
    found, there = yield [Statement(_PUBLICATION, (name,)), Statement(_TABLES, (name,))]
    names = [table.quoted for table in tables]
    looked, children = yield [Statement(_BREAKING, (names,)), Statement(_CHILDREN, (names[:-1],))]
    # What is in a publication already breaks nothing that is not broken.
    if unfit := next((_unfit(*row, needs=needs) for row in looked.rows if not found.rows or row[1:] != ("r", "p")), None):
        raise ConfigurationError(unfit)
    for parent, child in children.rows:
        raise ConfigurationError(
            f"{child} inherits from {parent}, and the log names the rows of {child} by that: name it with --table, too, "
            f"or run: ALTER TABLE {child} NO INHERIT {parent}"
        )
    if not found.rows and not create:
        raise ConfigurationError(f"there is no publication {name}; --create-slot makes it, or run: {made}")
    if not found.rows:
        try:
            yield [Statement(made)]
        except Failure as failure:
            if failure.problem is not Problem.FORBIDDEN:
                raise
            raise ConfigurationError(
                f"this user may not make the publication ({failure.error.args[0]}); let an owner of the tables run: {made}"
            ) from None
        return ()
    published = [json.loads(each) for (each,) in there.rows]
    *is_published, is_via_root = found.rows[0]
    operations = [operation for operation, is_there in zip(_OPERATIONS, is_published, strict=True) if is_there]
    *required, heartbeat = tables
    if wrong := wrong_with(name, required, published, operations, columns=columns, needs=needs):
        if is_via_root:
            wrong += f"; where it names the root of partitions: ALTER PUBLICATION {name} SET (publish_via_partition_root = false)"
        raise ConfigurationError(wrong)
    if heartbeat not in _by_table(published):
        return (
            f"the publication {name} has no table {heartbeat}, so no heartbeat comes back; ALTER PUBLICATION {name} ADD TABLE {heartbeat}",
        )
    return ()


def _unfit(table: str, kind: str, persistence: str, *, needs: Sequence[str]) -> str:
    """Why `table` is not to be published, a sentence. `kind` and `persistence` are the codes of pg_class."""
    if kind not in "rp":
        return f"{table} is no table, and the log has no changes of it; name the tables that it reads from"
    if persistence != "p":
        return f"{table} is an unlogged table, and the log has no changes of it; ALTER TABLE {table} SET LOGGED"
    broken = " and ".join(each.upper() for each in needs if each in ("update", "delete"))
    return (
        f"{table} has no replica identity, so publishing it would make PostgreSQL refuse each {broken} of it; give it a primary key, "
        f"or run: ALTER TABLE {table} REPLICA IDENTITY FULL"
    )


def wrong_with(
    name: str,
    required: Sequence[Table],
    published: Sequence[dict[str, Any]],
    operations: Collection[str],
    *,
    columns: Collection[str],
    needs: Sequence[str],
) -> str | None:
    """Why changes would be passed over with this publication, a sentence; `None` if none would."""
    by_table = _by_table(published)
    for table in required:
        if (each := by_table.get(table)) is None:
            return f"the publication {name} has no table {table}; ALTER PUBLICATION {name} ADD TABLE {table}"
        if each.get("rowfilter"):
            return f"the publication {name} leaves out rows of {table} (a WHERE), which would never be sent; make one without it"
        if missing := sorted(set(columns) - set(each.get("attnames") or columns)):
            return f"the publication {name} leaves out column {missing[0]} of {table}; make one with all columns"
    if missing := [operation for operation in needs if operation not in operations]:
        return f"the publication {name} does not publish {missing[0]}; ALTER PUBLICATION {name} SET (publish = '{', '.join(needs)}')"
    return None


def _by_table(published: Sequence[dict[str, Any]]) -> dict[Table, dict[str, Any]]:
    return {Table(each["schemaname"], each["tablename"]): each for each in published}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_COLUMNS: Final = """
    slot text PRIMARY KEY,
    system_id text NOT NULL,
    timeline int NOT NULL,
    position pg_lsn NOT NULL,
    beats bigint NOT NULL DEFAULT 0,
    beat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    coverage text,
    held text"""


def ensure_table(tables: Tables) -> Steps[None]:
    """Create the table if it is missing. Raises `ConfigurationError` with the statement if this user may not."""
    name = tables.named("cdc")
    (there,) = yield [Statement("SELECT to_regclass($1) IS NOT NULL", (name,))]
    if there.rows[0][0]:
        return
    try:
        yield [Statement(f"CREATE TABLE IF NOT EXISTS {name} ({_COLUMNS}) WITH (fillfactor = 50)")]
    except Failure as failure:
        if failure.problem is Problem.DUPLICATE:
            return  # another session creates it in this moment
        if failure.problem is not Problem.FORBIDDEN:
            raise
        statement = f"CREATE TABLE {name} ({' '.join(_COLUMNS.split())})"
        raise ConfigurationError(
            f"the table {name} is missing, and this user may not create it; let an owner run: {statement}; "
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO this user"
        ) from None


def recall(tables: Tables, slot: str) -> Steps[Known | None]:
    """Return the stored state of `slot`."""
    question = f"SELECT system_id, timeline, position::text, coverage FROM {tables.named('cdc')} WHERE slot = $1"
    (found,) = yield [Statement(question, (slot,))]
    return Known(*found.rows[0]) if found.rows else None


def remember(tables: Tables, slot: str, known: Known) -> Steps[None]:
    """Write down which server `slot` is read on, and from where; what another relay has acknowledged there since stays."""
    statement = f"""
        INSERT INTO {tables.named("cdc")} AS known (slot, system_id, timeline, position, coverage)
        VALUES ($1, $2, $3, $4::text::pg_lsn, $5)
        ON CONFLICT (slot) DO UPDATE SET system_id = excluded.system_id, timeline = excluded.timeline, position =
            CASE WHEN (known.system_id, known.timeline) = (excluded.system_id, excluded.timeline)
            THEN greatest(known.position, excluded.position) ELSE excluded.position END, coverage = excluded.coverage"""
    yield [Statement(statement, (slot, *known))]


def hold(tables: Tables, slot: str, why: str | None) -> Steps[None]:
    """Write down why the position does not move."""
    yield [Statement(f"UPDATE {tables.named('cdc')} SET held = $2 WHERE slot = $1", (slot, why))]


def held(tables: Tables, slot: str) -> Steps[tuple[str, ...]]:
    """Return why the position does not move, if that is so."""
    try:
        (found,) = yield [Statement(f"SELECT held FROM {tables.named('cdc')} WHERE slot = $1 AND held IS NOT NULL", (slot,))]
    except Failure as failure:
        if failure.problem is not Problem.MISSING:
            raise
        return ()
    return tuple(why for (why,) in found.rows)


def beat(tables: Tables, slot: str, position: str) -> Steps[int]:
    """Write a heartbeat with the acknowledged position; returns how many rows there were for it."""
    statement = f"""
        UPDATE {tables.named("cdc")} SET beats = beats + 1, beat_at = clock_timestamp(),
            position = greatest(position, $2::text::pg_lsn) WHERE slot = $1"""
    (beaten,) = yield [Statement(statement, (slot, position))]
    return beaten.changed


#: Bytes of log kept for the slot from which that is reported: one gibibyte.
_MUCH: Final = 2**30

_SLOT: Final = """
SELECT plugin, slot_type, database = current_database() AS is_here, active, confirmed_flush_lsn::text AS confirmed, wal_status,
    safe_wal_size::int8 AS safe, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8 AS retained,
    pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::int8 AS behind,
    (SELECT setting::int8 FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep_mb,
    (extract(epoch FROM clock_timestamp()) * 1000)::int8 AS now_ms
FROM pg_replication_slots WHERE slot_name = $1
"""


class Slot(NamedTuple):
    """A row of pg_replication_slots. Bytes of log."""

    plugin: str | None
    slot_type: str
    is_here: bool | None
    active: bool
    confirmed: str | None
    wal_status: str | None
    safe: int | None
    """Until the slot is lost; `None` without a limit."""
    retained: int | None
    behind: int | None
    keep_mb: int
    """max_slot_wal_keep_size; -1 is no limit."""
    now_ms: int


class Known(NamedTuple):
    """The stored state of a slot."""

    system_id: str
    timeline: int
    position: str
    coverage: str | None = None
    """What the tables that are read depended on, as JSON."""


class Decision(NamedTuple):
    """Steps to run before reading."""

    drops: bool
    makes: bool
    says: str | None = None
    """A warning for the operator, one sentence."""


def look_at(name: str) -> Steps[Slot | None]:
    """The slot `name`; `None` if there is none."""
    (found,) = yield [Statement(_SLOT, (name,))]
    return Slot(*found.rows[0]) if found.rows else None


def decide(
    name: str, slot: Slot | None, known: Known | None, system_id: str, timeline: int, *, create: bool, replace_lost: bool, remains: str
) -> Decision:
    """Whether the slot can be read on, or is to be made. `remains` says what became of the changes that were not sent.

    Raises `ChangesLost` where a new slot would pass something over, and `ConfigurationError` for a foreign slot.
    """
    if slot is not None:
        _require_ours(name, slot)
    loss = _loss(name, slot, known, system_id, timeline)
    if loss is not None and not replace_lost:
        raise ChangesLost(
            f"{loss}; {remains}. Find out why, then start once with --create-slot --replace-lost-slot to start again at the end of the log"
        )
    if slot is None and not create:
        raise ConfigurationError(f"there is no replication slot {name}; --create-slot makes it, which needs the attribute REPLICATION")
    is_gone = slot is None or slot.wal_status == "lost"
    if loss is not None:
        return Decision(
            drops=slot is not None and is_gone, makes=is_gone, says=f"{loss}; reading starts again, as --replace-lost-slot says"
        )
    if known is not None and known.timeline != timeline:
        return Decision(False, False, f"the server is on timeline {timeline} after {known.timeline}: it was promoted or restored")
    return Decision(False, is_gone)


def _require_ours(name: str, slot: Slot) -> None:
    if slot.slot_type != "logical" or slot.plugin != "pgoutput":
        raise ConfigurationError(f"the replication slot {name} is {slot.slot_type} with plug-in {slot.plugin}; choose another --slot")
    if not slot.is_here:
        raise ConfigurationError(f"the replication slot {name} is of another database of this server; choose another --slot")


def _loss(name: str, slot: Slot | None, known: Known | None, system_id: str, timeline: int) -> str | None:
    """Why changes may be missing between what was sent and what can be read; `None` if none are."""
    if slot is not None and slot.wal_status == "lost":
        return (
            f"the replication slot {name} is lost: the relay was unavailable until the log reached max_slot_wal_keep_size, "
            f"and what came after {slot.confirmed or 'its beginning'} was removed"
        )
    if known is None:
        return None
    if known.system_id != system_id:
        return f"this is another server: the slot {name} was read on system {known.system_id}, and this one is {system_id}"
    if slot is None:
        return f"the replication slot {name} is gone, which was read up to {known.position}: it was dropped, or a stand-by took over"
    if known.timeline == timeline and slot.confirmed is not None and parse_lsn(slot.confirmed) > parse_lsn(known.position):
        return (
            f"the replication slot {name} starts at {slot.confirmed}, and was read up to {known.position} only: "
            "it was dropped and made again, or moved forward"
        )
    return None


def findings(name: str, slot: Slot) -> tuple[str, ...]:
    """Return complaints about a slot in use, a sentence each."""
    found: list[str] = []
    if slot.wal_status == "lost":
        found.append(f"the replication slot {name} is lost: the log that it needs was removed")
    elif slot.wal_status == "unreserved" or (slot.safe is not None and slot.keep_mb > 0 and slot.safe < slot.keep_mb * 2**20 // 4):
        left = 0 if slot.safe is None else max(0, slot.safe)
        found.append(
            f"the replication slot {name} is nearly lost: {left} bytes of log remain until max_slot_wal_keep_size; "
            "bring the relay or Kafka back, or raise it"
        )
    if slot.keep_mb < 0:
        found.append(
            "max_slot_wal_keep_size is -1: while the relay is unavailable the log grows until the disk is full; "
            "set it to what the disk can spare, such as 10GB"
        )
    if slot.retained is not None and slot.retained > _MUCH:
        found.append(
            f"{slot.retained} bytes of log are kept for the replication slot {name}; "
            "look for a relay that is behind, or for a long transaction in pg_stat_activity"
        )
    return tuple(found)
