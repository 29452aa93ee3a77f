"""A replication slot: what PostgreSQL says of it, what our table `ackwise_cdc` remembers of it, and what follows from both."""

from __future__ import annotations

from typing import Final, NamedTuple

from ackwise.middleware.changes import ChangesLost
from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.postgres.replication.progress import parse_lsn
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps

_COLUMNS: Final = """
    slot text PRIMARY KEY,
    system_id text NOT NULL,
    timeline int NOT NULL,
    position pg_lsn NOT NULL,
    beats bigint NOT NULL DEFAULT 0,
    beat_at timestamptz NOT NULL DEFAULT clock_timestamp()"""


def ensure(tables: Tables) -> Steps[None]:
    """Create the table if it is missing. Raises `ConfigurationError` with the statement if this user may not."""
    name = tables.named("cdc")
    (missing,) = yield [Statement("SELECT to_regclass($1) IS NULL", (name,))]
    if not missing.rows[0][0]:
        return
    try:
        yield [Statement(f"CREATE TABLE IF NOT EXISTS {name} ({_COLUMNS}) WITH (fillfactor = 50)")]
    except Failure as failure:
        if failure.problem is Problem.DUPLICATE:
            return  # somebody else creates it in this moment
        if failure.problem is not Problem.FORBIDDEN:
            raise
        statement = f"CREATE TABLE {name} ({' '.join(_COLUMNS.split())})"
        raise ConfigurationError(
            f"the table {name} is missing, and this user may not create it; let an owner run: {statement}; "
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO this user"
        ) from None


def recall(tables: Tables, slot: str) -> Steps[Known | None]:
    """What is remembered of `slot`."""
    question = f"SELECT system_id, timeline, position::text FROM {tables.named('cdc')} WHERE slot = $1"
    (found,) = yield [Statement(question, (slot,))]
    return Known(*found.rows[0]) if found.rows else None


def remember(tables: Tables, slot: str, known: Known) -> Steps[None]:
    """Write down which server `slot` is read on, and from where; what another relay has acknowledged there since stays."""
    statement = f"""
        INSERT INTO {tables.named("cdc")} AS known (slot, system_id, timeline, position) VALUES ($1, $2, $3, $4::text::pg_lsn)
        ON CONFLICT (slot) DO UPDATE SET system_id = excluded.system_id, timeline = excluded.timeline, position =
            CASE WHEN (known.system_id, known.timeline) = (excluded.system_id, excluded.timeline)
            THEN greatest(known.position, excluded.position) ELSE excluded.position END"""
    yield [Statement(statement, (slot, known.system_id, known.timeline, known.position))]


def beat(tables: Tables, slot: str, position: str) -> Steps[int]:
    """Write a heartbeat with the acknowledged position; returns how many rows there were for it."""
    statement = f"""
        UPDATE {tables.named("cdc")} SET beats = beats + 1, beat_at = clock_timestamp(),
            position = greatest(position, $2::text::pg_lsn) WHERE slot = $1"""
    (beaten,) = yield [Statement(statement, (slot, position))]
    return beaten.changed


#: Bytes of log kept for the slot from which that is said: one gibibyte.
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
    """What our table remembers of a slot."""

    system_id: str
    timeline: int
    position: str


class Decision(NamedTuple):
    """What to do before reading."""

    drops: bool
    makes: bool
    says: str | None = None
    """What somebody should know, a sentence."""


def look_at(name: str) -> Steps[Slot | None]:
    """The slot `name`; `None` if there is none."""
    (found,) = yield [Statement(_SLOT, (name,))]
    return Slot(*found.rows[0]) if found.rows else None


def decide(
    name: str, slot: Slot | None, known: Known | None, system_id: str, timeline: int, *, create: bool, replace_lost: bool, remains: str
) -> Decision:
    """Whether the slot can be read on, or is to be made. `remains` says what became of the changes that were not sent.

    Raises `ChangesLost` where a new slot would pass something over, and `ConfigurationError` for a slot of somebody else.
    """
    if slot is not None:
        _require_ours(name, slot)
    loss = _loss(name, slot, known, system_id, timeline)
    if loss is not None and not replace_lost:
        raise ChangesLost(
            f"{loss}; {remains}. Find out why, then start once with --create-slot --replace-lost-slot to begin again at the end of the log"
        )
    if slot is None and not create:
        raise ConfigurationError(f"there is no replication slot {name}; --create-slot makes it, which needs the attribute REPLICATION")
    is_gone = slot is None or slot.wal_status == "lost"
    if loss is not None:
        return Decision(
            drops=slot is not None and is_gone, makes=is_gone, says=f"{loss}; reading begins again, as --replace-lost-slot says"
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
            f"the replication slot {name} is lost: the relay was away until the log reached max_slot_wal_keep_size, "
            f"and what came after {slot.confirmed or 'its beginning'} was removed"
        )
    if known is None:
        return None
    if known.system_id != system_id:
        return f"this is another server: the slot {name} was read on system {known.system_id}, and this one is {system_id}"
    if slot is None:
        return f"the replication slot {name} is gone, which was read up to {known.position}: somebody dropped it, or a stand-by took over"
    if known.timeline == timeline and slot.confirmed is not None and parse_lsn(slot.confirmed) > parse_lsn(known.position):
        return (
            f"the replication slot {name} begins at {slot.confirmed}, and was read up to {known.position} only: "
            "somebody dropped it and made it again, or moved it forward"
        )
    return None


def findings(name: str, slot: Slot) -> tuple[str, ...]:
    """What is wrong or unwise about a slot that is read, a sentence each."""
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
            "max_slot_wal_keep_size is -1: while the relay is away the log grows until the disk is full; "
            "set it to what the disk can spare, such as 10GB"
        )
    if slot.retained is not None and slot.retained > _MUCH:
        found.append(
            f"{slot.retained} bytes of log are kept for the replication slot {name}; "
            "look for a relay that is behind, or for a long transaction in pg_stat_activity"
        )
    return tuple(found)
