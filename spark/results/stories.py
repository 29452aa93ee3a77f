"""The stories of the worst findings of a run, step by step. Plain Python."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ackwise.middleware.events import EventCode
from ackwise.middleware.message.disposition import OUR_REASONS
from ackwise.spark.fold.facts import Facts
from ackwise.spark.reference.oracle import Event, Ruling, message_of
from ackwise.spark.report.report import OWN_REASON
from ackwise.spark.vocabulary import Flag, Verdict
from ackwise.spark.why.place import Place
from ackwise.spark.why.story import Story, Workers, stories, stories_of_offset

__all__ = ["Flagged", "safe_error", "stories_of"]

#: The names that `project` gives to columns of an event.
_COLUMNS: Final = {"code": "event_type", "ts": "event_ts", "due": "due_ts", "took": "took_unreleased"}


@dataclass(frozen=True, slots=True)
class Flagged:
    """A message, or the first of a range of offsets that no event is about (`mk` is None)."""

    verdict: Verdict
    flags: Flag
    pk: int
    mk: int | None
    offset: int


def stories_of(
    facts: Facts, flagged: Sequence[Flagged], trails: Iterable[Mapping[str, Any]], still_written: Collection[int], silence: int
) -> list[Story]:
    """One story for each that has a trail, in their order. `trails` are rows of `results.measures.trails`, numbered as in `flagged`.

    `still_written` are the writers whose log is still written; one that is silent for `silence` microseconds has vanished.
    """
    events: dict[int, list[Event]] = {}
    for row in trails:
        events.setdefault(row["number"], []).append(_event(row, facts, flagged[row["number"]]))
    workers = Workers(_sessions(facts), still_written, silence)
    found = []
    for number, each in enumerate(flagged):
        if number in events:
            found += [_anonymous(story) for story in _stories(each, events[number], [*events[number], *_assigned(facts, each.pk)], workers)]
    return found


def _stories(each: Flagged, mine: Sequence[Event], around: Sequence[Event], workers: Workers) -> list[Story]:
    if each.mk is None:
        event = mine[0]
        partition = event["cluster"], event["group_id"], event["topic"], event["topic_id"], event["partition"]
        ruling = Ruling(absent={partition: {each.offset: each.verdict.name}})
        return stories_of_offset(Place(event["topic"], event["partition"], each.offset), (), around, ruling, workers)
    own = [event for event in mine if event["event_type"] < EventCode.COMMITTED]
    asked = {message_of(event) for event in own}
    return stories(asked, own, around, Ruling(messages=dict.fromkeys(asked, (each.verdict, each.flags))), workers)


def _event(row: Mapping[str, Any], facts: Facts, of: Flagged) -> Event:
    event = {_COLUMNS.get(name, name): value for name, value in row.items()}
    if event["event_type"] is None:
        partition = facts.partitions[of.pk]
        cluster, group = partition.group
        where = {"cluster": cluster, "group_id": group, "topic": partition.topic, "topic_id": partition.topic_id}
        return event | where | {"partition": partition.partition, "event_type": EventCode.COMMITTED, "writer_id": 0, "seq": 0}
    if error := event["error"]:
        event["error"] = safe_error(error) if event["event_type"] == EventCode.FAILED or error in OUR_REASONS else OWN_REASON
    return event


def safe_error(error: str) -> str:
    """Return an error if it is a reason of ours or the name of a class, else `OWN_REASON`: other texts may contain data."""
    return error if not error or error in OUR_REASONS or all(map(str.isidentifier, error.split("."))) else OWN_REASON


def _sessions(facts: Facts) -> Iterator[Event]:
    """Yield the sessions of each writer as events, made from the survey."""
    for row in facts.rows:
        about = {"writer_id": row.writer_id, "client": row.client}
        if row.session is not None:
            yield {**about, "seq": 0, "event_ts": row.first_ts, "event_type": EventCode.SESSION_START, "attrs": row.session}
        code = EventCode.SESSION_END if row.ended else EventCode.HEARTBEAT
        yield {**about, "seq": row.last_seq, "event_ts": row.last_ts, "event_type": code}


def _assigned(facts: Facts, pk: int) -> Iterator[Event]:
    """Yield the last assignment of the partition to each writer."""
    for row in facts.rows:
        if row.pk == pk and row.assigned_ts is not None:
            where = {"cluster": row.cluster, "group_id": row.group_id, "topic": row.topic, "topic_id": row.topic_id}
            about = {"writer_id": row.writer_id, "seq": row.assigned_seq, "event_ts": row.assigned_ts, "event_type": EventCode.ASSIGNED}
            yield {**about, **where, "partition": row.partition, "offset": None, "range_end": None}


def _anonymous(story: Story) -> Story:
    """Return the story without the names of the workers that committed: they were not counted."""
    steps = [replace(step, worker="") if step.event == EventCode.COMMITTED.name else step for step in story.steps]
    return replace(story, steps=steps)
