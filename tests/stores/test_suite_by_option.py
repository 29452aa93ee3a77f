"""`pytest --ackwise-store=module:factory` runs the suite on a store of somebody else, and does nothing unless asked."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_store.py"

STORES = """
from custom_store import JsonFileStore

from ackwise.stores.memory import MemoryStore
from ackwise.stores.testing import Features


def kept(place, clock):
    return JsonFileStore(place / "claims.json", clock=clock)

kept.features = Features(persistent=True)


def in_real_time(place, clock):
    return JsonFileStore(place / "claims.json")


class Unfenced(MemoryStore):
    async def exchange(self, exchange):
        for key, token, outcome in exchange.completes:
            if (record := self._find((key.id, key.day))) is not None:
                self._write((key.id, key.day), record._replace(token=token))
        return await super().exchange(exchange)


def unfenced(place, clock):
    return Unfenced(clock=clock)

unfenced.features = Features()
"""

NAMES = """
import sys

def pytest_unconfigure():
    print("LOADED", *sorted(name for name in sys.modules if name.split(".")[0] == "ackwise"))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with a few stores."""
    shutil.copy(EXAMPLE, tmp_path)
    (tmp_path / "mine.py").write_text(STORES)
    return tmp_path


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and what was printed."""
    quiet = ("-q", "-p", "no:asyncio", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *quiet, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, done.stdout + done.stderr


def passed(said: str) -> int:
    found = re.search(r"(\d+) passed", said)
    return int(found[1]) if found else 0


def test_a_store_of_somebody_else_passes_the_suite_in_an_empty_folder(folder: Path) -> None:
    code, said = run_pytest(folder, "--ackwise-store=mine:kept", "-rs")
    assert (code, passed(said) > 50) == (0, True), said
    assert "the records end with the store" not in said, "it was not asked whether they do"


def test_a_store_that_compares_no_tokens_fails_the_suite(folder: Path) -> None:
    code, said = run_pytest(folder, "--ackwise-store=mine:unfenced")
    assert code == 1
    assert "FAILED ::TestStore::test_a_stale_owner_completes_nothing" in said
    assert "assert <Ack.OK: 'ok'> is <Ack.LOST: 'lost'>" in said, "both sides of what fails are shown"
    assert passed(said) > 30


def test_the_option_says_what_a_store_can_do_where_the_store_does_not(folder: Path) -> None:
    code, said = run_pytest(folder, "--ackwise-store=mine:kept", "--ackwise-store-features=persistent=no", "-rs", "-k", "restarted")
    assert (code, "2 skipped" in said) == (0, True), said  # in both shapes


def test_a_store_that_says_nothing_is_tested_in_real_time(folder: Path) -> None:
    code, said = run_pytest(folder, "--ackwise-store=mine:in_real_time", "-k", "taken_over_with_the_next_epoch")
    assert (code, passed(said)) == (0, 2), said  # in both shapes


def test_paths_that_are_given_are_collected_too(folder: Path) -> None:
    (folder / "test_mine.py").write_text("def test_mine(): pass\n")
    both, alone = (
        run_pytest(folder, "--ackwise-store=mine:kept", "-k", "fresh_claim or mine", *path)[1] for path in (["test_mine.py"], [])
    )
    assert passed(both) == passed(alone) + 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ackwise-store=mine"], "--ackwise-store is 'mine'; write MODULE:FACTORY"),
        (["--ackwise-store=absent:kept"], "there is no module 'absent' in "),
        (["--ackwise-store=mine:keept"], "module 'mine' has no function 'keept'"),
        (["--ackwise-store=mine:kept", "--ackwise-store-features=leese=1"], "there is no feature 'leese'; did you mean lease"),
        (["--ackwise-store=mine:kept", "--ackwise-store-features=lease=-1"], "lease is '-1'; give seconds, such as lease=0.5"),
        (["--ackwise-store=mine:kept", "--ackwise-store-features=shared=1"], "shared is '1'; it can be yes or no"),
    ],
)
def test_a_mistake_is_one_sentence(folder: Path, arguments: list[str], sentence: str) -> None:
    code, said = run_pytest(folder, *arguments)
    assert (code, said.strip().count("\n")) == (4, 0)
    assert sentence in said


def test_without_the_option_nothing_is_imported_or_collected(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(NAMES)
    code, said = run_pytest(tmp_path)
    assert code == 5, "no test was found"
    (loaded,) = (line.split()[1:] for line in said.splitlines() if line.startswith("LOADED"))
    assert loaded == ["ackwise", "ackwise.stores", "ackwise.stores.pytestplugin"]


def test_without_hypothesis_pytest_works_and_the_suite_says_what_it_needs(folder: Path) -> None:
    (folder / "hypothesis.py").write_text("raise ModuleNotFoundError(name='hypothesis')\n")
    (folder / "test_mine.py").write_text("def test_mine(): pass\n")
    code, said = run_pytest(folder, "-p", "no:hypothesispytest")
    assert (code, passed(said)) == (0, 1), said
    code, said = run_pytest(folder, "-p", "no:hypothesispytest", "--ackwise-store=mine:kept")
    assert (code, "the suite of Ackwise's stores needs hypothesis; install it" in said) == (4, True), said
