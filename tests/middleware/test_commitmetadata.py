"""The metadata of commits: what goes in comes out within the broker's limit, and whatever else stands there is none."""

from __future__ import annotations

import base64
import json
import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import each

from ackwise.middleware.progress.commitmetadata import LIMIT, CommitMetadata, FinishedMap, InPlace, Tried, decode, group_hash, read_own

LONGS = st.integers(0, 2**63 - 1)
MAPS = st.builds(
    FinishedMap,
    base=LONGS,
    base_ts=st.integers(-1, 2**53),
    last_ts=st.integers(-1, 2**53),
    agents=st.text("0123456789abcdef", max_size=16),
    bits=st.integers(0, 2**16_000 - 1),
)
ENTRIES = st.lists(
    st.builds(InPlace, offset=st.integers(0, 2**20), attempts=st.integers(0, 99), due_ms=st.integers(1_767_225_600_000, 1_767_225_630_000)),
    max_size=100,
    unique_by=lambda entry: entry.offset,
).map(lambda entries: tuple(sorted(entries)))
BELONGS = st.fixed_dictionaries(
    {},
    optional={
        "group": st.text("0123456789abcdef", max_size=16),
        "cluster": st.text("abcdefXYZ-_", max_size=22),
        "topic_id": st.text("abcdefXYZ-_", max_size=22),
        "partitions": st.integers(0, 100_000),
        "is_open": st.booleans(),
        "tried": st.builds(
            lambda first, number, tries: Tried(first, first + number, tries, "a1b2"), LONGS, st.integers(0, 10_000), st.integers(0, 10)
        ),
    },
)
WRITERS = st.tuples(LONGS, st.integers(-1, 2**62)) | st.just((None, None))


def envelope(said: Any) -> str:
    text = said if isinstance(said, str) else json.dumps(said)
    return f"ackwise2:{zlib.crc32(text.encode()):08x}:{text}"


@given(WRITERS, st.none() | MAPS, ENTRIES, BELONGS)
def test_what_goes_in_comes_out_in_printable_ascii(
    writer: tuple[Any, Any], finished: FinishedMap | None, in_place: tuple[InPlace, ...], belongs: dict[str, Any]
) -> None:
    metadata = CommitMetadata(*writer, finished, in_place, **belongs)
    text = metadata.encode()
    assert text.isascii()
    assert text.isprintable()
    assert decode(text) == metadata


def test_entries_in_any_order_come_out_by_their_offsets() -> None:
    entries = [InPlace(9, 1, 5), InPlace(7, 2, 9), InPlace(8, 1, 7)]
    assert decode(CommitMetadata(in_place=entries).encode()) == CommitMetadata(in_place=tuple(sorted(entries)))


def test_a_map_of_16_000_offsets_and_100_entries_fit_into_what_brokers_allow() -> None:
    draw = random.Random(0)
    finished = FinishedMap(2**62, 2**53, 2**53, "f" * 16, draw.getrandbits(16_000) | 1 << 15_999)
    entries = [InPlace(2**62 + 150 * number, 16, 1_767_225_600_000 + draw.randrange(30_000)) for number in range(100)]
    metadata = CommitMetadata(
        2**63 - 1,
        2**62,
        finished,
        entries,
        "f" * 16,
        "x" * 22,
        "y" * 22,
        10_000,
        is_open=True,
        tried=Tried(2**62, 2**62 + 200, 10, "f" * 8),
    )
    text = metadata.encode()
    assert len(text.encode()) <= LIMIT
    found = decode(text)
    assert found is not None
    assert (found.finished, list(found.in_place)) == (finished, entries)


@each("metadata", [
    CommitMetadata(finished=FinishedMap(0, 0, 0, "", random.Random(0).getrandbits(20_000))),
    CommitMetadata(in_place=[InPlace(offset, 1, 0) for offset in range(101)]),
    CommitMetadata(in_place=[InPlace(offset * 2**40, 1, offset * 2**40) for offset in range(90)]),
], ids=["a map", "too many entries", "long entries"])  # fmt: skip
def test_what_is_larger_than_its_share_is_refused_and_takes_nothing_from_the_others(metadata: CommitMetadata) -> None:
    with pytest.raises(ValueError, match="may have"):
        metadata.encode()


