"""`ackwise reconcile` on made-up histories, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import typer
from tests.spark.histories import History, write_parquet
from typer.testing import CliRunner

from ackwise.spark.commands.reconcile import reconcile

if TYPE_CHECKING:
    from typer.testing import Result

__all__ = ["AS_OF", "BLOCKED", "every_message", "name_of", "reconciled", "root_of", "rows_of", "summary"]

#: The time of all histories, `NOW`.
AS_OF = "2026-01-01T00:00:00Z"

#: The engine of runs that name none. The fixture `engine` sets it.
default_engine = "local"

#: The begin of a program that can't import some packages.
BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Blocker())
"""


def reconciled(*arguments: str | Path) -> Result:
    """The command with these arguments."""
    by_default = () if "--engine" in arguments else ("--engine", default_engine)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(reconcile)
    return CliRunner().invoke(app, [str(argument) for argument in (*arguments, *by_default)])


def root_of(path: Path, history: History) -> Path:
    """The history as a root of events, one file for each writer."""
    for writer_id in {event["writer_id"] for event in history.events}:
        events = [event for event in history.events if event["writer_id"] == writer_id]
        seqs = [event["seq"] for event in events]
        write_parquet(path / "events" / "dt=2026-01-01" / "hr=00" / name_of(writer_id, min(seqs), max(seqs)), events)
    return path


def name_of(writer_id: int, first: int, last: int) -> str:
    """What a worker calls the file of these events."""
    return f"events-{writer_id:016x}-{first:012d}-{last:012d}.parquet"


def summary(out: Path) -> dict[str, Any]:
    """What a run concluded."""
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def rows_of(table: Path, *order: str) -> list[dict[str, Any]]:
    """The rows of a table that a run wrote."""
    found = ds.dataset(table, format="parquet", exclude_invalid_files=True).to_table().to_pylist() if table.exists() else []
    return sorted(found, key=lambda row: [row[name] for name in order])


def every_message(out: Path) -> list[dict[str, Any]]:
    """A row for each message that a run judged: those of the table of verdicts, and those of its ranges."""
    return [*rows_of(out / "verdicts"), *(row for found in rows_of(out / "ranges") for row in _in_range(found))]


def _in_range(found: dict[str, Any]) -> list[dict[str, Any]]:
    same = {name: value for name, value in found.items() if name not in ("start", "end", "masks", "n")}
    first, masks = found["start"] >> 6, found["masks"]
    offsets = [at for at in range(found["start"], found["end"]) if masks is None or masks[(at >> 6) - first] >> (at & 63) & 1]
    assert len(offsets) == found["n"]
    return [{**same, "offset": offset} for offset in offsets]
