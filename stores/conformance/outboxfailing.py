"""`OutboxFailing`: tests of rows that could not be sent, of the rows that wait for them, and of what remains of finished rows."""

from __future__ import annotations

from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import CheckAnswer, Failed, Holder, OutboxStore, Parked, RowState, TransactionOutcome
from ackwise.stores.conformance.outboxwriting import OutboxScene, message

_MONTH = 30 * 86400.0
_INSTANT = 1e-6

_LATER, _NOW = 3600.0, 0.0
"""Seconds until a row is due again: not in this test, and at once."""


class OutboxFailing:
    """Failures, parked rows, the keys behind them, and the settings of what stays, where `make_keeping` is there."""

    def test_a_row_that_was_sent_stays_without_its_payload(self, scene: OutboxScene) -> None:
        outbox = scene.open(keep_sent=_MONTH)
        _commit_one(scene)
        assert _send_all(scene, outbox) == 1
        assert scene.rows() == [(RowState.GLOBAL_COMMIT, "x", None, None, None)]
        assert scene.pending(outbox=outbox) == []

    def test_only_what_is_named_is_blanked(self, scene: OutboxScene) -> None:
        for blank in (("value",), ("key", "headers"), ()):
            outbox = scene.open(keep_sent=_MONTH, blank=blank)
            _commit_one(scene, message_id=f"without {blank}")
            _send_all(scene, outbox)
            _, _, key, value, headers = scene.rows()[-1]
            kept = {name for name, given in (("value", value), ("key", key), ("headers", headers)) if given is not None}
            assert kept == {"value", "key", "headers"} - set(blank), blank

    def test_cleanup_deletes_a_row_that_was_sent_when_its_time_is_over_and_not_before(self, scene: OutboxScene) -> None:
        _commit_one(scene)
        _send_all(scene, scene.open(keep_sent=_MONTH))
        assert (scene.cleanup(), len(scene.rows())) == (0, 1)
        scene.commit(message(b"2"))
        _send_all(scene, scene.open(keep_sent=_INSTANT))
        assert (scene.cleanup(), len(scene.rows())) == (1, 1)

    def test_a_row_that_stays_holds_up_no_key_and_is_no_longer_counted(self, scene: OutboxScene) -> None:
        outbox = scene.open(keep_sent=_MONTH)
        scene.commit(message(b"1", key=b"k"), message(b"2", key=b"k"))
        shards, (first, second) = scene.own(outbox=outbox), scene.pending(outbox=outbox)
        assert scene.fail(shards, first, 3600.0, outbox=outbox) == 1
        assert scene.pending(shards, outbox=outbox) == []
        assert scene.sent([first], shards, outbox=outbox) == 1
        assert [row.id for row in scene.pending(shards, outbox=outbox)] == [second.id]
        assert scene.sent([second, first], shards, outbox=outbox) == 1
        status = scene.run(outbox.status())
        assert (status.waiting, status.parked, status.prepared) == (0, 0, 0)

    def test_a_token_of_another_owner_keeps_nothing(self, scene: OutboxScene) -> None:
        outbox = scene.open(keep_sent=_MONTH)
        scene.commit(message(b"1"))
        shards = {shard: token + 1 for shard, token in scene.own(outbox=outbox).items()}
        assert scene.sent(scene.pending(outbox=outbox), shards, outbox=outbox) == 0
        assert [row.message.value for row in scene.pending(outbox=outbox)] == [b"1"]

    def test_the_time_of_a_parked_row_counts_from_when_it_was_parked(self, scene: OutboxScene) -> None:
        outbox = scene.open(keep_parked=_MONTH)
        scene.commit(message(b"waited long"))
        scene.run(scene.suite.age(scene.place, 2 * _MONTH))
        shards, (row,) = scene.own(), scene.pending()
        assert scene.fail(shards, row, None) == 1
        assert (scene.cleanup(outbox), len(scene.rows())) == (0, 1)

    def test_parked_rows_stay_for_ever_unless_somebody_said_how_long(self, scene: OutboxScene) -> None:
        outbox = scene.open(keep_parked=_MONTH)
        scene.commit(message(b"old", key=b"k"))
        shards, (row,) = scene.own(), scene.pending()
        assert scene.fail(shards, row, None) == 1
        scene.run(scene.suite.age(scene.place, 2 * _MONTH))
        scene.commit(message(b"new"), message(b"next", key=b"k"))
        (new, *_) = scene.pending(shards)
        assert scene.fail(shards, new, None) == 1
        assert (scene.cleanup(), len(scene.rows())) == (0, 3)
        assert (scene.cleanup(outbox), len(scene.rows())) == (1, 2)
        scene.own()
        assert scene.values() == [b"next"]

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

    def test_rows_behind_go_on_in_portions_by_id_and_no_row_passes_an_older_one_of_its_key(self, scene: OutboxScene) -> None:
        scene.commit(*(message(b"%d" % number, key=b"a") for number in range(1500)), message(b"b1", key=b"b"), message(b"b2", key=b"b"))
        shards, rows = scene.own(), scene.pending(limit=2000)
        scene.fail(shards, rows[0], None)
        scene.fail(shards, rows[-2], None)
        assert scene.values() == []
        scene.run(scene.outbox.requeue([rows[0].id, rows[-2].id]))
        scene.run(scene.outbox.free())
        first = scene.run(scene.outbox.pending(shards, limit=5000))
        assert [row.message.value for row in first][-2:] == [b"b1", b"b2"], "the other keys wait for no portion"
        scene.sent(first, shards)
        given = [row.message.value for row in first[:-2]]
        while some := scene.pending(shards, limit=5000):
            given += [row.message.value for row in some]
            scene.sent(some, shards)
        assert given == [b"%d" % number for number in range(1500)]

    def test_rows_that_failed_are_told_by_id(self, scene: OutboxScene) -> None:
        scene.commit(*(message(b"%d" % number, key=b"k%d" % number) for number in range(4)), message(b"4"))
        shards, rows = scene.own(), scene.pending()
        scene.fail(shards, rows[0], None)
        scene.fail(shards, rows[1], _LATER)
        scene.fail(shards, rows[3], _NOW)
        scene.fail(shards, rows[4], _LATER)
        scene.run(scene.outbox.prepare([message(b"half", key=b"k")], "tx", producer_group="shop", first_check=0.0))
        (half,) = scene.run(scene.outbox.due_checks("shop", limit=1, lease=60.0))
        scene.run(scene.outbox.answered([CheckAnswer(half.id, TransactionOutcome.UNKNOWN, again_in=None)]))
        ids = [row.id for row in rows]
        found = scene.run(scene.outbox.holders())
        assert found == [
            Holder(ids[0], "orders", b"k0", True),
            Holder(ids[1], "orders", b"k1", False),
            Holder(ids[3], "orders", b"k3", False),
            Holder(ids[4], "orders", None, False),
        ]
        assert scene.run(scene.outbox.holders(limit=2)) == found[:2]
        assert scene.run(scene.outbox.holders(limit=2, after=ids[1])) == found[2:]

    def test_rows_are_held_behind_an_earlier_one_if_they_are_there(self, scene: OutboxScene) -> None:
        scene.commit(message(b"a1", key=b"a"), message(b"a2", key=b"a"), message(b"b1", key=b"b"))
        shards, rows = scene.own(), scene.pending()
        scene.fail(shards, rows[0], None)
        assert scene.run(scene.outbox.hold([rows[1].id, 2**40])) == {rows[1].id}
        assert scene.run(scene.outbox.hold([rows[1].id])) == {rows[1].id}
        assert scene.values() == [b"b1"]
        scene.run(scene.outbox.requeue([rows[0].id]))
        assert scene.values() == [b"a1", b"a2", b"b1"]
        assert scene.run(scene.outbox.hold([])) == set()

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


def _commit_one(scene: OutboxScene, message_id: str = "x") -> None:
    scene.commit(Outgoing("orders", b"secret", b"k", (("h", b"1"),), message_id=message_id))


def _send_all(scene: OutboxScene, outbox: OutboxStore) -> int:
    scene.run(scene.outbox.leave("a"))
    shards = scene.own(outbox=outbox)
    sent = scene.sent(scene.pending(shards, outbox=outbox), shards, outbox=outbox)
    scene.run(outbox.leave("a"))
    return sent
