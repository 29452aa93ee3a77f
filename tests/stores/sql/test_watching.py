"""What statements do to a transaction, without a database; and what SQLite lets a watcher see."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.tables import each

from ackwise.middleware.errors import TransactionAborted
from ackwise.stores.sql.watching import ENDING, MARIADB, POSTGRES, SQLITE, Effect, Effects, Grammar, Watched, execute
from ackwise.stores.sqlite.handlerconnection import is_free, watched

S, U, C, DDL, R, A = (
    Effect.SAVEPOINT,
    Effect.UNDOES,
    Effect.COMMITS,
    Effect.COMMITS_BY_ITSELF,
    Effect.ROLLS_BACK,
    Effect.ANYTHING,
)


class Refusing:
    """A watcher that lets nobody else end the transaction; `error` is what such a statement raises."""

    def __init__(self, error: Callable[[], Exception], refused: Collection[Effect] = ENDING) -> None:
        self._error, self._refused = error, frozenset(refused)

    def before(self, effects: Effects) -> None:
        if not self._refused.isdisjoint(effects):
            raise self._error()

    def after(self, effects: Effects) -> None:
        pass


EVERYWHERE: list[tuple[str, Effects]] = [
    ("SELECT 1", ()),
    (" (SELECT 1)", ()),
    ("WITH a AS (SELECT 1) SELECT * FROM a", ()),
    ("INSERT INTO a VALUES ('; COMMIT')", ()),
    ("INSERT INTO a VALUES ('it''s; COMMIT; ')", ()),
    ("SAVEPOINT a", (S,)),
    ("savepoint a;", (S,)),
    ("/* mine */ SAVEPOINT a", (S,)),
    ("-- now\nSAVEPOINT a", (S,)),
    ("RELEASE a", ()),
    ("ROLLBACK TO a", (U,)),
    ("rollback\n to savepoint a", (U,)),
    ("ROLLBACK", (R,)),
    ("rollback;", (R,)),
    ("COMMIT", (C,)),
    (" /* it is done */ commit", (C,)),
    ("-- COMMIT\nSELECT 1", ()),
    ("", ()),
]

TWO: list[tuple[str, Effects]] = [
    ("SELECT 1; COMMIT", (C,)),
    ("SELECT ';'; COMMIT", (C,)),
    ("SAVEPOINT a; ROLLBACK TO a", (S, U)),
    ("SELECT 1; -- COMMIT\n; /* ; COMMIT */ SELECT ';COMMIT'", ()),
]

OF_POSTGRES: list[tuple[str, Effects]] = [
    *EVERYWHERE,
    *TWO,
    ("END", (C,)),
    ("COMMIT AND CHAIN", (C,)),
    ("ABORT", (R,)),
    ("ABORT WORK TO a", (U,)),
    ("PREPARE TRANSACTION 'x'", (DDL,)),
    ("SET LOCAL ROLE tenant", (Effect.ACTS_AS,)),
    ("reset role", (Effect.ACTS_AS,)),
    ("SET search_path TO tenant", ()),
    ("COMMIT PREPARED 'x'", ()),
    ("CREATE TABLE a (id int)", ()),
    ("CALL settle()", (Effect.SESSION,)),
    ("SELECT set_config('role', 'tenant', true)", (Effect.SESSION,)),
    ("SELECT\n    set_config('role', $1, true)", (Effect.SESSION,)),
    ("select 1, pg_catalog.set_config('role', 'tenant', false)", (Effect.SESSION,)),
    ("SELECT 'set_config'", ()),
    ("SELECT 1 FROM set_configs", ()),
    (r"SELECT E'it\'s; COMMIT;'", ()),
    (r"SELECT '\'; COMMIT; SELECT ''", (C,)),
    ('SELECT 1 AS "; COMMIT"', ()),
    ("DO $body$ BEGIN; COMMIT; END $body$", (Effect.SESSION,)),
    ("SELECT $1; COMMIT; SELECT $1", (C,)),
    ("/* a /* b */ COMMIT; */ SELECT 1", ()),
    ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END", ()),
]

OF_SQLITE: list[tuple[str, Effects]] = [
    *EVERYWHERE,
    ("END TRANSACTION", (C,)),
    ("ROLLBACK TRANSACTION TO a", (U,)),
    ("CREATE TRIGGER a BEFORE INSERT ON b BEGIN SELECT 1; END", ()),
    ("CREATE TABLE a (id int)", ()),
]

OF_MARIADB: list[tuple[str, Effects]] = [
    *EVERYWHERE,
    *TWO,
    ("# COMMIT\nSELECT 1", ()),
    ("SELECT 1--1; COMMIT", (C,)),
    ("/*! COMMIT */", (C,)),
    ("/*M!100100 COMMIT */", (C,)),
    ("SELECT 1 /*! + 1 */", ()),
    (r"SELECT 'it\'s; COMMIT;'", ()),
    ('SELECT "; COMMIT", `; COMMIT`', ()),
    ("COMMIT AND CHAIN", (C,)),
    ("ROLLBACK WORK TO a", (U,)),
    ("BEGIN", (DDL,)),
    ("START TRANSACTION", (DDL,)),
    ("SET autocommit = 1", (DDL,)),
    ("SET @@session.autocommit = ON", (DDL,)),
    ("SET SESSION autocommit := @before", (DDL,)),
    ("SET autocommit = 0, autocommit=1", (DDL,)),
    ("SET autocommit = 0", (Effect.SESSION,)),
    ("SET autocommit=OFF, time_zone = '+00:00'", (Effect.SESSION,)),
    ("SET @autocommit = 1", (Effect.SESSION,)),
    ("SET PASSWORD = PASSWORD('x')", (DDL,)),
    ("SET STATEMENT max_statement_time = 1 FOR CREATE TABLE a (id INT)", (A,)),
    ("SET time_zone = '+00:00'", (Effect.SESSION,)),
    ("USE elsewhere", (Effect.SESSION,)),
    ("LOCK TABLES a WRITE", (DDL,)),
    ("CREATE TABLE a (id INT)", (DDL,)),
    ("create or replace table a (id INT)", (DDL,)),
    ("CREATE TEMPORARY TABLE a (id INT)", ()),
    ("DROP TEMPORARY TABLE a", ()),
    ("DROP TABLE IF EXISTS a", (DDL,)),
    ("ANALYZE TABLE a", (DDL,)),
    ("ANALYZE FORMAT=JSON SELECT 1", ()),
    ("TRUNCATE a", (DDL,)),
    ("FLUSH PRIVILEGES", (DDL,)),
    ("LOAD INDEX INTO CACHE a", (DDL,)),
    ("LOAD DATA INFILE 'a' INTO TABLE a", ()),
    ("CALL settle()", (A,)),
    ("CALL(1)", (A,)),
    ("BEGIN NOT ATOMIC SELECT 1; COMMIT; END", (A, C, A)),
    ("(SELECT 1)", ()),
    ("INSERT INTO createtable VALUES (1)", ()),
]


@pytest.mark.parametrize(("grammar", "cases"), [(POSTGRES, OF_POSTGRES), (MARIADB, OF_MARIADB), (SQLITE, OF_SQLITE)])
def test_what_a_statement_does(grammar: Grammar, cases: list[tuple[str, Effects]]) -> None:
    assert [(packet, grammar.effects(packet)) for packet, _ in cases] == cases


def test_a_long_packet_is_told_apart_in_time() -> None:
    packet = "INSERT INTO a VALUES ('" + "x;\\';" * 200_000 + "'); COMMIT"
    assert MARIADB.effects(packet) == (C,)


# Watchers


class Noting:
    """A watcher that writes down what it is asked and told, beside what is sent."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name, self._notes = name, notes

    async def _flush(self) -> None:
        self._notes.append(f"{self._name} flushes")

    def before(self, effects: Effects) -> object:
        return self._flush()

    def after(self, effects: Effects) -> None:
        self._notes.append(f"{self._name} is told of {effects[0].name}")


