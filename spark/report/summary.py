"""The report as JSON, for `summary.json`. Times are ISO 8601 in UTC; names are those of verdicts and flags."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

from ackwise.middleware.repairplan import Summary
from ackwise.spark.fold.facts import Partition, Writer
from ackwise.spark.instants import as_datetime
from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.judge.production import Production
from ackwise.spark.report.attempts import Attempts
from ackwise.spark.report.copies import RetryAccount
from ackwise.spark.report.delays import Delays
from ackwise.spark.report.details import AGES, Details
from ackwise.spark.report.latency import Latency
from ackwise.spark.report.missingranges import MissingRange, missing_ranges
from ackwise.spark.report.redriven import Redriven
from ackwise.spark.report.report import Finding, RunReport
from ackwise.spark.report.strips import Strip
from ackwise.spark.report.timeline import Timeline
from ackwise.spark.report.todo import todo
from ackwise.spark.report.words import hexadecimal
from ackwise.spark.storeclaims.findings import ClaimReport
from ackwise.spark.why.telling import story_as_json

__all__ = ["SCHEMA_VERSION", "details_as_json", "to_json"]

SCHEMA_VERSION: Final = 1


def to_json(report: RunReport) -> str:
    """Return the whole report."""
    facts = {
        "schema_version": SCHEMA_VERSION,
        "run_id": report.run_id,
        "exit_code": int(report.exit_code),
        "as_of": _time(report.as_of),
        "engine": report.engine,
        "anomalies": report.anomalies,
        "verdicts": _plain(report.verdicts),
        "flags": _plain(report.flags),
        "to_do": [_plain(each) for each in todo(report)],
        "retries": _plain(report.retries),
        "retry_accounts": [_retry_account(account) for account in report.retry_accounts],
        "accounts": [_account(account) for account in report.accounts],
        "tallies": [_plain(tally) for tally in report.tallies],
        "produced": None if report.produced is None else _produced(report.produced),
        "claims": None if report.claims is None else _claims(report.claims),
        "logical": [_plain(finding) for finding in report.logical],
        "findings": [_finding(finding) for finding in report.findings],
        "ambiguous": report.ambiguous,
        "doubtful": [_finding(finding) for finding in report.doubtful],
        "missing": [_plain(missing) for missing in report.missing],
        "listed": report.listed,
        "dead_letters": [_plain(letters) for letters in report.dead_letters],
        "redriven": [_redriven(letters) for letters in report.redriven],
        "delays": [_delays(delays) for delays in report.delays],
        "timeline": None if report.timeline is None else _timeline(report.timeline),
        "exhibits": details_as_json(report.details),
        "missing_events": report.missing_events,
        "holes": [_missing_range(each) for each in missing_ranges(report)[: report.listed]],
        "unreadable": list(report.unreadable),
        "warnings": list(report.warnings),
        "writers": [_writer(writer) for writer in report.writers],
        "roots": list(report.roots),
        "files": report.files,
        "bytes": report.bytes,
        "plan": None if report.plan is None else _plan(report.plan),
        "output": report.output,
        "report": report.page,
        "config": _plain(report.config),
    }
    return json.dumps(facts, indent=2)


def details_as_json(details: Details) -> dict[str, Any]:
    """Return what the page draws, by name."""
    return {
        "latencies": [_latency(each) for each in details.latencies],
        "attempts": [_attempts(each) for each in details.attempts],
        "strips": [_strip(each) for each in details.strips],
        "stuck": [
            {"writer_id": hexadecimal(each.writer_id), "client": each.client, "older_than_seconds": _ages(each.ages)}
            for each in details.stuck
        ],
        "failures": [_plain(each) for each in details.failures],
        "exports": {
            "begin": _time(details.time.begin),
            "seconds": details.time.width / 1_000_000,
            "writers": [
                {"writer_id": hexadecimal(each.writer.writer_id), "events": list(each.events), "missing": list(each.missing)}
                for each in details.exports
            ],
        },
        "hours": None if details.hours is None else _timeline(details.hours),
        "stories": [story_as_json(story) for story in details.stories],
        "earlier": [run.run_id for run in details.earlier],
    }


def _plain(value: object) -> Any:
    """Return enumerations by name, flags as a list of names, and dataclasses and mappings by their keys."""
    match value:
        case enum.Flag():
            return [flag.name for flag in value]
        case enum.StrEnum():
            return str(value)
        case enum.Enum():
            return value.name
        case Mapping():
            return {_key(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _key(key: object) -> str:
    return str(key) if isinstance(key, enum.StrEnum) or not isinstance(key, enum.Enum) else str(key.name)


def _where(partition: Partition) -> dict[str, Any]:
    cluster, group = partition.group
    return {
        "cluster": cluster, "group": group, "topic": partition.topic, "topic_id": partition.topic_id, "partition": partition.partition,
    }  # fmt: skip


def _finding(finding: Finding) -> dict[str, Any]:
    return {**_plain(finding), "last_ts": _time(finding.last_ts)}


def _missing_range(each: MissingRange) -> dict[str, Any]:
    return {
        "writer": hexadecimal(each.writer_id),
        "client": each.client,
        "host": each.host,
        "group": each.group,
        "first": each.first,
        "last": each.last,
        "since": _time(each.since),
        "until": _time(each.until),
    }


def _account(account: PartitionAccount) -> dict[str, Any]:
    return {
        **_where(account.partition),
        "start": account.start,
        "committed": account.committed,
        "offsets": account.expected,
        "verdicts": _plain(account.verdicts),
        "gaps": account.gaps,
        "balance": account.balance,
        "rewound": account.rewound,
    }


def _retry_account(account: RetryAccount) -> dict[str, Any]:
    where = {"group": account.group, "handler": account.handler, "topic": account.topic, "attempt": account.attempt}
    return {**where, "sent": account.sent, **_plain(account.fates)}


def _redriven(letters: Redriven) -> dict[str, Any]:
    counts = {name: getattr(letters, name) for name in ("letters", "succeeded", "died_again", "pending")}
    return {"group": letters.group, "handler": letters.handler, **counts}


def _plan(plan: Summary) -> dict[str, Any]:
    actions = {each.action: {"steps": each.steps, "offsets": each.offsets} for each in plan.planned}
    return {"path": plan.path, "actions": actions, "provisional": plan.provisional}


def _claims(claims: ClaimReport) -> dict[str, Any]:
    return {
        "store": claims.store,
        "claims": claims.claims,
        "known": claims.known,
        "counts": _plain(claims.counts),
        "findings": [_plain(each) for each in claims.findings],
        "strangers": list(claims.without_claims),
        "later": list(claims.later),
    }


def _produced(production: Production) -> dict[str, Any]:
    return {
        "path": production.path,
        "accounts": [
            {**_where(account.partition), "produced": account.produced, **_plain(account.counts), "orphans": account.orphans}
            for account in production.accounts
        ],
        "unpublished": [each._asdict() for each in production.unpublished],
        "unread": production.unread,
        "orphans": [each._asdict() for each in production.orphans],
        "unsent": [
            {"topic": each.topic, "verdict": None if each.verdict is None else each.verdict.name, "messages": each.messages}
            for each in production.unsent
        ],
    }


def _writer(writer: Writer) -> dict[str, Any]:
    return {
        "writer_id": hexadecimal(writer.writer_id),
        "client": writer.client,
        "host": writer.host,
        "cluster": writer.group[0],
        "group": writer.group[1],
        "mode": writer.mode,
        "fate": str(writer.fate),
        "first": _time(writer.first_ts),
        "last": _time(writer.last_ts),
        "last_seq": writer.last_seq,
    }


def _delays(delays: Delays) -> dict[str, Any]:
    return {
        "group": delays.group,
        "handler": delays.handler,
        "messages": delays.messages,
        "early": delays.early,
        "late_ms": {f"p{round(100 * share)}": delays.percentile(share) for share in (0.5, 0.9, 0.99, 1.0)},
    }


def _timeline(timeline: Timeline) -> dict[str, Any]:
    counts = {verdict.name: list(numbers) for verdict, numbers in timeline.counts.items()}
    return {"begin": _time(timeline.begin), "seconds": timeline.width / 1_000_000, "verdicts": counts}


def _latency(latency: Latency) -> dict[str, Any]:
    return {
        "group": latency.group,
        "topic": latency.topic,
        "messages": latency.messages,
        "negative": latency.negative,
        "ms": {f"p{round(100 * share)}": latency.percentile(share) / 1000 for share in (0.5, 0.95, 0.99)},
        "classes": {str(number): messages for number, messages in sorted(latency.classes.items())},
    }


def _attempts(attempts: Attempts) -> dict[str, Any]:
    reached = [{"attempt": row.attempt, **_plain(row.endings)} for row in attempts.funnel]
    return {"group": attempts.group, "handler": attempts.handler, "topic": attempts.topic, "reached": reached}


def _strip(strip: Strip) -> dict[str, Any]:
    return {
        **_where(strip.account.partition),
        "start": strip.account.start,
        "width": strip.width,
        "bins": {str(place): _plain(dict(sorted(verdicts.items()))) for place, verdicts in sorted(strip.bins.items())},
        "assigned": list(strip.assigned),
        "revoked": list(strip.revoked),
    }


def _ages(ages: Sequence[int]) -> dict[str, int]:
    return dict(zip(map(str, (0, *AGES)), ages, strict=True))


def _time(micros: int | None) -> str | None:
    return as_datetime(micros).isoformat(timespec="milliseconds") if micros else None
