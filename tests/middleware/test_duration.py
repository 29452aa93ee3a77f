"""Durations: what people write is read, what we write is read back exactly, everything else is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import each

from ackwise.middleware.duration import format_duration, parse_duration
from ackwise.middleware.errors import ConfigurationError

HUNDRED_YEARS = 100 * 365 * 86400.0


@each(
    ("written", "seconds"),
    [
        (0, 0.0),
        (30, 30.0),
        (0.5, 0.5),
        ("30", 30.0),
        ("30s", 30.0),
        ("500ms", 0.5),
        ("1.5m", 90.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        (" 10 S ", 10.0),
    ],
)
def test_a_number_or_a_text_is_read_as_seconds(written: float | str, seconds: float) -> None:
    assert parse_duration(written) == seconds
    assert type(parse_duration(written)) is float


@each(
    "written",
    [
        *("", "s", "-1s", "1 hour", "1s1s", "1e3", "nan", "inf", "٣s", "9" * 400, "9" * 400 + "d", "37000d"),
        *(-1, -0.001, math.nan, math.inf, -math.inf, 10**400, True, False, None, b"1s", [1]),
    ],
)
def test_what_is_not_a_duration_is_refused_by_name(written: object) -> None:
    with pytest.raises(ConfigurationError, match="lease of Dedup is"):
        parse_duration(written, what="lease of Dedup")  # type: ignore[arg-type]  # what a user may give all the same


@each(
    ("seconds", "text"),
    [
        (0.0, "0.0s"),
        (0.001, "1ms"),
        (0.5, "500ms"),
        (1.0, "1s"),
        (1.5, "1500ms"),
        (10.0, "10s"),
        (60.0, "1m"),
        (90.0, "90s"),
        (7200.0, "2h"),
    ],
)
def test_a_whole_number_of_the_largest_unit_is_written(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(min_value=0, max_value=HUNDRED_YEARS))
def test_every_duration_is_read_back_exactly(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.text(max_size=20))
def test_a_text_is_a_duration_or_a_configuration_error(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ConfigurationError:
        return
    assert 0 <= seconds <= HUNDRED_YEARS
