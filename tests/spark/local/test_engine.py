"""`ackwise reconcile --engine`: what is chosen, what is refused, and that the result does not depend on it."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import duckdb
import pyarrow.dataset as ds
import pytest
from tests.spark.cases import CASES
from tests.spark.fuzz import universe
from tests.spark.histories import History, write_parquet, write_produced
from tests.spark.reconciling import AS_OF, BLOCKED, name_of, reconciled, root_of, rows_of, summary

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.commands.engines import choose, computing, need
from ackwise.spark.commands.options import EngineName
from ackwise.spark.events.logs import NO_LOGS
from ackwise.spark.events.sources import Evidence
from ackwise.spark.frames import F
from ackwise.spark.local import session as session_module
from ackwise.spark.local.column import Column
from ackwise.spark.local.frame import DataFrame as LocalFrame
from ackwise.spark.local.session import LocalSession, connected, local_engine, memory_for_rows
from ackwise.spark.session import rows
from ackwise.spark.session.engine import HEAP, LOCAL, Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN = Engine(LOCAL, HEAP, {})
GB = 10**9
AUTO, SPARK, HERE = EngineName.AUTO, EngineName.SPARK, EngineName.LOCAL


def installed(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr("ackwise.spark.commands.engines._is_installed", lambda package: package in packages)


def test_events_are_judged_in_this_process_where_they_fit_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    installed(monkeypatch, "pyspark", "duckdb")
    engines = (Engine("local[2]", HEAP, {}), Engine(LOCAL, "4g", {}), Engine(LOCAL, HEAP, {"spark.app.name": "x"}))
    assert [choose(AUTO, 2 * GB, free, PLAIN) for free in (10 * GB, 3 * GB, 3 * GB - 1)] == [HERE, HERE, SPARK]
    assert {choose(AUTO, 505, GB, engine) for engine in engines} == {SPARK}
    assert (choose(SPARK, 505, GB, PLAIN), choose(HERE, 2 * GB, GB, PLAIN)) == (SPARK, HERE)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert choose(AUTO, 505, GB, PLAIN) is SPARK, "under spark-submit"


def test_what_events_need_on_the_disk_follows_from_the_names_and_sizes_of_their_files() -> None:
    files = (
        Path("events-00000000000000ab-000000000000-000000000999.parquet"),
        Path("events-00000000000000ab-000000001000-000000001009.parquet"),
    )
    assert [need(Evidence((), files, size, NO_LOGS, (), ())) for size in (5, GB)] == [40 * 1010, 10 * GB]


def test_what_is_not_installed_does_not_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "duckdb")
    assert choose(AUTO, 2 * GB, GB, PLAIN) is HERE
    assert choose(AUTO, 505, GB, Engine("local[2]", HEAP, {})) is SPARK  # which then says that it is not installed
    installed(monkeypatch, "pyspark")
    assert choose(AUTO, 505, GB, PLAIN) is SPARK
    installed(monkeypatch)
    with pytest.raises(ConfigurationError, match="needs duckdb or pyspark, and neither is installed: pip install 'ackwise\\[local\\]'"):
        choose(AUTO, 505, GB, PLAIN)


def test_what_only_spark_can_do_is_refused_by_the_local_engine(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", "0:CS W=1"))
    values = {"--master": "local[2]", "--driver-memory": "1g", "--conf": "spark.a=b"}
    for option, value in values.items():
        result = reconciled(root, "--engine", "local", option, value, "--out", tmp_path / "out")
        assert str(result.exception) == f"the local engine has no {option}; leave it out, or give --engine spark"
        assert not (tmp_path / "out").exists()


def test_few_events_are_judged_without_pyspark_and_the_result_names_the_engine(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", "RECEIVED_RANGE[0,3) 0:CS 1:CFX 2:C W=2"))
    program = BLOCKED.format(blocked=["pyspark", "py4j"]) + "from ackwise.plugin.cli.main import main; main()"
    arguments = ["reconcile", str(root), "--as-of", AS_OF, "--out", str(tmp_path / "out"), "--verify-sample", "9"]
    answer = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "judging in this process" in answer.stderr
    shares = [int(re.search(r" s +(\d+) %  ", line)[1]) for line in answer.stderr.splitlines()]  # type: ignore[index]
    assert (shares[0], shares[-1], shares == sorted(shares)) == (0, 100, True), answer.stderr
    assert len(set(shares)) > 6
    assert "engine: local" in answer.stdout
    found = summary(tmp_path / "out")
    assert found["engine"] == "local"
    assert found["verdicts"] == {"IN_FLIGHT": 1, "DEAD_LETTERED": 1, "EXACTLY_ONCE": 1}
    assert "<dd>local</dd>" in (tmp_path / "out" / "report.html").read_text()


def test_without_both_engines_the_command_says_what_to_install(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", "0:CS W=1"))
    program = BLOCKED.format(blocked=["pyspark", "duckdb"]) + "from ackwise.plugin.cli.main import main; main()"
    answer = subprocess.run([sys.executable, "-c", program, "reconcile", str(root)], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "neither is installed" in answer.stderr
    assert "Traceback" not in answer.stderr


FAILURES: dict[Exception, str] = {
    duckdb.OutOfMemoryException("Out of Memory Error: could not allocate 8 bytes\nmore"): (
        "too little memory for the local engine (Out of Memory Error: could not allocate 8 bytes); "
        "judge on a machine with more, or give --since, or --engine spark; nothing was concluded"
    ),
    duckdb.IOException('IO Error: Could not write file "/out/rows.duckdb": No space left on device'): (
        'no space left for what the local engine keeps (IO Error: Could not write file "/out/rows.duckdb": No space left on device); '
        "make room there, or give another folder to --out; nothing was concluded"
    ),
    duckdb.OutOfMemoryException("Out of Memory Error: failed to offload\nThis limit was set by the 'max_temp_directory_size' setting."): (
        "no space left for what the local engine keeps (Out of Memory Error: failed to offload); "
        "make room there, or give another folder to --out; nothing was concluded"
    ),
    duckdb.BinderException("Binder Error: no.\nmore"): "the local engine failed: Binder Error: no; nothing was concluded",
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_of_the_local_engine_is_one_sentence_and_leaves_no_summary_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        (kept,) = (tmp_path / "out" / ".live").glob("rows-*/rows.duckdb")
        assert kept.is_file()
        raise failure

    root = root_of(tmp_path / "root", History("g").say("w1", "0:CS W=1"))
    assert reconciled(root, "--out", tmp_path / "out").exit_code == 0
    monkeypatch.setattr("ackwise.spark.job.write_tables", fail)
    result = reconciled(root, "--engine", "local", "--out", tmp_path / "out")
    assert str(result.exception) == FAILURES[failure]
    assert not (tmp_path / "out" / "summary.json").exists()
    assert not (tmp_path / "out" / ".live").exists()


def test_rows_that_do_not_fit_on_the_disk_are_told_apart_from_too_little_memory(tmp_path: Path) -> None:
    explain = computing(HERE, PLAIN).explain
    query = "SELECT count(*) FROM (SELECT range FROM range(4_000_000) GROUP BY 1)"
    full = {"temp_directory": str(tmp_path), "max_temp_directory_size": "1MiB"}
    cases: list[tuple[dict[str, str], str]] = [
        (full, "no space left for what the local engine keeps ("),
        ({}, "too little memory for the "),
    ]
    for settings, beginning in cases:
        with connected({"memory_limit": "24MiB", **settings}) as session, pytest.raises(duckdb.OutOfMemoryException) as raised:
            session.run(query)
        assert explain(raised.value).startswith(beginning), raised.value


def test_scratch_files_go_also_where_the_program_is_interrupted(tmp_path: Path) -> None:
    def interrupted() -> None:
        with local_engine(tmp_path):
            assert [path.name for path in tmp_path.glob("*/rows.duckdb")] == ["rows.duckdb"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not [*tmp_path.iterdir()]


def test_rows_take_half_of_the_memory_of_the_machine_or_of_its_control_group_and_one_gib_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_CGROUP", limit := tmp_path / "memory.max")
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**20}[name])
    assert memory_for_rows() == 2**30
    found = []
    for text in ("max\n", f"{2**29}\n", f"{2**40}\n"):
        limit.write_text(text)
        found.append(memory_for_rows())
    assert found == [2**30, 2**28, 2**30]
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**17}[name])
    assert memory_for_rows() == 2**28


def test_more_rows_than_memory_takes_are_kept_mapped_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_MOST", 24 * 2**20)
    (tmp_path / "scratch").mkdir()
    number = 4_000_000  # 32 MB in a column
    with local_engine(tmp_path / "scratch") as session:
        assert cast("LocalSession", session).run("SELECT current_setting('memory_limit')") == [("24.0 MiB",)]
        start = cast("LocalFrame", rows.rows_of(session, [(number,)], "number long"))
        given = start.select(Column("unnest(range(number))", "value")).persist()
        made = given.mapInArrow(lambda batches: (batch for batch in batches if len(batch) < 100_000), "value bigint").persist()
        assert made.count() == number
        made.write.mode("overwrite").parquet(str(tmp_path / "out"))
    assert ds.dataset(tmp_path / "out", format="parquet", exclude_invalid_files=True).count_rows() == number


def test_values_that_several_rows_have_are_the_same_in_however_many_parts_they_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [(number, None if number % 7 == 0 else number % 3) for number in [*range(30), *range(30), *range(100, 110)]]
    wanted = {pair for pair in given if given.count(pair) > 1}
    assert len(wanted) == 30
    for at_once in (1000, 100, 7):
        monkeypatch.setattr("ackwise.spark.local.frame._AT_ONCE", at_once)
        with local_engine() as session:
            found = rows.repeated(rows.rows_of(session, given, "scope long, hash long"), "scope", "hash").collect()
        assert len(found) == len(wanted)
        assert {tuple(row) for row in found} == wanted


def table(folder: Path) -> list[str]:
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows_of(folder))


def types(folder: Path) -> dict[str, str]:
    """The types of a table; which columns may be null is not compared."""
    schema = ds.dataset(folder, format="parquet", exclude_invalid_files=True).schema if folder.exists() else []
    return {field.name: str(field.type).replace(" not null", "").replace("element:", "item:") for field in schema}


def results(out: Path) -> dict[str, Any]:
    """All that a run leaves behind, but where it did, and by which engine."""
    found = {name: value for name, value in summary(out).items() if name not in ("engine", "run_id", "output", "report")}
    found["plan"].pop("path")
    found["exhibits"].pop("earlier", None)
    for each in found["to_do"]:
        each["mends"], each["tells"] = (each[name].replace(str(out), "OUT") for name in ("mends", "tells"))
    title, *steps = (out / "plan.jsonl").read_text().splitlines()
    return {
        "summary": found,
        "plan": [{**json.loads(step), "plan_id": None, "run_id": None} for step in steps],
        "title": json.loads(title)["as_of"],
        "tables": {name: table(out / name) for name in ("ranges", "verdicts", "logical", "missing", "produced")},
        "types": {name: types(out / name) for name in ("ranges", "verdicts", "logical", "missing", "produced")},
    }


def many_histories(root: Path) -> Path:
    """A root with all cases and some universes, and a table of what was produced beside it.

    The oracle has judged what the local engine says of them (`test_verdicts.py`): where Spark says the same, it says what is true.
    """
    histories = [case.history for case in CASES.values()] + [universe(number) for number in range(1000, 1200)]
    odd = History("odd").assign("w1", 0).say("w1", "RECEIVED_RANGE[0,9) 0:CS W=9")
    for number, attrs in enumerate(["[1]", "5", "null", '{"in_place": 1.5}', '{"in_place": "2"}', '{"outcome": {"dead": 1}}', "{"]):
        odd.say("w1", f"{number + 1}:CFD", attrs=attrs)
    events = [event for history in [*histories, odd] for event in history.events]
    random.Random(5).shuffle(events)
    for part in range(3):
        name = name_of(part + 1, 0, len(events[part::3]) - 1)
        write_parquet(root / "events" / "dt=2026-01-01" / "hr=00" / name, events[part::3])
    write_produced(root.parent / "produced.parquet", [row for history in histories for row in history.produced])
    return root


@pytest.mark.spark
@pytest.mark.timeout(1200)  # several runs of Spark
def test_both_engines_leave_the_same_behind(spark: SparkSession, tmp_path: Path) -> None:
    root = many_histories(tmp_path / "root")
    options = ("--as-of", AS_OF, "--grace", "10m", "--produced", tmp_path / "produced.parquet", "--plan-provisional", "--strict")
    codes = {engine: reconciled(root, *options, "--engine", engine, "--out", tmp_path / engine).exit_code for engine in ("spark", "local")}
    assert codes == {"spark": 1, "local": 1}
    one, other = results(tmp_path / "spark"), results(tmp_path / "local")
    assert one["tables"]["produced"]
    assert one["plan"]
    for name, found in one["summary"].items():
        assert other["summary"][name] == found, name
    assert other == one


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(1200)  # several runs of Spark
def test_both_engines_pass_over_a_damaged_file_and_judge_some_time_alike(spark: SparkSession, tmp_path: Path) -> None:
    root = many_histories(tmp_path / "root")
    options = ("--as-of", AS_OF, "--since", "30m", "--lateness", "1h", "--writer-timeout", "1h")
    path = next((root / "events").rglob("events-0000000000000002*"))
    content = bytearray(path.read_bytes())
    content[1000:1100] = bytes(100)
    path.write_bytes(content)
    for engine in ("spark", "local"):
        reconciled(root, *options, "--engine", engine, "--out", tmp_path / engine)
    one, other = results(tmp_path / "spark"), results(tmp_path / "local")
    assert "can't be read to its end; its events count as missing" in one["summary"]["unreadable"][0]
    assert other == one


def test_queries_touch_no_file(tmp_path: Path) -> None:
    import duckdb

    path = write_parquet(tmp_path / "events.parquet", History("g").events)
    with local_engine() as session, pytest.raises(duckdb.PermissionException):
        rows.rows_of(session, [(1,)], "one long").where(f"one IN (SELECT seq FROM read_parquet('{path}'))").collect()


def test_the_functions_are_those_of_the_local_engine_only_while_it_is_open() -> None:
    pyspark = pytest.importorskip("pyspark.sql.functions")
    with local_engine():
        assert F.col.__module__ == "ackwise.spark.local.functions"
    assert F.col is pyspark.col
