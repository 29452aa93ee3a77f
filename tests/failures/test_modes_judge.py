"""The judge of the trials of modes finds what is planted, and nothing else."""

from __future__ import annotations

from typing import Any

from tests.failures.modes.judge import Sent, judge, promised_by

from ackwise.middleware.progress.commitmetadata import CommitMetadata, FinishedMap, InPlace

#: Offsets 0 and 2 have one key.
SENT = [Sent(0, 0, "a"), Sent(0, 1, "b"), Sent(0, 2, "a")]


def run(*offsets: int, worker: int = 1, attempt: int = 0) -> list[dict[str, Any]]:
    """Each starts and succeeds."""
    return [fact for offset in offsets for fact in (begins(offset, worker, attempt), succeeds(offset, worker))]


def begins(offset: int, worker: int = 1, attempt: int = 0) -> dict[str, Any]:
    return {"fact": "begins", "partition": 0, "offset": offset, "worker": worker, "attempt": attempt}


def succeeds(offset: int, worker: int = 1) -> dict[str, Any]:
    return {"fact": "succeeds", "partition": 0, "offset": offset, "worker": worker}


def promised(*finished: int, attempts: tuple[tuple[int, int], ...] = (), excepted: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"fact": "promised", "partition": 0, "finished": finished, "attempts": attempts, "except": excepted}


def test_what_ran_in_order_is_clean() -> None:
    for order in (None, "key", "partition"):
        assert judge(SENT, run(0, 1, 2), order) == ([], [], [], 0)


def test_what_never_succeeded_or_only_began_is_lost() -> None:
    assert len(judge(SENT, [*run(0, 1), begins(2)], "key").lost) == 1
    assert judge(SENT, run(0, 1), "key").lost == ["Sent(partition=0, offset=2, key='a') was acknowledged, and never succeeded"]


def test_a_later_message_of_a_key_that_begins_first_is_a_violation() -> None:
    facts = [begins(0), begins(2, worker=2), succeeds(0), succeeds(2, worker=2), *run(1)]
    assert judge(SENT, facts, "key").violations == ["(0, 2) begins in 2, and [0] are not finished"]
    assert judge(SENT, facts, None).violations == []


def test_another_key_may_pass_and_nothing_passes_in_a_partition() -> None:
    facts = run(1, 0, 2)
    assert judge(SENT, facts, "key").violations == []
    assert judge(SENT, facts, "partition").violations == [
        "(0, 1) begins in 1, and [0] are not finished",
        "(0, 1) succeeds in 1, and [0] are not finished",
    ]


def test_a_repeat_is_counted_and_is_no_violation() -> None:
    verdict = judge(SENT, [*run(0, 1, 2), *run(0, 1, worker=2)], "partition")
    assert (verdict.is_clean, verdict.repeats) == (True, 2)


def test_what_a_commit_said_to_be_finished_and_begins_again_is_found() -> None:
    facts = [*run(0, 1), promised(0, 1), *run(1, worker=2), *run(2)]
    assert judge(SENT, facts, "key").broken == ["(0, 1) starts again in 2, which an acknowledged commit said to be finished"]


def test_a_worker_that_could_not_hear_of_a_commit_breaks_no_promise() -> None:
    facts = [*run(0, 1), promised(0, 1, attempts=((2, 3),), excepted=(2,)), *run(1, 2, worker=2)]
    assert judge(SENT, facts, "key").broken == []


def test_the_copy_of_a_message_that_is_parked_may_run() -> None:
    facts = [*run(0, 2), begins(1), promised(0, 1, 2), *run(1, attempt=1)]
    assert judge(SENT, facts, None).broken == []
    assert len(judge(SENT, facts, "key").broken) == 1


def test_an_attempt_in_place_that_begins_anew_is_found() -> None:
    facts = [*run(0, 1), promised(0, 1, attempts=((2, 3),)), begins(2, 2, attempt=0), *run(2, worker=2, attempt=3)]
    assert judge(SENT, facts, "key").broken == ["(0, 2) has had 3 attempts, and is told 0 in 2"]


def test_a_commit_promises_what_is_below_it_and_what_its_map_has() -> None:
    metadata = CommitMetadata(None, None, FinishedMap(2, 5, 6, "a", 0b1010), [InPlace(2, 4, 99)]).encode()
    assert promised_by(2, metadata) == ([0, 1, 3, 5], [(2, 4)])
    assert promised_by(2, "") == ([0, 1], [])
