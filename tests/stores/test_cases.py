"""docs/stores/cases.md tells the truth: each case is there, and each test that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ackwise.stores.testing import StoreConformance
from ackwise.stores.testing.inbox import InboxConformance, OffsetsConformance

REPOSITORY = Path(__file__).parents[2]
TESTS = REPOSITORY / "tests" / "stores"
CASES = [*map(str, range(1, 46)), "34a", "60"]
NAMED = re.compile(r"`([A-Za-z_/]+\.(?:py::)?[A-Za-z_0-9]+)`")


def tables(columns: int) -> list[list[str]]:
    """The rows of the page's tables with that many columns, without heads and rules."""
    lines = (REPOSITORY / "docs" / "stores" / "cases.md").read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in rows if len(row) == columns and row[0] not in ("case", "store")]


def everything_that_is_there() -> set[str]:
    """Test functions as `module.function` or `Class.function`, and classes of tests as `module.Class`."""
    there = {f"{suite.__name__}.{name}" for suite in [StoreConformance, InboxConformance, OffsetsConformance] for name in dir(suite)}
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            there |= {f"{module(path)}.{name}" for name in names(node)}
            there |= {f"{path.relative_to(REPOSITORY)}::{name}" for name in names(node)}
            if isinstance(node, ast.ClassDef):
                there |= {f"{node.name}.{name}" for inner in node.body for name in names(inner)}
    return there


def module(path: Path) -> str:
    """The module as the page names it: with its folder if that is one of a database."""
    own = path.is_relative_to(TESTS) and path.parent != TESTS
    return str(path.relative_to(TESTS).with_suffix("")) if own else path.stem


def names(node: ast.stmt) -> set[str]:
    return {node.name} if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else set()


@pytest.fixture(scope="module")
def there() -> set[str]:
    return everything_that_is_there()


def test_every_case_is_on_the_page_in_order() -> None:
    listed = list(dict.fromkeys(case for case, *_ in tables(4)))
    assert sorted(listed) == sorted(CASES)
    assert listed == sorted(listed, key=lambda case: (int(case.rstrip("a")), case))


def test_no_case_stands_twice_for_the_same_store() -> None:
    rows = [(case, on) for case, _, on, _ in tables(4)]
    assert len(rows) == len(set(rows))


@pytest.mark.slow
def test_every_test_that_the_page_names_is_there(there: set[str]) -> None:
    named = {name for *_, held in (*tables(4), *tables(2)) for name in NAMED.findall(held)}
    assert named - there == set()


def test_every_row_names_a_test_or_says_why_there_is_none() -> None:
    silent = [(case, on) for case, _, on, held in tables(4) if not NAMED.search(held) and not held.startswith("– ")]
    assert silent == []


def test_every_file_that_runs_the_suite_on_a_store_is_on_the_page() -> None:
    """Further classes of a file are other settings of the same store."""
    runs = re.compile(r"\((Store|Inbox|Offsets)Conformance")
    files = {module(path) for path in TESTS.rglob("test_*.py") if runs.search(path.read_text("utf-8"))}
    listed = {NAMED.findall(held)[0].removeprefix("tests/stores/").partition(".")[0] for _, held in tables(2)}
    in_front_of_a_store = {"test_coalescer"}
    assert files - listed - in_front_of_a_store == set(), "name their classes in docs/stores/cases.md"
