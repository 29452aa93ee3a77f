from __future__ import annotations

from tests.tables import each

from ackwise.middleware.message.disposition import Dead, Delayed
from ackwise.middleware.policies.retry import ConsumeLater, Exponential, Fixed, Schedule, SendBack, journey, longest_delay


class Broken:
    def delay(self, attempt: int) -> float:
        raise ZeroDivisionError


def test_a_message_that_always_fails_travels_as_the_policy_decides() -> None:
    travelled = journey(ConsumeLater(4))
    assert (travelled.delays, travelled.attempts, travelled.end) == ((10, 30, 60, 120), 5, "max-reconsume-times")


def test_the_class_of_the_error_picks_the_journey() -> None:
    policy = ConsumeLater(2, retry_by_error={OSError: Schedule(1, 2)}, no_retry=ValueError)
    assert journey(policy, error=TimeoutError()).delays == (1, 2)
    assert journey(policy, error=KeyError()).delays == (10, 30)
    dead = journey(policy, error=UnicodeError())
    assert (dead.delays, dead.attempts, dead.end) == ((), 1, "not-retried")


def test_a_delay_that_is_asked_for_is_each_delay_of_the_journey() -> None:
    assert journey(ConsumeLater(2), Delayed(delay=7)).delays == (7, 7)
    assert journey(ConsumeLater(2), Delayed(delay_level=-1)).end == "negative-delay-level"


def test_a_random_delay_is_drawn_as_asked() -> None:
    policy = ConsumeLater(1, retry=Exponential(10, jitter=0.5))
    assert [journey(policy, draw=draw).delays for draw in (0, 0.5, 1)] == [(5,), (10,), (15,)]


def test_the_levels_stand_in_for_a_policy_that_raises() -> None:
    assert journey(ConsumeLater(2, retry=Broken())).delays == (10, 30)


class Patient(ConsumeLater):
    def decide(self, later: Delayed, reconsume_times: int, error: BaseException | None = None) -> SendBack | Dead:
        decision = super().decide(later, reconsume_times, error)
        return SendBack(99, 1) if isinstance(decision, SendBack) else decision


def test_a_class_of_the_users_own_decides_itself() -> None:
    assert journey(Patient(2)).delays == (99, 99)


def test_a_limit_that_nobody_reaches_does_not_take_for_ever() -> None:
    travelled = journey(ConsumeLater(10**9))
    assert (len(travelled.delays), travelled.attempts, travelled.end) == (1000, 10**9 + 1, "max-reconsume-times")


@each(
    ("policy", "seconds"),
    [
        (ConsumeLater(1), 7200),  # a handler may ask for any level
        (ConsumeLater(0), 0),
        (ConsumeLater(3, levels="1s 2s"), 2),
        (ConsumeLater(3, levels="1s 2s", retry=Fixed("1d")), 86400),
        (ConsumeLater(3, levels="1s 2s", retry_by_error={KeyError: Fixed("1d")}), 86400),
        (ConsumeLater(1, levels="1s 2s", retry=Exponential(10, jitter=0.5)), 15),
    ],
)
def test_the_longest_delay_is_that_of_any_level_or_policy(policy: ConsumeLater, seconds: float) -> None:
    assert longest_delay(policy) == seconds
