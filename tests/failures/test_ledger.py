"""The judgement of commits: what it takes for an early one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.failures.ledger import Written, early_commits

SOURCE, RUNG, OTHER = ("orders", 0), ("billing.delay", 1), ("billing.delay", 3)
ORIGIN = ("orders", 0, 0)
COPY = Written(0, "a", ORIGIN, 2)
WRITTEN = {SOURCE: [Written(0, "a", ORIGIN, 1)], RUNG: [COPY], OTHER: [COPY]}


def copied(topic: str = "billing.delay", attempt: int = 2) -> Mapping[str, Any]:
    return {"fact": "copied", "topic": topic, "origin": [*ORIGIN], "attempt": attempt}


def commits(*places: tuple[str, int]) -> Mapping[str, Any]:
    return {"fact": "commits", "offsets": [(*place, 1) for place in places]}


@pytest.mark.parametrize(
    ("facts", "early"),
    [
        ([commits(SOURCE)], 1),
        ([copied(), commits(SOURCE)], 0),
        ([copied(), commits(RUNG)], 1),  # its own copy is no proof
        ([copied(), copied(), commits(RUNG)], 0),  # another one stands behind it
        ([copied(), copied(), commits(RUNG), commits(OTHER)], 1),  # and now none does
        ([copied(), copied(), commits(RUNG, OTHER)], 2),
        ([copied(), copied(), commits(RUNG), commits(RUNG)], 0),  # what is committed again is passed once
        ([copied(), commits(RUNG), copied(), commits(OTHER)], 2),  # the second one came too late, and is passed as well
        ([copied(), copied(), copied("billing.retry"), commits(RUNG, OTHER)], 0),
        ([copied(), copied(), {"fact": "ran", "id": "a"}, commits(RUNG, OTHER)], 0),
        ([copied(), copied(), copied("billing.dlq"), commits(RUNG, OTHER)], 0),
    ],
)
def test_a_commit_is_early_unless_what_it_passes_is_done_or_on_its_way(facts: list[Mapping[str, Any]], early: int) -> None:
    later = [copied()] * (2 - facts.count(copied()))  # what stands there was acknowledged at some time
    assert len(early_commits([*facts, *later], WRITTEN)) == early


def test_a_copy_that_was_never_written_down_may_be_on_its_way_and_is_passed_once() -> None:
    assert early_commits([copied(), commits(RUNG)], WRITTEN) == []
    assert len(early_commits([copied(), commits(RUNG), commits(OTHER)], WRITTEN)) == 1


def test_a_copy_of_the_same_attempt_is_on_its_way_only_if_another_call_had_the_key() -> None:
    held = {**copied(attempt=1), "reason": "ClaimHeldElsewhere"}
    assert len(early_commits([copied(attempt=1), commits(SOURCE)], WRITTEN)) == 1
    assert early_commits([held, commits(SOURCE)], WRITTEN) == []
    assert len(early_commits([commits(SOURCE), held], WRITTEN)) == 1
