"""A bit that flipped on the disk, in a file that can still be read, becomes no verdict."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.commands.test_reconcile import reconciled
from tests.spark.histories import History, write_parquet

from ackwise.middleware.errors import AckwiseError
from ackwise.spark.why.events import EventFiles
from ackwise.spark.why.place import Place
from ackwise.stores.journal.parquet import WRITE_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "events-00000000000000ab-000000000000-000000000401.parquet"


@pytest.fixture
def flipped(tmp_path: Path) -> Path:
    """A file that says something else than was written, to whoever does not look at its checksums."""
    words = " ".join(f"{offset}:CS" for offset in range(200))
    path = write_parquet(tmp_path / "events" / "dt=2026-01-01" / "hr=00" / NAME, History("g").say("w1", f"{words} W=200").events)
    table = pq.read_table(path)
    pq.write_table(table, path, **WRITE_OPTIONS)
    whole, draw = path.read_bytes(), random.Random(1)
    while True:
        changed = bytearray(whole)
        changed[draw.randrange(4, len(whole) // 2)] ^= 1
        path.write_bytes(changed)
        try:
            if not pq.read_table(path).equals(table):
                pq.read_table(path, page_checksum_verification=True)
        except pa.ArrowInvalid:
            continue
        except OSError as error:
            if "CRC checksum" in str(error):
                return path


def test_the_events_of_one_message_are_not_read_from_it(flipped: Path) -> None:
    with pytest.raises(OSError, match="CRC checksum"):
        EventFiles([flipped]).at([Place("orders", 0, offset) for offset in range(200)])


@pytest.mark.spark
def test_reconcile_concludes_nothing_and_names_the_file(flipped: Path, tmp_path: Path, spark: SparkSession) -> None:
    result = reconciled(tmp_path)
    assert isinstance(result.exception, AckwiseError), result.output
    assert flipped.name in str(result.exception)
    assert "nothing was concluded" in str(result.exception)
