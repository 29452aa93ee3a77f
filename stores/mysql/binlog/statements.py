"""What a statement in the log may do to the tables that are read. Pure.

The log has rows for what applications do, and statements for the rest. A statement that changes what "all rows of this table" means, and
has no rows in the log, must not be passed over. So what is not known to be harmless is not: see `touched`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

#: A table by its database and name, casefolded: whether names differ in case alone is up to the server's file system.
Name = tuple[str, str]

_PART: Final = r"(`(?:[^`]|``)+`|[^.`]+)"
_FULL_NAME: Final = re.compile(rf"{_PART}\.{_PART}")


def full_name(database: str, table: str) -> str:
    """`database.table`, each in backticks where it has a dot or a backtick itself."""
    return ".".join("`" + part.replace("`", "``") + "`" if {".", "`"} & {*part} else part for part in (database, table))


def parts_of(name: str) -> tuple[str, str] | None:
    """Database and table of a `full_name`; `None` for another text."""
    found = _FULL_NAME.fullmatch(name)
    if found is None:
        return None
    database, table = (part[1:-1].replace("``", "`") if part.startswith("`") else part for part in found.groups())
    return database, table


def name_in_statements(name: str) -> Name:
    """The table of a `full_name`, as `touched` compares it."""
    database, table = parts_of(name) or ("", name)
    return database.casefold(), table.casefold()


class Token(NamedTuple):
    """A word, a quoted name or a sign. Comments and texts are left out."""

    text: str
    is_quoted: bool = False

    @property
    def word(self) -> str:
        """In capitals if it may be a keyword, otherwise nothing."""
        return "" if self.is_quoted else self.text.upper()


_NO_BACKSLASHES: Final = 1 << 20

_TOKEN: Final = r"""
    (?:\s | --(?=\s|\Z)[^\n]* | \#[^\n]* | /\*(?!M?!).*?(?:\*/|\Z) | /\*M?!(?:\d{{5,6}})? | \*/(?!\*))++
    | '(?:{character}|[^']|'')*+'
    | "(?P<doubly>(?:{character}|[^"]|"")*+)"
    | `(?P<name>(?:[^`]|``)*+)`
    | (?P<word>[0-9A-Za-z_$\x80-\U0010ffff]+)
    | (?P<sign>.)
"""


@functools.cache
def _grammar(has_backslashes: bool) -> re.Pattern[str]:
    """What comes after "/*!" was executed: the server takes the "!" out of what it did not execute."""
    return re.compile(_TOKEN.format(character=r"\\." if has_backslashes else "(?!)"), re.DOTALL | re.VERBOSE)


def tokens(text: str, *, sql_mode: int = 0) -> list[Token]:
    """The words, names and signs of a statement."""
    return list(_tokens(text, _grammar(not sql_mode & _NO_BACKSLASHES)))


def _tokens(text: str, grammar: re.Pattern[str]) -> Iterator[Token]:
    for found in grammar.finditer(text):
        match found.lastgroup:
            case "word" | "sign" as kind:
                yield Token(found[kind])
            case "name":
                yield Token(found["name"].replace("``", "`"), is_quoted=True)
            case "doubly":  # a name under ANSI_QUOTES, otherwise a text, which is no name of a table by mistake alone
                yield Token(found["doubly"].replace('""', '"'), is_quoted=True)


