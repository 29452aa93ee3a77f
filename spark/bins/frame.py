"""`BinnedFrame`: a query like those of the local engine, of rows that lie in bins.

Each bin answers the query from its own rows, so rows that belong together must be in one bin. A frame knows where its rows are (`By`).
What groups, joins or counts them moves them first where they are not together yet.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice
from typing import Any, Final, Protocol, cast

import pyarrow as pa

from ackwise.spark.bins.program import BIN
from ackwise.spark.local.column import Column, Ordered, identifier
from ackwise.spark.local.frame import Database, DataFrame, Grouped, Row

__all__ = ["ANYWHERE", "EVERYWHERE", "ONE", "PARTITION", "BinnedFrame", "By", "Owner"]

#: The columns that say of which partition of Kafka a row is: `pk`, and what is made of it.
_PARTITION_KEYS: Final = ("pk", "mk", "key", "family")
#: Those of them that a bin can be computed of: numbers with the same last bits.
_NUMBERED: Final = ("pk", "mk", "key")
#: These bits of `pk` and `mk` are the same.
LAST_BITS: Final = 0xFFFF
#: Rows that are taken from Arrow at a time.
_AT_ONCE: Final = 10_000
_WINDOW: Final = re.compile(r"OVER \(PARTITION BY ((?:\"[^\"]*\"(?:, )?)+)")


@dataclass(frozen=True, slots=True)
class By:
    """Where rows lie: those that are equal in these columns lie in the same bin."""

    columns: tuple[str, ...]

    def covers(self, keys: Iterable[str]) -> bool:
        """Whether rows that are equal in `keys` are in one bin."""
        if self is EVERYWHERE or self is ONE:
            return True
        if self is ANYWHERE:
            return False
        if self is PARTITION:
            return any(key in _PARTITION_KEYS for key in keys)
        return {*self.columns} <= {*keys}

    def is_of(self, columns: Collection[str]) -> bool:
        """Whether rows with these columns still show it: others of the same name may be joined to them later."""
        if self in (EVERYWHERE, ANYWHERE, ONE):
            return True
        return any(key in columns for key in _PARTITION_KEYS) if self is PARTITION else {*self.columns} <= {*columns}


#: Every bin has all of the rows.
EVERYWHERE: Final = By(("everywhere",))
#: A row is in any bin.
ANYWHERE: Final = By(("anywhere",))
#: All rows are in the first bin.
ONE: Final = By(("one",))
#: By the partition of Kafka that a row is about.
PARTITION: Final = By(("partition",))
_HASH: Final = By(("dedup_hash",))


class Owner(Protocol):
    """What makes tables of frames, and computes them."""

    @property
    def bins(self) -> int: ...

    def keep(self, frame: BinnedFrame) -> str:
        """Return the name of a table that has the rows where they are."""
        ...

    def move(self, frame: BinnedFrame, to: str | None) -> str:
        """Return the name of a table that has the rows in the bins that the expression says; None: in all."""
        ...

    def map(self, frame: BinnedFrame, function: Callable[..., Any], schema: str) -> tuple[str, list[str]]:
        """Return the name and the columns of a table that has the rows that a function makes of those of a bin."""
        ...

    def none_of(self, frame: BinnedFrame) -> BinnedFrame:
        """Return a frame of the same columns without rows."""
        ...

    def drop(self, table: str) -> None:
        """Drop a table."""
        ...

    def show(self, *frames: BinnedFrame) -> list[list[pa.Table]]:
        """Compute the rows of each frame, bin by bin."""
        ...

    def write(self, frame: BinnedFrame, folder: str) -> None:
        """Compute the rows, and write them to Parquet files in a folder."""
        ...

    def rows(self, table: pa.Table) -> list[tuple[Any, ...]]:
        """Return the rows of a table of Arrow, as Python has them."""
        ...


class BinnedFrame(DataFrame):
    """A query of tables that lie in bins."""

    def __init__(
        self,
        database: Database,
        sql: str,
        columns: Sequence[str],
        name: str = "",
        table: str = "",
        *,
        sources: frozenset[str] = frozenset(),
        by: By = ANYWHERE,
        is_for_all: bool = False,
    ) -> None:
        super().__init__(database, sql, columns, name, table)
        self.sources = sources
        """The names of the tables that it is a query of."""
        self.by = by
        self._is_for_all = is_for_all
        self._order: Sequence[str | Column | Ordered] = ()
        self._most: int | None = None
        self._is_summed = False

    @property
    def session(self) -> Database:
        """The session that computes it."""
        return self._database

    @property
    def _owner(self) -> Owner:
        return cast("Owner", self._database)

    # Where the rows are.

    def repartition(self, column: str) -> BinnedFrame:
        by = _by([column])
        return self if self.by == by else self._moved(by)

    def coalesce(self, number: int) -> BinnedFrame:
        return self if self.by is ONE else self._moved(ONE)

    def for_all(self) -> BinnedFrame:
        found = self._made(self.sql, self.columns, name=self._name, table=self._table)
        found._is_for_all = True
        return found

    def _aligned(self, keys: Iterable[str]) -> BinnedFrame:
        keys = list(keys)
        return self if self.by.covers(keys) else self._moved(_by(keys))

    def _moved(self, by: By) -> BinnedFrame:
        if self.by is EVERYWHERE:
            return self._own(by)
        return self._of(self._owner.move(self, None if by is EVERYWHERE else self._place(by)), by)

    def _own(self, by: By) -> BinnedFrame:
        """Of rows that every bin has, those that lie in it then."""
        found = self._made(f"SELECT * FROM ({self.sql}) WHERE {self._place(by)} = {BIN}", self.columns, name=self._name)
        found.by = by
        return found

    def _place(self, by: By) -> str:
        bins = self._owner.bins
        if by is ONE or by is ANYWHERE:
            return "0"
        if by is PARTITION:
            column = next(name for name in _NUMBERED if name in self.columns)
            return f"CAST(coalesce(({identifier(column)} & {LAST_BITS}) % {bins}, 0) AS INTEGER)"  # without a number in the first
        return f"CAST(hash({', '.join(map(identifier, by.columns))}) % {bins} AS INTEGER)"

    def _of(self, table: str, by: By) -> BinnedFrame:
        found = self._made(f"SELECT * FROM {table}", self.columns, name=self._name)
        found.sources, found.by = frozenset({table}), by
        return found

    def _made(self, sql: str, columns: Sequence[str], *others: DataFrame, name: str = "", table: str = "") -> BinnedFrame:
        sources = self.sources.union(*(cast("BinnedFrame", other).sources for other in others))
        if self._is_summed or self._most is not None:
            raise ValueError("what was counted or limited is only collected: the counts and rows of bins are merged then")
        is_for_all = self._is_for_all and not others
        by = self.by if self.by.is_of(columns) else ANYWHERE
        return BinnedFrame(self._database, sql, columns, name, table, sources=sources, by=by, is_for_all=is_for_all)

    # What brings rows together.

    def groupBy(self, *keys: str | Column) -> Grouped:
        return _BinnedGrouped(self, self._chosen(keys))

    def distinct(self) -> BinnedFrame:
        return cast("BinnedFrame", super(BinnedFrame, self._aligned(self.columns)).distinct())

    def unionByName(self, other: DataFrame, allowMissingColumns: bool = False) -> BinnedFrame:
        left, right = self, cast("BinnedFrame", other)
        if left.by is EVERYWHERE and right.by is not EVERYWHERE:
            left = left._beside(right.by)
        elif right.by is EVERYWHERE and left.by is not EVERYWHERE:
            right = right._beside(left.by)
        found = cast("BinnedFrame", super(BinnedFrame, left).unionByName(right, allowMissingColumns))
        found.by = left.by if left.by == right.by else ANYWHERE
        return found

    def _beside(self, by: By) -> BinnedFrame:
        """Of rows that every bin has, those that lie in it if they lie so; if they can't, the first bin has them all."""
        names = _NUMBERED if by is PARTITION else by.columns
        is_known = any(name in self.columns for name in names) if by is PARTITION else {*names} <= {*self.columns}
        return self._own(by if by in (ONE, ANYWHERE) or is_known else ANYWHERE)

    def join(self, other: DataFrame, on: Any = None, how: str = "inner") -> BinnedFrame:
        left, right = self._together(cast("BinnedFrame", other), on, how)
        found = cast("BinnedFrame", super(BinnedFrame, left).join(right, on, how))
        found.by = right.by if left.by is EVERYWHERE else left.by
        return found

    def _together(self, other: BinnedFrame, on: Any, how: str) -> tuple[BinnedFrame, BinnedFrame]:
        """This frame and another with the rows of both in one bin that a join brings together."""
        given = list(on) if isinstance(on, list | tuple) else [on]
        keys = [each for each in given if isinstance(each, str)]
        if self.by is EVERYWHERE and other.by is EVERYWHERE:
            return self, other
        if other.by is EVERYWHERE and how != "full":
            return self, other
        if self.by is EVERYWHERE and how == "inner":
            return self, other
        if keys and self.by == other.by and self.by.covers(keys):
            return self, other
        if how != "full" and (other._is_for_all or not keys):
            return self, other._moved(EVERYWHERE)
        by = self.by if self.by not in (EVERYWHERE, ANYWHERE) and self.by.covers(keys) else other.by
        if by in (EVERYWHERE, ANYWHERE) or not by.covers(keys):
            by = _by(keys)
        return (self if self.by == by else self._moved(by)), (other if other.by == by else other._moved(by))

    def _query(self, chosen: Sequence[Column], more: str = "") -> DataFrame:
        windows = {names for column in chosen for names in _WINDOW.findall(column.sql)}
        found = self
        for names in windows:
            found = found._aligned(name.strip('"') for name in names.split(", "))
        return super(BinnedFrame, found)._query(chosen, more)

    def orderBy(self, *columns: str | Column | Ordered) -> BinnedFrame:
        found = cast("BinnedFrame", super().orderBy(*columns))
        found._order = () if self.by in (ONE, EVERYWHERE) else columns
        return found

    def limit(self, number: int) -> BinnedFrame:
        if not number:
            return self._owner.none_of(self)
        found = cast("BinnedFrame", super().limit(number))
        if self.by not in (ONE, EVERYWHERE):
            found._order, found._most = self._order, number
        return found

    # What computes.

    def collect(self) -> list[Row]:
        return self.together(self)[0]

    def together(self, *frames: DataFrame) -> list[list[Row]]:
        """Return the rows of several frames, which are computed together."""
        every = [cast("BinnedFrame", frame) for frame in frames]
        tables = self._owner.show(*(frame._ordered() for frame in every))
        return [[*frame._in_order(found)] for frame, found in zip(every, tables, strict=True)]

    def toLocalIterator(self) -> Iterator[Row]:
        yield from self._in_order(self._owner.show(self._ordered())[0])

    def isEmpty(self) -> bool:
        first = cast("BinnedFrame", super().limit(1))
        return not any(map(len, self._owner.show(first)[0]))

    def count(self) -> int:
        (tables,) = self._owner.show(self._made(f"SELECT count(*) FROM ({self.sql})", ["count"]))
        return sum(table.column(0)[0].as_py() for table in (tables[:1] if self.by is EVERYWHERE else tables))

    def persist(self) -> BinnedFrame:
        if self._table or self.by is EVERYWHERE:
            return self
        table = self._owner.keep(self)
        found = self._of(table, self.by)
        found._table = table
        return found

    def repeated(self, *keys: str) -> DataFrame:
        """Return the values of columns that several rows have: a bin has not too many."""
        return self.groupBy(*keys).agg(Column("count(*)", "number")).where("number > 1").select(*keys)

    def unpersist(self) -> None:
        if self._table:
            self._owner.drop(self._table)

    def mapInArrow(self, function: Callable[..., Any], schema: str) -> BinnedFrame:
        table, columns = self._owner.map(self, function, schema)
        found = self._of(table, self.by)
        found.columns, found._table = columns, table
        return found

    def write_to(self, path: str) -> None:
        self._owner.write(self, path)

    def arrow(self) -> pa.Table:
        return pa.concat_tables(self._owner.show(self)[0])

    def _ordered(self) -> BinnedFrame:
        """With the values that bins are to be merged by, where they are in order."""
        if not self._order:
            return self
        keys = (f"key{place} := {identifier(each) if isinstance(each, str) else each.sql}" for place, each in enumerate(self._order))
        sql = f"SELECT *, struct_pack({', '.join(keys)}) AS in_order FROM ({self.sql}) AS {self._name}"
        return BinnedFrame(self._database, sql, [*self.columns, "in_order"], sources=self.sources, by=self.by)

    def _in_order(self, tables: Sequence[pa.Table]) -> Iterator[Row]:
        if self.by is EVERYWHERE:
            tables = tables[:1]
        each: list[Iterable[tuple[Any, ...]]] = [self._rows(table) for table in tables]
        if self._is_summed:
            each = [_summed(row for rows in each for row in rows)]
        if not self._order:
            return (Row.of(self.columns, values) for values in islice(chain(*each), self._most))
        in_order = merge(*each, key=lambda values: _nulls_first(values[-1]))
        return (Row.of(self.columns, values[:-1]) for values in islice(in_order, self._most))

    def _rows(self, table: pa.Table) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table, some at a time: as Python has them they are many times larger."""
        for first in range(0, len(table), _AT_ONCE):
            yield from self._owner.rows(table.slice(first, _AT_ONCE))


class _BinnedGrouped(Grouped):
    """Rows by keys, which are brought together first."""

    def agg(self, *columns: Column) -> DataFrame:
        if not self._keys and self._binned.by is not EVERYWHERE:
            found = cast("BinnedFrame", Grouped(self._binned.coalesce(1), ()).agg(*columns))
            one = found._made(f"SELECT * FROM ({found.sql}) WHERE {BIN} = 0", found.columns)  # of no rows there is one, too
            one.by = ONE
            return one
        if self._binned.by.covers(self._plain()):
            return super().agg(*columns)
        computed = {key.name: key for key in self._keys if key.sql != identifier(key.name)}
        moved = cast("BinnedFrame", self._frame.withColumns(computed))._aligned(self._names())
        return Grouped(moved, [Column(identifier(name), name) for name in self._names()]).agg(*columns)

    def count(self) -> DataFrame:
        """Count in each bin; who collects the frame adds the counts."""
        there = cast("BinnedFrame", Grouped(self._frame, self._keys).count())
        there._is_summed = not self._binned.by.covers(self._plain())
        return there

    @property
    def _binned(self) -> BinnedFrame:
        return cast("BinnedFrame", self._frame)

    def _names(self) -> list[str]:
        return [key.name for key in self._keys]

    def _plain(self) -> list[str]:
        """The keys that are columns of the frame."""
        return [key.name for key in self._keys if key.sql == identifier(key.name)]


def _by(keys: Sequence[str]) -> By:
    """Return where rows are to lie that are to be together if they are equal in these columns."""
    if not keys:
        return ONE
    if any(key in _NUMBERED for key in keys):
        return PARTITION
    return _HASH if "dedup_hash" in keys else By(tuple(sorted(keys)))


def _summed(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Add the counts of rows, their last values, that are equal otherwise."""
    counts = Counter[tuple[Any, ...]]()
    for *key, number in rows:
        counts[tuple(key)] += number
    return [(*key, number) for key, number in counts.items()]


def _nulls_first(values: dict[str, Any]) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in values.values()]
