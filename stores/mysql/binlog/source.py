"""`MySQLChanges`: the changes of a MariaDB or MySQL database by its binary log, by file and position."""

from __future__ import annotations

import asyncio
import contextlib
import re
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.changes import ChangesLost, Operation, SourceBusy, SourceStatus, UnreadableChange
from ackwise.stores.mysql.binlog import server
from ackwise.stores.mysql.binlog.coverage import find, require_covered
from ackwise.stores.mysql.binlog.position import Kept, Place, Progress, claim, ensure, hold, keep, place_of, recall, release, remember
from ackwise.stores.mysql.binlog.reader import MOST_HELD, Reader, Wanted
from ackwise.stores.mysql.binlog.server import BinlogConnection
from ackwise.stores.mysql.binlog.statements import full_name, parts_of
from ackwise.stores.mysql.driver import Asyncmy
from ackwise.stores.mysql.schema import Tables
from ackwise.stores.mysql.url import Address, parse
from ackwise.stores.protocol.options import CDC
from ackwise.stores.protocol.outbox import keeping_of
from ackwise.stores.sql.changes import LogChanges
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.operation import Statement, Steps

if TYPE_CHECKING:
    from ackwise.stores.mysql.binlog.rows import Columns

T = TypeVar("T")

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

#: Seconds between reports of the acknowledged position, if it moved, and if it did not: those are the heartbeat, and renew the lease.
_REPORT, _REPORT_IDLE = 1.0, 3.0

#: Seconds without an event after which the log is opened again.
_SILENCE: Final = 30.0

#: Of a row of the outbox, columns of bytes that are text.
_OUTBOX: Final = Wanted((Operation.INSERT, Operation.UPDATE), ("topic", "message_id"))


