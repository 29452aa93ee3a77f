"""`ReplicationConnection`: PostgreSQL's replication protocol over libpq, which psycopg wraps.

libpq opens the connection: TLS, SCRAM with channel binding, password files, several hosts. asyncpg and psycopg's own
API have no replication; `psycopg.pq` has the two calls that it needs, `get_copy_data` and `put_copy_data`.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import pq, sql

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.changes import SourceBusy, UnreadableChange

#: PostgreSQL counts microseconds from 2000-01-01.
_EPOCH_2000: Final = 946_684_800

_LOG_DATA: Final = struct.Struct("!cQQq")
_KEEPALIVE: Final = struct.Struct("!cQqB")
_STATUS: Final = struct.Struct("!cQQQqB")


#: Seconds until libpq is asked again, though the socket is silent.
_LOOK_AGAIN: Final = 1.0

#: How values are written, whatever the database, the role or the environment say: what PostgreSQL's own subscribers set, and what else
#: changes a text. Names of tables and types in values have their schema.
_WRITTEN: Final = b"""
SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; SET extra_float_digits = 3; SET bytea_output = 'hex';
SET quote_all_identifiers = off; SET search_path = ''
"""

#: Bytes that are received at once, so that large rows don't fill the memory; one row may be larger.
_MOST_BYTES: Final = 4 * 2**20


class LogData(NamedTuple):
    """A piece of the log: one message of the output plug-in."""

    start: int
    payload: bytes


class Keepalive(NamedTuple):
    """The server has sent everything that there is before `end`; `wants_reply` if it would like to hear from us at once."""

    end: int
    wants_reply: bool


def parse_frame(data: bytes) -> LogData | Keepalive:
    """Return the message in one CopyData. Raise `ValueError`."""
    if data[:1] == b"w" and len(data) >= _LOG_DATA.size:
        return LogData(_LOG_DATA.unpack_from(data)[1], data[_LOG_DATA.size :])
    if data[:1] == b"k" and len(data) == _KEEPALIVE.size:
        _, end, _, wants_reply = _KEEPALIVE.unpack(data)
        return Keepalive(end, wants_reply != 0)
    raise ValueError(f"the stream has {len(data)} bytes that are neither log data nor a keepalive")


def status_update(done: int) -> bytes:
    """Tell the server that everything before `done` was written, flushed and applied, so that it needs that no more."""
    return _STATUS.pack(b"r", done, done, done, int((time.time() - _EPOCH_2000) * 1e6), 0)


class ReplicationConnection:
    """A connection that reads the log. `address` is what errors name; `timeout` (seconds) bounds connecting and each command."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], address: str, timeout: float) -> None:
        self._connection, self._address, self._timeout = connection, address, timeout
        self._pq = connection.pgconn
        self.codec = "utf-8"  #: Python's name of the encoding of what is received.

    @classmethod
    async def connect(cls, url: str, *, address: str, timeout: float) -> ReplicationConnection:
        """Connect to the database of `url` for replication. Raises `StoreUnavailable` or `ConfigurationError`."""
        primary = {} if "target_session_attrs" in url else {"target_session_attrs": "read-write"}
        settings: dict[str, Any] = {
            "replication": "database",
            "client_encoding": "UTF8",
            "fallback_application_name": "ackwise cdc",
            **primary,
        }
        with _errors(address, timeout):
            async with asyncio.timeout(timeout):
                return cls(await psycopg.AsyncConnection.connect(url, autocommit=True, **settings), address, timeout)

    async def identify(self) -> tuple[str, int]:
        """The system identifier and the timeline of the server."""
        row = await self._ask(sql.SQL("IDENTIFY_SYSTEM"))
        return str(row[0]), int(row[1])

    async def start(self, slot: str, publication: str) -> None:
        """Start to read where the slot stands: after what was acknowledged last."""
        # Names of publications in a text: the grammar of this command knows no other way to quote than doubling.
        names = ('"' + publication.replace('"', '""') + '"').replace("'", "''")
        command = f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '{names}')"
        with _errors(self._address, self._timeout):
            async with asyncio.timeout(self._timeout):
                await self._connection.execute(_WRITTEN)
                self.codec = await self._take_as_stored()
                await self._connection.execute(command.encode(self.codec))
        self._pq.nonblocking = 1

    async def _take_as_stored(self) -> str:
        """Receive texts in the encoding of the database: the server fails at bytes that it can't convert, at each start again."""
        stored = (self._pq.parameter_status(b"server_encoding") or b"UTF8").decode()
        await self._connection.execute(f"SET client_encoding = '{stored}'".encode())
        try:
            codec = self._connection.info.encoding
        except psycopg.NotSupportedError:  # Python can't read it, so the server converts
            await self._connection.execute(b"SET client_encoding = 'UTF8'")
            return "utf-8"
        return "utf-8" if codec == "ascii" else codec  # SQL_ASCII is any bytes

    async def receive(self, limit: int) -> list[bytes]:
        """Wait for messages of the server and return `limit` at most, or none after a silent second.

        Raise `StoreUnavailable` at the end of the connection.
        """
        with _errors(self._address, self._timeout):
            received: list[bytes] = []
            room, has_asked, has_waited = _MOST_BYTES, False, False
            while len(received) < limit and room > 0:
                length, data = self._pq.get_copy_data(1)
                if length > 0:
                    received.append(bytes(data))
                    room -= length
                    has_asked = False
                elif length < 0:
                    self._raise_end(length)
                elif has_asked and (received or has_waited):
                    break
                else:
                    if has_asked:
                        await self._wait_readable()
                        has_waited = True
                    self._pq.consume_input()
                    has_asked = True
            return received

    def _raise_end(self, length: int) -> None:
        if length == -2:
            raise psycopg.OperationalError(pq.misc.error_message(self._pq))
        result = self._pq.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
        raise psycopg.OperationalError("the server ended the stream")

    async def _wait_readable(self) -> None:
        loop, socket = asyncio.get_running_loop(), self._pq.socket
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(socket, _set, readable)
        try:  # TLS may have read more from the socket than libpq took from it, without any notice
            await asyncio.wait({readable}, timeout=_LOOK_AGAIN)
        finally:
            loop.remove_reader(socket)

    def send(self, data: bytes) -> None:
        """Send without waiting; what does not fit into the socket goes with the next call. Raises `StoreUnavailable`."""
        with _errors(self._address, self._timeout):
            self._pq.put_copy_data(data)
            self._pq.flush()

    async def close(self) -> None:
        """Send what is left, and disconnect. Raises nothing."""
        with contextlib.suppress(psycopg.Error, OSError):
            self._pq.flush()
        with contextlib.suppress(psycopg.Error, OSError):
            await self._connection.close()

    async def _ask(self, command: sql.SQL) -> tuple[Any, ...]:
        with _errors(self._address, self._timeout):
            async with asyncio.timeout(self._timeout):
                row = await (await self._connection.execute(command)).fetchone()
        if row is None:
            raise StoreUnavailable(f"{self._address}: the server gave no answer to {command.as_string()}")
        return tuple(row)


