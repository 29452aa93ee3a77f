"""`OutboxTiming`: tests of rows that are sent later, or that expire, and of half messages with such times."""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import Begun, CheckAnswer, Holder, OutboxRow, Sent, TransactionOutcome
from ackwise.middleware.storage.rowtime import timing_of
from ackwise.stores.conformance.outboxwriting import OutboxScene, message

_HOUR = 3600.0
_PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class OutboxTiming:
    """Time on rows."""

    def test_a_delayed_row_is_given_when_it_is_due_and_not_before(self, scene: OutboxScene) -> None:
        _commit(scene, (message(b"later"), {"delay": "1h"}), (message(b"due"), {"at": _PAST}), (message(b"once"), {}))
        assert [(row.message.value, row.is_delayed, row.expires) for row in scene.pending()] == [
            (b"due", True, False),
            (b"once", False, False),
        ]
        assert 0.9 * _HOUR < (_next_due(scene) or 0.0) <= _HOUR

    def test_a_time_of_day_is_that_of_the_database(self, scene: OutboxScene) -> None:
        _commit(scene, (message(b"1"), {"at": time.time() + _HOUR}))
        assert (scene.values(), 0.9 * _HOUR < (_next_due(scene) or 0.0) < 1.1 * _HOUR) == ([], True)

    def test_many_rows_with_and_without_a_time_are_each_as_they_were_added(self, scene: OutboxScene) -> None:
        given = [
            (message(b"%d" % number), {"at": _PAST} if number % 3 == 0 else {"delay": 9} if number % 3 == 1 else {}) for number in range(30)
        ]
        _commit(scene, *given)
        assert scene.values() == [b"%d" % number for number in range(30) if number % 3 != 1]

    def test_a_delayed_row_neither_holds_its_key_nor_waits_for_it(self, scene: OutboxScene) -> None:
        _commit(
            scene,
            (message(b"later", key=b"k"), {"delay": _HOUR}),
            (message(b"2", key=b"k"), {}),
            (message(b"due", key=b"k"), {"at": _PAST}),
        )
        shards, (second, due) = scene.own(), scene.pending()
        assert (second.message.value, due.message.value) == (b"2", b"due")
        assert scene.fail(shards, second, _HOUR) == 1
        assert scene.values() == [b"due"]
        assert scene.values(blocked=[("orders", b"k")]) == [b"due"]
        assert scene.fail(shards, due, None) == 1
        assert scene.run(scene.outbox.requeue([second.id])) == 0
        scene.commit(message(b"other", key=b"x"))
        assert scene.values() == [b"other"]

    def test_a_delayed_row_that_failed_or_is_parked_holds_no_key(self, scene: OutboxScene) -> None:
        for again_in in (_HOUR, None):
            _commit(scene, (message(b"due", key=b"k"), {"at": _PAST}), (message(b"next", key=b"k"), {}))
            shards, (due, following) = scene.own(), scene.pending()
            assert scene.fail(shards, due, again_in) == 1
            assert scene.pending() == [following]
            assert scene.sent([following], shards) == 1
        assert all(holder.key is None for holder in _holders(scene))

    def test_a_delayed_row_is_tried_again_after_a_failure_and_a_requeue(self, scene: OutboxScene) -> None:
        _commit(scene, (message(b"due", key=b"k"), {"at": _PAST}))
        shards, (row,) = scene.own(), scene.pending()
        assert scene.fail(shards, row, 0.0) == 1
        assert [again.attempts for again in scene.pending()] == [1]
        assert scene.fail(shards, row, None) == 1
        assert scene.pending() == []
        assert scene.run(scene.outbox.requeue()) == 1
        assert [again.attempts for again in scene.pending()] == [0]

    def test_what_is_delayed_is_counted_apart_from_what_waits(self, scene: OutboxScene) -> None:
        _commit(scene, (message(), {"delay": _HOUR}), (message(), {"delay": _HOUR}), (message(), {}))
        status = scene.run(scene.outbox.status())
        assert (status.waiting, status.delayed, status.expired) == (1, 2, 0)

    def test_a_row_whose_time_is_over_is_told_apart_and_one_that_was_begun_never_expires(self, scene: OutboxScene) -> None:
        _commit(scene, (message(b"late"), {"expires": _PAST}), (message(b"in time"), {"expires": _HOUR}), (message(b"always"), {}))
        shards, rows = scene.own(), scene.pending()
        late, in_time, _ = rows
        assert [row.expires for row in rows] == [True, True, False]
        assert _begin(scene, [late, in_time], shards) == ({in_time.id}, {late.id})
        assert _begin(scene, [late, in_time], shards) == ({in_time.id}, {late.id})
        assert [row.expires for row in scene.pending()] == [True, False, False]
        assert _expire(scene, rows, shards) == 1
        assert scene.values() == [b"in time", b"always"]
        assert _expire(scene, rows, shards) == 0

    def test_who_does_not_own_a_row_neither_begins_nor_expires_it(self, scene: OutboxScene) -> None:
        _commit(scene, (message(b"late"), {"expires": _PAST}), (message(b"in time"), {"expires": _HOUR}))
        mine, rows = scene.own(), scene.pending()
        theirs = {shard: token + 1 for shard, token in mine.items()}
        for shards in (theirs, {}):
            assert _begin(scene, rows, shards) == (set(), set())
            assert _expire(scene, rows, shards) == 0
        assert scene.pending() == rows

    def test_an_expired_row_holds_no_key_is_listed_and_is_cleaned_up(self, scene: OutboxScene) -> None:
        _commit(scene, (message(b"late", key=b"k"), {"expires": _PAST}), (message(b"next", key=b"k"), {}))
        shards, (late, following) = scene.own(), scene.pending()
        assert _expire(scene, [late], shards) == 1
        assert scene.pending() == [following]
        (listed,) = scene.run(scene.outbox.expired())
        assert (listed.id, listed.topic, listed.key, listed.cause) == (late.id, "orders", b"k", "expired")
        assert scene.run(scene.outbox.expired(after=late.id)) == []
        status = scene.run(scene.outbox.status())
        assert (status.waiting, status.parked, status.expired) == (1, 0, 1)
        assert scene.sent([late], shards) == 0
        assert scene.run(scene.outbox.requeue([late.id])) == 0
        assert (scene.cleanup(), scene.run(scene.outbox.expired())) == (1, [])
        assert scene.pending() == [following]

    def test_the_times_of_a_half_message_count_from_its_commit(self, scene: OutboxScene) -> None:
        tx_id = _prepare(scene, message(b"1"), message(b"2", key=b"k"), delay=_HOUR, expires="2h")
        assert (_next_due(scene), scene.pending()) == (None, [])
        assert scene.run(scene.outbox.decide(tx_id, TransactionOutcome.COMMIT)) == 2
        assert (scene.pending(), 0.9 * _HOUR < (_next_due(scene) or 0.0) <= _HOUR) == ([], True)
        assert scene.run(scene.outbox.status()).delayed == 2

    def test_a_half_message_that_expires_is_in_time_however_long_its_transaction_took(self, scene: OutboxScene) -> None:
        tx_id = _prepare(scene, message(b"1"), expires=_HOUR)
        assert scene.run(scene.outbox.decide(tx_id, TransactionOutcome.COMMIT)) == 1
        shards, (row,) = scene.own(), scene.pending()
        assert (row.expires, row.is_delayed, _begin(scene, [row], shards)) == (True, False, ({row.id}, set()))

    def test_an_answered_half_message_keeps_its_times_with_other_content_too(self, scene: OutboxScene) -> None:
        for content in (None, Outgoing("orders", b"new", b"k", message_id="m")):
            _prepare(scene, message(b"old", key=b"k", message_id="m"), first_check=0.0, delay=_HOUR, expires="2h")
            (due,) = scene.run(scene.outbox.due_checks("shop", limit=10, lease=60.0))
            assert scene.run(scene.outbox.answered([CheckAnswer(due.id, TransactionOutcome.UNKNOWN, 60.0)])) == 1
            assert scene.run(scene.outbox.answered([CheckAnswer(due.id, TransactionOutcome.COMMIT, content=content)])) == 1
            assert (scene.pending(), 0.9 * _HOUR < (_next_due(scene) or 0.0) <= _HOUR) == ([], True)
        assert scene.run(scene.outbox.status()).delayed == 2

    def test_the_times_of_a_parked_half_message_count_from_its_requeue(self, scene: OutboxScene) -> None:
        _prepare(scene, message(b"1"), first_check=0.0, delay=_HOUR)
        (due,) = scene.run(scene.outbox.due_checks("shop", limit=10, lease=60.0))
        assert scene.run(scene.outbox.answered([CheckAnswer(due.id, TransactionOutcome.UNKNOWN, None)])) == 1
        assert scene.run(scene.outbox.requeue([due.id])) == 1
        assert (scene.pending(), 0.9 * _HOUR < (_next_due(scene) or 0.0) <= _HOUR) == ([], True)

    def test_a_time_that_makes_no_sense_is_refused_where_the_row_is_added(self, scene: OutboxScene) -> None:
        for wrong in ({"delay": -1}, {"delay": "soon"}, {"at": datetime.datetime(2020, 1, 1)}, {"expires": 0}, {"delay": 5, "expires": 5}):  # noqa: DTZ001
            with pytest.raises(ConfigurationError, match=r"delay|at is|expires"):
                _commit(scene, (message(), wrong))
        assert scene.pending() == []


