"""Breaker: stops a handler for which next to nothing goes well, before a whole topic has become dead letters. Pure, time is passed in.

    sampling → closed ⇄ (tripped) open → half-open → closed, or open again

The first sample withholds the dead letters of values that can't be decoded until one can, until twenty were seen, or for ten seconds:
a schema that nobody told this worker of shows at once. After that, nine bad ones in ten among the last two hundred trip it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.raising import Later, Reject

#: Bad ones with no good one among them at which the first sample trips.
FIRST: Final = 20

#: The last ones that are looked at, and the share of bad ones among them that trips.
WINDOW, SHARE = 200, 0.9

#: Seconds after which a batch that tries the handler again, and has not reported its result, is forgotten.
TRIAL: Final = 10.0

#: Seconds for which withheld dead letters leave the trial to new messages.
GRACE: Final = 5.0


@dataclass(frozen=True)
class Breaker:
    """Stop a handler when the first 20 values can't be decoded, or 90 % of the last 200. On by default.

    `errors` are classes of exceptions of handlers that count as well, call by call; `Reject` and `Later` never do. A handler that is
    stopped tries one batch after `rest`. Durations are seconds, or texts such as `"60s"`. Raises `ConfigurationError`.
    """

    undecodable: Annotated[bool, "stop a handler whose values can't be decoded"] = True
    errors: tuple[type[BaseException], ...] = ()
    first_wait: Annotated[float | str, "time for which the dead letters of the first values may be withheld"] = 10.0
    rest: Annotated[float | str, "time after which a stopped handler tries one batch"] = 60.0

    def __post_init__(self) -> None:
        for name in ("first_wait", "rest"):
            object.__setattr__(self, name, parse_duration(getattr(self, name), what=f"{name} of Breaker"))
        if not isinstance(self.undecodable, bool):
            raise ConfigurationError(f"undecodable of Breaker is {self.undecodable!r}; it must be true or false")
        kinds = self.errors if isinstance(self.errors, tuple) else (None,)
        if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            raise ConfigurationError(f"errors of Breaker is {self.errors!r}; give a tuple of exception classes, such as (ConnectionError,)")
        for kind in self.errors:
            if issubclass(kind, Reject | Later):
                raise ConfigurationError(f"errors of Breaker has {kind.__name__}, which a handler rules with; leave it out")


class Position(enum.Enum):
    """What a circuit lets through."""

    SAMPLING = "sampling"
    """Everything, but for the dead letters of the first values."""
    CLOSED = "closed"
    """Everything."""
    OPEN = "open"
    """Nothing, until its rest is over."""
    HALF_OPEN = "half-open"
    """One batch, which decides."""


class Circuit:
    """What is known of one kind of failure of one handler. Times are monotonic seconds."""

    def __init__(self, policy: Breaker, *, withholds: bool) -> None:
        """`withholds`: its first sample lets no dead letter go."""
        self.position = Position.SAMPLING
        self._first_wait, self._rest = float(policy.first_wait), float(policy.rest)
        self._withholds = withholds
        self._bad = 0  #: in the window, or in the first sample
        self._seen = 0
        self._window: deque[tuple[bool, int]] = deque()  #: whether they are bad and how many, oldest first
        self._first_at: float | None = None  #: the first bad one of the sample
        self._opens_at = 0.0
        self._tried_at = 0.0
        self._is_let_go = False  #: the operator released the dead letters, until a message succeeds

    def count(self, values: Iterable[tuple[bool, int]], now: float, *, recovered: bool = False) -> bool:
        """Take into account how many were bad (`True`) and good, in order. `recovered`: one that was bad before is good now.

        Returns whether that changes what it lets through.
        """
        self._let_sample_end(now)
        before, was_withholding = self.position, self._first_at is not None
        values = [value for value in values if value[1]]
        match self.position:
            case Position.OPEN:
                pass
            case Position.HALF_OPEN:
                self._judge(values, now, recovered)
            case _:
                if self._is_let_go and not (recovered or any(not bad for bad, _ in values)):
                    return False
                self._is_let_go = False
                if self.position is Position.SAMPLING:
                    self._sample(values, now)
                else:
                    self._slide(values, now)
        if self.position is before:
            return False
        return self.position is Position.OPEN or before is not Position.SAMPLING or was_withholding

    def count_good(self, number: int, now: float) -> bool:
        """Count like `count` where no message was bad; fast if none ever was."""
        if self.position is Position.CLOSED and not self._bad:
            self._seen = min(WINDOW, self._seen + number)
            return False
        return self.count([(False, number)], now)

    def withheld_until(self, now: float) -> float | None:
        """Return when a withheld dead letter is due again; `None` if it may be written."""
        self._let_sample_end(now)
        if self._is_let_go or self.position is Position.CLOSED:
            return None
        if self.position is Position.SAMPLING:
            return None if not self._withholds or self._first_at is None else self._first_at + self._first_wait
        return self._next_try + GRACE

    def held_until(self, now: float) -> float | None:
        """Return when a batch that may not start now may ask again; `None` if it may start, after a rest as the trial."""
        if self.position not in (Position.OPEN, Position.HALF_OPEN):
            return None
        if now < self._next_try:
            return self._next_try
        self.position, self._tried_at = Position.HALF_OPEN, now
        return None

    def is_shut(self, now: float) -> bool:
        """Return whether nothing more is to be fetched for it."""
        return self.position in (Position.OPEN, Position.HALF_OPEN) and now < self._next_try

    def try_now(self, now: float) -> bool:
        """Its rest is over. Returns whether it had one."""
        if self.position not in (Position.OPEN, Position.HALF_OPEN):
            return False
        self.position, self._opens_at = Position.OPEN, now
        return True

    def let_go(self) -> bool:
        """Allow dead letters until a message succeeds. Return whether the circuit was not closed."""
        was_closed = self.position is Position.CLOSED
        self._close()
        self._is_let_go = True
        return not was_closed

    @property
    def _next_try(self) -> float:
        return self._opens_at if self.position is Position.OPEN else self._tried_at + TRIAL

    def _let_sample_end(self, now: float) -> None:
        if self.position is Position.SAMPLING and self._first_at is not None and now >= self._first_at + self._first_wait:
            self.position = Position.CLOSED
            self._window, self._seen = deque([(True, self._bad)]), self._bad

    def _sample(self, values: list[tuple[bool, int]], now: float) -> None:
        if any(not bad for bad, _ in values):
            before, self._bad = self._bad, 0
            self.position = Position.CLOSED
            self._slide([(True, before), *values] if before else values, now)
            return
        self._bad += sum(number for _, number in values)
        if self._first_at is None and self._bad:
            self._first_at = now
        if self._bad >= FIRST:
            self._trip(now)

    def _slide(self, values: list[tuple[bool, int]], now: float) -> None:
        if self._seen and not self._window:  # good ones that were only counted
            self._window.append((False, self._seen))
        for bad, number in values:
            self._window.append((bad, number))
            self._seen += number
            self._bad += number if bad else 0
        while self._seen > WINDOW:
            bad, number = self._window.popleft()
            over = min(number, self._seen - WINDOW)
            if over < number:
                self._window.appendleft((bad, number - over))
            self._seen -= over
            self._bad -= over if bad else 0
        if self._seen >= WINDOW and self._bad >= SHARE * WINDOW:
            self._trip(now)
        elif not self._bad:
            self._window.clear()

    def _judge(self, values: list[tuple[bool, int]], now: float, recovered: bool) -> None:
        """By what was not seen before, if there is any."""
        bad, seen = sum(number for is_bad, number in values if is_bad), sum(number for _, number in values)
        if recovered or (seen and bad < SHARE * seen):
            self._close()
        else:
            self._trip(now)

    def _trip(self, now: float) -> None:
        self._close()
        self.position, self._opens_at = Position.OPEN, now + self._rest

    def _close(self) -> None:
        self.position = Position.CLOSED
        self._bad = self._seen = 0
        self._window.clear()
        self._first_at = None
