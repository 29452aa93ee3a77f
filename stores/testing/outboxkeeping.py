"""`OutboxKeeping`: what stays of rows that were sent, and how long parked rows stay."""

from __future__ import annotations

from ackwise.middleware.outbox import OutboxStore, RowState
from ackwise.middleware.outgoing import Outgoing
from ackwise.stores.testing.outboxscene import OutboxScene, message

_MONTH = 30 * 86400.0
_INSTANT = 1e-6


class OutboxKeeping:
    """The settings `keep_sent`, `blank` and `keep_parked`; skipped where `make_keeping` is not there."""

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


def _commit_one(scene: OutboxScene, message_id: str = "x") -> None:
    scene.commit(Outgoing("orders", b"secret", b"k", (("h", b"1"),), message_id=message_id))


def _send_all(scene: OutboxScene, outbox: OutboxStore) -> int:
    scene.run(scene.outbox.leave("a"))
    shards = scene.own(outbox=outbox)
    sent = scene.sent(scene.pending(shards, outbox=outbox), shards, outbox=outbox)
    scene.run(outbox.leave("a"))
    return sent
