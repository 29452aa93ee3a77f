"""What became of dead letters that were sent again, by handler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ackwise.spark.vocabulary import DONE, Flag, Verdict

__all__ = ["Redriven", "redriven_of"]


class _Tally(Protocol):
    @property
    def group(self) -> str: ...
    @property
    def handler(self) -> str: ...
    @property
    def verdict(self) -> Verdict: ...
    @property
    def flags(self) -> Flag: ...
    @property
    def messages(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Redriven:
    """The messages of one handler whose dead letter was sent again. Several redrives of one message count once, by the last."""

    group: str
    handler: str
    letters: int
    succeeded: int
    died_again: int

    @property
    def pending(self) -> int:
        """The number whose copy waits, runs or comes back: it has no end yet."""
        return self.letters - self.succeeded - self.died_again


def redriven_of(tallies: Iterable[_Tally]) -> list[Redriven]:
    """Return what became of redriven letters, by group and handler."""
    letters, succeeded, died_again = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for tally in tallies:
        if Flag.REDRIVEN not in tally.flags:
            continue
        of = tally.group, tally.handler
        letters[of] += tally.messages
        if tally.verdict in DONE:
            succeeded[of] += tally.messages
        elif Flag.DIED_AGAIN in tally.flags:
            died_again[of] += tally.messages
    return [Redriven(*of, number, succeeded[of], died_again[of]) for of, number in sorted(letters.items())]
