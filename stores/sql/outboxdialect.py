"""`Dialect`: the words of one database for the statements of an outbox, what its packets look like, and the rights that it takes.

Most statements differ in a few words, and are templates of the operations; where a whole one differs it is a word.

    {now}  {later value}  {at value}      the clock; the time in `value` seconds, and at so many seconds since 1970
    {until column}  {age column}          seconds from now until then, and since then
    {epoch}  {ms column}                  seconds since 1970; milliseconds since 1970
    {instant}                             one time for a whole statement
    {moment}  {moment_later value}        one time for all statements of a packet, and `value` seconds after it
    {among values}                        after a column: it is one of a list
    {mine}                                selects the shards that are ours by their tokens, which are the value `mine`
    {locked}  {shared}                    after a SELECT: nobody else changes or locks its rows; it reads what is committed by now
    {by_id}  {by_due}  {by_tx}            after a table: the index that leads to the rows
    {deleting}  {deleting_barriers}       begins a DELETE of rows, which are `r`, or of barriers, which are `b`
    {renewing}  {claiming}  {keeping}     after an INSERT: a lease that is there is renewed; around one: what is there stays
    {cause}  {partition}                  the value and the column of that name
    {counted where}                       FROM rows; gives their `number` and the `age` of the oldest
    {pending}  {put_behind}  {freed}      see `Relaying`
    {held}  {last_of firsts}              see `Dialect.held`
    {holder}  {is_behind alias}           the key of a row that others may wait behind; whether a row waits behind an earlier one of its key
    {blocker}  {is_blocked}               the first row that later ones of the key of `r` wait for; whether `r` is one of these
    {judged rows}                         a part of WITH: the rows with `is_blocked`
    {sooner}                              when a row is due that has an old id and is to be sent at once
    {deleted}  {kept blank}  {failed}     rows that were sent go, or stay without some columns; a failure is counted
    {due}  {answered}  {prepared}         see `Preparing`

`Operations`: what the operations of an outbox have in common, and `asked`, which makes a method of the steps of one.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CoroutineType
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.storage.outbox import RowState, TransactionOutcome
from ackwise.stores.protocol.outbox import Keeping, LeaseClock, RowColumns, Wakes
from ackwise.stores.sql.operation import Answer, Failure, Packet, Placeholders, Problem, Statement, Steps, Templates
from ackwise.stores.sql.outboxwriting import Business
from ackwise.stores.sql.schema import STATES

OF_BUSINESS: Final = {"rows": ["INSERT"], "barrier": ["SELECT", "INSERT"], "meta": ["SELECT"]}
OF_RELAY: Final = {
    "rows": ["SELECT", "UPDATE", "DELETE"],
    "shards": ["SELECT", "UPDATE"],
    "relays": ["SELECT", "INSERT", "UPDATE", "DELETE"],
    "barrier": ["SELECT", "INSERT"],
    "meta": ["SELECT", "INSERT"],
}


def require_rights(sql: Dialect, address: str) -> Steps[None]:
    """Raise `ConfigurationError` if the user may do neither what a business transaction does nor what a relay does."""
    missing = yield from missing_rights(sql, OF_BUSINESS)
    if missing and (yield from missing_rights(sql, OF_RELAY)):
        raise ConfigurationError(f"{address}: {missing[0]}")


def missing_rights(sql: Dialect, needed: Mapping[str, Sequence[str]]) -> Steps[list[str]]:
    """Return one sentence for each table that the user may do less with than is `needed`."""
    said = []
    for table, rights in needed.items():
        missing = list(rights)
        for right in rights:
            if (yield from _is_granted(sql.may(right, table))):
                missing.remove(right)
        if missing:
            said.append(f"this user has no right to {', '.join(missing)} on {sql.tables[table]}; let its owner grant it")
    return said


def _is_granted(attempt: Packet) -> Steps[bool]:
    try:
        answers = (yield attempt) if attempt else ()
    except Failure as failure:
        if failure.problem is not Problem.FORBIDDEN:
            raise
        return False
    return not answers or not answers[0].rows or bool(answers[0].rows[0][0])


#: Columns that make an `Outgoing`, in the order that rows are read with.
MESSAGE: Final = "topic, value, message_key, headers, {partition}, message_id"
#: Columns of a half message.
DUE_COLUMNS: Final = "id, tx_id, checks, {ms created}, producer_group, barrier_in, due IS NOT NULL, " + MESSAGE
#: Half messages of a group that are due; or, without one, all those whose barrier is in this database.
DUE: Final = """state = {PREPARED} AND next_at <= {now} AND (producer_group = :producer_group
    OR :producer_group IS NULL AND barrier_in = (SELECT value FROM {meta} WHERE name = 'database_id')) ORDER BY next_at, id LIMIT :limit"""
# What the broker acknowledged may be deleted by any relay; a failure that is not the owner's may not be written beside the owner.
_OF_MINE: Final = " AND r.state = {LOCAL_COMMIT} AND r.shard IN ({mine})"

_COLUMNS: Final = ", ".join("{partition}" if column == "partition" else column for column in RowColumns._fields)
_VALUES: Final = ", ".join(f":{column}" for column in RowColumns._fields)

#: The words of a database that has no arrays, and those of all databases.
WORDS: Final = {
    "by_id": "",
    "by_due": "",
    "by_tx": "",
    "by_key": "",
    "holder": "key_hash",
    "is_behind": "{it}.behind",
    "holds_up": "{it}.key_hash IS NOT NULL AND ({it}.attempts > 0 OR {it}.behind)",
    "instant": "{now}",
    "sooner": "NULL",
    "shared": "",
    "deleting": "DELETE FROM {rows} AS r",
    "deleting_barriers": "DELETE FROM {barrier} AS b",
    "renewing": "ON CONFLICT (owner) DO UPDATE SET leased_until = excluded.leased_until",
    "claiming": "INSERT",
    "keeping": "ON CONFLICT DO NOTHING",
    "cause": ":cause",
    # What the times of a row are from now on; and those of a half message that is decided, which has no time of a next check then.
    "expiry": "CASE WHEN expires < 0 THEN {epoch} - expires ELSE expires END",
    "decided_at": "coalesce({due_time}, {sooner})",
    "decided": "next_at = {decided_at}, expires = {expiry}",
    "partition": "partition",
    "counted": "(SELECT count(*) AS number, {age min(created)} AS age FROM {rows} WHERE {it})",
    "deleted": "{deleting} WHERE r.id {among ids}" + _OF_MINE,
    "ours": "r.id {among ids}" + _OF_MINE,
    "kept": "UPDATE {rows} AS r {by_id} SET state = {GLOBAL_COMMIT}, next_at = {later keep}, cause = NULL, key_hash = NULL{it}"
    " WHERE r.id {among ids}" + _OF_MINE,
    "failed": "UPDATE {rows} AS r {by_id} SET attempts = attempts + 1, cause = {cause}, state = :state, behind = FALSE,"
    " next_at = {later again_in}"
    " WHERE r.id = :id AND r.state = {LOCAL_COMMIT} AND r.shard = :shard AND :token = (SELECT token FROM {shards} WHERE shard = :shard)",
    "due": "SELECT id FROM {rows} {by_due} WHERE " + DUE,
    # Only the half message that is still open is changed: the first decision stands.
    "answered": "UPDATE {rows} {by_id} SET state = :state, checks = checks + :checks, cause = {cause},"
    " next_at = coalesce({later again_in}, {due_time}), expires = CASE WHEN :again_in IS NULL THEN {expiry} ELSE expires END"
    " WHERE id = :id AND state = {PREPARED}",
    # Whether an earlier row of the key holds it up: one that waits itself, is not due again yet, or is parked because it could not be sent.
    # The first one is looked for, which an index finds among any number; for MySQL the order has to name all columns of that index. One
    # moment for the whole statement: a row that became due in the middle of it would be left out, and hold up nothing.
    "blocker": """(
    SELECT earlier.id FROM {rows} AS earlier {by_key} WHERE earlier.{holder} = r.key_hash AND {holds_up earlier} AND (earlier.behind
        OR earlier.state = {LOCAL_COMMIT} AND earlier.next_at > {instant} OR earlier.state = {MESSAGE_ERROR} AND :block_key)
    ORDER BY earlier.{holder}, earlier.id LIMIT 1
)""",
    "is_blocked": "coalesce({blocker} < r.id, FALSE)",
    # The rows of `it`, each with whether it is blocked. It is looked for once for each key, however many of its rows there are.
    "judged": """
