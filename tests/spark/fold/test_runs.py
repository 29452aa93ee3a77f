"""Which messages of run rows are clean, 64 at a time, and what a run row stands for, message by message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.spark.cases import CONFIG
from tests.spark.histories import NOW, History
from tests.spark.joined import write_joined
from tests.spark.running import run

from ackwise.middleware.events import EventCode
from ackwise.spark.fold.clocks import FAR_AHEAD
from ackwise.spark.fold.runs import NAMES, may_be_clean, over_epochs, paired, survey_of, without_start, words
from ackwise.spark.kernels.runs import BY_KEY_IN_TURN, IN_TURN, MESSAGES, PIECE, messages
from ackwise.spark.local.session import local_engine
from ackwise.spark.session.rows import rows_of
from ackwise.stores.journal.parquet import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUN: dict[str, Any] = {
    "writer_id": 1,
    "mk": 7,
    "code": 2,
    "seq": 10,
    "ts": 1_000,
    "offset": 60,
    "exec_id": 2**63 - 2**17,
    "mono_ns": 5_000_000,
    "n": 4,
    "last_offset": 66,
    "masks": [-(2**63) | 2**60 | 2**62, 4],
    "record_ms": [1, 2, 3, 4],
    "hashes": [-1, 2, 3, 4],
    "order_hashes": [8, -8, 8, 9],
    "at_us": [0, 5, 6, 9],
    "seqs": [0, 2, 4, 6],
    "took_us": [50, 0, 70, 80],
    "duration_us": None,
    "ok_n": 3,
    "ok_masks": [-(2**63) | 2**60, 4],
    "ok_seq": 11,
    "ok_seqs": [0, 0, 4, 6],
    "ok_ts": 2_000,
    "ok_us": [0, 0, 20, 30],
    "ok_mono_ns": 6_000_000,
    "least_us": 1_000,
    "record_ts": 1_000,
    "record_ts_max": 4_000,
}


@pytest.fixture(scope="module")
def local() -> Iterator[SparkSession]:
    with local_engine() as session:
        yield session


def rows(*runs: dict[str, Any]) -> pa.Table:
    """Projected run rows."""
    kinds = {name: pa.list_(pa.int64()) if isinstance(value, list) else pa.int64() for name, value in RUN.items()}
    return pa.table({name: pa.array([run[name] for run in runs], kind) for name, kind in kinds.items()})


def of_runs(*runs: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in every_row(*runs) if row["code"] > 0]


def every_row(*runs: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.concat_tables(messages(rows(*runs))).to_pylist()
    return found


def piece(**others: Any) -> dict[str, Any]:
    """What is said of a whole run row."""
    (found,) = (row for row in every_row(RUN | others) if row["code"] < 0)
    return {of: found[name] for of, name in PIECE.items()}


def test_a_run_row_says_from_where_to_where_it_goes_and_when_it_ran() -> None:
    found = {"low": 60, "high": 66, "first": 10, "last_start": 16, "last": 17, "began": 1000, "ended": 2030}
    assert piece() == found | {"in_turn": IN_TURN | BY_KEY_IN_TURN}
    assert piece(ok_n=0, ok_masks=None, ok_seqs=None)["last"] == 16


@pytest.mark.parametrize(
    ("others", "in_turn"),
    [
        ({"at_us": None}, IN_TURN | BY_KEY_IN_TURN),  # one call
        ({"at_us": None, "seqs": [0, 4, 2, 6]}, 0),
        ({"at_us": [0, 0, 5, 5], "seqs": [0, 1, 4, 5], "ok_seqs": [0, 0, 5, 6]}, IN_TURN | BY_KEY_IN_TURN),  # one after the other
        ({"at_us": [0, 0, 5, 5], "seqs": [0, 1, 4, 5], "ok_seqs": [4, 0, 5, 6]}, IN_TURN),
        ({"seqs": [0, 2, 2, 6]}, 0),
    ],
)
def test_a_run_row_says_whether_its_messages_ran_in_turn(others: dict[str, Any], in_turn: int) -> None:
    assert piece(**others)["in_turn"] == in_turn


def test_a_run_row_stands_for_its_messages_by_rank_and_not_by_offset() -> None:
    found = of_runs(RUN)
    assert [row["offset"] for row in found] == [60, 62, 63, 66]
    assert [row["exec_id"] - RUN["exec_id"] for row in found] == [0, 1, 2, 3]
    assert [(row["seq"], row["ts"], row["record_ts"], row["dedup_hash"], row["order_hash"]) for row in found] == [
        (10, 1000, 1000, -1, 8),
        (12, 1005, 2000, 2, -8),
        (14, 1006, 3000, 3, 8),
        (16, 1009, 4000, 4, 9),
    ]
    ends = [(row["ok_seq"], row["ok_ts"], row["took"]) for row in found]
    assert ends == [(11, 2000, 50), (None, None, None), (15, 2020, 70), (17, 2030, 80)]
    assert {(row["clock"], row["ok_clock"]) for row in found} == {(-4000, -4000), (-4000, None)}


@pytest.mark.parametrize(("ok_mono_ns", "low", "high"), [(9_000_000, -7000, -4000), (3_000_000, -4000, -1000)])
def test_successes_of_a_run_count_for_the_clocks_and_the_life_of_its_writer(
    local: SparkSession, ok_mono_ns: int, low: int, high: int
) -> None:
    found = of_runs({**RUN, "ok_mono_ns": ok_mono_ns})
    given = rows_of(local, [[row[name] for name in MESSAGES.names] for row in found], ", ".join(f"{name} long" for name in MESSAGES.names))
    numbers = {"writer_id", "mk", "pk", "partition", "dedup_epoch"}
    named = rows_of(
        local,
        [[{"writer_id": 1, "mk": 7}.get(name, 0 if name in numbers else "") for name in NAMES]],
        ", ".join(f"{name} {'long' if name in numbers else 'string'}" for name in NAMES),
    )
    (row,) = survey_of(given, named).collect()
    assert (row["first_ts"], row["last_ts"], row["clock_low"], row["clock_high"]) == (1000, 2030, low, high)


def test_a_run_row_without_lists_is_consecutive_and_all_at_once() -> None:
    plain = {**RUN, **dict.fromkeys(name for name, value in RUN.items() if isinstance(value, list)), "n": 3, "last_offset": 62, "ok_n": 3}
    found = of_runs(plain | {"duration_us": 9})
    assert [(row["offset"], row["seq"], row["ts"], row["ok_seq"], row["ok_ts"], row["took"]) for row in found] == [
        (60 + place, 10 + place, 1000, 11 + place, 2000, 9) for place in range(3)
    ]
    assert {(row["record_ts"], row["dedup_hash"], row["order_hash"]) for row in found} == {(None, None, None)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 5},
        {"n": -1},
        {"n": 2**31 - 1, "last_offset": 2**31 + 58, "masks": None},
        {"offset": -4},
        {"offset": None, "n": 6, "masks": None, "last_offset": 5},
        {"last_offset": None},
        {"last_offset": 2**62},
        {"offset": 2**62 + 60, "last_offset": 2**62 + 66},
        {"last_offset": 59},
        {"last_offset": 67},
        {"offset": 61},
        {"masks": [1, 4]},
        {"masks": [-(2**63) | 2**60 | 2**62]},
        {"masks": [-(2**63) | 2**60 | 2**62, 4, 0]},
        {"ok_masks": [-(2**63) | 2**61, 4]},
        {"ok_masks": [2**60]},
        {"ok_n": 4},
        {"ok_n": 5},
        {"ok_ts": None},
        {"ok_seq": None},
        {"record_ms": [1, 2, 3]},
        {"record_ms": [2**60, 2, 3, 4]},
        {"hashes": [1]},
        {"order_hashes": [8, -8, 8]},
        {"at_us": [0, 1, 2, 2**62]},
        {"exec_id": 2**63 - 2},
        {"ts": 2**63 - 1},
    ],
    ids=str,
)
def test_a_run_row_that_contradicts_itself_is_one_message_without_an_offset(wrong: dict[str, Any]) -> None:
    found = of_runs(RUN, RUN | wrong, RUN)
    assert [row["offset"] for row in found if row["offset"] is not None] == [60, 62, 63, 66] * 2
    assert [(row["writer_id"], row["seq"]) for row in found if row["offset"] is None] == [(1, 10)]


@pytest.mark.parametrize("wrong", [{"least_us": 999}, {"least_us": None}, {"record_ts": 999}, {"record_ts_max": 4_001}], ids=str)
def test_messages_of_a_run_row_with_another_extreme_than_its_lists_are_judged_by_their_events(
    local: SparkSession, wrong: dict[str, Any]
) -> None:
    found = of_runs(RUN, RUN | wrong)
    assert [row["misstated"] for row in found] == [0] * 4 + [1] * 4
    assert masks(clean(local, found[:4])) == {(7, 0): (-(2**63) | 2**60 | 2**62, -(2**63) | 2**60), (7, 1): (4, 4)}
    assert masks(clean(local, found[4:])) == {(7, 0): (-(2**63) | 2**60 | 2**62, 0), (7, 1): (4, 0)}


def message(offset: int, *, ok: int | None = 5, mk: int = 7, code: int = EventCode.CLAIMED) -> dict[str, Any]:
    return {**dict.fromkeys(MESSAGES.names, 1), "misstated": 0, "mk": mk, "offset": offset, "ok_ts": ok, "code": code}


def clean(
    local: SparkSession,
    found: Sequence[dict[str, Any]],
    events: Sequence[tuple[int, int]] = (),
    excluded: Sequence[tuple[int, int, int]] = (),
) -> DataFrame:
    """The words of messages of runs beside these events (`mk`, `offset`) of other kinds."""
    given = rows_of(local, [[row[name] for name in MESSAGES.names] for row in found], ", ".join(f"{name} long" for name in MESSAGES.names))
    about = rows_of(local, [(mk, offset, 8, 0) for mk, offset in events], "mk long, offset long, code int, partition long")
    return words(given, about, rows_of(local, [(*each, 1) for each in excluded], "mk long, word long, mask long, words long"))


def masks(found: DataFrame) -> dict[tuple[int, int], tuple[int, int]]:
    return {(row["mk"], row["word"]): (row["seen"], row["clean"]) for row in found.collect()}


def test_one_pair_alone_is_clean_and_what_anything_else_is_said_of_is_not(local: SparkSession) -> None:
    found = clean(local, [message(0), message(1), message(2), message(3, ok=None), message(63)], [(7, 1), (7, 5)], [(7, 0, 4)])
    assert masks(found) == {(7, 0): (0b101111 - 2**63, 1 - 2**63)}


def test_a_pair_that_came_twice_is_not_clean_and_its_word_stays_exact(local: SparkSession) -> None:
    assert masks(clean(local, [message(0), message(0), message(1)])) == {(7, 0): (3, 2)}


def test_where_a_pair_came_three_times_no_message_of_its_word_is_clean(local: SparkSession) -> None:
    found = clean(local, [message(0), message(0), message(0), message(1), message(64)])
    assert masks(found) == {(7, 0): (3, 0), (7, 1): (1, 1)}


def test_an_open_start_beside_a_pair_speaks_against_it(local: SparkSession) -> None:
    assert masks(clean(local, [message(0), message(0, ok=None), message(1)])) == {(7, 0): (3, 2)}


def test_a_pair_whose_success_came_before_its_start_is_not_clean(local: SparkSession) -> None:
    assert masks(clean(local, [message(0), message(1, ok=1), message(2, ok=0)])) == {(7, 0): (7, 3)}


def of_two_files(local: SparkSession, *found: dict[str, Any]) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Offset, number and time of the success of each start, and the offsets of successes without one."""
    schema = ", ".join(f"{name} long" for name in MESSAGES.names)
    given = rows_of(local, [[row[name] for name in MESSAGES.names] for row in found], schema)
    starts = [(row["offset"], row["ok_seq"], row["ok_ts"]) for row in paired(given).collect()]
    return sorted(starts, key=str), sorted(row["offset"] for row in without_start(given).collect())


