"""`Relaying`: the operations of a relay on shards and due rows; `Preparing`: those on half messages and barriers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import (
    FIRST_CHECK,
    MOST_BYTES,
    Begun,
    CheckAnswer,
    Failed,
    Holder,
    OutboxRow,
    Prepared,
    RowState,
    Sent,
    TransactionOutcome,
    UnreadableRow,
    key_hash,
)
from ackwise.middleware.storage.rowtime import AT_ONCE, Timing
from ackwise.stores.protocol.outbox import (
    DECIDED,
    UNTIMED,
    Shard,
    cause_of,
    columns_of,
    divide,
    holder_of,
    prepared_of,
    row_of,
    state_of,
    text_of,
)
from ackwise.stores.sql.operation import Failure, Problem, Steps
from ackwise.stores.sql.outboxdialect import DUE_COLUMNS, OF_RELAY, Dialect, Operations, asked, changed, missing_rights

_SIGN_IN: Final = "INSERT INTO {relays} (owner, leased_until) VALUES (:owner, {later lease}) {renewing}"
_SHARDS: Final = "SELECT shard, token, owner, leased_until > {now}, {epoch} FROM {shards} ORDER BY shard {locked}"
_DIVIDE: Final = """
UPDATE {shards} SET owner = CASE WHEN shard {among give} THEN '' ELSE :owner END,
    token = token + CASE WHEN shard {among take} THEN 1 ELSE 0 END,
    leased_until = CASE WHEN shard {among give} THEN {now} ELSE {later lease} END
