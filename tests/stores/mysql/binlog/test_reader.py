"""Events of the binary log: what each becomes, in which order, and that any bytes end in changes or in a sentence."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stores.cases import case

from ackwise.middleware.storage.changes import Change, ChangesLost, Committed, Operation, UnreadableChange
from ackwise.stores.mysql.binlog.position import Place, Progress, place_of
from ackwise.stores.mysql.binlog.reader import Reader, Wanted

START = Place(1, 100, "binlog.000001", 0)
BEGIN = struct.pack("<QIB", 1, 0, 0) + b"\0" * 6
ROTATE, FORMAT, GTID, QUERY, XID, TABLE, INSERT, UPDATE = 4, 15, 162, 2, 16, 19, 23, 24


def event(kind: int, body: bytes, end: int, *, stamp: int = 1000, checksum: bool = True) -> bytes:
    whole = struct.pack("<IBIIIH", stamp, kind, 1, 19 + len(body), end, 0) + body
    return b"\0" + whole + (struct.pack("<I", zlib.crc32(whole)) if checksum else b"")


def description(end: int = 0, *, stamp: int = 1000) -> bytes:
    return event(FORMAT, b"\4\0" + b"\0" * 60 + b"\1", end, stamp=stamp)


def query(text: bytes) -> bytes:
    return struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"x\0" + text


def table(name: bytes = b"orders", number: int = 7, column: bytes = b"id") -> bytes:
    head = struct.pack("<IHH", number, 0, 0) + b"\4shop\0" + bytes([len(name)]) + name + b"\0"
    return head + b"\1\3\0\0" + b"\1\1\0" + bytes([4, len(column) + 1, len(column)]) + column


def rows(*numbers: int, number: int = 7) -> bytes:
    return struct.pack("<IHH", number, 0, 0) + b"\1\1" + b"".join(b"\0" + struct.pack("<i", each) for each in numbers)


def new_reader(start: Place = START, **options: object) -> tuple[Reader, Progress]:
    progress = Progress(start)
    return Reader({"shop.orders": Wanted()}, "1", {}, progress, {}, **options), progress  # type: ignore[arg-type]


def read(reader: Reader, *events: bytes) -> list[Change | Committed]:
    return [each for one in events for each in reader.read(one)]


def transaction(start: int, *inside: tuple[int, bytes], end: tuple[int, bytes] = (XID, b"\0" * 8)) -> list[bytes]:
    """Ten bytes to each event."""
    return [event(kind, body, start + 10 * number) for number, (kind, body) in enumerate([(GTID, BEGIN), *inside, end], start=1)]


def ids(found: list[Change | Committed]) -> list[int]:
    return [each.row["id"] for each in found if isinstance(each, Change)]


def test_changes_are_told_with_the_end_of_their_transaction_and_have_ids_of_their_place() -> None:
    reader, progress = new_reader()
    first, second, end = read(reader, description(), *transaction(100, (TABLE, table()), (INSERT, rows(-5, 6))))
    assert isinstance(first, Change)
    assert (first.table, first.operation, first.row, first.position) == ("shop.orders", Operation.INSERT, {"id": -5}, "binlog.000001:100")
    assert (first.id, first.number, first.committed_ms) == ("1-1000-1-130-0", 0, 1_000_000)
    assert isinstance(second, Change)
    assert (second.id, second.number) == ("1-1000-1-130-1", 1)
    assert end == Committed("binlog.000001:140")
    assert progress.done == Place(1, 100, "binlog.000001", 1000)
    progress.acknowledge(place_of(end.position))
    assert progress.done == Place(1, 140, "binlog.000001", 1000)


def test_the_position_goes_over_what_is_not_ours_only_while_nothing_of_ours_is_outstanding() -> None:
    reader, progress = new_reader()
    other = ((TABLE, table(b"other", 8)), (INSERT, rows(1, number=8)))
    assert read(reader, description(), *transaction(100, *other)) == []
    assert progress.done.position == 140
    assert len(read(reader, *transaction(140, (TABLE, table()), (INSERT, rows(1))), *transaction(180, *other))) == 2
    assert progress.done.position == 140
    progress.acknowledge((1, 180))
    assert progress.done.position == 180
    progress.acknowledge((1, 99_999))
    assert progress.done.position == 180


def test_nothing_is_told_of_what_was_rolled_back_or_taken_back() -> None:
    for most_held in [1000, 3]:
        with case(most_held):
            reader, progress = new_reader(most_held=most_held)
            rolled_back = transaction(100, (TABLE, table()), (INSERT, rows(1)), end=(QUERY, query(b"ROLLBACK")))
            savepoints = [(QUERY, query(b"SAVEPOINT `A`")), (INSERT, rows(3)), (QUERY, query(b"ROLLBACK TO `a`")), (INSERT, rows(4))]
            kept = transaction(140, (TABLE, table()), (INSERT, rows(2)), *savepoints)
            found = read(reader, description(), *rolled_back, *kept)
            if reader.again is not None:
                assert (found, reader.again) == ([], Place(1, 140, "binlog.000001", 1000))
                reader.begin_again()
                found = read(reader, description(), *kept)
            assert ids(found) == [2, 4]
            assert found[-1] == Committed("binlog.000001:220")
            assert progress.done.position == 140


def test_a_transaction_that_a_crash_cut_off_is_dropped_with_the_next_file() -> None:
    reader, progress = new_reader()
    begun = transaction(100, (TABLE, table()), (INSERT, rows(1)))[:-1]
    turn = event(ROTATE, struct.pack("<Q", 4) + b"binlog.000002", 0)
    second = transaction(256, (TABLE, table()), (INSERT, rows(2)))
    found = read(reader, description(), *begun, turn, description(256, stamp=2000), *second)
    assert ids(found) == [2]
    assert progress.done == Place(2, 256, "binlog.000002", 2000)


def test_another_file_of_the_same_name_is_told() -> None:
    reader, _ = new_reader(START._replace(created=999))
    with pytest.raises(ChangesLost, match=r"started at 1000 .* and not at 999: RESET MASTER was run"):
        reader.read(description())


def test_what_can_not_be_read_is_a_sentence_with_the_position() -> None:
    for kind, body, sentence in [
        (26, b"\1\0", "the server says that events were lost here"),
        (166, b"", "an event is compressed or partial, which is not read"),
        (40, b"", "an event is compressed or partial, which is not read"),
        (17, b"", "LOAD DATA was written as a statement"),
        (18, b"", "LOAD DATA was written as a statement"),
        (22, b"", "an event has type 22, which is not known here; it may be about rows"),
        (200, b"", "an event has type 200, which is not known here; it may be about rows"),
        (QUERY, query(b"TRUNCATE shop.orders"), "TRUNCATE changed shop.orders as a whole"),
        (QUERY, query(b"SET STATEMENT a = 1 FOR TRUNCATE shop.orders"), "TRUNCATE changed shop.orders as a whole"),
        (QUERY, query(b"UPDATE orders SET id = 1"), "a statement that changes rows stands in place of the rows"),
        (XID, b"\0" * 8, "a transaction ends that has not started"),
        (INSERT, rows(1), "the position is inside a transaction"),
        (TABLE, table().replace(b"\4\3\2id", b""), "does not name the columns of shop.orders: .* binlog_row_metadata was not FULL"),
    ]:
        with case(kind, body, sentence):
            reader, _ = new_reader()
            with pytest.raises(UnreadableChange, match=f"the log can't be read at binlog.000001:110: .*{sentence}"):
                read(reader, description(), event(kind, body, 110))


def test_what_can_not_be_read_in_a_transaction_tells_nothing_of_it() -> None:
    for inside, sentence in [
        ([(INSERT, rows(1))], "rows are of table 7, of which nothing was said"),
        ([(QUERY, query(b"/* by hand */ insert INTO orders VALUES (1)"))], "a statement that changes rows stands in place of the rows"),
        ([(QUERY, query(b"ROLLBACK TO `b`"))], "goes back to a savepoint that it does not have"),
        ([(GTID, BEGIN)], "a transaction starts inside another one"),
        ([(TABLE, table()), (INSERT, rows(1).replace(b"\1\1", b"\1\0"))], "are not whole; set binlog_row_image = FULL"),
        ([(TABLE, table()), (INSERT, rows(1)[:-1])], "a row of shop.orders ends too early"),
        ([(TABLE, table()), (TABLE, table(column=b"no"))], "was changed while it was read, column id is gone"),
        ([(TABLE, table()), (INSERT, rows(1)), (38, b"")], "XA is not read"),
    ]:
        with case(inside, sentence):
            reader, progress = new_reader()
            told: list[Change | Committed] = []
            with pytest.raises(UnreadableChange, match=sentence):  # noqa: PT012  # any of the events may be the one
                for one in [description(), *transaction(100, *inside)]:
                    told += reader.read(one)
            assert (told, progress.done.position) == ([], 100)


def test_statements_and_xa_are_passed_over_where_the_table_has_the_last_word() -> None:
    reader, progress = new_reader(tables_are_read=True)
    statement = transaction(100, (QUERY, query(b"INSERT INTO orders VALUES (1)")))
    prepared = transaction(130, (TABLE, table()), (INSERT, rows(1)), end=(38, b""))
    assert read(reader, description(), *statement, *prepared) == []
    assert progress.done.position == 170


def test_a_statement_is_read_as_its_session_wrote_it() -> None:
    name = "größe"
    latin1 = b"\0\0\0\0\0" + b"\1" + b"\0" * 8 + b"\6\3std" + b"\3" + b"\0" * 4 + b"\4\x08\0\x08\0\x08\0"
    for status, text in [(latin1, f"TRUNCATE {name}".encode("latin-1")), (b"", f"TRUNCATE {name}".encode())]:
        with case(status, text):
            progress = Progress(START)
            reader = Reader({f"shop.{name}": Wanted()}, "1", {}, progress, {8: "latin-1"})
            body = struct.pack("<IIBHH", 1, 0, 4, 0, len(status)) + status + b"shop\0" + text
            with pytest.raises(UnreadableChange, match=r"TRUNCATE changed shop\.größe as a whole"):
                read(reader, description(), event(QUERY, body, 110))
            assert (reader.behind, progress.done.position) == (Place(1, 110, "binlog.000001", 1000), 100)


def test_no_backslash_in_a_text_where_the_session_says_so() -> None:
    status = b"\1" + struct.pack("<Q", 1 << 20)
    text = b"ALTER TABLE orders COMMENT '\\', DROP PARTITION p0, COMMENT ''"
    reader, _ = new_reader()
    with pytest.raises(UnreadableChange, match=r"ALTER changed shop\.orders as a whole"):
        read(reader, description(), event(QUERY, struct.pack("<IIBHH", 1, 0, 4, 0, len(status)) + status + b"shop\0" + text, 110))


def test_an_event_that_may_be_passed_over_is() -> None:
    reader, progress = new_reader()
    whole = struct.pack("<IBIIIH", 1000, 200, 1, 19, 110, 0x80)
    assert read(reader, description(), b"\0" + whole + struct.pack("<I", zlib.crc32(whole)), *transaction(110)) == []
    assert progress.done.position == 130


def test_a_description_of_a_table_that_counts_otherwise_is_refused() -> None:
    """GEOMETRY, ENUM and a text, with what the server says of them; then with one thing too few or too many."""
    head = struct.pack("<IHH", 7, 0, 0) + b"\4shop\0\6orders\0"
    columns = b"\3\xff\xfe\x0f" + b"\5\4" + b"\xf7\1" + b"\x09\0" + b"\0"
    names, charset, enum, members = b"\4\6\1a\1b\1c", b"\2\3\x3f\1\x08", b"\6\3\1\1x", b"\x0a\1\x08"
    right = [names, charset, enum, members]
    reader, _ = new_reader()
    reader._encodings = {8: "latin-1"}
    read(reader, description(), *transaction(100, (TABLE, head + columns + b"".join(right)))[:-1])
    for at, wrong in [
        (0, b"\4\4\1a\1b"),
        (1, b"\2\3\x3f\2\x08"),
        (1, b"\3\1\x08"),
        (1, b"\3\3\x3f\x08\x08"),
        (1, b""),
        (2, b""),
        (2, b"\6\6\1\1x\1\1y"),
        (3, b"\x0b\2\x08\x08"),
        (3, b""),
        (3, b"\x0a\1\x08\1\1\0"),
    ]:
        with case(at, wrong):
            reader, _ = new_reader()
            reader._encodings = {8: "latin-1"}
            fields = [*right[:at], wrong, *right[at + 1 :]]
            with pytest.raises(UnreadableChange):
                read(reader, description(), *transaction(100, (TABLE, head + columns + b"".join(fields)))[:-1])


def test_a_damaged_event_is_told_and_a_file_without_checksums_is_read() -> None:
    reader, _ = new_reader()
    whole = transaction(100, (TABLE, table()), (INSERT, rows(1)))
    with pytest.raises(UnreadableChange, match="the checksum"):
        read(reader, description(), whole[0][:-5] + b"x" + whole[0][-4:])
    plain, _ = new_reader()
    bare = [one[:-4] for one in whole]
    assert ids(read(plain, event(FORMAT, b"\4\0" + b"\0" * 60 + b"\0", 0), *bare)) == [1]


def test_a_file_beyond_what_a_position_can_name_is_told() -> None:
    reader, _ = new_reader(START._replace(position=2**32 - 10))
    with pytest.raises(UnreadableChange, match="has more than 4 GiB"):
        read(reader, description(), event(GTID, BEGIN, 20))


@given(st.sampled_from([ROTATE, FORMAT, GTID, QUERY, XID, TABLE, INSERT, UPDATE, 30, 32, 38, 160]), st.binary(max_size=80), st.booleans())
def test_any_bytes_are_changes_or_a_sentence(kind: int, body: bytes, is_artificial: bool) -> None:
    reader, _ = new_reader()
    read(reader, description(), *transaction(100, (TABLE, table()))[:-1])
    with suppress(UnreadableChange):
        reader.read(event(kind, body, 0 if is_artificial else 200))
    with suppress(UnreadableChange):
        reader.read(body)


def test_an_event_that_is_cut_anywhere_never_raises_anything_else() -> None:
    for body in [table(), rows(1, 2), query(b"SAVEPOINT a"), BEGIN]:
        with case(body):
            kind = {table(): TABLE, rows(1, 2): INSERT, BEGIN: GTID}.get(body, QUERY)
            for end in range(len(body)):
                reader, _ = new_reader()
                before = [description()] if kind == GTID else [description(), *transaction(100, (TABLE, table()))[:-1]]
                read(reader, *before)
                with suppress(UnreadableChange):
                    assert ids(reader.read(event(kind, body[:end], 200))) == []
