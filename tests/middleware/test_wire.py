"""Copies: what is written is read back whole, what others wrote is never taken for ours, dead letters shrink until they fit."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import each

from ackwise.middleware.message.disposition import Delayed, Failure
from ackwise.middleware.message.keys import coordinates_id
from ackwise.middleware.message.message import Delivery, Headers, Origin
from ackwise.middleware.message.wire import (
    BUDGET,
    HANDLER_LIMIT,
    VERSION,
    Copy,
    ForeignCopy,
    OtherWire,
    dead_letter,
    due_ms,
    parse_copy,
    parse_letter,
    retry_copy,
    shrink,
    waiting_copy,
    with_due,
)
from ackwise.middleware.policies.retry import ConsumeLater, SendBack

FIRST = Delivery("orders", 3, 100, 5, b"k", b"v", (("trace", b"1"),), Origin("orders", 3, 100, 5))
NAMES = [
    *("ackwise-version", "ackwise-group", "ackwise-handler", "ackwise-attempt", "ackwise-origin-topic", "ackwise-origin-partition"),
    *("ackwise-origin-offset", "ackwise-origin-timestamp", "ackwise-first-seen", "ackwise-replay-id", "ackwise-due", "ackwise-dropped"),
]
#: Kafka allows 249 characters in a topic's name; a group's is bounded by `<group>.delay.<level>`.
LONGEST_TOPIC, LONGEST_GROUP, LONGEST_HANDLER = "t" * 249, "g" * 235, "h" * HANDLER_LIMIT

values = st.none() | st.binary(max_size=40)
producer_headers = st.lists(st.tuples(st.sampled_from(NAMES) | st.text(max_size=10), values), max_size=8).map(tuple)
texts = st.text(st.characters(), max_size=40)  # lone surrogates too


def back(delivery: Delivery, *, group: str = "billing", handler: str = "charge", due: int = 20_000, reason: str = "ValueError") -> Copy:
    return retry_copy(delivery, topic=f"{group}.retry", partition=1, group=group, handler=handler, due=due, now_ms=10_000, reason=reason)


def dead(
    delivery: Delivery, *, group: str = "billing", handler: str = "charge", reason: str = "rejected", failure: Failure | None = None
) -> Copy:
    topic = f"{group}.dlq"
    return dead_letter(delivery, topic=topic, partition=1, group=group, handler=handler, now_ms=10_000, reason=reason, failure=failure)


def read(copy: Copy, offset: int = 7) -> Delivery:
    """The copy as a consumer fetches it from where it was published."""
    return Delivery(
        copy.topic, copy.partition, offset, 11_000, copy.key, copy.value, copy.headers, Origin(copy.topic, copy.partition, offset, 11_000)
    )


def size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes of a record, with the most that Kafka's format adds to a header (two lengths of five bytes)."""
    return len(key or b"") + len(value or b"") + sum(len(name.encode()) + len(content or b"") + 10 for name, content in headers)


def shrunk(letter: Copy) -> list[Copy]:
    """Every form of `letter`, from the whole one to the last."""
    forms = [letter]
    while (smaller := shrink(forms[-1])) is not None:
        forms.append(smaller)
        assert len(forms) < 10
    return forms


def dropped(letter: Copy) -> list[bytes]:
    """What our own block says; a producer's header may have the same name."""
    names = [name for name, _ in letter.headers]
    start = len(names) - 1 - names[::-1].index("ackwise-version")
    return (dict(letter.headers[start:]).get("ackwise-dropped") or b"").split()


# Copies that come back


@pytest.mark.slow  # sends a hundred made-up records back twice
@given(
    key=values,
    value=values,
    headers=producer_headers,
    handler=st.text(max_size=20),
    reason=texts,
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    replay_id=values,
)
def test_a_copy_is_read_back_whole_whatever_headers_the_producer_forged(
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    handler: str,
    reason: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    replay_id: bytes | None,
) -> None:
    origin = Origin("orders", partition, offset, timestamp_ms)
    first = Delivery("orders", partition, offset, timestamp_ms, key, value, headers, origin, replay_id=replay_id)
    second = parse_copy(read(back(first, handler=handler, reason=reason)), "billing")
    third = parse_copy(read(back(second, handler=handler, reason=reason)), "billing")
    for attempt, delivery in ((2, second), (3, third)):
        assert (delivery.key, delivery.value, delivery.headers) == (key, value, headers)
        assert (delivery.origin, delivery.attempt, delivery.handler) == (origin, attempt, handler)
        assert (delivery.first_seen_ms, delivery.replay_id) == (10_000, replay_id)