#: First words of statements that change neither rows nor tables, and objects without rows.
_HARMLESS: Final = ("GRANT", "REVOKE", "FLUSH", "OPTIMIZE", "INSTALL", "UNINSTALL")
_WITHOUT_ROWS: Final = ("VIEW", "TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "PACKAGE", "USER", "ROLE", "SERVER", "INDEX", "TABLESPACE")
_KINDS: Final = (*_WITHOUT_ROWS, "DATABASE", "SCHEMA", "TABLE", "TABLES", "SEQUENCE")

_NONE: Final[frozenset[Name]] = frozenset()


def touched(statement: Sequence[Token], database: str, watched: Collection[Name]) -> Collection[Name] | None:
    """Return the tables of `watched` that a statement of the log, made in `database`, changed in a way that the log has no rows for.

    `None` for a statement that may have changed rows of any table: directly, by a view, a trigger, a function or a procedure.
    """
    found = without_settings(statement)
    if not found:
        return _NONE
    first, second = _word(found, 0), _word(found, 1)
    if first in _HARMLESS or (first, second) == ("RENAME", "USER") or (first == "SET" and second in ("PASSWORD", "ROLE", "DEFAULT")):
        return _NONE
    if first in ("CREATE", "ALTER", "DROP"):
        return _by_definition(found, first, database, watched)
    if first in ("TRUNCATE", "RENAME", "REPAIR"):
        return _named(found, database, watched)
    return _NONE if first == "ANALYZE" and _is_analyze_table(found) else None


def _word(statement: Sequence[Token], place: int) -> str:
    return statement[place].word if 0 <= place < len(statement) else ""


def without_settings(statement: Sequence[Token]) -> Sequence[Token]:
    """The statement behind SET STATEMENT … FOR, and behind signs."""
    start = next((place for place, token in enumerate(statement) if token.word not in ("(", ";")), len(statement))
    statement = statement[start:]
    while (_word(statement, 0), _word(statement, 1)) == ("SET", "STATEMENT"):
        ends = (place for place, token in _outside(statement) if token.word == "FOR")
        statement = statement[next(ends, len(statement) - 1) + 1 :]
    return statement


def _outside(statement: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """What is outside of parentheses, with its place."""
    depth = 0
    for place, token in enumerate(statement):
        depth += (token.word == "(") - (token.word == ")")
        if depth == 0:
            yield place, token


def _is_analyze_table(statement: Sequence[Token]) -> bool:
    """ANALYZE also executes other statements, to say what they did."""
    place = 2 if _word(statement, 1) in ("LOCAL", "NO_WRITE_TO_BINLOG") else 1
    return _word(statement, place) in ("TABLE", "TABLES")


def _by_definition(statement: Sequence[Token], verb: str, database: str, watched: Collection[Name]) -> Collection[Name] | None:
    place = next((number for number, token in enumerate(statement) if token.word in _KINDS), None)
    if place is None:
        return None
    kind = statement[place].word
    name = next((number for number in range(place + 1, len(statement)) if statement[number].word not in ("IF", "NOT", "EXISTS")), place)
    between, behind = [token.word for token in statement[1:name]], statement[name:]
    if kind in _WITHOUT_ROWS:
        return _NONE
    if kind in ("DATABASE", "SCHEMA"):
        gone = {token.text.casefold() for token in behind} if verb == "DROP" or "REPLACE" in between else _NONE
        return [name for name in watched if name[0] in gone]
    found = [] if "TEMPORARY" in between else _named(behind, database, watched)
    if kind != "SEQUENCE" and verb != "DROP" and found:
        target, rest = _target(behind, database)
        changes = _creates if verb == "CREATE" else _alters
        found = found if changes(between, rest, is_ours=target in watched) else []
    has_rows = verb == "CREATE" and any(token.word == "SELECT" for token in behind)
    return found or (None if has_rows else _NONE)


def _creates(between: Collection[str], rest: Sequence[Token], *, is_ours: bool) -> bool:
    """Whether CREATE TABLE makes a table again that is read, or another one whose rows are those of such a table (MERGE).

    An application that starts may say IF NOT EXISTS of a table that it has.
    """
    return (is_ours and ("REPLACE" in between or "IF" not in between)) or any(token.word == "UNION" for token in rest)


#: The first words of parts of ALTER TABLE after which the table has the same rows; `None`: whatever comes next.
_SAME_ROWS: Final[Mapping[str, Collection[str] | None]] = {
    **dict.fromkeys(("MODIFY", "CHANGE", "ALTER", "COMMENT", "AUTO_INCREMENT", "ALGORITHM", "LOCK", "FORCE", "ENABLE", "DISABLE", "ORDER")),
    **dict.fromkeys(("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "ROW_FORMAT", "KEY_BLOCK_SIZE", "ENGINE")),
    "RENAME": ("COLUMN", "INDEX", "KEY"),
    "CONVERT": ("TO",),
    "REORGANIZE": ("PARTITION",),
    "PARTITION": ("BY",),
    "REMOVE": ("PARTITIONING",),
}

#: What may be added to a table, or taken away, and is no column.
_OTHER_ROWS: Final = {"ADD": ("SYSTEM", "PERIOD"), "DROP": ("SYSTEM", "PERIOD", "PARTITION")}

#: Words that change, anywhere in ALTER TABLE, which rows the table has, or which of their changes the log reports.
_NEVER: Final = frozenset({"VERSIONING", "UNION", "IGNORE"})


def _alters(between: Collection[str], rest: Sequence[Token], *, is_ours: bool) -> bool:
    """Whether ALTER TABLE changes more than columns, keys and options. Changed columns are found with the next row."""
    words = [token.word for token in rest]
    if is_ours and ("IGNORE" in between or _NEVER & set(words) or cascade(words) or not _stays_innodb(words)):
        return True
    return not all(map(_keeps_rows, _parts(rest)))


def cascade(words: Sequence[str]) -> str:
    """Return how a foreign key changes rows of its table by itself, such as ON DELETE CASCADE; empty if it does not."""
    for on, what, action in zip(words, words[1:], words[2:], strict=False):
        if on == "ON" and what in ("DELETE", "UPDATE") and action in ("CASCADE", "SET"):
            return f"ON {what} {action}{' NULL' if action == 'SET' else ''}"
    return ""


def _stays_innodb(words: Sequence[str]) -> bool:
    engines = [words[place + 1 :] for place, word in enumerate(words) if word == "ENGINE"]
    return all("INNODB" in engine[: 2 if engine[:1] == ["="] else 1] for engine in engines)


def _keeps_rows(part: Sequence[Token]) -> bool:
    first, second = _word(part, 0), _word(part, 1)
    if first in _OTHER_ROWS:
        return second not in _OTHER_ROWS[first]
    if first not in _SAME_ROWS:
        return False
    allowed = _SAME_ROWS[first]
    return allowed is None or second in allowed


def _parts(rest: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """What stands between commas outside of parentheses, behind how long to wait for a lock."""
    start = {"NOWAIT": 1, "WAIT": 2}.get(_word(rest, 0), 0)
    commas = [place for place, token in _outside(rest) if token.word == "," and place >= start]
    for begin, end in zip([start, *(place + 1 for place in commas)], [*commas, len(rest)], strict=True):
        yield rest[begin:end]


def _target(behind: Sequence[Token], database: str) -> tuple[Name, Sequence[Token]]:
    """The table that comes first, and what is behind it."""
    if _word(behind, 0) == ".":
        return _target(behind[1:], database)
    if _word(behind, 1) == ".":
        return (_text(behind, 0), _text(behind, 2)), behind[3:]
    return (database.casefold(), _text(behind, 0)), behind[1:]


def _text(statement: Sequence[Token], place: int) -> str:
    return statement[place].text.casefold() if place < len(statement) else ""


#: What may stand before a name that starts with a dot, which is one of the statement's own database.
_NO_DATABASE: Final = ("TRUNCATE", "TABLE", "TABLES", "EXISTS", "TO", "AS", "WITH", "RENAME", "LIKE", "REPAIR", "REFERENCES", ",", "(", "=")


def _named(statement: Sequence[Token], database: str, watched: Collection[Name]) -> list[Name]:
    """Those of `watched` whose name stands in the statement; that of a column may be such a name, too."""
    found = set()
    for place, token in enumerate(statement):
        if _word(statement, place + 1) == ".":
            found.add((token.text.casefold(), _text(statement, place + 2)))
        elif _word(statement, place - 1) != "." or place < 2 or _word(statement, place - 2) in _NO_DATABASE:
            found.add((database.casefold(), token.text.casefold()))
    return [name for name in watched if name in found]
