"""Positions in the binary log, and the table `ackwise_cdc`, which keeps each reader's position, lease and heartbeat.

A reader writes its position under its lease's token alone. A reader that has lost its lease no longer moves the position.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.mysql.schema import Tables
from ackwise.stores.protocol.outbox import text_of
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps


class Place(NamedTuple):
    """A place between two events; the order is that of the log."""

    number: int
    """The number of the file."""
    position: int
    file: str
    created: int
    """Epoch seconds at which the file started, as the file itself says: another file of this name has another one. 0 if not known yet."""

    def __str__(self) -> str:
        return f"{self.file}:{self.position}"


def number_of(file: str) -> int:
    """The number at the end of a file's name. Raises `ValueError`."""
    return int(file.rpartition(".")[2])


def place_of(text: str) -> tuple[int, int]:
    """Return the sort key of a position such as `binlog.000012:4711`. Raise `ValueError`."""
    file, _, position = text.rpartition(":")
    return number_of(file), int(position)


class Progress:
    """How far the log was read, and up to where nothing is outstanding: `done` is the start of a transaction, always."""

    def __init__(self, start: Place) -> None:
        self.done = start  #: May be kept.
        self._outstanding: deque[Place] = deque()  # ends of transactions that were read and not acknowledged, in their order

    def commit(self, end: Place) -> None:
        """A transaction with our changes was read whole; `end` is where it ends."""
        self._outstanding.append(end)

    def acknowledge(self, end: tuple[int, int]) -> None:
        """Everything up to this end of a transaction was acknowledged. What was never read can't be."""
        while self._outstanding and self._outstanding[0][:2] <= end:
            self.done = self._outstanding.popleft()

    def passed(self, place: Place) -> None:
        """Advance past a transaction without our changes, so that an idle source does not fall behind."""
        if not self._outstanding:
            self.done = place


#: Seconds that a reader is waited for without a word from it. It writes every three.
_LEASE: Final = 10

_NOW: Final = "UTC_TIMESTAMP(6)"

_COLUMNS: Final = """
    name VARBINARY(64) NOT NULL PRIMARY KEY,
    server VARBINARY(64) NOT NULL,
    log_file VARBINARY(255) NOT NULL,
    log_position BIGINT NOT NULL,
    log_created BIGINT NOT NULL,
    token BIGINT NOT NULL DEFAULT 0,
    leased_until DATETIME(6) NOT NULL DEFAULT '2000-01-01',
    beats BIGINT NOT NULL DEFAULT 0,
    beat_at DATETIME(6) NOT NULL DEFAULT '2000-01-01',
    held TEXT CHARACTER SET utf8mb4"""


class Kept(NamedTuple):
    """The stored state of a reader."""

    server: str
    place: Place
    token: int
    is_leased: bool
    held: str | None
    """Why the position does not move."""


def ensure(tables: Tables) -> Steps[None]:
    """Create the table if it is missing. Raises `ConfigurationError` with the statement if this user may not."""
    name = tables.named("cdc")
    try:
        yield [Statement(f"SELECT 1 FROM {name} LIMIT 0")]
    except Failure as failure:
        if failure.problem not in (Problem.MISSING, Problem.FORBIDDEN):
            raise
    else:
        return
    try:
        yield [Statement(f"CREATE TABLE IF NOT EXISTS {name} ({_COLUMNS}) ENGINE = InnoDB")]
    except Failure as failure:
        if failure.problem is not Problem.FORBIDDEN:
            raise
        statement = f"CREATE TABLE {name} ({' '.join(_COLUMNS.split())}) ENGINE = InnoDB"
        raise ConfigurationError(
            f"the table {name} is missing, or this user may not use it, nor create it; let a user who may run: {statement}; "
            f"GRANT SELECT, INSERT, UPDATE ON {name} TO this user"
        ) from None


def recall(tables: Tables, name: str) -> Steps[Kept | None]:
    """Return the stored state of the reader `name`."""
    question = (
        f"SELECT server, log_file, log_position, log_created, token, leased_until > {_NOW}, held FROM {tables.named('cdc')} WHERE name = %s"
    )
    (found,) = yield [Statement(question, (name,))]
    if not found.rows:
        return None
    ((server, file, position, created, token, is_leased, held),) = found.rows
    return Kept(text_of(server), Place(number_of(text_of(file)), position, text_of(file), created), token, bool(is_leased), held)


def remember(tables: Tables, name: str, server: str, place: Place) -> Steps[None]:
    """Write down that reading starts at `place` of `server`, which leaves token and lease as they are."""
    statement = (
        f"INSERT INTO {tables.named('cdc')} (name, server, log_file, log_position, log_created) VALUES (%s, %s, %s, %s, %s) "
        "ON DUPLICATE KEY UPDATE server = VALUES(server), log_file = VALUES(log_file), log_position = VALUES(log_position), "
        "log_created = VALUES(log_created)"
    )
    yield [Statement(statement, (name, server, place.file, place.position, place.created))]


def hold(tables: Tables, name: str, why: str | None) -> Steps[None]:
    """Write down why the position does not move."""
    yield [Statement(f"UPDATE {tables.named('cdc')} SET held = %s WHERE name = %s", (why, name))]


def claim(tables: Tables, name: str, token: int) -> Steps[int | None]:
    """Take the lease, if it is free or ours by `token`; return the new token, or `None`."""
    statement = (
        f"UPDATE {tables.named('cdc')} SET token = LAST_INSERT_ID(token + 1), leased_until = {_NOW} + INTERVAL {_LEASE} SECOND "
        f"WHERE name = %s AND (leased_until <= {_NOW} OR token = %s)"
    )
    taken, new = yield [Statement(statement, (name, token)), Statement("SELECT LAST_INSERT_ID()")]
    return int(new.rows[0][0]) if taken.changed else None


def keep(tables: Tables, name: str, token: int, place: Place) -> Steps[bool]:
    """Write the acknowledged place with a heartbeat, and renew the lease; `False` if another reader has it."""
    statement = (
        f"UPDATE {tables.named('cdc')} SET log_file = %s, log_position = %s, log_created = %s, beats = beats + 1, beat_at = {_NOW}, "
        f"leased_until = {_NOW} + INTERVAL {_LEASE} SECOND WHERE name = %s AND token = %s"
    )
    (kept,) = yield [Statement(statement, (place.file, place.position, place.created, name, token))]
    return kept.changed > 0


def release(tables: Tables, name: str, token: int) -> Steps[None]:
    """Let the next reader start at once."""
    yield [Statement(f"UPDATE {tables.named('cdc')} SET leased_until = {_NOW} WHERE name = %s AND token = %s", (name, token))]
