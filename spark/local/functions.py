"""The functions of PySpark that the job uses, as expressions of DuckDB. A name instead of a column stands for the column."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ackwise.spark.local.column import Case, Column, Zipped, identifier, sql_of

__all__ = [
    "abs",
    "array",
    "array_compact",
    "arrays_zip",
    "bit_count",
    "bit_or",
    "bit_xor",
    "bitwise_not",
    "broadcast",
    "call_function",
    "ceil",
    "coalesce",
    "collect_list",
    "col",
    "count",
    "count_if",
    "element_at",
    "explode",
    "expr",
    "filter",
    "floor",
    "get",
    "get_json_object",
    "getbit",
    "greatest",
    "inline",
    "least",
    "lit",
    "log",
    "log10",
    "max",
    "min",
    "nullif",
    "pow",
    "regexp_extract",
    "row_number",
    "sequence",
    "shiftleft",
    "shiftright",
    "size",
    "sort_array",
    "struct",
    "sum",
    "timestamp_micros",
    "transform",
    "unix_micros",
    "when",
    "xxhash64",
]

_HIGHEST: Final = f"CAST('{-(2**63)}' AS BIGINT)"


def col(name: str) -> Column:
    return Column(identifier(name), name.rpartition(".")[2])


def lit(value: Any) -> Column:
    return value if isinstance(value, Column) else Column(sql_of(value))


def expr(text: str) -> Column:
    return Column("(" + re.sub(r"\bDIV\b", "//", text) + ")")


def when(condition: Column, value: Any) -> Case:
    return Case(f"CASE WHEN {condition.sql} THEN {sql_of(value)} END")


def broadcast(frame: Any) -> Any:
    return frame.for_all()


def _argument(value: str | Column) -> str:
    return value.sql if isinstance(value, Column) else identifier(value)


def _call(pattern: str) -> Callable[..., Column]:
    """A function of columns; `{}` in the pattern stands for them."""

    def call(*columns: str | Column) -> Column:
        return Column(pattern.format(", ".join(map(_argument, columns))))

    return call


# Aggregates. DuckDB counts in a wider type.
max = _call("max({})")
min = _call("min({})")
bit_or = _call("bit_or({})")
bit_xor = _call("bit_xor({})")
collect_list = _call("list({})")
count_if = _call("CAST(count_if({}) AS BIGINT)")


@dataclass(frozen=True, eq=False)
class _Sum(Column):
    """A sum; DuckDB's has 128 bits."""

    wide: str = ""

    def over(self, window: Any) -> Column:
        return Column(f"CAST({self.wide} OVER ({window.sql}) AS BIGINT)")


def sum(column: str | Column) -> Column:
    wide = f"sum({_argument(column)})"
    return _Sum(f"CAST({wide} AS BIGINT)", wide=wide)


def count(column: str | Column) -> Column:
    return Column("count(*)" if isinstance(column, str) and column == "*" else f"count({_argument(column)})")


# Of one row.
abs = _call("abs({})")
array = _call("[{}]")
bit_count = _call("CAST(bit_count({}) AS INTEGER)")
bitwise_not = _call("(~{})")
ceil = _call("CAST(ceil({}) AS BIGINT)")
coalesce = _call("coalesce({})")
explode = _call("unnest({})")
floor = _call("CAST(floor({}) AS BIGINT)")
greatest = _call("greatest({})")
least = _call("least({})")
log = _call("ln({})")
log10 = _call("log10({})")
nullif = _call("nullif({})")
pow = _call("pow({})")
row_number = _call("row_number()")
sequence = _call("generate_series({})")
size = _call("CAST(len({}) AS INTEGER)")
sort_array = _call("list_sort({})")
timestamp_micros = _call("make_timestamp({})")
#: Half of a hash that is as good: never negative, so that it fits a BIGINT.
xxhash64 = _call("CAST(hash({}) >> 1 AS BIGINT)")
array_compact = _call("list_filter({}, lambda each: each IS NOT NULL)")


def unix_micros(time: str | Column) -> Column:
    """DuckDB takes the largest numbers for infinite times, and those for none."""
    given = _argument(time)
    endless = f"CASE WHEN {given} > make_timestamp(0) THEN {2**63 - 1} ELSE {-(2**63) + 1} END"
    return Column(f"(CASE WHEN isinf({given}) THEN {endless} ELSE epoch_us({given}) END)")


def struct(*columns: str | Column) -> Column:
    parts = [each if isinstance(each, Column) else col(each) for each in columns]
    return Column("struct_pack(" + ", ".join(f"{identifier(part.name)} := {part.sql}" for part in parts) + ")")


def arrays_zip(*lists: str) -> Zipped:
    return Zipped("", columns=[Column(f"unnest({identifier(name)})", name) for name in lists])


def inline(values: Column) -> Column:
    return values if isinstance(values, Zipped) else Column(f"unnest({values.sql}, recursive := true)")


def transform(values: str | Column, change: Callable[[Column], Column]) -> Column:
    return Column(f"list_transform({_argument(values)}, lambda place: {change(Column('place')).sql})")


def filter(values: Column, keep: Callable[[Column], Column]) -> Column:
    return Column(f"list_filter({values.sql}, lambda place: {keep(Column('place')).sql})")


def get(values: str | Column, index: Column) -> Column:
    return Column(f"{_argument(values)}[{index.sql} + 1]")


def element_at(values: str | Column, place: int) -> Column:
    return Column(f"{_argument(values)}[{place}]")


def get_json_object(text: str | Column, path: str) -> Column:
    given = _argument(text)
    return Column(f"(CASE WHEN json_valid({given}) THEN {given} ->> '{path}' END)")


def regexp_extract(text: str | Column, pattern: str, group: int) -> Column:
    return Column(f"regexp_extract({_argument(text)}, {sql_of(pattern)}, {group})")


def getbit(number: str | Column, place: Column) -> Column:
    return Column(f"(({_argument(number)} >> {place.sql}) & 1)")


def shiftright(number: str | Column, places: int | Column) -> Column:
    return Column(f"({_argument(number)} >> {sql_of(places)})")


def shiftleft(number: Column, places: Column) -> Column:
    """Shift 1 or -1. DuckDB refuses a shift into the sign, and one of a negative number."""
    within = f"(({places.sql}) & 63)"
    return Column(f"(CASE WHEN {within} = 63 THEN {_HIGHEST} ELSE {number.sql} * (CAST(1 AS BIGINT) << {within}) END)")


def call_function(name: str, *columns: Column) -> Column:
    found: Column = {"shiftleft": shiftleft, "shiftright": shiftright}[name](*columns)
    return found
