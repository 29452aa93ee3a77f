"""How long each test takes: kept from run to run, printed for CI, and limited where the command line says so."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

_PRINTED = 30


def known_durations(config: pytest.Config) -> dict[str, float]:
    """The seconds that each test took when it last ran here, with what it started and ended for itself."""
    with suppress(FileNotFoundError, ValueError):
        found: dict[str, float] = json.loads(_file(config).read_text("utf-8"))
        return found
    return {}


def _file(config: pytest.Config) -> Path:
    return config.rootpath / ".cache" / "durations.json"


class Durations:
    """A plugin of the process that hears of all tests; `limit`: seconds a test may take that is not marked `slow` and needs no Spark."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._seconds: dict[str, float] = {}
        self._slow: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = 0.0 if report.when == "setup" else self._seconds.get(report.nodeid, 0.0)
        self._seconds[report.nodeid] = before + report.duration
        if {"slow", "spark"} & set(report.keywords):
            self._slow.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self._seconds:
            return
        file = _file(session.config)
        file.parent.mkdir(exist_ok=True)
        known = known_durations(session.config) | {test: round(seconds, 3) for test, seconds in self._seconds.items()}
        written = file.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n", "utf-8")
        written.replace(file)
        if self._too_long() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if os.environ.get("CI") == "true" and self._seconds:
            self._print(terminalreporter, f"the {_PRINTED} longest tests", self._longest(self._seconds)[:_PRINTED])
        if too_long := self._too_long():
            self._print(terminalreporter, f"longer than {self._limit:g} seconds, and not marked slow", too_long)

    def _too_long(self) -> list[str]:
        if self._limit is None:
            return []
        return self._longest({test for test, seconds in self._seconds.items() if seconds > self._limit} - self._slow)

    def _longest(self, tests: set[str] | dict[str, float]) -> list[str]:
        return sorted(tests, key=lambda test: (-self._seconds[test], test))

    def _print(self, terminal: pytest.TerminalReporter, title: str, tests: list[str]) -> None:
        terminal.section(title)
        for test in tests:
            terminal.line(f"{self._seconds[test]:8.1f} s  {test}")
