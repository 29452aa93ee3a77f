"""The words of a reconciliation: verdicts, flags, and which of them need a look."""

from __future__ import annotations

import enum
from typing import Final

__all__ = [
    "ANOMALIES",
    "DONE",
    "DOUBTFUL",
    "IN_DOUBT",
    "ENDED",
    "FLAG_MEANINGS",
    "INCONCLUSIVE",
    "LEFT_OPEN",
    "LOSSES",
    "MEANINGS",
    "MENDABLE",
    "PLAIN",
    "PRODUCED_MEANINGS",
    "RED",
    "SUPPRESSED",
    "UNDER_WAY",
    "Account",
    "CopyFate",
    "ExitCode",
    "Flag",
    "LogicalVerdict",
    "ProducedVerdict",
    "Verdict",
]


class Verdict(enum.IntEnum):
    """The verdict on one message, worst first: an offset of several handlers counts under the smallest."""

    LOST = 1
    LOST_PRODUCED = 2
    NEVER_SEEN = 3
    RETENTION_LOSS = 4
    RETRY_LOST = 5
    PHANTOM_SUPPRESSED = 6
    STUCK = 7
    MULTI_EXECUTED = 8
    UNKNOWN_EXPORT_GAP = 9
    IN_FLIGHT = 10
    RETRYING = 11
    PENDING = 12
    SKIPPED_BY_SEEK = 13
    MAYBE_TWICE = 14
    DEAD_LETTERED = 15
    SUPPRESSED_BY_DEAD = 16
    DROPPED = 17
    SKIPPED = 18
    CANCELLED = 19
    DUPLICATE_SUPPRESSED = 20
    EXACTLY_ONCE = 21


class LogicalVerdict(enum.IntEnum):
    """The verdict on all records with one dedup hash, where deduplication failed."""

    LOGICAL_DUPLICATE = 1
    """More than one of them was run with success."""
    PHANTOM = 2
    """Suppressed, though none of them was ever done."""


class ProducedVerdict(enum.IntEnum):
    """The verdict on a produced record, beside the verdicts on offsets."""

    NOT_PUBLISHED = 1
    """To be produced, and still without coordinates."""
    ORPHAN_CONSUMED = 2
    """Consumed by a group, and in no table of produced records."""
    PARKED = 3
    """A row of an outbox that waits for somebody to decide, and is sent once it is requeued."""
    PRODUCE_FAILED = 4
    """Not sent, and whoever sent it was told."""
    PUBLISH_UNKNOWN = 5
    """To be produced, and events of somebody who sends are missing."""


class Account(enum.StrEnum):
    """What became of a produced record, in the accounts of its partition; each has one."""

    HANDLED = "handled"
    """Events are about it."""
    LOST_PRODUCED = "lost"
    LOST_BEFORE_START = "lost_before_start"
    """Produced since the group began, and below the first offset that it read: LOST_PRODUCED too, but outside the accounts of the group."""
    EXPLAINED = "explained"
    """No event is about it, and the accounts have the reason: jumped over, deleted, received and lost, or unknown."""
    WAITING = "waiting"
    """The group has not come to it."""
    EARLIER = "earlier"
    """From before the group began, by the events that there are."""
    ORPHAN = "orphan"
    """Not produced, by the table; counted beside the others."""


class CopyFate(enum.StrEnum):
    """The fate of a copy that was sent back, in the accounts of retries; each has one."""

    CAME = "came"
    """A later attempt of the message was seen."""
    WAITING = "waiting"
    """It is due later, or the topics have not been read since: RETRYING."""
    LOST = "lost"
    """RETRY_LOST."""
    UNKNOWN = "unknown"
    """UNKNOWN_EXPORT_GAP."""
    OVERTAKEN = "overtaken"
    """Its message got another end without it, such as by a delivery of the origin after a crash."""


