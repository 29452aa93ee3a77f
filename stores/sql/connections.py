"""`Connections`: a pool, its own or the caller's, and the runner of operations that own their connection."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import functools
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.protocol.options import Purpose
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Runner, Steps, run

MAINTENANCE_TIMEOUT: Final = 60.0
"""Seconds that one statement of `init`, `check` or `cleanup` may take."""

C = TypeVar("C")
T = TypeVar("T")


class Pool(Protocol[C]):
    """The parts that the pools of all drivers share."""

    def acquire(self) -> Awaitable[C]:
        """Return a connection."""
        ...

    def release(self, connection: C, /) -> Awaitable[None]:
        """Give it back."""
        ...

    def terminate(self) -> None:
        """Disconnect, whatever is in use."""
        ...


P = TypeVar("P", bound=Pool[Any])


class Driver(abc.ABC, Generic[P, C]):
    """The functions of one driver, for the server at `address` (without secrets) or for a pool that was `given`.

    `timeout` are the seconds that connecting, waiting for a connection, and an operation may take. Raises `failures` alone.
    """

    failures: tuple[type[Exception], ...]

    def __init__(self, purpose: Purpose, address: str, given: P | None, timeout: float) -> None:
        self.purpose, self.address, self.given, self.timeout = purpose, address, given, timeout

    @abc.abstractmethod
    async def make_pool(self) -> P:
        """Return a pool that connects once it has to."""

    async def acquire(self, pool: P) -> C:
        """Return a connection of the pool, without a limit of time; a caller who is cancelled once gets none."""
        connection: C = await pool.acquire()
        return connection

    async def release(self, pool: P, connection: C) -> None:
        """Give a connection back; cut it if that takes longer than the timeout."""
        released = pool.release(connection)
        if isinstance(released, asyncio.Future) and released.done():
            return
        try:
            async with asyncio.timeout(self.timeout):
                await released
        except TimeoutError:
            self.cut(connection)  # a pool may go on with the reset of a silent connection, and count it as in use

    @abc.abstractmethod
    async def close_pool(self, pool: P) -> None:
        """Wait for the connections in use, and disconnect."""

    @abc.abstractmethod
    def in_use(self, pool: P) -> int | None:
        """Return how many connections are in use, if no other may be made."""

    @abc.abstractmethod
    async def expire(self, pool: P) -> None:
        """Let none be acquired again that is open now."""

    @abc.abstractmethod
    async def connect(self) -> C:
        """Return a connection of no pool, for maintenance."""

    @abc.abstractmethod
    async def disconnect(self, connection: C) -> None:
        """Say goodbye to the server on it, or cut it."""

    @abc.abstractmethod
    def is_usable(self, connection: C, error: BaseException) -> bool:
        """Return whether the server answered with `error`, and nothing is under way or open on the connection."""

    @abc.abstractmethod
    def cut(self, connection: C) -> None:
        """Disconnect at once, whatever is under way."""

    @abc.abstractmethod
    def runner(self, connection: C) -> Runner:
        """Return the runner of operations that own their connection."""

    @abc.abstractmethod
    def problem(self, error: Exception) -> Problem:
        """Return what one of `failures` means."""

    @abc.abstractmethod
    def as_store_error(self, error: Exception, timeout: float) -> ConfigurationError | StoreUnavailable:
        """Return one of `failures` as our error; `timeout` is what the statement was given."""


class Connections(Generic[P, C]):
    """The connections of a claim store, an inbox, an outbox or change data capture.

    Where anything but an answer of the server ends the use of a connection, its state is unknown and it is cut: what was asked may
    still be under way on it.
    """

    def __init__(self, driver: Driver[P, C]) -> None:
        self.driver = driver
        self.address, self.timeout = driver.address, driver.timeout
        self.pool: P | None = None  #: While open.
        self._failures: tuple[type[Exception], ...] = (Failure, *driver.failures)
        self._quiet = contextlib.suppress(*driver.failures)

    async def open(self, begin: Callable[[], Steps[None]]) -> None:
        """Connect and run steps once, within the timeout. Opening twice does nothing.

        Raises `ConfigurationError` or `StoreUnavailable` for an error of the driver; then nothing stays open.
        """
        if self.pool is not None:
            return
        with self.errors(self.timeout):
            pool = self.driver.given or await self.driver.make_pool()
            try:
                await self._ask(pool, begin, self.timeout)
            except BaseException:
                await self._end(pool)
                raise
        self.pool = pool

    async def close(self) -> None:
        """Wait for what is under way, and disconnect. Closing twice does nothing; a pool that was given stays open."""
        pool, self.pool = self.pool, None
        if pool is not None:
            await self._end(pool)

    def require_open(self) -> P:
        """Return the pool; calls that have started keep it when the store is closed. Raise `StoreUnavailable` if it is not open."""
        if self.pool is None:
            raise StoreUnavailable(self.driver.purpose.not_open(self.address))
        return self.pool

    async def run(self, begin: Callable[[], Steps[T]], *, repeats: bool = True) -> T:
        """Return what steps return, within the timeout. Raise `StoreUnavailable`.

        After a conflict it starts again; and once on a new connection, if the one that it had was lost and it `repeats`.
        """
        pool, conflict, replaced = self.require_open(), None, not repeats
        try:
            async with asyncio.timeout(self.timeout):
                while True:
                    try:
                        return await self._run_on(pool, await self.driver.acquire(pool), begin)
                    except self._failures as raised:
                        error = _error(raised)
                        problem = self.driver.problem(error)
                        if problem is Problem.CONFLICT:
                            conflict = error
                            continue
                        if replaced or problem is not Problem.LOST:
                            raise self.unavailable(error) from None  # raised again, the error would lose its cause
                        replaced = True
                        await self.replace(pool)
        except TimeoutError as error:
            raise self.unavailable(conflict or error) from None
        except self.driver.failures as error:
            raise self.unavailable(error) from None

    async def ask(self, begin: Callable[[], Steps[T]], within: float) -> T:
        """Return what steps return, within seconds. Raises `ConfigurationError` or `StoreUnavailable` for an error of the driver."""
        with self.errors(self.timeout):
            return await self._ask(self.require_open(), begin, within)

    async def acquire(self, pool: P) -> C:
        """Return a connection for one batch. Raise `StoreUnavailable` if none is free or made within the timeout."""
        try:
            return await at_once(self.driver.acquire(pool), self._within)
        except TimeoutError:
            if (used := self.driver.in_use(pool)) is None:
                raise self.unavailable(TimeoutError()) from None
            raise StoreUnavailable(
                f"{self.address}: all {used} connections were in use for {self.timeout:g} s; raise max_size to the number "
                "of batches that one worker has under way, which is at most that of its partitions"
            ) from None
        except self.driver.failures as error:
            raise self.unavailable(error) from None

    async def release(self, pool: P, connection: C) -> None:
        """Give a connection back, or cut it. Raises nothing of the driver's, which drops a connection that it can't take back."""
        with self._quiet:
            await self.driver.release(pool, connection)

    async def replace(self, pool: P) -> None:
        """Let the next operation or batch start on a new connection; a pool that was given sees to that itself."""
        if pool is not self.driver.given:
            await self.driver.expire(pool)

    async def maintained(self, begin: Callable[[], Steps[T]]) -> T:
        """Return what steps return that may take long, on a connection of the pool that was given, or on one more of our own.

        Raises `ConfigurationError` or `StoreUnavailable` for an error of the driver.
        """
        given = self.driver.given
        if given is not None:
            with self.errors(MAINTENANCE_TIMEOUT):
                return await self._run_on(given, await self.acquire(given), begin, MAINTENANCE_TIMEOUT)
        with self.errors(self.timeout):
            connection = await self.driver.connect()
        try:
            with self.errors(MAINTENANCE_TIMEOUT):
                found = await run(begin(), Patient(self.driver.runner(connection), MAINTENANCE_TIMEOUT))
        except BaseException:
            self.driver.cut(connection)
            raise
        await self.driver.disconnect(connection)
        return found

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """The error of an operation or a batch, which is tried again whatever its reason."""
        return StoreUnavailable(str(self.driver.as_store_error(error, self.timeout)))

    @contextlib.contextmanager
    def errors(self, timeout: float) -> Iterator[None]:
        """Raise our error for the driver's; `timeout` is what the statements were given."""
        try:
            yield
        except self._failures as raised:
            raise self.driver.as_store_error(_error(raised), timeout) from None

    async def _run_on(self, pool: P, connection: C, begin: Callable[[], Steps[T]], patience: float | None = None) -> T:
        """Run steps on `connection`, and give it back; cut it first where its state is unknown."""
        try:
            runner = self.driver.runner(connection)
            return await run(begin(), runner if patience is None else Patient(runner, patience))
        except BaseException as error:
            if not self.driver.is_usable(connection, _error(error)):
                self.driver.cut(connection)
            raise
        finally:
            await self.release(pool, connection)

    async def _ask(self, pool: P, begin: Callable[[], Steps[T]], within: float) -> T:
        async with asyncio.timeout(within):
            return await self._run_on(pool, await self.driver.acquire(pool), begin)

    async def _within(self, waiting: Awaitable[T]) -> T:
        async with asyncio.timeout(self.timeout):
            return await waiting

    async def _end(self, pool: P) -> None:
        if pool is self.driver.given:
            return
        try:
            async with asyncio.timeout(self.timeout):
                await self.driver.close_pool(pool)
        except TimeoutError:
            pool.terminate()
        except BaseException:
            pool.terminate()
            raise


