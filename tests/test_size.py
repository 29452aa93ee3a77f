"""The size of the repository does not grow without a reason (`.ci/sizelimit.py`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def limit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sizelimit", CHECKOUT / ".ci" / "sizelimit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_figure_that_grew_is_named_and_one_that_shrank_is_not(limit: ModuleType) -> None:
    before = {"library lines": 100, "settings": 7, "commands": 3}
    assert [*limit.grown(before, {"library lines": 101, "settings": 6, "commands": 3})] == ["library lines grew from 100 to 101"]


def test_figures_that_depend_on_the_version_of_python_may_differ_a_little(limit: ModuleType) -> None:
    before = {"calls of a batch": 500}
    assert [*limit.grown(before, {"calls of a batch": 514})] == []
    assert [*limit.grown(before, {"calls of a batch": 530})] == ["calls of a batch grew from 500 to 530"]


def test_a_commit_that_raised_a_figure_has_to_say_why(limit: ModuleType) -> None:
    first = limit.Version("a" * 40, "", {"settings": 7})
    silent = limit.Version("b" * 40, "A new option.", {"settings": 8})
    reasoned = limit.Version("c" * 40, "A new option.\n\nsize: settings, since brokers need it", {"settings": 9})
    smaller = limit.Version("d" * 40, "", {"settings": 8})
    assert [*limit.unexplained([first, silent, reasoned, smaller])] == [
        "commit bbbbbbbbbbbb: settings grew from 7 to 8, and no line of its body starts with 'size:'"
    ]
    assert [*limit.unexplained([first, reasoned, smaller])] == []


def test_the_figures_on_file_are_those_that_are_compared(limit: ModuleType) -> None:
    size = {
        "library": {"total": {"lines": 1, "files": 2, "classes": 3}},
        "test_lines": 4,
        "public_names": 5,
        "settings": 6,
        "commands": 7,
        "path": {"messages": 100, "functions": 8, "classes": 9, "files": 10, "calls": 11},
    }
    assert limit.figures_of(size).keys() == limit.json.loads(limit.KEPT.read_text("utf-8")).keys()
