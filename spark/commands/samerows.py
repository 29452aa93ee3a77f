"""Compares the tables of two runs of `reconcile`, row by row: `python -m ackwise.spark.commands.samerows FOLDER OTHER`.

Prints one JSON object: the number of `rows` of the first run, and how many `differ`, by table.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pyarrow.dataset as ds

__all__ = ["TABLES", "differing", "rows_in"]

#: The tables of a run.
TABLES: Final = ("ranges", "verdicts", "missing", "logical", "produced", "claims")


def rows_in(folder: Path) -> Counter[str]:
    """Return the rows of a table as texts, each with how often it is there; none if there is no such table."""
    if not folder.exists():
        return Counter()
    batches = ds.dataset(folder, format="parquet", exclude_invalid_files=True).to_batches()
    return Counter(json.dumps(row, default=str, sort_keys=True) for batch in batches for row in batch.to_pylist())


def differing(one: Path, other: Path) -> tuple[int, dict[str, int]]:
    """Return the number of rows of the run in `one`, a range as so many, and by table how many rows only one of both runs has."""
    number, found = 0, dict[str, int]()
    for name in TABLES:
        mine, theirs = rows_in(one / name), rows_in(other / name)
        number += sum(times * json.loads(row).get("n", 1) for row, times in mine.items())
        if alone := (mine - theirs).total() + (theirs - mine).total():
            found[name] = alone
    return number, found


if __name__ == "__main__":
    rows, differ = differing(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.write(json.dumps({"rows": rows, "differ": differ}) + "\n")