numbered AS (
    SELECT {it}.*, key_hash IS NOT NULL AND row_number() OVER (PARTITION BY key_hash ORDER BY id) = 1 AS is_first FROM {it}
), looked AS (
    SELECT r.*, CASE WHEN is_first THEN {blocker} END AS blocked_by FROM numbered AS r
), judged AS (
    SELECT looked.*, key_hash IS NOT NULL AND coalesce(max(blocked_by) OVER (PARTITION BY key_hash) < id, FALSE) AS is_blocked
    FROM looked
)""",
    # A row without the hash of its key, which another program wrote, waits for none.
    "put_behind": "UPDATE {rows} AS r {by_id} SET behind = TRUE"
    " WHERE r.id {among ids} AND r.state = {LOCAL_COMMIT} AND NOT r.behind AND r.key_hash IS NOT NULL",
    # Each key is looked at once, however many rows wait: the next keys after one, with the first row of each that waits.
    "held": """
WITH RECURSIVE held (key_hash, place) AS (
    SELECT (SELECT b.{holder} FROM {rows} AS b {by_key} WHERE {is_behind b} AND b.{holder} > :after ORDER BY b.{holder} LIMIT 1), 1
    UNION ALL
    SELECT (SELECT b.{holder} FROM {rows} AS b {by_key} WHERE {is_behind b} AND b.{holder} > held.key_hash ORDER BY b.{holder} LIMIT 1),
        place + 1
    FROM held WHERE held.key_hash IS NOT NULL AND place < :keys
), firsts (key_hash, id) AS (
    SELECT h.key_hash, (
        SELECT b.id FROM {rows} AS b {by_key} WHERE {is_behind b} AND b.{holder} = h.key_hash ORDER BY b.{holder}, b.id LIMIT 1
    )
    FROM held AS h WHERE h.key_hash IS NOT NULL
)
SELECT r.key_hash, r.id, {last_of r} FROM firsts AS r ORDER BY r.key_hash""",
    "last_of": """
