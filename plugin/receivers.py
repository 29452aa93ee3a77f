"""`Receivers`: the pipeline steps of a `SimpleConsumer`, whose receivers take messages at any time and settle each by its receipt.

    wait for an order → claim as many → lend them → settle each when it is acknowledged, sent back, or its receipt expires

`DemandQueue` matches the orders of receivers with the offers of partitions: asked → wanted → promised → given. Only ordered messages
are claimed; others stay in their partition, and no kill is charged to them. A lent message has left its lane: when the partition moves
to another worker, the receiver keeps it, and its claim keeps others off.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any, Final, NamedTuple

from ackwise.middleware.claims.receipts import EXPIRED, Answer, Receipts
from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.message.disposition import DONE, Dead, Disposition, Reason
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.pipeline import AT_ONCE, Phases, follow
from ackwise.middleware.runs.agent import HandlerCall
from ackwise.middleware.runs.run import Run, Stage, apart, count, in_order
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.consumer.member import Member


class Held(HandlerCall):
    """A message that a receiver has, or will get. It is from `lane`."""

    __slots__ = ("is_back", "lane", "run")

    def __init__(self, run: Run, lane: Any) -> None:
        super().__init__()
        self.run = run
        self.lane = lane
        self.is_back: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def message(self) -> Message[Any]:
        """The message for the receiver."""
        return self.run.message

    def call_off(self) -> None:
        """Do nothing, although its claim is lost: a receiver can't be stopped, and settling its decision finds the new owner."""

    def end(self) -> None:
        """Note that no receiver has it any more."""
        self.deadline = None
        if not self.is_back.done():
            self.is_back.set_result(None)


class Order:
    """The demand of one receiver: up to `number` messages."""

    __slots__ = ("filled", "number", "promised", "taken")

    def __init__(self, number: int) -> None:
        self.number = number
        self.promised = 0  #: messages whose claims are under way
        self.taken: list[Held] = []
        self.filled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def wanted(self) -> int:
        """The number that is not promised yet."""
        return 0 if self.filled.done() else self.number - self.promised - len(self.taken)

    def look(self) -> None:
        """Mark it as filled once it has a message and no more are promised."""
        if self.taken and not self.promised and not self.filled.done():
            self.filled.set_result(None)


class Promise(NamedTuple):
    """A number of messages for an order."""

    order: Order
    number: int


class _Offer(HandlerCall):
    """A batch that waits for a receiver to want up to `most` of its messages."""

    __slots__ = ("accepted", "most")

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.accepted: asyncio.Future[list[Promise]] = asyncio.get_running_loop().create_future()

    def accept(self, promises: list[Promise]) -> None:
        if not self.accepted.done():
            self.accepted.set_result(promises)

    def recall(self) -> None:
        """Withdraw it: its partition stops."""
        self.accept([])

    def call_off(self) -> None:
        self.accept([])


class DemandQueue:
    """The orders and offers of one consumer, each first come, first served."""

    def __init__(self) -> None:
        self._orders: deque[Order] = deque()
        self._offers: deque[_Offer] = deque()
        self._is_closed = False

    def ask(self, number: int) -> Order:
        """Order `number` messages. The caller waits for `filled`, and then calls `leave`."""
        order = Order(number)
        if self._is_closed:
            order.filled.set_result(None)
        self._orders.append(order)
        self._match()
        return order

    def leave(self, order: Order) -> list[Held]:
        """Close `order` and return its messages."""
        if not order.filled.done():
            order.filled.set_result(None)
        if order in self._orders:
            self._orders.remove(order)
        taken, order.taken = order.taken, []
        return taken

    async def offer(self, batch: Sequence[Run], most: int, *, within: float) -> list[Promise]:
        """Wait until a receiver wants some of the `most` messages of `batch`; return the promises.

        The list is empty if no receiver wants any `within` seconds, or if the partition stops.
        """
        offer = _Offer(most)
        for run in batch:
            run.call = offer
        self._offers.append(offer)
        try:
            self._match()
            await asyncio.wait({offer.accepted}, timeout=within)
            offer.recall()  # otherwise it would be accepted after the end
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
        """Fulfil `promises` with the `brought` messages; return those that are not wanted any more."""
        rest = deque(brought)
        kept = [*promises]
        for order, number in kept:
            order.promised -= number
            while rest and number and not order.filled.done():
                order.taken.append(rest.popleft())
                number -= 1
        for order in self._orders:  # the messages of a receiver that left go to the others
            while rest and order.wanted > 0:
                order.taken.append(rest.popleft())
        for order in [*self._orders, *(order for order, _ in kept)]:
            order.look()
        self._match()
        return [*rest]

    def close(self) -> list[Held]:
        """Close the queue; return the messages that waiting receivers have not taken."""
        self._is_closed = True
        return [held for order in [*self._orders] for held in self.leave(order)]

    def _match(self) -> None:
        """Promise messages of the waiting offers to the orders, both in order of arrival."""
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


#: Seconds that a batch waits for an order before its lane checks its other messages, such as an unsent dead letter.
_OFFERED: Final = 1.0

