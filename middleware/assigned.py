"""The partition that a handler's task works on: whether it is still ours, and what it has not committed."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol, cast

from ackwise.middleware.run import Run
from ackwise.middleware.settlement import Assignment

__all__ = ["Undecided", "check_cut_off", "current_assignment", "uncommitted"]

#: The partition whose messages the task that asks works on.
current_assignment: ContextVar[Assignment | None] = ContextVar("ackwise_assignment", default=None)


class Undecided(BaseException):
    """Raised by a call that ended without a decision. Its messages are not ruled on, no attempt is counted, they come up again."""


def check_cut_off() -> None:
    """Ask before user code is called once more for the same messages. Raises `Undecided` if their partition is no longer ours."""
    assignment = current_assignment.get()
    if assignment is not None and assignment.cut_off:
        raise Undecided("its partition was revoked, nothing more is begun")


class ManualPartition(Assignment, Protocol):
    """The partition of a handler with `commit="manual"`; `uncommitted` has what succeeded since it said `COMMIT`, in order."""

    uncommitted: list[Run]


def uncommitted() -> list[Run]:
    """What succeeded in the partition that this task works on, and is not done."""
    return cast(ManualPartition, current_assignment.get()).uncommitted
