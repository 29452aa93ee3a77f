"""The tone of a verdict or a flag: bad if it needs a look, doubtful if it leaves a question."""

from __future__ import annotations

from typing import Literal

from ackwise.spark.storeclaims.findings import CLAIM_ANOMALIES, ClaimVerdict
from ackwise.spark.vocabulary import ANOMALIES, DOUBTFUL, INCONCLUSIVE, RED, Flag, LogicalVerdict, ProducedVerdict, Verdict

__all__ = ["Tone", "tone_of", "tone_of_finding"]

Tone = Literal["good", "bad", "doubt", "plain"]
"""The meaning of a value, shown as a colour and a sign."""


def tone_of(kind: Verdict | LogicalVerdict | ProducedVerdict | ClaimVerdict | Flag) -> Tone:
    """The tone of a verdict or a flag."""
    match kind:
        case LogicalVerdict():
            return "bad"
        case ProducedVerdict():
            return "bad" if kind is ProducedVerdict.NOT_PUBLISHED else "plain" if kind is ProducedVerdict.PRODUCE_FAILED else "doubt"
        case ClaimVerdict():
            return "bad" if kind in CLAIM_ANOMALIES else "plain"
        case Flag() if kind in RED:
            return "bad"
        case Flag():
            return "doubt" if kind in DOUBTFUL | Flag.RAN_CANCELLED else "plain"
        case Verdict.EXACTLY_ONCE:
            return "good"
        case Verdict.MAYBE_TWICE | Verdict.DEAD_LETTERED | Verdict.SUPPRESSED_BY_DEAD | Verdict.DROPPED:
            return "doubt"
        case Verdict():
            return "bad" if kind in ANOMALIES else "doubt" if kind in INCONCLUSIVE else "plain"


def tone_of_finding(verdict: Verdict | None, flags: Flag) -> Tone:
    """The tone of one listed message: one without an anomaly is listed for a flag that leaves a question."""
    return "bad" if verdict in ANOMALIES or flags & RED else "doubt"
