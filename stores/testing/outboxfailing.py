"""`OutboxFailing`: rows that could not be sent, and what they hold up."""

from __future__ import annotations

from ackwise.middleware.outbox import Failed, Parked
from ackwise.stores.testing.outboxscene import OutboxScene, message

_LATER, _NOW = 3600.0, 0.0
"""Seconds until a row is due again: not in this test, and at once."""


class OutboxFailing:
    """Failures, parked rows, and the keys behind them."""

    def test_a_row_that_failed_is_given_again_when_it_is_due(self, scene: OutboxScene) -> None:
        scene.commit(message(b"1"), message(b"2"))
        shards, (first, second) = scene.own(), scene.pending()
        assert scene.run(scene.outbox.next_due(shards)) is None
        assert scene.fail(shards, first, _LATER) == 1
        assert scene.values() == [b"2"]
        assert scene.fail(shards, second, _NOW) == 1
        assert [(row.message.value, row.attempts) for row in scene.pending()] == [(b"2", 1)]
        due = scene.run(scene.outbox.next_due(shards))
        assert due is not None
        assert _LATER - 60 < due <= _LATER

    def test_rows_behind_one_that_is_not_due_wait_for_it(self, scene: OutboxScene) -> None:
        scene.commit(message(b"a1", key=b"a"), message(b"b1", key=b"b"), message(b"a2", key=b"a"), message(b"free"))
        shards, rows = scene.own(), scene.pending()
        scene.fail(shards, rows[0], _LATER)
        scene.commit(message(b"a3", key=b"a"), message(b"b2", key=b"b"), message(b"other", key=b"a", topic="bills"))
        assert scene.values() == scene.values(block_key=False) == [b"b1", b"free", b"b2", b"other"]

    def test_rows_behind_one_that_is_due_again_follow_it(self, scene: OutboxScene) -> None:
        scene.commit(message(b"a1", key=b"a"), message(b"a2", key=b"a"))
        shards, rows = scene.own(), scene.pending()
        scene.fail(shards, rows[0], _NOW)
        assert scene.values() == [b"a1", b"a2"]
        scene.sent(scene.pending()[:1], shards)
        assert scene.values() == [b"a2"]

    def test_rows_before_one_that_failed_are_given_and_rows_without_a_key_hold_up_nothing(self, scene: OutboxScene) -> None:
        scene.commit(message(b"a1", key=b"a"), message(b"a2", key=b"a"), message(b"a3", key=b"a"))
        shards, rows = scene.own(), scene.pending()
        scene.fail(shards, rows[1], _LATER)
        assert scene.values() == [b"a1"]
        assert scene.sent(rows[:1], shards) == 1
        scene.commit(*(message(b"%d" % number) for number in range(5)))
        rows = scene.pending()
        scene.fail(shards, rows[0], _LATER)
        scene.fail(shards, rows[1], None)
        assert scene.values() == [b"2", b"3", b"4"]

    def test_a_parked_row_is_shown_with_its_cause_and_not_given(self, scene: OutboxScene) -> None:
        scene.commit(message(b"1", key=b"k", message_id="x"), message(b"2"))
        shards, (first, second) = scene.own(), scene.pending()
        scene.fail(shards, first, _NOW)
        assert scene.fail(shards, first, None, cause="it is too large") == 1
        assert scene.values() == [b"2"]
        (parked,) = scene.run(scene.outbox.parked())
        assert parked._replace(created_ms=0) == Parked(first.id, "orders", "x", b"k", 2, 0, "it is too large", 0)
        assert scene.run(scene.outbox.show(first.id)) == parked._replace(value=b"1")
        assert scene.run(scene.outbox.show(second.id)) is None

    def test_a_parked_row_holds_its_key_if_that_is_asked_for(self, scene: OutboxScene) -> None:
        scene.commit(message(b"a1", key=b"a"), message(b"a2", key=b"a"), message(b"b1", key=b"b"))
        shards, rows = scene.own(), scene.pending()
        scene.fail(shards, rows[0], None)
        scene.commit(message(b"a3", key=b"a"))
        assert scene.values(block_key=True) == [b"b1"]
        assert scene.values(block_key=False) == [b"a2", b"b1", b"a3"]

    def test_a_requeued_row_is_sent_before_those_that_it_held(self, scene: OutboxScene) -> None:
        scene.commit(message(b"a1", key=b"a"), message(b"a2", key=b"a"))
        shards, rows = scene.own(), scene.pending()
        scene.fail(shards, rows[0], None)
        assert scene.run(scene.outbox.requeue([rows[0].id, rows[1].id, 2**40])) == 1
        assert [(row.message.value, row.attempts) for row in scene.pending()] == [(b"a1", 0), (b"a2", 0)]
        assert (scene.run(scene.outbox.parked()), scene.run(scene.outbox.requeue(None))) == ([], 0)

    def test_all_parked_rows_can_be_requeued_and_listed_in_pages(self, scene: OutboxScene) -> None:
        scene.commit(*(message(b"%d" % number) for number in range(5)))
        shards, rows = scene.own(), scene.pending()
        for row in rows:
            scene.fail(shards, row, None)
        first = scene.run(scene.outbox.parked(limit=3))
        rest = scene.run(scene.outbox.parked(limit=3, after=first[-1].id))
        assert [parked.id for parked in [*first, *rest]] == [row.id for row in rows]
        assert scene.run(scene.outbox.requeue([])) == 0
        assert scene.run(scene.outbox.requeue(None)) == 5
        assert len(scene.values()) == 5

    def test_a_state_is_changed_by_whoever_finds_it_as_expected(self, scene: OutboxScene) -> None:
        scene.commit(message(b"1"), message(b"2"))
        shards, (first, second) = scene.own(), scene.pending()
        scene.fail(shards, first, None)
        assert scene.sent([first], shards) == 0
        assert scene.fail(shards, first, _NOW) == 0
        assert scene.sent([second], shards) == 1
        assert scene.fail(shards, second, None) == 0
        assert len(scene.run(scene.outbox.parked())) == 1

    def test_many_rows_of_a_blocked_key_hide_no_others(self, scene: OutboxScene) -> None:
        for start in range(0, 10_000, 1000):
            scene.commit(*(message(b"%d" % number, key=b"blocked") for number in range(start, start + 1000)))
        shards, rows = scene.own(), scene.pending(limit=1)
        scene.fail(shards, rows[0], _LATER)
        others = [b"other %d" % number for number in range(300)]
        scene.commit(*(message(value, key=value) for value in others))
        given: list[bytes | None] = []
        while some := scene.pending(shards, limit=100):
            given += [row.message.value for row in some]
            scene.sent(some, shards)
        assert given == others

    def test_rows_that_waited_behind_one_that_failed_are_given_in_order_once_it_is_sent(self, scene: OutboxScene) -> None:
        scene.commit(*(message(b"%d" % number, key=b"a") for number in range(2500)))
        shards, rows = scene.own(), scene.pending(limit=1)
        scene.fail(shards, rows[0], None)
        scene.commit(*(message(b"%d" % number, key=b"a") for number in range(2500, 2600)))
        assert scene.values() == []
        scene.run(scene.outbox.requeue(None))
        given: list[bytes | None] = []
        while some := scene.pending(shards, limit=2000):
            given += [row.message.value for row in some]
            scene.sent(some, shards)
            if len(given) == len(some):
                scene.commit(message(b"2600", key=b"a"))  # while most of them wait yet
        assert given == [b"%d" % number for number in range(2601)]

    def test_rows_that_waited_behind_a_parked_one_are_given_once_nobody_asks_for_that(self, scene: OutboxScene) -> None:
        scene.commit(*(message(b"%d" % number, key=b"a") for number in range(5)))
        shards, rows = scene.own(), scene.pending(limit=1)
        scene.fail(shards, rows[0], _LATER)
        assert scene.values(block_key=False) == []
        scene.run(scene.outbox.requeue(None))
        assert scene.values() == []
        assert scene.fail(shards, rows[0], None) == 1
        assert scene.values() == []
        assert scene.values(block_key=False) == [b"1", b"2", b"3", b"4"]

    def test_several_failures_and_causes_of_any_length_are_written_at_once(self, scene: OutboxScene) -> None:
        scene.commit(*(message(b"%d" % number) for number in range(3)))
        shards, rows = scene.own(), scene.pending()

        async def fail() -> int:
            failures = [Failed(row.id, row.shard, "é" * 5000, again) for row, again in zip(rows, (_LATER, None, _NOW), strict=True)]
            return await scene.outbox.failed(failures, shards) + await scene.outbox.failed([], shards)

        assert scene.run(fail()) == 3
        assert scene.values() == [b"2"]
        assert scene.run(scene.outbox.parked())[0].cause.startswith("ééé")

    def test_the_status_counts_what_is_parked(self, scene: OutboxScene) -> None:
        scene.commit(message(b"1"))
        shards, (row,) = scene.own(), scene.pending()
        scene.fail(shards, row, None)
        scene.run(scene.suite.age(scene.place, 50.0))
        status = scene.run(scene.outbox.status())
        assert (status.waiting, status.oldest, status.parked) == (0, None, 1)
        assert status.oldest_parked is not None
        assert 50 <= status.oldest_parked < 110
