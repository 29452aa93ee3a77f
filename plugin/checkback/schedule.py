"""When a half message is checked, and what an answer makes of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.outbox import FIRST_CHECK, MAX_CHECKS, NEXT_CHECK, CheckAnswer, Prepared, TransactionOutcome, next_check

__all__ = ["CheckSchedule", "by_transaction"]


@dataclass(frozen=True, slots=True)
class CheckSchedule:
    """The first check comes `first` seconds after `prepare`, the next ones every `every` seconds, and `most` are answered at most.

    Raises `ConfigurationError` for a setting that can't work.
    """

    first: float = FIRST_CHECK
    every: float = NEXT_CHECK
    most: int = MAX_CHECKS

    def __post_init__(self) -> None:
        for name in ("first", "every"):
            object.__setattr__(self, name, parse_duration(getattr(self, name), what=f"{name} of the check-back"))
        if self.every <= 0:
            raise ConfigurationError("the check-back is to ask every 0 s; give the seconds between two checks, such as 30")
        if isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < 1:
            raise ConfigurationError(f"the check-back is to end after {self.most!r} checks; give a number from 1")

    def is_used_up(self, prepared: Prepared) -> bool:
        """Whether it has had all its checks, as after the limit was lowered: it is parked unasked."""
        return prepared.checks >= self.most

    def answer(self, prepared: Prepared, outcome: TransactionOutcome) -> CheckAnswer:
        """What to write down for `prepared`: a decision, one more check, or, after UNKNOWN too often, its end as MESSAGE_ERROR."""
        if outcome is not TransactionOutcome.UNKNOWN:
            return CheckAnswer(prepared.id, outcome)
        again_in = next_check(prepared.checks + 1, limit=self.most, every=self.every)
        cause = "" if again_in is not None else f"{self.most} checks did not tell how its local transaction ended"
        return CheckAnswer(prepared.id, outcome, again_in, cause)


def by_transaction(due: Iterable[Prepared]) -> Sequence[Sequence[Prepared]]:
    """The messages of each local transaction together: one question answers for all of them."""
    found: dict[tuple[str, str], list[Prepared]] = {}
    for prepared in due:
        found.setdefault((prepared.tx_id, prepared.barrier_in), []).append(prepared)
    return list(found.values())
