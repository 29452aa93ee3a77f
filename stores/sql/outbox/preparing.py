"""`Preparing`: half messages and barriers of an outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.outbox import FIRST_CHECK, CheckAnswer, Prepared, RowState, TransactionOutcome, UnreadableRow
from ackwise.middleware.outgoing import Outgoing
from ackwise.stores.protocol.outboxrows import DECIDED, cause_of, columns_of, prepared_of, state_of, text_of
from ackwise.stores.sql.operation import Failure, Problem, Steps
from ackwise.stores.sql.outbox.dialect import DUE_COLUMNS, Dialect, changed
from ackwise.stores.sql.outbox.operations import Operations, asked

_DATABASE_ID: Final = "SELECT value FROM {meta} WHERE name = 'database_id'"
_BARRIER: Final = "INSERT INTO {barrier} (tx_id, outcome, created) VALUES (:tx_id, :outcome, {now}) {keeping}"
_OUTCOME: Final = "SELECT outcome FROM {barrier} WHERE tx_id = :tx_id"
_DECIDED: Final = "UPDATE {rows} {by_tx} SET state = :state, next_at = NULL WHERE tx_id = :tx_id AND tx_id <> '' AND state = {PREPARED}"
_STILL_DUE: Final = " WHERE id {among ids} AND state = {PREPARED} AND next_at <= {moment}"
_TAKE: Final = "SELECT " + DUE_COLUMNS + " FROM {rows} {by_id}" + _STILL_DUE + " ORDER BY id {locked}"
_TAKEN: Final = "UPDATE {rows} {by_id} SET next_at = {moment_later lease}" + _STILL_DUE
_GIVE_BACK: Final = "UPDATE {rows} {by_id} SET next_at = {now} WHERE id {among ids} AND state = {PREPARED}"

#: What a barrier says of its local transaction.
_COMMITTED, _NOT_BEGUN = "C", "R"

#: Failures after which nobody knows yet who was first.
_UNDECIDED: Final = (Problem.BUSY, Problem.CONFLICT, Problem.DUPLICATE)

_TWICE: Final = "the local transaction {tx_id} has committed before, or called its barrier twice; use a new one for each transaction"
_CHECKED: Final = "a check-back took the local transaction {tx_id} for rolled back, as it had not begun; nothing of it stays"


class _Decision(NamedTuple):
    """What an answer to a check-back makes of a half message."""

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
            raise ConfigurationError(f"the barrier of {tx_id} has to be in the local transaction, and none is open; begin one")
        await business.run(set_barrier(self._sql, tx_id))

    @asked(repeats=True)
    def probe(self, tx_id: str, *, wait: float) -> Steps[TransactionOutcome]:
        """See `BarrierStore.probe`; it waits for less than the timeout in any case.

        A barrier that is there was committed; if its transaction still runs, or was undone meanwhile, nobody knows.
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
        self, messages: Sequence[Outgoing], tx_id: str, *, producer_group: str, barrier_in: str = "", first_check: float = FIRST_CHECK
    ) -> Steps[None]:
        """See `PreparedStore.prepare`. Not repeated by itself: rows could be there twice."""
        if rows := [columns_of(message) for message in messages]:
            half = {"tx_id": tx_id, "producer_group": producer_group, "barrier_in": barrier_in, "first_check": first_check}
            yield from self._sql.prepare(rows, half)

    @asked(repeats=True)
    def decide(self, tx_id: str, outcome: TransactionOutcome) -> Steps[int]:
        if outcome is TransactionOutcome.UNKNOWN:
            return 0
        decided = yield from self._sql.write(self._sql.say(_DECIDED, tx_id=tx_id, state=DECIDED[outcome]))
        return self._woken(changed(decided), outcome)

    @asked(repeats=True)
    def due_checks(self, producer_group: str | None, *, limit: int, lease: float) -> Steps[list[Prepared]]:
        """See `PreparedStore.due_checks`. Looked for without a lock, and then taken by whoever comes first."""
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
        decisions = [_decision(answer) for answer in sorted(answers, key=lambda answer: answer.id)]
        decided = yield from self._sql.write(*self._sql.each("{answered}", decisions))
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
    return _Decision(answer.id, state, int(answer.outcome is TransactionOutcome.UNKNOWN), again_in, cause_of(answer.cause) or None)
