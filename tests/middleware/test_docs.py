"""The documents say what the code does: the headers of copies, and which test holds which row of the rules."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from ackwise.middleware.message import wire
from ackwise.middleware.message.disposition import Failure, Reason
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.wire import BUDGET, Copy, dead_letter, retry_copy, shrink

REPOSITORY = Path(__file__).parents[2]
ROW = re.compile(r"(?<![A-Za-z0-9])[ABDFHKOPSTVW]\d\d(?![A-Za-z0-9])")

#: Rows of parts that Ackwise does not have: arbitrary timers, renewal policies.
ELSEWHERE = {"D11", "D12", "D13", "P10"}


def cells(document: str, columns: int) -> list[list[str]]:
    """The rows of all tables of `document` with that many columns, without heads and rules."""
    lines = (REPOSITORY / "docs" / document).read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [row for row in rows if len(row) == columns and row[0] not in ("header", "row")]


# docs/wire.md


def every_header() -> dict[str, bytes | None]:
    """Every header that wire.py writes, each with the longest value that there is."""
    topic, group, handler = "t" * 249, "g" * 235, "h" * wire.HANDLER_LIMIT
    origin = Origin(topic, 2**31 - 1, 2**63 - 1, 2**63 - 1)
    delivery = Delivery(
        *origin, b"k" * 1000, b"v", (("trace", b"1"), ("\udcff" * 30_000, b"")), origin, 2**31 - 2, 2**63 - 1, replay_id=b"r" * 256
    )
    surrogates = "\udc80" * 100_000
    failure = Failure.of(type("漢" * 10_000, (Exception,), {"__module__": surrogates})(surrogates))
    copy = retry_copy(delivery, topic=topic, partition=0, group=group, handler=handler, due=2**63 - 1, now_ms=0, reason=surrogates)
    letter: Copy | None = dead_letter(
        delivery, topic=topic, partition=0, group=group, handler=handler, now_ms=0, reason=surrogates, failure=failure
    )
    written = dict(copy.headers)
    while letter is not None:
        written |= dict(letter.headers)
        letter = shrink(letter)
    return {name: value for name, value in written.items() if name.startswith("ackwise-")}


def budgets() -> dict[str, int]:
    return {name.strip("`"): int(limit) for name, _, _, limit in cells("wire.md", 4)}


def test_the_table_of_headers_has_exactly_those_that_are_written() -> None:
    assert budgets().keys() == every_header().keys()


def test_every_header_stays_below_its_budget_in_the_table() -> None:
    longest = {name: len(value or b"") for name, value in every_header().items()}
    assert {name: size for name, size in longest.items() if size > budgets()[name]} == {}


def test_the_budgets_together_fit_into_what_a_topic_allows_above_its_sources() -> None:
    total = sum(len(name) + limit + 10 for name, limit in budgets().items())
    assert total < 64 * 1024 < BUDGET


def test_the_table_of_headers_says_which_ones_a_copy_needs() -> None:
    needed = {name.strip("`") for name, _, where, _ in cells("wire.md", 4) if "read" in where.split(", ")}
    first = Delivery("orders", 3, 100, 5, b"k", b"v", (), Origin("orders", 3, 100, 5))
    copy = retry_copy(first, topic="billing.retry", partition=0, group="billing", handler="charge", due=0, now_ms=0, reason="")
    refused = set()
    for name, _ in copy.headers:
        without = tuple(header for header in copy.headers if header[0] != name)
        try:
            wire.parse_copy(first._replace(headers=without), "billing")
        except wire.ForeignCopy:
            refused.add(name)
    assert refused == needed


def test_the_table_of_reasons_has_every_reason() -> None:
    documented = {name.strip("`") for name, _ in cells("wire.md", 2)}
    assert {value for name, value in vars(Reason).items() if name.isupper()} <= documented


# docs/semantics.md


def rows_named_by_tests() -> dict[str, set[str]]:
    """Row to the tests, as `module.function`, whose source (decorators included) names it, or the table that they run."""
    named: defaultdict[str, set[str]] = defaultdict(set)
    results = (REPOSITORY / "tests" / "conformance" / "results.py").read_text("utf-8")
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        if path == Path(__file__):
            continue
        source = path.read_text("utf-8")
        if not ROW.search(source.replace("RESULTS", results)):
            continue
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                said = "\n".join(lines[first - 1 : node.end_lineno])
                for row in ROW.findall(said.replace("RESULTS", results)):
                    named[row] |= {f"{path.stem}.{node.name}", f"{path.relative_to(REPOSITORY)}::{node.name}"}
    return named


@pytest.fixture(scope="module")
def named() -> dict[str, set[str]]:
    return rows_named_by_tests()


@pytest.fixture(scope="module")
def listed() -> dict[str, str]:
    return {row: test.strip("`–") for row, _, _, test in cells("semantics.md", 4)}


def test_a_test_in_the_rules_exists_and_names_its_row(named: dict[str, set[str]], listed: dict[str, str]) -> None:
    assert {row: test for row, test in listed.items() if test and test not in named.get(row, ())} == {}


def test_every_row_that_a_test_names_is_in_the_rules(named: dict[str, set[str]], listed: dict[str, str]) -> None:
    assert named.keys() - ELSEWHERE - listed.keys() == set(), "docs/semantics.md has no such rows"


def test_no_row_stands_twice() -> None:
    rows = [row for row, *_ in cells("semantics.md", 4)]
    assert len(rows) == len(set(rows)) > 50