def _set(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


@contextlib.contextmanager
def _errors(address: str, timeout: float) -> Iterator[None]:
    """Raise our error for the driver's. Checks with better sentences have gone before; what is left here is tried again."""
    try:
        yield
    except psycopg.errors.ObjectInUse as error:
        raise SourceBusy(f"{address}: another relay reads from the slot ({_told(error)})") from None
    except psycopg.errors.UndefinedObject as error:
        raise ConfigurationError(
            f"{address}: {_told(error)}; if the publication is there, it was made after the slot, which can't look that far back: "
            "drop the slot, and let `ackwise cdc URL --create-slot --replace-lost-slot` make it after the publication"
        ) from None
    except psycopg.ProgrammingError as error:
        if error.sqlstate is None:  # libpq can't read the URL, and may quote it
            raise ConfigurationError(
                f"{address}: libpq can't read the URL; check its port, its sslmode and the files that it names"
            ) from None
        raise StoreUnavailable(f"{address}: PostgreSQL refused ({error.sqlstate}: {_told(error)})") from None
    except psycopg.DataError as error:  # it comes again at each start
        raise UnreadableChange(f"{address}: PostgreSQL can't write a value of the log ({error.sqlstate}: {_told(error)})") from None
    except psycopg.Error as error:
        raise StoreUnavailable(f"{address}: the replication connection failed ({_told(error)})") from None
    except TimeoutError:
        raise StoreUnavailable(
            f"{address}: no answer within {timeout} s; see whether the server runs and the network lets us through"
        ) from None
    except OSError as error:
        raise StoreUnavailable(f"{address}: it can't be reached ({error.strerror or 'connection lost'})") from None


def _told(error: psycopg.Error) -> str:
    """The server's own sentence, or libpq's last line, in which no secret is."""
    lines = [error.diag.message_primary or "", *str(error).splitlines()[::-1]]
    return next((line.strip() for line in lines if line.strip()), "connection lost")
