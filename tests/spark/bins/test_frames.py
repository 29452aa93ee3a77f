"""Frames in bins say what those of the local engine say, wherever their rows lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.bins.frame import EVERYWHERE
from ackwise.spark.bins.program import Program, Show, shown
from ackwise.spark.bins.session import BinnedSession, Tasks, binned, in_this_process
from ackwise.spark.frames import DataFrame, F, SparkSession, Window
from ackwise.spark.local.session import local_engine
from ackwise.spark.session.rows import at_once, repeated, rows_of, through

#: Partitions of Kafka by number, each with some offsets; `scope` and `dedup_hash` meet across them.
MESSAGES: list[tuple[int | None, ...]] = [
    (pk, pk * 7 % 65536, offset, offset % 3, (pk + offset) % 5) for pk in range(1, 9) for offset in range(6)
]
MESSAGES.append((None, None, 9, 1, None))
SCHEMA = "pk long, mk long, offset long, scope long, dedup_hash long"

BINS = pytest.mark.parametrize("bins", [1, 3, 7])


class Rows:
    """Rows of both engines: the same messages, those in bins placed by their partition."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.messages = rows_of(session, MESSAGES, SCHEMA).repartition("pk").persist()
        self.odd = rows_of(session, [(1, 20), (3, 60)], "pk long, bound long")

    def elsewhere(self) -> DataFrame:
        """The messages by their hash."""
        return self.messages.groupBy("scope", "dedup_hash").agg(F.max("offset").alias("most"), F.count("*").alias("n"))


def run(session: SparkSession, query: Callable[[Rows], DataFrame]) -> Counter[Any]:
    return Counter(tuple(row) for row in query(Rows(session)).collect())


def agree(query: Callable[[Rows], DataFrame], bins: int, folder: Path) -> None:
    """Assert that both engines return the same rows, and some."""
    with local_engine() as session:
        wanted = run(session, query)
    with binned(in_this_process, bins, folder / "rows") as session:
        found = run(session, query)
    assert wanted
    assert found == wanted


QUERIES: dict[str, Callable[[Rows], DataFrame]] = {
    "values that several rows have": lambda rows: repeated(rows.messages, "scope", "dedup_hash"),
    "a group without the partition": lambda rows: rows.elsewhere(),
    "a group of what was computed": lambda rows: rows.messages.groupBy((F.col("offset") + 1).alias("next")).agg(F.max("pk").alias("pk")),
    "one group": lambda rows: rows.messages.groupBy().agg(F.max("offset").alias("most")),
    "distinct": lambda rows: rows.messages.select("scope", "dedup_hash").distinct(),
    "a group by a partition that came from elsewhere": lambda rows: (
        rows.messages.select("scope", "offset")
        .join(F.broadcast(rows_of(rows.session, [(n, n + 1) for n in range(3)], "scope long, pk long")), "scope")
        .groupBy("pk")
        .agg(F.count("*").alias("n"))
    ),
    "a join by another column": lambda rows: rows.messages.join(rows.elsewhere(), ["scope", "dedup_hash"]),
    "a join that comes back": lambda rows: rows.messages.join(
        rows.messages.join(rows.elsewhere(), ["scope", "dedup_hash"]).select("pk", "mk", "offset", "n"), ["pk", "mk", "offset"], "left"
    ),
    "rows for all that lie apart": lambda rows: rows.messages.join(F.broadcast(rows.elsewhere()), ["scope", "dedup_hash"], "left_semi"),
    "a full join with rows for all": lambda rows: (
        rows.messages.groupBy("pk").agg(F.max("offset").alias("most")).join(rows.odd, "pk", "full")
    ),
    "a left join of rows for all": lambda rows: rows.odd.join(rows.messages.where(F.col("offset") == 1), "pk", "left"),
    "rows for all beside those in bins": lambda rows: rows.messages.select("pk", "offset").unionByName(rows.odd, allowMissingColumns=True),
    "rows for all beside others, grouped": lambda rows: (
        rows.messages.select("pk", "offset").unionByName(rows.odd, allowMissingColumns=True).groupBy("pk").agg(F.count("*").alias("n"))
    ),
    "rows for all beside those by hash": lambda rows: rows.elsewhere().unionByName(
        rows_of(rows.session, [(9, 9, 9, 9)], "scope long, dedup_hash long, most long, n long")
    ),
    "rows without a place beside others": lambda rows: (
        rows.messages.select("offset")
        .unionByName(rows_of(rows.session, [(77,)], "offset long"))
        .groupBy("offset")
        .agg(F.count("*").alias("n"))
    ),
    "a window over all": lambda rows: rows.messages.select(
        "pk", "offset", F.row_number().over(Window.partitionBy("scope").orderBy("pk", "offset")).alias("place")
    ),
    "the first in order": lambda rows: rows.messages.orderBy("offset", "pk").limit(11),
    "what a function makes": lambda rows: through(rows.messages.select("offset"), twice, pa.schema([("offset", pa.int64())])),
}


def twice(rows: pa.Table) -> Iterator[pa.Table]:
    yield rows
    yield rows


@BINS
@pytest.mark.parametrize("name", QUERIES)
def test_rows_in_bins_are_those_of_the_local_engine(name: str, bins: int, tmp_path: Path) -> None:
    agree(QUERIES[name], bins, tmp_path)


