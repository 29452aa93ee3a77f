"""What `ackwise status` shows of a group, for a terminal and a page alike: texts in tables, sentences, and facts as JSON has them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ackwise.middleware.plaintext import plain
from ackwise.plugin.pages.table import Table
from ackwise.plugin.status.standing import Finding, PartitionStanding, Standing, WorkerStanding, findings

__all__ = ["ShownStatus", "facts", "shown"]

#: Characters of a name that is somebody else's choice.
_NAME: Final = 250

_UNKNOWN: Final = "as of the last commits; what only workers know, such as messages in hand and open breakers, is not shown"
_TOLD: Final = "as of the last commits, and of what each worker said last"


class ShownStatus(NamedTuple):
    """One group, in the order in which it is read."""

    headline: str
    tables: tuple[Table, ...]
    letters: str
    """A sentence; empty without a topic for dead letters."""
    findings: tuple[Finding, ...]
    unknown: str
    """A sentence on what is not shown."""


def shown(standing: Standing) -> ShownStatus:
    """For people."""
    return ShownStatus(
        _headline(standing),
        tuple(_tables(standing)),
        _letters(standing),
        tuple(findings(standing)),
        _TOLD if standing.workers else _UNKNOWN,
    )


def facts(standing: Standing) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "group": standing.group,
        "as_of": "last commit",
        "state": standing.state,
        "members": list(standing.members),
        "relays": standing.relays,
        "lag": standing.lag,
        "partitions": [each._asdict() for each in standing.partitions],
        "levels": [each._asdict() for each in standing.levels],
        "dead_letters": None if standing.letters is None else standing.letters._asdict(),
        "paused": [each._asdict() for each in standing.paused],
        "workers": [worker._asdict() for worker in standing.workers],
        "findings": [finding.sentence for finding in findings(standing)],
    }


def _headline(standing: Standing) -> str:
    workers, relays = _several(len(standing.members), "worker"), _several(standing.relays, "relay")
    return f"group {standing.group}: {standing.state}, {workers}, {relays}, lag {standing.lag}"


def _tables(standing: Standing) -> Iterator[Table]:
    columns = "partition", "owner", "watermark", "lag", "done ahead", "oldest", "waiting"
    yield Table("Partitions", columns, [_row(each) for each in standing.partitions])
    if standing.workers:
        of_workers = "worker", "Ackwise", "partitions", "in hand", "running", "waiting", "paused", "heard"
        yield Table("Worker", of_workers, [_worker_row(each) for each in standing.workers])
    if pending := tuple((each.level, str(each.pending)) for each in standing.levels if each.pending):
        yield Table("Delay level", ("delay level", "pending"), pending)


def _letters(standing: Standing) -> str:
    if (letters := standing.letters) is None:
        return ""
    newest = "" if letters.newest_age is None else f", the newest {_duration(letters.newest_age)} old"
    return f"dead letters: {letters.letters}, of which {letters.open} are open{newest}"


def _row(each: PartitionStanding) -> tuple[str, ...]:
    return (
        f"{each.topic}/{each.partition}",
        "nobody" if each.owner is None else plain(each.owner if each.worker is None else f"{each.owner} = {each.worker}", _NAME),
        "-" if each.committed is None else str(each.committed),
        str(each.lag),
        str(each.done_ahead),
        "-" if each.age is None else _duration(each.age),
        "; ".join(_why(each)),
    )


def _worker_row(each: WorkerStanding) -> tuple[str, ...]:
    return (
        plain(f"{each.name} {each.client}", _NAME),
        plain(each.version, _NAME),
        str(len(each.partitions)),
        str(each.in_hand),
        str(each.running),
        plain("; ".join(f"{messages}: {why}" for why, messages in each.waiting), 1_000),
        plain(", ".join(each.paused), _NAME),
        f"{_duration(each.heard)} ago",
    )


def _why(each: PartitionStanding) -> Iterator[str]:
    for what in each.paused:
        yield f"{what} is paused by command"
    if each.due_in is not None:
        attempts = _several(each.waiting_attempts, "attempt")
        yield f"{_several(each.waiting, 'message')} in place, tried again in {_duration(each.due_in)} after {attempts}"


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    """In the largest unit of which there is one."""
    unit, size = next((each for each in (("d", 86400), ("h", 3600), ("m", 60)) if seconds >= each[1]), ("s", 1))
    return f"{round(seconds) // size} {unit}"