def success(offset: int, **other: Any) -> dict[str, Any]:
    return message(offset, ok=None, code=EventCode.SUCCEEDED) | {"seq": 90, "ts": 9, "ok_seq": None, "ok_clock": None} | other


def start(offset: int, **other: Any) -> dict[str, Any]:
    return message(offset, ok=None) | {"ok_seq": None, "ok_clock": None} | other


def test_a_success_in_a_later_file_belongs_to_the_start_of_its_execution(local: SparkSession) -> None:
    assert of_two_files(local, message(0), start(1), start(2), success(1)) == ([(0, 1, 5), (1, 90, 9), (2, None, None)], [])


def test_a_success_of_a_start_without_an_execution_belongs_to_it_too(local: SparkSession) -> None:
    without = {"exec_id": None, "dedup_hash": None}
    assert of_two_files(local, start(1, code=int(EventCode.STARTED), **without), success(1, **without)) == ([(1, 90, 9)], [])


@pytest.mark.parametrize("other", ["writer_id", "mk", "exec_id", "record_ts", "dedup_hash"])
def test_a_success_of_another_execution_is_an_event_of_its_own(local: SparkSession, other: str) -> None:
    assert of_two_files(local, start(1), success(1, **{other: 2})) == ([(1, None, None)], [1])
    assert of_two_files(local, start(1), success(1) | ({other: None} if other in ("exec_id", "dedup_hash") else {other: 3}))[1] == [1]