class MySQLChanges(LogChanges):
    """Changes of the outbox of `url`, or of `tables` (`table` or `database.table`), from the position that is kept under `name`.

    `create` starts at the end of the log where no position is kept; `replace_lost` starts there again after the log was lost, once
    somebody said so. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "ackwise",
        tables: Sequence[str] = (),
        create: bool = False,
        replace_lost: bool = False,
        most_held: int = MOST_HELD,
        silence: float = _SILENCE,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"the slot is called {name!r}; use up to 64 letters, digits and any of '_.-'")
        address, options = parse(keeping_of(url)[0])  # the URL may be that of the outbox
        self._server = Address.of(address)
        self._most_held, self._silence, self._timeout, self._tables = most_held, silence, options.timeout, Tables(options.prefix)
        driver = Asyncmy(CDC, address, None, timeout=options.timeout, max_size=2, session=_session, maintenance_session=_session)
        super().__init__(Connections(driver), name, tables, create=create, replace_lost=replace_lost, within=4 * options.timeout)
        self._server_id = 1 << 31 | zlib.crc32(f"{name} {self._server.database}".encode())
        self._known: dict[str, Columns] = {}
        self._stream: BinlogConnection | None = None
        self._reader: Reader | None = None
        self._progress: Progress | None = None
        self._has_news = False
        self._token = -1

    async def open(self) -> None:
        """Check everything, take the lease, and start to read. Raises as `ChangeSource.open`."""
        await self._stop_stream()
        await self._connections.open(self._require_settings)
        wanted, said, encodings, place, end, lost = await self._ask(self._begin())
        if lost is None:
            try:
                await self._start(wanted, said, encodings, place)
            except ChangesLost as error:
                lost = str(error)
        if lost is not None:
            await self._start(wanted, said, encodings, await self._ask(self._begin_anew(said, end, lost)))
        self._create = self._replace_lost = False  # said for this start, not for one after the next loss
        await self._report()
        self._reporting = asyncio.create_task(self._report_on(), name="ackwise keeps the position of the log")

    def _begin(self) -> Steps[tuple[dict[str, Wanted], server.Settings, dict[int, str | None], Place, Place, str | None]]:
        """Check everything, and take the lease: what is read, where reading starts, where the log ends, and why it can't start there."""
        said = yield from server.settings(self.address)
        yield from server.require_own_id(self._server_id, self.address)
        yield from ensure(self._tables)
        end = yield from server.end_of_log(self.address)  # before the tables are looked at: what changes them later stands behind it
        wanted = yield from self._wanted()
        databases = {self._server.database, *(parts[0] for table in wanted if (parts := parts_of(table)))}
        yield from server.require_logged(self.address, databases)
        encodings = yield from server.encodings()
        kept = yield from self._take(said, end)
        lost = None
        if kept.server != said.server:
            lost = (
                f"{self.address}: this is another server: the log was read up to {kept.place} on server {kept.server}, "
                f"and this one is {said.server}"
            )
        return wanted, said, encodings, kept.place, end, lost

    def _take(self, said: server.Settings, end: Place) -> Steps[Kept]:
        if (yield from recall(self._tables, self.name)) is None:
            if not self._create:
                raise ConfigurationError(
                    f"{self.address}: no position is kept under the name {self.name}; --create-slot starts at the end of the log"
                )
            yield from remember(self._tables, self.name, said.server, end)
        token = yield from claim(self._tables, self.name, self._token)
        if token is None:
            raise SourceBusy(f"{self.address}: another relay reads the log from the position {self.name}")
        self._token = token
        kept = yield from recall(self._tables, self.name)  # the last holder of the lease may have moved it
        assert kept is not None, "its row was just claimed"
        return kept

    def _begin_anew(self, said: server.Settings, end: Place, lost: str) -> Steps[Place]:
        """Return the `end` of the log, if the operator allowed to start there after it was lost. Raises `ChangesLost`."""
        if not self._replace_lost:
            yield from release(self._tables, self.name, self._token)
            raise ChangesLost(
                f"{lost}; {self._remains()}. Find out why, then start once with --create-slot --replace-lost-slot to "
                "start again at the end of the log"
            )
        self._found = (f"{lost}; reading starts again, as --replace-lost-slot says",)
        yield from remember(self._tables, self.name, said.server, end)
        return end

    async def _start(self, wanted: dict[str, Wanted], said: server.Settings, encodings: dict[int, str | None], place: Place) -> None:
        """Ask for the log, and wait until it has said which file it is. Raises `ChangesLost` if it is another one, or none."""
        progress = self._progress = Progress(place)
        self._ready.clear()
        self._end, self._has_news = None, False
        self._reader = Reader(
            wanted, said.server, self._known, progress, encodings, tables_are_read=not self._given, most_held=self._most_held
        )
        try:
            await self._read_from(place, self._reader)
        except BaseException:
            await self._close_stream()
            raise

    async def _read_from(self, place: Place, reader: Reader) -> None:
        await self._close_stream()
        self._stream = BinlogConnection(self._server, server_id=self._server_id, timeout=self._timeout, silence=self._silence)
        await self._stream.start(place)
        while not reader.is_described:
            for packet in await self._stream.receive(1):
                self._ready += reader.read(packet)

    async def _receive(self, limit: int) -> None:
        reader = self._reader
        if self._stream is None or reader is None:
            raise self._not_open()
        packets = await self._stream.receive(limit)
        try:
            for packet in packets:
                self._ready += reader.read(packet)
                if reader.again is not None:
                    place = reader.again
                    reader.begin_again()
                    await self._read_from(place, reader)
                    return
        except UnreadableChange as error:
            self._end = UnreadableChange(f"{self.address}: {error}{self._way_on(reader.behind)}")
        except ChangesLost as error:
            self._end = ChangesLost(f"{self.address}: {error}; {self._remains()}")

    def _way_on(self, behind: Place | None) -> str:
        """Return how to read on behind a statement that was refused, as a part of a sentence."""
        if behind is None:
            return ""
        return (
            f"; then start behind it: UPDATE {self._tables.named('cdc')} SET log_file = '{behind.file}', "
            f"log_position = {behind.position}, log_created = 0 WHERE name = '{self.name}'"
        )

    def acknowledge(self, position: str) -> None:
        """Everything up to the end of this transaction was sent."""
        if self._progress is not None:
            self._progress.acknowledge(place_of(position))
            self._has_news = True

    async def hold(self, why: str | None) -> None:
        """See `ChangeSource.hold`."""
        await self._connections.run(lambda: hold(self._tables, self.name, why))

    async def beat(self) -> SourceStatus:
        """Write a heartbeat, and return how far it has come. Raises `StoreUnavailable`."""
        await self._report()
        return await self.status()

    def _status(self) -> Steps[SourceStatus]:
        said = yield from server.settings(self.address)
        yield from ensure(self._tables)
        kept = yield from recall(self._tables, self.name)
        if kept is None:
            raise ChangesLost(f"{self.address}: no position is kept under the name {self.name}; --create-slot makes one")
        log = yield from server.log_files(self.address)
        (now,) = yield [Statement("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)")]
        held = (kept.held,) if kept.held else ()
        found = (*held, *self._found, *server.findings(said, log, kept.place))
        return SourceStatus(self.name, str(kept.place), kept.is_leased, log.behind(kept.place), None, int(now.rows[0][0]), found)

    def _wanted(self) -> Steps[dict[str, Wanted]]:
        """The tables to read, as the log names them."""
        wanted = {}
        for given in self._given or (f"{self._tables.prefix}outbox",):
            advice = "correct --table, or GRANT SELECT ON it TO this user" if self._given else "run `ackwise outbox init URL`"
            name = yield from find(self.address, given, self._server.database, advice)
            digits = yield from require_covered(self.address, *name)
            wanted[full_name(*name)] = (Wanted() if self._given else _OUTBOX)._replace(digits=digits)
        return wanted

    def _require_settings(self) -> Steps[None]:
        yield from server.settings(self.address)

    async def _report_on(self) -> None:
        """Keep the position again and again. One that is not kept is read from again, so it need not be at once."""
        idle = 0.0
        while self._end is None:
            await asyncio.sleep(_REPORT)
            idle += _REPORT
            if idle >= _REPORT_IDLE or self._has_news:  # our own heartbeat moves the position, too, and is no reason for another one
                idle = 0.0
                with contextlib.suppress(StoreUnavailable):  # the lease ends then, and with it the right to write
                    await self._report()

    async def _report(self) -> None:
        """Keep the acknowledged position. If another reader has the lease, reading ends."""
        if self._progress is None:
            return
        place, self._has_news = self._progress.done, False
        if await self._ask(keep(self._tables, self.name, self._token, place)):
            return
        self._end = SourceBusy(f"{self.address}: another relay has taken over the position {self.name}")
        await self._close_stream()

    async def _stop_stream(self) -> None:
        if await self._stop_reporting():
            with contextlib.suppress(AckwiseError):
                await self._report()
                await self._ask(release(self._tables, self.name, self._token))
        self._progress = None
        await self._close_stream()

    async def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()


def _session(timeout: float) -> str:
    """Settings with the server's timeout below ours, so that the server's error names the cause."""
    return f"SET SESSION innodb_lock_wait_timeout = {max(1, int(timeout * 0.4))}, sql_notes = 0"
