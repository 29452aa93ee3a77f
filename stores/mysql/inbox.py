"""`MySQLInbox`: exactly once in one MariaDB or MySQL database, by keys or by offsets, for handlers that write to it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from ackwise.middleware.errors import TransactionAborted
from ackwise.middleware.storage.claimstore import ClaimKey
from ackwise.middleware.storage.transaction import Place
from ackwise.stores.mysql import maintenance
from ackwise.stores.mysql.driver import Asyncmy, AsyncmyRunner, watched
from ackwise.stores.mysql.schema import Tables, found, layout, quoted
from ackwise.stores.mysql.url import Options, parse
from ackwise.stores.protocol.options import INBOX
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.inbox import CLAIMED, ENDED, UNFINISHED, Fence, Record, Statements
from ackwise.stores.sql.inboxtransaction import ServerInbox, ServerSession
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement, Steps
from ackwise.stores.sql.schema import Maintenance, complaints, create

if TYPE_CHECKING:
    from asyncmy.connection import Connection
    from asyncmy.pool import Pool


BEGAN: Final = "ackwise_began"
"""A savepoint at the start of the transaction, which is there as long as the transaction is."""

_VARIABLES: Final = (
    "foreign_key_checks", "unique_checks", "sql_mode", "time_zone", "sql_safe_updates", "sql_select_limit", "innodb_lock_wait_timeout",
)  # fmt: skip
"""Session variables that are restored."""
_SET: Final = f"SET {', '.join(f'{name} = %s' for name in _VARIABLES)}"

_MARK: Final = Statement(f"SAVEPOINT {BEGAN}")
_RELEASE: Final = Statement(f"RELEASE SAVEPOINT {BEGAN}")

_COLUMNS: Final = "k, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id"

# The server assigns from left to right and sees what it assigned before: what is asked about changes last, and the mark says whether the
# row is ours.
_CLAIM: Final = f"""
INSERT INTO {{inbox}} ({_COLUMNS}, kept_until) VALUES {{rows}}
ON DUPLICATE KEY UPDATE
    next_attempt = IF(kept_until <= UTC_TIMESTAMP(6), 0, next_attempt),
    exec_id = IF(kept_until <= UTC_TIMESTAMP(6) OR outcome = {UNFINISHED}, VALUES(exec_id), exec_id),
    outcome = IF(exec_id = VALUES(exec_id), {CLAIMED}, outcome),
    kept_until = IF(exec_id = VALUES(exec_id), VALUES(kept_until), kept_until)
"""
_CLAIMED: Final = f"(%s, {CLAIMED}, 0, '', 0, 0, %s, "
_LEAVE: Final = f"UPDATE {{inbox}} SET outcome = {UNFINISHED} WHERE k IN ({{rows}}) AND exec_id = %s AND outcome = {CLAIMED}"
_READ: Final = f"SELECT {_COLUMNS}, NULL FROM {{inbox}} WHERE k IN ({{rows}})"

_FINISH: Final = f"""
INSERT INTO {{inbox}} ({_COLUMNS}, kept_until) VALUES {{rows}}
ON DUPLICATE KEY UPDATE
    outcome = VALUES(outcome), next_attempt = VALUES(next_attempt), origin_topic = VALUES(origin_topic),
    origin_partition = VALUES(origin_partition), origin_offset = VALUES(origin_offset), exec_id = VALUES(exec_id),
    kept_until = VALUES(kept_until)