def test_a_success_in_two_files_is_two_pairs_and_its_message_not_clean(local: SparkSession) -> None:
    twice, _ = of_two_files(local, start(1), success(1), success(1))
    assert masks(clean(local, [message(1, ok=at) for _, _, at in twice] + [message(2)])) == {(7, 0): (6, 4)}


def test_a_run_row_of_successes_stands_for_messages_with_a_time_of_their_own() -> None:
    late = RUN | {"code": int(EventCode.SUCCEEDED), **{name: None for name in RUN if name.startswith("ok_")}, "least_us": None}
    found = of_runs(late)
    assert [(row["seq"], row["ts"], row["took"]) for row in found] == [(10, 1000, 50), (12, 1005, 0), (14, 1006, 70), (16, 1009, 80)]
    assert {(row["code"], row["ok_ts"], row["misstated"]) for row in found} == {(int(EventCode.SUCCEEDED), None, 0)}


def test_what_is_not_clean_in_one_dedup_epoch_is_clean_in_none(local: SparkSession) -> None:
    from ackwise.spark.fold.facts import View

    found = clean(local, [message(0), message(1), message(0, mk=8, ok=None), message(2, mk=8), message(0, mk=9)])
    views = [View(7, 1, ("c", "g"), "bill", 0), View(8, 1, ("c", "g"), "bill", 1), View(9, 1, ("c", "g"), "other", 0)]
    assert masks(over_epochs(found, local, views)) == {(7, 0): (3, 2), (8, 0): (5, 4), (9, 0): (1, 1)}


