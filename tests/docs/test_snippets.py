"""Every snippet of README and docs: Python runs, TOML is TOML, and a command line is one that its program takes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
import yaml  # type: ignore[import-untyped]  # it ships no types
from tests.docs.pages import CHECKOUT, Snippet, pages, run, snippets, text
from tests.tables import each

from ackwise import App
from ackwise.plugin.cli.root import new_app

#: What is not run, and how often on which page; the page says why.
NOT_RUN = {"docs/how-to/sentry.md": 1, "docs/how-to/spark.md": 1, "docs/topics.md": 1}

#: Columns of a block beside both lists of a page, in a window of ordinary width.
WIDEST = 88

#: Where programs are: those that come with a package, too.
PROGRAMS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

#: Their Python blocks are files, which tests/docs/test_tutorial.py and test_service.py write and start.
OF_FILES = {"docs/service.md", "docs/tutorial.md"}


def of(language: str) -> list[Snippet]:
    return [snippet for page in pages() for snippet in snippets(page) if snippet.language == language and snippet.reason is None]


def named(snippet: Snippet) -> str:
    return f"{snippet.page}:{snippet.line}"


@each("page", pages())
def test_every_block_of_a_page_is_found_and_says_its_language(page: str) -> None:
    assert len(re.findall(r"^\s*(?:```|~~~)", text(page), re.MULTILINE)) == 2 * len(snippets(page))
    assert {snippet.language for snippet in snippets(page)} <= {"python", "toml", "bash", "sql", "text", "yaml"}


def test_a_snippet_is_not_wider_than_a_page() -> None:
    lines = [
        (named(snippet), line)
        for page in pages()
        for snippet in snippets(page)
        if snippet.language != "text"
        for line in snippet.code.splitlines()
    ]
    assert [(where, line) for where, line in lines if len(line) > WIDEST] == []


def test_what_is_not_run_is_counted() -> None:
    assert Counter(snippet.page for page in pages() for snippet in snippets(page) if snippet.reason) == NOT_RUN


# Python


#: Its blocks are tests, with workers that die.
OF_TESTS = "docs/how-to/testing.md"


def run_all(page: str, here: types.ModuleType) -> None:
    """Run the blocks of a page, and the tests that they define."""
    run(page, here)
    for value in list(vars(here).values()):
        if isinstance(value, App):
            value.agents()  # what only shows when all is known
        elif inspect.isfunction(value) and value.__name__.startswith("test_"):
            result = value()
            if inspect.iscoroutine(result):
                asyncio.run(result)


@each("page", sorted({snippet.page for snippet in of("python")} - OF_FILES - {OF_TESTS}))
def test_the_blocks_of_a_page_run_from_top_to_bottom(page: str, new_place: Callable[[], types.ModuleType]) -> None:
    run_all(page, new_place())


def test_the_tests_of_the_page_about_testing_pass(here: types.ModuleType) -> None:
    run_all(OF_TESTS, here)


@each("page", sorted(OF_FILES))
def test_the_blocks_of_a_page_of_files_are_files(page: str) -> None:
    assert [named(snippet) for snippet in snippets(page) if snippet.language == "python" and snippet.file is None] == []


# TOML


@each("snippet", of("toml"), ids=named)
def test_toml_can_be_read(snippet: Snippet) -> None:
    assert tomllib.loads(snippet.code)


# YAML


@each("snippet", of("yaml"), ids=named)
def test_yaml_can_be_read(snippet: Snippet) -> None:
    assert isinstance(yaml.safe_load(snippet.code), dict)


# Commands


def commands() -> list[tuple[Snippet, str]]:
    lines = [(snippet, line) for snippet in of("bash") for line in snippet.code.replace("\\\n", " ").splitlines()]
    return [(snippet, line) for snippet, line in lines if line.strip()]


@functools.cache
def root() -> Any:
    return typer.main.get_command(new_app())


@each("snippet, line", commands())
def test_a_command_exists_and_takes_its_arguments(snippet: Snippet, line: str) -> None:
    program, *arguments = shlex.split(line.removesuffix("&"), comments=True)
    match program:
        case "ackwise":
            _parse(root(), arguments)
        case "make":
            assert set(arguments) <= set(re.findall(r"^([a-z]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
        case "pip":
            known = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
            assert set(re.findall(r"[a-z]+", "".join(re.findall(r"\[(.*?)\]", line)))) <= known
        case "python":
            assert arguments[0] in {other.file for other in snippets(snippet.page)}
        case _:
            builtin = subprocess.run(["bash", "-c", 'type -t "$1"', "bash", program], check=False, capture_output=True).returncode == 0
            assert builtin or shutil.which(program, path=PROGRAMS), f"there is no {program}"


def _parse(command: Any, arguments: list[str]) -> None:
    """Raises if the command line would be refused; runs nothing."""
    context = command.make_context(command.name, list(arguments))
    if hasattr(command, "get_command"):
        name, *rest = itertools.dropwhile(lambda argument: argument.startswith("-"), arguments)
        found = command.get_command(context, name)
        assert found is not None, f"{command.name} has no command {name!r}"
        _parse(found, rest)
