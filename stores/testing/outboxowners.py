"""`OutboxOwners`: shards belong to one relay at a time, and who had one before changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import pytest

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.outbox import SHARDS, Failed
from ackwise.stores.testing.outboxscene import LEASE, OutboxScene, message

_SHORT = 0.01
"""Seconds of a lease that has ended when a test goes on."""


class OutboxOwners:
    """Ownership of shards."""

    def test_a_relay_alone_owns_every_shard_and_renews_with_the_same_tokens(self, scene: OutboxScene) -> None:
        mine = scene.own("a")
        assert sorted(mine) == list(range(SHARDS))
        assert scene.own("a") == mine
        assert scene.run(scene.outbox.relays()) == 1

    def test_a_lease_that_ended_and_was_not_taken_is_renewed(self, scene: OutboxScene) -> None:
        mine = scene.own("a", lease=_SHORT)
        time.sleep(5 * _SHORT)  # a database has its own clock
        assert scene.run(scene.outbox.relays()) == 0
        assert scene.own("a") == mine

    def test_who_leaves_is_followed_at_once_with_other_tokens(self, scene: OutboxScene) -> None:
        mine = scene.own("a")
        scene.run(scene.outbox.leave("a"))
        assert scene.run(scene.outbox.relays()) == 0
        theirs = scene.own("b")
        assert all(theirs[shard] > token for shard, token in mine.items())

    def test_what_a_relay_writes_after_it_was_replaced_changes_nothing(self, scene: OutboxScene) -> None:
        scene.commit(message(b"1", key=b"k"), message(b"2", key=b"k"), message(b"3"))
        zombie = scene.own("a", lease=_SHORT)
        rows = scene.pending(zombie)
        scene.run(scene.outbox.leave("a")) if not scene.suite.features.relays else time.sleep(5 * _SHORT)
        mine = scene.own("b")
        assert scene.sent(rows, zombie) == 0
        assert scene.run(scene.outbox.failed([Failed(row.id, row.shard, "zombie", None) for row in rows], zombie)) == 0
        assert scene.pending(mine) == rows
        assert scene.sent(rows, mine) == 3

    def test_rows_of_shards_that_are_not_ours_are_not_changed(self, scene: OutboxScene) -> None:
        scene.commit(*(message(b"%d" % number, key=b"%d" % number) for number in range(20)))
        rows, mine = scene.pending(), dict(scene.own("a"))
        dropped = rows[0].shard
        del mine[dropped]
        assert scene.sent(rows, mine) == sum(row.shard != dropped for row in rows)
        assert scene.pending() == [row for row in rows if row.shard == dropped]

    def test_relays_come_to_equal_shares(self, scene: OutboxScene) -> None:
        _require_relays(scene)
        other = scene.open()
        first = scene.own("a")
        assert scene.own("b", share=32, outbox=other) == {}
        assert scene.run(other.relays()) == 2
        kept = scene.own("a", share=32)
        taken = scene.own("b", share=32, outbox=other)
        assert (len(kept), len(taken), kept.keys() | taken.keys()) == (32, 32, set(first))
        assert all(kept[shard] == first[shard] for shard in kept)
        assert all(taken[shard] > first[shard] for shard in taken)
        assert scene.run(scene.outbox.status()).owners == {"a": 32, "b": 32}

    def test_shards_of_a_dead_relay_are_taken_over_when_their_lease_ends(self, scene: OutboxScene) -> None:
        _require_relays(scene)
        other = scene.open()
        dead = scene.own("a", share=40, lease=LEASE)
        assert len(scene.own("b", outbox=other)) == SHARDS - 40
        again = scene.own("a", share=40, lease=_SHORT)
        assert again == dead
        time.sleep(5 * _SHORT)  # a database has its own clock
        taken = scene.own("b", outbox=other)
        assert sorted(taken) == list(range(SHARDS))
        assert all(taken[shard] > token for shard, token in dead.items())

    def test_relays_that_come_at_once_never_own_one_shard_together(self, scene: OutboxScene) -> None:
        _require_relays(scene)
        outboxes = [scene.outbox, scene.open(), scene.open(), scene.open()]

        async def own_all() -> list[Mapping[int, int]]:
            some = [outbox.own(f"relay {number}", lease=LEASE, share=16) for number, outbox in enumerate(outboxes)]
            return list(await asyncio.gather(*some))

        for _ in range(3):
            owned = scene.run(own_all())
            assert sorted(shard for one in owned for shard in one) == list(range(SHARDS))

    def test_a_second_relay_is_refused_where_there_can_be_one_only(self, scene: OutboxScene) -> None:
        if scene.suite.features.relays:
            pytest.skip("several relays share the shards")
        other = scene.open()
        scene.own("a")
        with pytest.raises(ConfigurationError, match="one relay"):
            scene.own("b", outbox=other)
        scene.run(scene.outbox.leave("a"))
        assert len(scene.own("b", outbox=other)) == SHARDS


def _require_relays(scene: OutboxScene) -> None:
    if not scene.suite.features.relays:
        pytest.skip("one relay at a time owns the shards")