WHERE shard {among changed}
"""
# In the order in which `own` takes its locks.
_LEAVE: Final = ("DELETE FROM {relays} WHERE owner = :owner", _SHARDS, "UPDATE {shards} SET owner = '' WHERE owner = :owner")
_RELAYS: Final = "SELECT count(*) FROM {relays} WHERE leased_until > {now}"
_CLAIM: Final = "{claiming} INTO {meta} (name, value) VALUES ('relay_kind', :kind) {keeping}"
_KIND: Final = "SELECT value FROM {meta} WHERE name = 'relay_kind'"
_RELEASE: Final = "DELETE FROM {meta} WHERE name = 'relay_kind'"
_HOLDERS: Final = """
SELECT id, topic, message_key, state FROM (
    SELECT id, topic, message_key, state FROM {rows} {by_due}
    WHERE state = {LOCAL_COMMIT} AND NOT behind AND next_at IS NOT NULL AND due IS NULL AND attempts > 0 AND id > :after
    ORDER BY id LIMIT :limit
) AS again
UNION ALL
SELECT id, topic, message_key, state FROM (
    SELECT id, topic, CASE WHEN key_hash IS NOT NULL THEN message_key END AS message_key, state FROM {rows} {by_due}
    WHERE state = {MESSAGE_ERROR} AND attempts > 0 AND id > :after ORDER BY id LIMIT :limit
) AS parked ORDER BY id LIMIT :limit
"""
_THERE: Final = "SELECT id FROM {rows} {by_id} WHERE id {among ids} AND state = {LOCAL_COMMIT}"
_BEGIN: Final = "UPDATE {rows} AS r {by_id} SET expires = NULL WHERE {ours} AND r.expires > {epoch}"
_BEGUN: Final = "SELECT r.id, r.expires FROM {rows} AS r {by_id} WHERE {ours} AND (r.expires IS NULL OR r.expires <= {epoch})"
_EXPIRE: Final = """
UPDATE {rows} AS r {by_id} SET state = {EXPIRED}, next_at = {now}, cause = 'expired' WHERE {ours} AND r.expires <= {epoch}"""
_NEXT_DUE: Final = """
SELECT {until min(next_at)} FROM {rows} {by_due}
WHERE state = {LOCAL_COMMIT} AND next_at IS NOT NULL AND next_at > {now} AND shard {among shards}
"""


#: Rows that are read at once at least, since they may be blocked, twice as many each time that some were; and how often.
_AT_LEAST: Final = 200
_LOOKS: Final = 6

#: Keys that one call of `free` looks at; and of how many it lets rows go on in one transaction, 1,000 of each at most.
_KEYS: Final = 1000
_AT_ONCE: Final = 10
#: Rows that one call of `free` lets go on, and a few more.
_FREED: Final = 20_000


class _Going(NamedTuple):
    """Rows of a key that go on, from one id to another."""

    key_hash: int
    first: int
    last: int


class _Failing(NamedTuple):
    """The new state of a row after a failure."""

    id: int
    cause: str
    state: RowState
    again_in: float
    shard: int
    token: int


class Relaying(Operations):
    """See `RelayStore`.

    `{pending}` gives rows that are due, by id: id, shard, attempts, created in ms, bytes, whether the row is blocked, and what makes an
    `Outgoing`. Blocked rows come without a value and are put behind (`{put_behind}`), where `{pending}` does not look. `{freed}` lets
    those go on that wait behind none any more.
    """

    @asked(repeats=True)
    def claim_relay(self, kind: str) -> Steps[None]:
        if missing := (yield from missing_rights(self._sql, OF_RELAY)):
            raise ConfigurationError(f"{self._address}: {missing[0]}")
        yield from self._sql.write(self._sql.say(_CLAIM, kind=kind))
        if (found := text_of((yield from self._sql.first(_KIND)))) != kind:
            raise ConfigurationError(
                f"{self._address}: relays of kind {found!r} send the rows of this outbox, and one of kind {kind!r} would send them again; "
                "stop all of those first, then call ackwise outbox release"
            )

    @asked(repeats=True)
    def release_relay(self) -> Steps[None]:
        if alive := (yield from self._sql.first(_RELAYS)):
            raise ConfigurationError(f"{self._address}: {alive} relays have a lease; stop them, and try again when it has ended")
        yield from self._sql.write(self._sql.say(_RELEASE))

    @asked(repeats=True)
    def own(self, owner: str, *, lease: float, share: int) -> Steps[Mapping[int, int]]:
        """See `RelayStore.own`. One relay at a time divides: the shards are locked."""
        share = self._signing_in(owner, share)
        begin, commit = self._sql.writing
        asking = (*begin, *self._sql.signing_in, _SIGN_IN, _SHARDS)
        *_, found = yield self._sql.say_all(asking, owner=owner, lease=lease)
        trusts = self._server_clock.is_trusted(float(found.rows[0][4]), lease) if found.rows else True
        shards = [Shard(number, token, text_of(whose), bool(is_leased) or not trusts) for number, token, whose, is_leased, _ in found.rows]
        keep, take, give = divide(shards, owner, share)
        divided = self._sql.say(_DIVIDE, owner=owner, lease=lease, take=take, give=give, changed=[*keep, *take, *give])
        yield [divided, *self._sql.say_all(commit)]
        tokens = {shard.number: shard.token for shard in shards}
        return {shard: tokens[shard] for shard in keep} | {shard: tokens[shard] + 1 for shard in take}

    @asked(repeats=True)
    def relays(self) -> Steps[int]:
        return int((yield from self._sql.first(_RELAYS)))

    @asked(repeats=True)
    def leave(self, owner: str) -> Steps[None]:
        yield from self._sql.write(*self._sql.say_all(_LEAVE, owner=owner))
        self._signed_out()

    @asked(repeats=True)
    def pending(
        self,
        shards: Mapping[int, int],
        *,
        limit: int,
        most: int = MOST_BYTES,
        under_way: Collection[int] = (),
        blocked: Collection[tuple[str, bytes]] = (),
        block_key: bool = True,
    ) -> Steps[list[OutboxRow]]:
        """See `RelayStore.pending`. What is found blocked is put behind and not read again, so nothing that comes after it is slowed."""
        self._seen, self.has_more = self._wakes.count, False
        if not shards:
            return []
        seek = {"shards": sorted(shards), "blocked": [key_hash(topic, key) for topic, key in blocked], "block_key": block_key}
        given, left_out, size = list[OutboxRow](), list(under_way), 0
        for look in range(_LOOKS):
            if len(given) >= limit or size >= most:
                break
            at_once = max(limit - len(given), _AT_LEAST << look)
            found = yield from self._sql.pending(**seek, limit=at_once, under_way=left_out, most=most - size)
            rows = [row_of(row) for row in [row for row in found if not row[5]][: limit - len(given)]]
            given += rows
            held_up = [row[0] for row in found if row[5]]
            if not held_up:
                break
            yield from self._sql.write(self._sql.say("{put_behind}", ids=held_up))
            self.waits_behind = True
            size += sum(len(row.message.value or b"") for row in rows)
            left_out += [row.id for row in rows]
        else:
            self.has_more = True
            self._seen -= 1  # the next wait for rows ends at once
        return given

    @asked(repeats=True)
    def free(self, *, block_key: bool = True) -> Steps[bool]:
        """See `RelayStore.free`. With `block_key` a parked row is one to wait behind."""
        found = yield from self._sql.held(self._free_after, _KEYS, block_key)
        going, freed = [_Going(key, first, last) for key, first, last in found if last is not None], 0
        self.waits_behind = bool(found) or self._free_after > 0
        self._free_after = found[-1][0] if len(found) == _KEYS else 0
        while going and freed < _FREED:
            some, going = going[:_AT_ONCE], going[_AT_ONCE:]
            freed += changed((yield from self._sql.write(*self._sql.each("{freed}", some))))
        if going:
            self._free_after = going[0].key_hash - 1
        if freed:
            self.wake()
        return self._free_after > 0

    @asked(repeats=True)
    def hold(self, ids: Collection[int]) -> Steps[set[int]]:
        """See `RelayStore.hold`."""
        *_, found = yield from self._sql.write(*self._sql.say_all(("{put_behind}", _THERE), ids=sorted(ids)))
        self.waits_behind = True
        return {id for (id,) in found.rows}

    @asked(repeats=True)
    def sent(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> Steps[int]:
        if not (mine := _mine(rows, shards)):
            return 0
        blank = "".join(f" , {column} = NULL" for column in self.keeping.blanked)
        template = f"{{kept{blank}}}" if self.keeping.sent else "{deleted}"
        ended = self._sql.say(template, ids=[row.id for row in rows], keep=self.keeping.sent, **mine)
        return changed((yield from self._sql.write(*self._sql.say_all(self._sql.locking, **mine), ended)))

    @asked(repeats=False)
    def failed(self, failures: Sequence[Failed], shards: Mapping[int, int]) -> Steps[int]:
        """See `RelayStore.failed`. Not repeated by itself: an attempt would count twice."""
        if not (mine := _mine(failures, shards)):
            return 0
        ours = sorted((failure for failure in failures if failure.shard in shards), key=lambda failure: failure.id)
        failing = [_failing(failure, shards[failure.shard]) for failure in ours]
        return changed(
            (yield from self._sql.write(*self._sql.say_all(self._sql.locking, **mine), *self._sql.each("{failed}", failing, **mine)))
        )

    @asked(repeats=True)
    def begin(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> Steps[Begun]:
        """See `RelayStore.begin`."""
        if not (mine := _mine(rows, shards)):
            return Begun()
        ids = [row.id for row in rows]
        *_, found = yield from self._sql.write(*self._sql.say_all((*self._sql.locking, _BEGIN, _BEGUN), ids=ids, **mine))
        return Begun({id for id, expires in found.rows if expires is None}, {id for id, expires in found.rows if expires is not None})

    @asked(repeats=True)
    def expire(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> Steps[int]:
        """See `RelayStore.expire`."""
        if not (mine := _mine(rows, shards)):
            return 0
        ids = [row.id for row in rows]
        return changed((yield from self._sql.write(*self._sql.say_all((*self._sql.locking, _EXPIRE), ids=ids, **mine))))

    @asked(repeats=True)
    def holders(self, *, limit: int = 500, after: int = 0) -> Steps[list[Holder]]:
        return [holder_of(row) for row in (yield from self._sql.read(self._sql.say(_HOLDERS, limit=limit, after=after)))]

    async def wait_for_rows(self, at_most: float) -> bool:
        """See `RelayStore.wait_for_rows`; commits of other processes end the wait only where the database notifies."""
        return await self._wakes.begin(self._seen).wait(at_most)

    @asked(repeats=True)
    def next_due(self, shards: Mapping[int, int]) -> Steps[float | None]:
        seconds: float | None = yield from self._sql.first(_NEXT_DUE, shards=sorted(shards))
        return seconds


def _mine(rows: Sequence[Sent | Failed], shards: Mapping[int, int]) -> dict[str, list[object]]:
    """The shards of `rows` that are ours, with the tokens that we know: as pairs, and each by itself. Nothing if there are none."""
    mine = [(shard, shards[shard]) for shard in sorted({row.shard for row in rows} & shards.keys())]
    return {"mine": [*mine], "mine_shards": [shard for shard, _ in mine], "mine_tokens": [token for _, token in mine]} if mine else {}


def _failing(failure: Failed, token: int) -> _Failing:
    id, shard, cause, again_in = failure
    state = RowState.MESSAGE_ERROR if again_in is None else RowState.LOCAL_COMMIT
    return _Failing(id, cause_of(cause), state, again_in or 0.0, shard, token)


_DATABASE_ID: Final = "SELECT value FROM {meta} WHERE name = 'database_id'"
_BARRIER: Final = "INSERT INTO {barrier} (tx_id, outcome, created) VALUES (:tx_id, :outcome, {now}) {keeping}"
_OUTCOME: Final = "SELECT outcome FROM {barrier} WHERE tx_id = :tx_id"
_OF_TRANSACTION: Final = "tx_id = :tx_id AND tx_id <> ''"
_DECIDED: Final = f"UPDATE {{rows}} {{by_tx}} SET state = :state, {{decided}} WHERE {_OF_TRANSACTION} AND state = {{PREPARED}}"
_STATES: Final = f"SELECT DISTINCT state FROM {{rows}} {{by_tx}} WHERE {_OF_TRANSACTION}"
_NEW: Final = {"partition": "{partition} = :partition", "key_hash": "key_hash = CASE WHEN due IS NULL THEN :key_hash ELSE key_hash END"}
_CONTENT: Final = ", ".join(_NEW.get(name, f"{name} = :{name}") for name in UNTIMED)
_ANSWERED_WITH: Final = f"""
UPDATE {{rows}} {{by_id}} SET state = {{LOCAL_COMMIT}}, {{decided}}, cause = NULL, {_CONTENT}
WHERE id = :id AND state = {{PREPARED}}"""
_STILL_DUE: Final = " WHERE id {among ids} AND state = {PREPARED} AND next_at <= {moment}"
_TAKE: Final = "SELECT " + DUE_COLUMNS + " FROM {rows} {by_id}" + _STILL_DUE + " ORDER BY id {locked}"
_TAKEN: Final = "UPDATE {rows} {by_id} SET next_at = {moment_later lease}" + _STILL_DUE
_GIVE_BACK: Final = "UPDATE {rows} {by_id} SET next_at = {now} WHERE id {among ids} AND state = {PREPARED}"

#: What a barrier says of its local transaction.
_COMMITTED, _NOT_BEGUN = "C", "R"

#: Failures after which it is unknown who was first.
_UNDECIDED: Final = (Problem.BUSY, Problem.CONFLICT, Problem.DUPLICATE)

_TWICE: Final = "the local transaction {tx_id} has committed before, or called its barrier twice; use a new one for each transaction"
_CHECKED: Final = "a check-back took the local transaction {tx_id} for rolled back, as it had not started; nothing of it stays"


class _Decision(NamedTuple):
    """The new state of a half message after an answer to its check-back."""

    id: int
    state: RowState
    checks: int
    """How many it adds."""
    again_in: float | None
    cause: str | None


class Preparing(Operations):
    """See `PreparedStore`. `{due}` gives the ids of half messages that are due, or takes them at once."""

    @asked(repeats=True)
    def _database_id(self) -> Steps[str]:
        return text_of((yield from self._sql.first(_DATABASE_ID)))

    async def database_id(self, connection: Any | None = None) -> str:
        if connection is None:
            return await self._database_id()
        return await self._through(connection).run(read_id(self._sql))

    async def barrier(self, connection: Any, tx_id: str) -> None:
        business = self._through(connection)
        if not (business.is_open() or business.begins_by_itself):
            raise ConfigurationError(f"the barrier of {tx_id} has to be in the local transaction, and none is open; start one")
        await business.run(set_barrier(self._sql, tx_id))

    @asked(repeats=True)
    def probe(self, tx_id: str, *, wait: float) -> Steps[TransactionOutcome]:
        """See `BarrierStore.probe`; it waits for less than the timeout in any case.

        A barrier that is there was committed; if its transaction still runs, or was undone meanwhile, the outcome is unknown.
        """
        look = self._sql.say(_OUTCOME, tx_id=tx_id)
        try:
            insert = self._sql.say(_BARRIER, tx_id=tx_id, outcome=_NOT_BEGUN)
            *_, answer = yield from self._sql.within(self._sql.patient, [insert, look], wait=min(wait, self._timeout / 2))
        except Failure as failure:
            if failure.problem not in _UNDECIDED:
                raise
            (answer,) = yield from self._sql.within(self._sql.gave_up, [look])
        if not answer.rows:
            return TransactionOutcome.UNKNOWN
        return TransactionOutcome.COMMIT if answer.rows[0][0] == _COMMITTED else TransactionOutcome.ROLLBACK

    @asked(repeats=False)
    def prepare(
        self,
        messages: Sequence[Outgoing],
        tx_id: str,
        *,
        producer_group: str,
        barrier_in: str = "",
        first_check: float = FIRST_CHECK,
        timing: Timing = AT_ONCE,
    ) -> Steps[None]:
        """See `PreparedStore.prepare`. Not repeated by itself: rows could be there twice."""
        if rows := [columns_of(message, timing) for message in messages]:
            half = {
                "state": RowState.PREPARED,
                "tx_id": tx_id,
                "producer_group": producer_group,
                "barrier_in": barrier_in,
                "first_check": first_check,
            }
            yield from self._sql.prepare(rows, half)

    @asked(repeats=False)
    def save(self, messages: Sequence[Outgoing]) -> Steps[None]:
        """See `PreparedStore.save`. Not repeated by itself: rows could be there twice."""
        if rows := [columns_of(message) for message in messages]:
            half = {"state": RowState.LOCAL_COMMIT, "tx_id": "", "producer_group": "", "barrier_in": "", "first_check": None}
            yield from self._sql.prepare(rows, half)
            self.wake()

    @asked(repeats=True)
    def decide(self, tx_id: str, outcome: TransactionOutcome) -> Steps[int]:
        if outcome is TransactionOutcome.UNKNOWN:
            return 0
        decided = yield from self._sql.write(self._sql.say(_DECIDED, tx_id=tx_id, state=DECIDED[outcome]))
        return self._woken(changed(decided), outcome)

    @asked(repeats=True)
    def states_of(self, tx_id: str) -> Steps[Collection[RowState]]:
        return [RowState(state) for (state,) in (yield from self._sql.read(self._sql.say(_STATES, tx_id=tx_id)))]

    @asked(repeats=True)
    def due_checks(self, producer_group: str | None, *, limit: int, lease: float) -> Steps[list[Prepared]]:
        """See `PreparedStore.due_checks`. Looked for without a lock, and then taken by the first relay."""
        found = yield from self._sql.read(self._sql.say("{due}", producer_group=producer_group, limit=limit, lease=lease))
        if found and not self._sql.takes_at_once:
            ids, taking = [id for (id,) in found], (*self._sql.taking, _TAKE, _TAKEN)
            *_, taken, _ = yield from self._sql.write(*self._sql.say_all(taking, ids=ids, lease=lease))
            found = taken.rows
        try:
            return sorted(map(prepared_of, found), key=lambda row: row.id)
        except UnreadableRow:  # the others do not wait for the end of the lease
            yield from self._sql.write(self._sql.say(_GIVE_BACK, ids=[row[0] for row in found]))
            raise

    @asked(repeats=False)
    def answered(self, answers: Sequence[CheckAnswer]) -> Steps[int]:
        """See `PreparedStore.answered`. Not repeated by itself: a check would count twice."""
        if not answers:
            return 0
        ordered = sorted(answers, key=lambda answer: answer.id)
        decisions = [_decision(answer) for answer in ordered if answer.content is None]
        contents = [(answer.id, columns_of(answer.content)) for answer in ordered if answer.content is not None]
        yield from self._sql.require_fit([columns for _, columns in contents])
        decided = yield from self._sql.write(
            *(self._sql.each("{answered}", decisions) if decisions else ()),
            *(self._sql.say(_ANSWERED_WITH, **{**columns._asdict(), "id": id}) for id, columns in contents),
        )
        return self._woken(changed(decided), *(answer.outcome for answer in answers))


def read_id(sql: Dialect) -> Steps[str]:
    """Return the id of the database."""
    (found,) = yield [sql.say(_DATABASE_ID)]
    return text_of(found.rows[0][0])


def set_barrier(sql: Dialect, tx_id: str) -> Steps[None]:
    """See `BarrierStore.barrier`. The outcome is read as it is now: this transaction may see an older state of the table."""
    try:
        (inserted,) = yield [sql.say(_BARRIER, tx_id=tx_id, outcome=_COMMITTED)]
        if inserted.changed:
            return
    except Failure as failure:
        if failure.problem is not Problem.DUPLICATE:
            raise
    (found,) = yield [sql.say(_OUTCOME + " {shared}", tx_id=tx_id)]
    raise TransactionAborted((_TWICE if found.rows[0][0] == _COMMITTED else _CHECKED).format(tx_id=tx_id))


def _decision(answer: CheckAnswer) -> _Decision:
    state = state_of(answer)
    is_open = state in (RowState.PREPARED, RowState.MESSAGE_ERROR)
    again_in = (answer.again_in or 0.0) if is_open else None
    is_check = answer.outcome is TransactionOutcome.UNKNOWN and answer.counts
    return _Decision(answer.id, state, int(is_check), again_in, cause_of(answer.cause) or None)