@each("metadata", [
    CommitMetadata(5, 7, FinishedMap(0, 0, 0, "", random.Random(0).getrandbits(20_000)), [InPlace(1, 1, 1)], topic_id="t"),
    CommitMetadata(5, 7, FinishedMap(0, 0, 0, "a" * 5000, 0b10), topic_id="t"),
], ids=["a map", "long names"])  # fmt: skip
def test_a_map_without_room_is_left_out_and_the_rest_is_written(metadata: CommitMetadata) -> None:
    assert decode(metadata.fit()) == CommitMetadata(5, 7, topic_id="t")


def test_entries_without_room_are_left_out_and_the_map_is_written() -> None:
    finished = FinishedMap(100, 0, 0, "", 0b10)
    assert decode(CommitMetadata(finished=finished, in_place=[InPlace(2**40 * n, 1, n) for n in range(101)]).fit()) == CommitMetadata(
        finished=finished
    )


def test_nothing_is_believed_that_another_group_left_or_one_of_the_same_name_in_another_cluster() -> None:
    left = CommitMetadata(5, 7, group=group_hash("billing"), cluster="east")
    text = left.encode()
    assert read_own(text, "billing", "east") == read_own(text, "billing") == left
    assert read_own(text, "shipping", "east") is None
    assert read_own(text, "billing", "west") is None
    assert read_own(CommitMetadata(5, 7).encode(), "billing") is None


@given(st.text() | st.text().map(lambda text: f"ackwise2:{text}") | st.text().map(lambda text: envelope(json.dumps(text))))
def test_whatever_others_wrote_is_none(text: str) -> None:
    assert decode(text) is None


@pytest.mark.slow  # decodes hundreds of nested values
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda each: st.lists(each) | st.dictionaries(st.text(), each)))
def test_nonsense_with_a_good_checksum_raises_nothing(value: Any) -> None:
    for said in (
        value,
        {"w": value},
        {"w": "1", "s": value},
        {"f": value},
        {"i": value},
        {"i": [1, 2, value]},
        {"i": [value, 2, ""]},
        {"r": value},
        {"r": [value, 1, 2, ""]},
        {"o": value},
    ):
        decode(envelope(said))


@each("said", [
    {"w": "1"}, {"w": 1, "s": 2}, {"w": "1", "s": True}, {"w": "g", "s": 1}, {"f": {}}, {"i": [1, 2]}, {"i": [1, 2, "gA=="]},
    {"i": [1, 2, "AQ=="]}, {"f": {"b": 1, "t": [1, 2], "a": "", "m": "*"}}, "{" * 4000 + "}" * 4000, '{"w":' + "[" * 3900 + "}",
])  # fmt: skip
def test_what_is_written_wrong_is_none(said: Any) -> None:
    assert decode(envelope(said)) is None


def test_a_map_that_unpacks_to_very_much_is_none() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(1_000_000))).decode()
    assert decode(envelope({"f": {"b": 1, "t": [1, 2], "a": "", "z": bomb}})) is None


def test_a_changed_character_anywhere_makes_it_none() -> None:
    text = CommitMetadata(5, 77, in_place=[InPlace(7, 2, 9)]).encode()
    for place in range(len(text)):
        assert decode(text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]) is None
        assert decode(text[:place]) is None


def test_names_that_this_version_does_not_know_are_passed_over() -> None:
    assert decode(envelope({"w": "5", "s": 7, "new": [1]})) == CommitMetadata(5, 7)


def test_another_version_is_none() -> None:
    assert decode(CommitMetadata(5, 7).encode().replace("ackwise2:", "ackwise3:")) is None
