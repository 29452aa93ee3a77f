"""The tables of inbox and outbox for all databases, and `SQLStore`, which opens, creates and checks their versions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.outbox import SHARDS, RowState
from ackwise.stores.protocol.options import Purpose
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps

#: The states of rows, as templates and tables name them.
STATES: Final = {state.name: int(state) for state in RowState}

_NAMES: Final = {
    "schema": "schema",
    "inbox": "inbox",
    "offsets": "offsets",
    "rows": "outbox",
    "shards": "outbox_shard",
    "relays": "outbox_relay",
    "barrier": "outbox_barrier",
    "meta": "outbox_meta",
}
"""The placeholders of templates, and the tables' names without the prefix."""

_VERSIONS: Final = "CREATE TABLE IF NOT EXISTS {schema} (part {part} NOT NULL PRIMARY KEY, version {int4} NOT NULL) {plain}"

# In PostgreSQL the order of columns wastes nothing to alignment. No index holds what changes of an inbox, nor of the offsets, of which
# every batch changes a row.
_INBOX: Final = """
CREATE TABLE IF NOT EXISTS {inbox} (
    {key} NOT NULL PRIMARY KEY,
    exec_id {int8} NOT NULL,
    origin_offset {int8} NOT NULL,
    kept_until {time} NOT NULL,
    origin_partition {int4} NOT NULL,
    next_attempt {int4} NOT NULL,
    outcome {int2} NOT NULL,
    origin_topic {topic} NOT NULL
) {narrow};
CREATE TABLE IF NOT EXISTS {offsets} (
    owner {owner} NOT NULL,
    topic {topic} NOT NULL,
    part {int4} NOT NULL,
    next_offset {int8} NOT NULL,
    generation {int8} NOT NULL,
    began {int8} NOT NULL,
    PRIMARY KEY (owner, topic, part)
) {narrow}"""

# A large value comes last, so that SQLite reads the others without it.
_OUTBOX: Final = """
CREATE TABLE IF NOT EXISTS {rows} (
    id {id},
    created {created} NOT NULL,
    next_at {time},
    key_hash {int8},
    due {float},
    expires {float},
    size {int4} NOT NULL,
    attempts {int4} NOT NULL DEFAULT 0,
    checks {int4} NOT NULL DEFAULT 0,
    {partition} {int4},
    shard {int2} NOT NULL,
    state {int2} NOT NULL DEFAULT {LOCAL_COMMIT},
    behind {bool} NOT NULL DEFAULT FALSE,
    message_id {message_id} NOT NULL,
    topic {topic} NOT NULL,
    message_key {bytes},
    headers {headers},
    cause {cause},
    tx_id {name} NOT NULL DEFAULT '',
    producer_group {name} NOT NULL DEFAULT '',
    barrier_in {name} NOT NULL DEFAULT '',
    value {bytes}{keys}
) {wide};
CREATE TABLE IF NOT EXISTS {shards} (
    token {int8} NOT NULL DEFAULT 0,
    leased_until {time} NOT NULL DEFAULT {past},
    shard {int2} NOT NULL PRIMARY KEY,
    owner {name} NOT NULL DEFAULT ''
) {narrow};
CREATE TABLE IF NOT EXISTS {relays} (
    owner {name} NOT NULL PRIMARY KEY,
    leased_until {time} NOT NULL{idle}
) {narrow};
CREATE TABLE IF NOT EXISTS {barrier} (tx_id {name} NOT NULL PRIMARY KEY, outcome {letter} NOT NULL, created {created} NOT NULL) {plain};
CREATE TABLE IF NOT EXISTS {meta} (name {name} NOT NULL PRIMARY KEY, value {name} NOT NULL) {plain}"""

#: Of databases with partial indexes: an ordinary row is in two of them, by its id among all, and by its id among those to be sent.
#: One that is delayed is not in the second: a read of what is to be sent does not pass over those that have to wait.
_INDEXES: Final = """
CREATE INDEX{to_send} ON {rows} (id) WHERE state = {LOCAL_COMMIT} AND NOT behind AND due IS NULL;
CREATE INDEX{failed} ON {rows} (key_hash, id) WHERE key_hash IS NOT NULL AND (attempts > 0 OR behind);
CREATE INDEX{tried} ON {rows} (id) WHERE state = {LOCAL_COMMIT} AND NOT behind AND next_at IS NOT NULL AND due IS NULL;
CREATE INDEX{delayed} ON {rows} (next_at) WHERE state = {LOCAL_COMMIT} AND due IS NOT NULL;
CREATE INDEX{due} ON {rows} (next_at) WHERE state = {LOCAL_COMMIT} AND next_at IS NOT NULL;
CREATE INDEX{prepared} ON {rows} (next_at) WHERE state = {PREPARED};
CREATE INDEX{of_transaction} ON {rows} (tx_id) WHERE tx_id <> '';
CREATE INDEX{parked} ON {rows} (id) WHERE state = {MESSAGE_ERROR};
CREATE INDEX{expired} ON {rows} (id) WHERE state = {EXPIRED};
CREATE INDEX{ended} ON {rows} (id) WHERE state = {LOCAL_ROLLBACK};
CREATE INDEX{sent} ON {rows} (next_at) WHERE state = {GLOBAL_COMMIT}"""
_FILLED: Final = f"""
{{insert}} INTO {{shards}} (shard) VALUES {", ".join(f"({shard})" for shard in range(SHARDS))} {{keeping}};
{{insert}} INTO {{meta}} (name, value) VALUES ('database_id', {{database_id}}) {{keeping}}"""


class Names(Protocol):
    """The tables in one place of a database."""

    def named(self, name: str) -> str:
        """Return the table of this name, as SQL."""
        ...


