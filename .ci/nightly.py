"""Runs the nightly tests and keeps their result in a file that is committed; `make test` prints how old it is.

python .ci/nightly.py           # run them and write tests/nightly.json
python .ci/nightly.py --age     # print when they last ran, on which commit, and with which result
"""

import json
import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
RESULT = CHECKOUT / "tests" / "nightly.json"

#: Seconds above which a test that is not marked `slow` fails the run.
LONGEST = 10

#: The suites of the stores and of change data capture that a MariaDB serves; they run once more on a MySQL.
ON_MYSQL = ["-m", "servers", "-k", "mysql or mariadb or MySQL or MariaDB or binlog", "tests/stores", "tests/plugin/outbox"]


def run() -> int:
    """Run what is marked `nightly`, and the suites of MariaDB on MySQL; write the result and return pytest's exit code."""
    started = time.monotonic()
    code, last = run_pytest(["-m", "nightly", f"--max-seconds={LONGEST}", *sys.argv[1:]])
    on_mysql, last_on_mysql = run_pytest(ON_MYSQL, {"TESTS_ON_MYSQL": "1"})
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": git("rev-parse", "--short=12", "HEAD") + ("" if not git("status", "--porcelain") else " and changes"),
        "result": last,
        "result_on_mysql": last_on_mysql,
        "seconds": round(time.monotonic() - started),
        "passed": code == 0 and on_mysql == 0,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return code or on_mysql


def run_pytest(arguments: list[str], environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run pytest, two files at a time; return its exit code and its closing line."""
    command = [sys.executable, "-m", "pytest", "-n", "2", *arguments]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}) as pytest:
        assert pytest.stdout is not None
        last = ""
        for line in pytest.stdout:
            print(line, end="", flush=True)
            last = line if re.search(r" in [\d.]+s", line) else last
    return pytest.returncode, last.strip(" =\n")


def age() -> None:
    """Print one line about the last nightly run."""
    if not RESULT.exists():
        print("nightly tests: no result is kept; run make nightly")
        return
    result = json.loads(RESULT.read_text("utf-8"))
    behind = git("rev-list", "--count", f"{result['commit'].split()[0]}..HEAD") or "an unknown number of"
    verdict = "passed" if result["passed"] else "FAILED"
    print(f"nightly tests {verdict} on {result['date']}, {behind} commits ago ({result['commit']}): {result['result']}")


def git(*arguments: str) -> str:
    """Return what git prints, or nothing outside of a repository."""
    return subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(age() if "--age" in sys.argv else run())
