"""Desk: where receivers ask for messages, and partitions bring as many as were asked for.

    ask → wanted → promised to partitions that have some → given

Nothing is claimed that nobody has asked for: what a receiver does not want stays in its partition, and no kill is charged to it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ackwise.middleware.handlercall import HandlerCall
from ackwise.middleware.message import Message
from ackwise.middleware.run import Run

__all__ = ["Desk", "Held", "Order", "Promise"]


class Held(HandlerCall):
    """A message in the hands of a receiver, or on its way there. `lane` is where it is from."""

    __slots__ = ("is_back", "lane", "run")

    def __init__(self, run: Run, lane: Any) -> None:
        super().__init__()
        self.run = run
        self.lane = lane
        self.is_back: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def message(self) -> Message[Any]:
        """What the receiver sees."""
        return self.run.message

    def call_off(self) -> None:
        """Its claim is lost, and nobody can stop a receiver: what it says is settled all the same, which finds out who owns the message."""

    def end(self) -> None:
        """It is in nobody's hands any more."""
        self.deadline = None
        if not self.is_back.done():
            self.is_back.set_result(None)


class Order:
    """What one receiver asks for: `number` messages, or as many of them as there are."""

    __slots__ = ("filled", "number", "promised", "taken")

    def __init__(self, number: int) -> None:
        self.number = number
        self.promised = 0  #: messages that partitions are fetching claims for
        self.taken: list[Held] = []
        self.filled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def wanted(self) -> int:
        """How many nobody has promised yet."""
        return 0 if self.filled.done() else self.number - self.promised - len(self.taken)

    def look(self) -> None:
        """It is filled with whatever there is, once nothing more is on its way."""
        if self.taken and not self.promised and not self.filled.done():
            self.filled.set_result(None)


class Promise(NamedTuple):
    """So many messages for an order."""

    order: Order
    number: int


class _Offer(HandlerCall):
    """A batch that waits until somebody wants messages of it, `most` at most."""

    __slots__ = ("accepted", "most")

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.accepted: asyncio.Future[list[Promise]] = asyncio.get_running_loop().create_future()

    def accept(self, promises: list[Promise]) -> None:
        if not self.accepted.done():
            self.accepted.set_result(promises)

    def recall(self) -> None:
        """Its partition takes nothing new."""
        self.accept([])

    def call_off(self) -> None:
        self.accept([])


class Desk:
    """The orders and the offers of one consumer, both first come, first served."""

    def __init__(self) -> None:
        self._orders: deque[Order] = deque()
        self._offers: deque[_Offer] = deque()
        self._is_closed = False

    def ask(self, number: int) -> Order:
        """Ask for `number` messages; who asks waits for `filled`, and then calls `leave`."""
        order = Order(number)
        if self._is_closed:
            order.filled.set_result(None)
        self._orders.append(order)
        self._match()
        return order

    def leave(self, order: Order) -> list[Held]:
        """What there is for `order`, to which nothing more is given."""
        if not order.filled.done():
            order.filled.set_result(None)
        if order in self._orders:
            self._orders.remove(order)
        taken, order.taken = order.taken, []
        return taken

    async def sell(self, batch: Sequence[Run], most: int, *, within: float) -> list[Promise]:
        """Wait until somebody wants some of the `most` messages of `batch`; returns nothing if nobody does `within` seconds.

        It also ends if the partition of the batch takes nothing new.
        """
        offer = _Offer(most)
        for run in batch:
            run.call = offer
        self._offers.append(offer)
        try:
            self._match()
            await asyncio.wait({offer.accepted}, timeout=within)
            offer.recall()  # or it would be accepted after the end
            return offer.accepted.result()
        except asyncio.CancelledError:
            offer.recall()
            self.bring(offer.accepted.result(), [])
            raise
        finally:
            for run in batch:
                run.call = None
            if offer in self._offers:
                self._offers.remove(offer)

    def bring(self, promises: Iterable[Promise], brought: Sequence[Held]) -> list[Held]:
        """Keep `promises` with what was `brought`, as far as that goes; returns what nobody wants any more."""
        rest = deque(brought)
        kept = [*promises]
        for order, number in kept:
            order.promised -= number
            while rest and number and not order.filled.done():
                order.taken.append(rest.popleft())
                number -= 1
        for order in self._orders:  # one whose receiver has gone leaves some to the others
            while rest and order.wanted > 0:
                order.taken.append(rest.popleft())
        for order in [*self._orders, *(order for order, _ in kept)]:
            order.look()
        self._match()
        return [*rest]

    def close(self) -> list[Held]:
        """Give nothing more; returns what had come for those who wait, and is given to nobody."""
        self._is_closed = True
        return [held for order in [*self._orders] for held in self.leave(order)]

    def _match(self) -> None:
        """Let offers that wait keep what is wanted, in the order in which both came."""
        while self._offers:
            offer, promises = self._offers[0], list[Promise]()
            if not offer.accepted.done():
                left = offer.most
                for order in self._orders:
                    if left and (number := min(left, order.wanted)) > 0:
                        order.promised += number
                        left -= number
                        promises.append(Promise(order, number))
                if not promises:
                    return
                offer.accept(promises)
            self._offers.popleft()
