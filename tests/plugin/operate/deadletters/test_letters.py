"""What a dead letter says, what was done with it, and which ones a command means: pure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.plugin.operate.deadletters.letters import failure, letter

from ackwise.middleware.message.disposition import Failure
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.wire import Copy
from ackwise.plugin.operate.deadletter import (
    Causes,
    Letter,
    LetterId,
    LetterState,
    Selection,
    States,
    decode_state,
    encode_state,
    read_letter,
)


def read(copy: Copy, offset: int = 0, *, partition: int = 0, at: int = 5_000, group: str = "billing") -> Letter:
    """The letter as it lies in its topic."""
    origin = Origin("billing.dlq", partition, offset, at)
    return read_letter(Delivery(*origin, copy.key, copy.value, copy.headers, origin), group)


def test_a_letter_says_where_its_message_comes_from_and_why_it_is_dead() -> None:
    found = read(letter(7))
    assert (str(found.id), found.handler, found.reason, found.problem) == ("0/0", "bill", "max-reconsume-times", "")
    assert (str(found.delivery.origin), found.delivery.attempt, found.delivery.headers) == ("orders/0/7", 6, (("trace", b"t"),))
    assert (found.delivery.value, found.dropped, found.replays) == (b'{"id": "a", "amount": 1}', frozenset(), 0)
    assert found.line == "/srv/shop/billing.py:31"
    assert read(letter(attempt=1)).problem == ""


def test_a_cause_is_reason_class_and_place_and_not_the_line_that_each_release_moves() -> None:
    cause = read(letter(1)).cause
    assert cause[1:] == ("max-reconsume-times", "KeyError", "shop/billing.py:bill")
    assert read(letter(2, key=b"bob", value=b"x", why=failure(line=99, message="other"))).cause == cause
    others = [
        letter(why=failure(error="ValueError")),
        letter(why=failure(function="ship")),
        letter(reason="rejected"),
        letter(why=Failure("KeyError", "", "")),
    ]
    assert len({cause.fingerprint, *(read(each).cause.fingerprint for each in others)}) == 5


def test_the_place_inside_of_a_group_of_exceptions_is_found() -> None:
    drawn = '  + Exception Group Traceback (most recent call last):\n  |   File "/srv/shop/pay.py", line 3, in pay\n  |     raise'
    assert read(letter(why=Failure("ExceptionGroup", "", drawn))).cause.place == "shop/pay.py:pay"


def test_what_this_group_did_not_write_has_a_problem() -> None:
    written: list[tuple[tuple[tuple[str, bytes | None], ...], str]] = [
        ((), "no ackwise-version"),
        ((("ackwise-version", b"9"), ("ackwise-group", b"billing")), "version 9"),
        ((("ackwise-version", b"2"), ("ackwise-group", b"mail")), "belongs to group 'mail'"),
        ((("ackwise-version", b"2"), ("ackwise-group", b"billing")), "can't be read"),
        ((*letter().headers, ("ackwise-attempt", b"-1")), "ackwise-attempt is -1"),
        ((("\udcff", None), ("ackwise-version", b"\xff"), ("ackwise-group", b"billing")), "is not a number"),
    ]
    for headers, problem in written:
        found = read(Copy("billing.dlq", 0, b"\xff", b"\x00", headers))
        assert problem in found.problem
        assert (found.handler, found.replays, found.cause.reason) == ("-", 0, found.problem)


def test_a_state_comes_back_as_it_was_written() -> None:
    said = LetterState("redriven", 3, 77, "orders/0/7/1000/b\xfcll\ud800")
    assert decode_state(*encode_state(LetterId(1, 2, -1), said)) == (LetterId(1, 2, -1), said)
    assert decode_state(b"1/2/3", None) == (LetterId(1, 2, 3), None)


def test_a_state_of_somebody_else_is_counted_and_changes_nothing() -> None:
    good = {"version": 1, "state": "redriven", "replays": 1, "at_ms": 1, "message": "m"}
    odd = ({"version": 2}, {"state": "ok"}, {"replays": True}, {"replays": -1})
    for key, value in (
        *((key, b"{}") for key in (None, b"1/2", b"1/2/3/4")),
        *((b"1/2/3", value) for value in (b"\xff", b"[]", b"[" * 100_000)),
        *((b"1/2/3", json.dumps(good | each).encode()) for each in odd),
    ):
        states = States()
        states.take(key, value)
        assert (states.unreadable, states.letters) == (1, {}), (key, value[:80])


def test_the_last_word_about_a_letter_counts() -> None:
    found, states = read(letter()), States()
    states.take(*encode_state(found.id, LetterState("redriven", 1, 5, found.message)))
    states.take(*encode_state(found.id, LetterState("dropped", 1, 6, found.message)))
    assert states.of(found) == LetterState("dropped", 1, 6, found.message)
    states.take(encode_state(found.id, LetterState("dropped", 1, 6, found.message))[0], None)
    assert states.of(found) is None


def test_letters_of_one_death_have_one_replay_id_and_each_death_has_the_next() -> None:
    first, twin, second = read(letter(7)), read(letter(7), 1), read(letter(7, replay_id=b"redrive-1"), 2)
    states = States()
    assert states.next_replay(first) == states.next_replay(twin) == (1, b"redrive-1")
    states.note([(first.id, LetterState("redriven", 1, 5, first.message))])
    assert states.next_replay(twin) == (1, b"redrive-1")  # the store lets one of the two run
    assert states.next_replay(second) == (2, b"redrive-2")  # it died of the first one
    states.note([(second.id, LetterState("redriven", 2, 5, second.message))])
    assert states.next_replay(first) == (3, b"redrive-3")  # asked for once more, it is sent under an id that is new
    assert states.next_replay(read(letter(8), 3)) == (1, b"redrive-1")


def test_a_replay_id_of_somebody_else_has_no_number() -> None:
    for replay_id in (b"repair", b"redrive-", b"redrive-x", b"redrive-9999999999", b"\xff"):
        assert read(letter(replay_id=replay_id)).replays == 0, replay_id


def test_what_a_selection_names_must_hold_all_together() -> None:
    found, done = read(letter(7), 3, at=5_000), LetterState("redriven", 1, 1, "")
    assert Selection().takes(found, None)
    assert not Selection().takes(found, done)
    assert Selection(again=True).takes(found, done)
    fits: dict[str, Any] = {
        "cause": found.cause.fingerprint[:3], "handler": "bill", "topic": "orders", "key": b"ann", "since_ms": 5_000, "until_ms": 5_001,
        "ids": frozenset({(0, 3)})
    }  # fmt: skip
    misses: dict[str, Any] = {
        "cause": "zz", "handler": "b", "topic": "o", "key": b"", "since_ms": 5_001, "until_ms": 5_000, "ids": frozenset({(1, 3)})
    }  # fmt: skip
    assert Selection(**fits).takes(found, None)
    for name, value in misses.items():
        assert not Selection(**{**fits, name: value}).takes(found, None), name


def test_counting_keeps_as_much_as_it_was_told_however_many_letters_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.operate.deadletter._KINDS", 3)
    causes, states = Causes(most=2), States()
    for number in range(10):
        causes.add(read(letter(number, reason=f"reason {number}"), number, at=number), states)
    kind, tally = causes.ordered[0]
    assert (kind.cause.fingerprint, tally.states.total(), tally.example) == ("others", 7, "0/9")
    assert (len(causes.kinds), causes.count("open")) == (4, 10)
    assert [(str(found.id), found.delivery.value) for found, _ in causes.newest] == [("0/9", None), ("0/8", None)]
