"""The spine of `Transactional(mode="offsets")`: effects and the partition's next offset are one transaction, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.middleware.test_transactional import Database, Open, Poison, bury, write
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError, Fenced, PublishUnavailable, StoreUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER
from ackwise.middleware.message.message import Origin
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.transactionoffsets import for_copies, for_sources
from ackwise.middleware.policies.policies import Transactional
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Stage
from ackwise.middleware.storage.claimstore import ClaimKey, Outcome
from ackwise.middleware.storage.transaction import Permit, Place, Progress

OWNER = "ackwise/0/billing"


class Offsets(Database):
    """The database of the other tests, with one partition whose offset it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.next = 100
        self.generation = 1

    async def take_over(self, owner: str, topic: str, partition: int, *, position: int) -> Progress:
        self.generation += 1
        return Progress(self.next, self.generation)

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[OpenOffsets]:
        self.step("begin")
        self.begun += 1
        opened = OpenOffsets(self)
        yield opened
        self.step("commit")
        self.rows.update(opened.rows)
        self.effects += opened.connection
        self.next = max(self.next, opened.moved_to)
        self.committed += 1
        if self.commit_in_doubt:
            self.commit_in_doubt = False
            raise StoreUnavailable("the connection was cut during COMMIT")


class OpenOffsets(Open):
    def __init__(self, database: Offsets) -> None:
        super().__init__(database)
        self._offsets = database
        self.moved_to = 0

    async def lock(self, owner: str, topic: str, partition: int, generation: int) -> int:
        assert (owner, topic, partition) == (OWNER, "orders", 3)
        self._offsets.step("lock")
        if generation != self._offsets.generation:
            raise Fenced("orders/3 was taken over by another worker")
        return self._offsets.next

    async def advance(self, owner: str, topic: str, partition: int, generation: int, next: int) -> None:
        self._offsets.step("advance")
        if generation != self._offsets.generation:
            raise Fenced("orders/3 was taken over by another worker")
        assert next > self._offsets.next, "it only goes forward"
        self.moved_to = next

    async def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> list[Permit]:
        return [
            Permit.GRANTED if key.id in self._offsets.rows else Permit.SUPERSEDED if self._offsets.next > place[2] else Permit.PENDING
            for key, place in copies
        ]


class Owned:
    """A partition that is ours."""

    def __init__(self, generation: int = 1) -> None:
        self.cut_off = self.is_stopping = False
        self.topic, self.partition, self.generation = "orders", 3, generation

    def pass_settled(self, runs: Any) -> None: ...


@pytest.fixture
def database() -> Offsets:
    return Offsets()


@pytest.fixture
def make(make_spine: Any, database: Offsets) -> Callable[..., Any]:
    def made(handler: Callable[[Any], Any], **options: Any) -> Any:
        spine = make_spine(handler, **options)
        kept = {name: getattr(spine.worker, name) for name in spine.worker.__slots__ if name not in ("dedup", "leases")}
        spine.worker = type(spine.worker)(**kept, dedup=Transactional(database, mode="offsets"))
        spine.agent = Agent(spine.agent.name, spine.agent.topics, "batch", handler, spine.agent.decode)
        spine.pipeline = Pipeline(spine.agent, spine.worker, for_sources(database, OWNER))
        spine.partition = Owned()
        return spine

    return made


async def test_a_batch_and_its_next_offset_are_one_transaction_and_no_message_has_a_row(make: Any, database: Offsets) -> None:
    spine = make(write)
    assert await spine.run(spine.entries(3)) == [Stage.SETTLED] * 3
    assert (database.begun, database.next, database.rows, len(database.effects)) == (1, 103, {}, 3)
    assert spine.sink.codes(101) == [EventCode.CLAIMED, EventCode.SUCCEEDED]


async def test_one_poison_of_many_is_found_and_passed_in_order(make: Any, database: Offsets) -> None:
    spine = make(Poison(157))
    entries = spine.entries(100)
    assert await spine.run(entries) == [Stage.SETTLED] * 100
    assert database.effects == [entry.delivery.value for entry in entries if entry.delivery.offset != 157]
    assert (database.next, len(database.rows)) == (200, 1)
    assert len(spine.sent()) == 1


