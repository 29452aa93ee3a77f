"""`BinlogConnection`: a connection on which the server sends its binary log, and the server's settings for that log.

asyncmy opens the connection and reads packets. Its own reader of the log is not used: it reconnects by itself at its last event, drops rows
whose table it does not know there, takes the names of columns from information_schema, which has today's, and drops unknown events,
such as compressed rows.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import struct
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import asyncmy
from asyncmy.connection import Connection
from asyncmy.errors import MySQLError

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.changes import ChangesLost, SourceBusy
from ackwise.stores.mysql.binlog.position import Place, number_of
from ackwise.stores.mysql.binlog.rows import Bytewise
from ackwise.stores.mysql.driver import FAILURES, as_store_error
from ackwise.stores.mysql.schema import server
from ackwise.stores.mysql.url import Address
from ackwise.stores.protocol.outbox import text_of
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps

_BINLOG_DUMP: Final = 0x12

#: Bytes that are received ahead; one event may be larger.
_MOST_BYTES: Final = 4 * 2**20

#: The server can't read what was asked for. Its message says why.
_CAN_NOT_READ: Final = 1236
_MAY_NOT: Final = (1142, 1227)

#: Another reader with our server id was let in; the server has one of each.
_SAME_ID: Final = 4052

#: We know checksums, and MariaDB's own events in place of what older servers would understand.
_SAY: Final = (
    "SET @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum, "
    "@mariadb_slave_capability = 4"
)


class BinlogConnection:
    """Reads the log from a place on. `address` is the server's, `timeout` (seconds) bounds connecting.

    `silence` are the seconds without an event after which the connection is taken for lost: the source writes a heartbeat more often.
    """

    def __init__(self, address: Address, *, server_id: int, timeout: float, silence: float) -> None:
        self._address, self._server_id, self._timeout, self._silence = address, server_id, timeout, silence
        self._connection: Connection | None = None
        self._pumping: asyncio.Task[None] | None = None
        self._packets: deque[bytes] = deque()
        self._size = 0
        self._arrived, self._has_room = asyncio.Event(), asyncio.Event()
        self._error: Exception | None = None

    async def start(self, place: Place) -> None:
        """Connect, and ask for the log. What the server has against it is raised by `receive`. Raises `StoreUnavailable` or
        `ConfigurationError`."""
        options: dict[str, Any] = {**self._address.connecting(), "connect_timeout": self._timeout, "program_name": "ackwise cdc"}
        try:
            async with asyncio.timeout(self._timeout):
                connection = self._connection = await asyncmy.connect(**options)
                async with connection.cursor() as cursor:
                    await cursor.execute(_SAY)
            command = struct.pack("<BIHI", _BINLOG_DUMP, place.position, 0, self._server_id) + place.file.encode()
            connection._next_seq_id = 0  # type: ignore[attr-defined]  # a new command starts, and asyncmy sends no such one by itself
            connection.write_packet(command)
        except FAILURES as error:
            raise self._as_ours(error) from None
        self._pumping = asyncio.create_task(self._pump(connection), name="ackwise receives the log")

    async def receive(self, limit: int) -> list[bytes]:
        """The next packets, `limit` at most; waits for the first. Raises `ChangesLost`, `ConfigurationError` or `StoreUnavailable`."""
        try:
            async with asyncio.timeout(self._silence):
                while not self._packets:
                    if self._error is not None:
                        raise self._as_ours(self._error)
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise StoreUnavailable(
                f"{self._address}: the log has said nothing for {self._silence:g} s, not even of our heartbeat; it is opened again"
            ) from None
        packets = [self._packets.popleft() for _ in range(min(limit, len(self._packets)))]
        self._size -= sum(map(len, packets))
        self._has_room.set()
        return packets

    async def close(self) -> None:
        """Disconnect. Raises nothing."""
        pumping, self._pumping = self._pumping, None
        if pumping is not None:
            pumping.cancel()
            await asyncio.wait({pumping})
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*FAILURES):
                connection.close()

    async def _pump(self, connection: Connection) -> None:
        """Take packets from the driver, which waits for the network only where none has come whole."""
        try:
            while True:
                packet = await connection.read_packet()
                if packet.is_eof_packet():
                    raise StoreUnavailable(f"{self._address}: the server ended the stream of its log")
                data = packet.get_all_data()
                self._packets.append(data)
                self._size += len(data)
                self._arrived.set()
                if self._size > _MOST_BYTES:
                    self._has_room.clear()
                    await self._has_room.wait()
        except (*FAILURES, StoreUnavailable) as error:
            self._error = error
            self._arrived.set()

    def _as_ours(self, error: Exception) -> Exception:
        code = error.args[0] if isinstance(error, MySQLError) and error.args else None
        said = str(error.args[-1]) if error.args else ""
        if code == _SAME_ID or (code == _CAN_NOT_READ and "server_id" in said):
            return SourceBusy(f"{self._address}: another reader of the log came with our server id {self._server_id}")
        if code == _CAN_NOT_READ:
            return self._of_the_log(said)
        if code in _MAY_NOT:
            return ConfigurationError(f"{self._address}: this user may not read the log; GRANT REPLICATION SLAVE ON *.* TO this user")
        if isinstance(error, StoreUnavailable):
            return error
        return as_store_error(error, str(self._address), self._timeout, "change data capture", "ackwise cdc URL --create-slot")

    def _of_the_log(self, said: str) -> Exception:
        if "max_allowed_packet" in said:
            return ConfigurationError(f"{self._address}: an event of the log is larger than max_allowed_packet; raise it on the server")
        return ChangesLost(f"{self._address}: the server can't send the log from where it was read last ({said})")


#: Seconds of log below which a relay that stays away is in danger.
_SHORT: Final = 86400

_NEEDED: Final = (
    ("log_bin", ("ON",), "the binary log is off; start the server with log_bin"),
    ("binlog_format", ("ROW",), "binlog_format is {found}; set it to ROW, and let the applications connect again"),
    ("binlog_row_image", ("FULL",), "binlog_row_image is {found}; set it to FULL, and let the applications connect again"),
    ("binlog_row_metadata", ("FULL",), "binlog_row_metadata is {found}, so the log does not name columns; set it to FULL"),
    ("log_bin_compress", ("OFF", ""), "log_bin_compress is {found}, which is not read; turn it off"),
    ("binlog_transaction_compression", ("OFF", ""), "binlog_transaction_compression is {found}, which is not read; turn it off"),
    ("binlog_row_value_options", ("",), "binlog_row_value_options is {found}, which is not read; empty it"),
)

_ASKED: Final = (*(name for name, _, _ in _NEEDED), "server_id", "server_uuid", "sync_binlog", "binlog_expire_logs_seconds")

#: Python's names of character sets where they differ; `None` is for bytes.
_ENCODINGS: Final[Mapping[str, str | None]] = {
    "binary": None,
    "latin1": "cp1252",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "euckr": "cp949",
    "ujis": "euc-jp",
    "sjis": "shift-jis",
}


class Settings(NamedTuple):
    """The settings of the server that a reader needs."""

    server: str
    """Identifies the server, with the start times of its files: MySQL's uuid, or the server_id."""
    server_id: int
    syncs: bool
    expires: int
    """Seconds that the log is kept; 0 is forever."""


