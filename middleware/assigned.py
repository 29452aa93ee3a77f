"""The partition that a handler's task works on: whether it is still ours, and what it has not committed."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol, cast

from ackwise.middleware.run import Run, Stage, pick
from ackwise.middleware.settlement import Assignment

__all__ = ["ManualPartition", "Undecided", "check_cut_off", "current_assignment", "go_along", "uncommitted"]

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


def go_along(runs: list[Run], partition: ManualPartition) -> None:
    """Let the messages of `runs` whose key is that of an uncommitted one share its fate: they never run, and block nothing.

    Its claim is held here until the handler says `COMMIT`, which it can't while its partition waits for that claim.
    """
    leaders = {key_id: run for run in partition.uncommitted for key_id in run.ids or ()}
    if not leaders:
        return
    for run in [run for run in runs if run.stage is Stage.FETCHED]:
        for single in pick(runs, run, [place for place, key_id in enumerate(run.ids or ()) if key_id in leaders]):
            single.leader = leaders[(single.ids or (b"",))[0]]
            runs.remove(single)
            partition.uncommitted.append(single)


def uncommitted() -> list[Run]:
    """What succeeded in the partition that this task works on, and is not done."""
    return cast(ManualPartition, current_assignment.get()).uncommitted
