"""`Column`: an expression of DuckDB, written as PySpark's columns are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

__all__ = ["WHOLE_NUMBER", "Case", "Column", "Literal", "Ordered", "Zipped", "identifier", "sql_of", "type_of"]

Literal = str | int | float | bool | None

#: The types of PySpark, as DuckDB names them.
_TYPES: Final = {
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "long": "BIGINT",
    "bigint": "BIGINT",
    "string": "VARCHAR",
    "boolean": "BOOLEAN",
    "timestamp": "TIMESTAMP",
}
#: A text that is a whole number. DuckDB alone would round others.
WHOLE_NUMBER: Final = r"\s*[+-]?\d+\s*"


@dataclass(frozen=True, eq=False)
class Column:
    """An expression, and the name that it has in a frame."""

    sql: str
    name: str = ""

    def alias(self, name: str) -> Column:
        return replace(self, name=name)

    def cast(self, kind: str) -> Column:
        return Column(f"CAST({self.sql} AS {type_of(kind)})", self.name)

    def try_cast(self, kind: str) -> Column:
        cast = f"TRY_CAST({self.sql} AS {type_of(kind)})"
        if kind not in ("int", "long"):
            return Column(cast, self.name)
        return Column(f"CASE WHEN regexp_full_match(CAST({self.sql} AS VARCHAR), '{WHOLE_NUMBER}') THEN {cast} END", self.name)

    def isin(self, *values: Any) -> Column:
        wanted = values[0] if len(values) == 1 and isinstance(values[0], (list, set, tuple)) else values
        return Column(f"({self.sql} IN ({', '.join(map(sql_of, wanted))}))") if wanted else Column("FALSE")

    def isNull(self) -> Column:  # PySpark's name, as are those below
        return Column(f"({self.sql} IS NULL)")

    def isNotNull(self) -> Column:
        return Column(f"({self.sql} IS NOT NULL)")

    def bitwiseAND(self, other: Any) -> Column:
        return self._with("&", other)

    def bitwiseOR(self, other: Any) -> Column:
        return self._with("|", other)

    def getField(self, name: str) -> Column:
        return Column(f"{self.sql}.{identifier(name)}")

    def over(self, window: Any) -> Column:
        return Column(f"{self.sql} OVER ({window.sql})", self.name)

    def desc(self) -> Ordered:
        return Ordered(f"{self.sql} DESC NULLS LAST")

    def _with(self, operator: str, other: Any, *, turned: bool = False) -> Column:
        left, right = (sql_of(other), self.sql) if turned else (self.sql, sql_of(other))
        return Column(f"({left} {operator} {right})")

    def __add__(self, other: Any) -> Column:
        return self._with("+", other)

    def __radd__(self, other: Any) -> Column:
        return self._with("+", other, turned=True)

    def __sub__(self, other: Any) -> Column:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Column:
        return self._with("-", other, turned=True)

    def __mul__(self, other: Any) -> Column:
        return self._with("*", other)

    def __truediv__(self, other: Any) -> Column:
        return self._with("/", other)

    def __mod__(self, other: Any) -> Column:
        return self._with("%", other)

    def __eq__(self, other: object) -> Column:  # type: ignore[override]  # a comparison is an expression, too
        return self._with("=", other)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return self._with("<>", other)

    def __lt__(self, other: Any) -> Column:
        return self._with("<", other)

    def __le__(self, other: Any) -> Column:
        return self._with("<=", other)

    def __gt__(self, other: Any) -> Column:
        return self._with(">", other)

    def __ge__(self, other: Any) -> Column:
        return self._with(">=", other)

    def __and__(self, other: Any) -> Column:
        return self._with("AND", other)

    def __or__(self, other: Any) -> Column:
        return self._with("OR", other)

    def __invert__(self) -> Column:
        return Column(f"(NOT {self.sql})")

    def __bool__(self) -> bool:
        raise TypeError("a column is true or false of each row; combine columns with &, | and ~")

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Case(Column):
    """A choice that more conditions may be added to."""

    def when(self, condition: Column, value: Any) -> Case:
        return Case(f"{self.sql.removesuffix(' END')} WHEN {condition.sql} THEN {sql_of(value)} END")

    def otherwise(self, value: Any) -> Column:
        return Column(f"{self.sql.removesuffix(' END')} ELSE {sql_of(value)} END)".replace("CASE", "(CASE", 1))


@dataclass(frozen=True, eq=False)
class Zipped(Column):
    """Lists side by side, of which DuckDB makes rows without putting them together."""

    columns: Sequence[Column] = ()


@dataclass(frozen=True)
class Ordered:
    """A column with a direction."""

    sql: str


def identifier(name: str) -> str:
    """Return the name of a column, or of a field of one after a point, quoted."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def sql_of(value: Any) -> str:
    """Return a column, or a literal, as an expression."""
    if isinstance(value, Column):
        return value.sql
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return f"({int(value)})" if value >= 0 else f"CAST('{int(value)}' AS BIGINT)"
    if isinstance(value, float):
        return repr(value)
    return "'" + str(value).replace("'", "''") + "'"


def type_of(kind: str) -> str:
    """Return a type of PySpark as DuckDB names it."""
    return f"{_TYPES[kind[6:-1]]}[]" if kind.startswith("array<") else _TYPES[kind]


def sqls_of(values: Sequence[Any]) -> str:
    return ", ".join(map(sql_of, values))
