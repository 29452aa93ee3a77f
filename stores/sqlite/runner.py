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
        self._connection = connection

    def send(self, packet: Packet) -> Sequence[Answer]:
        """See `SyncRunner.send`."""
        try:
            return [self._answer(*statement) for statement in packet]
        except sqlite3.Error as error:
            raise Failure(problem_of(error), error) from error

    def _answer(self, text: str, values: Sequence[object]) -> Answer:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        cursor.execute(text, values)
        return Answer(cursor.fetchall(), max(0, cursor.rowcount))
