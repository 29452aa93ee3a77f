"""A message that a later one of its key or partition overtook is flagged, and both are named. Starts no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.cases import CASES, CONFIG, ordered, ran
from tests.spark.histories import NOW, SECOND, History, write_parquet
from tests.spark.joined import write_joined
from tests.spark.reconciling import AS_OF, every_message, reconciled, root_of, rows_of, summary
from tests.spark.reference.test_oracle import check, told
from tests.spark.report.reports import CLAIMED
from tests.spark.running import run

from ackwise.middleware.events import EventCode
from ackwise.spark.bins.session import binned, in_this_process
from ackwise.spark.follow.red import red_of
from ackwise.spark.kernels.order import BY_PARTITION, PIECES, STEPS, overtaken, unproved
from ackwise.spark.local.session import local_engine
from ackwise.spark.vocabulary import Flag, Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Those of order, from the first on.
ORDERED = {name: case for name, case in CASES.items() if name >= "97"}
KEY = 7


@pytest.fixture(scope="module", params=[0, 3], ids=lambda bins: f"{bins} bins" if bins else "no bins")
def local(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The local engine, or as many that share the work."""
    made = binned(in_this_process, request.param, tmp_path_factory.mktemp("bins") / "rows") if request.param else local_engine()
    with made as session:
        yield session


@pytest.mark.parametrize("longest", [None, 1, 3, 4096])
def test_each_case_of_order_is_judged_as_the_oracle_judges_it_whatever_the_rows_are(
    local: SparkSession, tmp_path: Path, longest: int | None
) -> None:
    events = [event for case in ORDERED.values() for event in case.history.events]
    path = tmp_path / "events.parquet"
    found = run(local, [write_parquet(path, events) if longest is None else write_joined(path, events, longest)], CONFIG).rulings
    for name, case in ORDERED.items():
        check(name, case, found[name])
        assert found[name] == told(case.history), name


def shop(order: str = "key") -> History:
    """A worker whose handler has an order."""
    return History("g").start("w1", order={"bill": order}).assign("w1", 0, at=NOW - 9000 * SECOND)


def audit(tmp_path: Path, history: History, *arguments: str) -> tuple[int, str, Mapping[str, Any]]:
    result = reconciled(root_of(tmp_path / "root", history), "--out", tmp_path / "out", "--as-of", AS_OF, *arguments)
    return result.exit_code, " ".join(result.output.split()), summary(tmp_path / "out")


def test_an_overtaken_message_is_an_anomaly_that_names_both_and_that_no_plan_sends_again(tmp_path: Path) -> None:
    history = ran(shop().say("w1", "RECEIVED_RANGE[0,3)"), "w1", "0:C 1:CS 0:S 2:CS", order_hash=KEY).say("w1", "W=3")
    code, output, found = audit(tmp_path, history)
    assert (code, found["anomalies"]) == (1, 1), output
    assert [(each["offset"], each["flags"], each["overtaken_by"]) for each in found["findings"]] == [(0, ["OVERTAKEN"], 1)]
    assert "SUCCEEDED, +OVERTAKEN by 1" in output
    assert "OVERTAKEN 1 message: A later message of its key or partition started first" in output
    assert found["plan"]["actions"] == {}
    assert [(row["offset"], row["state"]["overtaken_by"]) for row in rows_of(tmp_path / "out" / "verdicts")] == [(0, 1)]


def test_a_message_that_was_perhaps_overtaken_is_a_doubt(tmp_path: Path) -> None:
    history = shop().start("w2", order={"bill": "key"}).say("w1", "RECEIVED_RANGE[0,2)", ago=120)
    history = ran(ran(history, "w1", "0:C", ago=100, order_hash=KEY), "w2", "1:CS", ago=90, order_hash=KEY)
    history = ran(history, "w1", "0:S", ago=80).say("w1", "W=2", ago=70)
    code, output, found = audit(tmp_path, history)
    assert (code, found["anomalies"]) == (0, 0), output
    assert [(each["offset"], each["flags"], each["overtaken_by"]) for each in found["doubtful"]] == [(0, ["MAYBE_OVERTAKEN"], 1)]
    assert "1 message may have run after a later message of its key or partition had started" in output
    assert "not each is known to have run in order; exit code 0, or 1 with --strict" in output
    assert audit(tmp_path / "strict", history, "--strict")[0] == 1


