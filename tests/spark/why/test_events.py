"""The verdict from an excerpt of the events is the one from all of them. Needs no Spark."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.spark.cases import CASES, CONFIG, ran
from tests.spark.fuzz import universe
from tests.spark.histories import TOPIC, History, write_in_runs
from tests.spark.reconciling import name_of

from ackwise.spark.events.logs import Logs
from ackwise.spark.events.sources import Evidence
from ackwise.spark.reference.oracle import Message, Ruling, message_of, rule
from ackwise.spark.vocabulary import Flag
from ackwise.spark.why import answer as answer_module
from ackwise.spark.why.answer import NoSuchRecord, inquire
from ackwise.spark.why.output import show

#: Seconds, where other processes keep the machine busy: thousands of histories are judged.
pytestmark = pytest.mark.timeout(1200)

Event = Mapping[str, Any]


def evidence_of(folder: Path, events: Iterable[Event], size: int, rolled_on: Mapping[int, str]) -> Evidence:
    """The events in files of about so many, each of one writer and of neighbours."""
    by_writer: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        by_writer[event["writer_id"]].append(event)
    files = []
    for writer, mine in by_writer.items():
        mine.sort(key=lambda event: int(event["seq"]))
        for n in range(0, len(mine), size):
            some = mine[n : n + size]
            files.append(write_in_runs(folder / name_of(writer, some[0]["seq"], some[-1]["seq"]), some))
    return Evidence((folder,), tuple(files), 0, Logs(rolled_on=rolled_on), (), ())


def differences(history: History, folder: Path, asked: Iterable[tuple[str, int, int]]) -> list[tuple[object, ...]]:
    """What is said otherwise of these offsets by an inquiry, and by the oracle from all events."""
    evidence = evidence_of(folder, history.events, 6, history.rolled_on)
    whole = rule(history.events, CONFIG, rolled_on=history.rolled_on)
    found: list[tuple[object, ...]] = []
    for topic, partition, offset in asked:
        expected = said_by(whole, topic, partition, offset)
        try:
            answer = inquire(f"{topic}/{partition}/{offset}", evidence, CONFIG)
        except NoSuchRecord:
            told = {}
        else:
            told = {
                (story.handler, story.epoch, story.topic_id): ("GAP" if story.verdict is None else story.verdict.name, story.flags)
                for story in answer.stories
                if not (story.verdict is not None and story.verdict.name == "PENDING" and not story.handler)
            }
            assert answer.as_of == whole.as_of
        if told != expected:
            found.append((history.group, offset, told, expected))
    return found


def said_by(whole: Ruling, topic: str, partition: int, offset: int) -> dict[tuple[str, int, str], tuple[str, int]]:
    found: dict[tuple[str, int, str], tuple[str, int]] = {}
    for (where, handler, epoch, at), (verdict, flags) in whole.messages.items():
        if (where[2], where[4], at) == (topic, partition, offset):
            found[handler, epoch, where[3]] = verdict.name, flags
    for where, offsets in whole.absent.items():
        if (where[2], where[4]) == (topic, partition) and offset in offsets:
            found["", 0, where[3]] = offsets[offset], 0
    return found


def messages_of(history: History) -> list[Message]:
    return sorted({message_of(e) for e in history.events if e["event_type"] < 20 and None not in (e.get("offset"), e.get("partition"))})


def test_what_is_said_of_each_case_is_what_the_oracle_says_of_all_of_it(tmp_path: Path) -> None:
    for name, case in CASES.items():
        seen = [offset for *_, offset in messages_of(case.history)]
        asked = [(TOPIC, 0, offset) for offset in {*seen[:2], *list(case.absent)[:1]}]
        assert differences(case.history, tmp_path / name, asked) == [], name


def told_otherwise(numbers: Iterable[int], folder: Path) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for number in numbers:
        history, draw = universe(number), random.Random(number)
        offsets = [offset for *_, offset in messages_of(history)] or [0]
        asked = {draw.choice(offsets), draw.randint(min(offsets), max(offsets) + 2)}
        found += differences(history, folder / str(number), [(TOPIC, 0, offset) for offset in sorted(asked)])
    return found


def test_what_is_said_of_any_history_is_what_the_oracle_says_of_all_of_it(tmp_path: Path) -> None:
    assert told_otherwise(range(10), tmp_path) == []


@pytest.mark.nightly
@pytest.mark.slow  # judges very many histories
def test_what_is_said_of_very_many_histories_is_what_the_oracle_says_of_all_of_them(tmp_path: Path) -> None:
    assert told_otherwise(range(10, 200), tmp_path) == []


def test_who_overtook_a_message_of_an_order_is_named(tmp_path: Path) -> None:
    history = ran(History("g").start("w1", order={"bill": "key"}), "w1", "0:C 1:C 2:CS 1:S 0:S", order_hash=7)
    answer = inquire(f"{TOPIC}/0/0", evidence_of(tmp_path, history.events, 6, {}), CONFIG)
    assert [(story.flags, story.overtaken_by) for story in answer.stories] == [(Flag.OVERTAKEN, 1)]
    console = Console(record=True, width=200)
    show(answer, console)
    assert "flag: OVERTAKEN, a later message of its key or partition started before it was done, by orders/0/1" in console.export_text()


def test_of_very_many_later_messages_the_first_to_begin_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_module, "_MOST_LATER", 2)
    history = ran(History("g").start("w1", order={"bill": "key"}), "w1", "0:C 3:CS 1:CS 2:CS 0:S", order_hash=7)
    answer = inquire(f"{TOPIC}/0/0", evidence_of(tmp_path, history.events, 6, {}), CONFIG)
    assert [(story.flags, story.overtaken_by) for story in answer.stories] == [(Flag.OVERTAKEN, 3)]
    assert answer.found == ["3 later messages started before it was done; only the first 2 were compared with it"]