@given(
    key=values,
    value=values,
    headers=producer_headers,
    timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    attempt=st.integers(1, 2**31 - 2),
    handler=st.text(max_size=20),
    message=texts,
)
def test_a_copy_or_a_dead_letter_of_any_record_is_read_back_as_the_same_message(
    key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int, attempt: int, handler: str, message: str
) -> None:
    origin = Origin("orders", 3, 2**63 - 1, timestamp_ms)
    record = Delivery(*origin, key, value, headers, origin, attempt)
    copy, letter = back(record, handler=handler), dead(record, handler=handler, failure=Failure("E", message, message))
    for each_, attempts in ((parse_copy(read(copy), "billing"), attempt + 1), (parse_letter(read(letter), "billing")[0], attempt)):
        assert (each_.origin, each_.attempt, each_.handler) == (origin, attempts, handler)
        assert (each_.key, each_.value, each_.headers) == (key, value, headers)
    assert waiting_copy(copy.headers, "billing")[1].startswith(b"orders/3/%d/%d/" % (2**63 - 1, timestamp_ms))


@each(("reconsume_times", "stored"), [pytest.param(0, 1, id="S01"), pytest.param(3, 4, id="S07"), pytest.param(15, 16, id="S04")])
def test_a_copy_counts_one_more(reconsume_times: int, stored: int) -> None:
    copy = parse_copy(read(back(FIRST._replace(attempt=reconsume_times + 1))), "billing")
    assert copy.attempt - 1 == stored


@each(("reconsume_times", "counted"), [pytest.param(16, 17, id="S05"), pytest.param(0, 1, id="S06")])
def test_a_dead_letter_counts_every_attempt(reconsume_times: int, counted: int) -> None:
    assert dict(dead(FIRST._replace(attempt=reconsume_times + 1)).headers)["ackwise-attempt"] == b"%d" % counted


@each("attempts", [pytest.param(2, id="S13-second-failure"), pytest.param(17, id="S13-all-of-them")])
def test_the_origin_never_changes(attempts: int) -> None:
    delivery = FIRST
    while delivery.attempt < attempts:
        assert isinstance(ConsumeLater().decide(Delayed(), delivery.attempt - 1), SendBack)
        delivery = parse_copy(read(back(delivery), offset=delivery.attempt), "billing")
    assert delivery.origin == FIRST.origin
    assert delivery.headers == FIRST.headers


@each("read_at", [pytest.param(7, id="K20")])
def test_a_copy_has_the_dedup_id_of_its_origin(read_at: int) -> None:
    assert coordinates_id(*parse_copy(read(back(FIRST), read_at), "billing").origin) == coordinates_id(*FIRST.origin)


def test_ten_thousand_headers_come_back() -> None:
    headers = tuple((f"h{number}", b"%d" % number) for number in range(10_000))
    assert parse_copy(read(back(FIRST._replace(headers=headers))), "billing").headers == headers


def test_first_seen_is_written_once() -> None:
    second = parse_copy(read(back(FIRST)), "billing")
    late = retry_copy(second, topic="billing.retry", partition=1, group="billing", handler="charge", due=0, now_ms=99_000, reason="")
    assert parse_copy(read(late), "billing").first_seen_ms == 10_000


def test_a_delay_topic_is_read_by_its_due_time_alone() -> None:
    assert due_ms(back(FIRST, due=20_000).headers, "billing") == 20_000
    forged = (("ackwise-due", b"1"), ("ackwise-version", b"9"), ("ackwise-group", b"shipping"))
    assert due_ms(back(FIRST._replace(headers=forged), due=20_000).headers, "billing") == 20_000


@given(headers=producer_headers, due=st.integers(0, 2**63 - 1))
def test_another_due_time_changes_nothing_else(headers: Headers, due: int) -> None:
    before = back(FIRST._replace(headers=headers))
    after = with_due(before.headers, due)
    assert due_ms(after, "billing") == due
    assert parse_copy(read(Copy("billing.retry", 1, b"k", b"v", after)), "billing") == parse_copy(read(before), "billing")
    assert with_due(after, 20_000) == before.headers


