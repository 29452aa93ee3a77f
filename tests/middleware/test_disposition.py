"""What is kept of an exception from user code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import each

from ackwise.middleware.message.disposition import Failure


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def notes_that_fail(error: BaseException) -> list[str]:
    raise RuntimeError("no")


UnprintableNotes = type("UnprintableNotes", (Exception,), {"__notes__": property(notes_that_fail)})


def caught(error: BaseException) -> Failure:
    with pytest.raises(type(error)) as raised:
        raise error
    return Failure.of(raised.value)


def test_a_failure_keeps_class_message_and_traceback() -> None:
    failure = caught(ValueError("bad amount"))
    assert (failure.error, failure.message) == ("ValueError", "bad amount")
    assert "raise error" in failure.traceback
    assert failure.traceback.endswith("ValueError: bad amount\n")


def test_an_exception_that_cannot_print_itself_keeps_its_class_and_its_traceback() -> None:
    failure = caught(Unprintable())
    assert (failure.error, failure.message) == ("Unprintable", "<unprintable>")
    assert "raise error" in failure.traceback


def test_an_exception_whose_traceback_cannot_be_printed_keeps_its_message() -> None:
    failure = caught(UnprintableNotes("bad amount"))
    assert (failure.error, failure.message) == ("UnprintableNotes", "bad amount")


def test_a_chain_of_causes_is_kept() -> None:
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")
    assert "KeyError: 'inner'" in caught(error).traceback


def test_a_long_text_is_cut_in_the_middle_and_says_so() -> None:
    message = caught(ValueError("a" * 600 + "b" * 600)).message
    assert message.startswith("a" * 500)
    assert message.endswith("b" * 500)
    assert "200 characters cut" in message


@each("depth", [10, 900])
def test_a_huge_traceback_is_cut(depth: int) -> None:
    def down(left: int) -> None:
        if left:
            exec("down(left - 1)", {"down": down, "left": left})  # its own frame at each step, so that none is collapsed
        raise ValueError("x" * 100_000)

    with pytest.raises((ValueError, RecursionError)) as raised:
        down(depth // 3)
    failure = Failure.of(raised.value)
    assert len(failure.traceback) <= 4100
    assert len(failure.message) <= 1100


def test_a_huge_class_name_is_cut() -> None:
    assert len(Failure.of(type("E" * 10_000, (Exception,), {})()).error) <= 300


@given(st.text(st.characters(), max_size=3000))
def test_any_message_is_kept_within_its_limit(text: str) -> None:
    failure = Failure.of(ValueError(text))
    assert len(failure.message) <= 1100
    if len(text) <= 1000:
        assert failure.message == text