def names_of(tables: Names) -> dict[str, str]:
    """Return the tables as templates name them."""
    return {word: tables.named(name) for word, name in _NAMES.items()}


def versions(types: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Return the statement that creates the table of versions."""
    (statement,) = _written(_VERSIONS, types, names)
    return statement


def inbox(types: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """Return statements that create what is missing of an inbox and its offsets."""
    return _written(_INBOX, types, names)


def outbox(types: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """Return statements that create what is missing of an outbox."""
    return _written(";".join((_OUTBOX, *([_INDEXES] if "to_send" in types else []), _FILLED)), types, names)


def _written(template: str, types: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    words = {"keys": "", "idle": "", "database_id": f"'{uuid.uuid4().hex}'", **STATES, **types, **names}
    return [statement.strip().format_map(words) for statement in template.split(";")]


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Runs(Protocol):
    """Where operations are run: connections to a server, or the thread of a file. Its methods raise our errors."""

    @property
    def address(self) -> str:
        """The database's address, without secrets."""
        ...

    async def open(self, begin: Callable[[], Steps[None]]) -> None:
        """Connect and run steps once. Opening twice does nothing."""
        ...

    async def close(self) -> None:
        """Finish what is under way, and disconnect. Closing twice does nothing."""
        ...

    async def run(self, begin: Callable[[], Steps[T]], *, repeats: bool = True) -> T:
        """Return what the steps of an operation return, which `start` starts each time that it is tried. Raises `StoreUnavailable`.

        `repeats` says whether it may be tried again though it may have been applied.
        """
        ...

    async def maintained(self, begin: Callable[[], Steps[T]]) -> T:
        """Return what steps return that may take long, whether open or not."""
        ...


class Maintenance(NamedTuple, Generic[T_co]):
    """Operations on the tables of one store. All may raise `ConfigurationError`."""

    prepare: Callable[[], Steps[T_co]]
    """See `SQLStore.open`."""
    create: Callable[[], Steps[None]]
    check: Callable[[], Steps[list[str]]]
    clean: Callable[[], Steps[int]]


R = TypeVar("R", bound=Runs)


class SQLStore(Generic[R]):
    """Operations run on `connections`."""

    def __init__(self, connections: R, maintenance: Maintenance[None]) -> None:
        self._connections, self._maintenance = connections, maintenance

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connections.address}>"

    async def open(self) -> None:
        """Connect, and create the tables if they are missing and the user may.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the database does not answer now.
        Opening twice does nothing.
        """
        await self._connections.open(self._maintenance.prepare)

    async def close(self) -> None:
        """Finish what is under way, and disconnect. Closing twice does nothing; a pool that was given stays open."""
        await self._connections.close()

    async def init(self) -> None:
        """Create what is missing of the tables. Doing it twice changes nothing."""
        await self._connections.maintained(self._maintenance.create)

    async def check(self) -> list[str]:
        """Return what is wrong or unwise, one sentence each; changes nothing."""
        return await self._connections.maintained(self._maintenance.check)

    async def cleanup(self) -> int:
        """Delete what need not be kept, beside running workers, and make room for the days to come; return how many records."""
        return await self._connections.maintained(self._maintenance.clean)


class Layout(NamedTuple):
    """The database's words for its tables."""

    purpose: Purpose
    address: str
    version: Statement
    """Answers with the version of the tables, or with nothing."""
    create: Callable[[], Steps[None]]
    """Creates what is missing, and inserts the version unless there is one. Any number may do so at once."""


def _version(layout: Layout) -> Steps[int | None]:
    """Return the version of the tables; `None` if they are missing."""
    try:
        (found,) = yield [layout.version]
    except Failure as failure:
        if failure.problem is not Problem.MISSING:
            raise
        return None
    return int(found.rows[0][0]) if found.rows else None


def complaints(layout: Layout, more: Callable[[], Steps[list[str]]]) -> Steps[list[str]]:
    """Return a sentence if the tables are missing, otherwise those of `more`. Raise `ConfigurationError` for another version than ours."""
    found = yield from _version(layout)
    if found is None:
        return [layout.purpose.not_there(layout.address)]
    layout.purpose.require_version(found, layout.address)
    return [f"{layout.address}: {sentence}" for sentence in (yield from more())]


def require(layout: Layout) -> Steps[None]:
    """Raise `ConfigurationError` for tables that are missing, or of another version than ours."""
    found = yield from _version(layout)
    if found is None:
        raise ConfigurationError(layout.purpose.not_there(layout.address))
    layout.purpose.require_version(found, layout.address)


def required(layout: Layout, steps: Callable[[], Steps[T]]) -> Steps[T]:
    """Return what `steps` return. Raise as `require`."""
    yield from require(layout)
    return (yield from steps())


def create(layout: Layout) -> Steps[None]:
    """Create the tables if they are missing. Raise `ConfigurationError` for those of another version than ours."""
    if (yield from _version(layout)) is None:
        yield from layout.create()
    yield from require(layout)


#: Seconds that the clocks of two machines may differ by; a record that is deleted this much too early had nearly ended.
_TOLERANCE: Final = 300.0


def refuse_jumped(server: float, address: str) -> None:
    """Raise `StoreUnavailable` if the `server`'s wall clock (seconds since 1970) is not that of this machine.

    One of them jumped, and which one is unknown: what was deleted by a wrong clock is gone, and would run again.
    """
    ahead = server - time.time()
    if abs(ahead) > _TOLERANCE:
        way = "ahead of" if ahead > 0 else "behind"
        raise StoreUnavailable(
            f"{address}: its clock is {abs(ahead):.0f} s {way} that of this machine, so one of them is wrong; nothing was deleted; "
            "set it right, and clean up again"
        )
