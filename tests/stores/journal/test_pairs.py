"""The events of a log as arrays, and pairs of a start and its success that stand in two files."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.middleware.test_eventlog import EVENTS, runs, runs_and_outcomes
from tests.spark.events.test_runs import HISTORIES, Worker, recorded

from ackwise.middleware.eventlog import FIELDS, NONE, EventBuffer, EventLog, LogHeader, encoded, parse_log
from ackwise.middleware.events import Event, EventCode, RunEvents
from ackwise.stores.journal.columns import Columns
from ackwise.stores.journal.parquet import tables_of
from ackwise.stores.journal.runs import LONGEST

ABOUT: Final = ("topic", "partition", "offset", "handler", "exec_id", "dedup_hash", "record_ts")


@pytest.mark.parametrize("longest", [7, 64, LONGEST])
def test_a_row_of_successes_names_the_starts_of_its_messages(longest: int) -> None:
    across_files = 0
    for seed in range(HISTORIES):
        logs = Worker(seed).logs()
        known = {event["seq"]: event for log in logs for event in recorded(log)}
        for log in logs:
            for row in tables_of(log, longest)[0].to_pylist():
                if row["claim_seq"] is None:
                    continue
                assert row["event_type"] == EventCode.SUCCEEDED
                across_files += row["claim_seq"] < log.header.first_seq
                for rank in range(row["n"]):
                    success, start = known[row["seq"] + (row["seqs"][rank] if row["seqs"] else rank)], known[row["claim_seq"] + rank]
                    assert start["event_type"] == EventCode.CLAIMED
                    assert [start[name] for name in ABOUT] == [success[name] for name in ABOUT]
    assert across_files > HISTORIES


def test_successes_of_one_row_have_starts_in_a_row() -> None:
    buffer, hashes, times = EventBuffer(), [5] * 12, [1_767_272_400_000] * 12
    runs = [(EventCode.CLAIMED, first) for first in (0, 12)] + [(EventCode.SUCCEEDED, first) for first in (0, 12)]
    for code, first in runs:
        numbers = range(first, first + 12)
        buffer.record_run(RunEvents(code, "orders", 0, numbers, "bill", 1, times, numbers, hashes, 0))
        buffer.record(Event(EventCode.HEARTBEAT))
    blocks = buffer.seal()
    log = parse_log(LogHeader(7, 26).encode() + encoded(blocks[4:], 26))
    assert isinstance(log, EventLog)
    rows = tables_of(log)[0].to_pylist()
    assert [(row["offset"], row["n"], row["claim_seq"]) for row in rows] == [(0, 12, 0), (12, 12, 13)]


def assert_same_values(log: EventLog) -> None:
    columns = Columns(log)
    rows = [row for block in log.blocks for row in block.rows()]
    assert columns.seq.tolist() == [row.seq for row in rows]
    for name, form, is_text in FIELDS:
        values = [getattr(row, name) if name in ("at_ns", "mono_ns") else getattr(row.event, name) for row in rows]
        found = columns.fields[name].tolist()
        none = 0 if is_text else NONE[form]
        assert [columns.texts[value] if is_text else None if value == none else value for value in found] == values, name


def test_arrays_of_a_log_have_the_values_of_its_events() -> None:
    for seed in range(HISTORIES):
        for log in Worker(seed).logs():
            assert_same_values(log)


@pytest.mark.slow  # reads a hundred logs twice
@given(st.lists(st.lists(EVENTS | st.integers(1, 14).flatmap(runs), max_size=3) | runs_and_outcomes(), min_size=1), st.integers(0, 30))
def test_arrays_of_any_log_have_the_values_of_its_events(parts: list[list[Event | RunEvents]], first_seq: int) -> None:
    """Also where outcomes stand in another file than their start, as those below `first_seq` do."""
    buffer = EventBuffer()
    for one in (one for part in parts for one in part):
        if isinstance(one, RunEvents):
            buffer.record_run(one)
        else:
            buffer.record(one)
    if blocks := [block for block in buffer.seal() if block.first_seq >= first_seq]:
        log = parse_log(LogHeader(7, blocks[0].first_seq).encode() + encoded(blocks, blocks[0].first_seq))
        assert isinstance(log, EventLog)
        assert_same_values(log)
