"""Tables of whose rows the log reports every change. What changes them later is a statement in the log, see `statements.py`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.mysql.binlog.statements import Token, cascade, full_name, parts_of, tokens
from ackwise.stores.protocol.outbox import text_of
from ackwise.stores.sql.operation import Statement, Steps

_FIND: Final = "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_COLUMNS: Final = "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"

#: Engines whose tables store rows themselves, and which no other server changes.
_ENGINES: Final = ("INNODB", "ROCKSDB", "ARIA", "MYISAM", "MEMORY")

#: What MariaDB says of a column in the format that it had before version 10.1.2.
_OLD: Final = "mariadb-5.3"

_ZEROFILL: Final = re.compile(r"\w+\((\d+)(?:,0|(,\d+))?\).* zerofill")


def find(address: str, given: str, database: str, advice: str) -> Steps[tuple[str, str]]:
    """Return database and table of what an operator calls `given`. Raise `ConfigurationError` for none, several, or what has no rows."""
    found = []
    for name in _readings(given, database):
        (answer,) = yield [Statement(_FIND, name)]
        found += [tuple(map(text_of, row)) for row in answer.rows]
    if not found:
        raise ConfigurationError(f"{address}: there is no table {given}; {advice}")
    if len(found) > 1:
        raise ConfigurationError(f"{address}: {given} may be one of two tables; write `database`.`table`, with the backticks")
    schema, table, kind = found[0]
    if kind not in ("BASE TABLE", "SYSTEM VERSIONED"):
        raise ConfigurationError(f"{address}: {given} is a {kind.lower()}, of whose rows the log has no changes; name the table itself")
    return schema, table


def _readings(given: str, database: str) -> Iterator[tuple[str, str]]:
    quoted = parts_of(given) if "`" in given else None
    if quoted is not None:
        yield quoted
        return
    yield database, given
    for place, sign in enumerate(given):
        if sign == ".":
            yield given[:place], given[place + 1 :]


def require_covered(address: str, database: str, table: str) -> Steps[Mapping[str, int]]:
    """Return how many characters the server writes at least for a number, by column, as ZEROFILL says.

    Raise `ConfigurationError` for a table that the log does not report in full, with what to do.
    """
    quoted = ".".join("`" + part.replace("`", "``") + "`" for part in (database, table))
    created, columns = yield [Statement(f"SHOW CREATE TABLE {quoted}"), Statement(_COLUMNS, (database, table))]
    types = {text_of(name): text_of(kind) for name, kind in columns.rows}
    complaint = _complaint(tokens(text_of(created.rows[0][1])), [name for name, kind in types.items() if _OLD in kind])
    if complaint:
        raise ConfigurationError(f"{address}: the log does not have all that happens to {full_name(database, table)}: {complaint}")
    return {name: int(found[1]) + bool(found[2]) for name, kind in types.items() if (found := _ZEROFILL.match(kind))}


def _complaint(created: Sequence[Token], old: Collection[str]) -> str:
    """Return what is wrong with a table that was created so, and has columns in an `old` format, as a part of a sentence."""
    words = [token.word for token in created]
    if by := cascade(words):
        return (
            f"a foreign key changes its rows by itself ({by}), which is in no log. Take that out of the foreign key, and let the "
            "application or a trigger of the other table change these rows"
        )
    if ("SYSTEM", "VERSIONING") in pairwise(words):
        return (
            "it has SYSTEM VERSIONING, for which the log has further rows that no statement inserted. ALTER TABLE … DROP SYSTEM VERSIONING"
        )
    engine = next((words[place + 2] for place, word in enumerate(words[:-2]) if word == "ENGINE" and words[place + 1] == "="), "INNODB")
    if engine not in _ENGINES:
        return f"its engine is {engine}, whose rows are changed elsewhere, too. Name the table that has the rows"
    if old:
        return (
            f"its columns {', '.join(old)} have an old format of dates and times, which the log does not describe. "
            "SET GLOBAL mysql56_temporal_format = ON, then in a new session ALTER TABLE … FORCE"
        )
    return ""
