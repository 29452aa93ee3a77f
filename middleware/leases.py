"""Leases: the claims of this worker. It takes them, renews them while work goes on, and gives them back.

Every deadline here is local and monotonic; what counts in the end is the store's answer.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

from ackwise.middleware.entry import Entry, Stage
from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.fate import ending
from ackwise.middleware.log import Log, said
from ackwise.middleware.store import Ack, Busy, Claim, ClaimAnswer, ClaimStore, Complete, Exchange, ExchangeResult, Release, Renew

__all__ = ["Leases", "Witness"]

log = Log()

RequestT = TypeVar("RequestT", Release, Complete)

#: Keys of successes, pending releases and pending marks that are remembered at most; the oldest go first.
_REMEMBERED = 100_000

#: Of the releases and of the marks that wait, those that travel with a trip at most: one that carried all of them after a long
#: outage could be too slow for the store's timeout, each time again.
_IN_A_TRIP = 500

#: Seconds that a store which did not answer is taken for down, where messages may run without it: not each batch waits for its timeout.
_DOWN_FOR = 1.0


class Witness(Protocol):
    """Who can tell the death of processes on this host."""

    @property
    def owner(self) -> str:
        """What this process is called in its claims; empty if nobody could tell its death."""
        ...

    def dead(self, owners: Iterable[str]) -> Collection[str]:
        """Those of `owners` whose death is proved. Where it is only likely, it is not."""
        ...


class Leases:
    """A store together with what this worker holds in it. With a `witness`, what a dead process of this host holds is free at once."""

    def __init__(
        self,
        store: ClaimStore,
        *,
        lease: float = 30.0,
        retention: float = 86400.0,
        clock: Callable[[], float] = time.monotonic,
        witness: Witness | None = None,
    ) -> None:
        self.store = store
        self._witness = witness
        self.lease = lease
        self.retention = retention
        self._clock = clock
        self._held: dict[int, Entry] = {}
        self._trips: deque[float] = deque([0.0], maxlen=64)
        self._succeeded: OrderedDict[bytes, float] = OrderedDict()  # the one that succeeded longest ago first
        self._releases: deque[Release] = deque(maxlen=_REMEMBERED)
        self._marks: deque[Complete] = deque()
        self._down_until = 0.0
        self._running: weakref.WeakValueDictionary[bytes, Entry] = weakref.WeakValueDictionary()
        self.marks_dropped = 0  #: finished messages that the store was never told of
        self._random = random.Random()  # its own generator: a user's random.seed() must not make two workers draw the same tokens

    def __len__(self) -> int:
        return len(self._held)

    def token(self) -> int:
        """A new token: positive, below 2**63, never drawn twice by anybody."""
        return self._random.getrandbits(62) + 1

    async def exchange(
        self,
        *,
        claims: Sequence[Claim] = (),
        completes: Sequence[Complete] = (),
        releases: Sequence[Release] = (),
        renews: Sequence[Renew] = (),
        gone: Sequence[str] = (),
    ) -> ExchangeResult:
        """One trip to the store, with some of the releases and marks that could not be delivered before.

        Raises `StoreUnavailable`; those are then kept for the next trip.
        """
        claimed = {claim.key.id for claim in claims} if self._releases or self._marks else set()
        first, first_marks = _drawn(self._releases, claimed), _drawn(self._marks, claimed)
        pending, marks = _drawn(self._releases), _drawn(self._marks)
        try:
            if first or first_marks:  # what is released or completed and what is claimed never share a trip
                await self._trip(Exchange((), first_marks, first, (), self.lease, self.retention))
                first, first_marks = [], []
            owner = self._witness.owner if (claims or renews) and self._witness is not None else ""
            result = await self._trip(
                Exchange(claims, [*completes, *marks], [*releases, *pending], renews, self.lease, self.retention, owner, gone)
            )
        except BaseException:
            self._releases.extend([*first, *pending, *releases])
            self._marks.extendleft(reversed([*first_marks, *marks]))
            self._bound_marks(_REMEMBERED)
            raise
        return replace(result, completes=result.completes[: len(completes)]) if marks else result

    async def claim(self, claims: Sequence[Claim]) -> list[ClaimAnswer | StoreUnavailable]:
        """Ask for claims; those that a process holds whose death is proved are taken over. Raises `StoreUnavailable`.

        One that was to be taken over when the store went away may be ours or not: its answer is why, the others stand.
        """
        answers: list[ClaimAnswer | StoreUnavailable] = [*(await self.exchange(claims=claims)).claims]
        owners = {answer.owner for answer in answers if isinstance(answer, Busy) and answer.owner}
        gone = sorted(self._witness.dead(owners)) if owners and self._witness is not None else []
        if not gone:
            return answers
        orphans = [number for number, answer in enumerate(answers) if isinstance(answer, Busy) and answer.owner in gone]
        log.info("a process of this host died, its claims are taken over", claims=len(orphans))
        taken: Sequence[ClaimAnswer | StoreUnavailable]
        try:
            taken = (await self.exchange(claims=[claims[number] for number in orphans], gone=gone)).claims
        except StoreUnavailable as error:
            taken = [error] * len(orphans)
        for number, answer in zip(orphans, taken, strict=True):
            answers[number] = answer
        return answers

    def begin(self, entry: Entry) -> bool:
        """`entry` runs from now on, with a claim or without; `False` if its key is running in this process already."""
        return entry.key is None or self._running.setdefault(entry.key.id, entry) is entry

    def end(self, entry: Entry) -> None:
        """`entry` does not run any more."""
        if entry.key is not None and self._running.get(entry.key.id) is entry:
            del self._running[entry.key.id]

    def is_running(self, key_id: bytes) -> bool:
        """Whether this key is running in this process, with a claim or without."""
        return key_id in self._running

    def release_later(self, release: Release) -> None:
        """Release with the next trip that the store answers; nothing waits for that."""
        self._releases.append(release)

    def mark_later(self, complete: Complete) -> None:
        """Tell the store of a finished message with the next trip that it answers; nothing waits for that."""
        self._bound_marks(_REMEMBERED - 1)
        self._marks.append(complete)

    def _bound_marks(self, count: int) -> None:
        while len(self._marks) > count:
            self._marks.popleft()
            self.marks_dropped += 1
            if self.marks_dropped == 1:
                log.error("the store is away for so long that finished messages are not marked any more", marks=_REMEMBERED)

    @property
    def is_down(self) -> bool:
        """Whether the store did not answer a moment ago."""
        return self._clock() < self._down_until

    @property
    def has_failed(self) -> bool:
        """Whether the store did not answer the last trip."""
        return self._down_until > 0.0

    async def _trip(self, exchange: Exchange) -> ExchangeResult:
        started = self._clock()
        try:
            result = await self.store.exchange(exchange)
        except StoreUnavailable:
            self._down_until = self._clock() + _DOWN_FOR
            raise
        if self._down_until:
            self._down_until = 0.0
            log.info("the store answers again", marks=len(self._marks), releases=len(self._releases))
        self._trips.append(self._clock() - started)
        return result

    def add(self, entries: Sequence[Entry], asked_at: float) -> None:
        """The claims of `entries` are granted; `asked_at` is when they were asked for."""
        for entry in entries:
            self._held[entry.token] = entry
        self._extend(entries, asked_at)

    def drop(self, *entries: Entry) -> None:
        """The claims of `entries` are not ours any more, or no longer needed."""
        for entry in entries:
            self._held.pop(entry.token, None)

    def give_back(self, entry: Entry) -> None:
        """End the claim of `entry` with the next trip: as it was decided, if that is on record, else with a plain release."""
        if not entry.token or entry.key is None:
            return
        self.drop(entry)
        end = ending(entry, entry.key) if entry.stage is Stage.RECORDED else Release(entry.key, entry.token)
        if isinstance(end, Complete):
            self.mark_later(end)
        else:
            self.release_later(end)
        entry.token = 0

    async def flush(self) -> None:
        """Deliver the releases and marks that are waiting. Raises `StoreUnavailable`."""
        while self._releases or self._marks:
            await self.exchange()

    def expired(self, entry: Entry) -> bool:
        """Whether the claim must count as lost until the store says otherwise."""
        return entry.claim_lost or self._clock() >= entry.deadline

    def remember_successes(self, key_ids: Iterable[bytes]) -> None:
        """These keys succeeded in this process: they are never run here again while the retention lasts."""
        until = self._clock() + self.retention
        for key_id in key_ids:
            self._succeeded[key_id] = until
            self._succeeded.move_to_end(key_id)
        while len(self._succeeded) > _REMEMBERED:
            self._succeeded.popitem(last=False)

    def succeeded(self, key_id: bytes) -> bool:
        """Whether this key succeeded in this process, within the retention."""
        until = self._succeeded.get(key_id)
        return until is not None and self._clock() < until

    async def renew(self, entries: Sequence[Entry]) -> list[Entry]:
        """Renew the claims of `entries`; returns those that are lost. Raises `StoreUnavailable`.

        An answer counts only for the claim that was asked about: an entry may have another one by then.
        """
        asked_at = self._clock()
        owned = [(entry, Renew(entry.key, entry.token)) for entry in entries if entry.key is not None and entry.token]
        result = await self.exchange(renews=[asked for _, asked in owned])
        answered = [(entry, ack is Ack.OK) for (entry, asked), ack in zip(owned, result.renews, strict=True) if entry.token == asked.token]
        self._extend([entry for entry, is_ours in answered if is_ours], asked_at)
        return [entry for entry, is_ours in answered if not is_ours]

    async def keep(self) -> None:
        """Renew everything that is held, three times a lease, until cancelled; call off what was lost."""
        while True:
            await asyncio.sleep(self.lease / 3)
            await self.beat()
            with suppress(StoreUnavailable):  # they stay, for the next round
                await self.flush()

    async def beat(self) -> None:
        """One round of renewal: claims older than a third of the lease."""
        now = self._clock()
        aged = {token: entry for token, entry in self._held.items() if now - entry.renewed_at >= self.lease / 3 * 0.9}
        if not aged:
            return
        try:
            async with asyncio.timeout(self.lease / 3):
                lost = await self.renew(list(aged.values()))
        except (StoreUnavailable, TimeoutError) as error:
            lost = [entry for token, entry in aged.items() if entry.token == token and self.expired(entry)]
            log.warning("claims could not be renewed", claims=len(aged), lost=len(lost), error=said(error))
        for entry in lost:
            self._lose(entry)

    def _lose(self, entry: Entry) -> None:
        self.drop(entry)
        entry.claim_lost = True
        if entry.run is not None and entry.stage is Stage.ADMITTED:  # what is decided already must not end what runs beside it
            entry.run.call_off()

    def _extend(self, entries: Sequence[Entry], asked_at: float) -> None:
        margin = min(max(self.lease * 0.1, 2 * max(self._trips)), self.lease / 2)
        deadline = asked_at + self.lease - margin
        for entry in entries:
            entry.renewed_at = asked_at
            entry.deadline = deadline
            entry.claim_lost = False


def _drawn(waiting: deque[RequestT], keys: set[bytes] | None = None) -> list[RequestT]:
    """Taken out of `waiting`: those of `keys`, or the first that may share a trip."""
    if keys is None:
        return [waiting.popleft() for _ in range(min(_IN_A_TRIP, len(waiting)))]
    drawn = [request for request in waiting if request.key.id in keys] if keys else []
    if drawn:
        others = [request for request in waiting if request.key.id not in keys]
        waiting.clear()
        waiting.extend(others)
    return drawn
