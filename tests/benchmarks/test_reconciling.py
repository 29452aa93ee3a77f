"""On made-up sets of events the job says what is true of them, and so does a second engine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.reconciliation import COUNT, DUCKDB, LOCAL, WHY, read_options, run
from benchmarks.reconciling.comparison import account_differences, differences
from benchmarks.reconciling.engine import judge
from benchmarks.reconciling.generator import generate
from benchmarks.reconciling.shape import Shape
from rich.console import Console
from tests.spark.reconciling import reconciled

from ackwise.spark.events.exploding import EVENTS, exploded
from ackwise.spark.events.sources import gathered
from ackwise.spark.vocabulary import Flag, Verdict

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly]  # makes three sets and judges them on Spark

#: Of different groups and topics, so that one job can judge all of them; and as many days, so that "now" is the same.
SHAPES = (
    Shape(8_000, 1, ("billing", "search"), "orders", topics=3, partitions=2, days=2, rare=30),
    Shape(8_000, 2, ("mail",), "letters", topics=2, partitions=3, days=2, rare=30, hot=0.6),
    Shape(8_000, 3, ("audit", "ledger", "stock"), "moves", topics=4, partitions=1, days=2, rare=30),
)


class Sets(NamedTuple):
    folders: list[Path]
    run: Path


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """All of them, and what one run says, which was told of what was produced."""
    folder = tmp_path_factory.mktemp("sets")
    folders = [folder / shape.prefix for shape in SHAPES]
    (folder / "produced").mkdir()
    for shape, each in zip(SHAPES, folders, strict=True):
        generate(shape, each)
        shutil.copy(each / "produced" / "produced.parquet", folder / "produced" / f"{shape.prefix}.parquet")
    result = reconciled(*folders, "--out", folder / "run", "--produced", folder / "produced", "--engine", "spark")
    assert result.exit_code == 1, result.output
    return Sets(folders, folder / "run")


def test_the_job_says_what_is_true(sets: Sets) -> None:
    assert differences(sets.run, sets.folders, produced=True) == []
    assert account_differences(sets.run, sets.folders) == []


def test_a_second_engine_says_so_too(sets: Sets, tmp_path: Path) -> None:
    judge([path for folder in sets.folders for path in folder.glob("single/**/*.parquet")], tmp_path)
    assert differences(tmp_path, sets.folders) == []


def test_the_sets_have_every_verdict_and_every_flag_but_three(sets: Sets) -> None:
    truth = [folder / "truth" for folder in sets.folders]
    rows = [row for each in truth for row in pq.read_table(each / "messages.parquet", columns=["verdict", "flags"]).to_pylist()]
    missing = {row[name] for each in truth for row in pq.read_table(each / "missing.parquet").to_pylist() for name in ("verdict", "told")}
    assert {row["verdict"] for row in rows} | missing == {*Verdict.__members__, None}
    flags = {flag for combination in {row["flags"] for row in rows} for flag in Flag(combination)}
    beyond = {row["beyond"] for each in truth for row in pq.read_table(each / "logical.parquet").to_pylist()}
    assert flags | ({Flag.BEYOND_TTL} if True in beyond else set()) == set(Flag) - {Flag.PROVISIONAL, Flag.OVERTAKEN, Flag.MAYBE_OVERTAKEN}


def test_a_difference_is_found_and_named(sets: Sets, tmp_path: Path) -> None:
    shutil.copytree(sets.folders[0] / "truth", tmp_path / "truth")
    messages = pq.read_table(tmp_path / "truth" / "messages.parquet")
    pq.write_table(messages.slice(1), tmp_path / "truth" / "messages.parquet")
    first = messages.slice(0, 1).to_pylist()[0]
    (found,) = differences(sets.run, [tmp_path, *sets.folders[1:]], produced=True)
    assert found.startswith("messages: 1 rows that are not so")
    assert f"{first['offset']}, '{first['verdict']}'" in found


def test_the_same_shape_gives_the_same_files(sets: Sets, tmp_path: Path) -> None:
    generate(SHAPES[0], tmp_path)
    for name in ("events", "single", "truth", "produced"):
        made = {path.relative_to(tmp_path): path.read_bytes() for path in (tmp_path / name).rglob("*.parquet")}
        assert made == {path: (sets.folders[0] / path).read_bytes() for path in made}
        assert len(made) == len(list((sets.folders[0] / name).rglob("*.parquet")))


def test_files_are_named_as_workers_name_them_and_one_is_missing(sets: Sets, tmp_path: Path) -> None:
    with gathered(sets.folders, tmp_path / "live") as evidence:
        assert (evidence.foreign, evidence.unreadable) == ((), ())
        assert len(evidence.files) > 50


def test_single_events_are_those_of_the_run_rows(sets: Sets) -> None:
    for path in sets.folders[0].glob("events/**/*.parquet"):
        single = pq.read_table(sets.folders[0] / "single" / path.relative_to(sets.folders[0] / "events"))
        assert exploded(pq.read_table(path)).sort_by("seq") == single.cast(EVENTS)


@pytest.mark.parametrize("shape", [Shape(8_000, 4, batch=1), Shape(8_000, 5, deduplicates=False), Shape(8_000, 6, events_per_file=100)])
def test_other_sets_are_judged_by_their_truth_too(shape: Shape, tmp_path: Path) -> None:
    generate(replace(shape, topics=3, partitions=2, days=2, rare=30), tmp_path)
    assert reconciled(tmp_path, "--out", tmp_path / "run", "--engine", "local").exit_code == 1
    judge([*tmp_path.glob("single/**/*.parquet")], tmp_path / "duckdb")
    for name in ("run", "duckdb"):
        assert differences(tmp_path / name, [tmp_path]) == []


def test_messages_of_a_batch_are_one_row(tmp_path: Path) -> None:
    generate(Shape(8_000, 7, topics=1, partitions=1, days=1, exceptions=0), tmp_path)
    rows = pa.concat_tables([pq.read_table(path, columns=["n", "ok_n"]) for path in tmp_path.glob("events/**/*.parquet")])
    assert {(row["n"], row["ok_n"]) for row in rows.drop_null().to_pylist()} >= {(500, 500), (480, 480), (100, 100)}


def test_the_benchmark_says_what_each_way_costs_warm_and_cold() -> None:
    found = run(read_options(["--events", "8000", "--rounds", "1", "--only", "bare count;local;DuckDB;why"]), Console(quiet=True))
    assert {*found.warm} == {*found.cold} == {COUNT, LOCAL, DUCKDB, WHY}
    (count,) = found.warm[COUNT]
    assert min(count.cpu, count.actions, count.jobs, count.shuffled) > 0
    assert all(cost.memory > 2**20 for cost in found.cold.values())
    assert [row.aim for row in found.rows] == [
        "whole job locally, time",
        "whole job locally, CPU",
        "why, CPU with the start of the process",
    ]