class Patient:
    """Bounds each packet by itself, of which some operations need many."""

    def __init__(self, runner: Runner, timeout: float) -> None:
        self._runner, self._timeout = runner, timeout

    async def send(self, packet: Packet) -> Sequence[Answer]:
        async with asyncio.timeout(self._timeout):
            return await self._runner.send(packet)


def _error(raised: T) -> T | Exception:
    """Return the driver's own error."""
    return raised.error if isinstance(raised, Failure) else raised


async def at_once(coroutine: Coroutine[Any, Any, T], otherwise: Callable[[Coroutine[Any, Any, T]], Awaitable[T]]) -> T:
    """Return what `coroutine` returns, without a timer or a task. If it has to wait, the rest of it is given to `otherwise`."""
    try:
        waits_for = coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    return await otherwise(_rest(coroutine, waits_for))


async def _rest(begun: Coroutine[Any, Any, T], waits_for: object) -> T:
    return await _going_on(begun, waits_for)


@types.coroutine
def _going_on(begun: Coroutine[Any, Any, T], waits_for: object) -> Generator[object, object, T]:
    while True:
        try:
            value = yield waits_for
        except BaseException as error:  # noqa: BLE001  # it is meant for what has started
            step = functools.partial(begun.throw, error)
        else:
            step = functools.partial(begun.send, value)
        try:
            waits_for = step()
        except StopIteration as end:
            return cast("T", end.value)