def test_a_replay_is_cancelled_by_another_key_than_its_message() -> None:
    message, replay = (waiting_copy(with_due(back(FIRST._replace(replay_id=id)).headers, 20_000), "billing") for id in (None, b"r1"))
    assert (message[0], replay[0]) == (20_000, 20_000)
    assert message[1].replace(b"//", b"/7231/") == replay[1]


def test_what_an_operator_replays_starts_again_at_the_first_attempt() -> None:
    headers = {**dict(back(FIRST).headers), "ackwise-attempt": b"1", "ackwise-replay-id": b"2026-11-21"}
    replayed = parse_copy(read(Copy("billing.retry", 1, b"k", b"v", tuple(headers.items()))), "billing")
    assert (replayed.attempt, replayed.replay_id) == (1, b"2026-11-21")


# Copies that no attempt is charged for


def uncharged(delivery: Delivery) -> Copy:
    return retry_copy(
        delivery, topic="billing.retry", partition=1, group="billing", handler="charge", due=0, now_ms=10_000, reason="", charged=False
    )


@each("attempt", [1, 2, 16])
def test_an_uncharged_copy_keeps_the_attempt_and_the_identity(attempt: int) -> None:
    copy = parse_copy(read(uncharged(FIRST._replace(attempt=attempt))), "billing")
    assert (copy.attempt, copy.origin, copy.headers) == (attempt, FIRST.origin, FIRST.headers)
    assert parse_copy(read(back(copy)), "billing").attempt == attempt + 1


# What is not ours


def test_a_record_of_a_producer_on_a_retry_topic_is_foreign() -> None:
    with pytest.raises(ForeignCopy, match="no ackwise-version header"):
        parse_copy(FIRST, "billing")
    with pytest.raises(ForeignCopy, match="no ackwise-version header"):
        due_ms(FIRST.headers, "billing")


def test_a_copy_of_another_group_is_foreign() -> None:
    with pytest.raises(ForeignCopy, match="group 'shipping'"):
        parse_copy(read(back(FIRST, group="shipping")), "billing")


@each("group", [None, b"", b"\xff", b"shipping", b"billing ", b"s" * 100_000])
@each("version", [b"1", b"2", b"999", b"one"])
def test_a_record_of_another_group_is_foreign_whatever_its_version(group: bytes | None, version: bytes) -> None:
    written = (("ackwise-version", version), ("ackwise-group", group), ("ackwise-due", b"0"))
    with pytest.raises(ForeignCopy, match="group"):
        parse_copy(FIRST._replace(headers=written), "billing")
    with pytest.raises(ForeignCopy, match="group"):
        due_ms(written, "billing")


def with_header(name: str, value: bytes | None) -> Delivery:
    written = back(FIRST._replace(replay_id=b"1" if name == "ackwise-replay-id" else None)).headers
    return read(Copy("billing.retry", 1, b"k", b"v", tuple((key, value if key == name else old) for key, old in written)))


@each("version", [b"%d" % (VERSION - 1), b"%d" % (VERSION + 1), b"10", b"9" * 100])
def test_another_version_is_held_and_not_guessed_at(version: bytes) -> None:
    with pytest.raises(OtherWire, match="start a worker of the Ackwise that wrote it"):
        parse_copy(with_header("ackwise-version", version), "billing")
    with pytest.raises(OtherWire, match="start a worker of the Ackwise that wrote it"):
        due_ms(with_header("ackwise-version", version).headers, "billing")


@each("version", [None, b"", b"one", b"0", b"-1", b"1.0", b"\xff", b"9" * 5000])
def test_a_version_that_is_no_version_is_foreign(version: bytes | None) -> None:
    with pytest.raises(ForeignCopy, match="ackwise-version"):
        parse_copy(with_header("ackwise-version", version), "billing")


