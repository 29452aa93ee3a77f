"""Connections without a database: what becomes of an operation and of its connection, whatever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.protocol.options import CLAIMS
from ackwise.stores.sql.connections import Connections, Driver
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement, Steps


class DriverError(Exception):
    """What a driver raises."""


LOST, CONFLICT, BUSY, REFUSED = (DriverError(problem.name) for problem in (Problem.LOST, Problem.CONFLICT, Problem.BUSY, Problem.REFUSED))


class Connection:
    def __init__(self) -> None:
        self.is_cut = False


class Pool:
    """One connection, until it is cut; then another one."""

    def __init__(self) -> None:
        self.made: list[Connection] = []
        self.free: list[Connection] = []
        self.used = 0
        self.refuses = 0  #: how many of the next connections can't be made
        self.is_closed = self.is_terminated = False

    async def acquire(self) -> Connection:
        if self.refuses:
            self.refuses -= 1
            raise LOST
        self.used += 1
        if not self.free:
            self.free.append(Connection())
            self.made.append(self.free[-1])
        return self.free.pop()

    async def release(self, connection: Connection) -> None:
        self.used -= 1
        if connection.is_cut:
            raise DriverError("it is gone")
        self.free.append(connection)

    def terminate(self) -> None:
        self.is_terminated = True


class FakeDriver(Driver[Pool, Connection]):
    """The n-th packet is answered by the n-th of `answers`: rows, an error, or something to wait for."""

    failures: tuple[type[Exception], ...] = (DriverError, OSError)

    def __init__(
        self, *answers: Exception | Callable[[], Awaitable[object]] | None, given: Pool | None = None, timeout: float = 5.0
    ) -> None:
        super().__init__(CLAIMS, "fake", given, timeout)
        self.pool = given or Pool()
        self.expired = 0
        self.alone: list[Connection] = []  #: of no pool
        self._answers = iter(answers)

    async def make_pool(self) -> Pool:
        return self.pool

    async def close_pool(self, pool: Pool) -> None:
        pool.is_closed = True
        while pool.used:  # noqa: ASYNC110  # as pools do
            await asyncio.sleep(0.001)

    def in_use(self, pool: Pool) -> int | None:
        return pool.used or None

    async def expire(self, pool: Pool) -> None:
        self.expired += 1

    async def connect(self) -> Connection:
        self.alone.append(Connection())
        return self.alone[-1]

    async def disconnect(self, connection: Connection) -> None:
        connection.is_cut = True

    def is_usable(self, connection: Connection, error: BaseException) -> bool:
        return error in (BUSY, CONFLICT, REFUSED)

    def cut(self, connection: Connection) -> None:
        connection.is_cut = True

    def runner(self, connection: Connection) -> FakeDriver:
        return self

    async def send(self, packet: Packet) -> Sequence[Answer]:
        answer = next(self._answers)
        if isinstance(answer, DriverError):
            raise Failure(self.problem(answer), answer)
        if answer is not None:
            await cast(Any, answer)()
        return [Answer() for _ in packet]

    def problem(self, error: Exception) -> Problem:
        return Problem[str(error)] if str(error) in Problem.__members__ else Problem.BUSY

    def as_store_error(self, error: Exception, timeout: float) -> ConfigurationError | StoreUnavailable:
        return ConfigurationError("refused") if error is REFUSED else StoreUnavailable(f"{type(error).__name__} {error}".strip())


def asking(*, begun: list[int] | None = None) -> Callable[[], Steps[str]]:
    def steps() -> Steps[str]:
        if begun is not None:
            begun.append(1)
        yield [Statement("ASK")]
        return "answered"

    return steps


def nothing() -> Steps[None]:
    yield from ()


async def opened(driver: FakeDriver) -> Connections[Pool, Connection]:
    connections = Connections(driver)
    await connections.open(nothing)
    return connections


async def forever() -> None:
    await asyncio.Event().wait()


async def test_after_a_conflict_an_operation_begins_again_on_a_connection_that_is_kept() -> None:
    driver, begun = FakeDriver(CONFLICT, CONFLICT, CONFLICT, None), list[int]()
    connections = await opened(driver)
    assert await connections.run(asking(begun=begun), repeats=False) == "answered"
    assert (len(begun), len(driver.pool.made), driver.expired) == (4, 1, 0)


async def test_a_lost_connection_is_cut_and_replaced_once() -> None:
    driver = FakeDriver(LOST, None)
    connections = await opened(driver)
    assert await connections.run(asking()) == "answered"
    first, second = driver.pool.made
    assert (first.is_cut, second.is_cut, driver.expired) == (True, False, 1)
    driver = FakeDriver(LOST, LOST, None)
    connections = await opened(driver)
    with pytest.raises(StoreUnavailable, match="LOST"):
        await connections.run(asking())
    assert [connection.is_cut for connection in driver.pool.made] == [True, True]


async def test_a_connection_that_can_not_be_made_is_tried_once_more() -> None:
    driver = FakeDriver(None)
    connections = await opened(driver)
    driver.pool.refuses = 1
    assert await connections.run(asking()) == "answered"
    driver.pool.refuses = 2
    with pytest.raises(StoreUnavailable, match="LOST"):
        await connections.run(asking())


async def test_what_may_not_be_applied_twice_is_not_repeated_on_a_new_connection() -> None:
    driver, begun = FakeDriver(LOST, None), list[int]()
    connections = await opened(driver)
    with pytest.raises(StoreUnavailable, match="LOST"):
        await connections.run(asking(begun=begun), repeats=False)
    assert (len(begun), driver.expired) == (1, 0)


async def test_a_pool_that_was_given_is_neither_expired_nor_closed() -> None:
    given = Pool()
    driver = FakeDriver(LOST, None, given=given)
    connections = await opened(driver)
    assert await connections.run(asking()) == "answered"
    made = len(given.made)
    await connections.maintained(nothing)
    await connections.close()
    assert (driver.expired, given.is_closed, given.used, len(given.made), driver.alone) == (0, False, 0, made, [])


async def test_the_time_is_bounded_and_a_connection_with_something_under_way_is_cut() -> None:
    driver = FakeDriver(forever, timeout=0.01)
    connections = await opened(driver)
    with pytest.raises(StoreUnavailable, match="TimeoutError"):
        await connections.run(asking())
    assert driver.pool.made[0].is_cut
    assert driver.pool.used == 0


async def test_a_conflict_that_lasts_until_the_time_is_up_is_named() -> None:
    driver = FakeDriver(CONFLICT, forever, timeout=0.01)
    connections = await opened(driver)
    with pytest.raises(StoreUnavailable, match="DriverError CONFLICT"):
        await connections.run(asking())


async def test_a_caller_that_is_cancelled_leaves_no_connection_in_the_middle() -> None:
    driver = FakeDriver(forever)
    connections = await opened(driver)
    running = asyncio.ensure_future(connections.run(asking()))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert driver.pool.made[0].is_cut
    assert driver.pool.used == 0


async def test_the_cause_of_an_error_is_kept_for_the_sentence_about_it() -> None:
    error = DriverError("CAUSED")
    error.__cause__ = OSError("refused by the network")
    driver = FakeDriver(error)
    connections = await opened(driver)
    with pytest.raises(StoreUnavailable):
        await connections.run(asking())
    assert isinstance(error.__cause__, OSError)


async def test_an_answer_of_the_server_keeps_the_connection_and_makes_the_store_unavailable_whatever_it_says() -> None:
    driver = FakeDriver(BUSY, REFUSED, None)
    connections = await opened(driver)
    for sentence in ("BUSY", "refused"):
        with pytest.raises(StoreUnavailable, match=sentence):
            await connections.run(asking())
    assert await connections.run(asking()) == "answered"
    assert [connection.is_cut for connection in driver.pool.made] == [False]


async def test_a_bug_in_an_operation_passes_and_cuts_its_connection() -> None:
    def steps() -> Steps[None]:
        yield [Statement("BEGIN")]
        raise ZeroDivisionError

    driver = FakeDriver(None)
    connections = await opened(driver)
    with pytest.raises(ZeroDivisionError):
        await connections.run(steps)
    assert driver.pool.made[0].is_cut


async def test_nothing_stays_open_if_the_preparation_fails() -> None:
    driver = FakeDriver()
    connections = Connections(driver)

    def refused() -> Steps[None]:
        yield from ()
        raise REFUSED

    with pytest.raises(ConfigurationError, match="refused"):
        await connections.open(refused)
    assert driver.pool.is_closed
    assert connections.pool is None
    with pytest.raises(StoreUnavailable, match="fake: the store is not open; open it before the first exchange"):
        await connections.run(asking())


async def test_a_batch_that_finds_no_connection_says_how_many_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(timeout=0.01)
    connections = await opened(driver)
    pool = connections.require_open()
    await connections.acquire(pool)

    monkeypatch.setattr(pool, "acquire", forever)
    with pytest.raises(StoreUnavailable, match=r"fake: all 1 connections were in use for 0\.01 s; raise max_size"):
        await connections.acquire(pool)
    pool.used = 0
    with pytest.raises(StoreUnavailable, match="TimeoutError"):
        await connections.acquire(pool)


async def test_a_connection_whose_return_is_not_answered_in_time_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = await opened(FakeDriver(None, timeout=0.01))
    pool = connections.require_open()
    monkeypatch.setattr(pool, "release", lambda _: forever())
    connection = await connections.acquire(pool)
    await connections.release(pool, connection)
    assert connection.is_cut


async def test_a_pool_whose_connections_do_not_come_back_is_terminated_within_the_timeout() -> None:
    driver = FakeDriver(timeout=0.01)
    connections = await opened(driver)
    await connections.acquire(connections.require_open())
    await connections.close()
    await connections.close()
    assert driver.pool.is_terminated


async def test_a_pool_whose_close_is_cancelled_is_terminated() -> None:
    driver = FakeDriver(None)
    connections = await opened(driver)
    await connections.acquire(connections.require_open())
    closing = asyncio.create_task(connections.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert driver.pool.is_terminated


async def test_maintenance_has_a_connection_of_its_own_which_is_cut_if_it_fails() -> None:
    driver = FakeDriver()
    connections = Connections(driver)

    def looking(error: Exception | None) -> Steps[None]:
        assert not driver.alone[-1].is_cut
        yield from ()
        if error is not None:
            raise error

    await connections.maintained(lambda: looking(None))
    assert driver.alone[-1].is_cut
    with pytest.raises(ConfigurationError, match="refused"):
        await connections.maintained(lambda: looking(Failure(Problem.REFUSED, REFUSED)))
    assert (len(driver.alone), driver.alone[-1].is_cut) == (2, True)
