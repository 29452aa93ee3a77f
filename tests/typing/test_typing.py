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

pytestmark = pytest.mark.slow  # runs a whole type checker


#: A file and a line.
Place = tuple[str, int]


def mypy(*paths: Path) -> set[Place]:
    said, failure, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary", *map(str, paths)])
    assert failure == ""
    errors = [line.split(":") for line in said.splitlines() if ": error:" in line]
    return {(Path(file).name, int(line)) for file, line, *_ in errors}


def pyright(*paths: Path) -> set[Place]:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", *map(str, paths)]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=240, check=False).stdout)
    assert said["summary"]["filesAnalyzed"] == len(paths)
    errors = [found for found in said["generalDiagnostics"] if found["severity"] == "error"]
    return {(Path(found["file"]).name, found["range"]["start"]["line"] + 1) for found in errors}


@pytest.mark.parametrize("errors_of", [mypy, pytest.param(pyright, marks=pytest.mark.nightly)])
def test_what_users_write_is_accepted_and_each_line_that_must_be_refused_is_refused_for_the_reason_given(
    errors_of: Callable[..., set[Place]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    lines = (HERE / "refused.py").read_text().splitlines()
    bare = tmp_path / "bare.py"  # as refused.py, and nothing is ignored
    bare.write_text("\n".join(re.sub(r"  # type: ignore.*", "", line) for line in lines))
    refused = {("bare.py", number) for number, line in enumerate(lines, 1) if "# type: ignore" in line}
    assert errors_of(HERE / "accepted.py", HERE / "refused.py", bare) == refused
