"""Leases: the claims of this worker. It takes them, renews them while work goes on, and gives them back.

Every deadline here is local and monotonic; what counts in the end is the store's answer.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.events import EventSink, durable_of
from ackwise.middleware.log import Log, said
from ackwise.middleware.message.disposition import Done, Unrecorded
from ackwise.middleware.runs.agent import HandlerCall
from ackwise.middleware.runs.redelivery import outcome_of, sent_back_of
from ackwise.middleware.runs.run import Run, Stage, count
from ackwise.middleware.storage.claimstore import (
    FIRST,
    Busy,
    ClaimAnswer,
    ClaimStore,
    Column,
    ColumnExchange,
    ColumnResult,
    Outcome,
    checked,
    in_columns,
)

log = Log()

#: Keys of successes, pending releases and pending marks that are remembered at most; the oldest go first.
_REMEMBERED = 100_000

#: Of the releases and of the marks that wait, those that travel with a trip at most: one that carried all of them after a long
#: outage could be too slow for the store's timeout, each time again.
_IN_A_TRIP = 500

#: Seconds that a store which did not answer is taken for down, where messages may run without it: not each batch waits for its timeout.
_DOWN_FOR = 1.0

#: Claims that are renewed with one trip: SQL stores take as many with one statement, so that a trip keeps its time limit however many
#: partitions this worker has.
_RENEWED_TOGETHER = 1000

#: Trips for renewals that are under way at a time: a store has few connections, and the wait for one counts to its time limit.
_RENEWALS_AT_A_TIME = 4


class Moment(NamedTuple):
    """A moment by two clocks. They go apart where the machine was suspended, or its virtual machine paused."""

    monotonic: float
    apart: float
    """Seconds that the wall clock is ahead."""


class Lease(NamedTuple):
    """What is known of the claims of a run: when they were last asked for, and until when they are ours."""

    asked_at: Moment
    deadline: float
    """Monotonic seconds after which they count as lost."""


class Witness(Protocol):
    """Who can tell the death of processes on this host."""

    @property
    def owner(self) -> str:
        """Return the name of this process in its claims; empty if its death could not be detected."""
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
        wall: Callable[[], float] | None = None,
        witness: Witness | None = None,
        sink: EventSink | None = None,
    ) -> None:
        """`clock` is monotonic. Without `wall`, the wall clock, a pause in which `clock` was stalled is not noticed."""
        self.store = store
        self._columns = in_columns(store)
        self._witness = witness
        self._sink = sink  #: of the events about what is claimed
        self.lease = lease
        self.retention = retention
        self._clock = clock
        self._wall = wall
        self._held: dict[Run, Lease] = {}
        self._trips: deque[float] = deque([0.0], maxlen=64)
        self._succeeded: tuple[dict[bytes, float], dict[bytes, float]] = {}, {}  #: until when: the older ones, and the newer ones
        self._highest: dict[tuple[str, int], int] = {}  #: offset that succeeded of each partition, where its messages were written first
        self._releases = _Backlog()
        self._marks = _Backlog()
        self._down_until = 0.0
        self._running: dict[bytes, weakref.ref[HandlerCall]] = {}
        self.marks_dropped = 0  #: finished messages that the store was never told of
        self._random = random.Random()  # its own generator: a user's random.seed() must not make two workers draw the same tokens

    def __len__(self) -> int:
        return count(self._held)

    def inherit(self, before: Leases) -> None:
        """Know what an earlier worker of this process knew: its successes, what the store has to be told, and what still runs."""
        self._succeeded, self._highest = before._succeeded, before._highest
        self._releases, self._marks = before._releases, before._marks
        self._running, self.marks_dropped = before._running, before.marks_dropped

    def tokens(self, number: int) -> range:
        """New tokens, in a row: positive, below 2**63, never drawn twice by anybody."""
        first = self._random.getrandbits(62) + 1
        return range(first, first + number)

    async def exchange(
        self,
        *,
        claims: Sequence[Column] = (),
        completes: Sequence[Column] = (),
        releases: Sequence[Column] = (),
        gone: Sequence[str] = (),
    ) -> ColumnResult:
        """One trip to the store, with some of the releases and marks that could not be delivered before.

        Raises `StoreUnavailable`, also for an answer about another number of keys; those are then kept for the next trip.
        """
        first, first_marks, pending, marks = list[Column](), list[Column](), list[Column](), list[Column]()
        if self._releases.keys or self._marks.keys:
            claimed = {key_id for claim in claims for key_id in claim.ids}
            first, first_marks = self._releases.about(claimed), self._marks.about(claimed)
            pending, marks = self._releases.oldest(), self._marks.oldest()
        try:
            if first or first_marks:  # what is released or completed and what is claimed never share a trip
                await self._trip(ColumnExchange((), first_marks, first, (), self.lease, self.retention))
                first, first_marks = [], []
            owner = self._witness.owner if claims and self._witness is not None else ""
            asked = ColumnExchange(claims, [*completes, *marks], [*releases, *pending], (), self.lease, self.retention, owner, gone)
            result = await self._trip(asked)
        except BaseException:
            self._releases.append(*first, *pending, *releases)
            self._releases.drop_down_to(_REMEMBERED)
            self._marks.prepend(*first_marks, *marks)
            self._bound_marks(_REMEMBERED)
            raise
        return replace(result, completes=result.completes[: len(completes)]) if marks else result

    async def claim(self, claims: Sequence[Column]) -> list[Mapping[int, ClaimAnswer | StoreUnavailable]]:
        """Ask for claims; returns, for each column, what was not granted for the first time, by its place. Raises `StoreUnavailable`.

        Those that a process holds whose death is proved are taken over. One that was to be taken over when the store went away may
        be ours or not: its answer is why, the others stand.
        """
        asked = await self.exchange(claims=claims)
        answers: list[dict[int, ClaimAnswer | StoreUnavailable]] = [dict(answer.exceptions) for answer in asked.claims]
        owners = {answer.owner for of_column in answers for answer in of_column.values() if isinstance(answer, Busy) and answer.owner}
        gone = sorted(self._witness.dead(owners)) if owners and self._witness is not None else []
        if not gone:
            return [*answers]
        orphans = [
            sorted(place for place, answer in of_column.items() if isinstance(answer, Busy) and answer.owner in gone)
            for of_column in answers
        ]
        held = [(number, places) for number, places in enumerate(orphans) if places]
        columns = [
            claims[number]._replace(
                ids=[claims[number].ids[place] for place in places], tokens=[claims[number].tokens[place] for place in places]
            )
            for number, places in held
        ]
        log.info("claims of a dead process taken over", claims=sum(map(len, orphans)))
        taken: list[Mapping[int, ClaimAnswer | StoreUnavailable]]
        try:
            taken = [answer.exceptions for answer in (await self.exchange(claims=columns, gone=gone)).claims]
        except StoreUnavailable as error:
            taken = [dict.fromkeys(range(len(places)), error) for _, places in held]
        for (number, places), found in zip(held, taken, strict=True):
            answers[number].update((place, found.get(index, FIRST)) for index, place in enumerate(places))
        return [*answers]

    def begin(self, key_ids: Sequence[bytes], call: HandlerCall) -> None:
        """These keys are running in `call` from now on, with a claim or without."""
        running = weakref.ref(call, partial(_forget, self._running, key_ids))
        self._running.update(dict.fromkeys(key_ids, running))

    def end(self, key_ids: Iterable[bytes], call: HandlerCall) -> None:
        """These keys are not running in `call` any more."""
        mine: weakref.ref[HandlerCall] | None = None  #: the same for all keys of a batch
        for key_id in key_ids:
            running = self._running.get(key_id)
            if running is not None and (running is mine or running() is call):
                mine = running
                del self._running[key_id]

    def running(self, key_ids: Sequence[bytes]) -> list[int]:
        """The places of those keys that are running in this process, with a claim or without."""
        if self._running.keys().isdisjoint(key_ids):
            return []
        return [place for place, key_id in enumerate(key_ids) if key_id in self._running]

    def release_later(self, release: Column) -> None:
        """Release with the next trip that the store answers; nothing waits for that."""
        self._releases.append(release)
        self._releases.drop_down_to(_REMEMBERED)

    def mark_later(self, complete: Column) -> None:
        """Tell the store of finished messages with the next trip that it answers; nothing waits for that."""
        self._bound_marks(_REMEMBERED - len(complete.ids))
        self._marks.append(complete)

    def _bound_marks(self, most: int) -> None:
        dropped = self._marks.drop_down_to(most)
        if dropped and not self.marks_dropped:
            log.error("finished messages not marked while store unavailable", marks=_REMEMBERED)
        self.marks_dropped += dropped

    @property
    def is_down(self) -> bool:
        """Return whether the store did not answer a moment ago."""
        return self._clock() < self._down_until

    @property
    def has_failed(self) -> bool:
        """Return whether the store did not answer the last trip."""
        return self._down_until > 0.0

    async def _trip(self, exchange: ColumnExchange) -> ColumnResult:
        started = self._clock()
        try:
            result = checked(exchange, await self._columns.exchange_columns(exchange))
        except StoreUnavailable:
            self._down_until = self._clock() + _DOWN_FOR
            raise
        if self._down_until:
            self._down_until = 0.0
            log.info("store answered again", marks=self._marks.keys, releases=self._releases.keys)
        self._trips.append(self._clock() - started)
        return result

    def now(self) -> Moment:
        """The moment by the clocks that leases go by."""
        monotonic = self._clock()
        return Moment(monotonic, 0.0 if self._wall is None else self._wall() - monotonic)

    def add(self, runs: Sequence[Run], asked_at: Moment) -> None:
        """The claims of `runs` are granted; `asked_at` is when they were asked for."""
        lease = self._lease(asked_at)
        for run in runs:
            run.register, run.claims.lost = self._held, set()
            self._held[run] = lease

    def drop(self, *runs: Run) -> None:
        """The claims of `runs` are no longer held."""
        for run in runs:
            self._held.pop(run, None)

    def give_back(self, run: Run) -> None:
        """Its claims are released, or completed if nothing but that is left of it, with the next trip; nothing waits for that.

        A success that is not recorded is completed too, and the next claimant of its key is notified.
        """
        if not run.claims.tokens or run.claims.ids is None:
            return
        self.drop(run)
        is_recorded = run.stage is Stage.RECORDED
        outcome = outcome_of(run) if is_recorded or run.stage is Stage.PUBLISHED else None
        if outcome is Outcome.OK or (outcome is not None and is_recorded):
            for column in [run.column(outcome)] if is_recorded else self._unrecorded(run):
                self.mark_later(column)
            if run.claims.base_id is not None and outcome is Outcome.OK:
                self.mark_later(run.base_column())
        else:
            self.release_later(run.column(sent_back=sent_back_of(run) if is_recorded else None))
        run.claims.tokens = None

    def _unrecorded(self, run: Run) -> list[Column]:
        """Return the columns that complete its claims: one for each execution that the event log lacks."""
        column, writer = run.column(), durable_of(self._sink)
        if not isinstance(run.disposition, Done) or run.exec_ids is None:
            return [column]
        columns = []
        for place, (key_id, token, exec_id) in enumerate(zip(column.ids, column.tokens, run.exec_ids, strict=True)):
            topic, partition, offset, _ = run.origin_at(place)
            ran = Unrecorded(0 if writer is None else writer.writer_id, exec_id, partition, offset, topic)
            columns.append(column._replace(ids=[key_id], tokens=[token], unrecorded=str(ran)))
        return columns

    async def flush(self) -> None:
        """Deliver the releases and marks that are waiting. Raises `StoreUnavailable`."""
        while self._releases.keys or self._marks.keys:
            await self.exchange()

    def expired(self, run: Run) -> bool:
        """Return whether a claim of it is lost, or its lease over by one of the clocks."""
        lease = self._held.get(run)
        return run.claim_lost or lease is None or _is_over(lease, self.now())

    def may_begin(self, run: Run) -> bool:
        """Return whether all of `run` may start: none of its keys succeeded or is running here, and its claims are ours."""
        assert run.claims.ids is not None
        for keys in (self._running,) if self.is_new(run) else (*self._succeeded, self._running):
            if keys and not keys.keys().isdisjoint(run.claims.ids):
                return False
        return not run.claims.tokens or run.claims.unprotected or not self.doubtful(run)

    def doubtful(self, run: Run) -> bool:
        """Return whether a claim of it must count as lost until the store says otherwise.

        It is lost, its lease is over by one of the clocks, or one of them jumped since it was asked for: how much is over is not known.
        """
        lease, now = self._held.get(run), self.now()
        return bool(run.claims.lost) or lease is None or _is_over(lease, now) or self._have_jumped(lease, now)

    def lost(self, run: Run) -> Sequence[int]:
        """The places of its claims that must count as lost until the store says otherwise."""
        lease, now = self._held.get(run), self.now()
        is_over = lease is None or _is_over(lease, now) or self._have_jumped(lease, now)
        return range(len(run)) if is_over else run.lost_places()

    def _have_jumped(self, lease: Lease, now: Moment) -> bool:
        return abs(now.apart - lease.asked_at.apart) > self.lease / 3

    def remember_successes(self, run: Run) -> None:
        """The keys of `run` succeeded in this process: they are never run here again while the retention lasts."""
        if run.claims.ids is None:
            return
        if len(self._succeeded[1]) >= _REMEMBERED:
            self._succeeded = self._succeeded[1], {}
        self._succeeded[1].update(dict.fromkeys(run.claims.ids, self._clock() + self.retention))
        topic, partition, offset, _ = run.origin_at(-1)
        self._highest[topic, partition] = max(offset, self._highest.get((topic, partition), offset))

    def is_new(self, run: Run) -> bool:
        """Return whether no key of `run` can have succeeded here: they are coordinates, above all that succeeded of their partition."""
        return run.claims.of_coordinates and run.first > self._highest.get(run.place, -1)

    def succeeded(self, key_ids: Sequence[bytes]) -> list[int]:
        """The places of those keys that succeeded in this process, within the retention."""
        older, newer = self._succeeded
        if not ((newer and not newer.keys().isdisjoint(key_ids)) or (older and not older.keys().isdisjoint(key_ids))):
            return []
        now = self._clock()
        return [place for place, key_id in enumerate(key_ids) if now < max(newer.get(key_id, now), older.get(key_id, now))]

    async def renew(self, runs: Sequence[Run]) -> list[Run]:
        """Renew the claims of `runs`; returns those of which one is lost, which is marked. Raises `StoreUnavailable`.

        Nothing else travels with the renewal. An answer counts only for the claims that were asked about: a run may have others by
        then, or have been split.
        """
        asked_at = self.now()
        asked = [(run, run.claims.tokens, run.column()) for run in runs if run.claims.ids is not None and run.claims.tokens]
        owner = "" if self._witness is None else self._witness.owner
        renews = [column for _, _, column in asked]
        result = await self._trip(ColumnExchange((), (), (), renews, self.lease, self.retention, owner))
        found: list[Run] = []
        lease = self._lease(asked_at)
        parts: dict[int, Run] = {}  #: by token what is held now, once a run was split or given back meanwhile
        for (run, tokens, column), answer in zip(asked, result.renews, strict=True):
            lost = {column.tokens[place] for place in answer.exceptions}
            if run.claims.tokens is not tokens:
                parts = parts or {token: part for part in self._held for token in part.claims.tokens or ()}
            for part in [run] if run.claims.tokens is tokens else _parts_with(column.tokens, parts):
                part.claims.lost = set()
                if part in self._held:
                    self._held[part] = lease
                if lost_there := lost.intersection(part.claims.tokens or ()):
                    part.claims.lost |= lost_there
                    found.append(part)
        return found

    async def keep(self) -> None:
        """Renew everything that is held, each claim by a third of its lease, until cancelled; call off what was lost.

        It waits for renewals only: what else there is to deliver is `deliver`'s.
        """
        while True:
            await asyncio.sleep(self._until_next_beat())
            await self.beat()

    async def deliver(self) -> None:
        """Deliver the releases and marks that are waiting, three times a lease, until cancelled."""
        while True:
            await asyncio.sleep(self.lease / 3)
            with suppress(StoreUnavailable):  # they stay, for the next round
                await self.flush()

    def _until_next_beat(self) -> float:
        """Seconds until a third of the oldest lease is over; no less than a moment, where a renewal failed."""
        now = self._clock()
        oldest = min((lease.asked_at.monotonic for lease in self._held.values()), default=now)
        return max(oldest + self.lease / 3 - now, self.lease / 30)

    async def beat(self) -> None:
        """One round of renewal, in trips that keep their time limit: claims older than a tenth of the lease, the oldest first."""
        now = self.now()
        aged = [run for run, lease in self._held.items() if self._is_aged(lease, now)]
        if not aged:
            return
        claims, turns = count(aged), asyncio.Semaphore(_RENEWALS_AT_A_TIME)
        aged.sort(key=self._held.__getitem__)
        answers = await asyncio.gather(*(self._renew_in_time(part, turns) for part in _in_trips(aged)), return_exceptions=True)
        lost: list[Run] = []
        error: BaseException | None = None
        for answer in answers:
            if not isinstance(answer, BaseException):
                lost += answer
            elif isinstance(answer, StoreUnavailable | TimeoutError):
                error = answer
            else:
                raise answer
        if error is not None:
            over = [run for run, lease in self._held.items() if self._is_aged(lease, now) and self.expired(run)]
            for run in over:
                run.claims.lost = set(run.claims.tokens or ())
            log.warning("claims could not be renewed", claims=claims, lost=count(over), error=said(error))
            lost += over
        for run in dict.fromkeys(lost):
            self._lose(run)

    def _is_aged(self, lease: Lease, now: Moment) -> bool:
        return now.monotonic - lease.asked_at.monotonic >= self.lease / 10 or self._have_jumped(lease, now)

    async def _renew_in_time(self, runs: Sequence[Run], turns: asyncio.Semaphore) -> list[Run]:
        async with turns, asyncio.timeout(self.lease / 3):
            return await self.renew(runs)

    def _lose(self, run: Run) -> None:
        if run.claims.lost.issuperset(run.claims.tokens or ()):
            self.drop(run)
        if run.call is not None and run.stage is Stage.ADMITTED:  # what is decided already must not end what runs beside it
            run.call.call_off()

    def _lease(self, asked_at: Moment) -> Lease:
        margin = min(max(self.lease * 0.1, 2 * max(self._trips)), self.lease / 2)
        return Lease(asked_at, asked_at.monotonic + self.lease - margin)


def _is_over(lease: Lease, now: Moment) -> bool:
    """Return whether it is over, by the clock that has gone further since it was asked for."""
    return now.monotonic + max(0.0, now.apart - lease.asked_at.apart) >= lease.deadline


def _in_trips(runs: Iterable[Run]) -> Iterator[list[Run]]:
    """`runs` in order, in parts whose claims may share a trip."""
    part: list[Run] = []
    claims = 0
    for run in runs:
        if part and claims + len(run) > _RENEWED_TOGETHER:
            yield part
            part, claims = [], 0
        part.append(run)
        claims += len(run)
    if part:
        yield part


def _forget(running: dict[bytes, weakref.ref[HandlerCall]], key_ids: Iterable[bytes], gone: weakref.ref[HandlerCall]) -> None:
    """A call came to nothing without an end."""
    for key_id in key_ids:
        if running.get(key_id) is gone:
            del running[key_id]


def _parts_with(tokens: Sequence[int], parts: Mapping[int, Run]) -> list[Run]:
    """Return those of `parts`, by token, into which the run with these tokens was split meanwhile."""
    return [*dict.fromkeys(parts[token] for token in tokens if token in parts)]


class _Backlog:
    """Requests that wait for a trip, the oldest first. `keys` is how many keys they are about."""

    def __init__(self) -> None:
        self._columns: deque[Column] = deque()
        self.keys = 0

    def append(self, *columns: Column) -> None:
        self._columns.extend(columns)
        self.keys += sum(len(column.ids) for column in columns)

    def prepend(self, *columns: Column) -> None:
        self._columns.extendleft(reversed(columns))
        self.keys += sum(len(column.ids) for column in columns)

    def drop_down_to(self, most: int) -> int:
        """Drop the oldest until there are `most` keys; returns how many were dropped."""
        before = self.keys
        while self._columns and self.keys > most:
            self.keys -= len(self._columns.popleft().ids)
        return before - self.keys

    def oldest(self) -> list[Column]:
        """Take the oldest, as many as may share a trip."""
        taken: list[Column] = []
        left = _IN_A_TRIP
        while self._columns and (not taken or len(self._columns[0].ids) <= left):
            taken.append(self._columns.popleft())
            left -= len(taken[-1].ids)
        self.keys -= sum(len(column.ids) for column in taken)
        return taken

    def about(self, key_ids: set[bytes]) -> list[Column]:
        """Take those about one of `key_ids`."""
        taken = [column for column in self._columns if not key_ids.isdisjoint(column.ids)] if key_ids and self.keys else []
        if taken:
            self._columns = deque(column for column in self._columns if key_ids.isdisjoint(column.ids))
            self.keys -= sum(len(column.ids) for column in taken)
        return taken
