"""A topic that brokers say is not there is waited for, and not forever; an outage is waited for without end."""

from __future__ import annotations

from ackwise.middleware.message.outgoing import MISSING, Acked, SendFailed
from ackwise.middleware.message.refusals import MissingTopics

GONE = SendFailed("topic 'a' did not acknowledge", retriable=True, error=MISSING)
AWAY = SendFailed("the broker is unavailable", retriable=True, error="KafkaConnectionError")


class Patience:
    def __init__(self) -> None:
        self.now = 1000.0
        self.topics = MissingTopics(60.0, lambda: self.now)

    def after(self, seconds: float, answer: SendFailed | Acked, topic: str = "a") -> bool:
        """Whether what is told is that the message may be sent again."""
        self.now += seconds
        told = self.topics.judge(topic, answer)
        return isinstance(told, SendFailed) and told.retriable


def test_a_topic_that_stays_missing_is_a_refusal_with_a_sentence() -> None:
    patience = Patience()
    assert patience.after(0, GONE)
    assert patience.after(30, GONE)
    assert patience.after(29, GONE)
    assert not patience.after(1, GONE)
    told = patience.topics.judge("a", GONE)
    assert told == SendFailed("topic 'a' is missing for 60 s; create it, or correct its name", retriable=False, error=MISSING)


def test_each_topic_has_its_own_time() -> None:
    patience = Patience()
    assert patience.after(0, GONE)
    assert patience.after(30, GONE)
    assert patience.after(30, GONE, "b")
    assert not patience.after(0, GONE)


def test_time_in_which_nobody_asked_does_not_count() -> None:
    patience = Patience()
    assert patience.after(0, GONE)
    assert patience.after(8 * 3600.0, GONE)
    assert patience.after(30, GONE)
    assert not patience.after(30, GONE)


def test_an_outage_and_an_acknowledgement_begin_the_time_anew() -> None:
    patience = Patience()
    for between in (AWAY, Acked("a", 0, 0, 0, "x")):
        assert patience.after(0, GONE)
        patience.after(59, between)
        assert patience.after(1, GONE)
        patience.after(0, Acked("a", 0, 0, 0, "x"))


def test_an_outage_is_never_a_refusal() -> None:
    patience = Patience()
    assert all(patience.after(1000, AWAY) for _ in range(10))
