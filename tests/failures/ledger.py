"""What really happened, written down outside of Ackwise, and the judgement that nothing was committed early.

One line per fact, appended in the order in which things happened and shared by all workers of a scenario. A handler's
success is on the disk before the handler returns; a commit is written down before it is made; a copy after the broker
acknowledged it.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Partition = tuple[str, int]


class Written(NamedTuple):
    """A record as a plain consumer reads it: `id` of its message if it can be read, and where it comes from if it is a copy."""

    offset: int
    id: object
    origin: tuple[str, int, int]
    attempt: int


class Ledger:
    """The facts of one scenario, in the file at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)

    def close(self) -> None:
        os.close(self.file)

    def write(self, fact: str, **about: object) -> None:
        self._append([{"fact": fact, **about}])

    def write_copy(self, topic: str, headers: Mapping[str, bytes | None]) -> None:
        """A copy is acknowledged."""
        origin, attempt = origin_of(headers)
        self.write("copied", topic=topic, origin=origin, attempt=attempt, reason=(headers.get("ackwise-reason") or b"").decode())

    def ran(self, ids: Sequence[object]) -> None:
        """The handler succeeded with these, named by id or by origin; durable when it returns."""
        if ids:
            self._append([{"fact": "ran", "id": id} for id in ids])
            os.fsync(self.file)

    def _append(self, facts: Sequence[Mapping[str, object]]) -> None:
        """Write in one go; the first line end closes what another worker tore when it was killed."""
        os.write(self.file, "".join(["\n", *(json.dumps(fact) + "\n" for fact in facts)]).encode())

    def read(self) -> list[dict[str, Any]]:
        """All facts in order. What a worker tore when it was killed is no fact: it went on with nothing after it."""
        lines = self.path.read_bytes().split(b"\n")
        return [fact for line in lines[:-1] if (fact := _parse(line)) is not None]

    def runs(self) -> Counter[object]:
        """How often the handler succeeded with each message."""
        return Counter(_name(fact["id"]) for fact in self.read() if fact["fact"] == "ran")


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


def _name(written: object) -> object:
    return tuple(written) if isinstance(written, list) else written


def origin_of(headers: Mapping[str, bytes | None]) -> tuple[tuple[str, int, int], int]:
    """Where a copy comes from, and its attempt: as `docs/wire.md` names the headers, without Ackwise's parser."""
    text = {name: (value or b"").decode(errors="replace") for name, value in headers.items()}
    origin = (text["ackwise-origin-topic"], int(text["ackwise-origin-partition"]), int(text["ackwise-origin-offset"]))
    return origin, int(text["ackwise-attempt"])


def early_commits(facts: Sequence[Mapping[str, Any]], written: Mapping[Partition, Sequence[Written]]) -> list[str]:
    """Every record that a commit passed before it was done, parked or dead; `written` is what stands in the topics.

    A record is finished once its message (the id, otherwise the record) ran, has an acknowledged dead letter, or has an
    acknowledged copy with a later attempt, there or moved on, or with the same one since another call had its key; a copy on the delay
    topic once it was moved on: to the retry topic, or to a rung that no commit has passed it on. Copies that stand there and that
    nobody heard of may be such ones.
    """
    message = {(topic, partition, record.offset): record.id for (topic, partition), records in written.items() for record in records}
    ran: set[object] = set()
    dead: set[object] = set()
    sent: defaultdict[object, int] = defaultdict(int)  #: the highest attempt that is on its way
    uncharged = set[tuple[object, int]]()  #: attempts of which a copy was sent since another call had the key
    moved: defaultdict[object, int] = defaultdict(int)  #: the highest attempt that came back from the delay topic
    waits = _unheard(facts, written, message)  #: copies of each attempt that stand in the delay topic and that no commit has passed
    reached: Counter[Partition] = Counter()  #: how far each partition is committed
    early: list[str] = []
    for number, fact in enumerate(facts):
        if fact["fact"] == "ran":
            ran.add(_name(fact["id"]))
        elif fact["fact"] == "copied":
            origin = tuple(fact["origin"])
            name = message.get(origin) or origin
            if fact["topic"].endswith(".dlq"):
                dead.add(name)
            elif fact["topic"].endswith(".retry"):
                moved[name] = max(moved[name], fact["attempt"])
            else:
                if fact.get("reason") == "ClaimHeldElsewhere":
                    uncharged.add((name, fact["attempt"]))
                sent[name] = max(sent[name], fact["attempt"])
                waits[name, fact["attempt"]] += 1
        elif fact["fact"] == "commits":
            for topic, partition, offset in fact["offsets"]:
                passed = [each for each in written.get((topic, partition), ()) if reached[topic, partition] <= each.offset < offset]
                reached[topic, partition] = max(reached[topic, partition], offset)
                if topic.endswith(".delay"):
                    waits.subtract((each.id or each.origin, each.attempt) for each in passed)
            for topic, partition, offset in fact["offsets"]:
                for record in written.get((topic, partition), ()):
                    name = record.id or record.origin
                    on_its_way = max(sent[name], moved[name]) > record.attempt or (name, record.attempt) in uncharged
                    if topic.endswith(".delay"):
                        on_its_way = moved[name] >= record.attempt or waits[name, record.attempt] > 0
                    if record.offset < offset and not (on_its_way or name in ran or name in dead):
                        early.append(f"fact {number}: {topic}/{partition} committed at {offset}, past {record}")
    return early


def _unheard(
    facts: Sequence[Mapping[str, Any]], written: Mapping[Partition, Sequence[Written]], message: Mapping[tuple[str, int, int], object]
) -> Counter[tuple[object, int]]:
    """How many copies of each attempt stand in the delay topic and were never written down, as after a kill."""
    there = [record for (topic, _), records in written.items() if topic.endswith(".delay") for record in records]
    origins = [(tuple(fact["origin"]), fact["attempt"]) for fact in facts if fact["fact"] == "copied" and fact["topic"].endswith(".delay")]
    heard = Counter((message.get(origin) or origin, attempt) for origin, attempt in origins)
    return Counter((record.id or record.origin, record.attempt) for record in there) - heard
