"""`ackwise demo --store URL` on every real server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.databases.server import Endpoint
from tests.shared import SharedServer

from ackwise.plugin.demo.scenario import make_scenario

pytestmark = [pytest.mark.nightly, pytest.mark.embedded, pytest.mark.servers, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

MESSAGES, SEED = 2000, 7

URLS: Final[dict[str, Callable[[Endpoint], str]]] = {
    "redis": lambda server: f"redis://127.0.0.1:{server.port}/7?namespace=demo",
    "postgres": lambda server: f"postgresql://postgres@127.0.0.1:{server.port}/postgres?prefix=demo_",
    "mariadb": lambda server: f"mysql://root@127.0.0.1:{server.port}/test?prefix=demo_",
}


def play(store: str, out: Path) -> dict[str, Any]:
    """One run, whose books balance."""
    arguments = ["demo", "--json", "--messages", str(MESSAGES), "--seed", str(SEED), "--store", store, "--out", str(out)]
    command = [sys.executable, "-m", "ackwise.plugin.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    facts: dict[str, Any] = json.loads(done.stdout)
    scenario = make_scenario(MESSAGES, SEED)
    assert (facts["sent"], facts["lost"], facts["kills"], facts["exit"]) == (MESSAGES, 0, 1, 0)
    assert facts["billed"] == len(scenario.prices)
    assert facts["ledger"]["expected"] == facts["ledger"]["actual"] == sum(scenario.prices.values())
    return facts


@pytest.mark.parametrize("server", URLS)
def test_the_books_balance(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    play(URLS[server](request.getfixturevalue(server)), tmp_path / "out")


def test_a_second_run_in_the_same_database_knows_nothing_of_the_first(redis: SharedServer, tmp_path: Path) -> None:
    first, second = (play(URLS["redis"](redis), tmp_path / number) for number in ("1", "2"))
    assert first["billed"] == second["billed"]
