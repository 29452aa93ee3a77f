"""The spine under `Transactional`: the handler's writes and "done" come true together, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

import pytest
from tests.fakes import FULL_DISK
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError, PublishUnavailable, StoreUnavailable, TransactionAborted, TransactionCommitted
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, Dead, Reason
from ackwise.middleware.message.message import Message
from ackwise.middleware.message.raising import Later, Reject
from ackwise.middleware.pipeline.pipeline import HandlerStopped, Pipeline
from ackwise.middleware.pipeline.transactions import Transactions
from ackwise.middleware.policies.policies import Transactional
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Run, Stage
from ackwise.middleware.storage.claimstore import ClaimKey, Outcome, Stale
from ackwise.middleware.storage.transaction import Finish, Finished, Taken, TransactionAnswer


class Database:
    """An inbox and a table of effects, with transactions; `fail` says at which step it is out of reach."""

    def __init__(self) -> None:
        self.rows: dict[bytes, Finish] = {}
        self.effects: list[object] = []
        self.begun = self.committed = 0
        self.fail: Callable[[str], bool] = lambda step: False
        self.abort: Callable[[], bool] = lambda: False
        self.commit_in_doubt = False
        self.left: set[bytes] = set()  #: keys of transactions that their handlers committed
        self.is_committed_unseen = False  #: by a handler that raises then

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[Open]:
        assert retention > 0
        self.step("begin")
        self.begun += 1
        opened = Open(self)
        try:
            yield opened
        except BaseException:
            if self.is_committed_unseen:
                self.is_committed_unseen = False
                self.left |= opened.claimed
                raise TransactionCommitted("a procedure has committed") from None
            raise
        self.step("commit")
        self.rows.update(opened.rows)
        self.effects += opened.connection
        self.committed += 1
        if self.commit_in_doubt:
            self.commit_in_doubt = False
            raise StoreUnavailable("the connection was cut during COMMIT")

    def step(self, name: str) -> None:
        if self.fail(name):
            raise StoreUnavailable(f"the database is out of reach at {name}")


class Open:
    """A transaction of it; its connection is a list that the handler appends to."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.rows: dict[bytes, Finish] = {}
        self.claimed: set[bytes] = set()
        self.connection: list[object] = []
        self.is_finished = False

    async def claim(self, keys: Sequence[ClaimKey]) -> list[TransactionAnswer]:
        self._database.step("claim")
        assert len({key.id for key in keys}) == len(keys), "each key once"
        self.claimed |= {key.id for key in keys}
        return [self._answer(key) for key in keys]

    def _answer(self, key: ClaimKey) -> TransactionAnswer:
        row = self._database.rows.get(key.id)
        if key.id in self._database.left and row is None:
            return Finished(None, ("", 0, 0), 0)
        if row is None:
            return Taken()
        if row.outcome is not None:
            return Finished(row.outcome, row.origin, row.exec_id)
        return Stale() if key.attempt < row.next_attempt else Taken()

    async def finish(self, finishes: Sequence[Finish]) -> None:
        self._database.step("finish")
        assert not self.is_finished, "once: some databases prove by it that the transaction is there, and can't do so again"
        self.is_finished = True
        if self.connection and self._database.abort():
            raise TransactionAborted("the handler rolled back")
        self.rows.update({finish.key.id: finish for finish in finishes})


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def make(make_spine: Any, database: Database) -> Callable[..., Any]:
    """A spine whose pipeline is the transactional one, on `database`."""

    def made(handler: Callable[[Any], Any], kind: Literal["batch", "message"] = "batch", **options: Any) -> Any:
        spine = make_spine(handler, kind=kind, **options)
        spine.worker = type(spine.worker)(
            **{name: getattr(spine.worker, name) for name in spine.worker.__slots__ if name not in ("dedup", "leases")},
            dedup=Transactional(database, key=lambda message: message.raw),
        )
        spine.agent = Agent(spine.agent.name, spine.agent.topics, kind, handler, spine.agent.decode)
        spine.pipeline = Pipeline(spine.agent, spine.worker, partial(Transactions, store=database))
        return spine

    return made


