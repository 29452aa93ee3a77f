"""Runs the tests, and those that failed three times more alone, since a test may fail only because others took the cores.

A test that passes each time is named as unstable, and the run passes; that is a fault of the test, to be fixed. One that fails
again, more than three that failed, and a run that broke off are failures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST, TIMES = 3, 3

PYTEST = [sys.executable, "-m", "pytest"]
TESTS_FAILED = 1  # of pytest's exit codes the only one after which it is known which tests


def main(arguments: list[str]) -> int:
    """The exit code: pytest's, or 0 if what failed is unstable."""
    code = subprocess.run([*PYTEST, "--cache-clear", *arguments], check=False).returncode
    failed = failures() if code == TESTS_FAILED else []
    if not 0 < len(failed) <= MOST:
        return code
    for number in range(1, TIMES + 1):
        print(f"\n== {len(failed)} failed; alone, {number} of {TIMES} ==", flush=True)
        if subprocess.run([*PYTEST, "-n", "0", "-p", "no:cacheprovider", *failed], check=False).returncode:
            return code
    print(f"\nUNSTABLE: failed beside others, passed {TIMES} times alone:", *failed, sep="\n  ", flush=True)
    return 0


def failures() -> list[str]:
    """The tests that failed in the run before."""
    file = Path(".pytest_cache/v/cache/lastfailed")
    return sorted(json.loads(file.read_text("utf-8"))) if file.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