"""
_FINISHED: Final = "(%s, %s, %s, %s, %s, %s, %s, "

_COMMITTED: Final = f"SELECT count(*) FROM {{inbox}} WHERE k IN ({{rows}}) AND exec_id = %s AND outcome = {CLAIMED}"

_HERE: Final = "owner = %s AND topic = %s AND part = %s AND generation = %s"
_LOCK: Final = f"SELECT next_offset, NULL FROM {{offsets}} WHERE {_HERE} FOR UPDATE"
_ADVANCE: Final = f"UPDATE {{offsets}} SET next_offset = %s WHERE {_HERE}"
_ADVANCED: Final = f"SELECT next_offset FROM {{offsets}} WHERE {_HERE} AND next_offset = %s"

_TAKE_OVER: Final = """
INSERT INTO {offsets} (owner, topic, part, next_offset, generation, began) VALUES {rows}
ON DUPLICATE KEY UPDATE generation = generation + 1"""
_TAKEN: Final = "SELECT topic, part, next_offset, generation FROM {offsets} WHERE owner = %s AND (topic, part) IN ({rows})"

# A record of the inbox that was taken and never finished or sent back has the attempt 0, and permits nothing.
_PERMITS: Final = """
SELECT r.k IS NOT NULL OR o.began IS NULL OR o.began > asked.place, o.next_offset > asked.place
FROM ({rows}) AS asked
LEFT JOIN {inbox} AS r ON r.k = asked.k AND r.kept_until > UTC_TIMESTAMP(6) AND r.next_attempt > 0
LEFT JOIN {offsets} AS o ON o.owner = %s AND o.topic = asked.topic AND o.part = asked.part
ORDER BY asked.number
"""
_ASKED: Final = "SELECT %s AS number, %s AS k, %s AS topic, %s AS part, %s AS place"


class MySQLStatements:
    """For tables of these names. See `Statements`."""

    state: Packet = (Statement(f"SELECT {', '.join(f'@@{name}' for name in _VARIABLES)}, DATABASE(), CURRENT_ROLE()"),)

    def __init__(self, inbox: str, offsets: str) -> None:
        # A percent sign would stand for a value.
        self._names = _no_value(inbox), _no_value(offsets)

    still_there: Packet = (Statement(f"ROLLBACK TO SAVEPOINT {BEGAN}"),)
    undoes_all = False
    proof: Packet = (_RELEASE,)

    def put_back(self, state: Sequence[Any]) -> Packet:
        *values, database, role = state
        use = [Statement(f"USE {quoted(database)}")] if database else []
        return [Statement(_SET, values), *use, Statement(f"SET ROLE {_roles(role)}")]

    def claim(self, ids: Sequence[bytes], mark: int, retention: float) -> Packet:
        """See `Statements`. Every key is locked, in their order, and then read as it is now; also waits for those who only repeat one."""
        values = [value for id in ids for value in (id, mark)]
        insert = self._text(_CLAIM, _CLAIMED + _kept(retention), len(ids))
        return [Statement(insert, values), Statement(self._text(_READ, "%s", len(ids)), ids)]

    def finish(self, records: Sequence[Record], retention: float, transaction: str | None, left: Sequence[bytes], mark: int) -> Packet:
        packet = [_RELEASE, _MARK]  # that it is there proves that the transaction is; there may be more to write before the commit
        if records:
            insert = self._text(_FINISH, _FINISHED + _kept(retention), len(records))
            packet.append(Statement(insert, [*chain.from_iterable(records)]))
        if left:
            packet.append(Statement(self._text(_LEAVE, "%s", len(left)), (*left, mark)))
        return packet

    def committed(self, ids: Sequence[bytes], mark: int) -> Packet:
        return [Statement(self._text(_COMMITTED, "%s", len(ids)), (*ids, mark))]

    def lock(self, fence: Fence) -> Packet:
        return [Statement(self._text(_LOCK), fence)]

    def advance(self, fence: Fence, next: int) -> Packet:
        return [Statement(self._text(_ADVANCE), (next, *fence)), Statement(self._text(_ADVANCED), (*fence, next))]

    def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> Packet:
        values = [value for number, (key, origin) in enumerate(copies) for value in (number, key.id, *origin)]
        return [Statement(self._text(_PERMITS, _ASKED, len(copies), " UNION ALL "), (*values, owner))]

    def take_over(self, owner: str, positions: Mapping[tuple[str, int], int]) -> Packet:
        rows = [value for place, position in positions.items() for value in (owner, *place, position, 1, position)]
        return [
            Statement("START TRANSACTION"),
            Statement(self._text(_TAKE_OVER, "(%s, %s, %s, %s, %s, %s)", len(positions)), rows),
            Statement(self._text(_TAKEN, "(%s, %s)", len(positions)), (owner, *chain.from_iterable(positions))),
            Statement("COMMIT"),
        ]

    def why_ended(self, error: Exception) -> str:
        return ENDED

    def _text(self, text: str, each: str = "", count: int = 1, between: str = ", ") -> str:
        return _rendered(text, *self._names, each, count, between)


def _roles(current: str | None) -> str:
    """Return the answer of `CURRENT_ROLE()` as SET ROLE takes it: a name in MariaDB, a list of quoted names in MySQL."""
    if current is None or current == "NONE":
        return "NONE"
    return current if current.startswith("`") else quoted(current)


def _kept(seconds: float) -> str:
    return f"UTC_TIMESTAMP(6) + INTERVAL {round(seconds * 1e6)} MICROSECOND)"


def _no_value(name: str) -> str:
    return name.replace("%", "%%")


@functools.lru_cache(256)
def _rendered(text: str, inbox: str, offsets: str, each: str, count: int, between: str) -> str:
    """Return `text` with the names of the tables and `count` times what stands for one row."""
    return text.format(inbox=inbox, offsets=offsets, rows=between.join([each] * count))


_MAX_SIZE: Final = 10
"""Connections: a batch under way has one."""


#: Out of autocommit before anything starts: what follows an error that undid the transaction does not commit by itself then.
_NO_AUTOCOMMIT: Final = Statement("SET autocommit = 0")
_BEGIN: Final = (
    Statement("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"),
    Statement("START TRANSACTION"),
    _MARK,
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
    on our own connections a statement of the handler waits no longer for a lock either. `prefix` starts the names of the
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
        try:
            await self.send([*self.statements.proof, *self.commits_with])
        except Failure as failure:
            if failure.problem is not Problem.ENDED:
                raise
            raise TransactionAborted(self.statements.why_ended(failure.error)) from None

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
        yield from maintenance.require_inbox_rights(tables)
        there = yield from found(tables)
        return MySQLStatements(there.named("inbox"), there.named("offsets"))

    return Maintenance(
        prepare,
        lambda: create(made),
        lambda: complaints(made, lambda: maintenance.complaints_of_inbox(tables)),
        lambda: maintenance.clean_inbox(made, tables),
    )


def _session(timeout: float) -> str:
    """Return the settings of a connection: the server's timeout is below ours, so that its error names the cause.

    A worker that is stalled in the middle of a batch loses it after five minutes; what stands in the comment is MariaDB's alone.
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
