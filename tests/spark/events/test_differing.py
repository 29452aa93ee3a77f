"""Files that have numbers of one writer in common, in part or one after the other."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.spark.histories import History, write_in_runs
from tests.spark.reconciling import name_of

from ackwise.spark.events.disputed import disputed
from ackwise.spark.events.logs import Logs
from ackwise.spark.events.sources import Evidence
from ackwise.spark.fold.written import written_in

Event = Mapping[str, Any]


def events() -> list[Event]:
    every = History("g").say("w1", " ".join(f"{offset}:CS" for offset in range(40)) + " W=40").events
    return [event for event in every if event["writer_id"] == max(each["writer_id"] for each in every)]


def written(folder: Path, parts: Sequence[Sequence[Event]]) -> list[Path]:
    """A file of each, in a folder of its own."""
    return [
        write_in_runs(folder / str(place) / name_of(part[0]["writer_id"], part[0]["seq"], part[-1]["seq"]), part)
        for place, part in enumerate(parts)
    ]


def drawn(each: Sequence[Event], chance: random.Random) -> list[list[Event]]:
    """Some of the events, in files that have their numbers by turns, some in several; a few state something else."""
    parts: list[list[Event]] = [[] for _ in range(chance.choice([2, 3, 5]))]
    for event in each:
        for part in chance.sample(parts, chance.choice([0, 1, 1, 1, 2])):
            other = {**event, "attempt": 7} if chance.random() < 0.05 else event
            part.append(other)
    return [part for part in parts if part]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_there_and_what_is_disputed_does_not_depend_on_how_files_interleave(tmp_path: Path, seed: int) -> None:
    parts = drawn(events(), random.Random(seed))
    files = written(tmp_path, parts)
    said: dict[int, list[Any]] = defaultdict(list)
    for part in parts:
        for event in part:
            said[event["seq"]].append(event.get("attempt"))
    wrong = {seq for seq, contents in said.items() if len(set(contents)) > 1}
    found = disputed(files)
    assert {seq for each in found for seq in range(each.first, each.after)} == wrong
    evidence = Evidence((tmp_path,), tuple(files), 0, Logs(), (), (), tuple(found))
    assert {seq for run in written_in(evidence) for seq in range(run.first, run.last + 1)} == said.keys() - wrong
