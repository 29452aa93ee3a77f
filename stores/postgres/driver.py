"""`Asyncpg` connects to a PostgreSQL server, `AsyncpgRunner` sends packets one statement at a time; errors get our sentences.

Error texts never contain a secret. `connection.transaction()` inside another is a savepoint, and no public hook of asyncpg runs before it
opens: query loggers run afterwards, and later than the caller's next line. So while a connection is watched its class is a subclass whose
`execute` and `fetch…` call the watchers first. Afterwards the class is restored.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import asyncpg
from asyncpg import Record

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.postgres.url import address_of
from ackwise.stores.protocol.options import Purpose
from ackwise.stores.sql.connections import MAINTENANCE_TIMEOUT, Driver
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem
from ackwise.stores.sql.watching import POSTGRES, PREPARED, Watch, Watched, Watcher, execute

if TYPE_CHECKING:
    from asyncpg import Connection, Pool
    from asyncpg.pool import PoolConnectionProxy


#: What asyncpg raises, and what the network below it does. The server's errors are `PostgresError`, asyncpg's own the next two.
FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

_PROBLEMS = {
    "40001": Problem.CONFLICT,
    "40P01": Problem.CONFLICT,
    "08": Problem.LOST,
    "57P": Problem.LOST,
    "25006": Problem.LOST,  # it became a standby
    "26000": Problem.LOST,  # it forgot our prepared statements
    "55P03": Problem.BUSY,
    "57014": Problem.BUSY,
    "25P02": Problem.ENDED,
    "3B001": Problem.ENDED,
    "42P01": Problem.MISSING,
    "3F000": Problem.MISSING,
    "23505": Problem.DUPLICATE,
    "42501": Problem.FORBIDDEN,
}
"""The start of an SQLSTATE, and what it means; the first that fits."""

_YOURS = {
    "28P01": "the password is wrong; correct it in the URL",
    "28": "PostgreSQL does not let this user in; check user and password of the URL, and pg_hba.conf",
    "3D000": "this database does not exist; create it, or correct the URL",
    "42501": "this user may not do what the {what} needs ({message}); let an owner run `{init}`, then grant "
    "SELECT, INSERT, UPDATE and DELETE on the tables of the {what}",
    "42P01": "the tables of the {what} are missing; run `{init}`",
    "3F000": "the schema of the {what} is missing; run `{init}`",
    "08P01": "what answers does not take our connection ({message}); behind PgBouncer write statement_cache_size=0 into the URL",
}
"""The start of an SQLSTATE, and its sentence; the first match applies."""

_THEIRS = {
    "25006": "the server takes no writes; it is a standby or default_transaction_read_only is on: name the primary, or all hosts of it",
    "53100": "the server's disk is full; make room",
    "53200": "the server is out of memory ({message})",
    "53300": "the server has no connection left; raise max_connections, or lower max_size of the URL",
    "55P03": "an open transaction holds a claim of this batch for longer than {timeout} s; look for it in pg_stat_activity",
    "57014": "the server did not finish within {timeout} s; see what holds it up in pg_stat_activity",
    "57P": "the server is starting or stopping ({message})",
    "40": "the server found a deadlock or a conflict each time it was asked ({message})",
    "08": "the connection was lost; it is made again with the next exchange",
}


def problem_of(error: Exception) -> Problem:
    """Return what one of `FAILURES` means."""
    if isinstance(error, asyncpg.PostgresError):
        return next((problem for state, problem in _PROBLEMS.items() if _state(error).startswith(state)), Problem.REFUSED)
    if isinstance(error, TimeoutError):
        return Problem.BUSY
    if isinstance(error, asyncpg.InterfaceError) and "another operation is in progress" in str(error):
        return Problem.ENDED
    return Problem.REFUSED if isinstance(error, ValueError) else Problem.LOST


def as_store_error(
    error: Exception, address: str, timeout: float, what: str = "claim store", init: str = "ackwise store init URL"
) -> ConfigurationError | StoreUnavailable:
    """`error` as an `AckwiseError`; `address` is the store's, without secrets, `what` its tables belong to, and `init` what makes them."""
    if isinstance(error, asyncpg.PostgresError):
        for sentences, kind in ((_YOURS, ConfigurationError), (_THEIRS, StoreUnavailable)):
            for state, sentence in sentences.items():
                if _state(error).startswith(state):
                    return kind(f"{address}: {sentence.format(message=error.args[0], timeout=timeout, what=what, init=init)}")
        return StoreUnavailable(f"{address}: PostgreSQL refused ({_state(error)}: {error.args[0]})")
    return _of_the_network(error, address, timeout)