CASE WHEN NOT {is_blocked} THEN coalesce((
    SELECT b.id FROM {rows} AS b {by_key} WHERE {is_behind b} AND b.{holder} = {it}.key_hash ORDER BY b.{holder}, b.id LIMIT 1 OFFSET 999
), 9223372036854775807) END""",
    "freed": "UPDATE {rows} AS r {by_key} SET behind = FALSE, next_at = {sooner}"
    " WHERE r.{holder} = :key_hash AND {is_behind r} AND r.id BETWEEN :first AND :last",
    "prepared": f"INSERT INTO {{rows}} ({_COLUMNS}, created, state, next_at, tx_id, producer_group, barrier_in)"
    f" VALUES ({_VALUES}, {{now}}, :state, {{later first_check}}, :tx_id, :producer_group, :barrier_in)",
}


class Around(NamedTuple):
    """Statements that start and end a transaction, as templates."""

    before: Sequence[str] = ()
    after: Sequence[str] = ()


class Dialect:
    """`words` are what is different here, `tables` the tables of the outbox by their names in templates."""

    reading: Around = Around()
    """Around one statement that reads."""
    alone: Around = Around()
    """Around one statement that writes."""
    writing: Around
    """Around more than one: a transaction in which each sees what is committed by then."""
    patient: Around
    """The same for statements that wait for a lock for `wait` seconds."""
    gave_up: Around = Around()
    """Ends such a transaction after a failure; one statement that reads comes in the middle."""
    signing_in: Sequence[str] = ()
    """Statements before the renewal of a relay's lease."""
    locking: Sequence[str] = ()
    """Locks shards before a statement over rows would, in the order that `own` does it."""
    taking: Sequence[str] = ()
    """Sets `{moment}`."""
    waiting: Sequence[str] = (f"state = {RowState.LOCAL_COMMIT:d}",)
    """Where rows to be sent are, each by its own index."""
    has_arrays: bool = False
    """True if one statement takes the columns of many rows, instead of one statement for each row."""
    takes_at_once: bool = False
    """True if `{due}` claims the half messages that it finds, and returns them whole."""
    has_server: bool = True
    """True if the clock is a server's, which may jump."""

    def __init__(self, words: Mapping[str, str], tables: Mapping[str, str], placeholders: Placeholders) -> None:
        self.tables = tables
        self._templates = Templates({**WORDS, **words}, {**tables, **STATES}, placeholders)

    def say(self, template: str, **values: Any) -> Statement:
        """Return the statement with its values."""
        return self._templates(template, values)

    def say_all(self, templates: Iterable[str], **values: Any) -> Packet:
        """Return several with the same values, at the same time."""
        return [self.say(template, **values) for template in templates]

    def pending(self, **seek: Any) -> Steps[Sequence[Sequence[Any]]]:
        """Return the rows of `{pending}`."""
        return self.read(self.say("{pending}", **seek))

    def held(self, after: int, keys: int, block_key: bool) -> Steps[Sequence[Sequence[Any]]]:
        """Return the next keys above `after` of which rows wait behind another, by key: with the first such row, and the last that may go
        on, some 1,000 rows later; `None` where an earlier row still holds it up.
        """
        return (yield from self.read(self.say("{held}", after=after, keys=keys, block_key=block_key)))

    def each(self, template: str, rows: Sequence[Any], **values: Any) -> Packet:
        """Return what does `template` for each of `rows`, which are named tuples."""
        if not self.has_arrays:
            return [self.say(template, **row._asdict(), **values) for row in rows]
        columns = zip(*rows, strict=True)
        return [self.say(template, **dict(zip(rows[0]._fields, columns, strict=True)), **values)]

    def within(self, around: Around, packet: Packet, **values: Any) -> Steps[Sequence[Answer]]:
        """Return the answers of `packet`, which is one transaction."""
        if not around.before:
            return (yield packet)
        before, after = (self.say_all(templates, **values) for templates in around)
        answers = yield [*before, *packet, *after]
        return answers[len(before) : len(before) + len(packet)]

    def read(self, statement: Statement) -> Steps[Sequence[Sequence[Any]]]:
        """Return the rows of one statement, as they are by now."""
        (answer,) = yield from self.within(self.reading, [statement])
        return answer.rows

    def first(self, template: str, **values: Any) -> Steps[Any]:
        """Return the first value of the first row, if there is one."""
        rows = yield from self.read(self.say(template, **values))
        return rows[0][0] if rows else None

    def write(self, *packet: Statement) -> Steps[Sequence[Answer]]:
        """Return the answers of `packet`, which is one transaction."""
        return (yield from self.within(self.alone if len(packet) == 1 else self.writing, packet))

    def prepare(self, rows: Sequence[RowColumns], half: Mapping[str, Any]) -> Steps[None]:
        """Insert half messages, or rows to be sent, in one transaction."""
        yield from self.write(*self.each("{prepared}", rows, **half))

    def require_fit(self, rows: Sequence[RowColumns]) -> Steps[None]:
        """Raise `ConfigurationError` for a row that the server does not take in one statement."""
        yield from ()

    def may(self, right: str, table: str) -> Packet:
        """Ask whether the user has the right, which the first row says, or a failure; nothing where there are no rights."""
        return ()

    def require_settings(self) -> Steps[None]:
        """Raise `ConfigurationError` for settings of the server with which nothing can be promised."""
        yield from ()

    def settings(self) -> Steps[list[str]]:
        """Return what is unwise about the settings of the server."""
        yield from ()
        return []


