"""Inbox and offsets of an SQL database: the questions and the meaning of the answers, without I/O.

A transaction claims keys by inserting or locking their rows, so a second transaction waits for the first. Every claimed row carries the
transaction's `mark`: a row that is still there after a rollback was committed by another transaction. Where a handler can commit unseen,
the row is CLAIMED until it is finished or sent back: a CLAIMED row of another transaction means that its handler committed it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from ackwise.middleware.errors import Fenced, TransactionAborted
from ackwise.middleware.storage.claimstore import ClaimKey, Outcome, Stale
from ackwise.middleware.storage.transaction import Finish, Finished, Permit, Place, Progress, Taken, TransactionAnswer
from ackwise.stores.sql.operation import Failure, Packet, Problem, Steps

_TAKEN: Final = Taken()

UNFINISHED: Final = 0
"""The outcome in the row of a key that is claimed, or was sent back."""
CLAIMED: Final = 9
"""The outcome in the row of a key that is claimed, where a handler can commit unseen; our transactions never commit it."""

_LEAVE: Final = "leave commit and rollback to Ackwise, and raise to roll back"
ENDED: Final = f"the handler ended the transaction that it writes in; {_LEAVE}"
REFUSED: Final = f"the handler ended the transaction that it writes in, had this statement not been refused; {_LEAVE}"


class Fence(NamedTuple):
    """A partition, and who has it: a row of the offsets that no other generation may change."""

    owner: str
    topic: str
    partition: int
    generation: int


Record: TypeAlias = tuple[bytes, int, int, str, int, int, int]
"""What is written of a key that is finished or sent back, in the order of the columns: the key, its outcome, its next attempt,
topic, partition and offset of its origin, and the execution."""


class Statements(Protocol):
    """One database's statements for the transaction that is open, as packets. `retention` is in seconds."""

    state: Packet
    """Reads what a handler may change of its session: one row, of one answer. No packet: nothing."""

    still_there: Packet
    """Undoes all that came after the transaction started, and fails where it is gone. No packet: nothing ends one unseen."""
    undoes_all: bool
    """True if a rollback also restores the session."""
    proof: Packet
    """Right before the commit, once all is written: fails where the transaction is gone or broken. No packet: the commit itself does."""

    def put_back(self, state: Sequence[Any]) -> Packet:
        """Make the session again what it was when `state` was read."""
        ...

    def claim(self, ids: Sequence[bytes], mark: int, retention: float) -> Packet:
        """Lock the keys in their order, and read them. The last answer has a row for each: all of `Record`, and which transaction it is.

        A key that another transaction finished meanwhile may be missing: it is asked for again.
        """
        ...

    def finish(self, records: Sequence[Record], retention: float, transaction: str | None, left: Sequence[bytes], mark: int) -> Packet:
        """Write the records if this is still `transaction`. Then the last answer has a row, or the packet fails.

        What is `left` was claimed with the `mark`, or finished before, and has no record: it is not CLAIMED any more.
        """
        ...

    def lock(self, fence: Fence) -> Packet:
        """Lock the row. The last answer has the next offset and which transaction it is, or no row if another worker has it."""
        ...

    def advance(self, fence: Fence, next: int) -> Packet:
        """Move the offset. The last answer has a row if the partition is still ours."""
        ...

    def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> Packet:
        """The last answer has a row for each copy, in order: whether it may run, and whether its original is passed."""
        ...

    def take_over(self, owner: str, positions: Mapping[tuple[str, int], int]) -> Packet:
        """Make the partitions those of `owner`. One of the answers has a row for each: topic, partition, next offset, generation."""
        ...

    def committed(self, ids: Sequence[bytes], mark: int) -> Packet:
        """Look, outside of the transaction, for rows with its mark. The last answer has one row, of a count; no packet: there are none."""
        ...

    def why_ended(self, error: Exception) -> str:
        """A sentence for an error of `Problem.ENDED`."""
        ...


