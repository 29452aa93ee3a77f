"""What a run found, as one value and as JSON. Plain Python, and the same for the same events."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

from ackwise.spark.books import Book
from ackwise.spark.facts import Writer
from ackwise.spark.vocabulary import ANOMALIES, INCONCLUSIVE, ExitCode, Flag, LogicalVerdict, Verdict

__all__ = ["Finding", "LogicalFinding", "Missing", "RunReport", "SCHEMA_VERSION", "Tally", "to_json"]

#: Of `summary.json`.
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Tally:
    """How many messages of one handler and topic have one verdict and one set of flags."""

    group: str
    handler: str
    topic: str
    verdict: Verdict
    flags: Flag
    messages: int

    @property
    def is_anomaly(self) -> bool:
        """Whether somebody should look at them."""
        return self.verdict in ANOMALIES or Flag.COMMITTED_PAST in self.flags


@dataclass(frozen=True, slots=True)
class Finding:
    """One message that somebody should look at."""

    group: str
    handler: str
    topic: str
    partition: int
    offset: int
    verdict: Verdict
    flags: Flag
    attempt: int
    last_event: str
    last_ts: int
    """Microseconds."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Offsets without any event: `start` to before `end`."""

    group: str
    topic: str
    partition: int
    start: int
    end: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class LogicalFinding:
    """How many dedup hashes of one handler have one logical verdict."""

    group: str
    handler: str
    verdict: LogicalVerdict
    flags: Flag
    hashes: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything that a run found."""

    run_id: str
    as_of: int
    """Microseconds; 0 without events."""
    roots: Sequence[str]
    files: int
    bytes: int
    writers: Sequence[Writer]
    missing_events: int
    """Sequence numbers that are not there."""
    books: Sequence[Book]
    tallies: Sequence[Tally]
    findings: Sequence[Finding]
    """The worst, at most `listed`."""
    missing: Sequence[Missing]
    """The first, at most `listed`."""
    listed: int
    logical: Sequence[LogicalFinding]
    unreadable: Sequence[str]
    warnings: Sequence[str]
    output: str

    @property
    def verdicts(self) -> Mapping[Verdict, int]:
        """How many of each verdict, worst first: messages, and offsets without events."""
        found: Counter[Verdict] = Counter()
        for tally in self.tallies:
            found[tally.verdict] += tally.messages
        for book in self.books:
            found.update(book.absent)
        return {verdict: found[verdict] for verdict in sorted(found)}

    @property
    def flags(self) -> Mapping[Flag, int]:
        """How many messages have each flag."""
        found: Counter[Flag] = Counter()
        for tally in self.tallies:
            found.update(dict.fromkeys(tally.flags, tally.messages))
        return {flag: found[flag] for flag in sorted(found)}

    @property
    def retries(self) -> Mapping[Verdict, int]:
        """What became of the messages that were sent back at least once."""
        found: Counter[Verdict] = Counter()
        for tally in self.tallies:
            if Flag.RETRIED in tally.flags:
                found[tally.verdict] += tally.messages
        return {verdict: found[verdict] for verdict in sorted(found)}

    @property
    def anomalies(self) -> int:
        """How many messages, offsets and dedup hashes somebody should look at."""
        messages = sum(tally.messages for tally in self.tallies if tally.is_anomaly)
        offsets = sum(number for book in self.books for verdict, number in book.absent.items() if verdict in ANOMALIES)
        # A phantom hash is there already, by its suppressed messages.
        return messages + offsets + sum(finding.hashes for finding in self.logical if finding.verdict is LogicalVerdict.LOGICAL_DUPLICATE)

    @property
    def exit_code(self) -> ExitCode:
        """An anomaly is one whatever else is unknown."""
        if self.anomalies:
            return ExitCode.ANOMALIES
        unknown = any(number for verdict, number in self.verdicts.items() if verdict in INCONCLUSIVE)
        return ExitCode.INCONCLUSIVE if unknown or self.unreadable else ExitCode.CLEAN


def to_json(report: RunReport) -> str:
    """The report as it stands in `summary.json`. Times are ISO 8601 in UTC; names are those of the verdicts and flags."""
    return json.dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "run_id": report.run_id,
            "exit_code": int(report.exit_code),
            "as_of": _time(report.as_of),
            "anomalies": report.anomalies,
            "verdicts": _named(report.verdicts),
            "flags": _named(report.flags),
            "retries": _named(report.retries),
            "books": [_book(book) for book in report.books],
            "tallies": [_plain(tally) for tally in report.tallies],
            "logical": [_plain(finding) for finding in report.logical],
            "findings": [{**_plain(finding), "last_ts": _time(finding.last_ts)} for finding in report.findings],
            "missing": [_plain(missing) for missing in report.missing],
            "listed": report.listed,
            "missing_events": report.missing_events,
            "unreadable": list(report.unreadable),
            "warnings": list(report.warnings),
            "writers": [_writer(writer) for writer in report.writers],
            "roots": list(report.roots),
            "files": report.files,
            "bytes": report.bytes,
            "output": report.output,
        },
        indent=2,
    )


def _named(counts: Mapping[Any, int]) -> dict[str, int]:
    return {key.name: number for key, number in counts.items()}


def _plain(value: Tally | Finding | Missing | LogicalFinding) -> dict[str, Any]:
    found: dict[str, Any] = {field.name: getattr(value, field.name) for field in fields(value)}
    found["verdict"] = found["verdict"].name
    if "flags" in found:
        found["flags"] = [flag.name for flag in found["flags"]]
    return found


def _book(book: Book) -> dict[str, Any]:
    return {
        "cluster": book.partition.group[0],
        "group": book.partition.group[1],
        "topic": book.partition.topic,
        "topic_id": book.partition.topic_id,
        "partition": book.partition.partition,
        "start": book.start,
        "committed": book.committed,
        "offsets": book.expected,
        "verdicts": _named(book.verdicts),
        "gaps": book.gaps,
        "balance": book.balance,
        "rewound": book.rewound,
    }


def _writer(writer: Writer) -> dict[str, Any]:
    return {
        "writer_id": f"{writer.writer_id:016x}",
        "client": writer.client,
        "cluster": writer.group[0],
        "group": writer.group[1],
        "mode": writer.mode,
        "fate": str(writer.fate),
        "first": _time(writer.first_ts),
        "last": _time(writer.last_ts),
        "last_seq": writer.last_seq,
    }


def _time(micros: int) -> str | None:
    return datetime.fromtimestamp(micros / 1_000_000, UTC).isoformat(timespec="milliseconds") if micros else None