class Log(NamedTuple):
    """The files of the log with their sizes, in order."""

    files: Sequence[tuple[str, int]]

    def behind(self, place: Place) -> int | None:
        """Bytes from `place` to the end; `None` if its file is gone."""
        if place.file not in dict(self.files):
            return None
        return max(0, sum(size for file, size in self.files if number_of(file) >= place.number) - place.position)


def settings(address: str) -> Steps[Settings]:
    """The settings. Raises `ConfigurationError` with what to change."""
    names = ", ".join(f"'{name}'" for name in _ASKED)
    (said,) = yield [Statement(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")]
    found: dict[str, str] = {name: value for name, value in said.rows}  # noqa: C416
    for name, allowed, sentence in _NEEDED:
        if found.get(name, "") not in allowed:
            raise ConfigurationError(
                f"{address}: change data capture can't read the log: {sentence.format(found=found.get(name, 'missing'))}"
            )
    server_id = int(found["server_id"])
    if server_id == 0:
        raise ConfigurationError(f"{address}: server_id is 0, and the server sends its log to no reader then; give it one, such as 1")
    expires = int(found.get("binlog_expire_logs_seconds") or 0)
    return Settings(found.get("server_uuid") or str(server_id), server_id, found.get("sync_binlog") == "1", expires)


def require_own_id(server_id: int, address: str) -> Steps[None]:
    """Raise `ConfigurationError` if a replica has our server id: the server would end the connection of one for the other."""
    try:
        (replicas,) = yield [Statement("SHOW SLAVE HOSTS")]
    except Failure:  # no right to ask, or MySQL 8.4, which has another word for it
        return
    if any(int(replica[0]) == server_id for replica in replicas.rows):
        raise ConfigurationError(f"{address}: a replica has the server id {server_id}, which is ours by our name; choose another --slot")


def end_of_log(address: str) -> Steps[Place]:
    """Where the log ends now, between two transactions. Raises `ConfigurationError` for a missing right."""
    file, position, *_ = (yield from _asked(address, "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"))[0]
    return Place(number_of(file), int(position), file, 0)


def require_logged(address: str, databases: Collection[str]) -> Steps[None]:
    """Raise `ConfigurationError` if the log leaves out one of these databases."""
    _, _, only, ignored, *_ = (yield from _asked(address, "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"))[0]
    for database in left_out(databases, only, ignored):
        raise ConfigurationError(
            f"{address}: the log leaves out the database {database}; correct binlog_do_db and binlog_ignore_db of the server"
        )


def left_out(databases: Collection[str], only: str, ignored: str) -> list[str]:
    """Return the `databases` that a log with these lists omits; the lists are comma-separated, as the server shows them."""
    return [each for each in databases if (only and each not in only.split(",")) or each in ignored.split(",")]


def log_files(address: str) -> Steps[Log]:
    """The files of the log. Raises `ConfigurationError` for a missing right."""
    return Log([(row[0], int(row[1])) for row in (yield from _asked(address, "SHOW BINARY LOGS"))])


def _asked(address: str, *statements: str) -> Steps[Sequence[Sequence[Any]]]:
    for statement in statements:
        try:
            (answer,) = yield [Statement(statement)]
        except Failure as failure:
            if failure.problem is Problem.FORBIDDEN:
                raise ConfigurationError(
                    f"{address}: this user may not ask about the binary log; GRANT BINLOG MONITOR ON *.* TO this user "
                    "(on MySQL: REPLICATION CLIENT)"
                ) from None
            if statement == statements[-1]:
                raise
        else:
            return answer.rows
    raise AssertionError("there is a statement")


def encodings() -> Steps[dict[int, str | None]]:
    """Encodings by the number of a collation: the server's own tables of one byte per character, otherwise Python's names.

    Python's tables differ from the server's in some characters, and in latin1 lack five. What neither of the two knows is left out.
    """
    table = "COLLATION_CHARACTER_SET_APPLICABILITY" if "MariaDB" in (yield from server()) else "COLLATIONS"
    question = "SELECT ID, CHARACTER_SET_NAME FROM information_schema.{} WHERE ID IS NOT NULL AND CHARACTER_SET_NAME IS NOT NULL"
    try:
        (answer,) = yield [Statement(question.format(table))]
    except Failure:  # MariaDB before 10.10, where this table has no numbers
        (answer,) = yield [Statement(question.format("COLLATIONS"))]
    bytewise = yield from _bytewise()
    found: dict[int, str | None] = {}
    for number, charset in answer.rows:
        encoding = bytewise.get(charset) or _ENCODINGS.get(charset, charset)
        if encoding is None or isinstance(encoding, Bytewise) or _is_known(encoding):
            found[int(number)] = encoding
    return found


def _bytewise() -> Steps[dict[str, Bytewise]]:
    """The characters of all 256 bytes, by character set; the server writes `?` or U+FFFD for a byte that is none."""
    (known,) = yield [
        Statement("SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS WHERE MAXLEN = 1 AND CHARACTER_SET_NAME <> 'binary'")
    ]
    charsets = [row[0] for row in known.rows]
    of_all = f"HEX(CONVERT(CONVERT(x'{bytes(range(256)).hex()}' USING {{}}) USING utf8mb4))"
    (answer,) = yield [Statement(f"SELECT {', '.join(map(of_all.format, charsets))}")]
    found = {}
    for charset, written in zip(charsets, answer.rows[0], strict=True):
        if written is None:  # MySQL, for ASCII: not all bytes are characters
            continue
        characters = bytes.fromhex(text_of(written)).decode()
        found[charset] = Bytewise("".join("\ufffe" if at != b"?"[0] and sign in "?\ufffd" else sign for at, sign in enumerate(characters)))
    return {charset: table for charset, table in found.items() if len(table) == 256}


def _is_known(encoding: str) -> bool:
    try:
        codecs.lookup(encoding)
    except LookupError:
        return False
    return True


def findings(said: Settings, log: Log, place: Place) -> tuple[str, ...]:
    """Return complaints about the settings, a sentence each."""
    found: list[str] = []
    if log.behind(place) is None:
        found.append(f"the file {place.file} of the log is gone, which was to be read on: changes are missing between it and what is left")
    elif len(log.files) > 1 and log.files[0][0] == place.file and said.expires:
        found.append(
            f"the relay reads the oldest file of the log, {place.file}, which is the next one to be removed; bring it or Kafka back"
        )
    if not said.syncs:
        found.append("sync_binlog is not 1: after a crash of the machine the log may lack transactions that the tables have")
    if 0 < said.expires < _SHORT:
        found.append(f"the log is kept for {said.expires} s (binlog_expire_logs_seconds): a relay that is unavailable longer loses changes")
    return tuple(found)
