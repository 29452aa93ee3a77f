"""`pytest --ackwise-store=module:factory` runs the suite on a store of somebody else, and does nothing unless asked."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ackwise.stores.conformance.suite import choose

pytestmark = pytest.mark.slow  # each starts pytest in its own process

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_store.py"

STORES = """
from custom_store import JsonFileStore

from ackwise.stores.memory import MemoryStore
from ackwise.stores.conformance import Features


def kept(place, clock):
    return JsonFileStore(place / "claims.json", clock=clock)

kept.features = Features(persistent=True)


def in_real_time(place, clock):
    return JsonFileStore(place / "claims.json")


class Unfenced:
    def __init__(self, clock):
        self.inner = MemoryStore(clock=clock)

    async def open(self): ...

    async def close(self): ...

    async def exchange(self, exchange):
        for key, token, *_ in exchange.completes:
            if (record := self.inner._find((key.id, key.day))) is not None:
                self.inner._write((key.id, key.day), record._replace(token=token))
        return await self.inner.exchange(exchange)


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
    assert (code, passed(said) > 45) == (0, True), said
    assert "the records end with the store" not in said, "it was not asked whether they do"


def test_a_store_that_compares_no_tokens_fails_the_suite(folder: Path) -> None:
    code, said = run_pytest(folder, "--ackwise-store=mine:unfenced")
    assert code == 1
    assert "FAILED ::TestStore::test_a_stale_owner_completes_releases_and_renews_nothing" in said
    assert "assert <Ack.OK: 'ok'> is <Ack.LOST: 'lost'>" in said, "both sides of what fails are shown"
    assert passed(said) > 30


def test_the_option_says_what_a_store_can_do_and_time_is_real_where_nobody_says(folder: Path) -> None:
    code, said = run_pytest(folder, "--ackwise-store=mine:kept", "--ackwise-store-features=persistent=no", "-rs", "-k", "restarted")
    assert (code, "1 skipped" in said) == (0, True), said
    code, said = run_pytest(folder, "--ackwise-store=mine:in_real_time", "-k", "taken_over_with_the_next_epoch")
    assert (code, passed(said)) == (0, 1), said


def test_paths_that_are_given_are_collected_too(folder: Path) -> None:
    (folder / "test_mine.py").write_text("def test_mine(): pass\n")
    both, alone = (
        run_pytest(folder, "--ackwise-store=mine:kept", "-k", "fresh_claim or mine", *path)[1] for path in (["test_mine.py"], [])
    )
    assert passed(both) == passed(alone) + 1


def test_a_mistake_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_of_mistakes.py").write_text("def kept(place, clock): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    for target, features, sentence in (
        ("mine_of_mistakes", "", "--ackwise-store is 'mine_of_mistakes'; write MODULE:FACTORY"),
        ("absent:kept", "", "there is no module 'absent' in "),
        ("mine_of_mistakes:keept", "", "module 'mine_of_mistakes' has no function 'keept'"),
        ("mine_of_mistakes:kept", "leese=1", "there is no feature 'leese'; did you mean lease"),
        ("mine_of_mistakes:kept", "lease=-1", "lease is '-1'; give seconds, such as lease=0.5"),
        ("mine_of_mistakes:kept", "shared=1", "shared is '1'; it can be yes or no"),
    ):
        with pytest.raises(pytest.UsageError) as caught:
            choose(target, features)
        assert sentence in str(caught.value)
    code, said = run_pytest(tmp_path, "--ackwise-store=mine_of_mistakes")
    assert (code, said.strip().count("\n")) == (4, 0)


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
