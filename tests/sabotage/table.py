"""The table of what notices each twin (`caught.json`), and the page that is made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.sabotage.twins import CHECKOUT, Twin

TABLE = Path(__file__).parent / "caught.json"
PAGE = CHECKOUT / "docs" / "guarantees" / "evidence.md"

_HEAD = """\
# Evidence

This page is generated (`make evidence`) from the list of twins in `tests/sabotage/twins/` and the result of the last trial.

A *twin* is a copy of the library in which one line that keeps a promise is removed or inverted. `make sabotage` makes each
copy, runs the tests below on it, and fails unless one of them fails. So each row says three things: what is promised, what
would break it, and which tests would notice.
"""


@dataclass(frozen=True, slots=True)
class Catch:
    """The tests that fail on a twin, the shortest first; `tier` is `nightly` where no test of `make test` does."""

    tests: tuple[str, ...] = ()
    tier: str = "test"


def read_table() -> dict[str, Catch]:
    """Return what notices each twin, by the twin's name."""
    rows = json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    return {name: Catch(tuple(row["tests"]), row.get("tier", "test")) for name, row in rows.items()}


def write_table(table: Mapping[str, Catch]) -> None:
    """Write the table, sorted by the names of the twins."""
    rows = {
        name: {"tests": list(catch.tests), **({} if catch.tier == "test" else {"tier": catch.tier})}
        for name, catch in sorted(table.items())
    }
    TABLE.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def page(twins: Iterable[Twin], table: Mapping[str, Catch]) -> str:
    """Return the page of evidence: a section for each page that promises something, a row for each twin."""
    sections = [_HEAD]
    for name, group in groupby(sorted(twins, key=lambda twin: (twin.page, twin.promise, twin.name)), key=lambda twin: twin.page):
        rows = [_row(twin, table.get(twin.name, Catch())) for twin in group]
        title = (CHECKOUT / "docs" / name).read_text("utf-8").lstrip().splitlines()[0].removeprefix("# ")
        sections.append("\n".join([f"## [{title}](../{name})", "", "| promise | twin | noticed by |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(sections)


def _row(twin: Twin, catch: Catch) -> str:
    tests = "<br>".join(f"`{test.split('[')[0]}`" for test in catch.tests)
    tier = " (nightly)" if catch.tier == "nightly" else ""
    place = f"`{twin.module}`" + (f", `{twin.function}`" if twin.function else "")
    return f"| {twin.promise} | {twin.name}: {place} | {tests}{tier} |"


def write_page(twins: Iterable[Twin], table: Mapping[str, Catch]) -> None:
    """Write the page of evidence."""
    PAGE.write_text(page(twins, table), "utf-8")
