"""Progress of a plan, in a file beside it: a second run goes on where the first one ended, however that ended."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TextIO

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.repairplan import RepairStep, Title
from ackwise.plugin.resend.candidate import AGAIN, Fate

__all__ = ["PlanProgress", "progress_path"]

_VERSION: Final = 1


def progress_path(plan: Path) -> Path:
    """The file that says how far `plan` was carried out."""
    return plan.with_name(f"{plan.stem}.progress.jsonl")


class PlanProgress:
    """A line for each portion that is done, fsynced. While it is open for writing, nobody else carries out the plan.

    Raises `ConfigurationError` for a file of another plan, and for one that somebody else has open.
    """

    def __init__(self, plan: Path, title: Title, *, writing: bool) -> None:
        self._path = progress_path(plan)
        self._through: dict[str, int] = {}
        self._fates: dict[str, Counter[Fate]] = {}
        self._unfinished = ""
        self._file: TextIO | None = _locked(self._path) if writing else None
        try:
            self._read(title)
            if self._file is not None and not self._path.stat().st_size:
                self._write({"schema_version": _VERSION, "plan_id": title.plan_id})
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> PlanProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._close()

    def through(self, step: RepairStep) -> int:
        """The offset that the step goes on with."""
        return self._through.get(step.idempotency_key, step.start)

    def fates(self, step: RepairStep) -> Counter[Fate]:
        """How many of the step's messages had each fate so far."""
        return self._fates.get(step.idempotency_key, Counter())

    def note(self, done: Sequence[tuple[RepairStep, int, Mapping[Fate, int]]]) -> None:
        """Everything of these steps below the offset beside them has these fates; the next run will know. Raises `OSError`.

        From the first on that another run may still send, nothing of a step is noted: there the store alone keeps what was sent
        from being sent again.
        """
        lines = []
        for step, through, fates in done:
            key = step.idempotency_key
            self._unfinished = key if any(fate in AGAIN for fate in fates) else self._unfinished
            if key != self._unfinished:
                lines.append({"step": key, "through": through, "fates": fates})
        self._write(*lines)

    def _take(self, key: str, through: int, fates: Mapping[Fate, int]) -> None:
        self._through[key] = max(through, self._through.get(key, through))
        self._fates.setdefault(key, Counter()).update(fates)

    def _read(self, title: Title) -> None:
        text = _text(self._path)
        if "\n" not in text:  # a kill tore the first line, before anything was done
            if self._file is not None:
                self._file.truncate(0)
            return
        for number, line in enumerate(text.splitlines(), 1):
            found: Any = _parsed(line)
            if not found and number > 1:
                continue  # torn by a kill: that portion is not done
            try:
                if number == 1:
                    self._require_plan(str(found["plan_id"]), title)
                elif "step" in found:
                    self._take(str(found["step"]), int(found["through"]), {Fate(fate): int(many) for fate, many in found["fates"].items()})
            except (ValueError, TypeError, KeyError, AttributeError):
                raise ConfigurationError(
                    f"line {number} of {self._path}, which says how far the plan came, is not what Ackwise wrote there; move the file "
                    "away, and the store alone keeps what was sent from being sent again"
                ) from None
        if self._file is not None and not text.endswith("\n"):
            self._file.write("\n")

    def _require_plan(self, found: str, title: Title) -> None:
        if found != title.plan_id:
            raise ConfigurationError(f"{self._path} says how far plan {found!r} came, and this is {title.plan_id!r}; move it away")

    def _write(self, *lines: Mapping[str, object]) -> None:
        if self._file is not None and lines:
            self._file.writelines(json.dumps(line) + "\n" for line in lines)
            self._file.flush()
            os.fsync(self._file.fileno())

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigurationError(f"{path}, which says how far the plan came, can't be read ({error.strerror})") from error


def _parsed(line: str) -> Any:
    """Empty for what is no JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return {}


def _locked(path: Path) -> TextIO:
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}, which says how far the plan came, can't be written ({error.strerror})") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigurationError(f"somebody else is carrying out this plan: {path} is locked; wait until they are done") from error
    return file
