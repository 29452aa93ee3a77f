"""Every Python block of README and docs is accepted by mypy and pyright."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mypy import api
from tests.docs.pages import CHECKOUT, pages, snippets

pytestmark = pytest.mark.slow  # runs a whole type checker

#: A stock Faust app gets its `use` when Ackwise is loaded; docs/how-to/faust.md names the way that type checkers know.
STOCK_FAUST = '"use" for class "App"'


def write_blocks(folder: Path) -> list[list[Path]]:
    """The blocks of each page as one module, or as the files that it names; those of a list have names that differ."""
    written: list[list[Path]] = []
    for page in pages():
        code: dict[str, str] = {}
        for snippet in snippets(page):
            if snippet.language == "python" and snippet.reason is None:
                name = snippet.file or page.replace("/", "_").replace("-", "_").replace(".md", ".py")
                before = code.get(name, "")
                code[name] = before + "\n" * (snippet.line - 1 - before.count("\n")) + snippet.code  # an error names the line of the page
        run = next((run for run in written if not {path.name for path in run} & code.keys()), None)
        if code and run is None:
            written.append(run := [])
        for name, text in code.items():
            path = folder / str(written.index(run)) / name  # type: ignore[arg-type]  # there is one by now
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            run.append(path)  # type: ignore[union-attr]
    return written


def mypy(paths: list[Path]) -> list[str]:
    cache = CHECKOUT / ".cache" / "mypy"  # its own: these options would make that of `make mypy` void
    config = paths[0].parent / "mypy.ini"
    config.write_text("[mypy]\ncheck_untyped_defs = True\nfollow_imports = silent\nignore_missing_imports = True\n")
    said, failure, _ = api.run(["--config-file", str(config), "--cache-dir", str(cache), "--no-error-summary", *map(str, paths)])
    assert failure == ""
    return [line.replace('"App" has no attribute "use"', STOCK_FAUST) for line in said.splitlines() if ": error:" in line]


def pyright(paths: list[Path]) -> list[str]:
    config = paths[0].parent / "pyrightconfig.json"
    config.write_text(json.dumps({"extraPaths": [str(CHECKOUT / ".dev")], "typeCheckingMode": "standard", "include": ["."]}))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "-p", str(config)]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=280, check=False).stdout)
    assert said["summary"]["filesAnalyzed"] == len(paths)
    return [f"{each['file']}: {each['message']}" for each in said["generalDiagnostics"] if each["severity"] == "error"]


@pytest.mark.parametrize("errors_of", [mypy, pytest.param(pyright, marks=pytest.mark.nightly)])
def test_the_blocks_of_all_pages_are_typed(
    errors_of: Callable[[list[Path]], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYPYPATH", str(CHECKOUT / ".dev"))
    runs = write_blocks(tmp_path)
    assert sum(map(len, runs)) > 35
    assert [error for run in runs for error in errors_of(run) if STOCK_FAUST not in error] == []