def changed(answers: Iterable[Answer]) -> int:
    """Return how many rows were changed: what the last statement has counted, or else what those have that answer with no rows."""
    *_, last = found = list(answers)
    return int(last.rows[0][0]) if last.rows else sum(answer.changed for answer in found if not answer.rows)


P = ParamSpec("P")
T = TypeVar("T")
Self = TypeVar("Self", bound="Operations")

_Steps: TypeAlias = Callable[Concatenate[Self, P], Steps[T]]
_Method: TypeAlias = Callable[Concatenate[Self, P], "CoroutineType[Any, Any, T]"]


class Operations(abc.ABC):
    """An outbox at `address` in the words of `sql`; `wakes` are the commits of this process."""

    def __init__(self, sql: Dialect, address: str, timeout: float, keeping: Keeping, wakes: Wakes) -> None:
        super().__init__()
        self.keeping = keeping  #: what stays of rows that need not be sent
        self._sql, self._address, self._timeout, self._wakes = sql, address, timeout, wakes
        self._seen = wakes.count  #: commits of this process before the last `pending`
        self._server_clock = LeaseClock()
        self.waits_behind = True  #: whether a row may wait behind another one, as far as is known here
        self.has_more = False  #: whether the last `pending` ended although there may be more rows
        self._free_after = 0  #: the key that the last call of `free` came to

    def wake(self) -> None:
        """See `Outbox.wake`; relays of other processes look by themselves."""
        self._wakes.wake()

    def _signing_in(self, owner: str, share: int) -> int:
        """A relay is about to take `share` shards; return how many it may. Raises `ConfigurationError` where there can be one only."""
        return share

    def _signed_out(self) -> None:  # noqa: B027  # there is nothing to do where relays need no proof that they are alone
        """It has left."""

    def _woken(self, count: int, *outcomes: TransactionOutcome) -> int:
        """Wake relays if rows changed and may be sent now; return how many changed."""
        if count and TransactionOutcome.COMMIT in outcomes:
            self.wake()
        return count

    @abc.abstractmethod
    async def _run(self, begin: Callable[[], Steps[T]], *, repeats: bool = True) -> T:
        """See `Runs.run`."""

    @abc.abstractmethod
    def _through(self, connection: Any) -> Business:
        """Return the way through a connection of the business. Raises `ConfigurationError` for another driver's."""


def asked(*, repeats: bool) -> Callable[[_Steps[Self, P, T]], _Method[Self, P, T]]:
    """The decorator of the steps of a method, which are run as an operation of our own. See `Runs.run`."""

    def decorate(steps: _Steps[Self, P, T]) -> _Method[Self, P, T]:
        @functools.wraps(steps)
        async def method(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._run(functools.partial(steps, self, *args, **kwargs), repeats=repeats)

        return method  # type: ignore[return-value]  # mypy takes what is asynchronous for any coroutine, pyright does not

    return decorate
