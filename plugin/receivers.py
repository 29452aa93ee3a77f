"""DemandQueue: where receivers ask for messages, and partitions bring as many as were asked for.

    ask → wanted → promised to partitions that have some → given

Only what was asked for is claimed: what a receiver does not want stays in its partition, and no kill is charged to it.

Receivers: the steps for those who take messages in their own time and say one by one what became of them.

    wait for an order → claim as many → lend them → settle each when it is acknowledged, sent back, or its receipt expires

What a receiver has is out of its lane: it goes on when the partition moves to another worker, with the claim that keeps others off.
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
        """Its claim is lost. A receiver can't be stopped: settling its decision finds the owner of the message."""

    def end(self) -> None:
        """No receiver has it any more."""
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
        """How many are not promised yet."""
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
    """A batch that waits until a receiver wants messages of it, `most` at most."""

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


class DemandQueue:
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

    async def offer(self, batch: Sequence[Run], most: int, *, within: float) -> list[Promise]:
        """Wait until a receiver wants some of the `most` messages of `batch`; return nothing if none does `within` seconds.

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
        """Keep `promises` with what was `brought`, as far as they suffice; return what is not wanted any more."""
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
        """Give nothing more; return what had come for waiting receivers and was not given."""
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


#: Seconds that a batch waits for an order before its lane looks at what else it holds, such as a dead letter to be sent again.
_OFFERED: Final = 1.0

#: Seconds that what is being settled may take when the consumer is closed.
_SETTLE_TIMEOUT: Final = 10.0


class Receivers:
    """The steps for the receivers of one consumer, who ask at `demand`. `clock`: seconds that never go back, by which receipts expire."""

    fails_together = False

    def __init__(self, phases: Phases, member: Member, demand: DemandQueue, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._agent, self._worker = phases.agent, phases.worker
        self._admission = phases.admission
        self._admission.ahead = 0.0  # a receiver that asks does not wait for the rate of what is claimed
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
        """Gets `stopped`; what is lent has its own calls."""
        return HandlerCall()

    def turn(self, _: Lane) -> AbstractAsyncContextManager[object]:
        """None: a lane gives one batch at a time."""
        return AT_ONCE

    async def execute(self, runs: list[Run], lane: Lane, _: HandlerCall) -> None:
        """Lend as many of `runs` as receivers want, once what is decided is settled.

        What has succeeded here, and lost its claim, is claimed again in any case.
        """
        await self._settle(runs, lane)
        lane.pass_settled(runs)
        ready = [run for run in runs if run.stage is Stage.FETCHED]
        again = [run for run in ready if run.succeeded]
        promises = [] if again or not ready else await self._demand.offer(ready, count(ready), within=_OFFERED)
        chosen = again or _first(runs, ready, sum(number for _, number in promises))
        brought = list[Held]()
        try:
            # Waiting for a message that runs alone, it would keep from that the receivers who want one.
            if chosen and not (lane.is_stopping or lane.cut_off or self._worker.isolation.is_shut()):
                brought = await self._claim(runs, chosen, lane)
        finally:
            unwanted = self._demand.bring(promises, brought)
        for held in unwanted:
            self.give_back(held)

    async def settle(self, runs: list[Run], lane: Lane, _: HandlerCall) -> None:
        """Settle what was not lent."""
        follow(runs)
        await self._settle(runs, lane)

    async def _claim(self, runs: list[Run], chosen: list[Run], lane: Lane) -> list[Held]:
        """Claim `chosen`, which are among `runs`; what is granted is lent by `lane` from now on."""
        call = HandlerCall()
        rest = runs[:] = [run for run in runs if run not in chosen]
        for run in rest:
            run.call = call  # it waits for this: a message that is to run alone does not wait for it in turn
        async with AsyncExitStack() as company:
            try:
                if await company.enter_async_context(self._execution.starts.turn(chosen, lane, call)):
                    await self._admission.claim(chosen)
                    follow(chosen)
                granted = [run for run in chosen if run.stage is Stage.ADMITTED]
                ready = in_order(chosen, [single for run in granted for single in apart(chosen, run)])
                if lane.is_stopping or lane.cut_off:
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
                    self._member.spawn(_keep_company(company.pop_all(), brought), "received")
                return brought
            finally:
                for run in rest:
                    run.call = None
                runs += chosen

    def _bury(self, run: Run) -> bool:
        """Whether `run` came more often than it may, as when the limit was lowered: then it is a dead letter, and is not received."""
        if run.attempt - 1 <= self._worker.later.max_reconsume_times:
            return False
        run.error = Reason.MAX_RECONSUME_TIMES
        run.rule(Dead(Reason.MAX_RECONSUME_TIMES))
        return True

    def hand_out(self, held: Held, invisible: float) -> tuple[Message[object], str] | None:
        """A receiver has it from now on, for `invisible` seconds; returns the message and its receipt, or `None` if it must not run."""
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
        """A receipt that counts for `invisible` seconds: so long a message that is to run alone waits for it."""
        held.deadline = self._worker.monotonic() + invisible
        receipt = self._receipts.give(held, self._clock() + invisible)
        self._watch()
        return receipt

    def give_back(self, held: Held) -> None:
        """Its receiver does not want it, or is gone before it had it: it comes up again, and no attempt is counted."""
        self._execution.end(held.run.claims.ids or (), held)
        self._give_up([held.run])
        self._return([held.run], held.lane)
        held.end()

    async def ack(self, receipts: Sequence[str]) -> list[Answer]:
        """The messages of `receipts` are done; returns what that came to, for each."""
        self.expire()
        found = [self._use(receipt) for receipt in receipts]
        await self._decide([held for held in found if held is not None], DONE)
        return [
            Answer.INVALID_RECEIPT if held is None else Answer.ACKED if held.run.stage is Stage.SETTLED else Answer.UNSETTLED
            for held in found
        ]

    async def send_back(self, receipt: str, disposition: Disposition) -> bool:
        """The message of `receipt` comes back, or is a dead letter, as `disposition` says; `False` if the receipt does not count."""
        self.expire()
        if (held := self._use(receipt)) is None:
            return False
        await self._decide([held], disposition)
        return True

    def change(self, receipt: str, invisible: float) -> str | None:
        """A newer receipt, which counts for `invisible` seconds from now; `None` if `receipt` does not count."""
        self.expire()
        held = self._receipts.use(receipt, self._clock())
        return None if held is None else self._give(held, invisible)

    async def close(self, unwanted: Iterable[Held]) -> None:
        """What receivers have, and what is `unwanted`, comes up again, here or in another worker, and no attempt is counted.

        What is being settled still is.
        """
        if self._settling:
            await asyncio.wait(self._settling, timeout=_SETTLE_TIMEOUT)
        for held in [*unwanted, *self._receipts.withdraw()]:
            self.give_back(held)
        await self._release()

    def _use(self, receipt: str) -> Held | None:
        """What `receipt` is for, if it counts. Without a claim nothing of a partition that is gone can be settled: it comes again."""
        held = self._receipts.use(receipt, self._clock())
        if held is not None and held.lane.is_stopping and (not held.run.claims.tokens or held.run.claims.unprotected):
            self.give_back(held)
            return None
        return held

    async def _decide(self, held: Collection[Held], disposition: Disposition) -> None:
        """Rule on what receivers had, and settle it."""
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
        """Let `runs` come up again in their lane. Once that has end, what they hold goes back to the store instead."""
        if runs and not lane.take_back(runs) and self._worker.leases is not None:
            for run in runs:
                self._worker.leases.give_back(run)

    async def _release(self) -> None:
        """Tell the store at once what another worker may be waiting for; while it is unavailable, what is to be told waits."""
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
        """Send back what was not acknowledged in time."""
        if expired := self._receipts.expire(self._clock()):
            self._member.spawn(self._decide(expired, EXPIRED), "expired")


def _first(runs: list[Run], ready: Sequence[Run], number: int) -> list[Run]:
    """The first `number` messages of `ready`, which are among `runs`."""
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


async def _keep_company(company: AsyncExitStack, brought: Sequence[Held]) -> None:
    """Messages that workers have died of wait until no receiver has any of `brought` any more, and the other way round."""
    async with company:
        await asyncio.wait({held.is_back for held in brought})