@each(
    ("name", "value"),
    [
        ("ackwise-handler", None),
        ("ackwise-handler", b"h" * (HANDLER_LIMIT + 1)),
        ("ackwise-origin-topic", b"t" * 250),
        ("ackwise-replay-id", b"r" * 257),
        ("ackwise-origin-offset", b"0" * 100 + b"7"),
        ("ackwise-attempt", b"0"),
        ("ackwise-attempt", b"%d" % 2**31),
        ("ackwise-attempt", b"9" * 5000),
        ("ackwise-origin-topic", b"\xff"),
        ("ackwise-origin-partition", b"-1"),
        ("ackwise-origin-partition", b"%d" % 2**31),
        ("ackwise-origin-offset", b"-1"),
        ("ackwise-origin-offset", b"%d" % 2**63),
        ("ackwise-origin-timestamp", b"%d" % -(2**63 + 1)),
        ("ackwise-first-seen", b""),
    ],
)
def test_a_field_out_of_its_range_makes_a_copy_foreign(name: str, value: bytes | None) -> None:
    with pytest.raises(ForeignCopy, match="can't be read"):
        parse_copy(with_header(name, value), "billing")


@each("due", [None, b"", b"soon", b"-1", b"%d" % 2**63])
def test_a_due_time_that_is_none_makes_a_copy_foreign(due: bytes | None) -> None:
    with pytest.raises(ForeignCopy, match="due time can't be read"):
        due_ms(with_header("ackwise-due", due).headers, "billing")


fields = values | st.integers(-(2**70), 2**70).map(lambda number: b"%d" % number) | st.just(b"billing") | st.just(b"2")


@given(st.lists(st.tuples(st.sampled_from(NAMES), fields), max_size=16), st.sets(st.sampled_from(NAMES)), st.booleans())
def test_anything_else_is_foreign_or_of_another_version_and_no_other_error(
    noise: list[tuple[str, bytes | None]], missing: set[str], ours_last: bool
) -> None:
    ours = [header for header in back(FIRST).headers if header[0] not in missing]
    headers = tuple([*noise, *ours] if ours_last else [*ours, *noise])
    try:
        delivery = parse_copy(FIRST._replace(headers=headers), "billing")
    except (ForeignCopy, OtherWire):
        return
    assert delivery.attempt >= 1
    assert coordinates_id(*delivery.origin)  # a record that is taken for ours can be identified
    assert parse_copy(read(back(delivery)), "billing").origin == delivery.origin


@given(st.lists(st.tuples(st.sampled_from(NAMES), fields), max_size=16))
def test_a_due_time_is_read_or_the_copy_is_foreign_or_of_another_version(headers: list[tuple[str, bytes | None]]) -> None:
    try:
        due = due_ms(tuple(headers), "billing")
    except (ForeignCopy, OtherWire):
        return
    assert 0 <= due < 2**63


# Dead letters


def test_a_dead_letter_has_key_value_and_headers_whole_and_says_why() -> None:
    letter = dead(FIRST, reason="max-reconsume-times", failure=Failure("ValueError", "bad \udc80 amount", "Traceback …"))
    assert (letter.topic, letter.key, letter.value, letter.headers[:1]) == ("billing.dlq", b"k", b"v", FIRST.headers)
    said = dict(letter.headers)
    assert (said["ackwise-group"], said["ackwise-handler"], said["ackwise-reason"]) == (b"billing", b"charge", b"max-reconsume-times")
    assert (said["ackwise-origin-topic"], said["ackwise-origin-partition"], said["ackwise-origin-offset"]) == (b"orders", b"3", b"100")
    assert (said["ackwise-error-class"], said["ackwise-error-message"]) == (b"ValueError", b"bad \\udc80 amount")
    assert said["ackwise-error-traceback"] == "Traceback …".encode()


def test_names_of_headers_that_are_not_utf8_are_spelled_out_in_a_dead_letter() -> None:
    headers: Headers = (("trace", b"1"), ("caf\udce9", b"2"), ("caf\u00e9", b"3"), ("\udcff", None))
    copy = dead(FIRST._replace(headers=headers))
    assert copy.headers[:4] == (("trace", b"1"), ("caf?", b"2"), ("caf\u00e9", b"3"), ("?", None))
    assert dict(copy.headers)["ackwise-header-names"] == b"1:636166e9 3:ff"
    for name, _ in copy.headers:
        name.encode()


def test_a_dead_letter_shrinks_by_its_value_then_its_headers_then_its_key() -> None:
    key = b"k" * 1000
    forms = shrunk(dead(FIRST._replace(key=key)))
    assert [dropped(form) for form in forms] == [[], [b"value"], [b"value", b"headers"], [b"value", b"headers", b"key"]]
    assert [form.value for form in forms] == [b"v", None, None, None]
    assert [form.headers[0][0] for form in forms] == ["trace", "trace", "ackwise-version", "ackwise-version"]
    assert [form.key for form in forms] == [key, key, key, key[:256]]
    assert dict(forms[-1].headers)["ackwise-key-hash"] == hashlib.blake2b(key, digest_size=16).hexdigest().encode()


