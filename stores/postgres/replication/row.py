"""Values of a row of the log as Python has them, and rows of which the log has a part. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ackwise.middleware.changes import NotInLog
from ackwise.stores.postgres.replication.pgoutput import Relation, Unchanged, Value

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
    """The columns of one relation, which make rows of what the log says."""

    def __init__(self, relation: Relation) -> None:
        self.table = f"{relation.schema}.{relation.table}"
        self.types: Mapping[str, tuple[int, int]] = {column.name: (column.type_oid, column.modifier) for column in relation.columns}
        self._names = [column.name for column in relation.columns]
        self._converters = [converter_of(column.type_oid) for column in relation.columns]
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
        """What the log has of a row by its key: the other columns are not there, which is not NULL. Raises `ValueError`."""
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


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _bytea(value: bytes) -> bytes:
    if value[:2] != b"\\x":
        raise ValueError("a bytea does not begin with \\x; the replication connection needs bytea_output = hex")
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


def converter_of(type_oid: int) -> Callable[[bytes], Any]:
    """What makes a value of a type of its text: bool, int, float and bytes for those types, else the text that PostgreSQL writes."""
    return _CONVERTERS.get(type_oid, _text)
