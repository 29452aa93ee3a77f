"""The demo on a Kafka of its own: two workers, of which one is killed, and nothing that outlives an interrupt."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.shared import SharedKafka

from ackwise.plugin.demo.ledger import LedgerReader

pytestmark = [pytest.mark.nightly, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

MESSAGES = 1500

COMMAND = [sys.executable, "-m", "ackwise.plugin.cli", "demo", "--kafka", "--json", "--messages", str(MESSAGES)]


@pytest.mark.usefixtures("kafka")  # where none can start, it is skipped
def test_one_of_two_workers_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run([*COMMAND, "--out", str(out)], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    facts = json.loads(done.stdout)
    assert (facts["workers"], facts["kills"], facts["sent"], facts["lost"]) == (2, 1, MESSAGES, 0)
    assert facts["ledger"]["expected"] == facts["ledger"]["actual"]
    assert sum(facts["report"]["verdicts"].values()) == MESSAGES
    workers = {entry.worker for entry in LedgerReader(out / "ledger.jsonl").refresh()}
    assert len(workers) >= 2  # the killed one and one more; the one that came again may find nothing left
    assert {path.name for path in out.glob("worker-*.log")} == {"worker-1.log", "worker-2.log", "worker-3.log"}
    assert not answers(out)


def test_an_interrupt_ends_the_workers_and_the_broker(tmp_path: Path, kafka: SharedKafka) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen([*COMMAND, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (out / "ledger.jsonl").exists() and process.poll() is None:  # a worker has begun
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
