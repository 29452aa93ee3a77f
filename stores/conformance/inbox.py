"""`InboxConformance`: the test suite that every `TransactionalStore` passes, for those here and for yours.

    class TestMyInbox(InboxConformance):
        def make(self, place): ...
        async def prepare(self, place): ...
        async def write(self, connection, effect): ...
        async def effects(self, place): ...

It needs pytest and a real database; keys are random, so runs may share one.
"""

from __future__ import annotations

import abc
import asyncio
import os
import random
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import pytest

from ackwise.middleware.errors import Fenced, StoreUnavailable, TransactionAborted
from ackwise.middleware.storage.claimstore import ClaimKey, Outcome, Stale
from ackwise.middleware.storage.transaction import (
    Finish,
    Finished,
    OffsetsStore,
    OffsetsTransaction,
    Permit,
    Place,
    Progress,
    Taken,
    Transaction,
    TransactionalStore,
    TransactionAnswer,
    take_over_all,
)

T = TypeVar("T")

HERE: Final = ("orders", 3, 17)
"""The place of a message: topic, partition and offset."""


class Database(abc.ABC):
    """The inbox and the handlers' table, as the suite needs them."""

    @abc.abstractmethod
    def make(self, place: Path) -> TransactionalStore:
        """An inbox that is not open yet; each call with the same `place`, a folder of this test, names the same database."""

    @abc.abstractmethod
    async def prepare(self, place: Path) -> None:
        """Make an empty table for effects, which are short texts and unique in it."""

    @abc.abstractmethod
    async def write(self, connection: Any, effect: str) -> None:
        """Write an effect through what a handler gets."""

    @abc.abstractmethod
    async def effects(self, place: Path) -> list[str]:
        """Return the table's rows, as another connection sees them."""

    @abc.abstractmethod
    async def commit(self, connection: Any) -> None:
        """Commit, which a handler must not do."""


class RolledBack(Exception):
    """Rolls a block back."""


def fresh_key(attempt: int = 1) -> ClaimKey:
    """A new key."""
    return ClaimKey(os.urandom(16), None, attempt)


def done(key: ClaimKey, exec_id: int = 7, outcome: Outcome | None = Outcome.OK, next_attempt: int = 1) -> Finish:
    """The end of a message at `HERE`."""
    return Finish(key, HERE, exec_id, outcome, next_attempt)


def fresh_owner() -> str:
    """A new owner of offsets."""
    return f"ackwise/0/{os.urandom(6).hex()}"


def with_offsets(inbox: TransactionalStore) -> OffsetsStore:
    """Return the inbox as one that keeps offsets."""
    return cast(OffsetsStore, inbox)


def with_offsets_open(transaction: Transaction) -> OffsetsTransaction:
    """The transaction as one that keeps offsets."""
    return cast(OffsetsTransaction, transaction)


