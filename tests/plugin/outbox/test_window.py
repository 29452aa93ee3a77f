"""What the answers of a window make of its rows."""

from __future__ import annotations

import random

import pytest
from tests.plugin.outbox.desk import lost, refused

from ackwise.middleware.message.outgoing import Acked, Outgoing, SendAnswer, SendFailed
from ackwise.middleware.storage.outbox import SHARDS, OutboxRow, shard_of
from ackwise.plugin.outbox.outboxwindow import AckMemory, Holding, Ruling, Window, fair_share, rule


def row(number: int, key: bytes | None = b"k", attempts: int = 0) -> OutboxRow:
    message = Outgoing("orders", b"%d" % number, key, message_id=f"id-{number}")
    return OutboxRow(number, shard_of(message), message, attempts, 0)


def acked(number: int) -> Acked:
    return Acked("orders", 0, number, 0, f"id-{number}")


BEHIND = SendFailed("an earlier message failed", retriable=True)


def ruled(rows: list[OutboxRow], answers: list[SendAnswer], *, parked_blocks: bool = True, max_attempts: int = 3) -> Ruling:
    return rule(rows, answers, max_attempts=max_attempts, parked_blocks=parked_blocks, rng=random.Random(1))


def ids(rows: list[OutboxRow]) -> list[int]:
    return [each.id for each in rows]


def test_behind_a_failure_the_later_rows_of_its_key_wait_and_those_of_others_do_not() -> None:
    found = ruled([row(1), row(2), row(3, b"other"), row(4, None)], [lost(), BEHIND, acked(3), acked(4)])
    assert [each.id for each, _, _ in found.failed] == [1]
    assert ids(found.behind) == [2]
    assert [each.id for each, _ in found.sent] == [3, 4]
    assert found.stopped == {("orders", b"k")}


def test_a_row_that_was_acknowledged_behind_a_failure_of_its_key_is_not_deleted() -> None:
    found = ruled([row(1), row(2)], [lost(), acked(2)])
    assert ids(found.behind) == [2]
    assert not found.sent


def test_a_failure_without_a_key_stops_nothing() -> None:
    for failure in (lost(), refused()):
        found = ruled([row(1, None), row(2, None)], [failure, acked(2)])
        assert ([each.id for each, _ in found.sent], found.stopped) == ([2], set()), failure


def test_a_refusal_parks_at_once_and_a_failure_that_may_pass_once_its_attempts_are_used_up() -> None:
    found = ruled([row(1, b"a"), row(2, b"b"), row(3, b"c", attempts=2)], [refused(), lost(), lost()])
    again = {each.id: failure.again_in for each, _, failure in found.failed}
    assert again[1] is None
    assert again[2] == pytest.approx(1.0, abs=0.2)
    assert again[3] is None


def test_a_row_that_was_never_tried_is_put_off_and_never_parked() -> None:
    found = ruled([row(1, b"a", attempts=99)], [BEHIND])
    ((_, _, failure),) = found.failed
    assert failure.again_in is not None


def test_with_skip_a_parked_row_lets_the_later_rows_of_its_key_pass() -> None:
    found = ruled([row(1), row(2), row(3)], [refused(), acked(2), BEHIND], parked_blocks=False)
    assert [each.id for each, _ in found.sent] == [2]
    assert ids(found.behind) == [3]
    assert not found.stopped


def test_with_skip_a_failure_that_may_pass_stops_its_key_all_the_same() -> None:
    found = ruled([row(1), row(2)], [lost(), acked(2)], parked_blocks=False)
    assert ids(found.behind) == [2]


def test_an_outage_is_thought_of_only_where_nothing_was_acknowledged_or_refused() -> None:
    seen: list[tuple[list[SendAnswer], bool]] = [
        ([lost(), lost()], True),
        ([lost(), acked(2)], False),
        ([lost(), refused()], False),
        ([acked(1), acked(2)], False),
    ]
    for answers, may_be in seen:
        assert ruled([row(1, b"a"), row(2, b"b")], answers).may_be_outage is may_be, answers


def test_a_window_that_was_read_ahead_loses_the_rows_of_shards_that_have_gone_and_of_stopped_keys() -> None:
    rows = [row(1, b"a"), row(2, b"b"), row(3, None)]
    tokens = {each.shard: 1 for each in rows}
    window = Window(rows, tokens)
    assert window.still(tokens, ()) is window
    assert ids(list(window.still(tokens, {("orders", b"a")}).rows)) == [2, 3]
    assert ids(list(window.still({**tokens, rows[1].shard: 2}, ()).rows)) == [1, 3]
    assert not window.still({}, ()).rows


def test_a_window_is_large_by_its_rows_or_its_bytes() -> None:
    assert not Window([row(1)], {}).is_large(3)
    assert Window([row(1), row(2)], {}).is_large(3)
    assert Window([row(1)._replace(message=Outgoing("orders", bytes(2**20)))], {}).is_large(500)
    assert Window([row(1)], {}).is_large(1)


def test_the_time_to_believe_in_shards_is_counted_from_before_the_question() -> None:
    holding = Holding.renewed({1: 7}, asked_at=100.0, lease=15.0, is_short=False, hurry=1.0)
    assert (holding.until, holding.renew_at) == (115.0, 105.0)
    assert not holding.is_over(114.9)
    assert holding.is_over(115.0)
    assert Holding().is_over(-1e9)


def test_all_relays_together_own_all_shards() -> None:
    assert [fair_share(relays) for relays in (0, 1, 2, 3, 4, 64, 100)] == [64, 64, 32, 22, 16, 1, 1]
    assert all(fair_share(relays) * relays >= SHARDS for relays in range(1, 65))


def test_what_was_acknowledged_is_remembered_by_id_and_message_id_and_the_oldest_is_forgotten_first() -> None:
    memory = AckMemory(2)
    memory.remember([row(1), row(2), row(3)])
    assert [memory.has(row(number)) for number in (1, 2, 3)] == [False, True, True]
    assert not memory.has(row(2)._replace(message=Outgoing("orders", b"", b"k", message_id="of another database")))
    memory.forget([row(2)])
    assert not memory.has(row(2))
    assert len(memory) == 1


def test_a_delayed_row_that_fails_holds_no_row_of_its_key_and_costs_it_no_attempt() -> None:
    delayed = row(1)._replace(is_delayed=True)
    found = ruled([delayed, row(2), row(3)], [lost(), BEHIND, BEHIND])
    assert ([each.id for each, _, _ in found.failed], ids(found.behind)) == ([1], [2, 3])
    assert ids([*Window([row(2), row(4)], {row(2).shard: 1}).still({row(2).shard: 1}, found.stopped).rows]) == []
    tried = ruled([delayed, row(2)], [lost(), lost()])
    assert [each.id for each, _, _ in tried.failed] == [1, 2]
    behind = ruled([row(1), row(2)._replace(is_delayed=True)], [lost(), acked(2)])
    assert [each.id for each, _ in behind.sent] == [2]
