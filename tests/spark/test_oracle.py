"""The algebra in plain Python, on the named cases. Needs no Spark."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from tests.spark.cases import CASES, CONFIG, Case
from tests.spark.histories import hash_of

from ackwise.spark.oracle import Ruling, rule
from ackwise.spark.vocabulary import Flag, Verdict


def first_partition(ruling: Ruling, topic: str) -> dict[int, tuple[Verdict, Flag]]:
    return {offset: found for ((_, _, where, _, _), _, _, offset), found in ruling.messages.items() if where == topic}


def check(expected: Case, ruling: Ruling) -> None:
    topic = expected.history.topic
    found = first_partition(ruling, topic)
    if expected.verdicts:
        assert {offset: verdict.name for offset, (verdict, _) in found.items()} == {o: v.name for o, v in expected.verdicts.items()}
    if expected.apart:
        apart = {(topic_id, *which): verdict for ((*_, topic_id, _), *which), (verdict, _) in ruling.messages.items()}
        assert apart == expected.apart
    for offset, flags in expected.flags.items():
        assert flags in found[offset][1]
    for offset, flags in expected.without.items():
        assert not flags & found[offset][1]
    absent = [offsets for (_, _, where, _, _), offsets in ruling.absent.items() if where == topic and offsets]
    assert absent == ([expected.absent] if expected.absent else [])
    logical = {hash_of(key): (verdict, expected.logical_flags.get(key, Flag(0))) for key, verdict in expected.logical.items()}
    assert {hashed: found for (_, hashed), found in ruling.logical.items()} == logical
    if expected.domain is not None:
        assert [domain for (_, _, where, _, _), domain in ruling.domains.items() if where == topic] == [expected.domain]
    assert bool(ruling.fallen) == expected.falls
    assert list(ruling.produced.values()) == ([expected.accounts] if expected.accounts else [])
    if expected.copies:
        assert list(ruling.copies.values()) == [expected.copies]
    assert sum(ruling.unpublished.values()) == expected.unpublished


@pytest.mark.parametrize("name", CASES)
def test_the_oracle_says_what_the_case_says(name: str) -> None:
    check(CASES[name], rule(CASES[name].history.events, CONFIG, produced=CASES[name].history.produced))


@pytest.mark.parametrize("name", CASES)
def test_order_and_repetition_change_nothing(name: str) -> None:
    events: list[Mapping[str, Any]] = list(CASES[name].history.events)
    shuffled = [*events, *events[::2]]
    random.Random(7).shuffle(shuffled)
    produced = CASES[name].history.produced
    assert rule(shuffled, CONFIG, produced=produced[::-1]) == rule(events, CONFIG, produced=produced)
