"""`SQLiteRunner`: sends packets through one connection of sqlite3, a statement at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ackwise.stores.sql.operation import Answer, Failure, Packet
from ackwise.stores.sqlite.file import problem_of

__all__ = ["SQLiteRunner"]


class SQLiteRunner:
    """Rows are tuples, whatever the row factory of the connection makes of them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._cursor = connection.cursor()
        self._cursor.row_factory = None

    def send(self, packet: Packet) -> Sequence[Answer]:
        """See `SyncRunner.send`."""
        cursor = self._cursor
        answers: list[Answer] = []
        try:
            for text, values in packet:
                cursor.execute(text, values)
                rows = cursor.fetchall() if cursor.description else ()
                answers.append(Answer(rows, max(0, cursor.rowcount)))
        except sqlite3.Error as error:
            raise Failure(problem_of(error), error) from error
        return answers
