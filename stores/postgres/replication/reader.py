"""`Reader`: turns messages of `pgoutput` into changes and ends of transactions, with Python values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ackwise.middleware.storage.changes import Change, ChangesLost, Committed, NotInLog, Operation, UnreadableChange
from ackwise.stores.postgres.replication.coverage import Table
from ackwise.stores.postgres.replication.pgoutput import (
    Begin,
    Commit,
    Deleted,
    Inserted,
    Message,
    Relation,
    Truncated,
    Unchanged,
    Updated,
    Value,
    parse,
)
from ackwise.stores.postgres.replication.slot import Progress, format_lsn
from ackwise.stores.sql.changes import require_same

_NOT_IN_LOG: Final = object()


class PartialRow(Mapping[str, Any]):
    """A row of which the log leaves columns out. To read one of those raises `NotInLog`, with `get` too: it is not NULL."""

    def __init__(self, table: str, values: dict[str, Any]) -> None:
        self._table, self._values = table, values

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        if value is _NOT_IN_LOG:
            raise NotInLog(
                f"column {name} of {self._table} is not in the log, because the update left it as it was or the deletion names the key "
                f"only; ALTER TABLE {self._table} REPLICA IDENTITY FULL puts it there"
            )
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name, value in self._values.items() if value is not _NOT_IN_LOG)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"PartialRow({sorted(self)})"


class Columns:
    """The columns of one relation, which make rows of what the log says, in `codec`. `bases` are the types that domains stand for."""

    def __init__(self, relation: Relation, bases: Mapping[int, int], codec: str) -> None:
        self.table = f"{relation.schema}.{relation.table}"
        self.types: Mapping[str, tuple[int, int]] = {column.name: (column.type_oid, column.modifier) for column in relation.columns}
        self._names = [column.name for column in relation.columns]
        self._converters = [converter_of(bases.get(column.type_oid, column.type_oid), codec) for column in relation.columns]
        self._is_key = [column.is_key for column in relation.columns]

    def row(self, values: Sequence[Value], old: Sequence[Value] | None = None) -> Mapping[str, Any]:
        """A new row. What the log does not repeat is taken from `old`, all of the row before, if there is one. Raises `ValueError`."""
        self._require_as_many(values)
        if old is not None:
            values = [before if isinstance(value, Unchanged) else value for value, before in zip(values, old, strict=True)]
        if any(isinstance(value, Unchanged) for value in values):
            return PartialRow(self.table, {name: self._converted(place, values[place]) for place, name in enumerate(self._names)})
        # The long way would ask each value twice; this runs once per row.
        converted = [None if value is None else convert(value) for convert, value in zip(self._converters, values, strict=True)]  # type: ignore[arg-type]
        return dict(zip(self._names, converted, strict=True))

    def key(self, values: Sequence[Value]) -> Mapping[str, Any]:
        """Return a row's key columns; the other columns are absent, which is not NULL. Raise `ValueError`."""
        self._require_as_many(values)
        named = enumerate(self._names)
        return PartialRow(
            self.table, {name: self._converted(place, values[place]) if self._is_key[place] else _NOT_IN_LOG for place, name in named}
        )

    def _converted(self, place: int, value: Value) -> Any:
        if isinstance(value, Unchanged):
            return _NOT_IN_LOG
        return None if value is None else self._converters[place](value)

    def _require_as_many(self, values: Sequence[Value]) -> None:
        if len(values) != len(self._names):
            raise ValueError(f"a row of {self.table} has {len(values)} values for {len(self._names)} columns")


def _bytea(value: bytes) -> bytes:
    if value[:2] != b"\\x":
        raise ValueError("a bytea does not start with \\x; the replication connection needs bytea_output = hex")
    return bytes.fromhex(value[2:].decode("ascii"))


def _bool(value: bytes) -> bool:
    return value == b"t"


#: By the OID of the type, which PostgreSQL never changes: bool, bytea, int8, int2, int4, oid, float4, float8. The others are text.
_CONVERTERS: Final[Mapping[int, Callable[[bytes], Any]]] = {
    16: _bool,
    17: _bytea,
    20: int,
    21: int,
    23: int,
    26: int,
    700: float,
    701: float,
}


def converter_of(type_oid: int, codec: str) -> Callable[[bytes], Any]:
    """Return the decoder of a type's text: bool, int, float and bytes for those types, otherwise PostgreSQL's text."""
    return _CONVERTERS.get(type_oid) or (lambda value: value.decode(codec, "surrogateescape"))


#: Milliseconds between 1970-01-01 and 2000-01-01, where PostgreSQL starts to count.
_EPOCH_2000_MS: Final = 946_684_800_000


#: The first OID of what users make, such as types.
_USERS: Final = 16384


