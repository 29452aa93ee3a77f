"""`Reader`: turns events of the binary log into changes and ends of transactions. Pure.

The log may hold a transaction that was rolled back, or parts that ROLLBACK TO undid: those of a transaction that also changed a table
without transactions, or made a temporary one. So no change is returned before the end of its transaction is known. A transaction too large
for memory is read twice: first for its end and the parts undone, then for its changes.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ackwise.middleware.storage.changes import Change, ChangesLost, Committed, Operation, UnreadableChange
from ackwise.stores.mysql.binlog.position import Place, Progress, number_of
from ackwise.stores.mysql.binlog.rows import Columns, TableMap, decoded, packed_integer
from ackwise.stores.mysql.binlog.statements import Token, name_in_statements, tokens, touched, without_settings
from ackwise.stores.sql.changes import require_same

#: Bytes of a transaction's rows that are held; a larger one is read twice.
MOST_HELD: Final = 4 * 2**20

_HEADER: Final = struct.Struct("<IBIIIH")

#: The first words of statements that start and end transactions and their parts.
_CONTROL: Final = ("COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "XA")
_BACK_TO: Final = re.compile(rb"(?is)ROLLBACK(?:\s+WORK)?\s+TO(?:\s+SAVEPOINT)?\s+(.+)")

_INSERTS, _UPDATES, _DELETES = (23, 30), (24, 31), (25, 32)
_SECOND_VERSION: Final = (30, 31, 32)

#: Events whose content is packed, which is not read: of MariaDB's log_bin_compress, and of MySQL.
_PACKED: Final = frozenset({39, 40, *range(165, 172)})

#: LOAD DATA as a statement, and the data for it.
_LOADED: Final = frozenset({6, 8, 9, 10, 11, 12, 17, 18})

#: Events that say nothing of rows: variables of statements, comments, heartbeats, GTIDs, and descriptions of the log itself.
_OTHER: Final = frozenset({3, 4, 5, 13, 14, 27, 28, 29, 33, 34, 35, 36, 37, 41, 42, 160, 161, 162, 163, 164})

#: The bit of an event that may be passed over by readers that do not know it.
_IGNORABLE: Final = 0x80

#: Sizes of what the server says of a statement's session, by kind, up to the character set.
_SESSION_SIZES: Final = {0: 4, 1: 8, 3: 4}
_SQL_MODE, _CATALOG, _CHARSET = 1, 6, 4


class Wanted(NamedTuple):
    """A table as the log describes it."""

    operations: Collection[Operation] = frozenset(Operation)
    texts: tuple[str, ...] = ()
    """Columns of bytes that are text."""
    digits: Mapping[str, int] = {}
    """How many characters the server writes at least for the number in a column."""


@dataclass(slots=True)
class _Transaction:
    """The changes of a transaction that has not ended."""

    begin: Place
    is_sure: bool
    """It commits, and `cuts` are known: its changes are reported as they come."""
    cuts: list[tuple[int, int]] = field(default_factory=list)
    """Positions from, and before, which everything was taken back."""
    savepoints: dict[bytes, int] = field(default_factory=dict)
    held: list[tuple[int, Change]] = field(default_factory=list)
    size: int = 0
    number: int = 0
    is_too_large: bool = False


class Reader:
    """Reads one log from the place where `progress` stands. `wanted` are the tables to report, `server` makes ids unique.

    `encodings` say by collation how texts are read. `known` are the columns of each table as they were seen first,
    which outlive the stream. `tables_are_read` means that what the log does not say in rows is found in the tables later.
    """

    def __init__(
        self,
        wanted: Mapping[str, Wanted],
        server: str,
        known: dict[str, Columns],
        progress: Progress,
        encodings: Mapping[int, str | None],
        *,
        tables_are_read: bool = False,
        most_held: int = MOST_HELD,
    ) -> None:
        self._wanted, self._server, self._known, self._progress, self._encodings = wanted, server, known, progress, encodings
        self._names = {name_in_statements(table): table for table in wanted}
        self._tables_are_read, self._most_held = tables_are_read, most_held
        self._sure: tuple[Place, list[tuple[int, int]]] | None = None
        self._at = self._before = progress.done
        self._expects = progress.done.created
        self._is_mysql = False
        self.is_described = False
        """Whether the log has said which file this is."""
        self.again: Place | None = None
        """Where the log is to be read from once more: a transaction was too large to be held, and it commits."""
        self.behind: Place | None = None
        """Where to read on after a statement that was refused, if that is the answer to it."""
        self._reset()

    def _reset(self) -> None:
        self._tables: dict[int, Columns | None] = {}
        self._has_checksums = False
        self._transaction: _Transaction | None = None

    def begin_again(self) -> None:
        """The stream starts once more, at `again`."""
        assert self.again is not None, "nothing is to be read again"
        self._at, self._expects, self.is_described, self.again = self.again, self.again.created, False, None
        self._reset()

    def read(self, packet: bytes) -> list[Change | Committed]:
        """Return the result of one event; nothing while its transaction is open. Raise `UnreadableChange` or `ChangesLost`."""
        try:
            stamp, kind, _, _, end, flags = _HEADER.unpack_from(packet, 1)
            body = self._checked(packet, kind, is_artificial=end == 0)
            self._before = self._at
            if end and kind != 4:
                if end < self._at.position:
                    raise ValueError(f"the file {self._at.file} has more than 4 GiB, beyond which no position can be resumed")
                self._at = self._at._replace(position=end)
            return self._told(kind, body, stamp, is_artificial=end == 0, is_ignorable=bool(flags & _IGNORABLE))
        except (ValueError, struct.error, IndexError, RecursionError) as error:
            raise UnreadableChange(f"the log can't be read at {self._at}: {error}") from None

    def _checked(self, packet: bytes, kind: int, *, is_artificial: bool) -> bytes:
        """Return the bytes between header and checksum. Raise `ValueError` for a wrong checksum.

        The description of a file says whether its events have one; events that the server makes up for us are tried.
        """
        is_right = zlib.crc32(packet[1:-4]) == int.from_bytes(packet[-4:], "little")
        if kind == 15:
            self._has_checksums = is_right and packet[-5] == 1
        elif self._has_checksums and not is_right and not is_artificial:
            raise ValueError("an event does not have the checksum that it says; the log or the network is damaged")
        return packet[1 + _HEADER.size : -4 if is_right and (self._has_checksums or is_artificial) else None]

    def _told(self, kind: int, body: bytes, stamp: int, *, is_artificial: bool, is_ignorable: bool) -> list[Change | Committed]:
        if kind in _INSERTS or kind in _UPDATES or kind in _DELETES:
            return self._rows(kind, body, stamp)
        if kind == 19:
            self._learn(TableMap(body))
        elif kind == 162:  # MariaDB's GTID: the first bit of its flags says that no COMMIT follows
            if not body[12] & 1:
                self._begin()
        elif kind == 16:
            return self._commit()
        elif kind == 2:
            return self._statement(body)
        elif kind == 15:
            self._is_mysql = body[2:3].isdigit() and b"MariaDB" not in body[2:52]  # the version of the server that wrote the file
            self._describe(stamp, is_artificial=is_artificial)
        elif kind == 4 and is_artificial:
            self._turn(body)
        elif kind == 38:
            return self._prepared()
        elif kind == 26:
            raise ValueError("the server says that events were lost here (INCIDENT)")
        elif kind in _LOADED:
            self._refuse("LOAD DATA was written as a statement, without its rows; set binlog_format = ROW in every session")
        elif kind in _PACKED:
            raise ValueError(
                "an event is compressed or partial, which is not read; "
                "turn off log_bin_compress, binlog_transaction_compression and binlog_row_value_options"
            )
        elif kind not in _OTHER and not is_ignorable:
            raise ValueError(f"an event has type {kind}, which is not known here; it may be about rows")
        return []

    def _refuse(self, what: str) -> None:
        if not self._tables_are_read:
            raise ValueError(what)

    def _describe(self, stamp: int, *, is_artificial: bool) -> None:
        """The description of a file, which has the time at which it started."""
        if self._expects and stamp != self._expects:
            raise ChangesLost(
                f"the file {self._at.file} of the log started at {stamp} (epoch seconds) and not at {self._expects}: "
                "RESET MASTER was run, or this is another server"
            )
        self._expects, self.is_described = 0, True
        self._at = self._at._replace(created=stamp)
        if not is_artificial or self._progress.done.created == 0:
            self._pass()

    def _turn(self, body: bytes) -> None:
        """Another file starts, or the first one is named."""
        file = body[8:].decode("utf-8")
        if file != self._at.file:
            self._transaction = None  # the server crashed while it wrote, and has rolled back what it was writing
            self._at = Place(number_of(file), int.from_bytes(body[:8], "little"), file, 0)
        self._tables.clear()

    def _begin(self) -> None:
        if self._transaction is not None:
            raise ValueError("a transaction starts inside another one")
        begin, sure = self._before, self._sure
        if sure is not None and sure[0][:2] == begin[:2]:
            self._transaction = _Transaction(begin, True, sure[1])
        else:
            self._transaction = _Transaction(begin, False)
        self._sure = None

    def _pass(self) -> None:
        self._progress.passed(self._at)

    def _commit(self) -> list[Change | Committed]:
        ended, self._transaction = self._transaction, None
        if ended is None:
            raise ValueError("a transaction ends that has not started")
        if ended.number == 0:
            self._pass()
            return []
        if ended.is_too_large:
            self._sure, self.again = (ended.begin, ended.cuts), ended.begin
            return []
        self._progress.commit(self._at)
        kept = [change for position, change in ended.held if not _is_cut(ended.cuts, position)]
        return [*kept, Committed(str(self._at))]

    def _roll_back(self) -> None:
        self._transaction = None
        self._pass()

    def _prepared(self) -> list[Change | Committed]:
        ended, self._transaction = self._transaction, None
        if ended is not None and ended.number:
            self._refuse("our table was changed in a transaction of XA, whose end stands elsewhere in the log; XA is not read")
        self._pass()
        return []

    def _statement(self, body: bytes) -> list[Change | Committed]:
        start = 13 + int.from_bytes(body[11:13], "little")
        end = start + body[8]
        text = body[end + 1 :]
        if text == b"BEGIN" or text.startswith(b"XA START"):
            self._begin_by(self._transaction)
            return []
        sql_mode, collation = _session(body[13:start])
        encoding = (self._encodings.get(collation) if collation is not None else None) or "utf-8"
        statement = without_settings(tokens(decoded(text, encoding), sql_mode=sql_mode))
        word = statement[0].word if statement else ""
        if word not in _CONTROL:
            self._require_harmless(statement, word, body[start:end].decode("utf-8", "surrogateescape"))
        if self._transaction is None:
            self._pass()
            return []
        return self._end_by(self._transaction, word, text)

    def _begin_by(self, transaction: _Transaction | None) -> None:
        if transaction is None:
            self._begin()
        elif transaction.number:
            raise ValueError("a transaction starts inside another one")

    def _end_by(self, transaction: _Transaction, word: str, text: bytes) -> list[Change | Committed]:
        if word == "COMMIT":
            return self._commit()
        if word == "ROLLBACK":
            if (back := _BACK_TO.search(text)) is None:
                self._roll_back()
            else:
                self._cut(transaction, back[1])
        elif word == "SAVEPOINT":
            transaction.savepoints[_savepoint(text[9:])] = self._at.position
        return []

    def _require_harmless(self, statement: Sequence[Token], word: str, database: str) -> None:
        """Raise `ValueError` for a statement that changed more than the rows of the log say."""
        names = touched(statement, database, self._names)
        if names is None:
            self._refuse(
                "a statement that changes rows stands in place of the rows; set binlog_format = ROW in the session that wrote it, and "
                f"see whether it changed your own table (it starts with {word[:32] or 'a sign'})"
            )
        elif names:
            is_alone = self._transaction is None
            self.behind = self._at if is_alone else None
            tables = ", ".join(sorted(self._names[name] for name in names))
            raise ValueError(
                f"{word} changed {tables} as a whole, and the log does not say what became of its rows. Everything before that was sent; "
                "bring what reads the messages in line with the table"
                f"{'' if is_alone else '; then delete the position that is kept, and start at the end of the log (--create-slot)'}"
            )

    def _cut(self, transaction: _Transaction, name: bytes) -> None:
        if transaction.is_sure:
            return
        start = transaction.savepoints.get(_savepoint(name))
        if start is None:
            raise ValueError("a transaction goes back to a savepoint that it does not have")
        transaction.cuts.append((start, self._at.position))

    def _learn(self, table: TableMap) -> None:
        if table.table not in self._wanted:
            self._tables[table.number] = None
            return
        wanted = self._wanted[table.table]
        columns = table.columns(self._encodings, wanted.texts, wanted.digits, with_geometry=not self._is_mysql)
        self._tables[table.number] = columns
        require_same(table.table, self._known.setdefault(table.table, columns).by_name, columns.by_name)
        self._known[table.table] = columns

    def _rows(self, kind: int, body: bytes, stamp: int) -> list[Change | Committed]:
        number, transaction = int.from_bytes(body[:6], "little"), self._transaction
        if number == 0xFFFFFF:  # MySQL's end of a statement without rows
            return []
        if number not in self._tables:
            raise ValueError(f"rows are of table {number}, of which nothing was said: the position is inside a transaction")
        if (columns := self._tables[number]) is None:
            return []
        if transaction is None:
            raise ValueError("rows stand outside of a transaction")
        operation = Operation.INSERT if kind in _INSERTS else Operation.UPDATE if kind in _UPDATES else Operation.DELETE
        if operation not in self._wanted[columns.table].operations:
            return []
        changes = self._changes(kind, body, operation, columns, transaction, stamp)
        if transaction.is_sure:
            return [] if _is_cut(transaction.cuts, self._at.position) else changes
        transaction.size += len(body)
        transaction.is_too_large = transaction.is_too_large or transaction.size > self._most_held
        if transaction.is_too_large:
            transaction.held.clear()
        else:
            transaction.held += [(self._at.position, change) for change in changes]  # type: ignore[misc]
        return []

    def _changes(
        self, kind: int, body: bytes, operation: Operation, columns: Columns, transaction: _Transaction, stamp: int
    ) -> list[Change | Committed]:
        place = 8 + (int.from_bytes(body[8:10], "little") if kind in _SECOND_VERSION else 0)
        count, place = packed_integer(body, place)
        if count != len(columns):
            raise ValueError(f"rows of {columns.table} have {count} columns, and the log described {len(columns)}")
        bitmaps = 2 if operation is Operation.UPDATE else 1
        length = (count + 7) // 8
        for _ in range(bitmaps):
            if int.from_bytes(body[place : place + length], "little") & (1 << count) - 1 != (1 << count) - 1:
                self._refuse(f"rows of {columns.table} are not whole; set binlog_row_image = FULL in the session that wrote them")
                return []
            place += length
        at = self._at
        identity = f"{self._server}-{at.created}-{at.number}-{at.position}"
        position, changes, in_event = str(transaction.begin), list[Change | Committed](), 0
        while place < len(body):
            old = None
            if operation is Operation.UPDATE:
                old, place = columns.row(body, place)
            row, place = columns.row(body, place)
            change_id = f"{identity}-{in_event}"
            changes.append(Change(columns.table, operation, row, old, position, transaction.number, change_id, stamp * 1000))
            transaction.number += 1
            in_event += 1
        return changes


def _is_cut(cuts: Collection[tuple[int, int]], position: int) -> bool:
    return any(start < position <= end for start, end in cuts)


def _session(said: bytes) -> tuple[int, int | None]:
    """The sql_mode of a statement, and the collation of its text, as far as the server says them."""
    sql_mode, place = 0, 0
    while place < len(said):
        kind, place = said[place], place + 1
        if kind == _CHARSET:
            return sql_mode, int.from_bytes(said[place : place + 2], "little")
        if kind == _SQL_MODE:
            sql_mode = int.from_bytes(said[place : place + 8], "little")
        if kind not in (_CATALOG, *_SESSION_SIZES):
            break
        place += 1 + said[place] if kind == _CATALOG else _SESSION_SIZES[kind]
    return sql_mode, None


def _savepoint(name: bytes) -> bytes:
    return name.strip().strip(b"`").lower()