class Flag(enum.IntFlag):
    """A remark beside the verdict."""

    COMMITTED_PAST = 1
    """Still open, and the group has committed past it: nobody will deliver it again."""
    AMBIGUOUS_EXEC = 2
    """Another worker may have run it and died before it reported that: it had started it, or its log can't say so, without an outcome.
    Or its handler committed by itself, and was given up: nobody knows how much of it came true."""
    UNCLAIMED = 4
    """A run of it had no claim, so others could run it, too."""
    REPEATED = 8
    """Run with success more than once, and not more than once under a claim."""
    HAD_FAILURES = 16
    """A run of it failed."""
    RETRIED = 32
    """It was sent back to be delivered later."""
    RESCUED_FROM_DLQ = 64
    """A dead letter that was run with success as well."""
    DUP_AND_OK = 128
    """A delivery of it was suppressed and one was run with success."""
    ATTEMPT_HOLE = 256
    """There are no events of one of its attempts."""
    NEG_LATENCY = 512
    """It was done before it was started, by the clocks."""
    BEYOND_TTL = 1024
    """Logical level: the runs are further apart than the store remembers."""
    REWOUND = 2048
    """The group went back behind it after it had committed past it, so it was delivered again."""
    PROVISIONAL = 4096
    """Events that would mend it may still come: it is younger than files may be late."""
    RECREATED = 8192
    """Two records had its coordinates, since the topic was recreated: its events mix both."""
    RAN_CANCELLED = 16384
    """It was cancelled while it waited, and ran all the same."""
    TIMED_OUT = 32768
    """A run of it took longer than its consume timeout. It may have succeeded after that, which counts as any success."""
    OUT_OF_ORDER = 65536
    """A copy of it ran although its handler has an order: behind what came later."""
    REDRIVEN = 131072
    """Its dead letter was sent again by `ackwise dlq redrive`."""
    DIED_AGAIN = 262144
    """What was sent again last became a dead letter again."""
    OVERTAKEN = 524288
    """Its handler has an order, and a later message of its key, or of its partition, started before it was done."""
    MAYBE_OVERTAKEN = 1048576
    """It looks like that, and clocks that differ, missing events or a group that went back over it can explain it."""


class ExitCode(enum.IntEnum):
    """The exit code of `ackwise reconcile`."""

    CLEAN = 0
    ANOMALIES = 1
    ERROR = 2
    INCONCLUSIVE = 3


#: Verdicts for which `reconcile` exits with 1.
ANOMALIES: Final = frozenset(
    {
        Verdict.LOST,
        Verdict.LOST_PRODUCED,
        Verdict.NEVER_SEEN,
        Verdict.RETENTION_LOSS,
        Verdict.RETRY_LOST,
        Verdict.PHANTOM_SUPPRESSED,
        Verdict.STUCK,
        Verdict.MULTI_EXECUTED,
    }
)
#: Flags for which it exits with 1, whatever the verdict is.
RED: Final = Flag.COMMITTED_PAST | Flag.OVERTAKEN
#: Verdicts for which it exits with 3, if there are no anomalies.
INCONCLUSIVE: Final = frozenset({Verdict.UNKNOWN_EXPORT_GAP})
#: Flags of messages that were run again, or may have been: with success they are MAYBE_TWICE. Only with `--strict` is that an anomaly.
IN_DOUBT: Final = Flag.AMBIGUOUS_EXEC | Flag.REPEATED
#: Flags of messages that are listed as doubtful: only with `--strict` are they an anomaly.
DOUBTFUL: Final = IN_DOUBT | Flag.MAYBE_OVERTAKEN
#: It was run with success.
DONE: Final = frozenset({Verdict.EXACTLY_ONCE, Verdict.MAYBE_TWICE, Verdict.MULTI_EXECUTED})
#: Verdicts that need no evidence, unless there is a flag beside them.
PLAIN: Final = frozenset({Verdict.EXACTLY_ONCE, Verdict.SKIPPED})
#: Verdicts by which a message failed to have its effect.
LOSSES: Final = frozenset(
    {
        Verdict.LOST,
        Verdict.LOST_PRODUCED,
        Verdict.NEVER_SEEN,
        Verdict.RETENTION_LOSS,
        Verdict.RETRY_LOST,
        Verdict.PHANTOM_SUPPRESSED,
    }
)
#: The message has an outcome, and nothing is to come.
ENDED: Final = frozenset(
    {
        *DONE,
        Verdict.DEAD_LETTERED,
        Verdict.SUPPRESSED_BY_DEAD,
        Verdict.DROPPED,
        Verdict.SKIPPED,
        Verdict.CANCELLED,
        Verdict.DUPLICATE_SUPPRESSED,
    }
)
#: Not ended, and nobody is at work on it by its own events: in a later dedup epoch somebody may have been.
LEFT_OPEN: Final = frozenset(
    {Verdict.LOST, Verdict.RETRY_LOST, Verdict.STUCK, Verdict.UNKNOWN_EXPORT_GAP, Verdict.RETRYING, Verdict.PENDING}
)
#: Not run as a duplicate: of what was done, and of what is dead.
SUPPRESSED: Final = frozenset({Verdict.DUPLICATE_SUPPRESSED, Verdict.SUPPRESSED_BY_DEAD})
#: Anomalies that events which come late may mend: what ran twice, stays so.
MENDABLE: Final = ANOMALIES - {Verdict.MULTI_EXECUTED}
#: Verdicts that a later run will replace by others.
UNDER_WAY: Final = frozenset({Verdict.IN_FLIGHT, Verdict.RETRYING, Verdict.PENDING})

