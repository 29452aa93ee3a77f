"""`Asyncmy` connects to a MariaDB or MySQL server, `AsyncmyRunner` sends packets with every value as a literal; errors get our sentences.

Error texts never contain a secret. asyncmy has no hook for statements, so while a connection is watched its class is a subclass whose
`query`, `commit`, `rollback`, `start`, `autocommit`, `select_db` and `prepare` call the watchers first. Afterwards the class is restored.
"""

from __future__ import annotations

import asyncio
import functools
import re
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

import asyncmy
from asyncmy.errors import MySQLError

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.mysql.url import Address
from ackwise.stores.protocol.options import OUTBOX, Purpose
from ackwise.stores.sql.connections import Driver, at_once
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem
from ackwise.stores.sql.watching import MARIADB, PREPARED, Watch, Watched, Watcher, execute

if TYPE_CHECKING:
    from asyncmy.connection import Connection
    from asyncmy.pool import Pool


#: What asyncmy raises, and what the network below it does. RuntimeError is for a pool that is being closed and for a missing package.
FAILURES = (MySQLError, OSError, RuntimeError)

NO_RIGHT = (1142, 1143, 1227)
NO_SUCH_TABLE = 1146
NO_SUCH_SAVEPOINT = 1305
DUPLICATE = 1062

_UNREACHABLE = 2003

_LOST_CODES = (0, 1047, 1053, 1158, 1159, 1160, 1161, 1290, 1317, 1792, 1836, 1927, _UNREACHABLE, 2006, 2013, 2014, 2055, 4031)
"""The connection is lost or was ended, the server stops or starts, left its cluster or became a replica."""

_PROBLEMS: Final[dict[int | None, Problem]] = {
    **dict.fromkeys(_LOST_CODES, Problem.LOST),
    1020: Problem.CONFLICT,  # the record changed
    1205: Problem.CONFLICT,  # it was locked for too long, and the server undid the statement
    1213: Problem.CONFLICT,  # a deadlock
    1969: Problem.BUSY,
    3024: Problem.BUSY,
    NO_SUCH_SAVEPOINT: Problem.ENDED,
    NO_SUCH_TABLE: Problem.MISSING,
    DUPLICATE: Problem.DUPLICATE,
    **dict.fromkeys(NO_RIGHT, Problem.FORBIDDEN),
}

_RIGHTS = (
    "this user may not do what the {what} needs{command}; let a user who may create tables run `{init}`, "
    "then grant SELECT, INSERT, UPDATE and DELETE on the tables of the {what}, and SELECT on that of the schema"
)
_LET_IN = "the server does not let this user in; check user and password of the URL, and from where the user may come"
_READ_ONLY = "the server takes no writes, it is a replica or read_only is on; name the primary"
_SLOW = (
    "the server did not finish within {timeout:g} s; an open transaction may hold {held}, "
    "or it is overloaded: see information_schema.innodb_trx"
)
_LOST = "the connection was lost; it is made again with the next exchange"
_ENDED = "the server ended the connection; it stops or starts, or the connection was killed"
_DISK = "the server's disk or tablespace is full; make room"
_MEMORY = "the server is out of memory"
_CONNECTIONS = "the server has no connection left for this user; raise max_connections, or lower max_size of the URL"
_METHOD = "the server wants a way of authentication that asyncmy does not have; give the user another one"

_YOURS = {
    1044: "this user may not use the database; grant it, or correct the URL",
    1045: _LET_IN,
    1049: "this database does not exist; create it, or correct the URL",
    1064: "it does not understand the SQL of the {what}; MariaDB 10.5 or MySQL 8.0.19 is needed, or later",
    1130: _LET_IN,
    1142: _RIGHTS,
    1143: _RIGHTS,
    NO_SUCH_TABLE: "the tables of the {what} are missing; run `{init}`",
    1251: _METHOD,
    1665: "its binlog_format is STATEMENT, which can't carry claims; set it to MIXED or ROW",
    1698: _LET_IN,
    2059: _METHOD,
    2061: _METHOD,
    3159: "the server takes connections with TLS only; write sslmode=verify-full into the URL",
    4151: _LET_IN,
}