@each(
    "bare", [FIRST._replace(key=None, value=None, headers=()), FIRST._replace(key=b"k" * 256, value=b"", headers=())], ids=["null", "empty"]
)
def test_a_dead_letter_does_not_claim_to_have_dropped_what_it_never_had(bare: Delivery) -> None:
    assert shrink(dead(bare)) is None


large = st.none() | st.binary(max_size=600)


@given(key=large, value=large, headers=producer_headers, reason=texts, failed=st.booleans())
def test_shrinking_ends_and_always_says_what_was_dropped(
    key: bytes | None, value: bytes | None, headers: Headers, reason: str, failed: bool
) -> None:
    letter = dead(
        FIRST._replace(key=key, value=value, headers=headers), reason=reason, failure=Failure.of(ValueError(reason)) if failed else None
    )
    ours = letter.headers[len(headers) :]
    forms = shrunk(letter)
    for form in forms:
        said = dropped(form)
        assert (b"value" in said) == (form.value != value)
        assert (b"headers" in said) == (form.headers[: len(headers)] != headers)
        assert (b"key" in said) == (form.key != key)
        assert len(said) == len(set(said))
        assert set(ours) <= set(form.headers)  # what we say is never dropped
    assert len(forms[-1].key or b"") <= 256
    assert not forms[-1].value
    assert forms[-1].headers[0][0] == "ackwise-version"


@given(
    text=st.sampled_from(["x", "é", "漢", "\U0001f600", "\udc80"]),
    length=st.sampled_from([0, 1000, 1001, 100_000]),
    key=st.sampled_from([None, b"", b"k" * 100_000]),
)
def test_what_we_add_fits_the_budget_for_the_longest_names_and_messages(text: str, length: int, key: bytes | None) -> None:
    delivery = Delivery(
        LONGEST_TOPIC, 2**31 - 1, 2**63 - 1, 2**63 - 1, key, b"v", (), Origin(LONGEST_TOPIC, 2**31 - 1, 2**63 - 1, 2**63 - 1)
    )
    delivery = delivery._replace(attempt=2**31 - 2, first_seen_ms=2**63 - 1, replay_id=b"r" * 200)
    long = text * length
    failure = Failure.of(type("E" * 10_000, (Exception,), {"__module__": long})(long))
    before = size(delivery.key, delivery.value, delivery.headers)
    copies = [
        back(delivery, group=LONGEST_GROUP, handler=LONGEST_HANDLER, due=2**63 - 1, reason=long),
        *shrunk(dead(delivery, group=LONGEST_GROUP, handler=LONGEST_HANDLER, reason=long, failure=failure)),
    ]
    for copy in copies:
        assert size(copy.key, copy.value, copy.headers) - before < BUDGET
    assert size(copies[-1].key, copies[-1].value, copies[-1].headers) < BUDGET


huge = st.sampled_from([b"h", b"1", b"3", b"billing", b"\xff"]).flatmap(
    lambda byte: st.integers(1, 200_000).map(lambda times: byte * times)
)


@given(noise=st.lists(st.tuples(st.sampled_from(NAMES), fields | huge), max_size=8), replaced=st.dictionaries(st.sampled_from(NAMES), huge))
def test_whatever_a_record_says_of_itself_its_dead_letter_can_be_cut_until_it_fits(
    noise: list[tuple[str, bytes | None]], replaced: dict[str, bytes]
) -> None:
    """Also where it is taken for ours: each field that a letter repeats was held to its limit when it was read."""
    ours = [(name, replaced.get(name, value)) for name, value in back(FIRST._replace(replay_id=b"1")).headers]
    record = FIRST._replace(headers=(*noise, *ours), key=b"k" * 100_000)
    failure = Failure.of(ValueError("v" * 10_000))
    try:
        delivery = parse_copy(record, "billing")
    except (ForeignCopy, OtherWire) as error:
        delivery, failure = record, Failure.of(error)
    last = shrunk(dead(delivery, handler=delivery.handler or "-", reason="r" * 10_000, failure=failure))[-1]
    assert size(last.key, last.value, last.headers) < BUDGET / 2