def _of_the_network(error: Exception, address: str, timeout: float) -> ConfigurationError | StoreUnavailable:
    match error:
        case ssl.SSLCertVerificationError():
            return ConfigurationError(
                f"{address}: its certificate is not trusted ({error.verify_message}); correct sslrootcert, or the host in the URL"
            )
        case ssl.SSLError():
            return StoreUnavailable(f"{address}: TLS failed ({error.reason}); check the certificates and sslmode on both sides")
        case asyncpg.TargetServerAttributeNotMatched():
            return StoreUnavailable(f"{address}: {_THEIRS['25006']}")
        case TimeoutError():
            return StoreUnavailable(f"{address}: no answer within {timeout} s; see whether the server runs and the network lets us through")
        case ConnectionError() if "SSL" in str(error):
            return ConfigurationError(f"{address}: the server speaks no TLS, and sslmode asks for it; turn ssl on there")
        case FileNotFoundError():
            return ConfigurationError(f"{address}: a file is not there: the server's socket, or a certificate or key of the URL")
        case OSError():
            return StoreUnavailable(f"{address}: it can't be reached ({error.strerror or 'connection lost'}); start it, or correct the URL")
        case asyncpg.DataError():
            return StoreUnavailable(f"{address}: a value of the exchange does not fit its column; report this")
        case ValueError():
            # What asyncpg says here may quote the URL.
            return ConfigurationError(f"{address}: asyncpg can't read the URL; check its port, its sslmode and the files that it names")
        case _:
            return StoreUnavailable(f"{address}: the connection was lost; it is made again with the next exchange")


def _state(error: asyncpg.PostgresError) -> str:
    return str(getattr(error, "sqlstate", None) or "")


#: Statements that answer with rows.
_HAS_ROWS: Final = re.compile(
    r"\s*(?:(?:select|show|table|values|with)\b|(?:insert|update|delete)\b.*\breturning\b)", re.IGNORECASE | re.DOTALL
)


class AsyncpgRunner:
    """Codecs and classes that the connection was given have no part in the answers, which nothing public of asyncpg can leave out."""

    def __init__(self, connection: Connection | PoolConnectionProxy, timeout: float | None = None) -> None:
        self._connection: Any = getattr(connection, "_con", None) or connection
        self._timeout = timeout

    async def send(self, packet: Packet) -> Sequence[Answer]:
        raw, answers = self._connection, list[Answer]()
        try:
            for text, values in packet:
                rows: Sequence[Any] = ()
                if values or _has_rows(text):
                    raw._check_open()
                    rows, said, _ = await raw._execute(
                        text, values, 0, self._timeout, return_status=True, ignore_custom_codec=True, record_class=Record
                    )
                    status = said.decode()
                else:
                    status = await raw.execute(text, timeout=self._timeout)
                count = status.rpartition(" ")[2]
                answers.append(Answer(rows, int(count) if count.isdecimal() else 0))
        except FAILURES as error:
            raise Failure(problem_of(error), error) from error
        return answers


@functools.lru_cache(1024)
def _has_rows(text: str) -> bool:
    return _HAS_ROWS.match(text) is not None


async def commit(connection: Connection | PoolConnectionProxy) -> None:
    """Commit the transaction that asyncpg has started. Raises what asyncpg raises.

    asyncpg passes over the answer: to the COMMIT of a broken transaction it is ROLLBACK, and no error.
    """
    raw: Any = getattr(connection, "_con", None) or connection
    raw._top_xact = None
    if await raw.execute("COMMIT;") == "ROLLBACK":
        raise asyncpg.InFailedSQLTransactionError("PostgreSQL answered COMMIT with ROLLBACK")


_METHODS: Final = ("execute", "executemany", "fetch", "fetchrow", "fetchval", "fetchmany")

_WATCHED: Final[WeakKeyDictionary[Any, Watched[Awaitable[object]]]] = WeakKeyDictionary()


class watched(Watch[Awaitable[object]]):
    """Lets `watcher` see what is executed on `connection`."""

    def __init__(self, connection: Connection | PoolConnectionProxy, watcher: Watcher[Awaitable[object]]) -> None:
        # A pool's proxy calls the methods of the class of what it stands for.
        self._raw: Any = getattr(connection, "_con", None) or connection
        super().__init__(_WATCHED.get(self._raw) or _WATCHED.setdefault(self._raw, Watched(POSTGRES)), watcher)

    def hook(self) -> None:
        self._raw.__class__ = _watching(self._raw.__class__)

    def unhook(self) -> None:
        self._raw.__class__ = self._raw.__class__.__mro__[1]


@functools.cache
def _watching(kind: type) -> type:
    """The subclass of a class of connections that looks at statements first; it has its name and nothing more in it."""
    methods: dict[str, Any] = {name: _looking(getattr(kind, name)) for name in _METHODS}
    return type(kind)(kind.__name__, (kind,), {**methods, "prepare": _refusing(kind.prepare), "__slots__": ()})  # type: ignore[attr-defined]