class Reader:
    """Reads one stream from its start. `wanted` are the tables to report, with their OIDs of now; `identity` makes ids of positions unique.

    `known` are the columns of each table as they were seen first, which outlive the stream. Transactions up to `settled` (a position of the
    log) may change the columns of a table, and those up to `accepted` may change which rows a table has, without a stop.
    """

    def __init__(
        self,
        wanted: Mapping[Table, int],
        identity: str,
        known: dict[Table, Columns],
        progress: Progress,
        *,
        settled: int = 0,
        accepted: int = 0,
        bases: dict[int, int] | None = None,
        codec: str = "utf-8",
    ) -> None:
        self._wanted, self._identity, self._known, self._progress = wanted, identity, known, progress
        self._settled, self._accepted, self._codec = settled, accepted, codec
        self._bases = {} if bases is None else bases
        self._oids = frozenset(wanted.values())
        self._relations: dict[int, Columns | None] = {}  #: `None` for a table that is not wanted
        self._begin: Begin | None = None
        self._position = ""
        self._number = 0

    def unknown_types(self, payload: bytes) -> set[int]:
        """Return the types of users in this message that may be domains: `bases` does not have them. Raise `ValueError`."""
        if payload[:1] != b"R":
            return set()
        message = parse(payload, self._codec)
        assert isinstance(message, Relation), "messages of this kind are"
        return {column.type_oid for column in message.columns if column.type_oid >= _USERS} - self._bases.keys()

    def read(self, payload: bytes) -> Change | Committed | None:
        """Return the result of one message; `None` if it does not concern our tables. Raise `UnreadableChange` or `ChangesLost`."""
        try:
            return self._told(parse(payload, self._codec))
        except ValueError as error:
            after = self._position or format_lsn(self._progress.done)
            raise UnreadableChange(f"the log can't be read at {after}: {error}") from None

    def _told(self, message: Message) -> Change | Committed | None:
        match message:
            case Inserted(oid, row):
                return self._change(oid, Operation.INSERT, row, None, is_key=False)
            case Updated(oid, row, old, old_is_key):
                return self._change(oid, Operation.UPDATE, row, old, is_key=old_is_key)
            case Deleted(oid, old, old_is_key):
                return self._change(oid, Operation.DELETE, None, old, is_key=old_is_key)
            case Begin():
                self._started(message)
            case Commit():
                return self._ended(message)
            case Relation():
                self._learn(message)
            case Truncated(oids):
                for columns in filter(None, map(self._columns, oids)):
                    self._refuse(f"{columns.table} was emptied by TRUNCATE, of which the log does not say the rows")
            case _:
                pass
        return None

    def _started(self, begin: Begin) -> None:
        if self._begin is not None:
            raise ValueError("a transaction starts inside another one")
        self._begin, self._number, self._position = begin, 0, format_lsn(begin.commit_lsn)
        self._progress.begin()

    def _ended(self, commit: Commit) -> Committed:
        if self._begin is None or commit.commit_lsn != self._begin.commit_lsn:
            raise ValueError("a transaction ends that has not started")
        if commit.end_lsn < commit.commit_lsn:
            raise ValueError("a transaction ends before its commit")
        self._begin = None
        self._progress.commit(commit.end_lsn)
        return Committed(format_lsn(commit.end_lsn))

    def _learn(self, relation: Relation) -> None:
        table = Table(relation.schema, relation.table)
        oid = self._wanted.get(table)
        if oid is None and relation.oid not in self._oids:
            self._relations[relation.oid] = None
            return
        columns = self._relations[relation.oid] = Columns(relation, self._bases, self._codec)
        if oid is None:
            before_it = next(table for table, oid in self._wanted.items() if oid == relation.oid)
            self._refuse(f"{before_it} was renamed to {table}")
        elif oid != relation.oid:
            self._refuse(f"{table} was another table: it was dropped or renamed, and made again")
        before = self._known.setdefault(table, columns)
        if self._is_later_than(self._settled):
            require_same(columns.table, before.types, columns.types)
        self._known[table] = columns

    def _is_later_than(self, position: int) -> bool:
        return self._begin is None or self._begin.commit_lsn > position

    def _refuse(self, what: str) -> None:
        """Raise `ChangesLost` for what changes which rows a table has, unless an operator accepted that."""
        if self._is_later_than(self._accepted):
            raise ChangesLost(f"{what}, in the transaction that was committed at {self._position}")

    def _columns(self, oid: int) -> Columns | None:
        try:
            return self._relations[oid]
        except KeyError:
            raise ValueError(f"a change is of relation {oid}, of which nothing was said") from None

    def _change(
        self, oid: int, operation: Operation, row: tuple[Value, ...] | None, old: tuple[Value, ...] | None, *, is_key: bool
    ) -> Change | None:
        columns, begin, number = self._columns(oid), self._begin, self._number
        if begin is None:
            raise ValueError("a change stands outside of a transaction")
        self._number += 1  # every change counts, so that the number of one does not depend on what is wanted
        if columns is None:
            return None
        before = None if old is None else columns.key(old) if is_key else columns.row(old)
        now = before if row is None else columns.row(row, None if is_key else old)
        assert now is not None, "a change has a new row or an old one"
        return Change(
            columns.table,
            operation,
            now,
            None if row is None else before,
            self._position,
            number,
            f"{self._identity}-{self._position.replace('/', '-')}-{number}",
            begin.committed_us // 1000 + _EPOCH_2000_MS,
        )
