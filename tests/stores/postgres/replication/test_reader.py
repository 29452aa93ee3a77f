"""Changes and ends of transactions as they are made of messages, ids, and the position that may be reported. Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stores.cases import case

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.storage.changes import Change, ChangesLost, Committed, NotInLog, Operation, UnreadableChange
from ackwise.stores.postgres.replication.coverage import Table
from ackwise.stores.postgres.replication.pgoutput import UNCHANGED, Unchanged
from ackwise.stores.postgres.replication.reader import Columns, Reader
from ackwise.stores.postgres.replication.slot import Decision, Known, Progress, Slot, decide, findings, wrong_with

ORDERS = (("id", 20, True), ("note", 25, False), ("paid", 16, False), ("raw", 17, False))


def relation(oid: int = 7, table: str = "orders", columns: Sequence[tuple[str, int, bool]] = ORDERS) -> bytes:
    each = [bytes([key]) + name.encode() + b"\0" + struct.pack("!Ii", type_oid, -1) for name, type_oid, key in columns]
    return b"R" + struct.pack("!I", oid) + b"public\0" + table.encode() + b"\0d" + struct.pack("!H", len(columns)) + b"".join(each)


def row(*values: bytes | Unchanged | None) -> bytes:
    def of(value: object) -> bytes:
        if value is None:
            return b"n"
        return b"t" + struct.pack("!I", len(value)) + value if isinstance(value, bytes) else b"u"

    return struct.pack("!H", len(values)) + b"".join(map(of, values))


def begin(lsn: int) -> bytes:
    return b"B" + struct.pack("!QqI", lsn, 1_000_000, 5)


def commit(lsn: int, end: int) -> bytes:
    return b"C\0" + struct.pack("!QQq", lsn, end, 0)


def insert(*values: bytes | None, oid: int = 7) -> bytes:
    return b"I" + struct.pack("!I", oid) + b"N" + row(*values)


ONE = (b"1", b"tea", b"t", b"\\x00ff")


def reader(progress: Progress | None = None, known: dict[Table, Columns] | None = None, **options: Any) -> Reader:
    return Reader({Table("public", "orders"): 7}, "sys-1-slot", {} if known is None else known, progress or Progress(), **options)


def read(of: Reader, *payloads: bytes) -> list[Change | Committed]:
    return [said for payload in payloads if (said := of.read(payload)) is not None]


def test_a_transaction_is_its_changes_and_its_end() -> None:
    said = read(reader(), begin(16), relation(), insert(*ONE), insert(b"2", None, b"f", None), commit(16, 32))
    first, second, end = said
    assert isinstance(first, Change)
    assert isinstance(second, Change)
    assert first == Change(
        "public.orders",
        Operation.INSERT,
        {"id": 1, "note": "tea", "paid": True, "raw": b"\0\xff"},
        None,
        "0/10",
        0,
        "sys-1-slot-0-10-0",
        946_684_801_000,
    )
    assert (second.row, second.number, second.id) == ({"id": 2, "note": None, "paid": False, "raw": None}, 1, "sys-1-slot-0-10-1")
    assert end == Committed("0/20")


def test_the_number_of_a_change_does_not_depend_on_the_tables_that_are_wanted() -> None:
    other = relation(8, "audit")
    (change, _) = read(reader(), begin(16), other, relation(), insert(*ONE, oid=8), insert(*ONE), commit(16, 32))
    assert isinstance(change, Change)
    assert change.number == 1


def test_an_update_has_the_row_after_and_the_key_before() -> None:
    update = b"U" + struct.pack("!I", 7) + b"K" + row(b"1", None, None, None) + b"N" + row(b"9", b"tea", b"t", None)
    (change,) = read(reader(), begin(16), relation(), update)
    assert isinstance(change, Change)
    assert (change.operation, change.row["id"], change.old and change.old["id"]) == (Operation.UPDATE, 9, 1)


def test_a_value_that_an_update_left_alone_is_not_null() -> None:
    update = b"U" + struct.pack("!I", 7) + b"N" + row(b"1", UNCHANGED, b"t", None)
    (change,) = read(reader(), begin(16), relation(), update)
    assert isinstance(change, Change)
    assert (change.row["id"], change.row["raw"], sorted(change.row)) == (1, None, ["id", "paid", "raw"])
    for ask in (change.row.__getitem__, change.row.get):
        with pytest.raises(NotInLog, match=r"column note of public\.orders is not in the log.*REPLICA IDENTITY FULL"):
            ask("note")
    with pytest.raises(KeyError):
        change.row["never"]


def test_the_whole_row_before_fills_what_the_log_does_not_repeat() -> None:
    update = b"U" + struct.pack("!I", 7) + b"O" + row(*ONE) + b"N" + row(b"1", UNCHANGED, b"f", None)
    (change,) = read(reader(), begin(16), relation(), update)
    assert isinstance(change, Change)
    assert change.row == {"id": 1, "note": "tea", "paid": False, "raw": None}


def test_a_deletion_has_its_key() -> None:
    delete = b"D" + struct.pack("!I", 7) + b"K" + row(b"1", None, None, None)
    (change,) = read(reader(), begin(16), relation(), delete)
    assert isinstance(change, Change)
    assert (change.operation, list(change.row), change.old) == (Operation.DELETE, ["id"], None)
    with pytest.raises(NotInLog):
        change.row["note"]


def test_what_no_server_sends_is_an_error_and_no_change() -> None:
    for payloads, sentence in [
        ([insert(*ONE)], "of which nothing was said"),
        ([relation(), insert(*ONE)], "outside of a transaction"),
        ([begin(16), begin(17)], "inside another one"),
        ([commit(16, 32)], "has not started"),
        ([begin(16), commit(17, 32)], "has not started"),
        ([begin(16), commit(16, 15)], "ends before its commit"),
        ([begin(16), relation(), insert(b"1")], "has 1 values for 4 columns"),
        ([begin(16), relation(), insert(b"x", None, None, None)], "invalid literal"),
        ([begin(16), relation(), insert(b"1", None, None, b"abc")], "bytea_output"),
        ([begin(16), b"?"], "has the kind ?"),
    ]:
        with case(payloads, sentence):
            with pytest.raises(UnreadableChange) as caught:
                read(reader(), *payloads)
            assert sentence in str(caught.value)


def test_a_dropped_or_changed_column_ends_the_stream_and_a_new_one_does_not() -> None:
    known: dict[Table, Columns] = {}
    for later, sentence in (
        (ORDERS[:3], "column raw is gone"),
        ((*ORDERS[:3], ("raw", 25, False)), "column raw has another type"),
    ):
        first = reader(known=known)
        read(first, begin(16), relation(), insert(*ONE), commit(16, 32), begin(48))
        with pytest.raises(UnreadableChange, match=rf"public\.orders was changed while it was read, {sentence}"):
            first.read(relation(columns=later))
        with pytest.raises(UnreadableChange, match=sentence):  # the next stream of this process sees the same
            read(reader(known=known), begin(48), relation(columns=later))
    wider = (*ORDERS, ("more", 25, False))
    (_, _, change) = read(
        reader(known=known), begin(16), relation(), insert(*ONE), commit(16, 32), begin(48), relation(columns=wider), insert(*ONE, b"x")
    )
    assert isinstance(change, Change)
    assert change.row["more"] == "x"


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack(f"!IB{len(oids)}I", len(oids), 0, *oids)


def test_what_changes_the_rows_of_a_table_ends_the_stream_unless_it_was_accepted() -> None:
    other = relation(oid=8, table="other")
    for payloads, sentence in (
        ([relation(), truncate(7)], r"public\.orders was emptied by TRUNCATE, .* the transaction that was committed at 0/10"),
        ([relation(), other, truncate(8, 7)], "emptied by TRUNCATE"),
        ([relation(table="gone")], r"public\.orders was renamed to public\.gone"),
        ([relation(oid=9)], r"public\.orders was another table"),
    ):
        with case(sentence):
            with pytest.raises(ChangesLost, match=sentence):
                read(reader(), begin(16), *payloads)
            with pytest.raises(ChangesLost, match=sentence):
                read(reader(accepted=15, settled=99), begin(16), *payloads)
            assert read(reader(accepted=16), begin(16), *payloads, commit(16, 32)) == [Committed("0/20")]
    assert read(reader(), begin(16), other, truncate(8)) == []


def test_a_table_that_was_renamed_or_made_again_is_read_once_that_is_accepted() -> None:
    one = (b"1", None, None, None)
    payloads = [begin(16), relation(table="gone"), insert(*one), relation(oid=9), insert(*one, oid=9), relation(oid=8, table="other")]
    changes = read(reader(accepted=16), *payloads, insert(*one, oid=8))
    assert [change.table for change in changes if isinstance(change, Change)] == ["public.gone", "public.orders"]


def test_columns_change_freely_up_to_what_was_there_at_the_start() -> None:
    changed = (*ORDERS[:3], ("raw", 25, False))
    payloads = [begin(16), relation(), insert(*ONE), relation(columns=changed), insert(*ONE), commit(16, 32)]
    assert [each.row["raw"] for each in read(reader(settled=16), *payloads) if isinstance(each, Change)] == [b"\x00\xff", "\\x00ff"]
    with pytest.raises(UnreadableChange, match="column raw has another type"):
        read(reader(settled=15), *payloads)


def test_a_type_of_users_is_asked_for_once_and_read_as_what_it_stands_for() -> None:
    bases = {16400: 23}
    of = reader(bases=bases)
    columns = (("id", 20, True), ("count", 16400, False), ("mood", 16401, False), ("mine", 16383, False))
    assert of.unknown_types(relation(columns=columns)) == {16401}
    assert of.unknown_types(insert(*ONE)) == set()
    bases[16401] = 16401
    assert of.unknown_types(relation(columns=columns)) == set()
    (change,) = read(of, begin(16), relation(columns=columns), insert(b"1", b"2", b"so so", b"x"))
    assert isinstance(change, Change)
    assert change.row == {"id": 1, "count": 2, "mood": "so so", "mine": "x"}


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([begin(16), relation(), insert(*ONE), commit(16, 32)])), max_size=8))
def test_any_stream_is_changes_or_an_error(payloads: list[bytes]) -> None:
    of = reader()
    for payload in payloads:
        try:
            said = of.read(payload)
        except (UnreadableChange, ChangesLost):
            return
        assert said is None or isinstance(said, (Change, Committed))


def test_only_the_end_of_an_acknowledged_transaction_may_be_reported() -> None:
    progress = Progress(10)
    progress.begin()
    progress.passed(50)
    assert progress.done == 10
    progress.commit(60)
    progress.passed(70)
    assert progress.done == 10
    progress.acknowledge(59)
    assert progress.done == 10
    progress.acknowledge(60)
    assert progress.done == 60
    progress.passed(80)
    assert progress.done == 80


def test_a_position_that_was_never_read_can_not_be_acknowledged() -> None:
    progress = Progress(10)
    progress.acknowledge(99)
    assert progress.done == 10


@given(st.lists(st.tuples(st.sampled_from(["transaction", "acknowledge", "passed"]), st.integers(0, 3)), max_size=40))
def test_a_report_never_goes_back_nor_beyond_what_is_outstanding(steps: list[tuple[str, int]]) -> None:
    progress, at, ends = Progress(), 0, list[int]()
    for step, back in steps:
        before = progress.done
        match step:
            case "transaction":
                progress.begin()
                progress.passed(at + 5)  # a keepalive inside of it
                at += 10
                ends.append(at)
                progress.commit(at)
            case "acknowledge" if len(ends) > back:
                progress.acknowledge(ends[back])
                ends = ends[back + 1 :]
            case _:
                at += 1
                progress.passed(at)
        assert before <= progress.done <= at
        assert not ends or progress.done < ends[0]


SLOT = Slot("pgoutput", "logical", True, False, "0/10", "reserved", None, 100, 50, -1, 0)
KNOWN = Known("sys", 1, "0/10")


def decided(seen: Slot | None, known: Known | None, *, create: bool = False, replace_lost: bool = False, timeline: int = 1) -> Decision:
    return decide("s", seen, known, "sys", timeline, create=create, replace_lost=replace_lost, remains="rows remain")


def test_a_slot_is_read_on_and_one_that_never_was_is_made_only_on_demand() -> None:
    assert decided(SLOT, KNOWN) == Decision(False, False)
    assert decided(SLOT, None) == Decision(False, False)
    assert decided(None, None, create=True) == Decision(False, True)
    with pytest.raises(ConfigurationError, match="no replication slot s; --create-slot"):
        decided(None, None)


def test_a_lost_slot_is_never_passed_over() -> None:
    for seen, known, sentence in [
        (None, KNOWN, "slot s is gone, which was read up to 0/10"),
        (SLOT._replace(confirmed="0/11"), KNOWN, "slot s starts at 0/11, and was read up to 0/10 only"),
        (SLOT._replace(wal_status="lost"), KNOWN, "max_slot_wal_keep_size"),
        (SLOT._replace(wal_status="lost"), None, "max_slot_wal_keep_size"),
        (SLOT, Known("other", 1, "0/8"), "this is another server"),
        (None, Known("other", 1, "0/8"), "this is another server"),
    ]:
        with case(seen, known, sentence):
            for create in (False, True):
                with pytest.raises(ChangesLost) as caught:
                    decided(seen, known, create=create)
                assert sentence in str(caught.value)
                assert "rows remain" in str(caught.value)
            decision = decided(seen, known, create=True, replace_lost=True)
            assert sentence in str(decision.says)
            assert decision.makes == (seen is None or seen.wal_status == "lost")
            assert decision.drops == (seen is not None and seen.wal_status == "lost")


def test_a_new_timeline_is_told() -> None:
    assert "timeline 2 after 1" in str(decided(SLOT, KNOWN, timeline=2).says)
    ahead = SLOT._replace(confirmed="0/11")  # what a stand-by knows of the slot may be newer than its copy of our table
    assert "timeline 2 after 1" in str(decided(ahead, KNOWN, timeline=2).says)


def test_a_slot_of_somebody_else_is_refused_even_for_replacing() -> None:
    for other in [SLOT._replace(plugin="wal2json"), SLOT._replace(slot_type="physical"), SLOT._replace(is_here=False)]:
        with case(other), pytest.raises(ConfigurationError, match="choose another --slot"):
            decided(other, None, create=True, replace_lost=True)


def test_the_retention_of_a_slot_is_told_in_time() -> None:
    assert findings("s", SLOT._replace(keep_mb=100, safe=99 * 2**20)) == ()
    assert "max_slot_wal_keep_size is -1" in findings("s", SLOT)[0]
    assert "nearly lost: 1048576 bytes" in findings("s", SLOT._replace(keep_mb=100, safe=2**20))[0]
    assert "nearly lost: 0 bytes" in findings("s", SLOT._replace(keep_mb=100, safe=-5, wal_status="unreserved"))[0]
    assert "is lost" in findings("s", SLOT._replace(keep_mb=100, wal_status="lost"))[0]
    assert "long transaction" in findings("s", SLOT._replace(keep_mb=9000, safe=9000 * 2**20, retained=2**31))[0]


def test_a_publication_that_leaves_something_out_is_refused() -> None:
    table: list[tuple[list[dict[str, Any]], list[str], str | None]] = [
        ([], ["insert"], "has no table public.t; ALTER PUBLICATION p ADD TABLE public.t"),
        ([{"schemaname": "public", "tablename": "t", "rowfilter": "(id > 5)"}], ["insert"], "leaves out rows"),
        ([{"schemaname": "public", "tablename": "t", "attnames": ["id"]}], ["insert"], "leaves out column value"),
        ([{"schemaname": "public", "tablename": "t"}], ["update"], "does not publish insert"),
        ([{"schemaname": "public", "tablename": "t", "attnames": ["id", "value"], "rowfilter": None}], ["insert"], None),
    ]
    for published, operations, sentence in table:
        with case(published, operations, sentence):
            wrong = wrong_with("p", [Table("public", "t")], published, operations, columns=["id", "value"], needs=["insert"])
            assert wrong is None if sentence is None else sentence in str(wrong)
