"""`MySQLStore`: claims in a MariaDB or MySQL database, for all workers that reach it.

Each exchange is one INSERT, which applies the transition table of `stores/protocol/transitions.py` as a whole or not at all.
Every request, of any kind, is a row to insert. Where the key has a record, ON DUPLICATE KEY UPDATE waits for the record's lock before
it decides: its assignments run from left to right and see each other, so the first one notes in `step` which transition applies,
the others follow it, and the last one keeps the part of it that the answer needs. The answer is the records after that.

A release or renew of an unknown key is inserted too, as a record forgotten in 1970: so it is still unknown, and the cleanup deletes it.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any, NamedTuple

from asyncmy.connection import Connection
from asyncmy.pool import Pool

from ackwise.middleware.storage.claimstore import (
    Ack,
    Acquired,
    AlreadyDone,
    Busy,
    ClaimAnswer,
    Exchange,
    ExchangeResult,
    Outcome,
    Remembered,
    Stale,
    hash_of,
)
from ackwise.stores.mysql import maintenance
from ackwise.stores.mysql.driver import Asyncmy
from ackwise.stores.mysql.schema import Tables, layout, require_server, server
from ackwise.stores.mysql.url import parse
from ackwise.stores.protocol.options import CLAIMS
from ackwise.stores.protocol.outbox import text_of
from ackwise.stores.protocol.transitions import Answer, Asked, Kind, Place
from ackwise.stores.sql.claims import PAGE, Page, SQLClaims, exchange_in_rounds
from ackwise.stores.sql.connections import MAINTENANCE_TIMEOUT, Connections
from ackwise.stores.sql.operation import Packet, Statement, Steps
from ackwise.stores.sql.schema import Maintenance, complaints, create, required

NO_DAY = -(2**63)
"""The `day` of keys that have none: first in the order of the primary key, and no day of any calendar."""


class Server(NamedTuple):
    """Where MariaDB and MySQL part."""

    before: Packet
    """Session settings that the statement relies on: the clock is UTC, assignments run in order."""
    prefix: str
    """The same, as the start of the statement itself."""
    alias: str
    """Names the inserted row, after its values; `{}` are the names of its columns."""
    inserted: str
    """A column of the inserted row, in place of `{}`."""
    answer: int
    """Which statement of the packet answers with the rows: the INSERT; or, where it can't, a SELECT in the same transaction."""
    after: Packet
    """Restores the session."""


MARIADB = Server((), "SET STATEMENT time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES' FOR ", "", "VALUES({})", 0, ())
MYSQL = Server(
    (Statement("SET @ackwise_zone = @@time_zone, time_zone = '+00:00'"), Statement("START TRANSACTION")),
    "",
    " AS n ({})",
    "n_{}",
    3,
    (Statement("COMMIT"), Statement("SET time_zone = @ackwise_zone")),
)


def server_of(said: str) -> Server:
    """Return which one it is, as it names itself."""
    return MARIADB if "MariaDB" in said else MYSQL


class Transition(enum.IntEnum):
    """Which transition a record makes. Below 10, `step` is a request's kind, or what is kept of one that was answered."""

    NONE = 10
    FRESH = 11
    """It was forgotten, and starts again."""
    HELD = 12
    """Its holder goes on, finishes or gives up."""
    FREE = 13
    """A claim takes what was released."""
    EXPIRED = 14
    """A claim takes what was not released."""


class Row(NamedTuple):
    """A record after the exchange."""

    day: int
    key: bytes
    token: int
    epoch: int
    next_attempt: int
    lost: int
    took_unreleased: int
    outcome: int
    step: int
    leased_for: int
    """Microseconds from now."""
    kept_for: int
    """Microseconds from now."""
    owner: str
    """The process that holds it, if it has a name; of a completed one, what could not be recorded."""

    @property
    def place(self) -> Place:
        """Which key it is of."""
        return self.key, None if self.day == NO_DAY else self.day


_ANSWERED = (
    "day, k, token, epoch, next_attempt, lost, took_unreleased, outcome, step, "
    "TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), leased_until), TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), kept_until), holder"
)

_COLUMNS = ("day", "k", "step", "token", "next_attempt", "outcome", "leased_until", "kept_until", "holder")