async def test_watchers_are_asked_before_the_statement_the_innermost_first_and_told_after_it() -> None:
    notes = list[str]()
    seen: Watched[object] = Watched(POSTGRES)

    async def send() -> str:
        notes.append("sent")
        return "answer"

    seen.watchers += [Noting("outer", notes), Noting("inner", notes)]
    assert await execute(seen, "SAVEPOINT a", send) == "answer"  # type: ignore[arg-type]
    assert await execute(seen, "SELECT 1", send) == "answer"  # type: ignore[arg-type]
    assert notes == ["inner flushes", "outer flushes", "sent", "outer is told of SAVEPOINT", "inner is told of SAVEPOINT", "sent"]


async def test_a_statement_that_fails_is_told_to_nobody_and_one_that_is_refused_is_not_sent() -> None:
    notes = list[str]()
    seen: Watched[object] = Watched(POSTGRES)

    async def fail() -> None:
        raise OSError("lost")

    seen.watchers.append(Noting("one", notes))
    with pytest.raises(OSError, match="lost"):
        await execute(seen, "ROLLBACK TO a", fail)  # type: ignore[arg-type]
    seen.watchers[:] = [Refusing(lambda: TransactionAborted("no"))]
    with pytest.raises(TransactionAborted, match="no"):
        await execute(seen, "COMMIT", fail)  # type: ignore[arg-type]
    assert notes == ["one flushes"]


