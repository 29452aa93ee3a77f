"""Earlier runs of `ackwise reconcile`, as the `summary.json` of each describes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ackwise.spark.report.report import PAGE

__all__ = ["Audit", "Finding", "audits_below", "page_of"]

#: Runs that are shown, and folders that are opened: names of runs sort by time.
_MOST: Final = 12
_OPENED: Final = 100

#: Bytes of a summary that is read: whatever lies in the folder, the page is there.
_SIZE: Final = 64 * 2**20

_SUMMARY: Final = "summary.json"


@dataclass(frozen=True, slots=True)
class Finding:
    """One message that somebody should look at."""

    message: str
    """`topic/partition/offset`."""
    group: str
    handler: str
    verdict: str
    flags: str


@dataclass(frozen=True, slots=True)
class Audit:
    """One run."""

    folder: Path
    as_of: str
    """ISO 8601; empty without events."""
    exit_code: int
    anomalies: int
    ambiguous: int
    verdicts: Mapping[str, int]
    """Worst first."""
    findings: Sequence[Finding]
    has_plan: bool
    """Whether the plan has a step."""
    warnings: Sequence[str]

    @property
    def name(self) -> str:
        """The name of its folder, which `reconcile` gives it unless it is told another one."""
        return self.folder.name

    @property
    def has_page(self) -> bool:
        """Whether its page for people is there."""
        return (self.folder / PAGE).is_file()


def audits_below(folder: Path) -> tuple[list[Audit], list[str]]:
    """Return the last runs in `folder`, or the one whose folder it is, the newest first; and a sentence on each that can't be read."""
    try:
        below = sorted((path for path in folder.iterdir() if (path / _SUMMARY).is_file()), key=lambda path: path.name)[-_OPENED:]
    except OSError as error:
        return [], [f"{folder} can't be listed ({error.strerror}), so no audits are shown"]
    found: list[Audit] = []
    problems: list[str] = []
    for path in [folder] if (folder / _SUMMARY).is_file() else below:
        try:
            found.append(_read(path))
        except OSError as error:
            problems.append(f"{path / _SUMMARY} can't be read: {error.strerror}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            problems.append(f"{path / _SUMMARY} is not what ackwise reconcile writes, and is passed over")
    return sorted(found, key=lambda audit: (audit.as_of, audit.name), reverse=True)[:_MOST], problems


def page_of(audit: Audit) -> bytes:
    """Return its page for people. Raises `OSError`."""
    return (audit.folder / PAGE).read_bytes()


def _read(folder: Path) -> Audit:
    with (folder / _SUMMARY).open("rb") as file:
        text = file.read(_SIZE + 1)
    if len(text) > _SIZE:
        raise ValueError("too large")
    said: dict[str, Any] = json.loads(text)
    plan = said.get("plan") or {"actions": {}}
    return Audit(
        folder,
        str(said["as_of"] or ""),
        int(said["exit_code"]),
        int(said["anomalies"]),
        int(said["ambiguous"]),
        {str(name): int(number) for name, number in said["verdicts"].items()},
        [_finding(each) for each in said["findings"]],
        bool(plan["actions"]),
        [str(each) for each in (*said["unreadable"], *said["warnings"])],
    )


def _finding(said: Mapping[str, Any]) -> Finding:
    message = f"{said['topic']}/{said['partition']}/{said['offset']}"
    return Finding(message, str(said["group"]), str(said["handler"]), str(said["verdict"]), " ".join(map(str, said["flags"])))