def packet(tables: Tables, server: Server, some: Sequence[Asked], exchange: Exchange) -> Packet:
    """Return what is sent for `some`."""
    lease, retention = round(exchange.lease * 1_000_000), round(exchange.retention * 1_000_000)
    values = ",".join(_values(some, lease, retention, exchange.owner))
    update = _update(server.inserted).format(lease=lease, retention=retention, died=_died(exchange.gone))
    alias = server.alias.format(", ".join(f"n_{name}" for name in _COLUMNS))
    insert = f"{server.prefix}INSERT INTO {tables.claims} ({', '.join(_COLUMNS)}) VALUES {values}{alias} ON DUPLICATE KEY UPDATE {update}"
    if server.answer == len(server.before):
        return [*server.before, Statement(f"{insert} RETURNING {_ANSWERED}"), *server.after]
    places = ",".join(f"({_day(one)},x'{one.place[0].hex()}')" for one in some)
    read = f"SELECT {_ANSWERED} FROM {tables.claims} WHERE (day, k) IN ({places})"
    return [*server.before, Statement(insert), Statement(read), *server.after]


def answer(one: Asked, row: Row) -> Answer:
    """Return the answer that the record gives to the request."""
    mine = row.token == one.token
    match one.kind:
        case Kind.CLAIM:
            return _claim_answer(one, row)
        case Kind.COMPLETE if row.outcome == 0:
            return Ack.LOST
        case Kind.COMPLETE if not mine:
            return Ack.LOST_DONE
        case Kind.COMPLETE:
            return Ack.RESTORED if row.step == Kind.COMPLETE else Ack.OK
        case Kind.RELEASE:
            return Ack.OK if row.token == 0 and row.step == Kind.RELEASE else Ack.LOST
        case Kind.RENEW:
            return Ack.OK if mine and row.outcome == 0 and row.kept_for > 0 else Ack.LOST


def _claim_answer(one: Asked, row: Row) -> ClaimAnswer:
    if row.outcome != 0:
        return AlreadyDone(Outcome(row.outcome), row.owner)
    if one.attempt < row.next_attempt:
        return Stale()
    if row.token == one.token:
        return Acquired(row.epoch, row.lost, bool(row.took_unreleased))
    return Busy(max(row.leased_for, 1) / 1_000_000, row.owner)


def _values(some: Iterable[Asked], lease: int, retention: int, owner: str) -> Iterable[str]:
    """Return the rows to insert; what is finished or given back has no holder, but perhaps something that was not recorded."""
    holder = _text(owner)
    held = f"SYSDATE(6)+INTERVAL {lease} MICROSECOND,SYSDATE(6)+INTERVAL {lease + retention} MICROSECOND"
    done = f"SYSDATE(6),SYSDATE(6)+INTERVAL {retention} MICROSECOND"
    never = "'1970-01-01','1970-01-01'"
    for one in some:
        row = f"({_day(one)},x'{one.place[0].hex()}',{one.kind:d},{one.token}"
        match one.kind:
            case Kind.CLAIM:
                yield f"{row},{one.attempt},0,{held},{holder})"
            case Kind.COMPLETE:
                unrecorded = _text(one.unrecorded) if one.unrecorded else "''"
                yield f"{row},{one.attempt},{one.value or 0:d},{done},{unrecorded})"
            case Kind.RELEASE:
                yield f"{row},{one.value or 0},0,{never},'')"
            case Kind.RENEW:
                yield f"{row},0,0,{never},{holder})"


def _died(gone: Iterable[str]) -> str:
    """SQL: True if the holder of a record is in `gone`."""
    names = ",".join(_text(owner) for owner in gone if owner)
    return f"holder IN ({names})" if names else "FALSE"


def _text(text: str) -> str:
    return f"_ascii x'{text.encode('ascii', 'replace').hex()}'"


def _day(one: Asked) -> int:
    day = one.place[1]
    return NO_DAY if day is None else day