_THEIRS = {
    0: _LOST,
    3: _DISK,
    1021: _DISK,
    1037: _MEMORY,
    1038: _MEMORY,
    1040: _CONNECTIONS,
    1041: _MEMORY,
    1047: "the server is not part of its cluster at the moment, or not ready; look at wsrep_cluster_status",
    1053: _ENDED,
    1114: _DISK,
    1153: "the exchange is larger than the server's max_allowed_packet; raise that to 1M or more",
    1203: _CONNECTIONS,
    1205: "an open transaction holds {held} for too long; look for it in information_schema.innodb_trx",
    1213: "the server found a deadlock each time it was asked; look at SHOW ENGINE INNODB STATUS",
    1226: _CONNECTIONS,
    1290: _READ_ONLY,
    1317: _ENDED,
    1792: _READ_ONLY,
    1836: _READ_ONLY,
    1927: _ENDED,
    1969: _SLOW,
    2006: _LOST,
    2013: _LOST,
    3024: _SLOW,
}


def problem_of(error: Exception) -> Problem:
    """Return what one of `FAILURES` means."""
    if isinstance(error, MySQLError):
        return _PROBLEMS.get(_code(error), Problem.REFUSED)
    return Problem.BUSY if isinstance(error, TimeoutError) else Problem.LOST


def as_store_error(
    error: Exception, address: str, timeout: float, what: str = "claim store", init: str = "ackwise store init URL"
) -> ConfigurationError | StoreUnavailable:
    """`error` as an `AckwiseError`; `address` is the store's, without secrets, `what` its tables belong to, and `init` what makes them."""
    code, cause = _code(error), error.__cause__
    if code == _UNREACHABLE and isinstance(cause, OSError):
        return _of_the_network(cause, address, timeout)
    if not isinstance(error, MySQLError):
        return _of_the_network(error, address, timeout)
    message = str(error.args[-1]) if error.args else ""
    if code is None:
        return StoreUnavailable(f"{address}: what answers does not speak MySQL's protocol ({message}); check host and port of the URL")
    for sentences, kind in ((_YOURS, ConfigurationError), (_THEIRS, StoreUnavailable)):
        if code in sentences:
            held = f"a row of the {what}" if what == OUTBOX.tables else "a claim of this batch"
            said = sentences[code].format(timeout=timeout, command=_command(message), what=what, init=init, held=held)
            return kind(f"{address}: {said}")
    return StoreUnavailable(f"{address}: the server refused ({code}: {_anonymous(message)})")


def _of_the_network(error: Exception, address: str, timeout: float) -> ConfigurationError | StoreUnavailable:
    match error:
        case ssl.SSLCertVerificationError():
            return ConfigurationError(
                f"{address}: its certificate is not trusted ({error.verify_message}); correct sslrootcert, or the host in the URL"
            )
        case ssl.SSLError() if error.reason == "WRONG_VERSION_NUMBER":
            return ConfigurationError(f"{address}: the server speaks no TLS, and sslmode asks for it; turn it on there")
        case ssl.SSLError():
            return StoreUnavailable(f"{address}: TLS failed ({error.reason}); check the certificates and sslmode on both sides")
        case TimeoutError():
            return StoreUnavailable(
                f"{address}: no answer within {timeout:g} s; see whether the server runs and the network lets us through"
            )
        case OSError():
            return StoreUnavailable(f"{address}: it can't be reached ({error.strerror or 'connection lost'}); start it, or correct the URL")
        case RuntimeError() if "package is required" in str(error):
            package = str(error).split("'")[1]
            return ConfigurationError(f"{address}: asyncmy needs {package} for the way this user is authenticated; pip install {package}")
        case RuntimeError():
            return StoreUnavailable(f"{address}: the store is being closed")
        case _:
            return StoreUnavailable(f"{address}: {_LOST}")


def _code(error: Exception) -> int | None:
    code = error.args[0] if isinstance(error, MySQLError) and error.args else None
    return code if isinstance(code, int) else None


def _command(message: str) -> str:
    """Return the denied right in brackets, without the user's name."""
    found = re.match(r"([A-Z, ]+) command denied", message)
    return f" ({found[1]})" if found else ""


def _anonymous(message: str) -> str:
    return re.sub(r"'[^']*'@'[^']*'", "this user", message)[:200]


_EMPTY: Final = Answer()


class AsyncmyRunner:
    """Each statement of a packet is one of the server's; `%s` stands for a value where there are values,
    and `%%` for a percent sign then.

    With `commits` each packet is committed by itself, for connections that are out of autocommit.
    """

    def __init__(self, connection: Connection, *, commits: bool = False) -> None:
        self._connection: Any = connection
        self._ends = "; COMMIT" if commits else ""

    async def send(self, packet: Packet) -> Sequence[Answer]:
        connection, answers = self._connection, list[Answer]()
        try:
            await connection.query("; ".join([text % tuple(literals(values)) if values else text for text, values in packet]) + self._ends)
            while True:
                # A cursor would be a detour of some calls for each statement, and ask for warnings in its own trip.
                found = connection._result
                rows, count = found.rows or (), found.affected_rows
                answers.append(Answer(rows, count) if rows or count > 0 else _EMPTY)
                if not found.has_next:
                    if not found.field_count or connection._deprecate_eof:  # else asyncmy has not read the status behind rows
                        connection.server_status = found.server_status  # out of autocommit, it passes over that nothing is open
                    return answers[: len(packet)]
                await connection.next_result()
        except FAILURES as error:
            raise Failure(problem_of(error), error) from error


