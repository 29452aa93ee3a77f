"""`Operations`: what the operations of an outbox have in common, and `asked`, which makes a method of the steps of one."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from ackwise.middleware.outbox import TransactionOutcome
from ackwise.stores.protocol.outboxkeeping import Keeping
from ackwise.stores.protocol.outboxwaking import Wakes
from ackwise.stores.sql.operation import Steps
from ackwise.stores.sql.outbox.dialect import Dialect
from ackwise.stores.sql.outbox.writing import Business

P = ParamSpec("P")
T = TypeVar("T")
Self = TypeVar("Self", bound="Operations")

_Steps: TypeAlias = Callable[Concatenate[Self, P], Steps[T]]
_Method: TypeAlias = Callable[Concatenate[Self, P], "CoroutineType[Any, Any, T]"]


class Operations(abc.ABC):
    """An outbox at `address` in the words of `sql`; `wakes` are the commits of this process."""

    def __init__(self, sql: Dialect, address: str, timeout: float, keeping: Keeping, wakes: Wakes) -> None:
        super().__init__()
        self.keeping = keeping  #: what stays of rows that nobody has to send
        self._sql, self._address, self._timeout, self._wakes = sql, address, timeout, wakes
        self._seen = wakes.count  #: commits of this process before the last `pending`
        self._blocks_key = True

    def wake(self) -> None:
        """See `Outbox.wake`; relays of other processes look by themselves."""
        self._wakes.wake()

    def _signing_in(self, owner: str, share: int) -> int:
        """A relay is about to take `share` shards; return how many it may. Raises `ConfigurationError` where there can be one only."""
        return share

    def _signed_out(self) -> None:  # noqa: B027  # there is nothing to do where relays need no proof that they are alone
        """It has left."""

    def _woken(self, count: int, *outcomes: TransactionOutcome) -> int:
        """Wake relays if rows changed and may be sent now; return how many changed."""
        if count and TransactionOutcome.COMMIT in outcomes:
            self.wake()
        return count

    @abc.abstractmethod
    async def _run(self, begin: Callable[[], Steps[T]], *, repeats: bool = True) -> T:
        """See `Runs.run`."""

    @abc.abstractmethod
    def _through(self, connection: Any) -> Business:
        """Return the way through a connection of the business. Raises `ConfigurationError` for another driver's."""


def asked(*, repeats: bool) -> Callable[[_Steps[Self, P, T]], _Method[Self, P, T]]:
    """The decorator of the steps of a method, which are run as an operation of our own. See `Runs.run`."""

    def decorate(steps: _Steps[Self, P, T]) -> _Method[Self, P, T]:
        @functools.wraps(steps)
        async def method(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._run(functools.partial(steps, self, *args, **kwargs), repeats=repeats)

        return method  # type: ignore[return-value]  # mypy takes what is asynchronous for any coroutine, pyright does not

    return decorate