@functools.cache
def _update(inserted: str) -> str:
    """Return the assignments, in their order; `{lease}`, `{retention}` and `{died}` are left to be filled in."""
    token, attempt, outcome, kind, holder = (inserted.format(name) for name in ("token", "next_attempt", "outcome", "step", "holder"))
    sends_back = f"{kind} = {Kind.RELEASE:d} AND {attempt} > 0"
    taken = f"{Transition.FREE:d}, {Transition.EXPIRED:d}"
    return f"""
step = CASE
    WHEN kept_until <= SYSDATE(6) THEN IF({kind} IN ({Kind.CLAIM:d}, {Kind.COMPLETE:d}), {Transition.FRESH:d}, {Transition.NONE:d})
    WHEN outcome = {Outcome.DEAD:d} AND {kind} = {Kind.COMPLETE:d} AND {outcome} = {Outcome.OK:d} THEN {Transition.HELD:d}
    WHEN outcome <> 0 THEN {Transition.NONE:d}
    WHEN {token} = 0 AND {kind} = {Kind.COMPLETE:d} AND {outcome} = {Outcome.OK:d} THEN {Transition.HELD:d}
    WHEN {kind} <> {Kind.CLAIM:d} THEN IF(token = {token}, {Transition.HELD:d}, {Transition.NONE:d})
    WHEN {attempt} < next_attempt THEN {Transition.NONE:d}
    WHEN token = {token} THEN {Transition.HELD:d}
    WHEN token = 0 THEN {Transition.FREE:d}
    WHEN leased_until <= SYSDATE(6) THEN {Transition.EXPIRED:d}
    WHEN {{died}} THEN {Transition.EXPIRED:d}
    ELSE {Transition.NONE:d} END,
epoch = CASE WHEN step = {Transition.FRESH:d} THEN 1 WHEN step IN ({taken}) THEN epoch + 1 ELSE epoch END,
lost = CASE
    WHEN step = {Transition.FRESH:d} THEN 0
    WHEN step = {Transition.HELD:d} THEN IF({sends_back}, 0, lost)
    WHEN step IN ({taken}) THEN IF({attempt} > next_attempt, 0, lost + (step = {Transition.EXPIRED:d}))
    ELSE lost END,
took_unreleased = CASE
    WHEN step = {Transition.HELD:d} THEN IF({kind} = {Kind.RELEASE:d}, 0, took_unreleased)
    WHEN step = {Transition.NONE:d} THEN took_unreleased
    ELSE step = {Transition.EXPIRED:d} END,
next_attempt = CASE
    WHEN step = {Transition.HELD:d} THEN IF({sends_back}, {attempt}, next_attempt)
    WHEN step = {Transition.NONE:d} THEN next_attempt
    ELSE {attempt} END,
outcome = IF(step = {Transition.NONE:d}, outcome, {outcome}),
token = IF(step = {Transition.NONE:d}, token, IF({kind} = {Kind.RELEASE:d}, 0, {token})),
leased_until = IF(step = {Transition.NONE:d}, leased_until,
    SYSDATE(6) + INTERVAL IF({kind} IN ({Kind.CLAIM:d}, {Kind.RENEW:d}), {{lease}}, 0) MICROSECOND),
kept_until = IF(step = {Transition.NONE:d}, kept_until, leased_until + INTERVAL {{retention}} MICROSECOND),
holder = IF(step = {Transition.NONE:d}, holder, {holder}),
step = CASE
    WHEN step = {Transition.FRESH:d} AND {kind} = {Kind.COMPLETE:d} THEN {Kind.COMPLETE:d}
    WHEN step = {Transition.HELD:d} AND {kind} = {Kind.RELEASE:d} THEN {Kind.RELEASE:d}
    ELSE {Kind.CLAIM:d} END"""


