"""`OutboxConformance`: the test suite that every `OutboxStore` passes, for the stores here and for yours.

    class TestMyOutbox(OutboxConformance):
        def make(self, place): ...
        async def prepare(self, place): ...
        def connect(self, place): ...
        def start(self, connection): ...
        def savepoint(self, connection): ...
        async def write(self, connection, effect): ...
        async def effects(self, place): ...
        async def age(self, place, seconds): ...

It needs pytest and a real database. `OutboxPreparing` tests half messages, barriers and check-backs.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import (
    MAX_CHECKS,
    CheckAnswer,
    OutboxStore,
    Prepared,
    RowState,
    TransactionOutcome,
    next_check,
    shard_of,
)
from ackwise.stores.conformance.outboxfailing import OutboxFailing
from ackwise.stores.conformance.outboxsending import OutboxSending
from ackwise.stores.conformance.outboxtiming import OutboxTiming
from ackwise.stores.conformance.outboxwriting import LEASE, Business, OutboxFeatures, OutboxScene, OutboxWriting, RolledBack, message

__all__ = ["BusinessConformance", "OutboxConformance", "OutboxFeatures"]


COMMIT, ROLLBACK, UNKNOWN = TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK, TransactionOutcome.UNKNOWN


class OutboxPreparing:
    """Half messages."""

    def test_a_half_message_is_sent_once_it_is_committed(self, scene: OutboxScene) -> None:
        tx_id = _prepare(scene, message(b"1"), message(b"2"))
        assert scene.pending() == []
        assert (_decide(scene, tx_id, UNKNOWN), scene.pending()) == (0, [])
        assert (_decide(scene, tx_id, COMMIT), scene.values()) == (2, [b"1", b"2"])
        assert [_decide(scene, tx_id, outcome) for outcome in TransactionOutcome] == [0, 0, 0]
        assert scene.values() == [b"1", b"2"]

    def test_a_half_message_that_is_rolled_back_is_never_sent_and_none_is_prepared_of_no_messages(self, scene: OutboxScene) -> None:
        tx_id = _prepare(scene, message(b"1"))
        assert _decide(scene, tx_id, ROLLBACK) == 1
        assert _decide(scene, tx_id, COMMIT) == 0
        assert (scene.pending(), scene.run(scene.outbox.parked()), _due(scene)) == ([], [], [])
        tx_id = _prepare(scene)  # no messages
        assert (_decide(scene, tx_id, COMMIT), _decide(scene, "", COMMIT)) == (0, 0)

    def test_messages_that_are_saved_are_sent_and_their_relay_is_woken(self, scene: OutboxScene) -> None:
        async def race() -> None:
            await scene.outbox.pending({0: 1}, limit=1)
            waiting = asyncio.create_task(scene.outbox.wait_for_rows(3600.0))
            await scene.outbox.save([message(b"1", key=b"k"), message(b"2", key=b"k")])
            await waiting

        scene.run(race())
        scene.run(scene.outbox.save([]))
        assert scene.values() == [b"1", b"2"]

    def test_half_messages_are_listed_until_they_are_decided(self, scene: OutboxScene) -> None:
        first = _prepare(scene, message(b"1"), message(b"2"))
        second = _prepare(scene, message(b"3"))
        scene.commit(message(b"4"))
        listed = scene.run(scene.outbox.prepared())
        assert [(row.topic, row.tx_id, row.producer_group, row.checks) for row in listed] == [
            ("orders", tx_id, "shop", 0) for tx_id in (first, first, second)
        ]
        assert scene.run(scene.outbox.prepared(limit=1, after=listed[0].id)) == listed[1:2]
        _decide(scene, first, COMMIT)
        assert scene.run(scene.outbox.prepared()) == listed[2:]

    def test_a_commit_by_decision_wakes_whoever_waits_for_rows(self, scene: OutboxScene) -> None:
        async def race() -> None:
            await scene.outbox.pending({0: 1}, limit=1)
            waiting = asyncio.create_task(scene.outbox.wait_for_rows(3600.0))
            await scene.outbox.decide(tx_id, COMMIT)
            await waiting

        tx_id = _prepare(scene, message())
        scene.run(race())

    def test_a_check_back_is_due_after_its_time_and_given_to_one(self, scene: OutboxScene) -> None:
        _prepare(scene, message(b"later"), first_check=3600.0)
        tx_id = _prepare(scene, message(b"now"), barrier_in="there")
        other = scene.open()
        (due,) = _due(scene)
        assert due._replace(id=0, created_ms=0) == Prepared(0, due.message, tx_id, 0, 0, "shop", "there")
        assert (due.message.value, due.created_ms > 1.6e12) == (b"now", True)
        assert (_due(scene), _due(scene, outbox=other)) == ([], [])

    def test_check_backs_are_for_the_group_that_prepared_or_those_whose_barrier_is_here(self, scene: OutboxScene) -> None:
        _prepare(scene, message(), producer_group="other")
        assert _due(scene) == []
        assert len(_due(scene, "other")) == 1
        here = scene.run(scene.outbox.database_id())
        _prepare(scene, message(b"no barrier"))
        _prepare(scene, message(b"elsewhere"), barrier_in="elsewhere")
        _prepare(scene, message(b"here"), barrier_in=here)
        assert [row.message.value for row in _due(scene, None)] == [b"here"]

    def test_no_more_check_backs_than_asked_for_are_given_the_oldest_first(self, scene: OutboxScene) -> None:
        for number in range(5):
            _prepare(scene, message(b"%d" % number))
        assert sorted(row.message.value or b"" for row in _due(scene, limit=3)) == [b"0", b"1", b"2"]
        assert len(_due(scene, limit=3)) == 2

    def test_answers_decide_and_who_decided_first_decided(self, scene: OutboxScene) -> None:
        for number in range(3):
            _prepare(scene, message(b"%d" % number))
        first, second, third = _due(scene)
        answers = [CheckAnswer(first.id, COMMIT), CheckAnswer(second.id, ROLLBACK), CheckAnswer(third.id, UNKNOWN, 0.0)]
        assert _answer(scene, *answers) == 3
        assert scene.values() == [b"0"]
        assert [(row.id, row.checks) for row in _due(scene)] == [(third.id, 1)]
        assert _answer(scene, CheckAnswer(first.id, ROLLBACK), CheckAnswer(second.id, COMMIT)) == 0
        assert (scene.values(), _answer(scene)) == ([b"0"], 0)

    def test_after_fifteen_answered_checks_a_row_is_parked_and_can_be_requeued(self, scene: OutboxScene) -> None:
        _prepare(scene, message(b"1", key=b"k"))
        scene.commit(message(b"2", key=b"k"))
        for check in range(1, MAX_CHECKS + 1):
            (row,) = _due(scene)
            assert row.checks == check - 1
            assert _answer(scene, CheckAnswer(row.id, UNKNOWN, next_check(check, every=0.0), "unknown")) == 1
        assert (_due(scene), MAX_CHECKS) == ([], 15)
        (parked,) = scene.run(scene.outbox.parked())
        assert (parked.checks, parked.attempts, parked.cause) == (15, 0, "unknown")
        assert scene.values() == [b"2"], "it was never tried, so nothing waits for it"
        assert scene.run(scene.outbox.requeue()) == 1
        assert sorted(value or b"" for value in scene.values()) == [b"1", b"2"]

    def test_the_first_content_of_a_check_back_is_sent_under_the_id_that_was_prepared(self, scene: OutboxScene) -> None:
        contents = [
            Outgoing("bills", b"\0\xff'" * 1000, b"other key", (("h", b"\xff"), ("n", None)), 7, message_id="half-0"),
            Outgoing("orders", None, message_id="half-1"),
        ]
        for number in range(3):
            _prepare(scene, Outgoing("orders", b"unknown", b"k", (("h", b"1"),), message_id=f"half-{number}"))
        first, second, third = _due(scene)
        answers = [CheckAnswer(row.id, COMMIT, content=content) for row, content in zip((first, second), contents, strict=True)]
        assert _answer(scene, *answers, CheckAnswer(third.id, ROLLBACK)) == 3
        assert [(row.message, row.shard) for row in scene.pending()] == [(content, shard_of(content)) for content in contents]
        later = [CheckAnswer(row.id, COMMIT, content=replace(row.message, value=b"later")) for row in (first, second, third)]
        assert _answer(scene, *later) == 0
        assert [row.message for row in scene.pending()] == contents

    def test_a_row_with_content_waits_for_earlier_rows_of_its_new_key(self, scene: OutboxScene) -> None:
        scene.commit(message(b"1", key=b"k"))
        _prepare(scene, message(key=b"another"))
        (due,), (earlier,), shards = _due(scene), scene.pending(), scene.own()
        assert scene.fail(shards, earlier, 3600.0) == 1
        assert _answer(scene, CheckAnswer(due.id, COMMIT, content=message(b"2", key=b"k"))) == 1
        assert scene.pending() == []
        assert scene.sent([earlier], shards) == 1
        assert scene.values() == [b"2"]

    def test_an_answer_that_has_to_wait_uses_up_no_check(self, scene: OutboxScene) -> None:
        _prepare(scene, message())
        found = []
        for counts in (False, False, True, False, True):
            (row,) = _due(scene)
            found.append(row.checks)
            assert _answer(scene, CheckAnswer(row.id, UNKNOWN, 0.0, counts=counts)) == 1
        assert found == [0, 0, 0, 1, 1]
        (row,) = _due(scene)
        assert _answer(scene, CheckAnswer(row.id, UNKNOWN, 3600.0, counts=False)) == 1
        assert (row.checks, _due(scene)) == (2, [])

    def test_the_states_of_the_rows_of_a_local_transaction_are_known(self, scene: OutboxScene) -> None:
        tx_id = _prepare(scene, *(message(b"%d" % number) for number in range(4)))
        other = _prepare(scene, message(b"other"))
        assert [*scene.run(scene.outbox.states_of(tx_id))] == [RowState.PREPARED]
        rows = [row for row in _due(scene) if row.tx_id == tx_id]
        answers = [(COMMIT, 0.0), (ROLLBACK, 0.0), (UNKNOWN, None), (UNKNOWN, 0.0)]
        assert _answer(scene, *(CheckAnswer(row.id, *answer) for row, answer in zip(rows, answers, strict=True))) == 4
        expected = {RowState.LOCAL_COMMIT, RowState.LOCAL_ROLLBACK, RowState.MESSAGE_ERROR, RowState.PREPARED}
        assert {*scene.run(scene.outbox.states_of(tx_id))} == expected
        assert _decide(scene, tx_id, COMMIT) == 1, "what is parked waits for the operator"
        scene.sent(scene.pending(), scene.own())
        assert {*scene.run(scene.outbox.states_of(tx_id))} == {RowState.LOCAL_ROLLBACK, RowState.MESSAGE_ERROR}
        scene.commit(message(b"of no local transaction"))
        assert [[*scene.run(scene.outbox.states_of(each))] for each in (other, "", "none")] == [[RowState.PREPARED], [], []]

    def test_the_status_counts_half_messages(self, scene: OutboxScene) -> None:
        _prepare(scene, message())
        scene.run(scene.suite.age(scene.place, 50.0))
        status = scene.run(scene.outbox.status())
        assert (status.waiting, status.prepared, status.parked) == (0, 1, 0)
        assert status.oldest_prepared is not None
        assert 50 <= status.oldest_prepared < 110

    def test_the_database_has_an_id_that_every_way_of_asking_tells(self, scene: OutboxScene) -> None:
        async def ask() -> set[str]:
            async with scene.suite.connect(scene.place) as connection:
                return {await scene.outbox.database_id(), await scene.outbox.database_id(connection), await other.database_id()}

        other = scene.open()
        (found,) = scene.run(ask())
        assert len(found) >= 16

    def test_a_barrier_says_how_the_local_transaction_ended(self, scene: OutboxScene) -> None:
        for commits, expected in ((True, COMMIT), (False, ROLLBACK)):
            tx_id = _new()
            scene.run(_local(scene, tx_id, commits=commits))
            assert [_probe(scene, tx_id) for _ in range(2)] == [expected, expected]

    def test_a_local_transaction_commits_once_and_never_after_a_check_back(self, scene: OutboxScene) -> None:
        tx_id = _new()
        assert _probe(scene, tx_id) is ROLLBACK
        with pytest.raises(TransactionAborted, match="check-back"):
            scene.run(_local(scene, tx_id))
        assert (scene.effects(), _probe(scene, tx_id)) == ([], ROLLBACK)
        tx_id = _new()
        scene.run(_local(scene, tx_id))
        with pytest.raises(TransactionAborted, match="committed before"):
            scene.run(_local(scene, tx_id, effect="again"))
        assert (scene.effects(), _probe(scene, tx_id)) == ([tx_id], COMMIT)

    def test_a_barrier_outside_of_a_transaction_is_refused(self, scene: OutboxScene) -> None:
        async def alone() -> None:
            async with scene.suite.connect(scene.place) as connection:
                await scene.outbox.barrier(connection, tx_id)

        tx_id = _new()
        with pytest.raises(ConfigurationError, match="local transaction"):
            scene.run(alone())
        assert _probe(scene, tx_id) is ROLLBACK

    def test_a_check_back_of_a_local_transaction_that_runs_knows_nothing(self, scene: OutboxScene) -> None:
        async def race() -> TransactionOutcome:
            async with scene.suite.connect(scene.place) as connection, scene.suite.begin(connection):
                await scene.outbox.barrier(connection, tx_id)
                await scene.suite.write(connection, tx_id)
                return await scene.outbox.probe(tx_id, wait=0.05)

        tx_id = _new()
        assert scene.run(race()) is UNKNOWN
        assert (_probe(scene, tx_id), scene.effects()) == (COMMIT, [tx_id])

    def test_check_backs_and_slow_local_transactions_never_disagree(self, scene: OutboxScene) -> None:
        transactions = 40 if scene.suite.features.writers else 10

        async def local(tx_id: str, chance: random.Random) -> None:
            await asyncio.sleep(chance.random() * 0.1)
            try:
                await _local(scene, tx_id, commits=chance.random() < 0.8, pause=chance.random() * 0.1)
            except TransactionAborted:
                return

        async def checked() -> int:
            due = await scene.outbox.due_checks("shop", limit=10, lease=0.02)
            answers = [CheckAnswer(row.id, await scene.outbox.probe(row.tx_id, wait=0.01), 0.0) for row in due]
            await scene.outbox.answered(answers)
            return (await scene.outbox.status()).prepared

        async def check(done: asyncio.Event) -> None:
            while not (done.is_set() and await checked() == 0):
                await checked()
                await asyncio.sleep(0.002)

        async def race() -> list[str]:
            done, ids = asyncio.Event(), [_new() for _ in range(transactions)]
            for tx_id in ids:
                await scene.outbox.prepare([message(tx_id.encode())], tx_id, producer_group="shop", first_check=0.0)
            checking = [asyncio.create_task(check(done)) for _ in range(2)]
            await asyncio.gather(*(local(tx_id, random.Random(number)) for number, tx_id in enumerate(ids)))
            done.set()
            await asyncio.gather(*checking)
            return ids

        scene.run(race())
        assert sorted((value or b"").decode() for value in scene.values()) == scene.effects()

    def test_cleanup_deletes_what_was_rolled_back_and_barriers_that_nobody_needs(self, scene: OutboxScene) -> None:
        rolled_back, needed, ended = _prepare(scene, message()), _prepare(scene, message(b"needed")), _new()
        _decide(scene, rolled_back, ROLLBACK)
        for tx_id in (needed, ended):
            scene.run(_local(scene, tx_id))
        scene.commit(message(b"1"))
        assert scene.cleanup() == 1
        scene.run(scene.suite.age(scene.place, 31 * 86400.0))
        assert scene.cleanup() == 1
        assert _probe(scene, needed) is COMMIT
        assert (scene.values(), _decide(scene, needed, COMMIT)) == ([b"1"], 1)


def _new() -> str:
    return os.urandom(8).hex()


def _prepare(scene: OutboxScene, *messages: Outgoing, producer_group: str = "shop", barrier_in: str = "", first_check: float = 0.0) -> str:
    tx_id = _new()
    scene.run(scene.outbox.prepare(messages, tx_id, producer_group=producer_group, barrier_in=barrier_in, first_check=first_check))
    return tx_id


async def _local(scene: OutboxScene, tx_id: str, *, commits: bool = True, effect: str | None = None, pause: float = 0.0) -> None:
    """A local transaction: its barrier first, then its effect."""
    async with scene.suite.connect(scene.place) as connection:
        with suppress(RolledBack):
            async with scene.suite.begin(connection):
                await scene.outbox.barrier(connection, tx_id)
                await asyncio.sleep(pause)
                await scene.suite.write(connection, effect or tx_id)
                if not commits:
                    raise RolledBack


def _decide(scene: OutboxScene, tx_id: str, outcome: TransactionOutcome) -> int:
    return scene.run(scene.outbox.decide(tx_id, outcome))


def _due(scene: OutboxScene, producer_group: str | None = "shop", *, limit: int = 100, outbox: OutboxStore | None = None) -> list[Prepared]:
    return scene.run((outbox or scene.outbox).due_checks(producer_group, limit=limit, lease=LEASE))


def _answer(scene: OutboxScene, *answers: CheckAnswer) -> int:
    return scene.run(scene.outbox.answered(answers))


def _probe(scene: OutboxScene, tx_id: str) -> TransactionOutcome:
    return scene.run(scene.outbox.probe(tx_id, wait=1.0))


class BusinessConformance(OutboxWriting, OutboxPreparing, Business):
    """The side of the business alone, for another way to write into an outbox that passes the whole suite."""

    @pytest.fixture
    def scene(self, tmp_path: Path) -> Iterator[OutboxScene]:
        scene = OutboxScene(self, tmp_path)
        yield scene
        scene.end()


class OutboxConformance(OutboxSending, OutboxTiming, OutboxFailing, BusinessConformance):
    """Derive a class whose name starts with `Test`."""
