"""`MySQLOutbox`: rows to be sent, in the business transactions of one MariaDB or MySQL database; `MySQL` is its dialect."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from asyncmy.connection import Connection

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.storage.outbox import SHARDS, RowState
from ackwise.stores.mysql.driver import FAILURES, Asyncmy, AsyncmyRunner, as_store_error, literals, watched
from ackwise.stores.mysql.schema import NAMES, Tables, found, layout
from ackwise.stores.mysql.url import Options, parse
from ackwise.stores.protocol.options import OUTBOX
from ackwise.stores.protocol.outbox import PAYLOAD, Keeping, RowColumns, keeping_of, wakes_of
from ackwise.stores.sql.connections import MAINTENANCE_TIMEOUT, Connections
from ackwise.stores.sql.operation import Packet, Placeholders, Statement, Steps
from ackwise.stores.sql.outbox import ServerOutbox
from ackwise.stores.sql.outboxdialect import Around, Dialect
from ackwise.stores.sql.outboxwriting import Business, Writes, require
from ackwise.stores.sql.schema import names_of

if TYPE_CHECKING:
    from asyncmy.pool import Pool


_WORDS: Final = {
    "now": "UTC_TIMESTAMP(6)",
    "later": "UTC_TIMESTAMP(6) + INTERVAL ROUND(:it * 1000000) MICROSECOND",
    "at": "CAST('1970-01-01' AS DATETIME(6)) + INTERVAL ROUND(:it * 1000000) MICROSECOND",
    "until": "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), {it}) / 1e6",
    "age": "TIMESTAMPDIFF(MICROSECOND, {it}, UTC_TIMESTAMP(6)) / 1e6",
    "epoch": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6",
    "due_time": "IF(due < 0, UTC_TIMESTAMP(6) - INTERVAL ROUND(due * 1000000) MICROSECOND,"
    " CAST('1970-01-01' AS DATETIME(6)) + INTERVAL ROUND(due * 1000000) MICROSECOND)",
    "ms": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {it}) DIV 1000",
    "moment": "@ackwise_moment",
    "moment_later": "@ackwise_moment + INTERVAL ROUND(:it * 1000000) MICROSECOND",
    "among": "IN (:it)",
    "mine": "SELECT shard FROM {shards} WHERE (shard, token) IN (:mine)",
    "locked": "FOR UPDATE",
    "shared": "LOCK IN SHARE MODE",
    "by_id": "FORCE INDEX (PRIMARY)",
    "by_due": "FORCE INDEX (by_due)",
    "by_tx": "FORCE INDEX (by_tx)",
    "by_key": "FORCE INDEX (by_key)",
    "holder": "holder",
    "holds_up": "TRUE",
    "deleting": "DELETE r FROM {rows} AS r FORCE INDEX (PRIMARY)",
    "deleting_barriers": "DELETE b FROM {barrier} AS b",
    "renewing": "ON DUPLICATE KEY UPDATE leased_until = {later lease}",
    "claiming": "INSERT IGNORE",
    "keeping": "",  # a barrier that is there is an error: a session may count a row that is passed over as one that changed
    "cause": "CONVERT(:cause USING utf8mb4)",
    "partition": "`partition`",
    # The row with the lowest id is the oldest, and the index knows it.
    "counted": """(SELECT n.number, {age r.created} AS age FROM (
    SELECT COUNT(*) AS number, MIN(id) AS oldest FROM {rows} {by_due} WHERE {it}) AS n LEFT JOIN {rows} AS r ON r.id = n.oldest)""",
}

# By id over all shards and not by shard, so that a backlog of any size is read from its start only. The large columns are read last, of
# few rows.
_PENDING: Final = """
WITH found AS (
    (%s AND next_at IS NULL ORDER BY id LIMIT :limit)
    UNION ALL
    (%s AND next_at <= {now} ORDER BY id LIMIT :limit)
), seen AS (
    SELECT * FROM found ORDER BY id LIMIT :limit
), {judged seen}, summed AS (
    SELECT id, is_blocked, SUM(IF(is_blocked, 0, size)) OVER (ORDER BY id) - IF(is_blocked, 0, size) AS before_it FROM judged
)
SELECT r.id, r.shard, r.attempts, {ms r.created}, r.size, s.is_blocked, r.due IS NOT NULL,
    r.expires IS NOT NULL, r.topic, IF(s.is_blocked, NULL, r.value), r.message_key, r.headers,
    r.`partition`, r.message_id
