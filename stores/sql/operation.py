"""Operations on a database, as generators of statements: what is asked and decided, without I/O.

A generator yields a packet, which are statements that may share one trip, and gets an answer for each of them. A runner sends
packets through one driver, one statement at a time where the driver takes no more. So the same operation runs on asyncpg, asyncmy,
sqlite3 and a connection of SQLAlchemy, asynchronously or not.

An operation *owns* its connection, or borrows that of the caller. Whoever runs an owned one (`Runs`, in `schema.py`) takes a connection,
bounds the time, repeats it and closes the connection if it has to; the operation itself may begin and commit. A borrowed one is steps
alone, which send their statements into the transaction that is open: they neither begin nor commit, make no setting and are never repeated.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")


class Statement(NamedTuple):
    """One statement as its dialect writes it, with the values of its placeholders."""

    text: str
    values: Sequence[Any] = ()


class Answer(NamedTuple):
    """What one statement came to."""

    rows: Sequence[Sequence[Any]] = ()
    changed: int = 0
    """Rows that it inserted, updated or deleted."""


Packet: TypeAlias = Sequence[Statement]
Steps: TypeAlias = Generator[Packet, Sequence[Answer], T]


class Problem(enum.Enum):
    """What a failure means for the operation, in any database."""

    CONFLICT = "the server chose this transaction to give way, and asking again is all it takes"
    LOST = "the connection is lost or of no use any more, and a new one may help"
    BUSY = "somebody else held what was asked for until the time was up"
    ENDED = "the transaction that was open is gone, or takes nothing any more"
    MISSING = "there is no such table"
    DUPLICATE = "there is a row of this key already"
    FORBIDDEN = "this user has not the right"
    REFUSED = "anything else that the driver or the server says"


class Failure(Exception):
    """An error of the driver or the server, as it is thrown into an operation; `error` is the driver's own."""

    def __init__(self, problem: Problem, error: Exception) -> None:
        super().__init__(problem.value)
        self.problem = problem
        self.error = error


class Runner(Protocol):
    """Sends packets through one connection of a driver."""

    async def send(self, packet: Packet) -> Sequence[Answer]:
        """Return an answer for each statement, in their order. Raises `Failure`, and then nothing of the packet is repeated here."""
        ...


class SyncRunner(Protocol):
    """The same, through a driver that is not asynchronous."""

    def send(self, packet: Packet) -> Sequence[Answer]:
        """See `Runner.send`."""
        ...


async def run(steps: Steps[T], runner: Runner) -> T:
    """Return what `steps` return, with the answers of `runner`; what it raises comes back in them. Cancelled, they do nothing more."""
    try:
        packet = next(steps)
        while True:
            try:
                answers = await runner.send(packet)
            except Failure as failure:
                packet = steps.throw(failure)
            else:
                packet = steps.send(answers)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # of a generator's end, which has no type
    finally:
        steps.close()


def run_now(steps: Steps[T], runner: SyncRunner) -> T:
    try:
        packet = next(steps)
        while True:
            try:
                answers = runner.send(packet)
            except Failure as failure:
                packet = steps.throw(failure)
            else:
                packet = steps.send(answers)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # as above
    finally:
        steps.close()
