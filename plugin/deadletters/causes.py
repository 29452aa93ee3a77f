"""Causes: dead letters counted by what they died of, in bounded memory. Pure."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ackwise.plugin.deadletters.letter import Cause, Letter
from ackwise.plugin.deadletters.letterstate import LetterState, States

__all__ = ["Causes", "Kind", "Tally"]

#: Kinds that are counted apart: a reason is any text of a handler, and there may be as many as letters.
_KINDS: Final = 1000

#: What stands for all that came later.
_OTHERS: Final = Cause("others", "more causes than are counted apart", "", "")


@dataclass(frozen=True, slots=True)
class Kind:
    """What letters have in common: a cause, in one handler, of one origin topic."""

    cause: Cause
    handler: str
    topic: str


@dataclass(slots=True)
class Tally:
    """Letters of one kind. Times are epoch milliseconds."""

    states: Counter[str] = field(default_factory=Counter)
    """How many are `open`, `redriven` or `dropped`, and how many are `foreign`: nobody here can do anything with them."""
    oldest_ms: int = 2**63
    newest_ms: int = -(2**63)
    example: str = ""
    """The newest letter, as `ackwise dlq show` takes it."""

    def add(self, letter: Letter, state: LetterState | None) -> None:
        """Count a letter."""
        at = letter.id.timestamp_ms
        self.states[state.state if state is not None else "foreign" if letter.problem else "open"] += 1
        self.oldest_ms = min(self.oldest_ms, at)
        if at >= self.newest_ms:
            self.newest_ms, self.example = at, str(letter.id)


@dataclass(slots=True)
class Causes:
    """All letters by their kinds, and the newest `most` of them one by one, without values and headers."""

    most: int = 0
    kinds: dict[Kind, Tally] = field(default_factory=dict)
    _newest: list[tuple[int, int, int, Any]] = field(default_factory=list)

    def add(self, letter: Letter, states: States) -> None:
        """Count a letter."""
        state = states.of(letter)
        kind = Kind(letter.cause, letter.handler, letter.delivery.origin.topic)
        if kind not in self.kinds and len(self.kinds) >= _KINDS:
            kind = Kind(_OTHERS, "", "")
        self.kinds.setdefault(kind, Tally()).add(letter, state)
        if self.most:
            keep = heapq.heappush if len(self._newest) < self.most else heapq.heappushpop
            partition, offset, timestamp = letter.id
            light = letter.delivery._replace(value=None, headers=())  # values may be of any size
            keep(self._newest, (timestamp, partition, offset, (replace(letter, delivery=light, record=light), state)))

    def count(self, state: str) -> int:
        """How many letters are in a state."""
        return sum(tally.states[state] for tally in self.kinds.values())

    @property
    def newest(self) -> list[tuple[Letter, LetterState | None]]:
        """The newest letters with their states, the newest first."""
        return [found for *_, found in sorted(self._newest, key=lambda each: each[:3], reverse=True)]

    @property
    def ordered(self) -> list[tuple[Kind, Tally]]:
        """The most frequent open ones first."""
        return sorted(self.kinds.items(), key=lambda each: (-each[1].states["open"], -each[1].states.total(), each[0].cause))