# SQLite


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """In a transaction, beside a table in which `there` is."""
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE effects (effect TEXT PRIMARY KEY)")
        connection.execute("INSERT INTO effects VALUES ('there')")
        connection.execute("BEGIN")
        yield connection


def commit(connection: sqlite3.Connection) -> None:
    connection.commit()


def execute_commit(connection: sqlite3.Connection) -> None:
    connection.execute(" /* it is done */ commit")


def prepared_commit(connection: sqlite3.Connection) -> None:
    connection.execute("COMMIT")  # sqlite3 has it from before


def script(connection: sqlite3.Connection) -> None:
    connection.executescript("SELECT 1")


def as_context(connection: sqlite3.Connection) -> None:
    with connection:
        connection.execute("SELECT 1")


def isolation_level(connection: sqlite3.Connection) -> None:
    connection.isolation_level = None


def roll_back(connection: sqlite3.Connection) -> None:
    connection.rollback()


def write_alone(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.IntegrityError):
        connection.execute("INSERT OR ROLLBACK INTO effects VALUES ('there')")
    connection.execute("WITH one AS (SELECT 'z') INSERT INTO effects SELECT * FROM one")


def write_again(connection: sqlite3.Connection) -> None:
    connection.isolation_level = "DEFERRED"
    with suppress(sqlite3.IntegrityError):
        connection.execute("INSERT OR ROLLBACK INTO effects VALUES ('there')")
    connection.execute("INSERT INTO effects VALUES ('a')")  # sqlite3 has it from before, and starts a transaction


def begin_anew(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.IntegrityError):
        connection.execute("INSERT OR ROLLBACK INTO effects VALUES ('there')")
    connection.execute("BEGIN")


@each(
    "ends", [write_again, begin_anew, commit, execute_commit, prepared_commit, script, as_context, isolation_level, roll_back, write_alone]
)
def test_sqlite_what_ends_a_transaction_or_is_outside_of_one_is_refused(tmp_path: Path, ends: Callable[[sqlite3.Connection], None]) -> None:
    with closing(sqlite3.connect(tmp_path / f"{ends.__name__}.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE effects (effect TEXT PRIMARY KEY)")
        connection.execute("INSERT INTO effects VALUES ('there')")
        connection.execute("BEGIN")
        connection.execute("COMMIT")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO effects VALUES ('a')")
        with pytest.raises(TransactionAborted, match="no"), watched(connection, Refusing(lambda: TransactionAborted("no"))):
            ends(connection)
        is_gone = ends in (write_alone, write_again, begin_anew)
        assert connection.in_transaction is not is_gone
        assert connection.execute("SELECT count(*) FROM effects WHERE effect <> 'there'").fetchone() == (0 if is_gone else 1,)


def test_sqlite_nothing_stays_on_the_connection_and_a_watcher_sees_savepoints(connection: sqlite3.Connection) -> None:
    seen = list[Effects]()

    class Noting(Refusing):
        def after(self, effects: Effects) -> None:
            seen.append(effects)

    watcher = Noting(lambda: TransactionAborted("no"))
    assert is_free(connection)
    with watched(connection, watcher):
        assert is_free(connection)
        with watched(connection, watcher):
            connection.execute("SAVEPOINT a")
        connection.execute("ROLLBACK TO a")
        connection.execute("RELEASE a")
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            connection.commit()
    connection.commit()
    assert seen == [(S,), (S,), (U,)]
    assert is_free(connection)


def test_sqlite_an_error_that_is_no_refusal_leaves_as_it_is(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError), watched(connection, Refusing(lambda: TransactionAborted("no"))):
        connection.execute("INSERT INTO effects VALUES ('there')")


def test_sqlite_a_connection_with_a_callback_of_its_users_is_not_free(connection: sqlite3.Connection) -> None:
    connection.set_authorizer(lambda *_: sqlite3.SQLITE_OK)
    assert not is_free(connection)
    connection.set_authorizer(None)
    assert is_free(connection)
