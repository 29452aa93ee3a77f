"""An update in words: a line for a terminal, sentences for an alarm, and one JSON object for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ackwise.spark.follow.alarms import Change
from ackwise.spark.follow.ranges import Findings, Kind, Range, size
from ackwise.spark.instants import as_datetime
from ackwise.spark.report.report import RunReport
from ackwise.spark.vocabulary import ExitCode

__all__ = ["as_json", "headline", "sentences"]

#: Lines, and entries of a list in JSON; the tables have all.
_MOST: Final = 50
#: Ranges in a line.
_RANGES: Final = 5
_STATES: Final = {ExitCode.CLEAN: "clean", ExitCode.INCONCLUSIVE: "inconclusive: events are missing that could show an anomaly"}


def headline(report: RunReport, now: float) -> str:
    """Return the result of the audit, and how old its newest events are; `now` is seconds since 1970."""
    number = report.anomalies
    anomalies = f"{number:,} {'anomaly' if number == 1 else 'anomalies'}" if number else "no anomaly, but doubts count with --strict"
    state = _STATES.get(report.exit_code, anomalies)
    messages = sum(tally.messages for tally in report.tallies)
    age = _age(now - report.as_of / 1e6)
    as_of = f"as of {as_datetime(report.as_of):%Y-%m-%d %H:%M:%S} UTC, {age} ago" if report.as_of else "without an event"
    return f"{state}; {messages:,} messages {as_of}"


def sentences(change: Change) -> Iterator[str]:
    """Yield a line for each kind of findings that are new or gone."""
    for what, findings in (("new", change.new), ("gone", change.gone)):
        for kind in sorted(findings)[:_MOST]:
            yield f"{what}: {_line(kind, findings)}"
        if len(findings) > _MOST:
            yield f"{what}: {len(findings) - _MOST:,} more kinds of findings"


def as_json(report: RunReport, change: Change) -> dict[str, Any]:
    """Return the update as an object. It holds coordinates and names, and neither keys nor values."""
    return {
        "run_id": report.run_id,
        "as_of": as_datetime(report.as_of).isoformat(timespec="milliseconds") if report.as_of else None,
        "exit_code": int(report.exit_code),
        "anomalies": report.anomalies,
        "new": _entries(change.new),
        "gone": _entries(change.gone),
        "new_number": size(change.new),
        "gone_number": size(change.gone),
        "report": report.page,
    }


def _age(seconds: float) -> str:
    for unit, name in ((86_400, "days"), (3600, "hours"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds // unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def _line(kind: Kind, findings: Findings) -> str:
    number = size({kind: findings[kind]})
    whose = " in ".join(filter(None, (kind.handler, kind.group)))
    at = f" {_offsets(findings[kind])}" if kind.has_offsets else ""
    return f"{kind.verdict} {number:,} at {kind.place}{at}{f' ({whose})' if whose else ''}"


def _offsets(ranges: Sequence[Range]) -> str:
    shown = ", ".join(str(start) if end == start + 1 else f"{start}–{end - 1}" for start, end in ranges[:_RANGES])
    return f"{shown} …" if len(ranges) > _RANGES else shown


def _entries(findings: Findings) -> list[dict[str, Any]]:
    return [_entry(kind, findings) for kind in sorted(findings)[:_MOST]]


def _entry(kind: Kind, findings: Findings) -> dict[str, Any]:
    ranges = [list(each) for each in findings[kind][:_MOST]] if kind.has_offsets else []
    number = size({kind: findings[kind]})
    named = {"verdict": kind.verdict, "group": kind.group, "handler": kind.handler, "place": kind.place, "number": number}
    return named | {"offsets": ranges}