_LITERALS: Final[dict[type, Callable[[Any], str]]] = {
    type(None): lambda _: "NULL",
    bool: lambda value: str(int(value)),
    int: int.__repr__,
    float: repr,
    str: lambda value: f"x'{value.encode().hex()}'",
    bytes: lambda value: f"x'{value.hex()}'",
    tuple: lambda value: f"({', '.join(literals(value))})",
    list: lambda value: ", ".join(literals(value)) or "NULL",
}


def literal(value: object) -> str:
    """Return `value` as SQL that no encoding and no mode of a session changes; texts and bytes as hexadecimal digits.

    A list is what stands in the brackets of IN, which finds nothing if it is empty; a tuple is a row.
    """
    kind = type(value)
    made = _LITERALS.get(kind) or next((made for base in kind.__mro__ if (made := _LITERALS.get(base)) is not None), None)
    if made is None:
        raise TypeError(f"no literal for a {kind.__name__}")
    return made(value)


def literals(values: Sequence[Any]) -> list[str]:
    """Return each of `values` so. The long way for those of a batch: a call for each of them would be a tenth of what it costs."""
    try:
        return [
            str(value)
            if (kind := type(value)) is int
            else f"x'{value.hex()}'"
            if kind is bytes
            else "NULL"
            if value is None
            else _LITERALS[kind](value)
            for value in values
        ]
    except KeyError:  # of a subclass
        return [literal(value) for value in values]


_SEEN: Final = "ackwise_watched"


class watched(Watch[Awaitable[object]]):
    """Lets `watcher` see what is executed on `connection`."""

    def __init__(self, connection: Connection, watcher: Watcher[Awaitable[object]]) -> None:
        super().__init__(vars(connection).get(_SEEN) or _Watched(MARIADB), watcher)
        self._connection: Any = connection

    def hook(self) -> None:
        vars(self._connection)[_SEEN] = self.watched
        self._connection.__class__ = _watching(self._connection.__class__)

    def unhook(self) -> None:
        self._connection.__class__ = self._connection.__class__.__mro__[1]
        del vars(self._connection)[_SEEN]


class _Watched(Watched[Awaitable[object]]):
    has_failed = False  #: a statement since we know that the transaction is open


@functools.cache
def _watching(kind: Any) -> type:
    """The subclass of a class of connections that looks at statements first; it has its name and nothing more in it."""

    async def prepare(self: Any, sql: str | bytes) -> Any:
        if vars(self)[_SEEN].effects(sql):
            raise ConfigurationError(PREPARED)
        return await kind.prepare(self, sql)

    methods: dict[str, Callable[..., Awaitable[Any]]] = {
        "query": lambda self, sql, unbuffered=False: _look(self, sql, lambda: kind.query(self, sql, unbuffered)),
        "prepare": prepare,
        "commit": lambda self: _look(self, "COMMIT", lambda: kind.commit(self)),
        "rollback": lambda self: _look(self, "ROLLBACK", lambda: kind.rollback(self)),
        "begin": lambda self: _look(self, "BEGIN", lambda: kind.begin(self)),
        "select_db": lambda self, db: _look(self, "USE db", lambda: kind.select_db(self, db)),
        "autocommit": lambda self, value: _look(self, f"SET autocommit = {int(bool(value))}", lambda: kind.autocommit(self, value)),
    }
    return type(kind.__name__, (kind,), {**methods, "__slots__": ()})


async def _look(connection: Any, packet: str | bytes, send: Callable[[], Awaitable[Any]]) -> Any:
    watched: _Watched = vars(connection)[_SEEN]
    is_alone = False
    if watched.has_failed and not watched.is_ours:
        # A deadlock undoes the transaction, and its error does not show that. An answer does.
        await connection.ping(reconnect=False)
        watched.has_failed = is_alone = not connection.get_transaction_status()
    try:
        return await (send() if watched.is_ours else execute(watched, packet, send, is_alone=is_alone))
    except MySQLError:
        watched.has_failed = True
        raise