@BINS
def test_rows_in_order_stay_in_order_and_counts_of_bins_are_added(bins: int, tmp_path: Path) -> None:
    with binned(in_this_process, bins, tmp_path / "rows") as session:
        rows = Rows(session)
        assert [row["offset"] for row in rows.messages.orderBy("offset", "pk").toLocalIterator()] == sorted(row[2] or 0 for row in MESSAGES)
        assert [tuple(row) for row in rows.messages.select("pk", "offset").orderBy("offset", "pk").limit(3).collect()] == [
            (1, 0),
            (2, 0),
            (3, 0),
        ]
        assert rows.messages.count() == len(MESSAGES)
        assert rows.odd.count() == 2
        counted, every = at_once(rows.messages.groupBy("scope").count(), rows.odd)
        assert sorted(tuple(row) for row in counted) == [(0, 16), (1, 17), (2, 16)]
        assert sorted(tuple(row) for row in every) == [(1, 20), (3, 60)]
        assert not rows.messages.isEmpty()
        assert rows.messages.where(F.col("offset") > 99).isEmpty()
        assert len(rows.messages.limit(5).collect()) == 5
        assert rows.messages.limit(0).select("offset").collect() == []
        for merged in (rows.messages.groupBy("scope").count(), rows.messages.limit(5)):
            with pytest.raises(ValueError, match="what was counted or limited is only collected"):
                merged.where("scope > 1")


@BINS
def test_a_table_is_written_once_by_a_file_of_each_bin(bins: int, tmp_path: Path) -> None:
    with binned(in_this_process, bins, tmp_path / "rows") as session:
        rows = Rows(session)
        rows.messages.write.mode("overwrite").parquet(str(tmp_path / "messages"))
        rows.odd.write.mode("overwrite").parquet(str(tmp_path / "odd"))
        assert session.read.parquet(str(tmp_path / "messages")).count() == len(MESSAGES)
        assert session.read.parquet(str(tmp_path / "odd")).count() == 2
        assert (tmp_path / "odd" / "_SUCCESS").exists()
    assert not (tmp_path / "rows").exists()


def test_a_constant_of_many_rows_is_a_file_and_the_same_rows(tmp_path: Path) -> None:
    with binned(in_this_process, 3, tmp_path / "rows") as session:
        many = rows_of(session, [(number,) for number in range(20_000)], "offset long")
        assert isinstance(session, BinnedSession)
        assert many.by is EVERYWHERE
        assert many.count() == 20_000


def losing(pattern: str) -> Tasks:
    """Tasks after which a file of theirs can't be seen, as on a disk of one machine."""

    def run(program: Program) -> None:
        in_this_process(program)
        for lost in sorted(program.folder.parent.glob(pattern))[:1]:
            lost.unlink()

    return run


def test_rows_that_a_bin_sent_and_another_does_not_see_are_an_error(tmp_path: Path) -> None:
    with binned(losing("rows/*/from-1.arrow"), 3, tmp_path / "rows") as session, pytest.raises(OSError, match=r"from-1\.arrow"):
        Rows(session).elsewhere().collect()


def test_a_table_without_the_file_of_a_bin_is_an_error(tmp_path: Path) -> None:
    refused = pytest.raises(
        ConfigurationError, match=r"2 of 3 files are in .*/messages, where each task wrote one; mount it on every machine"
    )
    with refused, binned(losing("messages/part-*"), 3, tmp_path / "rows") as session:
        Rows(session).messages.write.mode("overwrite").parquet(str(tmp_path / "messages"))
    assert not (tmp_path / "messages" / "_SUCCESS").exists()


def test_a_task_with_another_duckdb_computes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path, 1, {})
    monkeypatch.setattr("duckdb.__version__", "0.1")
    with pytest.raises(ConfigurationError, match=r"DuckDB is 0\.1 where a task runs, and .* on the driver; install one version"):
        program.run(0)


def test_a_task_that_is_done_twice_writes_the_same_rows_and_one_after_the_end_writes_none(tmp_path: Path) -> None:
    programs: list[Program] = []

    def run(program: Program) -> None:
        programs.append(program)
        in_this_process(program)
        in_this_process(program)

    with binned(run, 3, tmp_path / "rows") as session:
        rows = Rows(session)
        assert sum(row["n"] for row in rows.elsewhere().collect()) == len(MESSAGES)
    with pytest.raises(FileNotFoundError):
        programs[0].run(0)
    assert not (tmp_path / "rows").exists()


def test_a_task_keeps_within_its_memory_and_leaves_no_other_files_than_those_of_its_rows(tmp_path: Path) -> None:
    number = 4_000_000  # 32 MB
    steps = [
        Show("shown", f"SELECT max(id) AS last FROM (SELECT range AS id, row_number() OVER (ORDER BY hash(range)) FROM range({number}))")
    ]
    program = Program(tmp_path, 1, {"threads": "1", "memory_limit": "24MiB"}, steps=steps)
    program.run(0)
    assert shown(tmp_path, "shown", 1)[0].to_pylist() == [{"last": number - 1}]
    assert [path.name for path in tmp_path.iterdir()] == ["shown"]
