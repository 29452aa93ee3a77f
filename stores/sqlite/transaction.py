"""`OpenTransaction`: one transaction of a `SQLiteInbox`, around the statements of the handler."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

from ackwise.middleware.errors import Fenced, TransactionAborted
from ackwise.middleware.store import ClaimKey, Outcome, Stale
from ackwise.middleware.transaction import Finish, Finished, Permit, Place, Taken, TransactionAnswer
from ackwise.stores.sqlite import offsets
from ackwise.stores.sqlite.clock import Instant

__all__ = ["BEGAN", "OpenTransaction"]

BEGAN: Final = "ackwise_began"
"""A savepoint at the start of the transaction."""

_READ: Final = """
SELECT place, outcome, next_attempt, origin, exec_id FROM json_each(?) CROSS JOIN ackwise_inbox ON place = value WHERE kept_until > ?
"""
_WRITE: Final = """
INSERT OR REPLACE INTO ackwise_inbox
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
       json_extract(value, '$[4]'), ? FROM json_each(?)
"""
_FORGET: Final = "DELETE FROM ackwise_inbox WHERE place IN (SELECT place FROM ackwise_inbox WHERE kept_until <= ? LIMIT 1000)"


class OpenTransaction:
    """A transaction of the inbox, on its one connection, which began at `instant` with `BEGAN`."""

    def __init__(self, connection: sqlite3.Connection, instant: Instant, retention: float) -> None:
        self.connection = connection
        self._now = instant.now
        self._kept_until = instant.keep_from + retention

    async def claim(self, keys: Sequence[ClaimKey]) -> list[TransactionAnswer]:
        """See `Transaction.claim`; the whole file is locked already."""
        rows = self.connection.execute(_READ, (json.dumps([_place(key) for key in keys]), self._now)).fetchall()
        found = {place: rest for place, *rest in rows}
        return [_answer(found.get(_place(key)), key.attempt) for key in keys]

    async def finish(self, finishes: Sequence[Finish]) -> None:
        """See `Transaction.finish`."""
        self.check()
        rows = [
            (_place(key), None if outcome is None else int(outcome), next_attempt, json.dumps(origin), exec_id)
            for key, origin, exec_id, outcome, next_attempt in finishes
        ]
        self.connection.execute(_WRITE, (self._kept_until, json.dumps(rows)))
        self.connection.execute(_FORGET, (self._now,))

    async def lock(self, owner: str, topic: str, partition: int, generation: int) -> int:
        """See `OffsetsTransaction.lock`; the whole file is locked already."""
        next = offsets.lock(self.connection, owner, topic, partition, generation)
        if next is None:
            raise Fenced(f"{topic}/{partition} was taken over by another worker; nothing of this batch stays")
        return next

    async def advance(self, owner: str, topic: str, partition: int, generation: int, next: int) -> None:
        """See `OffsetsTransaction.advance`."""
        self.check()
        if not offsets.advance(self.connection, owner, topic, partition, generation, next):
            raise Fenced(f"{topic}/{partition} was taken over by another worker; nothing of this batch stays")

    async def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> list[Permit]:
        """See `OffsetsTransaction.permits`."""
        return offsets.permits(self.connection, owner, [(_place(key), origin) for key, origin in copies], self._now)

    def check(self) -> None:
        """That it is still the transaction which began, since a commit or a rollback of the handler takes the savepoint away."""
        try:
            self.connection.execute(f"RELEASE {BEGAN}")
            self.connection.execute(f"SAVEPOINT {BEGAN}")
        except sqlite3.OperationalError:
            raise TransactionAborted(
                "the handler ended the transaction that it writes in; leave commit and rollback to Ackwise, and raise to roll back"
            ) from None


def _place(key: ClaimKey) -> str:
    return key.id.hex()


def _answer(row: list[object] | None, attempt: int) -> TransactionAnswer:
    if row is None:
        return Taken()
    outcome, next_attempt, origin, exec_id = row
    if outcome is not None:
        topic, partition, offset = json.loads(str(origin))
        return Finished(Outcome(int(str(outcome))), (topic, partition, offset), int(str(exec_id)))
    return Stale() if attempt < int(str(next_attempt)) else Taken()