_IDLE: Final = 300
"""Seconds after which an unused connection is replaced: proxies and firewalls forget such ones without a word."""


_CANCEL_AGAIN: Final = 0.01
"""Seconds."""

#: Whether `asyncio.wait_for` never passes over a cancellation.
_WAITS_RIGHT: Final = sys.version_info >= (3, 12)

_ENDING: Final[set[asyncio.Task[None]]] = set()


class Asyncmy(Driver["Pool", "Connection"]):
    """Connections to the server of `url`, `max_size` at most; or those of `given`, a pool that is not changed and not closed.

    `session` and `maintenance_session` give the SQL that connections of our own start with, for the timeout; they are in `autocommit` or
    not. `timeout` (seconds) bounds connecting and waiting for a connection. Raises `ConfigurationError`.
    """

    failures: tuple[type[Exception], ...] = FAILURES

    def __init__(
        self,
        purpose: Purpose,
        url: str | None,
        given: Pool | None,
        *,
        timeout: float,
        max_size: int,
        session: Callable[[float], str],
        maintenance_session: Callable[[float], str],
        autocommit: bool = True,
    ) -> None:
        purpose.require_sense("MySQL", "mysql://host/database", url, given, timeout, max_size)
        self.server = None if url is None else Address.of(url)
        super().__init__(purpose, str(self.server or "the pool's MySQL"), given, timeout)
        self._max_size, self._session, self._maintenance_session, self._autocommit = max_size, session, maintenance_session, autocommit

    async def make_pool(self) -> Pool:
        options = self._options(self._session(self.timeout))
        return await asyncmy.create_pool(minsize=0, maxsize=self._max_size, pool_recycle=_IDLE, **options)

    async def acquire(self, pool: Pool) -> Connection:

        async def give_back(connection: Connection) -> None:
            connection.close()
            await pool.release(connection)

        if _WAITS_RIGHT:
            return await pool.acquire()
        return await at_once(pool.acquire(), lambda rest: _connected(rest, give_back))

    async def close_pool(self, pool: Pool) -> None:
        pool.close()
        await pool.wait_closed()

    def in_use(self, pool: Pool) -> int | None:
        return pool.size if pool.size >= pool.maxsize else None

    async def expire(self, pool: Pool) -> None:
        await pool.clear()

    async def connect(self) -> Connection:
        async with asyncio.timeout(self.timeout):
            return await _connected(_connect(self._options(self._maintenance_session(self.timeout))), _closed)

    async def disconnect(self, connection: Connection) -> None:
        await connection.ensure_closed()

    def is_usable(self, connection: Connection, error: BaseException) -> bool:  # of the protocol
        """Return `False`: what the server answered before the error may still be unread, or a transaction open."""
        return False

    def cut(self, connection: Connection) -> None:
        connection.close()

    def runner(self, connection: Connection) -> AsyncmyRunner:
        return AsyncmyRunner(connection, commits=not connection.get_autocommit())

    def problem(self, error: Exception) -> Problem:
        return problem_of(error)

    def as_store_error(self, error: Exception, timeout: float) -> ConfigurationError | StoreUnavailable:
        return as_store_error(error, self.address, timeout, self.purpose.tables, self.purpose.init)

    def _options(self, session: str) -> dict[str, Any]:
        assert self.server is not None
        ours = {"autocommit": self._autocommit, "connect_timeout": self.timeout, "init_command": session, "program_name": "ackwise"}
        return {**self.server.connecting(), **ours}


async def _connect(options: dict[str, Any]) -> Connection:
    return await asyncmy.connect(**options)


async def _closed(connection: Connection) -> None:
    connection.close()


async def _connected(connecting: Coroutine[Any, Any, Connection], undo: Callable[[Connection], Awaitable[None]]) -> Connection:
    """Return the connection; a cancelled caller gets none: asyncmy is cancelled until it ends, and `undo` takes what it brings.

    It connects in `asyncio.wait_for`, which before Python 3.12 passes over a cancellation that comes together with the connection. Then
    it would wait for the first word of a server for as long as that says nothing.
    """
    task = asyncio.create_task(connecting, name="ackwise connects to MySQL")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        ending = asyncio.create_task(_end(task, undo), name="ackwise gives up a connection to MySQL")
        _ENDING.add(ending)  # the event loop itself keeps no tasks alive
        ending.add_done_callback(_ENDING.discard)
        await asyncio.shield(ending)
        raise


async def _end(task: asyncio.Task[Connection], undo: Callable[[Connection], Awaitable[None]]) -> None:
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN)
    if not task.cancelled() and task.exception() is None:
        await undo(task.result())
