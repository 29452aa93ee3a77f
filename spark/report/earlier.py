"""Earlier runs on the same folders, read from the `summary.json` of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ackwise.spark.vocabulary import INCONCLUSIVE, LOSSES, ExitCode, Verdict

__all__ = ["EarlierRun", "earlier_runs"]

#: As many as a person compares; the last ones.
_MOST: Final = 12
#: Names of runs sort by time, so of a folder with very many of them only the last are opened.
_OPENED: Final = 100


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """One run that ended."""

    run_id: str
    as_of: int
    """Microseconds."""
    exit_code: ExitCode
    anomalies: int
    ambiguous: int
    verdicts: Mapping[Verdict, int]

    @property
    def messages(self) -> int:
        """The number of messages and offsets that have a verdict."""
        return sum(self.verdicts.values())

    @property
    def lost(self) -> int:
        """The number of them that are lost."""
        return sum(number for verdict, number in self.verdicts.items() if verdict in LOSSES)

    @property
    def unknown(self) -> int:
        """The number of them that are unknown."""
        return sum(number for verdict, number in self.verdicts.items() if verdict in INCONCLUSIVE)

    @property
    def repeated(self) -> int:
        """The number of them that ran twice."""
        return self.verdicts.get(Verdict.MULTI_EXECUTED, 0)


def earlier_runs(out: Path, roots: Sequence[str], as_of: int) -> list[EarlierRun]:
    """Return the runs beside `out` that judged the same folders, as of this microsecond or before; the oldest first.

    Other files are passed over: the folders beside `out` may be anybody's.
    """
    try:
        folders = sorted((path for path in out.parent.iterdir() if path.is_dir() and path.name != out.name), key=lambda path: path.name)
    except OSError:
        return []  # a folder that may be written to and not listed
    found = [run for folder in folders[-_OPENED:] if (run := _run(folder / "summary.json", roots)) is not None and run.as_of <= as_of]
    return sorted(found, key=lambda run: (run.as_of, run.run_id))[-_MOST:]


def _run(path: Path, roots: Sequence[str]) -> EarlierRun | None:
    try:
        summary: dict[str, Any] = json.loads(path.read_bytes())
        if summary["roots"] != list(roots) or summary["as_of"] is None:
            return None
        return EarlierRun(
            run_id=str(summary["run_id"]),
            as_of=round(datetime.fromisoformat(summary["as_of"]).timestamp() * 1_000_000),
            exit_code=ExitCode(summary["exit_code"]),
            anomalies=int(summary["anomalies"]),
            ambiguous=int(summary["ambiguous"]),
            verdicts={Verdict[name]: int(number) for name, number in summary["verdicts"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