class MySQLStore(SQLClaims[Connections[Pool, Connection]]):
    """A claim store in the MariaDB or MySQL database of `url`; or on `pool`, an asyncmy pool, which stays yours: its settings are not
    touched, nor is it closed.

    `prefix` starts the names of the tables. `timeout` (seconds) bounds an exchange with all that it has to wait for. At most
    `max_size` connections are open. In the URL, `sslmode`, `sslrootcert`, `sslcert` and `sslkey` say how TLS is used, with the
    meaning that they have for PostgreSQL; without any of them there is none.

    Raises `ConfigurationError`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: Pool | None = None,
        prefix: str = "ackwise_",
        timeout: float = 5.0,
        max_size: int = 2,
    ) -> None:
        driver = Asyncmy(CLAIMS, url, pool, timeout=timeout, max_size=max_size, session=_session, maintenance_session=_maintenance_session)
        claims = _Claims(Tables(prefix), driver.address)
        maintained = Maintenance(claims.prepare, claims.create, claims.complaints, claims.clean)
        super().__init__(Connections(driver), claims.exchange, maintained, claims.listed)


class _Claims:
    """The claims in `tables`. The server decides, each round in one statement: see `statements`."""

    def __init__(self, tables: Tables, address: str) -> None:
        self._tables, self._address = tables, address
        self._layout = layout(tables, CLAIMS, address)
        self._server = MARIADB

    def exchange(self, exchange: Exchange) -> Steps[ExchangeResult]:
        return exchange_in_rounds(exchange, self._ask)

    def prepare(self) -> Steps[None]:
        yield from self.create()
        yield from maintenance.require_rights(self._tables, self._address)

    def create(self) -> Steps[None]:
        require_server(said := (yield from server()), self._address)
        self._server = server_of(said)
        yield from create(self._layout)

    def complaints(self) -> Steps[list[str]]:
        require_server((yield from server()), self._address)
        return (yield from complaints(self._layout, lambda: maintenance.complaints_of_claims(self._tables)))

    def clean(self) -> Steps[int]:
        return maintenance.clean_claims(self._layout, self._tables)

    def listed(self, after: tuple[int, str] | None) -> Steps[Page]:
        """List the records in the order of days and keys."""
        # Spelled out, as the optimizers read `(day, k) > (…)` from the start of the table.
        where = "TRUE" if after is None else f"day > {after[0]:d} OR (day = {after[0]:d} AND k > x'{after[1]}')"
        rows = yield from required(self._layout, lambda: self._read(f"{_LISTED} FROM {self._tables.claims} WHERE {where} {_IN_ORDER}"))
        records = [_remembered(*row[1:]) for row in rows if row[6] > row[7]]
        return Page(records, (rows[-1][0], text_of(rows[-1][1])) if len(rows) == PAGE else None)

    def _read(self, text: str) -> Steps[Sequence[Sequence[Any]]]:
        (found,) = yield [Statement(text)]
        return found.rows

    def _ask(self, some: Sequence[Asked], exchange: Exchange) -> Steps[Mapping[int, Answer]]:
        found = yield packet(self._tables, self._server, some, exchange)
        records = {row.place: row for row in starmap(Row, found[self._server.answer].rows)}
        return {one.position: answer(one, records[one.place]) for one in some}


_LISTED = """
SELECT day, LOWER(HEX(k)), outcome, token, holder, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', leased_until),
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', kept_until), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"""
_IN_ORDER = f"ORDER BY day, k LIMIT {PAGE}"


def _remembered(key: Any, outcome: int, token: int, holder: Any, leased_until: int, kept_until: int, now: int) -> Remembered:
    name, is_open = text_of(key), outcome == 0
    unrecorded = not is_open and text_of(holder) != ""
    return Remembered(hash_of(bytes.fromhex(name)), name, outcome, is_open and token != 0, unrecorded, leased_until, kept_until, now)


def _session(timeout: float) -> str:
    """Return the settings of a connection for exchanges: the server's timeout is below ours, so that its error names the cause."""
    return _settings(max(1, int(timeout * 0.8)), timeout * 0.9)


def _maintenance_session(_timeout: float) -> str:
    return _settings(int(MAINTENANCE_TIMEOUT), MAINTENANCE_TIMEOUT)


def _settings(lock_timeout: int, statement_timeout: float) -> str:
    """Return SQL for these seconds. The comment holds the part for MariaDB alone."""
    return (
        f"SET SESSION sql_notes = 0, innodb_lock_wait_timeout = {lock_timeout} /*M! , max_statement_time = {statement_timeout} */; "
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    )


def from_url(url: str) -> MySQLStore:
    """Return the store of `mysql://user:password@host:3306/database`, or `mariadb://…`.

    Options follow as a query: `?prefix=…&timeout=2.5&max_size=2`, and `sslmode`, `sslrootcert`, `sslcert`, `sslkey`.
    Raises `ConfigurationError`.
    """
    address, options = parse(url)
    return MySQLStore(address, **options._asdict())