#: The meaning of each verdict, in a few words.
MEANINGS: Final = {
    Verdict.LOST: "received, committed past, and never finished",
    Verdict.LOST_PRODUCED: "produced, and committed past without having been received",
    Verdict.NEVER_SEEN: "committed past without having been received",
    Verdict.RETENTION_LOSS: "deleted by the broker before it was received",
    Verdict.RETRY_LOST: "sent back, and its copy is nowhere",
    Verdict.PHANTOM_SUPPRESSED: "suppressed as done, and no run did it",
    Verdict.STUCK: "claimed by a worker that died, and not taken up since",
    Verdict.MULTI_EXECUTED: "ran successfully more than once",
    Verdict.UNKNOWN_EXPORT_GAP: "the events that would say are missing",
    Verdict.IN_FLIGHT: "being run",
    Verdict.RETRYING: "sent back, to be delivered again",
    Verdict.PENDING: "received, and not started",
    Verdict.SKIPPED_BY_SEEK: "jumped over by a seek",
    Verdict.MAYBE_TWICE: "ran successfully, and perhaps more than once",
    Verdict.DEAD_LETTERED: "in the dead-letter topic",
    Verdict.SUPPRESSED_BY_DEAD: "not run: its key is that of a dead letter",
    Verdict.DROPPED: "failed, and dropped by an instance that broadcasts",
    Verdict.SKIPPED: "skipped on purpose",
    Verdict.CANCELLED: "cancelled while it waited to come back",
    Verdict.DUPLICATE_SUPPRESSED: "a duplicate of one that was done, not run",
    Verdict.EXACTLY_ONCE: "ran successfully, once",
}
FLAG_MEANINGS: Final = {
    Flag.COMMITTED_PAST: "still open, and the group has committed past it",
    Flag.AMBIGUOUS_EXEC: "another worker may have run it and died",
    Flag.UNCLAIMED: "run without a claim",
    Flag.REPEATED: "ran successfully again, without a claim",
    Flag.HAD_FAILURES: "a run of it failed",
    Flag.RETRIED: "sent back at least once",
    Flag.RESCUED_FROM_DLQ: "a dead letter that was run as well",
    Flag.DUP_AND_OK: "delivered again after it was done",
    Flag.ATTEMPT_HOLE: "no events of one of its attempts",
    Flag.NEG_LATENCY: "done before it was started, by the clocks",
    Flag.BEYOND_TTL: "further apart than the store remembers",
    Flag.REWOUND: "the group went back to before it after it had committed past it",
    Flag.PROVISIONAL: "events that would explain it may still come",
    Flag.RECREATED: "two records had its coordinates: the topic was recreated",
    Flag.RAN_CANCELLED: "cancelled, and ran all the same",
    Flag.TIMED_OUT: "a run of it took longer than its consume timeout",
    Flag.OUT_OF_ORDER: "a copy of it ran although its handler has an order",
    Flag.REDRIVEN: "its dead letter was sent again by ackwise dlq redrive",
    Flag.DIED_AGAIN: "a dead letter again after the last redrive",
    Flag.OVERTAKEN: "a later message of its key or partition started before it was done",
    Flag.MAYBE_OVERTAKEN: "a later message of its key or partition may have started before it was done",
}
PRODUCED_MEANINGS: Final = {
    ProducedVerdict.NOT_PUBLISHED: "to be produced, and long without coordinates",
    ProducedVerdict.ORPHAN_CONSUMED: "consumed, though no event says that they were produced",
    ProducedVerdict.PARKED: "parked in an outbox, to be requeued by hand",
    ProducedVerdict.PRODUCE_FAILED: "not sent, and their sender had an error",
    ProducedVerdict.PUBLISH_UNKNOWN: "to be produced, and the events are missing that would say whether they were",
}
