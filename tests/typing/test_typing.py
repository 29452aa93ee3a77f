"""mypy and pyright accept what users write, and refuse, each on the same lines, what can't work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

pytestmark = pytest.mark.slow


def mypy(path: Path) -> set[int]:
    said, failure, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary", str(path)])
    assert failure == ""
    return {int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line}


def pyright(path: Path) -> set[int]:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(path)]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout)
    assert said["summary"]["filesAnalyzed"] == 1
    return {found["range"]["start"]["line"] + 1 for found in said["generalDiagnostics"] if found["severity"] == "error"}


CHECKERS = pytest.mark.parametrize("errors_of", [mypy, pyright])


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@CHECKERS
@pytest.mark.parametrize("name", ["accepted.py", "refused.py"])
def test_what_users_write_is_accepted_and_the_rest_is_refused_for_the_reason_given(
    errors_of: Callable[[Path], set[int]], name: str
) -> None:
    assert errors_of(HERE / name) == set()


@CHECKERS
def test_each_line_that_must_be_refused_is_refused(errors_of: Callable[[Path], set[int]], tmp_path: Path) -> None:
    lines = (HERE / "refused.py").read_text().splitlines()
    bare = tmp_path / "bare.py"
    bare.write_text("\n".join(re.sub(r"  # type: ignore.*", "", line) for line in lines))
    assert errors_of(bare) == {number for number, line in enumerate(lines, 1) if "# type: ignore" in line}