@pytest.mark.parametrize("step", ["begin", "lock", "finish", "advance", "commit"])
async def test_a_database_that_is_away_holds_all_and_everything_is_done_once_afterwards(make: Any, database: Offsets, step: str) -> None:
    spine = make(write)
    database.fail = lambda at: at == step
    entries = spine.entries(2)
    await spine.run(entries)
    assert (database.effects, database.next, spine.watermark.commit) == ([], 100, 100)
    database.fail = lambda at: False
    spine.clock.now += 60
    await spine.run(entries)
    assert await spine.run([entry for entry in entries if entry.stage is not Stage.SETTLED]) == []
    assert (database.effects, database.next, spine.watermark.commit) == ([b"v100", b"v101"], 102, 102)


async def test_a_commit_in_doubt_is_asked_for_and_nothing_is_run_again_if_it_came_through(make: Any, database: Offsets) -> None:
    async def handler(batch: Batch[Any]) -> None:
        await write(batch)
        batch.later(batch[1])

    spine = make(handler)
    database.commit_in_doubt = True
    entries = spine.entries(2)
    await spine.run(entries)
    assert spine.watermark.commit == 100
    spine.clock.now += 60
    assert await spine.run(entries) == [Stage.SETTLED] * 2
    assert (database.effects, len(spine.sent())) == ([b"v100", b"v101"], 1)
    assert spine.sink.codes(100)[-1] is EventCode.SUCCEEDED
    assert spine.sink.codes(101)[-1] is EventCode.SENT_BACK, "each is told as it was decided then"


async def test_a_doubt_that_can_not_be_asked_about_stays_one(make: Any, database: Offsets) -> None:
    spine = make(write)
    database.commit_in_doubt = True
    entries = spine.entries(2)
    await spine.run(entries)
    database.fail = lambda at: at == "lock"
    spine.clock.now += 60
    await spine.run(entries)
    assert (len(database.effects), spine.watermark.commit) == (2, 100)
    database.fail = lambda at: False
    spine.clock.now += 60
    await spine.run(entries)
    assert (len(database.effects), spine.watermark.commit) == (2, 102)


async def test_who_lost_the_partition_commits_nothing(make: Any, database: Offsets) -> None:
    spine = make(write)
    database.generation = 2
    assert await spine.run(spine.entries(2)) == [Stage.FETCHED] * 2
    assert (database.effects, spine.watermark.commit) == ([], 100)


async def test_a_copy_that_is_not_acknowledged_keeps_the_whole_batch_from_being_passed(make: Any, database: Offsets) -> None:
    async def handler(batch: Batch[Any]) -> None:
        await write(batch)
        batch.later(batch[1])

    spine = make(handler)
    spine.publisher.answer = lambda copy: PublishUnavailable("no broker")
    entries = spine.entries(3)
    assert await spine.run(entries) == [Stage.FETCHED] * 3
    assert (database.effects, database.next) == ([], 100)
    spine.publisher.answer = lambda copy: None
    spine.clock.now += 60
    assert await spine.run(entries) == [Stage.SETTLED] * 3
    assert (database.effects, database.next) == ([b"v100", b"v101", b"v102"], 103)


async def test_nothing_is_passed_behind_an_undecodable_one_whose_dead_letter_is_not_there(make: Any, database: Offsets) -> None:
    def decode(value: bytes | None) -> object:
        if value == b"v101":
            raise ValueError
        return value

    spine = make(write, decode=decode)
    spine.publisher.answer = lambda copy: PublishUnavailable("no broker")
    entries = spine.entries(3)
    assert await spine.run(entries) == [Stage.SETTLED, Stage.RULED, Stage.FETCHED]
    assert (database.effects, database.next) == ([b"v100"], 101)
    spine.publisher.answer = lambda copy: None
    spine.clock.now += 60
    assert await spine.run(entries[1:]) == [Stage.SETTLED] * 2
    assert (database.effects, database.next, len(spine.sent())) == ([b"v100", b"v102"], 103, 1)


