"""Policies are refused where they are made, with a sentence."""

from __future__ import annotations

import dataclasses

import pytest
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.policies.policies import DeadLetter, Dedup, Events


def test_durations_are_read_once_into_seconds() -> None:
    dedup = Dedup("memory://", lease="45s", retention="2d")
    assert (dedup.lease, dedup.retention) == (45.0, 172800.0)


def test_the_defaults_are_half_a_minute_and_a_day() -> None:
    dedup = Dedup("memory://")
    assert (dedup.lease, dedup.retention, dedup.epoch, dedup.key) == (30.0, 86400.0, 0, None)


@each(
    ("settings", "sentence"),
    [
        ({"lease": "soon"}, "lease of Dedup is 'soon'"),
        ({"lease": 0.05}, "at least 0.1 s"),
        ({"retention": -1}, "retention of Dedup is -1"),
        ({"lease": 60, "retention": 30}, "shorter than its lease"),
        ({"key": "order_id"}, "must be a function"),
        ({"message_id_header": ""}, "message_id_header of Dedup is ''"),
        ({"message_id_header": b"id"}, "message_id_header of Dedup is b'id'"),
        ({"message_id_header": "id", "key": repr}, "a key and a message_id_header"),
        ({"epoch": -1}, "epoch of Dedup is -1"),
        ({"epoch": 1.0}, "epoch of Dedup is 1.0"),
        ({"epoch": True}, "epoch of Dedup is True"),
        ({"epoch": 2**31}, "epoch of Dedup is 2147483648"),
    ],
    ids=str,
)
def test_a_dedup_that_cannot_work_is_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Dedup("memory://", **settings)  # type: ignore[arg-type]  # what a user may give all the same


def test_an_unknown_mode_of_events_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="mode of Events is 'sync'"):
        Events("events", mode="sync")  # type: ignore[arg-type]  # what a user may give all the same


@each("policy", [Dedup("memory://"), DeadLetter(), Events("events")], ids=lambda policy: type(policy).__name__)
def test_a_policy_cannot_be_changed_once_it_is_made(policy: Dedup | DeadLetter | Events) -> None:
    for field in dataclasses.fields(policy):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(policy, field.name, None)
