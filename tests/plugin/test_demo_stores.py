"""`ackwise demo --store URL` on every real server, twice in the same database."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.databases.server import Server

from ackwise.plugin.demo.scenario import make_scenario

pytestmark = [pytest.mark.embedded, pytest.mark.servers, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

MESSAGES, SEED = 2000, 7

URLS: Final[dict[str, Callable[[Server], str]]] = {
    "redis": lambda server: f"redis://127.0.0.1:{server.port}/7?namespace=demo",
    "postgres": lambda server: f"postgresql://postgres@127.0.0.1:{server.port}/postgres?prefix=demo_",
}


def play(store: str, out: Path) -> dict[str, Any]:
    arguments = ["demo", "--json", "--messages", str(MESSAGES), "--seed", str(SEED), "--store", store, "--out", str(out)]
    command = [sys.executable, "-m", "ackwise.plugin.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@pytest.mark.parametrize("server", URLS)
def test_the_books_balance_and_a_second_run_in_the_same_database_knows_nothing_of_the_first(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = URLS[server](request.getfixturevalue(server))
    scenario = make_scenario(MESSAGES, SEED)
    for number in (1, 2):
        facts = play(store, tmp_path / str(number))
        assert (facts["sent"], facts["lost"], facts["kills"], facts["exit"]) == (MESSAGES, 0, 1, 0)
        assert facts["billed"] == len(scenario.prices)
        assert facts["ledger"]["expected"] == facts["ledger"]["actual"] == sum(scenario.prices.values())
