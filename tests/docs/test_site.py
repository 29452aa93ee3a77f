"""The pages say what is there: tests that they name exist, and what is public is in the reference."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import griffe
from tests.docs.pages import CHECKOUT, pages, snippets, text
from tests.tables import each

import ackwise
import ackwise.stores

#: A test, as pytest takes it.
BY_PATH = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")

#: A file or folder of the checkout.
FILE = re.compile(r"`((?:docs|examples|middleware|plugin|spark|stores|tests)/[\w./-]*)`")

#: Pages that promise something. A promise stands on the page of its subject, so that nothing is said twice.
GUARANTEES = [
    "docs/guarantees/ack-index.md",
    "docs/guarantees/nothing-is-lost.md",
    "docs/guarantees/progress.md",
    "docs/how-to/broadcasting.md",
    "docs/how-to/cdc.md",
    "docs/how-to/concurrency.md",
    "docs/how-to/dead-letters.md",
    "docs/how-to/dedup.md",
    "docs/how-to/delays.md",
    "docs/how-to/limits.md",
    "docs/how-to/order.md",
    "docs/how-to/outbox.md",
    "docs/how-to/producing.md",
    "docs/how-to/share-groups.md",
    "docs/how-to/simple-consumer.md",
    "docs/how-to/transactional-messages.md",
    "docs/how-to/transactional.md",
    "docs/reconcile.md",
]


@cache
def functions(path: Path) -> frozenset[str]:
    """The names of all functions in a file. Each file is parsed once, however many pages name it."""
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_test_that_a_page_names_exists() -> None:
    named = [(page, path, name) for page in pages() for path, name in BY_PATH.findall(text(page))]
    assert [one for one in named if not (CHECKOUT / one[1]).exists() or one[2] not in functions(CHECKOUT / one[1])] == []


def test_what_others_have_is_shown_by_their_pages() -> None:
    table = text("docs/compare.md").partition("| need | Ackwise |")[2]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) >= 15
    for need, _, *others in rows:
        assert len(others) == 4, need
        assert [cell for cell in others if cell != "–" and "](https://" not in cell] == [], need


def test_a_guarantee_ends_with_what_is_promised_and_what_breaks_it() -> None:
    assert [page for page in pages() if page.startswith("docs/") and "\n## What breaks it\n" in text(page)] == GUARANTEES
    for page in GUARANTEES:
        assert re.findall(r"^## (.*)$", text(page), re.MULTILINE)[-2:] == ["What is promised", "What breaks it"], page


@each("promise", GUARANTEES)
def test_the_first_page_names_every_guarantee(promise: str) -> None:
    assert f"({promise.removeprefix('docs/')})" in text("docs/index.md")
    assert f"({promise})" in text("README.md")


def test_every_public_name_is_in_the_reference_once() -> None:
    written = re.findall(r"^::: ackwise\.(\w+)$", "\n".join(text(page) for page in pages()), re.MULTILINE)
    assert sorted(written) == sorted(ackwise.__all__)


@each("module", ["errors", "schemas"])
def test_every_name_of_a_public_module_is_in_the_reference_once(module: str) -> None:
    names = [name for name in vars(importlib.import_module(f"ackwise.{module}")) if name.isidentifier() and not name.startswith("_")]
    written = re.findall(rf"^::: ackwise\.{module}\.(\w+)$", "\n".join(text(page) for page in pages()), re.MULTILINE)
    assert sorted(written) == sorted(names)


def test_every_name_of_the_reference_says_what_it_is() -> None:
    package = griffe.load("ackwise", search_paths=[CHECKOUT / ".ci" / "reference"])
    names = re.findall(r"^::: ackwise\.(\S+)$", "\n".join(text(page) for page in pages()), re.MULTILINE)
    assert [name for name in names if not package[name].has_docstring] == []


def imported_in(code: str) -> set[tuple[str, str]]:
    """Return what `code` imports of Ackwise, as module and name."""
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    return {(node.module or "", name.name) for node in nodes if (node.module or "").split(".")[0] == "ackwise" for name in node.names}


def imported(page: str) -> set[tuple[str, str]]:
    """Return what the Python blocks of `page` import of Ackwise, as module and name."""
    return {found for snippet in snippets(page) if snippet.language == "python" for found in imported_in(snippet.code)}


@each("page", [page for page in pages() if imported(page)])
def test_what_a_page_imports_is_in_the_reference(page: str) -> None:
    reference = set(re.findall(r"^::: (\S+)$", "\n".join(text(page) for page in pages()), re.MULTILINE))
    homes = {
        **ackwise.stores._HOME_OF,
        **dict.fromkeys(("accounts", "claims", "read_events", "verdicts"), "ackwise.spark.library"),
        "StoreConformance": "ackwise.stores.conformance.claims",
        "Features": "ackwise.stores.conformance.scene",
    }
    wanted = [(f"{module}.{name}", homes.get(name, module), f"{homes.get(name, module)}.{name}") for module, name in imported(page)]
    assert [places for places in wanted if not {*places} & reference] == []


#: What a user may import; Spark, pytest and commands load more by its name.
PUBLIC = {"ackwise", "ackwise.errors", "ackwise.schemas", "ackwise.stores", "ackwise.spark", "ackwise.testing", "ackwise.plugin.faust"}


def test_pages_and_examples_import_nothing_but_what_is_public() -> None:
    found = {(page, module) for page in pages() for module, _ in imported(page)}
    found |= {(path.name, module) for path in (CHECKOUT / "examples").glob("*.py") for module, _ in imported_in(path.read_text("utf-8"))}
    assert [one for one in sorted(found) if one[1] not in PUBLIC] == []


def test_the_stores_have_their_names_and_a_type_checker_sees_the_same() -> None:
    tree = ast.parse((CHECKOUT / "stores" / "__init__.py").read_text("utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {alias.asname: node.module for node in nodes for alias in node.names if alias.asname} == ackwise.stores._HOME_OF
    assert [name for name in ackwise.stores._HOME_OF if not hasattr(ackwise.stores, name)] == []


def test_a_link_in_the_readme_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text("README.md"))
    assert [link for link in links if not (CHECKOUT / link).exists()] == []


@each("page", [page for page in pages() if FILE.search(text(page))])
def test_every_file_that_a_page_names_exists(page: str) -> None:
    assert [name for name in FILE.findall(text(page)) if not (CHECKOUT / name).exists()] == []
