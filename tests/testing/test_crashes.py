"""Deaths of a worker at each point that a test can name."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.tables import each

from ackwise import App, Batch, Dedup, Later, Message, Reject, Transactional
from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.settings.config import Config
from ackwise.testing import CRASH_POINTS, CrashPoint, TestApp, assert_no_loss

WITHOUT_DEDUP = [point for point in CRASH_POINTS if not point.endswith(("claim", "completion"))]


def shop(billed: list[str], *, dedup: bool = True) -> App:
    """Bills what it is told to, some of it later, and some never."""
    app = App("billing", config=Config())
    if dedup:
        app.use(Dedup("memory://"))

    @app.agent("orders", max_batch=10)
    async def bill(batch: Batch[str]) -> None:
        for message in batch:
            match message.value:
                case "later" if message.reconsume_times == 0:
                    batch.later(message, delay="1m")
                case "never":
                    batch.dead(message, "no")
                case value:
                    billed.append(value)

    return app


@each(
    ("point", "dedup"),
    [*((point, True) for point in CRASH_POINTS), *((point, False) for point in WITHOUT_DEDUP)],
    side_by_side=True,
)
@pytest.mark.slow  # lets two workers die at each point, one after the other
@pytest.mark.filterwarnings("ignore:Unclosed AIOKafka:ResourceWarning")  # what is dead closes nothing
async def test_nothing_is_lost_wherever_a_worker_dies(point: CrashPoint, dedup: bool) -> None:
    billed: list[str] = []
    async with TestApp(shop(billed, dedup=dedup)) as worker:
        worker.crash_at(point)
        fates = await worker.deliver_batch("orders", ["a", "later", "never", "b"])
        (later,) = [fate for fate in fates if fate.kind == "later"]
        assert (await worker.redeliver(later)).kind in ("done", "duplicate")
        await worker.deliver("orders", "c")
        assert_no_loss([("orders", 0, offset) for offset in range(5)], worker.events)
        assert set(billed) == {"a", "b", "c", "later"}
        assert {record.value for record in worker.dead_letters} == {b"never"}
        if dedup and point in ("after the completion", "before the commit", "after the commit"):
            assert sorted(billed) == sorted(set(billed))
    assert worker.crashes == 1


@pytest.mark.filterwarnings("ignore:Unclosed AIOKafka:ResourceWarning")  # what is dead closes nothing
async def test_a_point_that_no_worker_came_to_fails_the_test() -> None:
    async def a_test_of_copies_without_any() -> None:
        async with TestApp(shop([])) as worker:
            worker.crash_at("before the copy")
            worker.crash_at("after the copy")
            await worker.deliver("orders", "a")

    with pytest.raises(AssertionError, match="no worker came to where it was to die: before the copy, after the copy"):
        await a_test_of_copies_without_any()


@pytest.mark.slow  # waits for two workers that die and for the third
@pytest.mark.filterwarnings("ignore:Unclosed AIOKafka:ResourceWarning")  # what is dead closes nothing
async def test_each_of_several_points_is_the_end_of_a_worker() -> None:
    billed: list[str] = []
    async with TestApp(shop(billed)) as worker:
        worker.crash_at("before the handler")
        worker.crash_at("after the handler")
        assert (await worker.deliver("orders", "a")).kind == "done"
        assert worker.crashes == 2
    assert billed == ["a", "a"]


@pytest.mark.slow  # waits for two workers that die and for the third
@pytest.mark.filterwarnings("ignore:Unclosed AIOKafka:ResourceWarning")  # what is dead closes nothing
async def test_a_worker_can_die_again_and_at_a_later_time() -> None:
    billed: list[str] = []
    async with TestApp(shop(billed)) as worker:
        worker.crash_at("before the handler", number=2)
        assert (await worker.deliver("orders", "a")).kind == "done"
        assert worker.crashes == 0
        assert (await worker.deliver("orders", "b")).kind == "done"
        assert worker.crashes == 1
        worker.crash_at("after the handler")
        assert (await worker.deliver("orders", "c")).kind == "done"
        assert worker.crashes == 2
    assert billed == ["a", "b", "c", "c"]


@pytest.mark.filterwarnings("ignore:Unclosed AIOKafka:ResourceWarning")  # what is dead closes nothing
async def test_a_point_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    async with TestApp(shop([])) as worker:
        with pytest.raises(ConfigurationError, match="'never' is no crash point; they are before the claim, after the claim"):
            worker.crash_at("never")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.slow  # waits for the rest of a worker that died
@pytest.mark.filterwarnings("ignore:Unclosed AIOKafka:ResourceWarning")  # what is dead closes nothing
async def test_handlers_of_messages_die_too() -> None:
    app, billed = App("billing", config=Config()), list[str]()

    @app.agent("orders")
    async def bill(message: Message[str]) -> None:
        billed.append(message.value)
        if message.value == "never":
            raise Reject("no")
        if message.value == "later" and message.reconsume_times == 0:
            raise Later("1m")

    async with TestApp(app) as worker:
        worker.crash_at("after the copy")
        later = await worker.deliver("orders", "later")
        assert (later.kind, worker.crashes) == ("later", 1)
        assert (await worker.redeliver(later)).kind == "done"


@pytest.mark.slow  # waits for the rest of a worker that died
@pytest.mark.parametrize("point", ["before the copy", "after the copy"])
@pytest.mark.filterwarnings("ignore:Unclosed AIOKafka:ResourceWarning")  # what is dead closes nothing
async def test_a_transaction_that_waits_for_its_copy_when_the_worker_dies_keeps_the_next_one_waiting_for_nothing(
    point: CrashPoint, tmp_path: Path
) -> None:
    app = App("billing", config=Config())
    app.use(Transactional(f"sqlite:///{tmp_path}/shop.db"))

    @app.agent("orders")
    async def bill(batch: Batch[str]) -> None:
        batch.dead(batch[0], "no price")

    async with TestApp(app) as worker:
        worker.crash_at(point)
        fate = await worker.deliver("orders", "a")
        assert (fate.kind, worker.crashes) == ("dead", 1)


@pytest.mark.slow  # waits for a worker that dies and for the next one
@pytest.mark.parametrize("point", ["before the handler", "after the handler", "before the commit", "after the commit"])
@pytest.mark.filterwarnings("ignore:Unclosed AIOKafka:ResourceWarning")  # what is dead closes nothing
async def test_a_transaction_of_a_worker_that_dies_is_rolled_back_and_its_effect_is_there_once(point: CrashPoint, tmp_path: Path) -> None:
    app = App("billing", config=Config())
    app.use(Transactional(f"sqlite:///{tmp_path}/shop.db"))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("CREATE TABLE bills (id TEXT)")

    @app.agent("orders")
    async def bill(batch: Batch[str]) -> None:
        batch.connection.executemany("INSERT INTO bills VALUES (?)", [(message.value,) for message in batch])

    async with TestApp(app) as worker:
        worker.crash_at(point)
        fates = await worker.deliver_batch("orders", ["a", "b"])
        assert [fate.kind for fate in fates] == ["done", "done"]
        while not worker.crashes:
            await worker.deliver("orders", "c")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        bills = [name for (name,) in database.execute("SELECT id FROM bills WHERE id <> 'c' ORDER BY id")]
    assert bills == ["a", "b"]