@pytest.mark.parametrize("unreadable", [{b"v102"}, {b"v101", b"v102"}, {b"v100", b"v101", b"v102"}])
async def test_undecodable_ones_at_the_end_are_passed_too_so_that_the_next_owner_does_not_send_their_dead_letters_again(
    make: Any, database: Offsets, unreadable: set[bytes]
) -> None:
    def decode(value: bytes | None) -> object:
        if value in unreadable:
            raise ValueError
        return value

    spine = make(write, decode=decode)
    entries = spine.entries(3)
    ran = len(unreadable) < 3
    database.fail = lambda at: at == "advance" and database.next == (103 - len(unreadable) if ran else 100) and database.begun > ran
    await spine.run(entries)
    assert spine.watermark.commit == 100, "the broker is not told before the database"
    database.fail = lambda at: False
    spine.clock.now += 60
    assert await spine.run(entries) == [Stage.SETTLED] * 3
    assert (database.next, spine.watermark.commit, len(spine.sent())) == (103, 103, len(unreadable))
    assert len(database.effects) == 3 - len(unreadable)


async def returning(batch: Batch[Any]) -> object:
    batch.connection.append((batch[0].raw, batch[0].reconsume_times))
    return CONSUME_LATER if batch[0].reconsume_times == 0 else None


async def test_a_copy_runs_once_its_original_was_passed_with_it(make: Any, database: Offsets) -> None:
    spine = make(returning)
    await spine.run(spine.entries(1))
    spine.pipeline = Pipeline(spine.agent, spine.worker, for_copies(database, OWNER))
    assert await spine.run([spine.returned(spine.publisher.sent[0])]) == [Stage.SETTLED]
    assert await spine.run([spine.returned(spine.publisher.sent[0], offset=1)]) == [Stage.SETTLED]
    assert database.effects == [(b"v100", 0), (b"v100", 1)]
    succeeded = [event.exec_id for event in spine.sink.durable if event.code is EventCode.SUCCEEDED]
    assert (len(succeeded), len(set(succeeded))) == (2, 1), "the second copy tells of the one execution that there was"


async def test_what_an_operator_redrives_runs_though_no_transaction_sent_it_back(make: Any, database: Offsets) -> None:
    spine = make(bury)
    await spine.run(spine.entries(1))
    retry = make(write)
    retry.pipeline = Pipeline(retry.agent, retry.worker, for_copies(database, OWNER))
    replay = retry.entry(0, value=b"v100", origin=Origin("orders", 3, 100, 1), replay_id=b"redrive-1")
    assert await retry.run([replay]) == [Stage.SETTLED]
    assert database.effects == [b"v100"]
    assert {row.outcome for row in database.rows.values()} == {Outcome.OK}


async def test_a_copy_of_a_transaction_that_was_rolled_back_waits_and_is_then_dropped(make: Any, database: Offsets) -> None:
    spine = make(returning)
    database.fail = lambda at: at == "commit"
    (entry,) = spine.entries(1)
    await spine.run([entry])
    (copy,) = spine.publisher.sent
    database.fail = lambda at: False

    retry = make(write)
    retry.pipeline = Pipeline(retry.agent, retry.worker, for_copies(database, OWNER))
    premature = retry.returned(copy)
    assert await retry.run([premature]) == [Stage.FETCHED], "its original will tell"
    spine.clock.now += 60
    spine.pipeline = Pipeline(Agent("bill", ("orders",), "batch", write, spine.agent.decode), spine.worker, for_sources(database, OWNER))
    entry.undo()
    assert await spine.run([entry]) == [Stage.SETTLED], "the original was run again, and succeeded"
    retry.clock.now += 60
    assert await retry.run([premature]) == [Stage.SETTLED]
    assert database.effects == [b"v100"]
    assert retry.sink.codes(100)[-1] is EventCode.STALE


@each(
    ("options", "sentence"),
    [
        ({"mode": "offset"}, "mode of Transactional is 'offset'; it is 'inbox' or 'offsets'"),
        ({"mode": "offsets", "key": str}, "Transactional was given a key, and mode='offsets' asks for none"),
        ({"mode": "offsets", "message_id_header": "id"}, "given a message_id_header, and mode='offsets' reads none"),
    ],
)
def test_modes_that_can_not_work_are_refused(options: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Transactional("sqlite:///x.db", **options)


async def test_after_the_cut_off_no_half_of_what_was_rolled_back_is_begun_nor_passed(make: Any, database: Offsets) -> None:
    class Cut(Poison):
        async def __call__(self, batch: Batch[Any]) -> None:
            spine.partition.cut_off = True
            calls.append(len(batch))
            await super().__call__(batch)

    calls: list[int] = []
    spine = make(Cut(101))
    assert await spine.run(spine.entries(4)) == [Stage.FETCHED] * 4
    assert (calls, database.next, spine.sent()) == ([4], 100, [])
