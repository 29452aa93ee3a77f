"""`Reader`: messages of `pgoutput` become changes and ends of transactions. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ackwise.middleware.changes import Change, Committed, Operation, UnreadableChange
from ackwise.stores.postgres.replication.pgoutput import (
    Begin,
    Commit,
    Deleted,
    Inserted,
    Message,
    Relation,
    Truncated,
    Updated,
    Value,
    parse,
)
from ackwise.stores.postgres.replication.progress import Progress, format_lsn
from ackwise.stores.postgres.replication.row import Columns
from ackwise.stores.sql.changes import require_same

#: Milliseconds between 1970-01-01 and 2000-01-01, where PostgreSQL begins to count.
_EPOCH_2000_MS: Final = 946_684_800_000


class Reader:
    """Reads one stream from its beginning. `wanted` are the tables that are told of; `identity` makes ids of the log's positions unique.

    `known` are the columns of each table as they were seen first, which outlive the stream.
    """

    def __init__(self, wanted: Collection[str], identity: str, known: dict[str, Columns], progress: Progress) -> None:
        self._wanted, self._identity, self._known, self._progress = frozenset(wanted), identity, known, progress
        self._relations: dict[int, Columns] = {}
        self._begin: Begin | None = None
        self._position = ""
        self._number = 0

    def read(self, payload: bytes) -> Change | Committed | None:
        """What one message says; `None` if it says nothing of our tables. Raises `UnreadableChange`."""
        try:
            return self._told(parse(payload))
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
                for oid in oids:
                    self._columns(oid)  # TRUNCATE names no rows, so there is nothing to send
            case _:
                pass
        return None

    def _started(self, begin: Begin) -> None:
        if self._begin is not None:
            raise ValueError("a transaction begins inside another one")
        self._begin, self._number, self._position = begin, 0, format_lsn(begin.commit_lsn)
        self._progress.begin()

    def _ended(self, commit: Commit) -> Committed:
        if self._begin is None or commit.commit_lsn != self._begin.commit_lsn:
            raise ValueError("a transaction ends that has not begun")
        if commit.end_lsn < commit.commit_lsn:
            raise ValueError("a transaction ends before its commit")
        self._begin = None
        self._progress.commit(commit.end_lsn)
        return Committed(format_lsn(commit.end_lsn))

    def _learn(self, relation: Relation) -> None:
        columns = Columns(relation)
        self._relations[relation.oid] = columns
        before = self._known.setdefault(columns.table, columns)
        if columns.table in self._wanted:
            require_same(columns.table, before.types, columns.types)
        self._known[columns.table] = columns

    def _columns(self, oid: int) -> Columns:
        if (columns := self._relations.get(oid)) is None:
            raise ValueError(f"a change is of relation {oid}, of which nothing was said")
        return columns

    def _change(
        self, oid: int, operation: Operation, row: tuple[Value, ...] | None, old: tuple[Value, ...] | None, *, is_key: bool
    ) -> Change | None:
        columns, begin, number = self._columns(oid), self._begin, self._number
        if begin is None:
            raise ValueError("a change stands outside of a transaction")
        self._number += 1  # every change counts, so that the number of one does not depend on what is wanted
        if columns.table not in self._wanted:
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
