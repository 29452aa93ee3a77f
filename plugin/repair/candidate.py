"""Candidate: one message that a step of a plan is about, for one handler, and what became of it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ackwise.middleware.agent import Agent
from ackwise.middleware.repairplan import Action, RepairStep
from ackwise.middleware.run import Run
from ackwise.middleware.unrecorded import Unrecorded

__all__ = ["AGAIN", "OPEN", "REPLAY_ID", "Candidate", "RepairFate", "attempt_of", "is_replay", "open_ones"]

#: The same for every plan, so that what was replayed once is suppressed the second time.
REPLAY_ID: Final = b"repair"


class RepairFate(enum.StrEnum):
    """What became of a message, in the words that are printed."""

    SENT = "sent"
    READY = "would be sent"
    DONE = "done already"
    FOLLOWED = "a later attempt is on its way"
    EMPTY = "the broker has no record there"
    HELD = "held by a worker, which may be running it"
    DELETED = "no longer in the log"
    REPLACED = "another record is there now"
    HANDLERLESS = "no handler of the app for it"
    OTHER_EPOCH = "of another dedup epoch than the app's"
    OTHER_KEY = "its key is not the one in the events"
    UNGUARDED = "nothing would suppress a second run, needs --with-review"
    REVIEWABLE = "for review, needs --with-review"
    MANUAL = "for people to mend"
    REFUSED = "refused by the broker for good"


#: What is still to be done by somebody: it makes the exit code 1.
OPEN: Final = frozenset(RepairFate) - {RepairFate.SENT, RepairFate.READY, RepairFate.DONE, RepairFate.FOLLOWED, RepairFate.EMPTY}

#: What another run may do, once something has changed or with another option.
AGAIN: Final = frozenset(
    {RepairFate.HELD, RepairFate.HANDLERLESS, RepairFate.OTHER_EPOCH, RepairFate.OTHER_KEY, RepairFate.UNGUARDED, RepairFate.REVIEWABLE}
)


@dataclass(eq=False, slots=True)
class Candidate:
    """A record for one handler; `fate` is `None` until it is known."""

    step: RepairStep
    agent: Agent
    run: Run
    fate: RepairFate | None = None
    ran: Unrecorded | None = None
    """The run that had its key, if nothing tells of that yet."""


def attempt_of(step: RepairStep) -> int:
    """The attempt that counts as ended; the copy carries the next one."""
    return max(step.attempt, 1)


def open_ones(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those whose fate is not known yet."""
    return [each for each in candidates if each.fate is None]


def is_replay(step: RepairStep) -> bool:
    """Whether its copies carry a replay id."""
    return step.action is Action.REPLAY
