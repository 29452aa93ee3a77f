"""What in a group needs somebody: decided from values."""

from __future__ import annotations

from typing import Any

from tests.tables import each

from ackwise.plugin.operate.groupstatus import (
    LettersStanding,
    LevelStanding,
    PartitionStanding,
    PausedByCommand,
    Standing,
    WorkerStanding,
    facts,
    findings,
    shown,
)

WORKER = WorkerStanding("node-3", 17, "1.0.0", "ackwise", 3.0, ("orders/0",), 2, 1, (("its store does not answer", 1),), (), ())
PARTITION = PartitionStanding("orders", 0, "ackwise 10.0.0.7 …abc", 5, 9, 4, 0, 3.0, 0, 0, None, ())
HEALTHY = Standing(
    "billing", "Stable", ("ackwise 10.0.0.7 …abc",), 1, (PARTITION,), (LevelStanding("billing.delay.5s", "delay.5s", 2),),
    LettersStanding("billing.dlq", 2, 0, 7.0), (),
)  # fmt: skip


def test_what_a_worker_said_of_itself_a_while_ago_needs_nobody() -> None:
    said = WORKER._replace(troubles=("its store does not answer",), heard=100.0)
    assert findings(HEALTHY._replace(workers=(WORKER, said))) == []


def test_a_lag_copies_that_wait_and_letters_that_were_seen_to_need_nobody() -> None:
    assert findings(HEALTHY) == []
    assert HEALTHY.lag == 4


def test_what_has_expired_is_counted_apart_over_all_workers() -> None:
    standing = HEALTHY._replace(workers=(WORKER._replace(expired=3, troubles=()), WORKER._replace(expired=4, troubles=())))
    assert shown(standing).letters == (
        "dead letters: 2, of which 0 are open, the newest 7 s old; 7 messages expired since the workers started"
    )
    assert "expired" not in shown(HEALTHY).letters
    assert (facts(standing)["expired"], [worker["expired"] for worker in facts(standing)["workers"]]) == (7, [3, 4])


@each(
    ("change", "sentence"),
    [
        ({"state": "Empty", "members": ()}, "no worker is in the group, which is Empty; start one"),
        (
            {"state": "PreparingRebalance"},
            "the group rebalances (PreparingRebalance), and no member has a partition; look again in a moment",
        ),
        ({"partitions": (PARTITION, PARTITION._replace(partition=1, owner=None))}, "no member has 1 of 2 partitions, such as orders/1"),
        ({"paused": (PausedByCommand("bill", 1),)}, "bill is paused by command; ackwise resume lets it go on"),
        ({"workers": (WORKER._replace(troubles=("its store does not answer",)),)}, "worker node-3:17: its store does not answer"),
        ({"relays": 0}, "no relay runs, and 2 copies wait to come back; start a worker, or ackwise relay"),
        ({"letters": LettersStanding("billing.dlq", 2, 1, 7.0)}, "1 dead letters are open; run ackwise dlq list to see why"),
    ],
)
def test_each_of_these_needs_somebody(change: dict[str, Any], sentence: str) -> None:
    assert [finding.sentence for finding in findings(HEALTHY._replace(**change))] == [sentence]