def claim(
    statements: Statements, keys: Sequence[ClaimKey], mark: int, retention: float
) -> Steps[tuple[list[TransactionAnswer], str | None]]:
    """Answer for each key, and say which transaction it is; waits for transactions that hold one of them."""
    found, transaction = dict[bytes, Sequence[Any]](), None
    missing = sorted({key.id for key in keys})
    while missing:
        *_, answer = yield statements.claim(missing, mark, retention)
        for row in answer.rows:
            found[_bytes(row[0])] = row
            transaction = row[-1]
        missing = [id for id in missing if id not in found]
    return [_answer(found[key.id], key.attempt, mark) for key in keys], transaction


class Done(NamedTuple):
    """The work of a transaction: the keys that it claimed with its `mark`, and those that it finished."""

    finishes: Sequence[Finish]
    claimed: Collection[bytes]
    mark: int
    transaction: str | None


def finish(statements: Statements, done: Done, retention: float, then: Packet = ()) -> Steps[None]:
    """Write what became of keys, and send what comes `then`. Raises `TransactionAborted` if the transaction is not the one that started."""
    records = [
        (key.id, UNFINISHED if outcome is None else int(outcome), next_attempt, topic, partition, offset, exec_id)
        for key, (topic, partition, offset), exec_id, outcome, next_attempt in done.finishes
    ]
    left = sorted({*done.claimed} - {record[0] for record in records})
    packet = statements.finish(sorted(records), retention, done.transaction, left, done.mark)
    try:
        answer = (yield [*packet, *then])[len(packet) - 1]
    except Failure as failure:
        if failure.problem is not Problem.ENDED:
            raise
        raise TransactionAborted(statements.why_ended(failure.error)) from None
    if answer.rows and not answer.rows[0][0]:
        raise TransactionAborted(ENDED)


def lock(statements: Statements, fence: Fence) -> Steps[tuple[int, str | None]]:
    """Return the next offset, locked until the end, and which transaction it is. Raises `Fenced`."""
    *_, answer = yield statements.lock(fence)
    if not answer.rows:
        raise _fenced(fence)
    ((next, transaction),) = answer.rows
    return int(next), transaction


def advance(statements: Statements, fence: Fence, next: int) -> Steps[None]:
    """The partition goes on at `next`. Raises `Fenced`."""
    *_, answer = yield statements.advance(fence, next)
    if not answer.rows:
        raise _fenced(fence)


def permits(statements: Statements, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> Steps[list[Permit]]:
    """May these copies run? See `Permit`."""
    if not copies:
        return []
    *_, answer = yield statements.permits(owner, copies)
    return [Permit.GRANTED if granted else Permit.SUPERSEDED if passed else Permit.PENDING for granted, passed in answer.rows]


def take_over(statements: Statements, owner: str, positions: Mapping[tuple[str, int], int]) -> Steps[dict[tuple[str, int], Progress]]:
    """The partitions are ours from now on; waits for batches of the owners before.

    In the order of their names, so that two workers never wait for each other.
    """
    answers = yield statements.take_over(owner, dict(sorted(positions.items())))
    rows = [row for answer in answers for row in answer.rows]
    return {(_text(topic), partition): Progress(next, generation) for topic, partition, next, generation in rows}


def was_committed(statements: Statements, ids: Sequence[bytes], mark: int) -> Steps[bool]:
    """Return True if the ended transaction that claimed `ids` with `mark` was committed."""
    packet = statements.committed(ids, mark) if ids else ()
    if not packet:
        return False
    *_, answer = yield packet
    return bool(answer.rows[0][0])


def _answer(row: Sequence[Any], attempt: int, mark: int) -> TransactionAnswer:
    _, outcome, next_attempt, topic, partition, offset, exec_id, _ = row
    if outcome == CLAIMED and exec_id != mark:
        return Finished(None, (_text(topic), partition, offset), exec_id)
    if outcome not in (UNFINISHED, CLAIMED):
        return Finished(Outcome(outcome), (_text(topic), partition, offset), exec_id)
    return Stale() if attempt < next_attempt else _TAKEN


def _fenced(fence: Fence) -> Fenced:
    return Fenced(f"{fence.topic}/{fence.partition} was taken over by another worker; nothing of this batch stays")


def _bytes(id: UUID | str | bytes) -> bytes:
    if isinstance(id, bytes):
        return id
    return id.bytes if isinstance(id, UUID) else bytes.fromhex(id)


def _text(text: str | bytes) -> str:
    return text if isinstance(text, str) else bytes(text).decode()
