"""`OutboxSending`: tests of the rows that a relay receives, their order and outcome, and of the owners of shards."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

import pytest

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.outbox import SHARDS, Failed, OutboxStatus, Sent
from ackwise.stores.conformance.outboxwriting import LEASE, OutboxScene, message

_SHORT = 0.01
"""Seconds of a lease that has ended when a test goes on."""


class OutboxSending:
    """The side of a relay, while all goes well; and an operator's."""

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

    def test_rows_are_given_by_id_up_to_the_limit_to_any_outbox_of_the_tables(self, scene: OutboxScene) -> None:
        scene.commit(*(message(b"%d" % number) for number in range(10)))
        scene.commit(*(message(b"%d" % number) for number in range(10, 20)))
        assert scene.values(limit=15) == [b"%d" % number for number in range(15)]
        assert scene.values(limit=0) == []
        assert scene.values(limit=15, outbox=scene.open()) == scene.values(limit=15)

    def test_only_rows_of_the_shards_asked_for_are_given(self, scene: OutboxScene) -> None:
        scene.commit(*(message(key=b"%d" % number) for number in range(50)))
        rows = scene.pending()
        some = {row.shard for row in rows[:10]}
        assert scene.pending(dict.fromkeys(some, 1)) == [row for row in rows if row.shard in some]
        assert scene.pending({}) == []

    def test_rows_under_way_and_blocked_keys_are_left_out(self, scene: OutboxScene) -> None:
        scene.commit(message(b"1", key=b"a"), message(b"2", key=b"b"), message(b"3", key=b"a"), message(b"4"), message(b"5", key=b"c"))
        scene.commit(message(b"6", key=b"a", topic="bills"))
        rows = scene.pending()
        given = scene.values(under_way=[rows[1].id, rows[3].id], blocked=[("orders", b"a"), ("orders", b"unknown")])
        assert given == [b"5", b"6"]

    def test_a_row_that_commits_late_is_given_before_the_next_one_of_its_key(self, scene: OutboxScene) -> None:
        if not scene.suite.features.writers:
            pytest.skip("one business transaction is open at a time")

        async def slow(inserted: asyncio.Event, go: asyncio.Event) -> None:
            async with scene.suite.connect(scene.place) as connection, scene.outbox.transaction(connection) as transaction:
                transaction.add(message(b"slow", key=b"k"))
                await transaction.flush()
                inserted.set()
                await go.wait()

        async def race() -> list[bytes | None]:
            inserted, go = asyncio.Event(), asyncio.Event()
            task = asyncio.create_task(slow(inserted, go))
            await inserted.wait()
            await fast(b"fast", None)
            all_shards = dict.fromkeys(range(SHARDS), 0)
            first = await scene.outbox.pending(all_shards, limit=10)
            go.set()
            await task
            await fast(b"next", b"k")
            second = await scene.outbox.pending(all_shards, limit=10, under_way=[row.id for row in first])
            return [row.message.value for row in [*first, *second]]

        async def fast(value: bytes, key: bytes | None) -> None:
            async with scene.suite.connect(scene.place) as connection, scene.outbox.transaction(connection) as transaction:
                transaction.add(message(value, key=key))

        assert scene.run(race()) == [b"fast", b"slow", b"next"]

    def test_large_rows_are_given_a_few_at_a_time(self, scene: OutboxScene) -> None:
        for number in range(9):
            scene.commit(message(b"%d" % number * 4_300_000))
        shards, taken = scene.own(), 0
        while rows := scene.pending(shards):
            assert sum(len(row.message.value or b"") for row in rows) <= 36 * 1024 * 1024
            taken += 1
            scene.sent(rows, shards)
        assert taken == 2

    def test_few_bytes_are_one_row_at_a_time_however_many_are_allowed(self, scene: OutboxScene) -> None:
        scene.commit(*(message(bytes(10_000), key=b"%d" % number) for number in range(5)))
        assert len(scene.pending(most=1)) == 1
        assert len(scene.pending(most=25_000)) == 3
        assert len(scene.pending()) == 5

    def test_what_the_broker_acknowledged_is_gone(self, scene: OutboxScene) -> None:
        scene.commit(*(message(b"%d" % number) for number in range(6)))
        shards, rows = scene.own(), scene.pending()
        assert scene.sent(rows[::2], shards) == 3
        assert scene.values() == [b"1", b"3", b"5"]
        assert scene.sent(rows, shards) == 3
        assert (scene.sent(rows, shards), scene.sent([], shards)) == (0, 0)
        assert scene.pending() == []

    def test_writers_with_slow_commits_lose_nothing_and_keys_keep_their_order(self, scene: OutboxScene) -> None:
        writers, each = (12 if scene.suite.features.writers else 1), 25
        expected = {(writer, number) for writer in range(writers) for number in range(each)}

        async def write(writer: int) -> None:
            chance = random.Random(writer)
            async with scene.suite.connect(scene.place) as connection:
                for number in range(each):
                    async with scene.outbox.transaction(connection) as transaction:
                        transaction.add(message(b"%d %d" % (writer, number), key=b"%d" % writer))
                        await transaction.flush()
                        await asyncio.sleep(chance.choice((0, 0, 0.002, 0.02)))

        async def relay(done: asyncio.Event) -> list[tuple[int, int]]:
            shards, given = await scene.outbox.own("a", lease=LEASE, share=SHARDS), list[tuple[int, int]]()
            while True:
                was_done = done.is_set()
                rows = await scene.outbox.pending(shards, limit=20)
                given += [_of_writer(row.message.value) for row in rows]
                assert await scene.outbox.sent([Sent(row.id, row.shard) for row in rows], shards) == len(rows)
                if not rows and was_done:
                    return given
                await asyncio.sleep(0)

        async def race() -> list[tuple[int, int]]:
            done = asyncio.Event()
            relaying = asyncio.create_task(relay(done))
            await asyncio.gather(*(write(writer) for writer in range(writers)))
            done.set()
            return await relaying

        given = scene.run(race())
        assert (set(given), len(given)) == (expected, len(expected))
        assert all([n for w, n in given if w == writer] == list(range(each)) for writer in range(writers))

    def test_one_kind_of_relay_sends_the_rows(self, scene: OutboxScene) -> None:
        assert scene.run(scene.outbox.status()).relay_kind is None
        scene.run(scene.outbox.claim_relay("table"))
        scene.run(scene.outbox.claim_relay("table"))
        assert scene.run(scene.outbox.status()).relay_kind == "table"
        with pytest.raises(ConfigurationError, match=r"'table'.*'cdc'"):
            scene.run(scene.outbox.claim_relay("cdc"))
        scene.own("a")
        with pytest.raises(ConfigurationError, match="stop"):
            scene.run(scene.outbox.release_relay())
        scene.run(scene.outbox.leave("a"))
        scene.run(scene.outbox.release_relay())
        scene.run(scene.outbox.claim_relay("cdc"))

    def test_the_status_counts_rows_and_their_ages(self, scene: OutboxScene) -> None:
        assert scene.run(scene.outbox.status()) == OutboxStatus()
        scene.commit(message())
        scene.run(scene.suite.age(scene.place, 100.0))
        scene.commit(message(), message())
        scene.own("a")
        status = scene.run(scene.outbox.status())
        assert (status.waiting, status.prepared, status.parked, status.owners) == (3, 0, 0, {"a": SHARDS})
        assert status.oldest is not None
        assert 100 <= status.oldest < 160
        assert (status.oldest_prepared, status.oldest_parked) == (None, None)

    def test_an_outbox_that_is_closed_is_unavailable_until_it_is_opened_again(self, scene: OutboxScene) -> None:
        async def twice(what: Any) -> None:
            await what()
            await what()

        scene.run(twice(scene.outbox.close))
        with pytest.raises(StoreUnavailable, match="is not open"):
            scene.pending()
        scene.run(twice(scene.outbox.open))
        assert scene.pending() == []

    def test_setting_up_twice_and_checking_change_nothing(self, scene: OutboxScene) -> None:
        async def maintain() -> list[str]:
            maintained: Any = scene.outbox
            await maintained.init()
            await maintained.init()
            assert await maintained.cleanup() == 0
            said: list[str] = await maintained.check()
            return said

        scene.commit(message(b"1"))
        assert all("relay" in sentence for sentence in scene.run(maintain()))
        assert scene.values() == [b"1"]


def _require_relays(scene: OutboxScene) -> None:
    if not scene.suite.features.relays:
        pytest.skip("one relay at a time owns the shards")


def _of_writer(value: bytes | None) -> tuple[int, int]:
    writer, number = (value or b"").split()
    return int(writer), int(number)
