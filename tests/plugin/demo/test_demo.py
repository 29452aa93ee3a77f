"""`ackwise demo`: a killed worker loses nothing and the accounts balance; at night on each host, broker and store."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from tests.databases.server import Endpoint

from ackwise.plugin.demo.demoprocesses import HOSTS
from ackwise.plugin.demo.ledger import LedgerReader
from ackwise.plugin.demo.scenario import PlannedFate, make_scenario
from ackwise.spark.commands.samerows import differing

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]  # plays whole demos, and reconciles them on Spark

MESSAGES, SEED = 1500, 5

COMMAND = [sys.executable, "-m", "ackwise.plugin.cli", "demo", "--json", "--messages", str(MESSAGES), "--seed", str(SEED)]

URLS: Final[dict[str, Callable[[Endpoint], str]]] = {
    "redis": lambda server: f"redis://127.0.0.1:{server.port}/7?namespace=demo",
    "postgres": lambda server: f"postgresql://postgres@127.0.0.1:{server.port}/postgres?prefix=demo_",
    "mariadb": lambda server: f"mysql://root@127.0.0.1:{server.port}/test?prefix=demo_",
}


def play(out: Path, *options: str) -> dict[str, Any]:
    """The facts of one run, whose accounts balance, and whose kill hit a working worker."""
    done = subprocess.run([*COMMAND, "--out", str(out), *options], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    facts: dict[str, Any] = json.loads(done.stdout)
    scenario = make_scenario(MESSAGES, SEED)
    fates = list(scenario.fates.values())
    assert (facts["sent"], facts["lost"], facts["kills"], facts["exit"]) == (MESSAGES, 0, 1, 0)
    assert facts["billed"] == len(scenario.prices)
    assert facts["ledger"]["expected"] == facts["ledger"]["actual"] == sum(scenario.prices.values())
    assert facts["dead"] == {fate.value: fates.count(fate) for fate in PlannedFate if fate is not PlannedFate.BILLED}
    assert sum(facts["report"]["verdicts"].values()) == MESSAGES
    workers = len({entry.worker for entry in LedgerReader(out / "ledger.jsonl").refresh()})
    assert workers >= 2 if "--kafka" in options else workers == 2  # of two, the one that comes again may find nothing left
    return facts


@pytest.mark.embedded
def test_a_killed_worker_loses_nothing_and_the_reconciliation_comes_to_the_same_numbers(tmp_path: Path) -> None:
    facts = play(tmp_path / "out")
    verdicts = facts["report"]["verdicts"]
    assert verdicts["DEAD_LETTERED"] == sum(facts["dead"].values())
    assert verdicts["DUPLICATE_SUPPRESSED"] + verdicts.get("SUPPRESSED_BY_DEAD", 0) == facts["suppressed"]
    twice, maybe = verdicts.get("MULTI_EXECUTED", 0), verdicts.get("MAYBE_TWICE", 0)
    assert verdicts["EXACTLY_ONCE"] + maybe + twice == facts["billed"]
    assert twice <= facts["repeated_by_kill"] <= twice + maybe
    assert facts["report"]["flags"].get("AMBIGUOUS_EXEC", 0) <= HOSTS["aiokafka"].in_flight
    on_spark = facts["report"]["spark"]
    assert (on_spark["rows"] >= MESSAGES, on_spark["differ"]) == (True, {}), "no row of a table differs between the engines"
    local, spark = tmp_path / "out" / "reconcile", tmp_path / "out" / "reconcile-spark"
    assert differing(local, spark) == (on_spark["rows"], {})
    file = next((spark / "verdicts").glob("*.parquet"))
    pq.write_table(pq.read_table(file).slice(1), file)
    assert differing(local, spark)[1] == {"verdicts": 1}


@pytest.mark.nightly
@pytest.mark.embedded
def test_a_killed_worker_of_faust_loses_nothing_and_one_without_ackwise_loses_orders(tmp_path: Path) -> None:
    facts = play(tmp_path / "out", "--host", "faust")
    assert facts["host"] == "faust"
    assert 0 < facts["stock"]["lost"] <= facts["stock"]["passed"]


@pytest.mark.nightly
@pytest.mark.kafka
@pytest.mark.usefixtures("kafka")  # where none can start, it is skipped
@pytest.mark.parametrize("host", ["aiokafka", "faust"])
def test_one_of_two_workers_is_killed_and_nothing_is_lost(tmp_path: Path, host: str) -> None:
    out = tmp_path / "out"
    assert play(out, "--kafka", "--host", host)["workers"] == 2
    if host == "aiokafka":
        assert {path.name for path in out.glob("worker-*.log")} == {"worker-1.log", "worker-2.log", "worker-3.log"}
    assert not answers(out)


@pytest.mark.nightly
@pytest.mark.embedded
@pytest.mark.servers
@pytest.mark.parametrize("server", URLS)
def test_the_accounts_balance_twice_with_claims_in_one_server(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = URLS[server](request.getfixturevalue(server))
    first, second = (play(tmp_path / number, "--store", url) for number in ("1", "2"))
    assert first["billed"] == second["billed"], "a second run knows nothing of the first"


@pytest.mark.nightly
@pytest.mark.kafka
@pytest.mark.usefixtures("kafka")
def test_an_interrupt_ends_the_workers_and_the_broker(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen([*COMMAND, "--kafka", "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (out / "ledger.jsonl").exists() and process.poll() is None:  # a worker has started
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert answers(out)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert (process.returncode, stdout) == (130, "")
    assert "Traceback" not in stderr
    assert not answers(out)


def answers(out: Path) -> bool:
    """Whether the demo's broker takes connections."""
    settings = dict(line.split("=", 1) for line in (out / "kafka" / "server.properties").read_text().splitlines())
    port = int(settings["listeners"].split(",")[0].rpartition(":")[2])
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