def test_messages_that_kept_their_order_are_in_the_ranges_and_those_that_did_not_are_none(tmp_path: Path) -> None:
    history = ordered("ranges", dict.fromkeys(range(100), Verdict.EXACTLY_ONCE), "key")
    del CASES["ranges"]
    for key in (1, 2):
        for offset in range(50 * (key - 1), 50 * key):
            late = offset == 60
            ran(history, "w1", f"{offset}:C" if late else f"{offset}:CS", order_hash=key)
            if offset == 61:
                ran(history, "w1", "60:S")
    root = tmp_path / "root" / "events"
    for writer in {event["writer_id"] for event in history.events}:
        mine = [event for event in history.events if event["writer_id"] == writer]
        path = write_joined(tmp_path / "joined.parquet", mine)
        assert pq.read_table(path, columns=["n"])["n"].null_count < len(mine) or len(mine) < 3
        root.mkdir(parents=True, exist_ok=True)
        path.rename(root / f"events-{writer:016x}-{0:012d}-{len(mine) - 1:012d}.parquet")
    result = reconciled(root.parent, "--out", tmp_path / "out", "--as-of", AS_OF)
    assert result.exit_code == 1, result.output
    found = every_message(tmp_path / "out")
    assert {row["offset"] for row in found if row["flags"]} == {60}
    assert {row["offset"] for row in rows_of(tmp_path / "out" / "verdicts")} == {60}
    assert sum(row["n"] for row in rows_of(tmp_path / "out" / "ranges")) == 99


def test_a_flag_that_makes_a_message_red_is_an_alarm_of_follow(tmp_path: Path) -> None:
    where = {"cluster": "c", "group_id": "g", "topic": "orders", "topic_id": "", "partition": 0, "handler": "bill", "dedup_epoch": 0}
    rows = [where | {"offset": at, "verdict": "EXACTLY_ONCE", "flags": [flag]} for at, flag in ((1, "OVERTAKEN"), (2, "MAYBE_OVERTAKEN"))]
    (tmp_path / "verdicts").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "verdicts" / "part-0.parquet")
    flags = Flag.OVERTAKEN | Flag.MAYBE_OVERTAKEN
    report = replace(CLAIMED, output=str(tmp_path), tallies=[replace(CLAIMED.tallies[0], verdict=Verdict.EXACTLY_ONCE, flags=flags)])
    assert {kind.verdict: ranges for kind, ranges in red_of(report).present.items()} == {"OVERTAKEN": [(1, 2)]}
    strict = replace(report, config=replace(report.config, strict=True))
    assert {kind.verdict for kind in red_of(strict).present} == {"OVERTAKEN", "MAYBE_OVERTAKEN"}


@pytest.mark.parametrize("order", ["key", "none"])
def test_a_worker_that_says_no_order_keeps_none(local: SparkSession, tmp_path: Path, order: str) -> None:
    history = ran(shop(order).say("w1", "RECEIVED_RANGE[0,2)"), "w1", "1:CS 0:CS", order_hash=KEY).say("w1", "W=2")
    found = run(local, [write_parquet(tmp_path / "events.parquet", history.events)], CONFIG).rulings["g"].messages
    flags = {offset: flag for (*_, offset), (_, flag) in found.items()}
    assert flags == {0: Flag.OVERTAKEN if order == "key" else Flag(0), 1: Flag(0)}


@pytest.mark.parametrize("in_turn", [0, 1])
def test_messages_of_one_run_row_are_compared_unless_it_has_them_in_turn(in_turn: int) -> None:
    piece = {**dict.fromkeys(PIECES, 0), "mk": 7, "writer_id": 1, "low": 60, "high": 70, "last": 9, "ended": 9, "in_turn": in_turn}
    found = pa.concat_tables(unproved(pa.table({name: pa.array([piece[name]], pa.int64()) for name in PIECES})))
    assert [(row["mk"], row["word"]) for row in found.to_pylist()] == ([] if in_turn else [(7, 0), (7, 1)])


@pytest.mark.parametrize(("began", "expected"), [(2, []), (0, [(0, 1)])])
def test_successes_that_a_partition_tells_in_a_portion_overtake_nobody(began: int, expected: list[tuple[int, int]]) -> None:
    steps = [
        {"offset": 0, "exec_id": 1, "seq": 1, "ts": 10, "end_seq": 5, "end_ts": 50},
        {"offset": 1, "exec_id": 2, "seq": began, "ts": 10 * began, "end_seq": 6, "end_ts": 60},
    ]
    same = {"mk": 7, "writer_id": 1, "kind": BY_PARTITION, "code": int(EventCode.CLAIMED), "key": None, "is_out": 0}
    rows = pa.table({name: pa.array([(same | step)[name] for step in steps], pa.int64()) for name in STEPS})
    found = [row for table in overtaken(rows, grace=0, wrong=(), blind=()) for row in table.to_pylist()]
    assert [(row["offset"], row["overtaken_by"]) for row in found] == expected