async def write(batch: Batch[Any]) -> None:
    """The handler of most tests: one effect for each message."""
    batch.connection.extend(message.raw for message in batch)


class Poison:
    """Writes an effect for each message, and raises if one of `culprits` is among them."""

    def __init__(self, *culprits: int, error: BaseException | None = None) -> None:
        self.culprits = culprits
        self.error = error or ValueError("poison")
        self.calls: list[list[int]] = []

    async def __call__(self, batch: Batch[Any]) -> None:
        self.calls.append([message.offset for message in batch])
        for message in batch:
            batch.connection.append(message.raw)
            if message.offset in self.culprits:
                raise self.error


def values(entries: Sequence[Run]) -> list[bytes | None]:
    return [entry.delivery.value for entry in entries]


async def test_a_batch_is_one_transaction_and_its_events_follow_the_commit(make: Any, database: Database) -> None:
    spine = make(write)
    entries = spine.entries(3)
    assert await spine.run(entries) == [Stage.SETTLED] * 3
    assert (database.begun, database.effects) == (1, values(entries))
    assert [row.outcome for row in database.rows.values()] == [Outcome.OK] * 3
    assert spine.sink.codes(101) == [EventCode.CLAIMED, EventCode.SUCCEEDED]
    assert {row.exec_id for row in database.rows.values()} == {
        event.exec_id for event in spine.sink.durable if event.code is EventCode.SUCCEEDED
    }


async def test_a_key_that_was_finished_before_is_a_duplicate_and_not_run(make: Any, database: Database) -> None:
    spine = make(write)
    await spine.run([spine.entry(100, value=b"a")])
    assert await spine.run([spine.entry(101, value=b"a"), spine.entry(102, value=b"b")]) == [Stage.SETTLED] * 2
    assert database.effects == [b"a", b"b"]
    assert spine.sink.codes(101) == [EventCode.DUP_SUPPRESSED]


async def test_its_own_row_tells_of_a_success_whose_event_was_never_written(make: Any, database: Database) -> None:
    first = make(write)
    await first.run([first.entry(100, value=b"a")])
    second = make(write)  # as after a kill between the commit and the event log
    await second.run([second.entry(100, value=b"a")])
    told = [event for event in second.sink.durable if event.offset == 100]
    assert [event.code for event in told] == [EventCode.SUCCEEDED]
    assert told[0].exec_id == database.rows[next(iter(database.rows))].exec_id
    assert database.effects == [b"a"]


@pytest.mark.parametrize("culprits", [(), (102,)])
async def test_what_an_earlier_handler_committed_is_a_dead_letter_beside_what_runs(make: Any, database: Database, culprits: Any) -> None:
    handler = Poison(*culprits)
    spine = make(handler)
    entries = spine.entries(3)
    database.fail = lambda step: step == "claim"
    await spine.run(entries)  # now each has its key
    database.fail = lambda step: False
    database.left = {entries[1].key.id}
    spine.clock.now += 60
    assert await spine.run(entries) == [Stage.SETTLED] * 3
    assert sorted(topic for topic, _ in spine.sent()) == ["billing.delay.10s"] * len(culprits) + ["billing.dlq"]
    (letter,) = [copy for copy in spine.publisher.sent if copy.topic == "billing.dlq"]
    assert ("ackwise-reason", b"aborted-and-committed") in letter.headers
    assert database.rows[entries[1].key.id].outcome is Outcome.DEAD
    assert all(101 not in call for call in handler.calls)


@pytest.mark.parametrize("buried", [0, 1])
async def test_what_a_handler_committed_and_has_not_seen_is_free_again_beside_its_dead_letter_or_alone(
    make: Any, database: Database, buried: int
) -> None:
    """Alone where the message that the handler has seen has no key."""
    spine = make(write)
    entries = spine.entries(2)
    database.fail = lambda step: step == "claim"
    await spine.run(entries)  # now each has its key
    database.fail = lambda step: False
    database.left = {entry.key.id for entry in entries}
    for entry in entries[:buried]:
        entry.rule(Dead(Reason.ABORTED_AND_COMMITTED))
    await spine.pipeline.steps._rows.mark_alone(entries[:buried], spine.partition, entries[1:])
    outcomes = [database.rows[entry.key.id].outcome if entry.key.id in database.rows else "untouched" for entry in entries]
    assert outcomes == [Outcome.DEAD if buried else "untouched", None]


