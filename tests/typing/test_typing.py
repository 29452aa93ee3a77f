"""pyright accepts what users write, and refuses on the same lines as mypy what can't work.

mypy checks both files with all others (`make types`), where a comment on a line that it accepts is an error.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.nightly
@pytest.mark.slow  # runs a whole type checker
def test_what_users_write_is_accepted_and_each_line_that_must_be_refused_is_refused(tmp_path: Path) -> None:
    lines = (HERE / "refused.py").read_text().splitlines()
    bare = tmp_path / "bare.py"  # as refused.py, and nothing is ignored
    bare.write_text("\n".join(re.sub(r"  # type: ignore.*", "", line) for line in lines))
    files = [HERE / "accepted.py", HERE / "refused.py", bare]
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", *map(str, files)]
    said = json.loads(subprocess.run(command, cwd=HERE.parent.parent, capture_output=True, text=True, timeout=240, check=False).stdout)
    assert said["summary"]["filesAnalyzed"] == len(files)
    errors = [found for found in said["generalDiagnostics"] if found["severity"] == "error"]
    refused = {("bare.py", number) for number, line in enumerate(lines, 1) if "# type: ignore" in line}
    assert {(Path(found["file"]).name, found["range"]["start"]["line"] + 1) for found in errors} == refused
