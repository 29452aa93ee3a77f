"""Sequence: what was admitted of a partition in order, and must not run before what waits in front of it."""

from __future__ import annotations

from ackwise.middleware.disposition import Done, Duplicate
from ackwise.middleware.leases import Leases
from ackwise.middleware.run import Run, Stage, divide

__all__ = ["first_unfinished", "hold_back"]


def first_unfinished(runs: list[Run]) -> int | None:
    """The offset of the first message of `runs` that is not to run now, and is neither done nor a dead letter that was acknowledged."""
    return min((run.first for run in runs if len(run) and run.leader is None and _is_unfinished(run)), default=None)


def hold_back(runs: list[Run], leases: Leases | None, now: float) -> None:
    """Give back what is ADMITTED behind the first that is unfinished. It costs no attempt, and comes up again behind that."""
    waiting = first_unfinished(runs)
    if waiting is None:
        return
    for run in [run for run in runs if run.stage is Stage.ADMITTED and run.last > waiting]:
        for part in divide(runs, run, [[place for place, offset in enumerate(run.offsets) if offset > waiting]]):
            if leases is not None:
                leases.give_back(part)
            part.forget_claim()
            part.postpone(now, "it waits behind an earlier message of its partition")


def _is_unfinished(run: Run) -> bool:
    return run.stage in (Stage.WITHHELD, Stage.FETCHED) or (run.stage is Stage.RULED and not isinstance(run.disposition, Done | Duplicate))
