"""Claim ids: no two messages share one by accident, and an intended replay changes the id and not the hash."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.tables import each

from ackwise.middleware.message.keys import Identity, business_id, coordinates_id, message_id

names = st.text(max_size=12)
ids = st.binary(max_size=24)
parts = st.tuples(names, names, names, ids)


@given(parts, parts)
def test_no_choice_of_names_makes_two_handlers_answer_for_each_other(
    one: tuple[str, str, str, bytes], other: tuple[str, str, str, bytes]
) -> None:
    assume(one != other)
    assert Identity(*one[:3]).of(one[3]) != Identity(*other[:3]).of(other[3])


@given(st.text(min_size=2, max_size=12), st.data())
def test_letters_that_move_from_one_name_to_the_next_make_another_id(text: str, data: st.DataObject) -> None:
    one, other = sorted(data.draw(st.sets(st.integers(0, len(text)), min_size=2, max_size=2)))
    split = [Identity("ackwise", text[:cut], text[cut:]).of(b"k1")[0] for cut in (one, other)]
    into_the_id = Identity("ackwise", "", text[:one]).of(text[one:].encode())[0]
    assert split[0] != split[1]
    assert into_the_id not in split


@given(ids, st.integers(1, 2**31 - 1), st.binary(max_size=16))
def test_an_epoch_or_a_replay_changes_the_id_and_not_the_hash(dedup_id: bytes, epoch: int, replay_id: bytes) -> None:
    plain, later = Identity("ackwise", "billing", "charge"), Identity("ackwise", "billing", "charge", epoch)
    answers = [plain.of(dedup_id), later.of(dedup_id), plain.of(dedup_id, replay_id), later.of(dedup_id, replay_id)]
    assert len({claim for claim, _ in answers}) == 4
    assert len({number for _, number in answers}) == 1


@given(ids, st.binary(max_size=16), st.binary(max_size=16))
def test_two_replays_have_two_ids(dedup_id: bytes, one: bytes, other: bytes) -> None:
    assume(one != other)
    identity = Identity("ackwise", "billing", "charge")
    assert identity.of(dedup_id, one)[0] != identity.of(dedup_id, other)[0]


@given(ids)
def test_a_claim_id_has_16_bytes_and_the_hash_fits_a_signed_column(dedup_id: bytes) -> None:
    identity = Identity("ackwise", "billing", "charge")
    claim, number = identity.of(dedup_id)
    assert len(claim) == 16
    assert number == int.from_bytes(claim[:8], "big", signed=True)
    assert identity.of(dedup_id) == (claim, number)


@each(
    ("one", "other"),
    [
        pytest.param("A", "a", id="K14-upper-and-lower-case"),
        pytest.param("e", "é", id="K14-accent"),
        pytest.param("x ", "x", id="K14-trailing-space"),
        pytest.param("x:y", "y", id="K15-a-separator-in-the-key"),
        pytest.param("k" * 300, "k" * 301, id="K13-longer-than-a-column"),
    ],
)
def test_keys_that_differ_in_one_byte_have_two_ids(one: str, other: str) -> None:
    identity = Identity("ackwise", "billing", "charge")
    assert identity.of(business_id(one))[0] != identity.of(business_id(other))[0]


@each("length", [pytest.param(length, id=f"K13-{length}") for length in (1, 17, 100_000)])
def test_the_length_of_a_key_does_not_show_in_the_claim_id(length: int) -> None:
    assert len(Identity("ackwise", "billing", "charge").of(business_id("k" * length))[0]) == 16


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_and_its_bytes_are_one_business_key(key: str) -> None:
    assert business_id(key) == business_id(key.encode())


@given(st.text(st.characters()), st.text(st.characters()))
def test_two_texts_are_two_business_keys_even_with_lone_surrogates(one: str, other: str) -> None:
    assert (business_id(one) == business_id(other)) == (one == other)


@given(ids, st.text(max_size=12), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1))
def test_a_business_key_a_message_id_and_coordinates_never_meet(
    data: bytes, topic: str, partition: int, offset: int, timestamp_ms: int
) -> None:
    coordinates = coordinates_id(topic, partition, offset, timestamp_ms)
    others = {business_id(data), message_id(topic, data)}
    assert len({*others, coordinates}) == 3
    assert coordinates not in {business_id(coordinates), message_id(topic, coordinates)}


@given(st.text(max_size=6), ids, st.text(max_size=6), ids)
def test_two_topics_that_number_alike_have_two_ids(topic: str, header: bytes, other_topic: str, other: bytes) -> None:
    assert (message_id(topic, header) == message_id(other_topic, other)) == ((topic, header) == (other_topic, other))


coordinates = st.tuples(st.text(max_size=12), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1))


@given(coordinates, coordinates)
def test_two_records_have_two_ids(one: tuple[str, int, int, int], other: tuple[str, int, int, int]) -> None:
    assert (coordinates_id(*one) == coordinates_id(*other)) == (one == other)


def test_a_topic_that_was_made_again_does_not_look_as_if_it_had_been_seen() -> None:
    assert coordinates_id("orders", 0, 0, 1_000) != coordinates_id("orders", 0, 0, 2_000)
