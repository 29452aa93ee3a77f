"""The findings of a comparison with a claim store, as values. Plain Python."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ackwise.spark.vocabulary import Verdict

__all__ = ["CLAIM_ANOMALIES", "CLAIM_MEANINGS", "ClaimFinding", "ClaimReport", "ClaimVerdict"]


class ClaimVerdict(enum.IntEnum):
    """A contradiction between the store and the events about one key, worst first."""

    DONE_UNSEEN = 1
    """The store has it as done, and by the events no message of the key ever was."""
    FORGOTTEN = 2
    """Run with success under a claim, and the store has forgotten it before its time."""
    UNMARKED = 3
    """Run with success, and the store does not have it as done."""
    LEFT_OPEN = 4
    """Not done, and still claimed by a worker whose lease is long over."""
    UNRECORDED = 5
    """Run with success by a worker that could not record it; the next delivery does."""


#: Those that contradict what deduplication promises. The others are what a kill leaves, until the next delivery.
CLAIM_ANOMALIES: Final = frozenset({ClaimVerdict.DONE_UNSEEN, ClaimVerdict.FORGOTTEN})

CLAIM_MEANINGS: Final[Mapping[ClaimVerdict, str]] = {
    ClaimVerdict.DONE_UNSEEN: "done by the store, and by the events no run did it: sent again, it would be suppressed",
    ClaimVerdict.FORGOTTEN: "ran successfully, and the store forgot it too early: a duplicate would run",
    ClaimVerdict.UNMARKED: "ran successfully, and not marked as done in the store: a duplicate would run",
    ClaimVerdict.LEFT_OPEN: "not done, and still claimed by a worker whose lease is over",
    ClaimVerdict.UNRECORDED: "ran successfully, as the store alone knows: its worker could not record it, and the next delivery does",
}


@dataclass(frozen=True, slots=True)
class ClaimFinding:
    """One message whose key the store and the events disagree about."""

    group: str
    handler: str
    topic: str
    partition: int
    offset: int
    finding: ClaimVerdict
    verdict: Verdict
    key: str | None
    """The name of the row in the store, or None."""


@dataclass(frozen=True, slots=True)
class ClaimReport:
    """The store beside the events."""

    store: str
    """Where it is, without user and password."""
    claims: int
    """Keys that it remembers."""
    known: int
    """Keys among them that the events know."""
    counts: Mapping[ClaimVerdict, int]
    """Keys of each kind."""
    findings: Sequence[ClaimFinding]
    """The first messages of these keys."""
    without_claims: Sequence[str]
    """Handlers, with their groups, that should have claims in the store and have none."""
    later: Sequence[str]
    """Handlers, with their groups, in a later dedup epoch: left out of the comparison, since the store's keys do not show the epoch."""

    @property
    def anomalies(self) -> int:
        """The number of keys that need a look."""
        return sum(number for kind, number in self.counts.items() if kind in CLAIM_ANOMALIES)

    @property
    def sentences(self) -> list[str]:
        """One sentence for each kind of contradiction."""
        found = [
            f"{kind.name}: {number:,} {'key is' if number == 1 else 'keys are'} {CLAIM_MEANINGS[kind]}"
            for kind in ClaimVerdict
            if (number := self.counts.get(kind))
        ]
        found += [
            f"none of the keys of {name} is in {self.store}: it keeps its claims elsewhere, or they are gone"
            for name in self.without_claims
        ]
        found += [f"{name} is in a later dedup epoch, whose claims can't be matched with the events: not compared" for name in self.later]
        if others := self.claims - self.known:
            found.append(f"{others:,} of {self.claims:,} keys in {self.store} are of no event here: other groups, epochs, or earlier times")
        return found
