"""The algebra in plain Python, on the named cases. Needs no Spark."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tests.spark.cases import CASES, CONFIG, Case
from tests.spark.fuzz import universe
from tests.spark.histories import NOW, SECOND, TOPIC, History, hash_of

from ackwise.middleware.events import OUTGOING
from ackwise.spark.reference.oracle import Ruling, rule
from ackwise.spark.vocabulary import Flag, Verdict


def first_partition(ruling: Ruling, topic: str) -> dict[int, tuple[Verdict, Flag]]:
    return {offset: found for ((_, _, where, _, _), _, _, offset), found in ruling.messages.items() if where == topic}


def check(name: str, expected: Case, ruling: Ruling) -> None:
    """Raise `AssertionError`, which names the case, if something else is said of it than it expects."""
    topic = expected.history.topic
    found = first_partition(ruling, topic)
    if expected.verdicts:
        assert {offset: verdict.name for offset, (verdict, _) in found.items()} == {o: v.name for o, v in expected.verdicts.items()}, name
    if expected.apart:
        apart = {(topic_id, *which): verdict for ((*_, topic_id, _), *which), (verdict, _) in ruling.messages.items()}
        assert apart == expected.apart, name
    for offset, flags in expected.flags.items():
        assert flags in found[offset][1], name
    for offset, flags in expected.without.items():
        assert not flags & found[offset][1], name
    absent = [offsets for (_, _, where, _, _), offsets in ruling.absent.items() if where == topic and offsets]
    assert absent == ([expected.absent] if expected.absent else []), name
    logical = {hash_of(key): (verdict, expected.logical_flags.get(key, Flag(0))) for key, verdict in expected.logical.items()}
    assert {hashed: found for (_, hashed), found in ruling.logical.items()} == logical, name
    if expected.domain is not None:
        assert [domain for (_, _, where, _, _), domain in ruling.domains.items() if where == topic] == [expected.domain], name
    assert bool(ruling.fallen) == expected.falls, name
    assert list(ruling.produced.values()) == ([expected.accounts] if expected.accounts else []), name
    if expected.copies:
        assert list(ruling.copies.values()) == [expected.copies], name
    assert sum(ruling.unpublished.values()) == expected.unpublished, name
    assert {message_id: verdict for (_, message_id), verdict in ruling.unsent.items()} == expected.unsent, name


def contradictions(rulings: Mapping[str, Ruling], universes: Iterable[int] = ()) -> list[str]:
    """The cases of which something else is said than they expect, and all groups of which the oracle says something else."""
    for name, each in CASES.items():
        check(name, each, rulings[name])
    histories = [case.history for case in CASES.values()] + [universe(number) for number in universes]
    return [each.group for each in histories if rulings[each.group] != told(each)]


def told(history: History) -> Ruling:
    """What the oracle says of all of it."""
    return rule(history.events, CONFIG, produced=history.produced, rolled_on=history.rolled_on)


def test_the_oracle_says_of_each_case_what_it_expects() -> None:
    rulings = {name: told(each.history) for name, each in CASES.items()}
    assert contradictions(rulings) == []


def test_order_and_repetition_change_nothing() -> None:
    for name, each in CASES.items():
        events: list[Mapping[str, Any]] = list(each.history.events)
        shuffled = [*events, *events[::2]]
        random.Random(7).shuffle(shuffled)
        produced, rolled_on = each.history.produced[::-1], each.history.rolled_on
        assert rule(shuffled, CONFIG, produced=produced, rolled_on=rolled_on) == told(each.history), name


def test_events_of_what_was_sent_change_no_verdict_on_what_was_consumed() -> None:
    for topic in (TOPIC, "elsewhere"):
        plain, sending = (History("g").assign("w1", 0).say("w1", "RECEIVED_RANGE[0,3) 0:CS 1:CS 2:CS W=3") for _ in range(2))
        for number, code in enumerate(sorted(OUTGOING)):
            sending.add("w1", code, topic=topic, partition=0, offset=number, handler="h", dedup_key=f"m-{number}")
        assert rule(plain.events, CONFIG) == replace(rule(sending.events, CONFIG), produced={}, unsent={}), topic


def since(history: History, seconds_ago: float) -> Ruling:
    """What is said of it if only that time is judged."""
    return rule(history.events, replace(CONFIG, since=NOW / SECOND - seconds_ago), rolled_on=history.rolled_on)


def offsets(ruling: Ruling) -> dict[int, Verdict]:
    return {offset: verdict for (_, _, _, offset), (verdict, _) in ruling.messages.items()}


def test_the_accounts_begin_with_what_was_committed_when_the_time_began_that_is_judged() -> None:
    history = History("g").say("w1", "RECEIVED_RANGE[0,9) 0:CS 2:CS 3:CS W=3", ago=7200).say("w1", "4:CS 6:CS W=8", ago=100)
    found = since(history, 3600)
    assert list(found.domains.values()) == [(3, 8)]
    assert offsets(found) == {3: Verdict.EXACTLY_ONCE, 4: Verdict.EXACTLY_ONCE, 6: Verdict.EXACTLY_ONCE}
    assert list(found.absent.values()) == [{5: "LOST", 7: "LOST"}]
    assert list(rule(history.events, CONFIG).absent.values()) == [{1: "LOST", 5: "LOST", 7: "LOST"}]


def test_what_was_open_before_the_time_that_is_judged_is_not_forgotten() -> None:
    history = History("g").say("w1", "0:CS 1:CFB 2:C 3:CF 4:CFX W=5", ago=7200).say("w2", "5:CS W=6", ago=100)
    assert offsets(since(history, 3600)) == {1: Verdict.RETRYING, 2: Verdict.STUCK, 3: Verdict.LOST, 5: Verdict.EXACTLY_ONCE}


def test_what_a_later_dedup_epoch_did_before_that_is_not_forgotten() -> None:
    history = History("g").say("w1", "0:C W=1", ago=7200).say("w2", "0:CS", ago=7000, dedup_epoch=1).say("w3", "1:CS W=2", ago=100)
    assert offsets(since(history, 3600)) == {0: Verdict.EXACTLY_ONCE, 1: Verdict.EXACTLY_ONCE}


def test_a_message_of_before_that_was_run_again_is_judged_with_all_that_happened_to_it() -> None:
    history = History("g").say("w1", "0:CS 1:CS W=2", ago=7200).say("w2", "0:CS 2:CS W=3", ago=100)
    assert offsets(since(history, 3600)) == {0: Verdict.MULTI_EXECUTED, 2: Verdict.EXACTLY_ONCE}


def test_a_duplicate_is_known_by_what_the_store_remembered() -> None:
    history = History("g").say("w1", "0:CS W=1", key="k", ago=7200).say("w2", "1:D W=2", key="k", ago=100)
    assert offsets(since(history, 3600)) == {1: Verdict.DUPLICATE_SUPPRESSED}
    longer_ago = History("g").say("w1", "0:CS W=1", key="k", ago=3 * 86400).say("w2", "1:D W=2", key="k", ago=100)
    assert offsets(since(longer_ago, 3600)) == {1: Verdict.PHANTOM_SUPPRESSED}


def test_nothing_else_changes_within_the_time_that_is_judged() -> None:
    suppressed, changed = {Verdict.DUPLICATE_SUPPRESSED, Verdict.PHANTOM_SUPPRESSED}, []
    for history in (universe(number) for number in range(300)):
        every, found = rule(history.events, CONFIG, rolled_on=history.rolled_on), since(history, 1800)
        changed += [every.messages[m][0] for m, verdict in found.messages.items() if verdict != every.messages[m]]
        for partition, domain in found.domains.items():
            inside = {offset: name for offset, name in every.absent[partition].items() if offset in range(*domain)}
            assert found.absent[partition] == inside
    assert set(changed) <= suppressed
