"""The metrics of `--follow`, as a file for Prometheus: the text that its node exporter takes from a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ackwise.spark.vocabulary import Verdict

__all__ = ["METRICS", "Standing", "check", "write"]

#: Kind and meaning of each; every sample has the label `events`, the folders.
METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "ackwise_audit_updated_timestamp_seconds": ("gauge", "when the last audit ended, in seconds since 1970; 0 before the first"),
    "ackwise_audit_as_of_timestamp_seconds": ("gauge", "the time as of which it judged, by the events"),
    "ackwise_audit_exit_code": ("gauge", "0 clean, 1 anomalies, 3 inconclusive"),
    "ackwise_audit_anomalies": ("gauge", "anomalies in the last audit"),
    "ackwise_audit_verdicts": ("gauge", "messages and offsets of the last audit, by verdict"),
    "ackwise_audit_alarms_total": ("counter", "audits with new findings, since the start"),
    "ackwise_audit_failed_updates": ("gauge", "audits that have failed since the last one that did not"),
    "ackwise_audit_undelivered_alarms": ("gauge", "1 while the webhook has not taken an alarm"),
}


@dataclass(slots=True)
class Standing:
    """What is counted, as of the last update."""

    events: Sequence[str]
    updated: float = 0.0
    as_of: float = 0.0
    exit_code: int = 0
    anomalies: int = 0
    verdicts: Mapping[Verdict, int] | None = None
    alarms: int = 0
    failed: int = 0
    undelivered: bool = False


def check(path: Path) -> None:
    """Raise `OSError` if the file can't be written."""
    _unfinished(path).touch()
    _unfinished(path).unlink()


def write(path: Path, standing: Standing) -> None:
    """Replace the file at once. Raises `OSError`."""
    unfinished = _unfinished(path)
    unfinished.write_text("".join(f"{line}\n" for line in _lines(standing)), encoding="utf-8")
    unfinished.replace(path)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")  # the node exporter takes names that end in .prom


def _lines(standing: Standing) -> Iterator[str]:
    label = f'events="{_escaped(",".join(standing.events))}"'
    verdicts = standing.verdicts or {}
    plain = (standing.updated, standing.as_of, standing.exit_code, standing.anomalies, None, standing.alarms, standing.failed)
    for (name, (kind, meaning)), value in zip(METRICS.items(), (*plain, int(standing.undelivered)), strict=True):
        yield f"# HELP {name} {meaning}"
        yield f"# TYPE {name} {kind}"
        if value is None:
            yield from (f'{name}{{{label},verdict="{verdict.name}"}} {verdicts.get(verdict, 0)}' for verdict in Verdict)
        else:
            yield f"{name}{{{label}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
