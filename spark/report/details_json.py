"""The details of a report as JSON, for `summary.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ackwise.spark.instants import as_datetime
from ackwise.spark.report.attempts import Attempts
from ackwise.spark.report.details import AGES, Details
from ackwise.spark.report.exports import Exports
from ackwise.spark.report.latency import Latency
from ackwise.spark.report.strips import Strip
from ackwise.spark.why.story import Story

__all__ = ["details_as_json"]


def details_as_json(details: Details) -> dict[str, Any]:
    """Return the details by name. Times are ISO 8601 in UTC, names those of verdicts and flags."""
    return {
        "latencies": [_latency(each) for each in details.latencies],
        "attempts": [_attempts(each) for each in details.attempts],
        "strips": [_strip(each) for each in details.strips],
        "stuck": [
            {"writer_id": _hexadecimal(each.writer_id), "client": each.client, "older_than_seconds": _ages(each.ages)}
            for each in details.stuck
        ],
        "failures": [{field.name: getattr(each, field.name) for field in fields(each)} for each in details.failures],
        "exports": {
            "begin": _time(details.time.begin),
            "seconds": details.time.width / 1_000_000,
            "writers": [_export(each) for each in details.exports],
        },
        "stories": [_story(each) for each in details.stories],
        "earlier": [run.run_id for run in details.earlier],
    }


def _latency(latency: Latency) -> dict[str, Any]:
    percentiles = {f"p{round(100 * share)}": latency.percentile(share) / 1000 for share in (0.5, 0.95, 0.99)}
    return {
        "group": latency.group,
        "topic": latency.topic,
        "messages": latency.messages,
        "negative": latency.negative,
        "ms": percentiles,
        "classes": {str(number): messages for number, messages in sorted(latency.classes.items())},
    }


def _attempts(attempts: Attempts) -> dict[str, Any]:
    reached = [{"attempt": row.attempt, **{str(ending): number for ending, number in row.endings.items()}} for row in attempts.funnel]
    return {"group": attempts.group, "handler": attempts.handler, "topic": attempts.topic, "reached": reached}


def _strip(strip: Strip) -> dict[str, Any]:
    partition = strip.book.partition
    return {
        "cluster": partition.group[0],
        "group": partition.group[1],
        "topic": partition.topic,
        "topic_id": partition.topic_id,
        "partition": partition.partition,
        "start": strip.book.start,
        "width": strip.width,
        "bins": {str(place): _named(verdicts) for place, verdicts in sorted(strip.bins.items())},
        "assigned": list(strip.assigned),
        "revoked": list(strip.revoked),
    }


def _export(exports: Exports) -> dict[str, Any]:
    return {"writer_id": _hexadecimal(exports.writer.writer_id), "events": list(exports.events), "missing": list(exports.missing)}


def _story(story: Story) -> dict[str, Any]:
    return {
        "group": story.group,
        "handler": story.handler,
        "topic": story.place.topic,
        "partition": story.place.partition,
        "offset": story.place.offset,
        "verdict": "GAP" if story.verdict is None else story.verdict.name,
        "flags": [flag.name for flag in story.flags],
        "steps": [
            {"at": _time(step.at), "worker": step.worker, "attempt": step.attempt, "event": step.event or None, "what": step.what}
            for step in story.steps
        ],
    }


def _ages(ages: Sequence[int]) -> dict[str, int]:
    return dict(zip(map(str, (0, *AGES)), ages, strict=True))


def _named(verdicts: Mapping[Any, int]) -> dict[str, int]:
    return {verdict.name: number for verdict, number in sorted(verdicts.items())}


def _hexadecimal(writer_id: int) -> str:
    return f"{writer_id & (2**64 - 1):016x}"


def _time(micros: int) -> str | None:
    return as_datetime(micros).isoformat(timespec="milliseconds") if micros else None
