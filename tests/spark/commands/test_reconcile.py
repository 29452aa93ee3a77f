"""`ackwise reconcile` from the outside: exit codes, what it prints and what it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import copy
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from tests.spark.cases import CASES
from tests.spark.histories import NOW, SECOND, TOPIC, History, write_parquet, write_produced
from tests.spark.reconciling import AS_OF, BLOCKED, every_message, name_of, reconciled, root_of, rows_of, summary

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.events import EventCode
from ackwise.middleware.progress.commitmetadata import LastCommit
from ackwise.spark.commands.times import begin_of
from ackwise.spark.report.in_doubt import query

if TYPE_CHECKING:
    from ackwise.plugin.settings.hostsettings import HostSettings


@pytest.mark.usefixtures("engine")
def test_a_clean_history_exits_with_0_and_replaces_the_tables_of_an_earlier_run(tmp_path: Path) -> None:
    write_parquet(tmp_path / "out" / "verdicts" / "part-0.parquet", History("earlier").events)
    (tmp_path / "out" / "summary.json").write_text("{}")
    root = root_of(tmp_path / "root", History("g").say("w1", "RECEIVED_RANGE[0,3) 0:CS 1:CFB 2:CFX 1@2:CS W=3"))
    result = reconciled(root, "--out", tmp_path / "out", "--as-of", AS_OF)
    assert result.exit_code == 0, result.output
    assert result.output.index("Accounts") < result.output.index("Verdicts")
    assert result.output.splitlines()[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
    assert "Nothing was lost, nothing was done twice" in (tmp_path / "out" / "report.html").read_text()
    assert summary(tmp_path / "out")["verdicts"] == {"DEAD_LETTERED": 1, "EXACTLY_ONCE": 2}
    rows = sorted(every_message(tmp_path / "out"), key=itemgetter("offset"))
    assert [(row["offset"], row["verdict"], row["flags"]) for row in rows] == [
        (0, "EXACTLY_ONCE", []),
        (1, "EXACTLY_ONCE", ["HAD_FAILURES", "RETRIED"]),
        (2, "DEAD_LETTERED", ["HAD_FAILURES"]),
    ]
    assert [row.get("state") is None for row in rows] == [True, False, False]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "logical", "missing", "plan.jsonl", "ranges", "report.html", "summary.json", "verdicts",
    ]  # fmt: skip


@pytest.mark.usefixtures("engine")
def test_anomalies_exit_with_1_and_are_named(tmp_path: Path) -> None:
    history = History("g").say("w1", "RECEIVED_RANGE[0,4) 0:CS 1:CF W=6").say("w2", "4:CS", key="k").say("w2", "5:CS", key="k")
    result = reconciled(root_of(tmp_path / "root", history), "--out", tmp_path / "out", "--as-of", AS_OF)
    assert result.exit_code == 1, result.output
    found = summary(tmp_path / "out")
    assert found["anomalies"] == 4
    assert [(row["offset"], row["verdict"], row["last_event"]) for row in found["findings"]] == [(1, "LOST", "FAILED")]
    assert [(row["start"], row["end"], row["verdict"]) for row in found["missing"]] == [(2, 4, "LOST")]
    assert [(row["verdict"], row["hashes"]) for row in found["logical"]] == [("LOGICAL_DUPLICATE", 1)]
    rows = rows_of(tmp_path / "out" / "logical", "offset")
    assert [(row["offset"], row["logical_verdict"]) for row in rows] == [(4, "LOGICAL_DUPLICATE"), (5, "LOGICAL_DUPLICATE")]
    assert "2–3" in result.output


@pytest.mark.usefixtures("engine")
def test_what_was_produced_is_laid_beside_what_was_consumed(tmp_path: Path) -> None:
    history = History("g").say("w1", "0:CS 2:CS 4:CS W=5").produce(0, 1, 2).produce(None, ago=601).produce(9, partition=3)
    history.produce(4, aborted=True)
    produced = write_produced(tmp_path / "outbox" / "p.parquet", history.produced)
    root = root_of(tmp_path / "root", history)
    result = reconciled(root, "--out", tmp_path / "out", "--as-of", AS_OF, "--produced", produced.parent)
    assert result.exit_code == 1, result.output
    found = summary(tmp_path / "out")
    assert found["verdicts"] == {"LOST_PRODUCED": 1, "NEVER_SEEN": 1, "EXACTLY_ONCE": 3}
    assert found["anomalies"] == 3
    (account,) = found["produced"]["accounts"]
    assert (account["produced"], account["handled"], account["lost"], account["orphans"]) == (3, 2, 1, 1)
    assert found["produced"]["unpublished"] == [{"topic": "orders", "rows": 1, "late": 1}]
    assert "1 records were produced to partitions that no group has read" in found["warnings"][0]
    rows = rows_of(tmp_path / "out" / "produced", "verdict")
    assert [(row["verdict"], row["topic"], row["partition"], row["start"], row["end"], row["key"]) for row in rows] == [
        ("NOT_PUBLISHED", "orders", None, None, None, "k"),
        ("ORPHAN_CONSUMED", "orders", 0, 4, 5, None),
    ]
    missing = rows_of(tmp_path / "out" / "missing", "start")
    assert [(row["start"], row["verdict"]) for row in missing] == [(1, "LOST_PRODUCED"), (3, "NEVER_SEEN")]


def sending() -> History:
    """Six messages: one consumed, one passed by, one stored and never sent, two parked side by side, one failed."""
    box: dict[str, Any] = {"outbox": "postgresql://db/shop"}
    history = History("g").say("w1", "0:CS 2:CS W=3")
    history.send("shop", EventCode.PRODUCED, "m-0", 0, ago=500).send("shop", EventCode.OUTBOX_STORED, "m-1", ago=500, **box, row=1)
    history.send("relay", EventCode.OUTBOX_SENT, "m-1", 1, ago=400, **box, row=1)
    history.send("shop", EventCode.OUTBOX_STORED, "m-2", ago=500, **box, row=2)
    for row in (7, 8):
        history.send("relay", EventCode.OUTBOX_PARKED, f"m-{row}", ago=300, **box, row=row)
    return history.send("shop", EventCode.PRODUCE_FAILED, "m-3", ago=200)


def test_what_is_sent_is_judged_by_events_alone_and_the_plan_only_requeues(tmp_path: Path, engine: str) -> None:
    root = root_of(tmp_path / "root", sending())
    result = reconciled(root, "--out", tmp_path / "out", "--as-of", AS_OF)
    assert result.exit_code == 1, result.output
    found = summary(tmp_path / "out")
    assert found["verdicts"] == {"LOST_PRODUCED": 1, "EXACTLY_ONCE": 2}
    (account,) = found["produced"]["accounts"]
    assert (account["produced"], account["handled"], account["lost"], account["orphans"]) == (2, 1, 1, 0)
    assert (found["produced"]["path"], found["anomalies"]) == ("", 2)
    assert found["produced"]["unsent"] == [
        {"topic": "orders", "verdict": "NOT_PUBLISHED", "messages": 1},
        {"topic": "orders", "verdict": "PARKED", "messages": 2},
        {"topic": "orders", "verdict": "PRODUCE_FAILED", "messages": 1},
    ]
    rows = rows_of(tmp_path / "out" / "produced", "key")
    assert [(row["key"], row["verdict"], row["outbox"], row["row"]) for row in rows] == [
        ("m-2", "NOT_PUBLISHED", "postgresql://db/shop", 2),
        ("m-3", "PRODUCE_FAILED", None, None),
        ("m-7", "PARKED", "postgresql://db/shop", 7),
        ("m-8", "PARKED", "postgresql://db/shop", 8),
    ]
    steps = [json.loads(line) for line in (tmp_path / "out" / "plan.jsonl").read_text().splitlines()[1:]]
    assert [(step["action"], step["offset_start"], step["offset_end"], step.get("command")) for step in steps] == [
        ("REQUEUE", 7, 9, "ackwise outbox requeue postgresql://db/shop 7 8"),
        ("REDELIVER", 1, 2, None),
    ]
    assert "PARKED: 2 records parked in an outbox, to be requeued by hand" in result.output


@pytest.mark.usefixtures("engine")
def test_what_was_produced_may_be_lines_of_json(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", "0:CS W=2"))
    table = tmp_path / "produced.jsonl"
    for timestamp in ('"2025-12-31T23:00:00Z"', '"2026-01-01T01:00:00+02:00"', "1767222000", "null"):
        table.write_text(f'{{"topic": "orders", "partition": 0, "offset": 1, "timestamp": {timestamp}}}\n')
        result = reconciled(root, "--out", tmp_path / "out", "--as-of", AS_OF, "--produced", table)
        assert (result.exit_code, summary(tmp_path / "out")["verdicts"]) == (1, {"LOST_PRODUCED": 1, "EXACTLY_ONCE": 1}), timestamp


def test_a_message_that_may_have_run_twice_exits_with_1_if_it_is_strict_and_the_query_finds_it(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    history = History("g").say("w1", "RECEIVED_RANGE[0,3) 0:CS 1:C").say("w2", "1:CS 2:CS W=3")
    result = reconciled(root_of(tmp_path / "root", history), "--out", tmp_path / "out", "--as-of", AS_OF, "--strict")
    assert result.exit_code == 1, result.output
    assert "of 1 message it can't be told whether it ran once or twice" in result.output
    found = summary(tmp_path / "out")
    assert (found["anomalies"], found["ambiguous"], found["verdicts"]) == (0, 1, {"MAYBE_TWICE": 1, "EXACTLY_ONCE": 2})
    assert [(row["offset"], row["verdict"], row["flags"]) for row in found["doubtful"]] == [(1, "MAYBE_TWICE", ["AMBIGUOUS_EXEC"])]
    assert "Nothing was lost, 1 message may have been done twice" in (tmp_path / "out" / "report.html").read_text()
    question = f'SELECT "partition", "offset" FROM ({query(str(tmp_path / "out"), engine)})'
    rows = (
        request.getfixturevalue("spark").sql(question.replace('"', "")).collect()
        if engine == "spark"
        else duckdb.execute(question).fetchall()
    )
    assert [tuple(row) for row in rows] == [(0, 1)]


@pytest.mark.usefixtures("engine")
def test_delays_reasons_and_times_are_counted_by_message_though_every_event_is_there_twice(tmp_path: Path) -> None:
    history = History("g").say("w1", "RECEIVED_RANGE[0,7) 0:CS", ago=100)
    for offset in (1, 2, 5, 6):
        history.say("w1", f"{offset}:CFB", ago=90, level=3, due_ts=NOW - 80 * SECOND)
    history.say("w1", "5@2:CS", ago=80.2).say("w1", "1@2:CS", ago=79.5).say("w1", "2@2:S", ago=78)
    history.say("w1", "3:CFX", ago=70, error="undecodable").say("w1", "4:CFX", ago=70, error="customer 4711 is odd").say("w1", "W=7")
    history.events += [dict(event) for event in history.events]
    result = reconciled(root_of(tmp_path / "root", history), "--out", tmp_path / "out", "--as-of", AS_OF)
    assert result.exit_code == 0, result.output
    found = summary(tmp_path / "out")
    assert found["delays"] == [
        {"group": "g", "handler": "bill", "messages": 3, "early": 1, "late_ms": {"p50": 500, "p90": 2000, "p99": 2000, "p100": 2000}}
    ]
    assert [(row["reason"], row["messages"]) for row in found["dead_letters"]] == [("given by the handler", 1), ("undecodable", 1)]
    assert (found["timeline"]["begin"], found["timeline"]["seconds"]) == ("2025-12-31T23:58:20.000+00:00", 1.0)
    bars = {
        name: {place: number for place, number in enumerate(numbers) if number} for name, numbers in found["timeline"]["verdicts"].items()
    }
    assert bars == {"RETRYING": {10: 1}, "DEAD_LETTERED": {30: 2}, "EXACTLY_ONCE": {0: 1, 19: 1, 20: 1, 22: 1}}
    assert "4711" not in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.usefixtures("engine")
def test_missing_events_exit_with_3(tmp_path: Path) -> None:
    history = History("g").say("w1", "0:CS").skip("w1", 4).say("w1", "2:CS W=3")
    result = reconciled(root_of(tmp_path / "root", history), "--out", tmp_path / "out", "--as-of", AS_OF, "--json")
    assert result.exit_code == 3, result.output
    found = json.loads(result.stdout)
    assert (found["verdicts"], found["missing_events"]) == ({"UNKNOWN_EXPORT_GAP": 1, "EXACTLY_ONCE": 2}, 4)
    assert found["report"] == str(tmp_path / "out" / "report.html")


@pytest.mark.usefixtures("engine")
def test_a_torn_file_is_inconclusive_and_the_page_that_is_printed_says_so(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", "0:CS W=1"))
    torn = root / "events" / "dt=2026-01-01" / "hr=00" / "events-00000000000000ab-000000000000-000000000004.parquet"
    torn.write_bytes(b"PAR1 and no end")
    result = reconciled(root, "--out", tmp_path / "out", "--as-of", AS_OF, "--format", "html")
    assert result.exit_code == 3, result.output
    assert "is torn; its events count as missing" in result.stdout
    assert result.stdout == (tmp_path / "out" / "report.html").read_text("utf-8")


def test_a_folder_of_something_else_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    result = reconciled(root_of(tmp_path / "root", History("g")), "--out", tmp_path / "out")
    assert isinstance(result.exception, ConfigurationError)
    assert "holds 'thesis.tex', which is not of an earlier run; give an empty folder to --out" in str(result.exception)


@pytest.mark.slow  # starts the command in a process
def test_the_command_exits_with_2_and_without_a_traceback(tmp_path: Path) -> None:
    program = "from ackwise.plugin.cli.main import main; main()"
    command = [sys.executable, "-c", program, "reconcile", str(tmp_path / "nowhere")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "nowhere is not a folder" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_spark_half_needs_no_kafka_client_and_the_command_and_the_oracle_no_pyspark() -> None:
    light = "ackwise.spark, ackwise.spark.reference.oracle, ackwise.spark.commands.reconcile"
    for blocked, modules in ((["aiokafka", "pydantic"], f"{light}, ackwise.spark.job"), (["pyspark", "py4j"], light)):
        subprocess.run([sys.executable, "-c", BLOCKED.format(blocked=blocked) + f"import {modules}"], check=True)


@pytest.mark.slow  # starts the command in a process without pyspark
def test_without_pyspark_the_command_says_what_to_install(tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", History("g").say("w1", "0:CS W=1"))
    program = BLOCKED.format(blocked=["pyspark"]) + "from ackwise.plugin.cli.main import main; main()"
    command = [sys.executable, "-c", program, "reconcile", str(root), "--engine", "spark"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "reconcile needs pyspark, which is not installed: pip install 'ackwise[spark]'" in answer.stderr


def test_since_is_a_time_or_a_duration_before_the_time_of_judgement() -> None:
    for said in ("2025-12-31T23:00:00Z", "2025-12-31T23:00", "2026-01-01T01:00:00+02:00", "1h", "60m", "3600"):
        assert begin_of(said, AS_OF) == NOW / SECOND - 3600, said


@pytest.mark.usefixtures("engine")
def test_the_last_commits_show_that_a_last_file_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History("g").say("w1", "RECEIVED_RANGE[0,2) 0:CS 1:C", ago=7200)
    root = root_of(tmp_path / "root", history)
    asked: list[tuple[str, set[str]]] = []

    async def kept(settings: HostSettings, groups: set[str]) -> list[LastCommit]:
        asked.append((settings.brokers, groups))
        return [LastCommit("g", history.events[-1]["writer_id"], 9)]

    monkeypatch.setattr("ackwise.plugin.topics.groupstate.last_commits", kept)
    options = ("--as-of", AS_OF, "--out", tmp_path / "out")
    assert reconciled(root, *options).exit_code == 1
    assert "1 worker died, and no commit says how far its events went" in summary(tmp_path / "out")["warnings"][0]
    assert reconciled(root, *options, "--brokers", "kafka:9092").exit_code == 3
    assert asked == [("kafka:9092", {"g"})]
    found = summary(tmp_path / "out")
    assert (found["verdicts"], found["missing_events"]) == ({"UNKNOWN_EXPORT_GAP": 1, "EXACTLY_ONCE": 1}, 6)


@pytest.mark.slow  # reconciles twice, with a report each
def test_commands_on_the_page_name_the_app_and_what_is_lost_is_counted_by_the_hour_of_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.spark.commands.lastcommits.commits_at", lambda brokers, roots: [])
    root = root_of(
        tmp_path / "root", History("g").say("w1", "RECEIVED_RANGE[0,3) 0:CS 1:CF 2:CS W=3", ago=7200, record_ts=NOW - 7200 * SECOND)
    )
    options = ("--engine", "local", "--as-of", AS_OF, "--out", tmp_path / "out")
    assert reconciled(root, *options, "--brokers", "billing.worker:app").exit_code == 1
    found = summary(tmp_path / "out")
    (lost,) = [each for each in found["to_do"] if each["name"] == "LOST"]
    assert lost["mends"] == f"ackwise plan apply {tmp_path / 'out' / 'plan.jsonl'} billing.worker:app"
    assert lost["tells"] == f"ackwise why orders/0/1 {root}"
    assert found["exhibits"]["hours"]["seconds"] == 3600
    assert found["exhibits"]["hours"]["verdicts"] == {"LOST": [1]}
    assert reconciled(root, *options, "--brokers", "kafka:9092").exit_code == 1
    assert "plan.jsonl MODULE:APP" in (tmp_path / "out" / "report.html").read_text()


def test_what_is_no_json_is_not_taken_for_what_was_produced(tmp_path: Path) -> None:
    root, table = root_of(tmp_path / "root", History("g").say("w1", "0:CS W=1")), tmp_path / "produced.json"
    for text, sentence in (("hello", f"line 1 of {table} is no JSON"), ("7", "has lines that are no JSON objects")):
        table.write_text(text)
        result = reconciled(root, "--produced", table)
        assert isinstance(result.exception, ConfigurationError)
        assert sentence in str(result.exception)


@pytest.mark.usefixtures("engine")
def test_what_is_doubtful_about_the_events_themselves_is_said_and_no_events_are_clean(tmp_path: Path) -> None:
    name = "47c a topic made anew, without an id, and newer records before older ones"
    history = copy(CASES[name].history)
    history.events = [*history.events]
    history.add("w1", 47, topic=TOPIC, partition=0, offset=9).add("w1", 77)
    result = reconciled(root_of(tmp_path / "root", history), "--out", tmp_path / "out", "--as-of", AS_OF)
    assert result.exit_code == 0, result.output
    falls, strange = summary(tmp_path / "out")["warnings"]
    assert falls.startswith("the records of 1 partitions, such as orders/0 of 47c a topic made anew")
    assert strange == "2 events were passed over: this version does not know what they mean"
    write_parquet(tmp_path / "empty" / "events" / "dt=2026-01-01" / "hr=00" / name_of(0xAB, 0, 4), [])
    assert reconciled(tmp_path / "empty", "--out", tmp_path / "none").exit_code == 0
    found = summary(tmp_path / "none")
    assert (found["verdicts"], found["accounts"], found["findings"], found["warnings"]) == ({}, [], [], [])
