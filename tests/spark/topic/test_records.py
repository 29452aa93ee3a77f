"""Rows of event files as records of Kafka."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
from tests.spark.histories import History, write_parquet
from tests.spark.reconciling import name_of

from ackwise.spark.topic.records import records_of
from ackwise.stores.journal.parquet import ROLLED_ON

BOOT_ID = "0f9d2c3e-7a1b-4c55-9b1e-2d6f8a90c1de"


def test_rows_of_the_last_log_of_a_dead_worker_are_sent_with_the_machine_that_rolled_it(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / name_of(7, 4, 6), History("g").say("w1", "0:CS").events)
    assert not [value for _, value in records_of(file) if b"rolled" in value]
    pq.write_table(pq.ParquetFile(file).read().replace_schema_metadata({ROLLED_ON: BOOT_ID}), file)
    said = [json.loads(value) for _, value in records_of(file)]
    assert [(event["rolled_on"], event["rolled_to"]) for event in said] == [(BOOT_ID, 6)] * 4