class InboxScene:
    """One test's inbox, driven without `await`."""

    def __init__(self, suite: Database, place: Path) -> None:
        self.runner = asyncio.Runner()
        self.suite = suite
        self.place = place
        self.run(suite.prepare(place))
        self.inbox = self.open()

    def open(self) -> TransactionalStore:
        """One more inbox on the same place, opened."""
        inbox = self.suite.make(self.place)
        self.run(inbox.open())
        self.opened = [*getattr(self, "opened", []), inbox]
        return inbox

    def end(self) -> None:
        """Close every inbox."""
        for inbox in self.opened:
            self.run(inbox.close())
        self.runner.close()

    def run(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop that the inboxes live on."""
        return self.runner.run(waiting)

    def consume(
        self,
        keys: Sequence[ClaimKey],
        finishes: Sequence[Finish] = (),
        *,
        effects: Sequence[str] = (),
        boom: bool = False,
        retention: float = 3600.0,
        inbox: TransactionalStore | None = None,
    ) -> list[TransactionAnswer]:
        """One transaction: claim `keys`, write `effects`, finish `finishes`, and commit or not."""

        async def consume() -> list[TransactionAnswer]:
            answers: list[TransactionAnswer] = []
            with suppress(RolledBack):
                async with (inbox or self.inbox).begin(retention=retention) as transaction:
                    answers = await transaction.claim(keys)
                    for effect in effects:
                        await self.suite.write(transaction.connection, effect)
                    await transaction.finish(finishes)
                    if boom:
                        raise RolledBack
            return answers

        return self.run(consume())

    def take_over(self, owner: str, *, position: int, topic: str = "orders", partition: int = 3) -> Progress:
        """Take a partition over."""
        return self.run(with_offsets(self.inbox).take_over(owner, topic, partition, position=position))

    def locked(self, owner: str, mine: Progress) -> int:
        """Lock the partition in a transaction, and return its next offset."""

        async def lock() -> int:
            async with self.inbox.begin(retention=3600.0) as transaction:
                return await with_offsets_open(transaction).lock(owner, "orders", 3, mine.generation)

        return self.run(lock())

    def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> list[Permit]:
        """Ask in a transaction whether copies may run."""

        async def ask() -> list[Permit]:
            async with self.inbox.begin(retention=3600.0) as transaction:
                return await with_offsets_open(transaction).permits(owner, copies)

        return self.run(ask())

    def advance(
        self, owner: str, mine: Progress, *, next: int, effects: Sequence[str] = (), finishes: Sequence[Finish] = (), boom: bool = False
    ) -> None:
        """One transaction: lock the partition, write `effects`, move its offset to `next`, and commit or not."""

        async def advance() -> None:
            async with self.inbox.begin(retention=3600.0) as transaction:
                await with_offsets_open(transaction).lock(owner, "orders", 3, mine.generation)
                for effect in effects:
                    await self.suite.write(transaction.connection, effect)
                await transaction.finish(finishes)
                await with_offsets_open(transaction).advance(owner, "orders", 3, mine.generation, next)
                if boom:
                    raise RolledBack

        with suppress(RolledBack):
            self.run(advance())

    def effects(self) -> list[str]:
        """Return the committed rows of handlers, sorted."""
        return sorted(self.run(self.suite.effects(self.place)))


class InboxConformance(Database):
    """Derive a class whose name starts with `Test`."""

    @pytest.fixture
    def scene(self, tmp_path: Path) -> Iterator[InboxScene]:
        scene = InboxScene(self, tmp_path)
        yield scene
        scene.end()

    def test_an_unknown_key_is_taken_and_finished_with_the_effects(self, scene: InboxScene) -> None:
        key = fresh_key()
        assert scene.consume([key], [done(key)], effects=["a"]) == [Taken()]
        assert scene.effects() == ["a"]
        assert scene.consume([key]) == [Finished(Outcome.OK, HERE, 7)]

    def test_what_is_rolled_back_never_happened(self, scene: InboxScene) -> None:
        key = fresh_key()
        scene.consume([key], [done(key)], effects=["a"], boom=True)
        assert scene.effects() == []
        assert scene.consume([key]) == [Taken()]
        assert scene.consume([key]) == [Taken()], "it was taken and not finished"

    def test_every_outcome_is_remembered_with_origin_and_execution(self, scene: InboxScene) -> None:
        exec_id = 2**62 + 1
        for outcome in Outcome:
            key = fresh_key()
            scene.consume([key], [done(key, exec_id, outcome)])
            assert scene.consume([key]) == [Finished(outcome, HERE, exec_id)]

    def test_after_a_send_back_lower_attempts_are_stale_and_the_copy_is_taken(self, scene: InboxScene) -> None:
        key = fresh_key()
        scene.consume([key], [done(key, outcome=None, next_attempt=2)])
        assert scene.consume([key]) == [Stale()]
        copy = key._replace(attempt=2)
        assert scene.consume([copy], [done(copy, 8, Outcome.OK, 2)]) == [Taken()]
        assert scene.consume([key, fresh_key()]) == [Finished(Outcome.OK, HERE, 8), Taken()]

    def test_answers_come_in_the_order_of_the_keys(self, scene: InboxScene) -> None:
        keys = [fresh_key() for _ in range(500)]
        scene.consume(keys[::3], [done(key) for key in keys[::3]])
        expected = [Finished(Outcome.OK, HERE, 7) if number % 3 == 0 else Taken() for number in range(500)]
        assert scene.consume(keys) == expected

    def test_no_keys_and_no_finishes_are_fine(self, scene: InboxScene) -> None:
        assert scene.consume([], [], effects=["a"]) == []
        assert scene.effects() == ["a"]

    def test_a_key_that_was_finished_or_sent_back_is_new_after_the_retention(self, scene: InboxScene) -> None:
        finished, sent_back = fresh_key(), fresh_key()
        scene.consume([finished, sent_back], [done(finished), done(sent_back, outcome=None, next_attempt=5)], retention=0.01)
        time.sleep(0.05)  # a database has its own clock
        assert scene.consume([finished, sent_back], [done(sent_back)]) == [Taken()] * 2
        assert scene.consume([finished, sent_back]) == [Taken(), Finished(Outcome.OK, HERE, 7)]

    def test_a_copy_may_be_sent_back_again_and_then_be_given_up(self, scene: InboxScene) -> None:
        key = fresh_key()
        second, third = key._replace(attempt=2), key._replace(attempt=3)
        scene.consume([key], [done(key, outcome=None, next_attempt=2)])
        assert scene.consume([second], [done(second, outcome=None, next_attempt=3)]) == [Taken()]
        assert scene.consume([second]) == [Stale()]
        assert scene.consume([third], [done(third, 9, Outcome.DEAD, 3)]) == [Taken()]
        assert scene.consume([third]) == [Finished(Outcome.DEAD, HERE, 9)]

    def test_a_replay_that_succeeded_finishes_the_key_of_its_dead_letter_for_a_whole_retention(self, scene: InboxScene) -> None:
        base, replay = fresh_key(), fresh_key()
        scene.consume([base], [done(base, 3, Outcome.DEAD)], retention=2.0)
        assert scene.consume([replay], [done(replay, 8), done(base, 8)]) == [Taken()]
        time.sleep(2.1)  # a database has its own clock
        assert scene.consume([base, replay]) == [Finished(Outcome.OK, HERE, 8)] * 2

    def test_a_replay_that_is_rolled_back_leaves_the_key_dead(self, scene: InboxScene) -> None:
        base, replay = fresh_key(), fresh_key()
        scene.consume([base], [done(base, 3, Outcome.DEAD)])
        scene.consume([replay], [done(replay, 8), done(base, 8)], boom=True)
        assert scene.consume([base, replay]) == [Finished(Outcome.DEAD, HERE, 3), Taken()]

    def test_a_handler_that_commits_is_found_out(self, scene: InboxScene) -> None:
        key = fresh_key()

        async def consume() -> None:
            async with scene.inbox.begin(retention=3600.0) as transaction:
                await transaction.claim([key])
                await self.commit(transaction.connection)
                await transaction.finish([done(key)])

        with pytest.raises(TransactionAborted, match="the handler ended the transaction"):
            scene.run(consume())
        assert scene.consume([key]) == [Taken()]

    def test_an_inbox_goes_on_after_a_transaction_that_was_broken(self, scene: InboxScene) -> None:
        key = fresh_key()
        scene.consume([], effects=["a"])

        async def consume() -> None:
            async with scene.inbox.begin(retention=3600.0) as transaction:
                await transaction.claim([key])
                await self.write(transaction.connection, "a")  # a second time: refused

        with pytest.raises(Exception):  # noqa: B017, PT011  # the driver's own error, which a handler would see
            scene.run(consume())
        assert scene.consume([key], [done(key)], effects=["b"]) == [Taken()]
        assert scene.effects() == ["a", "b"]

    def test_who_comes_second_finds_the_key_as_the_first_left_it(self, scene: InboxScene) -> None:
        other = scene.open()

        async def first(keys: Sequence[ClaimKey], commits: bool, taken: asyncio.Event) -> None:
            async with scene.inbox.begin(retention=3600.0) as transaction:
                await transaction.claim(keys)
                taken.set()
                await asyncio.sleep(0.1)  # while the second asks
                await transaction.finish([done(key) for key in keys])
                if not commits:
                    raise RolledBack

        async def second(keys: Sequence[ClaimKey], taken: asyncio.Event) -> list[TransactionAnswer]:
            await taken.wait()
            async with other.begin(retention=3600.0) as transaction:
                return await transaction.claim([*reversed(keys), fresh_key()])

        async def race(commits: bool) -> list[TransactionAnswer]:
            keys, taken = [fresh_key() for _ in range(3)], asyncio.Event()
            _, answers = await asyncio.gather(first(keys, commits, taken), second(keys, taken), return_exceptions=True)
            assert isinstance(answers, list), answers
            return answers

        assert scene.run(race(commits=True)) == [Finished(Outcome.OK, HERE, 7)] * 3 + [Taken()]
        assert scene.run(race(commits=False)) == [Taken()] * 4

    def test_a_batch_that_is_cancelled_leaves_nothing_and_the_next_one_goes_on(self, scene: InboxScene) -> None:
        key = fresh_key()

        async def cancelled() -> None:
            working = asyncio.Event()

            async def work() -> None:
                async with scene.inbox.begin(retention=3600.0) as transaction:
                    await transaction.claim([key])
                    await self.write(transaction.connection, "a")
                    working.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(work())
            await working.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()

        scene.run(cancelled())
        assert scene.effects() == []
        assert scene.consume([key], [done(key)], effects=["a"]) == [Taken()]

    def test_workers_with_overlapping_batches_run_each_key_once(self, scene: InboxScene) -> None:
        keys = [fresh_key() for _ in range(60)]
        inboxes = [scene.inbox, scene.open(), scene.open(), scene.open()]

        async def work(inbox: TransactionalStore, number: int) -> None:
            chance = random.Random(number)
            for _ in range(8):
                some = chance.sample(keys, 20)
                async with inbox.begin(retention=3600.0) as transaction:
                    answers = await transaction.claim(some)
                    taken = [key for key, answer in zip(some, answers, strict=True) if answer == Taken()]
                    for key in taken:
                        await self.write(transaction.connection, key.id.hex())
                    await transaction.finish([done(key) for key in taken])

        async def together() -> None:
            await asyncio.gather(*(work(inbox, number) for number, inbox in enumerate(inboxes)))

        scene.run(together())
        seen = scene.effects()
        assert len(seen) == len(set(seen)) > 50

    def test_two_workers_that_want_one_key_run_it_once(self, scene: InboxScene) -> None:
        keys = [fresh_key() for _ in range(20)]
        other = scene.open()

        async def worker(inbox: TransactionalStore, name: str) -> list[TransactionAnswer]:
            async with inbox.begin(retention=3600.0) as transaction:
                answers = await transaction.claim(keys)
                await asyncio.sleep(0)
                taken = [key for key, answer in zip(keys, answers, strict=True) if answer == Taken()]
                for key in taken:
                    await self.write(transaction.connection, f"{name}{key.id.hex()[:8]}")
                await transaction.finish([done(key) for key in taken])
                return answers

        async def race() -> list[list[TransactionAnswer]]:
            return list(await asyncio.gather(worker(scene.inbox, "a"), worker(other, "b")))

        answers = scene.run(race())
        assert sorted(sum(answer == Taken() for answer in of_one) for of_one in answers) == [0, 20]
        assert len(scene.effects()) == 20

    def test_an_inbox_that_is_closed_is_unavailable_until_it_is_opened_again(self, scene: InboxScene) -> None:
        scene.run(scene.inbox.close())
        scene.run(scene.inbox.close())
        with pytest.raises(StoreUnavailable):
            scene.consume([fresh_key()])
        scene.run(scene.inbox.open())
        scene.run(scene.inbox.open())
        assert scene.consume([fresh_key()]) == [Taken()]

    def test_what_another_inbox_committed_is_seen_after_a_restart(self, scene: InboxScene) -> None:
        key = fresh_key()
        scene.consume([key], [done(key)], effects=["a"])
        assert scene.consume([key], inbox=scene.open()) == [Finished(Outcome.OK, HERE, 7)]


class OffsetsConformance(InboxConformance):
    """The suite of an inbox that keeps offsets as well; derive a class whose name starts with `Test`."""

    def test_a_partition_begins_where_it_is_told_and_goes_on_where_it_was(self, scene: InboxScene) -> None:
        owner = fresh_owner()
        first = scene.take_over(owner, position=17)
        assert first.next == 17
        scene.advance(owner, first, next=30)
        again = scene.take_over(owner, position=5)
        assert (again.next, again.generation > first.generation) == (30, True)

    def test_owners_topics_and_partitions_are_apart(self, scene: InboxScene) -> None:
        owner = fresh_owner()
        scene.advance(owner, scene.take_over(owner, position=0), next=30)
        assert scene.take_over(fresh_owner(), position=7).next == 7
        assert scene.take_over(owner, position=7, topic="refunds").next == 7
        assert scene.take_over(owner, position=7, partition=4).next == 7

    def test_many_partitions_are_taken_over_together_as_each_would_be_alone(self, scene: InboxScene) -> None:
        owner = fresh_owner()
        passed = scene.take_over(owner, position=0)
        scene.advance(owner, passed, next=30)
        asked = {("orders", 3): 5, ("refunds", 0): 7, ("refunds", 1): 8}
        taken = scene.run(take_over_all(with_offsets(scene.inbox), owner, asked))
        assert {place: progress.next for place, progress in taken.items()} == {("orders", 3): 30, ("refunds", 0): 7, ("refunds", 1): 8}
        assert taken["orders", 3].generation > passed.generation
        again = scene.run(take_over_all(with_offsets(scene.inbox), owner, asked))
        assert all(again[place].generation > taken[place].generation for place in asked)

    def test_an_offset_moves_with_the_effects_or_not_at_all(self, scene: InboxScene) -> None:
        owner = fresh_owner()
        mine = scene.take_over(owner, position=0)
        scene.advance(owner, mine, next=10, effects=["a"], boom=True)
        assert (scene.effects(), scene.take_over(owner, position=0).next) == ([], 0)
        scene.advance(owner, scene.take_over(owner, position=0), next=10, effects=["a"])
        assert (scene.effects(), scene.take_over(owner, position=0).next) == (["a"], 10)

    def test_a_handler_that_commits_moves_no_offset(self, scene: InboxScene) -> None:
        owner = fresh_owner()
        mine = scene.take_over(owner, position=3)

        async def consume() -> None:
            async with scene.inbox.begin(retention=3600.0) as transaction:
                await with_offsets_open(transaction).lock(owner, "orders", 3, mine.generation)
                await self.commit(transaction.connection)
                await with_offsets_open(transaction).advance(owner, "orders", 3, mine.generation, 9)

        with pytest.raises(TransactionAborted, match="the handler ended the transaction"):
            scene.run(consume())
        assert scene.take_over(owner, position=0).next == 3

    def test_who_had_the_partition_before_commits_nothing(self, scene: InboxScene) -> None:
        owner = fresh_owner()
        zombie = scene.take_over(owner, position=0)
        mine = scene.take_over(owner, position=0)
        with pytest.raises(Fenced, match="was taken over by another worker"):
            scene.advance(owner, zombie, next=10, effects=["a"])
        assert scene.effects() == []
        scene.advance(owner, mine, next=10, effects=["b"])
        assert scene.effects() == ["b"]

    def test_who_is_fenced_in_the_middle_commits_nothing(self, scene: InboxScene) -> None:
        owner = fresh_owner()
        zombie, other = scene.take_over(owner, position=0), scene.open()

        async def consume() -> None:
            async with scene.inbox.begin(retention=3600.0) as transaction:
                await self.write(transaction.connection, "a")
                taking = asyncio.ensure_future(with_offsets(other).take_over(owner, "orders", 3, position=0))
                await asyncio.wait({taking}, timeout=0.2)  # it may have to wait for us
                try:
                    await with_offsets_open(transaction).lock(owner, "orders", 3, zombie.generation)
                    await with_offsets_open(transaction).advance(owner, "orders", 3, zombie.generation, 10)
                finally:
                    await self.let_go(taking)

        try:
            scene.run(consume())
        except (Fenced, StoreUnavailable):
            assert scene.effects() == []
        else:  # it had the lock first: then it was there in time, and the other goes on behind it
            assert scene.take_over(owner, position=0).next == 10

    async def let_go(self, taking: asyncio.Future[Progress]) -> None:
        """Not wait for who waits for us."""
        if not taking.done():
            taking.cancel()
            await asyncio.wait({taking})

    def test_the_next_offset_is_read_under_the_lock(self, scene: InboxScene) -> None:
        owner = fresh_owner()
        mine = scene.take_over(owner, position=3)
        assert scene.locked(owner, mine) == 3
        scene.advance(owner, mine, next=9)
        assert scene.locked(owner, mine) == 9

    def test_a_copy_runs_only_if_the_transaction_that_passed_its_original_sent_it_back(self, scene: InboxScene) -> None:
        owner = fresh_owner()
        mine = scene.take_over(owner, position=10)
        key, never = fresh_key(2), fresh_key(2)
        copies = [
            (key, ("orders", 3, 12)),
            (never, ("orders", 3, 13)),
            (fresh_key(2), ("orders", 3, 9)),
            (fresh_key(2), ("elsewhere", 0, 1)),
        ]
        assert scene.permits(owner, copies) == [Permit.PENDING, Permit.PENDING, Permit.GRANTED, Permit.GRANTED]
        scene.advance(owner, mine, next=14, finishes=[Finish(key, ("orders", 3, 12), 7, None, 2)])
        assert scene.permits(owner, copies) == [Permit.GRANTED, Permit.SUPERSEDED, Permit.GRANTED, Permit.GRANTED]
        assert scene.permits(owner, []) == []
