"""The words of a reconciliation: verdicts, flags, and which of them call for somebody."""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["ANOMALIES", "INCONCLUSIVE", "PLAIN", "ExitCode", "Flag", "LogicalVerdict", "Verdict"]


class Verdict(enum.IntEnum):
    """What became of one message, worst first: an offset that several handlers read is booked by the smallest."""

    LOST = 1
    NEVER_SEEN = 2
    RETRY_LOST = 3
    PHANTOM_SUPPRESSED = 4
    STUCK = 5
    MULTI_EXECUTED = 6
    UNKNOWN_EXPORT_GAP = 7
    IN_FLIGHT = 8
    RETRYING = 9
    PENDING = 10
    SKIPPED_BY_SEEK = 11
    DEAD_LETTERED = 12
    SKIPPED = 13
    DUPLICATE_SUPPRESSED = 14
    EXACTLY_ONCE = 15


class LogicalVerdict(enum.IntEnum):
    """What became of all the records with one dedup hash, where that is not what deduplication promises."""

    LOGICAL_DUPLICATE = 1
    """More than one of them was run with success."""
    PHANTOM = 2
    """Suppressed, and none of them was ever done."""


class Flag(enum.IntFlag):
    """What is worth knowing beside the verdict."""

    COMMITTED_PAST = 1
    """Still open, and the group has committed past it: nobody will deliver it again."""
    AMBIGUOUS_EXEC = 2
    """Somebody else may have run it and died before saying so."""
    UNCLAIMED = 4
    """A run of it had no claim, so nothing kept others from running it too."""
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
    """A clock says that it was done before it was begun."""
    BEYOND_TTL = 1024
    """Logical level: the runs are further apart than the store remembers."""


class ExitCode(enum.IntEnum):
    """What `ackwise reconcile` answers to the shell."""

    CLEAN = 0
    ANOMALIES = 1
    ERROR = 2
    INCONCLUSIVE = 3


#: Verdicts for which `reconcile` exits with 1.
ANOMALIES: Final = frozenset(
    {
        Verdict.LOST,
        Verdict.NEVER_SEEN,
        Verdict.RETRY_LOST,
        Verdict.PHANTOM_SUPPRESSED,
        Verdict.STUCK,
        Verdict.MULTI_EXECUTED,
    }
)
#: Verdicts for which it exits with 3, if there are no anomalies.
INCONCLUSIVE: Final = frozenset({Verdict.UNKNOWN_EXPORT_GAP})
#: Verdicts of which nobody will ask how they came about, unless a flag stands beside them.
PLAIN: Final = frozenset({Verdict.EXACTLY_ONCE, Verdict.SKIPPED})
