"""A bit that flipped on the disk, in a file that can still be read, becomes no verdict."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.histories import History, write_parquet
from tests.spark.reconciling import AS_OF, reconciled, root_of, summary

from ackwise.middleware.errors import AckwiseError
from ackwise.spark.events.damage import strangeness
from ackwise.spark.events.sources import exported
from ackwise.spark.why.events import EventFiles
from ackwise.spark.why.place import Place
from ackwise.stores.journal.parquet import WRITE_OPTIONS

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


@pytest.mark.usefixtures("engine")
def test_reconcile_concludes_nothing_from_it_alone_and_names_it(flipped: Path, tmp_path: Path) -> None:
    result = reconciled(tmp_path)
    assert isinstance(result.exception, AckwiseError), result.output
    assert f"{flipped.name} is damaged; its events count as missing" in str(result.exception)


@pytest.mark.usefixtures("engine")
def test_reconcile_judges_the_rest_without_it_and_names_it(flipped: Path, tmp_path: Path) -> None:
    root_of(tmp_path, History("other").say("w1", "0:CS W=1"))
    result = reconciled(tmp_path, "--out", tmp_path / "runs" / "1", "--as-of", AS_OF)
    assert result.exit_code == 3, result.output
    found = summary(tmp_path / "runs" / "1")
    assert (found["verdicts"], found["unreadable"]) == ({"EXACTLY_ONCE": 1}, [f"{flipped} is damaged; its events count as missing"])
    assert "Traceback" not in result.output


def test_a_bit_of_the_footer_that_flips_is_told_or_changes_no_value(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "events" / "dt=2026-01-01" / "hr=00" / NAME, History("g").say("w1", "0:CS 1:CS W=2").events)
    table = pq.read_table(path)
    pq.write_table(table, path, **WRITE_OPTIONS)
    whole, draw = path.read_bytes(), random.Random(2)
    begin, told = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), 0
    for _ in range(200):
        changed = bytearray(whole)
        changed[draw.randrange(begin, len(whole) - 8)] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        if strangeness(path):
            told += 1
            continue
        try:
            read = pq.read_table(path, schema=table.schema, page_checksum_verification=True)
        except (pa.ArrowException, OSError, ValueError):
            continue  # Spark fails on it too, and it is told then
        assert read.equals(table) or read.num_rows < table.num_rows  # what is missing are numbers
    assert told > 50


def test_a_file_with_other_columns_is_named_and_not_read(tmp_path: Path) -> None:
    path = root_of(tmp_path, History("g").say("w1", "0:CS W=1"))
    file = next(path.rglob("*.parquet"))
    table = pq.read_table(file)
    place = table.schema.get_field_index("event_ts")
    for changed, why in (
        (table.drop_columns(["offset"]), "has no column 'offset'"),
        (table.drop_columns(["mono_ns"]), "has no column 'mono_ns', so it is not a file of events of this version"),
        (table.set_column(place, "event_ts", table["event_ts"].cast(pa.int64())), "has another type of column 'event_ts'"),
    ):
        pq.write_table(changed, file)
        found = exported(path)
        assert file not in found.files
        assert found.torn[file].startswith(why)
