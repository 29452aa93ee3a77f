from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

pytestmark = pytest.mark.slow


def errors_of(path: Path) -> list[str]:
    said, failure, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary", str(path)])
    assert failure == ""
    return [line for line in said.splitlines() if ": error:" in line]


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", ["accepted.py", "refused.py"])
def test_what_users_write_is_accepted_and_the_rest_is_refused_for_the_reason_given(name: str) -> None:
    assert errors_of(HERE / name) == []


def test_each_line_that_must_be_refused_is_refused(tmp_path: Path) -> None:
    lines = (HERE / "refused.py").read_text().splitlines()
    bare = tmp_path / "bare.py"
    bare.write_text("\n".join(re.sub(r"  # type: ignore.*", "", line) for line in lines))
    refused = {int(error.split(":")[1]) for error in errors_of(bare)}
    assert refused == {number for number, line in enumerate(lines, 1) if "# type: ignore" in line}
