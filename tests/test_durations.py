"""How long tests take is kept, printed for CI, and limited where that is asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.durations import Durations, known_durations


def report(test: str, when: str, seconds: float, *keywords: str) -> Any:
    return SimpleNamespace(nodeid=test, when=when, duration=seconds, keywords=dict.fromkeys(keywords, 1))


class Terminal:
    """Remembers what is printed."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, title: str) -> None:
        self.lines.append(title)

    def line(self, line: str) -> None:
        self.lines.append(line)


def test_durations_are_kept_beside_those_of_earlier_runs_and_only_a_limit_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    config: Any = SimpleNamespace(rootpath=tmp_path)
    for limit, tests, exit_code, printed in (
        (None, {"a": 11.0}, 0, []),
        (10.0, {"b": 11.0}, 1, ["longer than 10 seconds, and not marked slow", "    11.5 s  b"]),
        (10.0, {"c": 9.0}, 0, []),
    ):
        session: Any = SimpleNamespace(config=config, exitstatus=pytest.ExitCode.OK)
        terminal: Any = Terminal()
        durations = Durations(limit)
        for test, seconds in tests.items():
            for when, taken in (("setup", 0.25), ("call", seconds), ("teardown", 0.25)):
                durations.pytest_runtest_logreport(report(test, when, taken))
                durations.pytest_runtest_logreport(report("slow one", when, taken * 2, "slow"))
        durations.pytest_sessionfinish(session)
        durations.pytest_terminal_summary(terminal)
        assert (session.exitstatus, terminal.lines) == (exit_code, printed)
    assert known_durations(config) == {"a": 11.5, "b": 11.5, "c": 9.5, "slow one": 19.0}


def test_the_longest_tests_are_printed_for_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    durations, terminal = Durations(None), Terminal()
    for number in range(40):
        durations.pytest_runtest_logreport(report(f"test {number}", "setup", float(number)))
    printed: Any = terminal
    durations.pytest_terminal_summary(printed)
    assert terminal.lines == ["the 30 longest tests", *(f"{number:8.1f} s  test {number}" for number in range(39, 9, -1))]