def _looking(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def look(self: Any, statement: str, *args: Any, **kwargs: Any) -> Any:
        return await execute(_WATCHED[self], statement, lambda: method(self, statement, *args, **kwargs))

    return look


def _refusing(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A prepared statement is executed past the connection."""

    @functools.wraps(method)
    async def prepare(self: Any, statement: str, *args: Any, **kwargs: Any) -> Any:
        if _WATCHED[self].effects(statement):
            raise ConfigurationError(PREPARED)
        return await method(self, statement, *args, **kwargs)

    return prepare


#: Connections on their way for callers that have gone; the event loop itself keeps no tasks alive.
_ABANDONED: Final[set[asyncio.Task[Any]]] = set()


class Asyncpg(Driver["Pool", "PoolConnectionProxy"]):
    """Connections to the server of `url`, `max_size` at most; or those of `given`, a pool that is not changed and not closed.

    `session` and `maintenance_session` are settings that connections of our own start with; behind PgBouncer, which
    `statement_cache_size=0` says, none are made. `timeout` (seconds) bounds connecting and waiting for a connection;
    `is_bounded` lets the server end each statement before that too. `reset` restores a returned connection, in place of
    asyncpg's own way. Raises `ConfigurationError`.
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
        statement_cache_size: int,
        session: Mapping[str, str],
        maintenance_session: Mapping[str, str],
        is_bounded: bool,
        reset: Callable[[Connection], Awaitable[None]] | None = None,
    ) -> None:
        purpose.require_sense("PostgreSQL", "postgresql://host/database", url, given, timeout, max_size)
        if statement_cache_size < 0:
            raise ConfigurationError(f"statement_cache_size is {statement_cache_size}; give 0 behind PgBouncer, otherwise leave it out")
        super().__init__(purpose, "the pool's PostgreSQL" if url is None else address_of(url), given, timeout)
        self._url, self._max_size, self._cache = url, max_size, statement_cache_size
        self._session = {**session, **_limits(timeout)} if is_bounded else session
        self._maintenance_session, self._reset = maintenance_session, reset

    async def make_pool(self) -> Pool:
        options = self._options(self._session)
        return await asyncpg.create_pool(self._url, min_size=0, max_size=self._max_size, reset=self._reset, connect=_connect, **options)

    async def release(self, pool: Pool, connection: PoolConnectionProxy) -> None:
        # It cuts the connection then. What has nothing to reset needs no timer; a pool that was given resets in its own way.
        await pool.release(connection, timeout=None if self._reset is nothing and self.given is None else self.timeout)

    async def close_pool(self, pool: Pool) -> None:
        await pool.close()

    def in_use(self, pool: Pool) -> int | None:
        return pool.get_size() if not pool.get_idle_size() and pool.get_size() == pool.get_max_size() else None

    async def expire(self, pool: Pool) -> None:
        await pool.expire_connections()

    async def connect(self) -> PoolConnectionProxy:
        connection: PoolConnectionProxy = await _connect(
            self._url, command_timeout=MAINTENANCE_TIMEOUT, **self._options(self._maintenance_session)
        )
        return connection

    async def disconnect(self, connection: PoolConnectionProxy) -> None:
        self.cut(connection)

    def is_usable(self, connection: PoolConnectionProxy, error: BaseException) -> bool:
        return isinstance(error, asyncpg.PostgresError) and problem_of(error) is not Problem.LOST and not connection.is_in_transaction()

    def cut(self, connection: PoolConnectionProxy) -> None:
        with contextlib.suppress(asyncpg.InterfaceError):  # a lost one has left the pool already
            connection.terminate()

    def runner(self, connection: PoolConnectionProxy) -> AsyncpgRunner:
        return AsyncpgRunner(connection)

    def problem(self, error: Exception) -> Problem:
        return problem_of(error)

    def as_store_error(self, error: Exception, timeout: float) -> ConfigurationError | StoreUnavailable:
        return as_store_error(error, self.address, timeout, self.purpose.tables, self.purpose.init)

    def _options(self, session: Mapping[str, str]) -> dict[str, Any]:
        names_servers = "target_session_attrs" in (self._url or "")
        return {
            "timeout": self.timeout,
            "statement_cache_size": self._cache,
            "server_settings": dict(session) if self._cache else None,
            **({} if names_servers else {"target_session_attrs": "read-write"}),
        }


async def nothing(connection: Connection) -> None:
    """In place of asyncpg's reset of a returned connection, which is a round trip."""


def _limits(timeout: float) -> dict[str, str]:
    """The server gives up first, so that it says what it waited for."""
    milliseconds = int(timeout * 1000)
    return {"lock_timeout": str(milliseconds * 8 // 10), "statement_timeout": str(milliseconds * 9 // 10)}


async def _connect(*args: Any, **options: Any) -> Any:
    """Connect as `asyncpg.connect` does, which ends by its own timeout; a caller that is cancelled leaves at once, and the rest goes on.

    Cut short, asyncpg leaves a future behind that is never retrieved (`TLSUpgradeProto.on_data`), and the event loop logs
    "Future exception was never retrieved". So the connection is made to its end, and then ended.
    """
    making = asyncio.create_task(_made(args, options), name="ackwise connects to PostgreSQL")
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        _ABANDONED.add(making)
        making.add_done_callback(_terminate)
        raise


async def _made(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    try:
        return await asyncpg.connect(*args, **options)
    except FAILURES:  # some are a ValueError, too
        raise
    except ValueError:  # of the URL, which it may quote
        raise asyncpg.ClientConfigurationError("unreadable") from None


def _terminate(made: asyncio.Task[Any]) -> None:
    _ABANDONED.discard(made)
    if not made.cancelled() and made.exception() is None:
        made.result().terminate()
