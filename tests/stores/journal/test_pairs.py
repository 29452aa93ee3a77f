"""The events of a log as arrays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.middleware.test_eventlog import EVENTS, runs, runs_and_outcomes
from tests.spark.events.test_runs import HISTORIES, Worker

from ackwise.middleware.eventlog import FIELDS, NONE, EventBuffer, EventLog, LogHeader, encoded, parse_log
from ackwise.middleware.events import Event, RunEvents
from ackwise.stores.journal.columns import Columns


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
