"""The demo with agents of Faust: the same orders, the same kill, the same judgement, and beside it what stock Faust does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ackwise.plugin.demo.ledger import LedgerReader
from ackwise.plugin.demo.scenario import PlannedFate, make_scenario

pytestmark = [pytest.mark.nightly, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

MESSAGES, SEED = 1500, 5


def play(out: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "ackwise.plugin.cli", "demo", "--host", "faust", "--json", "--messages", str(MESSAGES)]
    done = subprocess.run(
        [*command, "--seed", str(SEED), "--out", str(out), *options], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    facts: dict[str, Any] = json.loads(done.stdout)
    scenario = make_scenario(MESSAGES, SEED)
    fates = list(scenario.fates.values())
    assert (facts["host"], facts["sent"], facts["lost"], facts["kills"]) == ("faust", MESSAGES, 0, 1)
    assert facts["billed"] == len(scenario.prices)
    assert facts["ledger"]["expected"] == facts["ledger"]["actual"] == sum(scenario.prices.values())
    assert facts["dead"] == {fate.value: fates.count(fate) for fate in PlannedFate if fate is not PlannedFate.BILLED}
    assert sum(facts["report"]["verdicts"].values()) == MESSAGES
    return facts


@pytest.mark.embedded
def test_a_killed_worker_of_faust_loses_nothing_and_one_without_ackwise_loses_orders(tmp_path: Path) -> None:
    facts = play(tmp_path / "out")
    assert 0 < facts["stock"]["lost"] <= facts["stock"]["passed"]
    workers = {entry.worker for entry in LedgerReader(tmp_path / "out" / "ledger.jsonl").refresh()}
    assert len(workers) == 2  # the kill hit a working worker


@pytest.mark.kafka
@pytest.mark.usefixtures("kafka")  # where none can start, it is skipped
def test_one_of_two_workers_of_faust_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    assert play(tmp_path / "out", "--kafka")["workers"] == 2