FROM summed AS s STRAIGHT_JOIN {rows} AS r ON r.id = s.id WHERE s.is_blocked OR s.before_it < :most ORDER BY r.id
"""
_ONE: Final = "SELECT id, size, key_hash FROM {rows} FORCE INDEX (by_due) WHERE state = {LOCAL_COMMIT} AND behind = FALSE"
_OF_SHARDS: Final = " AND shard IN (:shards)"
_NOT_UNDER_WAY: Final = " AND id NOT IN (:under_way)"
_NOT_BLOCKED: Final = " AND (key_hash IS NULL OR key_hash NOT IN (:blocked))"

#: A key of which rows wait behind another, see `Dialect.held`; then the one after it. And how many are asked for in one trip at most.
_HELD: Final = (
    """SELECT r.key_hash, r.id, {last_of r} FROM (
    SELECT holder AS key_hash, id FROM {rows} {by_key} WHERE holder > @ackwise_key AND behind ORDER BY holder, id LIMIT 1) AS r""",
    "SET @ackwise_next = (SELECT holder FROM {rows} {by_key} WHERE holder > @ackwise_key AND behind ORDER BY holder LIMIT 1)",
    "SET @ackwise_key = @ackwise_next",  # with one variable, the server would read the index from its start
)
_MOST_HELD: Final = 64

#: Each look sees what is committed by now, and no statement locks a gap, in which the business could not insert.
_BEGIN: Final = ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION")

# The server waits for whole seconds; MariaDB for none as well.
_PATIENCE: Final = """
SET @ackwise_patience = @@innodb_lock_wait_timeout,
    SESSION innodb_lock_wait_timeout = CAST(GREATEST(ROUND(:wait), LOCATE('MariaDB', VERSION()) = 0) AS UNSIGNED)"""
_AS_BEFORE: Final = "SET SESSION innodb_lock_wait_timeout = @ackwise_patience"

_SETTINGS: Final = "SELECT @@innodb_flush_log_at_trx_commit, @@auto_increment_increment, @@binlog_format"

#: The column that an attempt to change something names.
_COLUMN_OF: Final = {"rows": "attempts", "shards": "token", "relays": "leased_until", "barrier": "outcome", "meta": "value"}
#: None of these reads or changes a row, and each is refused first where the right is missing.
_ATTEMPTS: Final = {
    "SELECT": "SELECT {column} FROM {table} LIMIT 0",
    "INSERT": "EXPLAIN INSERT INTO {table} () VALUES ()",
    "UPDATE": "UPDATE {table} SET {column} = {column} WHERE FALSE",
    "DELETE": "DELETE FROM {table} WHERE FALSE",
}

#: Values that are names, which some servers would cut.
_NAMED: Final = frozenset({"owner", "tx_id", "producer_group", "barrier_in"})

#: Bytes of a packet that every server takes, and those that go with a statement.
_SMALL: Final = 1_000_000
_AROUND: Final = 1000

#: Characters that one statement takes at most, if that is more than one row. A server takes 1 MiB at least, and 16 or 64 by default.
_LONGEST: Final = 800_000

#: What a row of a business transaction has in the last five columns.
_TO_SEND: Final = "2, NULL, '', '', ''"

_INSERT: Final = (
    "INSERT INTO {rows} (message_id, shard, topic, message_key, key_hash, `partition`, headers, value, size, due, expires, state, next_at, "
    "tx_id, producer_group, barrier_in, created) VALUES "
)


_SENDABLE: Final = f"state = {RowState.LOCAL_COMMIT:d}"


class MySQL(Dialect):
    """Each packet is one trip, with its transaction."""

    reading = alone = writing = Around(_BEGIN, ("COMMIT",))
    patient = Around((_PATIENCE, *_BEGIN), ("COMMIT", _AS_BEFORE))
    waiting = (f"{_SENDABLE} AND next_at IS NULL", f"{_SENDABLE} AND next_at IS NOT NULL AND due IS NULL")
    gave_up = Around(("ROLLBACK", _AS_BEFORE, *_BEGIN), ("COMMIT",))
    locking = ("{mine} ORDER BY shard LOCK IN SHARE MODE",)
    # One moment for two statements: what was due for the first is due for the second, and nothing else is. By their ids, as all who change
    # rows do: who looks into the index first and who looks into it last could wait for each other.
    taking = ("SET {moment} = {now}",)

    def __init__(self, tables: Tables, address: str) -> None:
        placeholders = Placeholders(lambda _: "%s", repeats=True, escape=lambda name: name.replace("%", "%%"))
        super().__init__(_WORDS, names_of(tables), placeholders)
        self._address = address

    def say(self, template: str, **values: Any) -> Statement:
        """See `Dialect.say`. Raises `ConfigurationError` for a name that is too long."""
        for what in _NAMED & values.keys():
            if len((values[what] or "").encode()) > NAMES:
                raise ConfigurationError(f"{what} {values[what][:60]!r}… has more than {NAMES} bytes; give a shorter one")
        return super().say(template, **values)

    def pending(self, **seek: Any) -> Steps[Sequence[Sequence[Any]]]:
        template = _pending(len(seek["shards"]) < SHARDS, bool(seek["under_way"]), bool(seek["blocked"]))
        return self.read(self.say(template, **seek))

    def held(self, after: int, keys: int, block_key: bool) -> Steps[Sequence[Sequence[Any]]]:
        """See `Dialect.held`. Key by key: a statement that asked for the next key of each would read the index from its start each time."""
        found, at_once = list[Sequence[Any]](), 1
        while len(found) < keys:
            asked = self.say_all(("SET @ackwise_key = :after", *_HELD * at_once), after=after, block_key=block_key)
            new = [row for answer in (yield from self.within(self.reading, asked)) for row in answer.rows]
            found += new
            if len(new) < at_once:
                break
            after, at_once = new[-1][0], min(2 * at_once, _MOST_HELD)
        return found

    def prepare(self, rows: Sequence[RowColumns], half: Mapping[str, Any]) -> Steps[None]:
        """See `Dialect.prepare`. Raises `ConfigurationError` for a row that the server does not take."""
        text, values = self.say(":state, {later first_check}, :tx_id, :producer_group, :barrier_in", **half)
        more = text % tuple(literals(values))
        yield from insert(self.tables["rows"], rows, self.say_all(_BEGIN), self._address, more)
        yield [Statement("COMMIT")]

    def require_fit(self, rows: Sequence[RowColumns]) -> Steps[None]:
        for row in rows:
            yield from _require_fit(sum(map(len, literals(row))), [row], self._address)

    def may(self, right: str, table: str) -> Packet:
        attempt = _ATTEMPTS[right].format(table=self.tables[table], column=_COLUMN_OF[table])
        return [Statement(attempt), Statement("COMMIT")]

    def settings(self) -> Steps[list[str]]:
        ((((flush, step, form),), _),) = yield [Statement(_SETTINGS)]
        said = []
        if flush != 1:
            said.append(
                f"innodb_flush_log_at_trx_commit is {flush}, so a crash of the server's machine can lose what was committed; set it to 1"
            )
        if step != 1:
            said.append(
                f"auto_increment_increment is {step}, as on servers that take writes side by side: rows that are written through different "
                "servers do not have ids in the order of their commits, so write those of one key through one server"
            )
        if form == "STATEMENT":
            said.append(
                "binlog_format is STATEMENT, which InnoDB refuses under READ COMMITTED, a relay's isolation; set it to MIXED or ROW"
            )
        return said


@functools.cache
def _pending(of_shards: bool, under_way: bool, blocked: bool) -> str:
    """The template with the conditions that exclude something."""
    one = _ONE + _OF_SHARDS * of_shards + _NOT_UNDER_WAY * under_way + _NOT_BLOCKED * blocked
    return _PENDING % (one, one)


def insert(table: str, rows: Sequence[RowColumns], before: Packet, address: str, more: str = _TO_SEND) -> Steps[None]:
    """Insert rows, `before` with the first of them; `more` are the values of the last columns.

    Every value is a literal, which no encoding and no mode of a session changes. The server gives ids in the order of the values of a
    statement. Raises `ConfigurationError` for a row that the server does not take, before it cuts the connection because of it.
    """
    packets = list(_inserts(table, rows, more))
    yield from _require_fit(max(map(len, packets)), rows, address)
    for packet in packets:
        yield [*before, Statement(packet)]
        before = ()


def _require_fit(size: int, rows: Sequence[RowColumns], address: str) -> Steps[None]:
    """Raise `ConfigurationError` if the server does not take a statement of `size` bytes with the largest of `rows`."""
    if size > _SMALL:
        (limit,) = yield [Statement("SELECT @@max_allowed_packet")]
        if size + _AROUND > limit.rows[0][0]:
            topic = max(rows, key=lambda row: row.size).topic
            raise ConfigurationError(
                f"{address}: a message to {topic!r} needs a statement of {size + _AROUND} bytes, twice those of its value, and the "
                f"server's max_allowed_packet is {limit.rows[0][0]}; raise that, or send a reference to a place where the value is"
            )


def _inserts(table: str, rows: Sequence[RowColumns], more: str) -> Iterator[str]:
    begin, some, length = _INSERT.format(rows=table), list[str](), 0
    for row in rows:
        timed = _timed(row) if more == _TO_SEND and row.is_timed else f"{', '.join(literals(row))}, {more}"
        values = f"({timed}, UTC_TIMESTAMP(6))"
        if some and length + len(values) > _LONGEST:
            yield begin + ", ".join(some)
            some, length = [], 0
        some.append(values)
        length += len(values)
    yield begin + ", ".join(some)


def _timed(row: RowColumns) -> str:
    """Return the values of a row of a business transaction, with its times by the server's clock."""
    *columns, due, expires = literals(row)
    if row.expires is not None and row.expires < 0:
        expires = f"{_WORDS['epoch']} + {-row.expires!r}"
    next_at = _TO_SEND.replace("NULL", _WORDS["due_time"].replace("due", due)) if row.due is not None else _TO_SEND
    return f"{', '.join(columns)}, {due}, {expires}, {next_at}"


