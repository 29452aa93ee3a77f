"""The repository as somebody finds it who has just cloned it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.tables import each

CHECKOUT = Path(__file__).resolve().parent.parent

#: Folders of one machine: a path below one of them works nowhere else.
PRIVATE = re.compile(r"(?<![\w.~}])/(?:home|root|Users|work)/\w")

#: A mark, on a line that goes on without its own comment in words.
UNEXPLAINED = re.compile(r"\bmark\.slow\b(?!.*\s# (?!noqa\b|type:|fmt:)\w)")


def committed() -> list[Path]:
    if not (CHECKOUT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs git and a clone, to know which files are committed")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    return [CHECKOUT / name for name in listing.split("\0") if name and (CHECKOUT / name).is_file()]


@each("name", ["README.md", "CHANGELOG.md", "LICENSE", "Makefile", ".ci/run"])
def test_what_people_look_for_is_there(name: str) -> None:
    assert (CHECKOUT / name).read_text().strip()


def test_no_file_names_a_place_on_one_machine() -> None:
    named = {
        f"{file.relative_to(CHECKOUT)}:{number}: {line.strip()}"
        for file in committed()
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
        if PRIVATE.search(line)
    }
    assert not named


def test_every_command_that_the_readme_names_exists() -> None:
    goals = set(re.findall(r"^([a-z]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", (CHECKOUT / "README.md").read_text(), re.MULTILINE)) <= goals


def test_the_link_that_an_editable_install_needs_is_committed() -> None:
    assert (CHECKOUT / ".dev" / "ackwise").readlink() == Path("..")


def test_the_changelog_tells_of_the_next_version() -> None:
    assert "\n## Unreleased\n" in (CHECKOUT / "CHANGELOG.md").read_text()


def test_every_slow_test_says_on_its_line_what_it_waits_for() -> None:
    silent = {
        f"{file.relative_to(CHECKOUT)}:{number}: {line.strip()}"
        for file in (CHECKOUT / "tests").rglob("*.py")
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if UNEXPLAINED.search(line)
    }
    assert not silent
