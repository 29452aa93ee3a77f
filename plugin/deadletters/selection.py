"""Selection: which dead letters a command is about. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from ackwise.plugin.deadletters.letter import Letter
from ackwise.plugin.deadletters.letterstate import LetterState, States

__all__ = ["Selection"]


@dataclass(frozen=True, slots=True)
class Selection:
    """What is given must hold all together; what is `None` or empty lets every letter through. Times are epoch milliseconds."""

    cause: str | None = None
    """The fingerprint, or its first digits."""
    handler: str | None = None
    topic: str | None = None
    """The origin topic."""
    key: bytes | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    """Letters older than this."""
    ids: frozenset[tuple[int, int]] = frozenset()
    """Partitions and offsets of letters."""
    again: bool = False
    """Also those that were redriven or dropped before."""

    def takes(self, letter: Letter, state: LetterState | None) -> bool:
        """Whether the letter is meant."""
        return (self.again or state is None) and self._is_of(letter) and self._is_when(letter.id.timestamp_ms)

    async def taken(self, letters: AsyncIterator[Letter], states: States) -> AsyncIterator[Letter]:
        """Those of `letters` that are meant."""
        async for letter in letters:
            if self.takes(letter, states.of(letter)):
                yield letter

    def _is_of(self, letter: Letter) -> bool:
        delivery = letter.delivery
        return (
            (not self.ids or letter.id[:2] in self.ids)
            and self.handler in (None, letter.handler)
            and self.topic in (None, delivery.origin.topic)
            and (self.key is None or self.key == delivery.key)
            and (self.cause is None or letter.cause.fingerprint.startswith(self.cause))
        )

    def _is_when(self, timestamp_ms: int) -> bool:
        return (self.since_ms is None or self.since_ms <= timestamp_ms) and (self.until_ms is None or timestamp_ms < self.until_ms)
