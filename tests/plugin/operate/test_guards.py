"""What an answer of the store means for a message that is to be sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.policies.policies import Transactional
from ackwise.middleware.runs.run import Run
from ackwise.middleware.storage.claimstore import ClaimKey, Outcome
from ackwise.middleware.storage.transaction import Finished, TransactionAnswer
from ackwise.plugin.operate.resend import Candidate, Fate, InboxGuard, Resent

PLACE = ("orders", 0, 7)


class Answering:
    """A database that has this one answer."""

    def __init__(self, answer: TransactionAnswer) -> None:
        self._answer = answer

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[Any]:
        yield self

    async def claim(self, keys: Sequence[ClaimKey]) -> list[TransactionAnswer]:
        return [self._answer for _ in keys]


def candidate() -> Candidate:
    run = Run.of(Delivery(*PLACE, 0, None, b"v", (), Origin(*PLACE, 0)))
    run.claims.ids = [b"k" * 16]
    return Candidate("bill", run, "repair", {})


async def fate_by(answer: TransactionAnswer) -> Fate | None:
    database: Any = Answering(answer)
    one = candidate()
    async with InboxGuard(database, Transactional(database)).asked([one]):
        return one.fate


async def test_what_a_handler_committed_unseen_is_left_to_people_and_is_not_done() -> None:
    assert await fate_by(Finished(Outcome.OK, PLACE, 1)) is Fate.DONE
    fate = await fate_by(Finished(None, PLACE, 1))
    assert fate is Fate.MANUAL
    outcome = Resent()
    outcome.add(("requeue",), {fate: 1}, "orders/0/7")
    assert not outcome.is_done