_MAX_SIZE: Final = 4
"""Connections: a relay asks on one, and writes on another; a check-back may want one, and a producer."""


class MySQLOutbox(ServerOutbox):
    """An outbox in the MariaDB or MySQL database of `url`, in which the business's own tables are as well.

        async with outbox.transaction(connection):
            async with connection.cursor() as cursor:
                await cursor.execute("UPDATE …")
            outbox.send("orders", value, key=key)

    `connection` is any asyncmy connection to that database, in any isolation. Without autocommit a transaction is open after the first
    statement, also after one that reads: then it is joined, and you commit it. Savepoints are made by `SAVEPOINT …` as always. Writing rows
    needs no `open`. Relays, half messages and operators use connections of our own, `max_size` at most; or give your own asyncmy `pool`,
    which stays yours: its settings are not touched, nor is it closed.

    Rows are deleted once they were sent. With `keep_sent` (seconds) they stay so long, without what `blank` names (`value`, `key` and
    `headers` by default). Parked rows stay until they are requeued, or with `keep_parked` (seconds) until `cleanup` deletes them unsent.
    `retention` (seconds) is how long `cleanup` leaves what was rolled back. `timeout` (seconds) bounds each call on our own connections.
    `prefix` starts the names of the tables. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: Pool | None = None,
        prefix: str = "ackwise_",
        timeout: float = 5.0,
        max_size: int = _MAX_SIZE,
        retention: float = 86400.0,
        keep_sent: float = 0.0,
        keep_parked: float | None = None,
        blank: Collection[str] = tuple(PAYLOAD),
    ) -> None:
        driver = Asyncmy(OUTBOX, url, pool, timeout=timeout, max_size=max_size, session=_session, maintenance_session=_maintenance_session)
        tables, address = Tables(prefix), driver.address
        wakes = wakes_of(f"{address if pool is None else id(pool)} {tables.named('outbox')}")
        keeping = Keeping(retention, keep_sent, keep_parked, blank)

        def located() -> Steps[str]:
            return (yield from found(tables)).named("outbox")

        super().__init__(Connections(driver), MySQL(tables, address), layout(tables, OUTBOX, address), keeping, wakes, located, _business)


def _session(timeout: float) -> str:
    """Return the settings of our connections: the server's timeout is below ours, so that its error names the cause."""
    return (
        f"SET SESSION innodb_lock_wait_timeout = {max(1, int(timeout * 0.4))}, sql_notes = 0 "
        f"/*M! , max_statement_time = {timeout * 0.9} */; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    )


def _maintenance_session(_timeout: float) -> str:
    return f"SET SESSION innodb_lock_wait_timeout = {int(MAINTENANCE_TIMEOUT)}, sql_notes = 0"


def from_url(url: str) -> MySQLOutbox:
    """Return the outbox of `mysql://user:password@host:3306/database`, or `mariadb://…`.

    Options follow as a query: `?prefix=…&timeout=2.5&max_size=4`, `&keep_sent=604800&keep_parked=2592000&blank=value,key,headers`,
    and `sslmode`, `sslrootcert`, `sslcert`, `sslkey`.
    Raises `ConfigurationError`.
    """
    url, keeping = keeping_of(url)
    address, options = parse(url, Options(max_size=_MAX_SIZE))
    return MySQLOutbox(address, **options._asdict(), **keeping.given)


@functools.lru_cache(64)
def _writes(commits_by_itself: bool, table: str, address: str) -> Writes:
    """Return the statements. A connection in autocommit is out of it from before BEGIN until COMMIT or ROLLBACK was answered."""

    def inserting(rows: Sequence[RowColumns], before: Packet) -> Steps[None]:
        return insert(table, rows, before, address)

    leave, back = ("SET autocommit = 0", "SET autocommit = 1") if commits_by_itself else ("", "")
    return Writes(
        inserting,
        begin=_packet(leave, "START TRANSACTION"),
        commit=_packet("COMMIT", back),
        rollback=_packet("ROLLBACK", back),
        restore=_packet(back),
        open=_OPEN,
        proves_first=True,
    )


def _packet(*texts: str) -> Packet:
    return [Statement(text) for text in texts if text]


#: What an error of the server did to a transaction, the driver does not know.
_OPEN: Final = _packet("SAVEPOINT ackwise_open", "RELEASE SAVEPOINT ackwise_open")


def _business(connection: Any, table: str, address: str, timeout: float) -> Business:
    """Return how rows get to `connection`. Raises `ConfigurationError` for what is none of asyncmy's."""
    require(connection, Connection, "MySQL", "asyncmy")

    async def look() -> None:
        # Without autocommit asyncmy passes over answers that nothing is open any more.
        if connection.get_transaction_status() and not connection.get_autocommit():
            with suppress(*FAILURES):
                await connection.ping(reconnect=False)

    return Business(
        _writes(connection.get_autocommit(), table, address),
        AsyncmyRunner(connection),
        is_open=connection.get_transaction_status,
        watched=functools.partial(watched, connection),
        close=connection.close,
        as_error=lambda error: as_store_error(error, address, timeout, OUTBOX.tables, OUTBOX.init),
        timeout=timeout,
        look=look,
        begins_by_itself=not connection.get_autocommit(),
    )