PLAIN: dict[str, Any] = {
    "schema_version": 3,
    "writer_id": 1,
    "seq": 0,
    "event_type": int(EventCode.CLAIMED),
    "event_ts": NOW,
    "partition": 0,
    "offset": 3,
    "exec_id": 5,
    "n": 1,
    "last_offset": 3,
    "attempt": 1,
    "lost": 0,
    "took_unreleased": False,
    "record_ts_max": NOW,
    "least_us": 7,
}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({}, True),
        ({"attempt": None, "lost": None, "took_unreleased": None, "least_us": None, "record_ts_max": None}, True),
        ({"event_type": int(EventCode.STARTED), "exec_id": None}, True),
        ({"n": None}, False),
        ({"partition": None}, False),
        ({"event_type": int(EventCode.DUP_SUPPRESSED)}, False),
        ({"event_type": int(EventCode.SUCCEEDED)}, True),
        ({"event_type": int(EventCode.SUCCEEDED), "exec_id": None}, True),
        ({"event_type": int(EventCode.FAILED)}, False),
        ({"attempt": 2}, False),
        ({"phys_topic": "retry"}, False),
        ({"lost": 1}, False),
        ({"took_unreleased": True}, False),
        ({"attrs": "{}"}, False),
        ({"error": "KeyError"}, False),
        ({"level": 0}, False),
        ({"due_ts": NOW}, False),
        ({"exec_id": None}, False),
        ({"record_ts_max": NOW + 2 * FAR_AHEAD}, False),
        ({"writer_id": 9}, False),
    ],
    ids=str,
)
def test_what_a_row_says_more_of_its_messages_than_that_they_ran_speaks_against_all_of_them(
    local: SparkSession, other: dict[str, Any], expected: bool
) -> None:
    row = PLAIN | other
    table = pa.table([pa.array([row.get(field.name)], field.type) for field in SCHEMA], schema=SCHEMA)
    assert local.createDataFrame(table).where(may_be_clean([9])).count() == int(expected)


