"""Receipts: who may say what becomes of a message that was handed out, and until when. Pure; the time is passed in.

A message that was received is invisible to others until its receipt expires. Then the receipt counts for nothing, and the message is
delivered again as its next attempt. Source: RocketMQ's POP consumption (`PopMessageProcessor`, `ReceiptHandle`).
"""

from __future__ import annotations

import enum
import heapq
import random
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ackwise.middleware.duration import format_duration, parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.disposition import Delayed, Failure

T = TypeVar("T")

#: What becomes of a message whose receipt has expired: it is sent back at once, and that attempt is counted.
EXPIRED: Final = Delayed(delay=0.0, failure=Failure("ReceiptExpired", "it was not acknowledged within its invisible time"))

#: Expired or used receipts that may stand in the order of ends before it is swept.
_SWEPT: Final = 1000


class Answer(enum.Enum):
    """What an acknowledgement came to."""

    ACKED = "acked"
    """The message is done, and the claim store knows: it is not delivered again."""
    UNSETTLED = "unsettled"
    """Done and remembered in this process, which settles it as soon as store, event log and brokers answer. If the process dies
    before, the message may be delivered again."""
    INVALID_RECEIPT = "invalid receipt"
    """Nothing has happened: the receipt has expired, was used, or was replaced by a newer one. The message is, or will be, delivered
    again unless the newer receipt is acknowledged."""


@dataclass(frozen=True, slots=True)
class Invisibility:
    """The bounds of invisible times, seconds. Source: RocketMQ's proxy refuses less than 10 s and more than 12 h."""

    shortest: float = 10.0
    longest: float = 12 * 3600.0

    def __post_init__(self) -> None:
        if not 0 < self.shortest <= self.longest:
            raise ConfigurationError(
                f"min_invisible is {self.shortest:g} s and max_invisible {self.longest:g} s; give a shortest time above 0, and a longest "
                "one that is not below it"
            )

    def seconds(self, asked: float | str) -> float:
        """Seconds of `asked`. Raises `ConfigurationError` for a time that is unreadable or out of bounds."""
        seconds = parse_duration(asked, what="invisible")
        if not self.shortest <= seconds <= self.longest:
            raise ConfigurationError(
                f"invisible is {asked!r}; it must be from {format_duration(self.shortest)} to {format_duration(self.longest)}, or give the "
                "consumer another min_invisible or max_invisible"
            )
        return seconds


class Receipts(Generic[T]):
    """The receipts that one consumer has given, each for a thing of the caller's. Times are seconds of one clock."""

    def __init__(self, draw: random.Random | None = None) -> None:
        self._draw = draw or random.Random()  # its own generator: a user's random.seed() must not repeat a receipt of an earlier process
        self._given: dict[str, tuple[T, float]] = {}
        self._ends: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._given)

    def give(self, thing: T, until: float) -> str:
        """A new receipt for `thing`, which counts until `until`."""
        receipt = f"{self._draw.getrandbits(96):024x}"
        self._given[receipt] = thing, until
        heapq.heappush(self._ends, (until, receipt))
        self._sweep()
        return receipt

    def use(self, receipt: str, now: float) -> T | None:
        """Invalidate `receipt` and return what it is for; return `None`, and change nothing, if it does not count."""
        found = self._given.get(receipt)
        if found is None or now >= found[1]:
            return None
        del self._given[receipt]
        return found[0]

    def replace(self, receipt: str, until: float, now: float) -> str | None:
        """A newer receipt in the place of `receipt`, which counts no more. `None` if it does not count, which changes nothing."""
        thing = self.use(receipt, now)
        return None if thing is None else self.give(thing, until)

    def expire(self, now: float) -> list[T]:
        """Forget the expired receipts and return what they are for, in the order of their ends."""
        found = []
        while self._ends and self._ends[0][0] <= now:
            _, receipt = heapq.heappop(self._ends)
            if receipt in self._given:
                found.append(self._given.pop(receipt)[0])
        return found

    def withdraw(self) -> list[T]:
        """Invalidate all receipts and return what they are for."""
        found = [thing for thing, _ in self._given.values()]
        self._given.clear()
        self._ends.clear()
        return found

    @property
    def next_end(self) -> float | None:
        """Return when the next receipt may expire; `None` if there is none."""
        return self._ends[0][0] if self._ends else None

    def _sweep(self) -> None:
        """Forget the ends of receipts that were used: where most are used long before, they would be kept for hours."""
        if len(self._ends) > 2 * len(self._given) + _SWEPT:
            self._ends = [(until, receipt) for until, receipt in self._ends if receipt in self._given]
            heapq.heapify(self._ends)
