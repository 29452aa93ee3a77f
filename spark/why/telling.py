"""A story as rows of a table, and as JSON, for the terminal, the page of a run and its summary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ackwise.spark.instants import as_datetime
from ackwise.spark.why.story import OtherRecord, Step, Story

__all__ = ["iso", "moment", "rows", "step_as_json", "story_as_json"]


def rows(steps: Iterable[Step]) -> list[tuple[str, str, str, str]]:
    """Return time (UTC), worker, attempt and what happened of each step."""
    return [(moment(step.at), step.worker, "" if step.attempt is None else str(step.attempt), step.what) for step in steps]


def story_as_json(story: Story) -> dict[str, Any]:
    """Return a story by name. Times are ISO 8601 in UTC."""
    return {
        "cluster": story.cluster,
        "group": story.group,
        "handler": story.handler,
        "dedup_epoch": story.epoch,
        "topic": story.place.topic,
        "topic_id": story.topic_id,
        "partition": story.place.partition,
        "offset": story.place.offset,
        "dedup_hash": story.dedup_hash,
        "verdict": story.name,
        "logical_verdict": None if story.logical is None else story.logical.name,
        "flags": [flag.name for flag in story.flags],
        "overtaken_by": story.overtaken_by,
        "meaning": story.meaning,
        "rule": story.rule,
        "to_do": story.advice,
        "steps": [step_as_json(step) for step in story.steps],
        "others": [_other(other) for other in story.others],
    }


def step_as_json(step: Step) -> dict[str, Any]:
    """Return one thing that happened, by name."""
    return {
        "at": iso(step.at),
        "writer": f"{step.writer & (2**64 - 1):016x}",
        "worker": step.worker,
        "attempt": step.attempt,
        "event": step.event or None,
        "what": step.what,
    }


def moment(micros: int) -> str:
    """Return date and time with milliseconds, in UTC."""
    return as_datetime(micros).isoformat(" ", "milliseconds").removesuffix("+00:00")


def iso(micros: int) -> str:
    """Return a time as ISO 8601 in UTC."""
    return as_datetime(micros).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _other(other: OtherRecord) -> dict[str, Any]:
    return {
        "topic": other.place.topic,
        "partition": other.place.partition,
        "offset": other.place.offset,
        "verdict": other.verdict.name,
        "flags": [flag.name for flag in other.flags],
        "last_event": other.last_event,
        "last_at": iso(other.last_at),
    }