def verdicts(local: SparkSession, tmp_path: Path, history: History) -> dict[int, str]:
    found = run(local, [write_joined(tmp_path / "events.parquet", history.events)], CONFIG).rulings["g"].messages
    return {offset: verdict.name for (*_, offset), (verdict, _) in found.items()}


def test_a_clean_message_accounts_for_one_of_its_key_that_was_suppressed(local: SparkSession, tmp_path: Path) -> None:
    history = History("g").start("w1").say("w1", "0:CS", key="a").say("w1", "1:CS", key="b").say("w1", "2:D", key="a").say("w1", "W=3")
    assert verdicts(local, tmp_path, history) == {0: "EXACTLY_ONCE", 1: "EXACTLY_ONCE", 2: "DUPLICATE_SUPPRESSED"}


def test_two_clean_messages_of_one_key_are_a_logical_duplicate(local: SparkSession, tmp_path: Path) -> None:
    history = History("g").start("w1").say("w1", "0:CS", key="a").say("w1", "1:CS", key="b").say("w1", "2:CS", key="a").say("w1", "W=3")
    found = run(local, [write_joined(tmp_path / "events.parquet", history.events)], CONFIG).rulings["g"].logical
    assert [verdict.name for verdict, _ in found.values()] == ["LOGICAL_DUPLICATE"]


@pytest.mark.parametrize(("told", "expected"), [("0:CS 1:CS 2:CS W=3", [0, 1, 2]), ("0:CS 1:CS 2:C W=3", [0, 1])])
def test_messages_that_succeeded_in_a_later_file_are_judged_without_a_look_at_each(
    local: SparkSession, tmp_path: Path, told: str, expected: list[int]
) -> None:
    from tests.spark.running import evidence_of

    from ackwise.spark.judging import weigh

    history = History("g").start("w1").say("w1", told)
    halves = [[event for event in history.events if (event["event_type"] == EventCode.SUCCEEDED) == is_late] for is_late in (False, True)]
    files = [write_joined(tmp_path / f"{number}.parquet", events) for number, events in enumerate(halves)]
    found = weigh(local, evidence_of(*files), CONFIG)
    try:
        assert sorted(row["offset"] for row in found.clean.collect()) == expected
    finally:
        found.release()


def test_successes_whose_starts_are_in_no_file_are_judged_as_single_events_would_be(local: SparkSession, tmp_path: Path) -> None:
    history = History("g").start("w1").say("w1", "0:CS 1:CS 2:CS W=3")
    events = [event for event in history.events if event["event_type"] != EventCode.CLAIMED]
    joined, single = (write_joined(tmp_path / f"{longest}.parquet", events, longest) for longest in (64, 1))
    found = [run(local, [path], CONFIG).rulings["g"] for path in (joined, single)]
    assert found[0] == found[1]
    assert {offset for *_, offset in found[0].messages} == {0, 1, 2}