async def test_neighbours_of_what_a_handler_committed_wait_until_the_database_lets_them_be_free_and_run(
    make: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    seen = list[int]()

    async def handle(message: Message[Any]) -> None:
        seen.append(message.offset)
        if message.offset == 100:
            database.is_committed_unseen = True
            database.fail = lambda step: step == "begin"
            raise RuntimeError

    spine = make(handle, kind="message")
    entries = spine.entries(2)
    assert await spine.run(entries) == [Stage.SETTLED, Stage.FETCHED]
    assert "dead letters of committed messages not marked: handler=bill messages=1 unseen=1" in caplog.text
    spine.clock.now += 60
    assert await spine.run(entries[1:]) == [Stage.FETCHED]
    database.fail = lambda step: False
    spine.clock.now += 60
    assert await spine.run(entries[1:]) == [Stage.SETTLED]
    assert seen == [100, 101]
    assert [topic for topic, _ in spine.sent()] == ["billing.dlq"], "of that alone which its handler has seen"


async def bury(batch: Batch[Any]) -> None:
    for message in batch:
        batch.dead(message, "no")


async def test_a_replay_that_succeeds_finishes_the_key_of_its_dead_letter_too(make: Any, database: Database) -> None:
    first = make(bury)
    await first.run([first.entry(100, value=b"a")])
    (dead,) = database.rows.values()
    spine = make(write)
    replays = [spine.entry(number, value=b"a", replay_id=b"redrive-%d" % number) for number in (1, 2)]  # of two letters of one key
    assert await spine.run([*replays, spine.entry(3, value=b"b")]) == [Stage.SETTLED] * 3
    succeeded = [event.exec_id for event in spine.sink.durable if event.code is EventCode.SUCCEEDED]
    assert (dead.outcome, database.rows[dead.key.id].outcome, len(database.rows)) == (Outcome.DEAD, Outcome.OK, 4)
    assert database.rows[dead.key.id].exec_id in succeeded
    assert await spine.run([spine.entry(101, value=b"a")]) == [Stage.SETTLED]
    assert [event.attrs for event in spine.sink.durable if event.offset == 101] == [None], "a duplicate of a success"


@pytest.mark.parametrize("step", ["finish", "commit"])
async def test_a_replay_that_dies_again_or_is_rolled_back_leaves_the_key_dead(make: Any, database: Database, step: str) -> None:
    spine = make(bury)
    await spine.run([spine.entry(100, value=b"a")])
    (dead,) = database.rows
    assert await spine.run([spine.entry(0, value=b"a", replay_id=b"redrive-1")]) == [Stage.SETTLED]
    assert database.rows[dead].outcome is Outcome.DEAD
    other = make(write)
    database.fail = lambda at: at == step
    assert await other.run([other.entry(1, value=b"a", replay_id=b"redrive-2")]) == [Stage.FETCHED]
    assert (database.rows[dead].outcome, database.effects) == (Outcome.DEAD, [])


async def test_one_poison_of_many_is_found_by_halving_and_the_others_are_committed(make: Any, database: Database) -> None:
    handler = Poison(257)
    spine = make(handler)
    entries = spine.entries(500)
    assert await spine.run(entries) == [Stage.SETTLED] * 500
    assert database.begun <= 2 * 9 + 2, "two transactions for each halving of 500, and one that marks the culprit"
    assert database.effects == [value for value in values(entries) if value != b"v257"]
    assert [topic for topic, _ in spine.sent()] == ["billing.delay.10s"]
    assert spine.watermark.commit == 600


async def test_what_was_rolled_back_is_told_as_failed_so_that_no_run_is_in_doubt(make: Any, database: Database) -> None:
    spine = make(Poison(101))
    await spine.run(spine.entries(2))
    c, failed, ok = EventCode.CLAIMED, EventCode.FAILED, EventCode.SUCCEEDED
    assert spine.sink.codes(100) == [c, failed, c, ok]
    assert spine.sink.codes(101) == [c, failed, c, failed, EventCode.SENT_BACK]


@pytest.mark.parametrize("error", [Later(30), Reject("no price"), ConnectionError("away")])
async def test_every_message_of_a_batch_that_raises_as_a_whole_gets_what_was_raised(
    make: Any, database: Database, error: Exception
) -> None:
    spine = make(Poison(100, 101, 102, error=error))
    assert await spine.run(spine.entries(3)) == [Stage.SETTLED] * 3
    assert database.effects == []
    topic = "billing.dlq" if isinstance(error, Reject) else "billing.delay.30s" if isinstance(error, Later) else "billing.delay.10s"
    assert [to for to, _ in spine.sent()] == [topic] * 3


async def test_a_ruling_does_not_survive_a_raise_since_its_writes_do_not(make: Any, database: Database) -> None:
    async def handler(batch: Batch[Any]) -> None:
        for message in batch:
            batch.connection.append(message.raw)
            batch.done(message)
        if len(batch) == 1 and batch[0].offset == 100:
            raise ValueError

    spine = make(handler)
    await spine.run(spine.entries(1))
    assert database.effects == []
    assert spine.sink.codes(100)[-1] is EventCode.SENT_BACK


async def test_rulings_of_a_handler_that_returns_count_and_only_what_is_done_is_marked_as_done(make: Any, database: Database) -> None:
    async def handler(batch: Batch[Any]) -> None:
        batch.connection.append("all")
        batch.later(batch[1])
        batch.dead(batch[2], "no price")

    spine = make(handler)
    assert await spine.run(spine.entries(3)) == [Stage.SETTLED] * 3
    assert database.effects == ["all"]
    assert [(row.outcome, row.next_attempt) for row in database.rows.values()] == [(Outcome.OK, 1), (None, 2), (Outcome.DEAD, 1)]


async def test_the_original_of_a_copy_that_is_on_its_way_is_stale(make: Any, database: Database) -> None:
    calls: list[int] = []

    async def handler(batch: Batch[Any]) -> object:
        calls.append(batch[0].reconsume_times)
        return CONSUME_LATER if batch[0].reconsume_times == 0 else None

    spine = make(handler)
    await spine.run([spine.entry(100, value=b"a")])
    assert await spine.run([spine.entry(100, value=b"a")]) == [Stage.SETTLED]
    assert spine.sink.codes(100)[-1] is EventCode.STALE
    assert await spine.run([spine.returned(spine.publisher.sent[0])]) == [Stage.SETTLED]
    assert calls == [0, 1]


async def test_a_copy_that_is_not_acknowledged_is_held_with_its_decision_and_marks_nothing(make: Any, database: Database) -> None:
    async def handler(batch: Batch[Any]) -> None:
        batch.connection.append(batch[0].raw)
        batch.later(batch[1])

    spine = make(handler)
    spine.publisher.answer = lambda copy: PublishUnavailable("no broker")
    entries = spine.entries(2)
    assert await spine.run(entries) == [Stage.SETTLED, Stage.RULED]
    assert len(database.rows) == 1
    spine.publisher.answer = lambda copy: None
    spine.clock.now += 60
    assert await spine.run([entries[1]]) == [Stage.SETTLED]
    assert database.effects == [b"v100"], "it is published, not run again"


@pytest.mark.parametrize("step", ["begin", "claim", "finish", "commit"])
async def test_a_database_that_is_away_holds_everything_and_nothing_is_told_as_done(make: Any, database: Database, step: str) -> None:
    spine = make(write)
    database.fail = lambda at: at == step
    entries = spine.entries(2)
    assert await spine.run(entries) == [Stage.FETCHED] * 2
    assert (database.effects, database.rows, spine.watermark.commit) == ([], {}, 100)
    assert EventCode.SUCCEEDED not in spine.sink.codes(100)
    database.fail = lambda at: False
    spine.clock.now += 60
    assert await spine.run(entries) == [Stage.SETTLED] * 2
    assert database.effects == [b"v100", b"v101"]


async def test_a_commit_in_doubt_is_decided_by_the_keys(make: Any, database: Database) -> None:
    spine = make(write)
    database.commit_in_doubt = True
    entries = spine.entries(2)
    assert await spine.run(entries) == [Stage.FETCHED] * 2
    spine.clock.now += 60
    assert await spine.run(entries) == [Stage.SETTLED] * 2
    assert database.effects == [b"v100", b"v101"], "it had come through, and nothing is run again"
    assert spine.sink.codes(100)[-1] is EventCode.SUCCEEDED


async def test_a_copy_that_is_there_stands_although_the_commit_failed(make: Any, database: Database) -> None:
    async def handler(batch: Batch[Any]) -> None:
        batch.connection.append("all")
        batch.later(batch[1])

    spine = make(handler)
    database.fail = lambda at: at == "commit"
    assert await spine.run(spine.entries(2)) == [Stage.FETCHED, Stage.SETTLED]
    assert len(spine.sent()) == 1
    assert spine.watermark.commit == 100


@pytest.mark.parametrize("kind", ["batch", "message"])
async def test_a_failure_is_one_line_without_the_text_that_the_handler_raised(
    make: Any, caplog: pytest.LogCaptureFixture, kind: Any
) -> None:
    async def handler(given: object) -> None:
        raise ValueError("card 4711")

    spine = make(handler, kind=kind)
    assert await spine.run(spine.entries(1)) == [Stage.SETTLED]
    (line,) = [record.getMessage() for record in caplog.records if "come back later" in record.getMessage()]
    assert "error=ValueError at=" in line
    assert "card 4711" not in caplog.text


async def test_a_handler_that_ends_its_transaction_is_blamed_alone(make: Any, database: Database) -> None:
    spine = make(write)
    database.abort = lambda: True
    assert await spine.run(spine.entries(1)) == [Stage.SETTLED]
    assert (database.effects, len(spine.sent())) == ([], 1)
    assert spine.sink.codes(100)[-1] is EventCode.SENT_BACK


async def test_what_fails_beside_a_finished_key_runs_alone_and_is_marked(make: Any, database: Database) -> None:
    handler = Poison(102, error=Reject("no price"))
    spine = make(handler)
    await spine.run([spine.entry(100, value=b"a")])
    await spine.run([spine.entry(101, value=b"a"), spine.entry(102, value=b"b")])
    assert [row.outcome for row in database.rows.values()] == [Outcome.OK, Outcome.DEAD]
    await spine.run([spine.entry(103, value=b"b")])
    assert handler.calls == [[100], [102], [102]], "alone it is decided, and never runs again under that key"
    assert database.effects == [b"a"]


async def test_of_a_transaction_that_is_aborted_who_is_left_beside_a_copy_runs_alone(make: Any, database: Database) -> None:
    calls: list[list[int]] = []

    async def handler(batch: Batch[Any]) -> None:
        calls.append([message.offset for message in batch])
        batch.connection.extend(message.raw for message in batch)
        if len(batch) == 2:
            batch.later(batch[0])

    spine = make(handler)
    aborts = iter([True])
    database.abort = lambda: next(aborts, False)
    assert await spine.run(spine.entries(2)) == [Stage.SETTLED] * 2
    assert calls == [[100, 101], [101]]
    assert database.effects == [b"v101"]
    assert len(spine.sent()) == 1


async def test_several_that_end_their_transaction_are_halved_until_one_is_alone(make: Any, database: Database) -> None:
    culprit = {"here": False}

    async def handler(batch: Batch[Any]) -> None:
        culprit["here"] = any(message.offset == 102 for message in batch)
        await write(batch)

    spine = make(handler)
    database.abort = lambda: culprit["here"]
    assert await spine.run(spine.entries(4)) == [Stage.SETTLED] * 4
    assert database.effects == [b"v100", b"v101", b"v103"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_what_stops_the_app_rolls_back_and_rules_on_nothing(make: Any, database: Database, error: BaseException) -> None:
    spine = make(Poison(101, error=error))
    entries = spine.entries(3)
    with pytest.raises(HandlerStopped):
        await spine.run(entries)
    assert [entry.stage for entry in entries] == [Stage.FETCHED] * 3
    assert (database.effects, database.rows, spine.sent()) == ([], {}, [])


async def test_a_handler_that_is_called_off_rolls_back_what_it_had_ruled_too(make: Any, database: Database) -> None:
    async def handler(batch: Batch[Any]) -> None:
        batch.connection.append("all")
        batch.done(batch[0])
        entries[0].call.call_off()
        await asyncio.Event().wait()

    spine = make(handler)
    entries = spine.entries(2)
    assert await spine.run(entries) == [Stage.FETCHED] * 2
    assert (database.effects, database.rows) == ([], {})
    assert spine.sink.codes(101) == [EventCode.CLAIMED, EventCode.RELEASED]


async def test_a_handler_of_single_messages_shares_the_transaction_and_its_culprit_is_found(make: Any, database: Database) -> None:
    async def handler(message: Message[Any]) -> None:
        message.connection.append(message.raw)
        if message.offset == 101:
            raise ValueError

    spine = make(handler, kind="message")
    assert await spine.run(spine.entries(3)) == [Stage.SETTLED] * 3
    assert database.effects == [b"v100", b"v102"]
    assert len(spine.sent()) == 1


async def test_a_message_without_a_key_is_run_in_the_transaction_and_marked_nowhere(make: Any, database: Database) -> None:
    spine = make(write)
    spine.pipeline.admission._key_of = lambda message: None
    assert await spine.run(spine.entries(1)) == [Stage.SETTLED]
    assert (database.effects, database.rows) == ([b"v100"], {})


async def test_an_undecodable_value_is_a_dead_letter_without_a_transaction(make: Any, database: Database) -> None:
    def decode(value: bytes | None) -> object:
        raise ValueError

    spine = make(write, decode=decode)
    assert await spine.run(spine.entries(1)) == [Stage.SETTLED]
    assert (database.begun, [to for to, _ in spine.sent()]) == (0, ["billing.dlq"])


async def test_equal_keys_in_a_batch_follow_their_leader(make: Any, database: Database) -> None:
    spine = make(write)
    entries = [spine.entry(100, value=b"a"), spine.entry(101, value=b"a")]
    assert await spine.run(entries) == [Stage.SETTLED] * 2
    assert database.effects == [b"a"]


@each(
    ("options", "sentence"),
    [
        ({"retention": 0}, "retention of Transactional is 0 s"),
        ({"epoch": -1}, "epoch of Transactional is -1"),
        ({"key": "id"}, "key of Transactional is 'id'"),
    ],
)
def test_settings_that_can_not_work_are_refused(options: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Transactional("sqlite:///x.db", **options)


async def test_after_the_cut_off_no_half_of_what_was_rolled_back_is_begun(make: Any, database: Database) -> None:
    class Cut(Poison):
        async def __call__(self, batch: Batch[Any]) -> None:
            spine.partition.cut_off = True
            await super().__call__(batch)

    handler = Cut(101)
    spine = make(handler)
    assert await spine.run(spine.entries(4)) == [Stage.FETCHED] * 4
    assert (handler.calls, spine.sent()) == ([[100, 101, 102, 103]], [])


@pytest.mark.parametrize("kind", ["batch", "message"])
async def test_a_handler_has_nothing_that_is_not_marked_and_a_transaction_without_marks_is_rolled_back(
    make: Any, database: Database, kind: Any
) -> None:
    had: list[int] = []

    async def handle(argument: Any) -> None:
        messages = [argument] if kind == "message" else [*argument]
        had.extend(message.offset for message in messages)
        assert {message.offset for message in messages} <= spine.sink.marked()

    spine = make(handle, kind)
    entries = spine.entries(3)
    spine.sink.mark_error = FULL_DISK
    assert await spine.run(entries) == [Stage.FETCHED] * 3
    assert (had, database.rows, all(run.not_before > spine.clock.now for run in entries)) == ([], {}, True)
    spine.sink.mark_error = None
    spine.clock.now += 60
    assert await spine.run(entries) == [Stage.SETTLED] * 3
    assert had == [100, 101, 102]
