from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ackwise.plugin.demo.ledger import LedgerReader
from ackwise.plugin.demo.scenario import PlannedFate, make_scenario

pytestmark = [pytest.mark.embedded, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

MESSAGES, SEED = 1500, 5


def ackwise(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ackwise.plugin.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("demo") / "out"
    done = ackwise("demo", "--json", "--messages", str(MESSAGES), "--seed", str(SEED), "--out", str(out))
    assert done.returncode == 0, done.stderr + done.stdout
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts, out


def test_a_killed_worker_loses_nothing_and_the_books_balance(played: tuple[dict[str, Any], Path]) -> None:
    facts, out = played
    scenario = make_scenario(MESSAGES, SEED)
    assert (facts["sent"], facts["lost"], facts["kills"], facts["exit"]) == (MESSAGES, 0, 1, 0)
    assert facts["billed"] == len(scenario.prices)
    assert facts["ledger"]["expected"] == facts["ledger"]["actual"] == sum(scenario.prices.values())
    fates = list(scenario.fates.values())
    assert facts["dead"] == {fate.value: fates.count(fate) for fate in PlannedFate if fate is not PlannedFate.BILLED}
    assert len({entry.worker for entry in LedgerReader(out / "ledger.jsonl").refresh()}) == 2, "the kill hit a working worker"


def test_the_reconciliation_comes_to_the_same_numbers_without_knowing_the_ledger(played: tuple[dict[str, Any], Path]) -> None:
    facts, _ = played
    verdicts = facts["report"]["verdicts"]
    assert sum(verdicts.values()) == facts["sent"]
    assert verdicts["DEAD_LETTERED"] == sum(facts["dead"].values())
    assert verdicts["DUPLICATE_SUPPRESSED"] + verdicts.get("SUPPRESSED_BY_DEAD", 0) == facts["suppressed"]
    twice, maybe = verdicts.get("MULTI_EXECUTED", 0), verdicts.get("MAYBE_TWICE", 0)
    assert verdicts["EXACTLY_ONCE"] + maybe + twice == facts["billed"]
    assert twice <= facts["repeated_by_kill"] <= twice + maybe
