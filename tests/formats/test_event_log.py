"""The bytes of an event log: the header, single events, and the start and the outcome of a run."""

from __future__ import annotations

from itertools import count

from tests.formats.golden import as_hex, check

from ackwise.middleware.eventlog import FIELDS, LAYOUT_VERSION, EventBuffer, EventLog, LogHeader, parse_log
from ackwise.middleware.events import Event, EventCode, RunEvents

HEADER = LogHeader(0xABCDEF, 4, "main", "billing", "worker-1", counts={1: 3, 30: 1})
SINGLE = [
    Event(
        EventCode.SENT_BACK, "orders", 3, 17, "bill", 2, exec_id=5, dedup_hash=-7, dedup_epoch=1, record_ts_ms=1_767_225_600_001,
        phys_topic="billing.retry", phys_partition=4, phys_offset=90, level=3, due_ms=1_767_225_660_000, took_unreleased=False,
        error="ValueError", dedup_key="größe", attrs="{}", topic_id="abc",
    ),
    Event(EventCode.GAP, "orders", 3, 18, range_end=20, proved=True),
]  # fmt: skip
STARTED = RunEvents(
    EventCode.CLAIMED, "orders", 3, range(20, 32), "bill", 1, [*range(1000, 1012)], range(40, 52), [*range(12)], 0, lost=0,
    order_hashes=[*range(12)],
)  # fmt: skip
PLACES = (0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11)
DONE = RunEvents(
    EventCode.SUCCEEDED, "orders", 3, [20 + place for place in PLACES], "bill", 1, [1000 + place for place in PLACES],
    [40 + place for place in PLACES], [*PLACES], 0, duration_us=9,
)  # fmt: skip


def test_layout_3() -> None:
    assert LAYOUT_VERSION == 3
    buffer = EventBuffer(4, now_ns=count(10**18).__next__, mono_ns=count(7).__next__)
    for event in SINGLE:
        buffer.record(event)
    buffer.record_run(STARTED)
    buffer.record_run(DONE)
    blocks = buffer.seal()
    lines = ["-- fields of a record", *(f"{field.name}: {field.format}{', a place in the strings' * field.is_text}" for field in FIELDS)]
    for title, content in [("header", HEADER.encode()), *((type(block).__name__, block.encode()) for block in blocks)]:
        lines += [f"-- {title}", *as_hex(content)]
    check("event-log", lines)
    log = parse_log(b"".join((HEADER.encode(), *(block.encode() for block in blocks))))
    assert isinstance(log, EventLog)
    assert (log.header, log.next_seq, log.is_damaged) == (HEADER, 4 + len(SINGLE) + len(STARTED) + len(DONE), False)
