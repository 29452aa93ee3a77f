"""A row for every message of an audit: in the table of verdicts, or by the views that the page shows."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from tests.spark.histories import History
from tests.spark.reconciling import AS_OF, every_message, reconciled, root_of, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[3] / "docs" / "reconcile.md"


def statements() -> list[str]:
    """The statements of the page: the view of DuckDB, that of Spark SQL, and the query of both."""
    section = PAGE.read_text("utf-8").partition("\n## Every message\n")[2].partition("\n## ")[0]
    return re.findall(r"```sql\n(.*?)```", section, re.DOTALL)


def audited(path: Path, *options: str) -> Path:
    """The result of an audit of 300 messages, with holes between them and across words, of which some are exceptions."""
    words = " ".join(f"{offset}:{'CF' if offset % 50 == 7 else 'CS'}" for offset in range(61, 371) if offset % 31)
    history = History("g").assign("w1", 61).say("w1", f"RECEIVED_RANGE[61,371) {words} 61:CS 400:US 401:CS W=402")
    reconciled(root_of(path / "root", history), "--out", path / "out", "--as-of", AS_OF, *options)
    return path / "out"


def counted(rows: list[dict[str, Any]]) -> dict[str, int]:
    return Counter(row["verdict"] for row in rows)


def test_the_view_of_duckdb_counts_every_message(tmp_path: Path) -> None:
    out = audited(tmp_path)
    view, _, query = (text.replace("report/", f"{out}/") for text in statements())
    with duckdb.connect() as database:
        database.execute(view)
        found = dict(database.execute(query).fetchall())
        places = database.execute('SELECT "offset", verdict FROM messages').fetchall()
    rows = every_message(out)
    assert found == counted(rows)
    assert sorted(places) == sorted((row["offset"], row["verdict"]) for row in rows)
    assert len(rows_of(out / "verdicts")) < len(rows) / 10


@pytest.mark.spark
@pytest.mark.nightly
def test_the_view_of_spark_counts_every_message(spark: SparkSession, tmp_path: Path) -> None:
    out = audited(tmp_path)
    _, view, query = (text.replace("report/", f"{out}/") for text in statements())
    spark.sql(view)
    try:
        assert dict(map(tuple, spark.sql(query).collect())) == counted(every_message(out))
    finally:
        spark.catalog.dropTempView("messages")


def test_a_run_that_is_asked_for_rows_has_one_of_every_message(engine: str, tmp_path: Path) -> None:
    exceptions, rows = audited(tmp_path / "exceptions"), audited(tmp_path / "rows", "--verdicts", "rows")
    names = ("cluster", "group_id", "topic", "topic_id", "partition", "handler", "dedup_epoch", "offset", "verdict", "flags")
    found = [[{name: row[name] for name in names} for row in each] for each in (every_message(exceptions), rows_of(rows / "verdicts"))]
    assert sorted(found[0], key=lambda row: row["offset"]) == sorted(found[1], key=lambda row: row["offset"])
    assert rows_of(rows / "ranges") == []
    ran = [row for row in rows_of(rows / "verdicts") if row["verdict"] == "EXACTLY_ONCE"]
    assert all(row["exec_id"] is not None and row["dedup_hash"] is not None for row in ran)
    view, _, query = (text.replace("report/", f"{rows}/") for text in statements())
    with duckdb.connect() as database:
        database.execute(view)
        assert dict(database.execute(query).fetchall()) == counted(rows_of(rows / "verdicts"))
