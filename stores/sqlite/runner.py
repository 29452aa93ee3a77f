"""`SQLiteRunner`: sends packets through one connection of sqlite3, a statement at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ackwise.stores.sql.operation import Answer, Failure, Packet
from ackwise.stores.sqlite.file import problem_of


class SQLiteRunner:
    """Whatever the connection makes of rows and texts, answers have tuples and what SQLite stores."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection, self._cursor = connection, sqlite3.Cursor(connection)
        self._cursor.row_factory = None

    def send(self, packet: Packet) -> Sequence[Answer]:
        cursor = self._cursor
        answers: list[Answer] = []
        factory = self._connection.text_factory
        if factory is not str:
            self._connection.text_factory = str
        try:
            for text, values in packet:
                cursor.execute(text, values)
                rows = cursor.fetchall() if cursor.description else ()
                answers.append(Answer(rows, max(0, cursor.rowcount)))
        except sqlite3.Error as error:
            raise Failure(problem_of(error), error) from error
        finally:
            if factory is not str:
                self._connection.text_factory = factory
        return answers
