"""The headers of copies, of dead letters and of messages that are sent later."""

from __future__ import annotations

from collections.abc import Iterator

from tests.formats.golden import check

from ackwise.middleware.message.disposition import Failure
from ackwise.middleware.message.message import Delivery, Headers, Origin
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.message.wire import VERSION, dead_letter, retry_copy, shrink
from ackwise.middleware.policies.delaytopic import send_later

FIRST = Delivery("orders", 3, 100, 5, b"k" * 300, b"v", (("trace", b"1"),), Origin("orders", 3, 100, 5))
WHERE = {"partition": 3, "group": "billing", "handler": "charge", "now_ms": 10_000}


def written(title: str, headers: Headers) -> Iterator[str]:
    yield f"-- {title}"
    for name, value in headers:
        yield f"{name}: {value!r}"


def test_the_version_is_2() -> None:
    assert VERSION == 2


def test_copies() -> None:
    lines: list[str] = []
    for title, delivery, charged in (
        ("the second attempt", FIRST, True),
        ("the first attempt again", FIRST, False),
        ("the third attempt of a replay", FIRST._replace(attempt=2, replay_id=b"redrive-1", first_seen_ms=9_000), True),
    ):
        copy = retry_copy(delivery, topic="billing.retry", due=20_000, reason="ValueError", charged=charged, **WHERE)  # type: ignore[arg-type]
        assert (copy.key, copy.value) == (delivery.key, delivery.value)
        lines += written(title, copy.headers)
    check("copies", lines)


def test_dead_letters() -> None:
    failure, reason = Failure("ValueError", "bad \udc80 amount", "Traceback …"), "max-reconsume-times"
    delivery = FIRST._replace(attempt=17, headers=(*FIRST.headers, ("caf\udce9", b"2")))
    letter = dead_letter(delivery, topic="billing.dlq", reason=reason, failure=failure, **WHERE)  # type: ignore[arg-type]
    lines = [*written("whole", letter.headers)]
    while (smaller := shrink(letter)) is not None:
        letter = smaller
        lines += written(f"smaller: {len(letter.key or b'')} bytes of the key, the value {letter.value!r}", letter.headers)
    check("dead-letters", lines)


def test_messages_that_are_sent_later() -> None:
    message = Outgoing("orders", b"v", b"k", (("trace", b"1"),), 3, "id-1")
    later = send_later(message, 70_000, now_ms=10_000, group="billing", topic="billing.delay", clock_skew=1.0)
    check("sent-later", [f"topic: {later.topic}, partition: {later.partition}", *written("headers", later.headers)])
