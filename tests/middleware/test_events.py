"""The events' vocabulary, which is stable forever."""

from ackwise.middleware.events import EVENT_COLUMNS, OUTGOING, Event, EventCode

CODES = {
    "RECEIVED": 1, "CLAIMED": 2, "SUCCEEDED": 3, "FAILED": 4, "SENT_BACK": 5, "DEAD_LETTERED": 6, "DUP_SUPPRESSED": 7,
    "IN_FLIGHT_ELSEWHERE": 8, "SKIPPED": 9, "CLAIM_LOST": 10, "REDELIVERED": 11, "STALE": 12, "DROPPED": 13, "CANCELLED": 14,
    "PRODUCED": 15, "PRODUCE_FAILED": 16, "RELEASED": 17, "STARTED": 18,
    "LATE_SUCCESS": 19, "COMMITTED": 20, "ASSIGNED": 21, "REVOKED": 22, "GAP": 23, "SEEK": 24, "BROKER_OFFSETS": 25,
    "RECEIVED_RANGE": 26, "TX_SETTLED": 27, "ACCEPT_REFUSED": 28, "MARKED": 29, "SESSION_START": 30, "HEARTBEAT": 31, "SESSION_END": 32,
    "OUTBOX_STORED": 40, "OUTBOX_SENT": 41, "OUTBOX_PARKED": 42, "OUTBOX_REQUEUED": 43, "OUTBOX_CHECKED": 44, "RELAY_POSITION": 45,
    "OUTBOX_EXPIRED": 46,
}  # fmt: skip


def test_codes_never_change() -> None:
    assert {code.name: code.value for code in EventCode} == CODES


def test_codes_of_messages_fit_the_bits_of_an_int() -> None:
    assert max(code for code in EventCode if code < EventCode.SESSION_START) < 31


def test_the_producer_side_has_codes_of_its_own() -> None:
    assert {int(code) for code in OUTGOING} == {15, 16, 40, 41, 42, 43, 44, 45, 46}


def test_every_field_of_an_event_has_a_column() -> None:
    renamed = {"code": "event_type", "record_ts_ms": "record_ts", "due_ms": "due_ts"}
    columns = {column.name for column in EVENT_COLUMNS}
    assert {renamed.get(name, name) for name in Event._fields} <= columns
    assert columns - {renamed.get(name, name) for name in Event._fields} == {
        "schema_version", "writer_id", "seq", "event_ts", "cluster", "group_id", "client", "mono_ns",
    }  # fmt: skip
