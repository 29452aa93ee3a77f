"""`.ci/unstable.py`: what a test that failed once may still be, and what it may not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "unstable.py"

#: Fails in its first runs, as many as the number says; each run leaves a line.
FAILING = """
from pathlib import Path
def test_{name}():
    with Path("{name}.runs").open("a+") as runs:
        runs.write("run\\n")
        runs.seek(0)
        assert len(runs.readlines()) > {times}
"""


@pytest.mark.slow  # starts pytest four times for each case
@pytest.mark.parametrize(
    ("times", "passes"),
    [([0], True), ([1], True), ([1, 1, 1], True), ([2], False), ([9], False), ([1, 9], False), ([1, 1, 1, 1], False)],
    ids=["none", "once", "three once", "again", "always", "one of two always", "more than three"],
)
def test_what_failed_passes_only_if_it_passes_each_time_alone(tmp_path: Path, times: list[int], passes: bool) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for number, each in enumerate(times):
        (tmp_path / f"test_{number}.py").write_text(FAILING.format(name=f"n{number}", times=each))
    ended = subprocess.run([sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode == 0) == passes, ended.stdout
    assert ("UNSTABLE" in ended.stdout) == (passes and any(times))


@pytest.mark.slow  # starts pytest
def test_a_run_that_broke_off_is_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_broken.py").write_text("def test_fails():\n    assert False\n")
    (tmp_path / "test_unreadable.py").write_text("raise ImportError\n")
    ended = subprocess.run([sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stdout
    assert "alone" not in ended.stdout
