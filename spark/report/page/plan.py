"""The repair plan in short, with the command that applies it."""

from __future__ import annotations

from typing import Final

from ackwise.middleware.repairplan import NAME, SAFE, Action, Summary
from ackwise.spark.report.page.data import PlanData, PlanRow
from ackwise.spark.report.page.words import are, counted, messages

__all__ = ["plan_data"]

_MEANINGS: Final = {
    Action.REDELIVER: "copies of the origin records go to the group’s retry topic",
    Action.PROBE: "copies of what the broker has there go to the group’s retry topic; where it has nothing, all is well",
    Action.RELEASE: "a copy goes to the retry topic, once the dead worker’s claim is taken from it; one whose lease runs is left alone",
    Action.REPLAY: "a copy goes to the retry topic with a replay id, past a claim that says “done” though nobody did it",
    Action.VERIFY: "the store is asked, and what it does not know as done is sent again",
    Action.REQUEUE: "the command in the step lets the relay send parked rows of an outbox; “plan apply” does nothing with them",
    Action.REVIEW: "nothing by itself: people decide",
}


def plan_data(plan: Summary | None) -> PlanData | None:
    """Return the plan in short, or None if it is empty."""
    if plan is None or not (plan.planned or plan.provisional):
        return None
    rows = [PlanRow(each.action, each.steps, each.offsets, _MEANINGS[each.action]) for each in plan.planned]
    safe = sum(each.offsets for each in plan.planned if each.action in SAFE)
    planned = counted(sum(row.offsets for row in rows), "offset")
    sentence = f"{NAME} beside this page says how to mend it: {safe:,} of {planned} without risk, and “ackwise plan apply” does it."
    later = plan.provisional
    sentence += f" {messages(later)} {are(later)} left out, since events that mend them may still come." if later else ""
    return PlanData(sentence, rows)
