"""`BinlogConnection`: a connection on which the server sends its binary log.

asyncmy brings the start of the connection, and packets. Its own reader of the log is not used. It connects anew by itself, at the event
where it was, and passes over rows whose table it does not know there; it takes the names of columns from information_schema, which has
those of now; and it passes over events that it does not know, such as compressed rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from typing import Any, Final

import asyncmy
from asyncmy.connection import Connection
from asyncmy.errors import MySQLError

from ackwise.middleware.changes import ChangesLost, SourceBusy
from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.mysql.binlog.memory import Place
from ackwise.stores.mysql.failures import FAILURES, as_store_error
from ackwise.stores.mysql.url import Address

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
            connection._next_seq_id = 0  # type: ignore[attr-defined]  # a new command begins, and asyncmy sends no such one by itself
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
                f"{self._address}: the log has said nothing for {self._silence:g} s, not even of our heartbeat; it is opened anew"
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
