"""`MySQLInbox`: exactly once in one MariaDB or MySQL database, for handlers that write to it; by keys or by offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ackwise.stores.mysql import checking, maintenance
from ackwise.stores.mysql.driver import Asyncmy
from ackwise.stores.mysql.inboxstatements import BEGAN, MySQLStatements
from ackwise.stores.mysql.runner import AsyncmyRunner
from ackwise.stores.mysql.schema import Tables, found, layout
from ackwise.stores.mysql.url import Options, parse
from ackwise.stores.mysql.watching import watched
from ackwise.stores.protocol.purpose import INBOX
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.inbox import Statements
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement, Steps
from ackwise.stores.sql.schema import Maintenance, complaints, create
from ackwise.stores.sql.serverinbox import ServerInbox, ServerSession

if TYPE_CHECKING:
    from asyncmy.connection import Connection
    from asyncmy.pool import Pool

_MAX_SIZE: Final = 10
"""Connections: a batch under way has one."""


#: Out of autocommit before anything begins: what follows an error that undid the transaction does not commit by itself then.
_NO_AUTOCOMMIT: Final = Statement("SET autocommit = 0")
_BEGIN: Final = (
    Statement("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"),
    Statement("START TRANSACTION"),
    Statement(f"SAVEPOINT {BEGAN}"),
)
_AUTOCOMMIT: Final = Statement("SET autocommit = 1")
_COMMIT: Final = Statement("COMMIT")
_ROLLBACK: Final = Statement("ROLLBACK")


class MySQLInbox(ServerInbox["Pool", "Connection"]):
    """An inbox in the MariaDB or MySQL database of `url`, in which the handler's own tables are as well.

    The handler gets an asyncmy connection in the middle of a transaction that reads what is committed. Each batch under way
    has a connection, `max_size` at most are open; a batch that finds none waits. Or give your own asyncmy `pool`, which
    stays yours: its settings are not touched, nor is it closed.

    `timeout` (seconds) bounds each of our own statements, with its wait for another worker's batch that holds the same key;
    on our own connections a statement of the handler waits no longer for a lock either. `prefix` begins the names of the
    tables. Raises `ConfigurationError`.
    """

    def __init__(
        self, url: str | None = None, *, pool: Pool | None = None, prefix: str = "ackwise_", timeout: float = 5.0, max_size: int = _MAX_SIZE
    ) -> None:
        driver = Asyncmy(
            INBOX, url, pool, timeout=timeout, max_size=max_size, session=_session, maintenance_session=_session, autocommit=False
        )
        connections, tables = Connections(driver), maintained(Tables(prefix), driver.address)
        super().__init__(connections, tables, lambda connection, statements: MySQLSession(connection, statements, driver))


class MySQLSession(ServerSession["Connection"]):
    """What goes wrong may have left the connection in the middle of an answer, so it is closed.

    Connections of our own are never in autocommit; those of a pool that was given are between batches, if they were.
    """

    def __init__(self, connection: Connection, statements: Statements, driver: Asyncmy) -> None:
        super().__init__(connection, statements, driver, AsyncmyRunner(connection), watched)
        self._commits_by_itself = connection.get_autocommit()
        self._back: Packet = [_AUTOCOMMIT] if self._commits_by_itself else []
        self.commits_with: Packet = [_COMMIT, *self._back]

    @property
    def is_open(self) -> bool:
        return self.connection.get_transaction_status()

    async def begin(self) -> None:
        await self.send((_NO_AUTOCOMMIT, *_BEGIN) if self._commits_by_itself else _BEGIN)
        self._watch.start()

    async def send(self, packet: Packet) -> Sequence[Answer]:
        watched = self._watch.watched
        before, watched.is_ours = watched.is_ours, True
        try:
            return await self._runner.send(packet)
        except BaseException as error:
            if not (isinstance(error, Failure) and error.problem is Problem.ENDED):
                self.connection.close()
            raise
        finally:
            watched.is_ours = before

    async def commit(self) -> None:
        self._watch.stop()
        await self.send(self.commits_with)

    async def rollback(self, *, is_marked: bool) -> bool:
        self._watch.stop()
        ends = [_ROLLBACK, *self._back]
        try:
            await self.send([*self.statements.still_there, *ends] if is_marked else ends)
        except Failure as failure:
            if failure.problem is not Problem.ENDED:
                raise
            await self.send(ends)
            return False
        return True

    def tidying(self) -> Packet:
        return self._turning.put_back


def maintained(tables: Tables, address: str) -> Maintenance[MySQLStatements]:
    """Return what is done with the tables of an inbox."""
    made = layout(tables, INBOX, address)

    def prepare() -> Steps[MySQLStatements]:
        yield from create(made)
        yield from checking.require_inbox_rights(tables)
        there = yield from found(tables)
        return MySQLStatements(there.named("inbox"), there.named("offsets"))

    return Maintenance(
        prepare,
        lambda: create(made),
        lambda: complaints(made, lambda: checking.of_inbox(tables)),
        lambda: maintenance.clean_inbox(made, tables),
    )


def _session(timeout: float) -> str:
    """Return what a connection begins with: the server gives up first, so that it says what it waited for.

    A worker that stands still in the middle of a batch loses it after five minutes; what stands in the comment is MariaDB's alone.
    """
    return (
        f"SET SESSION autocommit = 0, innodb_lock_wait_timeout = {max(1, int(timeout * 0.8))} /*M! , idle_transaction_timeout = 300 */; "
        "SET SESSION sql_notes = 0"
    )


def from_url(url: str) -> MySQLInbox:
    """Return the inbox of `mysql://user:password@host:3306/database`, or `mariadb://…`.

    Options follow as a query: `?prefix=…&timeout=2.5&max_size=20`, and `sslmode`, `sslrootcert`, `sslcert`, `sslkey`.
    Raises `ConfigurationError`.
    """
    address, options = parse(url, Options(max_size=_MAX_SIZE))
    return MySQLInbox(address, **options._asdict())