#: Seconds for running settlements when the consumer is closed.
_SETTLE_TIMEOUT: Final = 10.0


class Receivers:
    """The pipeline steps of one consumer, with the orders in `demand`. `clock`: monotonic seconds, which expire receipts."""

    fails_together = False

    def __init__(self, phases: Phases, member: Member, demand: DemandQueue, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._agent, self._worker = phases.agent, phases.worker
        self._admission = phases.admission
        self._admission.ahead = 0.0  # a receiver does not wait for the measured rate of claims
        self._execution = phases.execution
        self._settle = phases.settlement
        self._member = member
        self._demand = demand
        self._clock = clock
        self._receipts = Receipts[Held]()
        self._has_changed = asyncio.Event()
        self._is_watching = False
        self._settling: set[asyncio.Task[None]] = set()

    def new_call(self) -> HandlerCall:
        """Return a call that is only stopped; lent messages have their own calls."""
        return HandlerCall()

    def turn(self, _: Lane) -> AbstractAsyncContextManager[object]:
        """Return a context without effect: a lane gives one batch at a time."""
        return AT_ONCE

    async def execute(self, runs: list[Run], lane: Lane, _: HandlerCall) -> None:
        """Settle the decided ones of `runs`, then lend as many of the others as receivers want.

        Messages that succeeded here and lost their claim are claimed again in any case.
        """
        await self._settle(runs, lane)
        lane.pass_settled(runs)
        ready = [run for run in runs if run.stage is Stage.FETCHED]
        again = [run for run in ready if run.succeeded]
        promises = [] if again or not ready else await self._demand.offer(ready, count(ready), within=_OFFERED)
        chosen = again or _first(runs, ready, sum(number for _, number in promises))
        brought = list[Held]()
        try:
            # If it waited for a message that runs alone, it would keep that one's receivers waiting.
            if chosen and not (lane.is_stopping or lane.cut_off or self._worker.isolation.is_shut()):
                brought = await self._claim(runs, chosen, lane)
        finally:
            unwanted = self._demand.bring(promises, brought)
        for held in unwanted:
            self.give_back(held)

    async def settle(self, runs: list[Run], lane: Lane, _: HandlerCall) -> None:
        """Settle the messages that were not lent."""
        follow(runs)
        await self._settle(runs, lane)

    async def _claim(self, runs: list[Run], chosen: list[Run], lane: Lane) -> list[Held]:
        """Claim `chosen`, which are among `runs`. Return the granted ones, lent by `lane` from now on."""
        call = HandlerCall()
        rest = runs[:] = [run for run in runs if run not in chosen]
        for run in rest:
            run.call = call  # a message that must run alone must not wait for one that waits for it
        async with AsyncExitStack() as turn:
            try:
                if await turn.enter_async_context(self._execution.starts.turn(chosen, lane, call)):
                    await self._admission.claim(chosen)
                    follow(chosen)
                granted = [run for run in chosen if run.stage is Stage.ADMITTED]
                ready = in_order(chosen, [single for run in granted for single in apart(chosen, run)])
                if lane.is_stopping or lane.cut_off or not self._execution.mark(ready):
                    self._give_up(ready)
                    await self._release()
                    return []
                brought = [Held(run, lane) for run in ready if not self._bury(run)]
                for held in brought:
                    chosen.remove(held.run)
                    lane.lend(held.run)
                    held.run.call, held.whole = held, call
                call.unstarted, call.parts = (), [*brought]
                if brought:
                    self._member.spawn(_leave_when_back(turn.pop_all(), brought), "received")
                return brought
            finally:
                for run in rest:
                    run.call = None
                runs += chosen

    def _bury(self, run: Run) -> bool:
        """Make `run` a dead letter and return True if it exceeds the retry limit, as after the limit was lowered."""
        if run.attempt - 1 <= self._worker.later_of(self._agent).max_reconsume_times:
            return False
        run.error = Reason.MAX_RECONSUME_TIMES
        run.rule(Dead(Reason.MAX_RECONSUME_TIMES))
        return True

    def hand_out(self, held: Held, invisible: float) -> tuple[Message[object], str] | None:
        """Give `held` to a receiver for `invisible` seconds. Return message and receipt, or `None` if it must not run."""
        if self._execution.starts.is_shut(held.lane, held.run.place, held.whole or held) or self._is_early(held):
            self.give_back(held)
            return None
        if not self._execution.begin([held.run], [held.run], held):
            self._return([held.run], held.lane)
            held.end()
            return None
        return held.message, self._give(held, invisible)

    def _is_early(self, held: Held) -> bool:
        return self._worker.flow.start_after(self._agent.name, [held.run]) > 0

    def _give(self, held: Held, invisible: float) -> str:
        """Return a receipt that is valid for `invisible` seconds; a message that must run alone waits for its end."""
        held.deadline = self._worker.monotonic() + invisible
        receipt = self._receipts.give(held, self._clock() + invisible)
        self._watch()
        return receipt

    def give_back(self, held: Held) -> None:
        """Return `held` to its lane without counting an attempt: the receiver does not want it, or has left."""
        self._execution.end(held.run.claims.ids or (), held)
        self._give_up([held.run])
        self._return([held.run], held.lane)
        held.end()

    async def ack(self, receipts: Sequence[str]) -> list[Answer]:
        """Settle the messages of `receipts` as done. Return the answer for each."""
        self.expire()
        found = [self._use(receipt) for receipt in receipts]
        await self._decide([held for held in found if held is not None], DONE)
        return [
            Answer.INVALID_RECEIPT if held is None else Answer.ACKED if held.run.stage is Stage.SETTLED else Answer.UNSETTLED
            for held in found
        ]

    async def send_back(self, receipt: str, disposition: Disposition) -> bool:
        """Settle the message of `receipt` with `disposition`. Return False if the receipt is not valid."""
        self.expire()
        if (held := self._use(receipt)) is None:
            return False
        await self._decide([held], disposition)
        return True

    def change(self, receipt: str, invisible: float) -> str | None:
        """Return a new receipt, valid for `invisible` seconds from now; `None` if `receipt` is not valid."""
        self.expire()
        held = self._receipts.use(receipt, self._clock())
        return None if held is None else self._give(held, invisible)

    async def close(self, unwanted: Iterable[Held]) -> None:
        """Return lent and `unwanted` messages without counting an attempt; they are delivered again. Finish running settlements."""
        if self._settling:
            await asyncio.wait(self._settling, timeout=_SETTLE_TIMEOUT)
        for held in [*unwanted, *self._receipts.withdraw()]:
            self.give_back(held)
        await self._release()

    def _use(self, receipt: str) -> Held | None:
        """Use up `receipt`; return its message if it is valid. Without a claim, messages of a lost partition can't be settled."""
        held = self._receipts.use(receipt, self._clock())
        if held is not None and held.lane.is_stopping and (not held.run.claims.tokens or held.run.claims.unprotected):
            self.give_back(held)
            return None
        return held

    async def _decide(self, held: Collection[Held], disposition: Disposition) -> None:
        """Set the disposition of lent messages and settle them."""
        if not held:
            return
        self._execution.decisions.conclude([(each.run, disposition, None) for each in held])
        for each in held:
            self._execution.end(each.run.claims.ids or (), each)
            each.run.call = None
        task = self._member.spawn(self._settle_each(held), "settle")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        await asyncio.wait({task})

    async def _settle_each(self, held: Iterable[Held]) -> None:
        by_lane: dict[Lane, list[Held]] = {}
        for each in held:
            by_lane.setdefault(each.lane, []).append(each)
        for lane, of_lane in by_lane.items():
            runs = [each.run for each in of_lane]
            try:
                await self._settle(runs, lane)
            finally:
                lane.pass_settled(runs)
                self._return([run for run in runs if run.stage is not Stage.SETTLED], lane)
                for each in of_lane:
                    each.end()
            if lane.is_stopping:
                await self._release()

    def _give_up(self, runs: Sequence[Run]) -> None:
        for run in runs:
            run.call = None
        self._execution.give_up_unstarted([*runs], runs)

    def _return(self, runs: Sequence[Run], lane: Lane) -> None:
        """Return `runs` to their lane. If that has ended, release their claims instead."""
        if runs and not lane.take_back(runs) and self._worker.leases is not None:
            for run in runs:
                self._worker.leases.give_back(run)

    async def _release(self) -> None:
        """Release claims in the store at once: another worker may wait for them. They stay queued while it is unavailable."""
        if self._worker.leases is not None:
            with suppress(StoreUnavailable):
                await self._worker.leases.flush()

    def _watch(self) -> None:
        self._has_changed.set()
        if not self._is_watching:
            self._is_watching = True
            self._member.keep(self._expire_in_time, "receipts")

    async def _expire_in_time(self) -> None:
        while True:
            self._has_changed.clear()
            self.expire()
            end = self._receipts.next_end
            with suppress(TimeoutError):
                async with asyncio.timeout(None if end is None else max(0.0, end - self._clock())):
                    await self._has_changed.wait()

    def expire(self) -> None:
        """Send back the messages that were not acknowledged in time."""
        if expired := self._receipts.expire(self._clock()):
            self._member.spawn(self._decide(expired, EXPIRED), "expired")


def _first(runs: list[Run], ready: Sequence[Run], number: int) -> list[Run]:
    """Return the first `number` messages of `ready`, which are among `runs`."""
    found = []
    for run in sorted(ready, key=lambda run: run.first):
        if number <= 0:
            break
        if len(run) > number:
            run = run.cut(number)
            runs.append(run)
        found.append(run)
        number -= len(run)
    return found


async def _leave_when_back(turn: AsyncExitStack, brought: Sequence[Held]) -> None:
    """Keep `turn` until no receiver has any of `brought`: messages that killed workers run alone and wait for it."""
    async with turn:
        await asyncio.wait({held.is_back for held in brought})