def _commit(scene: OutboxScene, *given: tuple[Outgoing, dict[str, Any]]) -> None:
    """Commit rows with their times."""

    async def commit() -> None:
        async with scene.suite.connect(scene.place) as connection, scene.outbox.transaction(connection) as transaction:
            for one, times in given:
                transaction.add(one, **times)

    scene.run(commit())


def _prepare(scene: OutboxScene, *messages: Outgoing, first_check: float = _HOUR, **times: Any) -> str:
    """Write half messages; return the id of their local transaction."""
    tx_id = uuid.uuid4().hex
    scene.run(scene.outbox.prepare(messages, tx_id, producer_group="shop", first_check=first_check, timing=timing_of(**times)))
    return tx_id


def _next_due(scene: OutboxScene) -> float | None:
    return scene.run(scene.outbox.next_due(dict.fromkeys(range(64), 0)))


def _holders(scene: OutboxScene) -> list[Holder]:
    return scene.run(scene.outbox.holders())


def _begin(scene: OutboxScene, rows: Sequence[OutboxRow], shards: Any) -> tuple[set[int], set[int]]:
    begun: Begun = scene.run(scene.outbox.begin([Sent(row.id, row.shard) for row in rows], shards))
    return set(begun.may_go), set(begun.expired)


def _expire(scene: OutboxScene, rows: Sequence[OutboxRow], shards: Any) -> int:
    return int(scene.run(scene.outbox.expire([Sent(row.id, row.shard) for row in rows], shards)))
