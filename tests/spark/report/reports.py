"""Made-up reports: a clean run, one with everything that can go wrong, one that can't tell, one in doubt. Needs no Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ackwise.middleware.repairplan import Action, Planned, Summary
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.fold.facts import Partition, Writer, WriterFate
from ackwise.spark.fold.gaps import Hole
from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.judge.production import Orphans, ProducedAccount, Production, Unpublished
from ackwise.spark.report.attempts import Attempts
from ackwise.spark.report.copies import RetryAccount
from ackwise.spark.report.delays import Delays
from ackwise.spark.report.details import AGES, Details, Failures, StuckClaims
from ackwise.spark.report.earlier import EarlierRun
from ackwise.spark.report.exports import Exports, Written
from ackwise.spark.report.latency import NEGATIVE, Latency
from ackwise.spark.report.report import DeadLetters, Finding, LogicalFinding, Missing, RunReport, Tally
from ackwise.spark.report.strips import Strip
from ackwise.spark.report.timeline import Buckets, Timeline
from ackwise.spark.storeclaims.findings import ClaimFinding, ClaimReport, ClaimVerdict
from ackwise.spark.vocabulary import Account, CopyFate, ExitCode, Flag, LogicalVerdict, Verdict
from ackwise.spark.why.place import Place
from ackwise.spark.why.story import Step, Story

__all__ = ["ANOMALIES", "CLAIMED", "CLEAN", "DOUBT", "EMPTY", "HOSTILE", "INCONCLUSIVE", "ORPHANED", "PRODUCED", "REPEATED", "REPORTS"]

SECOND: Final = 1_000_000
NOW: Final = 1_767_225_600 * SECOND
ONCE, MAYBE, DEAD, LOST, NEVER = Verdict.EXACTLY_ONCE, Verdict.MAYBE_TWICE, Verdict.DEAD_LETTERED, Verdict.LOST, Verdict.NEVER_SEEN
MULTI, STUCK, UNKNOWN, PENDING = Verdict.MULTI_EXECUTED, Verdict.STUCK, Verdict.UNKNOWN_EXPORT_GAP, Verdict.PENDING

#: A name that would do harm if it were printed as it is.
HOSTILE: Final = "<script>alert('x')</script>\"&amp;"

EMPTY: Final = RunReport(
    run_id="20260101T000000Z-0001", as_of=0, roots=["/events"], files=0, bytes=0, writers=[], missing_events=0, accounts=[], tallies=[],
    findings=[], doubtful=[], missing=[], listed=50, logical=[], dead_letters=[], delays=[], timeline=None, unreadable=[], warnings=[],
    output="/out", config=ReconcileConfig(),
)  # fmt: skip


def writer(number: int, group: str, fate: WriterFate, *, tail_is_unknown: bool = False) -> Writer:
    mode = "async" if tail_is_unknown else "before_settle"
    return Writer(number, f"w{number}", ("c", group), NOW - 90 * SECOND, NOW - number * SECOND, 999, mode, fate, tail_is_unknown)


def partition(number: int, group: str = "billing", topic: str = "orders") -> Partition:
    return Partition(number, ("c", group), topic, "", number, 1, 0)


CLEAN: Final = replace(
    EMPTY,
    as_of=NOW,
    files=2,
    bytes=1_200_000,
    writers=[writer(1, "billing", WriterFate.ENDED)],
    accounts=[PartitionAccount(partition(number), 0, 500, False, {ONCE: 499}, {}, 1) for number in (0, 1)],
    tallies=[Tally("billing", "bill", "orders", ONCE, Flag(0), 990), Tally("billing", "bill", "orders", ONCE, Flag.RETRIED, 8)],
    delays=[Delays("billing", "bill", {40: 3, 510: 4, 1200: 1})],
    timeline=Timeline(NOW - 60 * SECOND, 10 * SECOND, {ONCE: [100, 200, 300, 300, 98, 0]}),
)

#: What an anomalous run has to show.
DETAILS: Final = Details(
    latencies=[
        Latency("billing", "orders", {NEGATIVE: 2, 0: 5, 40: 600, 60: 300, 90: 80, 120: 9, 140: 1}),
        Latency("mail", HOSTILE, {30: 10}),
        Latency("mail", "early", {NEGATIVE: 3}),
    ],
    attempts=[
        Attempts("billing", "bill", "orders", {(1, ONCE): 900, (1, LOST): 4, (2, ONCE): 70, (3, ONCE): 3, (3, DEAD): 12, (1, PENDING): 2}),
        Attempts("mail", HOSTILE, HOSTILE, {(1, ONCE): 10}),
    ],
    strips=[
        Strip(
            PartitionAccount(partition(0), 0, 500, True, {ONCE: 470, LOST: 4, MULTI: 6, DEAD: 12, STUCK: 1}, {NEVER: 5}, 2),
            {0: {LOST: 1}, 1: {LOST: 1, DEAD: 1}, 15: {NEVER: 4}, 16: {NEVER: 1}, 40: {DEAD: 3}, 60: {UNKNOWN: 1}, 124: {PENDING: 1}},
            assigned=[0, 15], revoked=[15],
        ),
        Strip(PartitionAccount(partition(0, "mail", HOSTILE), 0, 10, False, {ONCE: 10}, {}, 0), {}),
        Strip(PartitionAccount(partition(7, "mail", HOSTILE), 4, 4, False, {}, {}, 0), {}),
    ],
    stuck=[StuckClaims(1, "w1", [0, 0, 1, 0, 0, 0, 0, 2][: len(AGES) + 1]), StuckClaims(3, HOSTILE, [1] + [0] * len(AGES))],
    failures=[
        Failures("billing", "bill", "orders", "TimeoutError", 40), Failures("mail", HOSTILE, HOSTILE, "TimeoutError", 1),
        Failures("mail", HOSTILE, HOSTILE, HOSTILE, 3), Failures("mail", HOSTILE, HOSTILE, "", 1),
    ],
    exports=[
        Exports(writer(1, "billing", WriterFate.DEAD), [500, 490, 0], [0, 10, 0]),
        Exports(writer(2, "billing", WriterFate.LIVE), [0, 0, 1000], [0, 0, 0]),
        Exports(writer(3, "mail", WriterFate.DEAD, tail_is_unknown=True), [1, 999, 0], [0, 0, 0]),
    ],
    time=Buckets(NOW - 90 * SECOND, 30 * SECOND, 3),
    hours=Timeline(NOW - NOW % (3600 * SECOND) - 7200 * SECOND, 3600 * SECOND, {LOST: [0, 3, 1], STUCK: [1, 0, 0]}),
    stories=[
        Story("c", "billing", "bill", 0, "", Place("orders", 0, 3), LOST, Flag.HAD_FAILURES, None, [
            Step(NOW - 60 * SECOND, 1, 4, "w1 00000000", 1, "CLAIMED", "claimed for run 1"),
            Step(NOW - 59 * SECOND, 1, 5, "w1 00000000", 1, "FAILED", f"run 1 failed: {HOSTILE}"),
            Step(NOW - 50 * SECOND, 0, 0, "", None, "COMMITTED", "committed orders/0 to 4, which passes 3"),
        ]),
        Story("c", "mail", "", 0, "", Place(HOSTILE, 0, 60), NEVER, Flag(0), None, []),
    ],
    earlier=[
        EarlierRun("20251231T000000Z-0001", NOW - 86_400 * SECOND, ExitCode.CLEAN, 0, 0, {ONCE: 400}),
        EarlierRun(HOSTILE, NOW - 3_600 * SECOND, ExitCode.INCONCLUSIVE, 0, 2, {ONCE: 900, UNKNOWN: 3}),
    ],
)  # fmt: skip

ANOMALIES: Final = replace(
    CLEAN,
    writers=[writer(1, "billing", WriterFate.DEAD), writer(2, "billing", WriterFate.LIVE), writer(3, "mail", WriterFate.ENDED)],
    accounts=[
        PartitionAccount(partition(0), 0, 500, True, {ONCE: 470, LOST: 4, MULTI: 6, DEAD: 12, STUCK: 1}, {NEVER: 5}, 2),
        PartitionAccount(partition(1), 20, 520, False, {ONCE: 500}, {}, 0),
        PartitionAccount(partition(0, "mail", HOSTILE), 0, 10, False, {ONCE: 10}, {}, 0),
    ],
    tallies=[
        Tally("billing", "bill", "orders", ONCE, Flag(0), 970),
        Tally("billing", "bill", "orders", MAYBE, Flag.AMBIGUOUS_EXEC, 3),
        Tally("billing", "bill", "orders", LOST, Flag.HAD_FAILURES, 4),
        Tally("billing", "bill", "orders", MULTI, Flag.AMBIGUOUS_EXEC, 6),
        Tally("billing", "bill", "orders", DEAD, Flag.HAD_FAILURES, 12),
        Tally("billing", "bill", "orders", STUCK, Flag.COMMITTED_PAST, 1),
        Tally("billing", "bill", "orders", PENDING, Flag(0), 2),
        Tally("mail", HOSTILE, HOSTILE, ONCE, Flag(0), 10),
    ],
    findings=[
        *(Finding("billing", "bill", "orders", 0, at, LOST, Flag.HAD_FAILURES, 1, "FAILED", NOW) for at in (3, 4, 9, 20)),
        Finding("mail", HOSTILE, HOSTILE, 0, 7, STUCK, Flag.COMMITTED_PAST, 2, "CLAIMED", NOW),
    ],
    doubtful=[Finding("billing", "bill", "orders", 0, at, MAYBE, Flag.AMBIGUOUS_EXEC, 1, "SUCCEEDED", NOW) for at in (30, 31, 32)],
    missing=[Missing("billing", "orders", 0, 60, 65, NEVER)],
    logical=[LogicalFinding("billing", "bill", LogicalVerdict.LOGICAL_DUPLICATE, Flag(0), 2)],
    retry_accounts=[
        RetryAccount("billing", "bill", "orders", 1, dict(zip(CopyFate, (90, 2, 1, 3, 4), strict=True))),
        RetryAccount("mail", HOSTILE, HOSTILE, 12, dict(zip(CopyFate, (0, 1, 0, 0, 0), strict=True))),
    ],
    dead_letters=[DeadLetters("billing", "bill", "undecodable", 3), DeadLetters("billing", "bill", "max-reconsume-times", 9)],
    delays=[Delays("billing", "bill", {-40: 1, 510: 4, 1200: 1, 64_000: 1}), Delays("mail", HOSTILE, {700: 2})],
    timeline=Timeline(NOW - 60 * SECOND, 10 * SECOND, {LOST: [0, 4, 0, 0, 0, 0], DEAD: [0, 0, 6, 6, 0, 0], ONCE: [1, 1, 1, 400, 400, 0]}),
    warnings=[f"1 Parquet files, such as {HOSTILE}, are not named as events are and were not read"],
    details=DETAILS,
    plan=Summary("/out/plan.jsonl", [Planned(Action.REDELIVER, 2, 4), Planned(Action.REVIEW, 1, 6)], 1),
)

INCONCLUSIVE: Final = replace(
    CLEAN,
    writers=[replace(writer(1, "billing", WriterFate.DEAD, tail_is_unknown=True), host="shop-2:8")],
    missing_events=314,
    holes=[Hole(1, 200, 204), Hole(1, 1000, 1300), Hole(9, 0, 10)],
    absent={9: HOSTILE},
    details=Details(
        exports=[
            Exports(
                replace(writer(1, "billing", WriterFate.DEAD, tail_is_unknown=True), host="shop-2:8"),
                [180, 120, 696],
                [4, 0, 300],
                [Written(1, 0, 0, 180), Written(1, 1, 181, 304), Written(1, 2, 305, 999)],
            )
        ],
        time=Buckets(NOW - 90 * SECOND, 30 * SECOND, 3),
    ),
    accounts=[PartitionAccount(partition(0), 0, 500, False, {ONCE: 480}, {UNKNOWN: 20}, 0)],
    tallies=[Tally("billing", "bill", "orders", ONCE, Flag(0), 480)],
    missing=[Missing("billing", "orders", 0, 480, 500, UNKNOWN)],
    delays=[],
    timeline=Timeline(NOW - 60 * SECOND, 10 * SECOND, {ONCE: [480]}),
    unreadable=["/events/wal/ab.wal can’t be read from event 9 on: torn"],
    warnings=["314 events of 2 workers are missing; what depends on them is UNKNOWN_EXPORT_GAP"],
)

REPEATED: Final = replace(
    CLEAN,
    writers=[writer(number, "billing", WriterFate.DEAD) for number in range(1, 5)] + [writer(5, "billing", WriterFate.ENDED)],
    tallies=[
        Tally("billing", "bill", "orders", ONCE, Flag(0), 798),
        Tally("billing", "bill", "orders", MAYBE, Flag.AMBIGUOUS_EXEC, 190),
        Tally("billing", "bill", "orders", MAYBE, Flag.AMBIGUOUS_EXEC | Flag.UNCLAIMED | Flag.REPEATED, 10),
    ],
    doubtful=[Finding("billing", "bill", "orders", 0, at, MAYBE, Flag.AMBIGUOUS_EXEC, 1, "SUCCEEDED", NOW) for at in range(100, 150)],
)

#: The same without the messages of which it is known that they ran twice.
DOUBT: Final = replace(REPEATED, tallies=REPEATED.tallies[:2])

PRODUCED: Final = replace(
    CLEAN,
    accounts=[PartitionAccount(partition(0), 5, 500, False, {ONCE: 490}, {Verdict.LOST_PRODUCED: 2, Verdict.RETENTION_LOSS: 3}, 0)],
    missing=[
        Missing("billing", "orders", 0, 2, 4, Verdict.LOST_PRODUCED), Missing("billing", "orders", 0, 60, 62, Verdict.LOST_PRODUCED),
        Missing("billing", "orders", 0, 70, 73, Verdict.RETENTION_LOSS),
    ],
    produced=Production(
        "/outbox.parquet",
        [
            ProducedAccount(
                partition(0),
                {
                    Account.HANDLED: 480, Account.LOST_PRODUCED: 2, Account.LOST_BEFORE_START: 2, Account.EXPLAINED: 3,
                    Account.WAITING: 7, Account.EARLIER: 1,
                },
                10,
            )
        ],
        [Unpublished(HOSTILE, 3, 2)],
        4,
        [Orphans("billing", "orders", 0, 100, 110)],
    ),
    warnings=["4 records were produced to partitions that no group has read, by these events, and were not judged"],
)  # fmt: skip

#: The same without what was lost.
ORPHANED: Final = replace(
    CLEAN,
    produced=Production(
        "/outbox.parquet",
        [
            ProducedAccount(
                partition(0),
                {account: 490 if account is Account.HANDLED else 0 for account in Account if account is not Account.ORPHAN},
                10,
            )
        ],
        [],
        0,
        [Orphans("billing", "orders", 0, 100, 110)],
    ),
)

#: The claim store disagrees with the events.
CLAIMED: Final = replace(
    CLEAN,
    claims=ClaimReport(
        "postgresql://db/shop", 1_200, 1_000, {ClaimVerdict.DONE_UNSEEN: 1, ClaimVerdict.LEFT_OPEN: 2},
        [
            ClaimFinding("billing", "bill", "orders", 0, 7, ClaimVerdict.DONE_UNSEEN, LOST, "6f1e"),
            ClaimFinding("billing", HOSTILE, HOSTILE, 0, 8, ClaimVerdict.LEFT_OPEN, PENDING, None),
        ],
        [], [f"{HOSTILE} of billing"],
    ),
    app="billing.worker:app",
)  # fmt: skip

REPORTS: Final = {
    "clean": CLEAN,
    "anomalies": ANOMALIES,
    "inconclusive": INCONCLUSIVE,
    "empty": EMPTY,
    "doubt": DOUBT,
    "repeated": REPEATED,
    "produced": PRODUCED,
    "orphaned": ORPHANED,
    "claimed": CLAIMED,
}
