"""`make sabotage`: applies each twin and demands that a test fails.

python -m tests.sabotage                 # each twin on the tests that the table names
python -m tests.sabotage NAME …          # these twins only
python -m tests.sabotage --learn NAME …  # find the tests that notice a twin, and write them into the table
python -m tests.sabotage --page          # write docs/guarantees/evidence.md from the table
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tests.sabotage.table import Catch, read_table, write_page, write_table
from tests.sabotage.twins import CHECKOUT, Twin, read_twins, write_copy

#: Seconds for a single test on a twin; a twin may make a test wait for what never comes.
TEST_TIMEOUT = 60
#: Seconds for all tests of one twin.
TWIN_TIMEOUT = 900
#: The table names so many tests for each twin, the shortest that noticed it.
KEPT = 3

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Trial:
    """What the tests said of one twin: the seconds of each test that failed, and why there is no verdict, if there is none."""

    twin: Twin
    failed: dict[str, float]
    seconds: float
    problem: str = ""


def main() -> int:
    arguments = _arguments()
    if arguments.page:
        write_page(read_twins(), read_table())
        return 0
    twins = [twin for twin in read_twins() if not arguments.names or twin.name in arguments.names]
    if unknown := set(arguments.names) - {twin.name for twin in twins}:
        console.print(f"no twin is called {', '.join(sorted(unknown))}; tests/sabotage/twins/ has them")
        return 2
    table = read_table()
    if not arguments.learn:
        twins = [twin for twin in twins if arguments.nightly or table.get(twin.name, Catch()).tier == "test"]
    started = time.monotonic()
    survivors = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        trials = [pool.submit(_learn if arguments.learn else _check, twin, table) for twin in twins]
        for done, future in enumerate(as_completed(trials), 1):
            trial = future.result()
            survivors += not trial.failed
            _report(trial, f"{done}/{len(twins)}")
            if arguments.learn:
                _enter(trial)
    console.print(f"{len(twins) - survivors} of {len(twins)} twins caught in {time.monotonic() - started:.0f} s")
    console.print(f"{len(twins) - survivors} passed, {survivors} failed")
    return 1 if survivors else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sabotage", description="Break the library one line at a time; a test must fail.")
    parser.add_argument("names", nargs="*", help="twins to try; default: all")
    parser.add_argument("--learn", action="store_true", help="search the tests that notice a twin and write them into the table")
    parser.add_argument("--nightly", action="store_true", help="also the twins that only a nightly test notices")
    parser.add_argument("--page", action="store_true", help="write docs/guarantees/evidence.md from the table, and run nothing")
    parser.add_argument("--jobs", type=int, default=2, help="twins at a time (default: 2)")
    return parser.parse_args()


def _check(twin: Twin, table: dict[str, Catch]) -> Trial:
    """Try a twin on the tests that the table names for it."""
    return _try(twin, table[twin.name].tests, until=1)


def _learn(twin: Twin, table: dict[str, Catch]) -> Trial:
    """Try a twin on the files that its list names, one after the other; then on the folders of these."""
    files = list(dict.fromkeys(twin.tests))
    folders = list(dict.fromkeys(str(Path(file).parent) for file in files))
    trial = Trial(twin, {}, 0.0)
    for tests in [[file] for file in files] + [[folder] for folder in folders if folder != "tests"]:
        seconds = trial.seconds
        trial = _try(twin, tests, until=KEPT + 2)
        trial = Trial(twin, trial.failed, seconds + trial.seconds, trial.problem)
        if trial.failed:
            break
    return trial


def _try(twin: Twin, tests: Sequence[str], until: int) -> Trial:
    """Run `tests` on a copy of the library with the twin's line, until so many have failed."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ackwise-twin-") as name:
        folder, outcomes = Path(name), Path(name) / "outcomes.json"
        write_copy(twin, folder)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "sabotage_outcomes"]
        limits = [f"--maxfail={until}", "-o", f"timeout={TEST_TIMEOUT}", f"--basetemp={folder / 'tmp'}"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(folder), str(Path(__file__).parent / "plugin"))),
            "SABOTAGE_COPY": str(folder),
            "SABOTAGE_OUTCOMES": str(outcomes),
        }
        try:
            run = subprocess.run(
                [*command, *limits, *tests],
                cwd=CHECKOUT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TWIN_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Trial(twin, {}, time.monotonic() - started, f"its tests did not end within {TWIN_TIMEOUT} s")
        found: dict[str, tuple[float, str]] = json.loads(outcomes.read_text("utf-8")) if outcomes.exists() else {}
    failed = {test: seconds for test, (seconds, outcome) in found.items() if outcome == "failed"}
    problem = "" if run.returncode in (0, 1) else f"pytest ended with code {run.returncode}: {(run.stdout + run.stderr)[-1500:]}"
    return Trial(twin, {} if problem else failed, time.monotonic() - started, problem)


def _report(trial: Trial, progress: str) -> None:
    verdict = "caught" if trial.failed else "SURVIVED"
    tests = next(iter(sorted(trial.failed, key=lambda test: trial.failed[test])), trial.problem or ", ".join(trial.twin.tests))
    console.print(f"{progress:>7}  {verdict:8}  {trial.seconds:5.1f} s  {trial.twin.name}  {tests}", markup=False)


def _enter(trial: Trial) -> None:
    """Write what was learned into the table; a survivor leaves it."""
    table = read_table()
    table.pop(trial.twin.name, None)
    if trial.failed:
        shortest = sorted(trial.failed, key=lambda test: trial.failed[test])[:KEPT]
        table[trial.twin.name] = Catch(tests=tuple(shortest))
    write_table(table)


if __name__ == "__main__":
    sys.exit(main())
