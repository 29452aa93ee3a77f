"""A plugin of pytest for the run of one twin: writes which tests failed, and refuses a run that would import another copy."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

_outcomes: dict[str, list[float | str]] = defaultdict(lambda: [0.0, "passed"])


def pytest_configure() -> None:
    import ackwise.middleware

    expected = Path(os.environ["SABOTAGE_COPY"])
    if not Path(ackwise.middleware.__file__ or "").is_relative_to(expected):
        raise pytest.UsageError(f"ackwise was imported from {ackwise.middleware.__file__}, not from the twin in {expected}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    entry = _outcomes[report.nodeid]
    entry[0] = round(float(entry[0]) + report.duration, 2)
    if report.outcome != "passed" and entry[1] == "passed":
        # A server that did not start, or a fixture that broke, notices no twin.
        entry[1] = report.outcome if report.when == "call" else "error"


def pytest_sessionfinish() -> None:
    Path(os.environ["SABOTAGE_OUTCOMES"]).write_text(json.dumps(_outcomes), "utf-8")
