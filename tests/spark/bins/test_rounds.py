"""What an audit asks of Spark: a job for each round, and one look at the event files. Neither depends on how fast the machine is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.cases import CONFIG
from tests.spark.histories import History
from tests.spark.reconciling import root_of

from ackwise.spark.bins.program import Files, Program
from ackwise.spark.bins.session import binned, in_this_process
from ackwise.spark.events.sources import gathered
from ackwise.spark.job import reconcile

CLEAN = History("g").assign("w1", 0).say("w1", f"RECEIVED_RANGE[0,300) {' '.join(f'{offset}:CS' for offset in range(300))} W=300")
STUCK = History("g").assign("w1", 0).say("w1", "RECEIVED_RANGE[0,9) 0:CS 1:C 2:CFB 4:CS 4:CS 5:D W=3", ago=90_000).say("w2", "6:CS W=9")


@pytest.mark.parametrize(("history", "most"), [(CLEAN, 11), (STUCK, 14)], ids=["a clean run", "stuck messages of a dead worker"])
def test_an_audit_reads_the_events_once_and_takes_few_rounds(history: History, most: int, tmp_path: Path) -> None:
    rounds: list[Program] = []

    def run(program: Program) -> None:
        rounds.append(program)
        in_this_process(program)

    (out := tmp_path / "out").mkdir()
    with gathered([root_of(tmp_path / "root", history)], out / ".live") as evidence, binned(run, 2, out / ".live" / "bins") as session:
        reconcile(session, evidence, out=out, run_id="r", config=CONFIG)
    read = [each for program in rounds for each in program.inputs if isinstance(each, Files) and each.are_events]
    assert len(read) == 1
    assert len(rounds) <= most, len(rounds)
