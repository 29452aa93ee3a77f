"""The path of one key from fetch to commit as a state machine, small enough to look at every state that it can reach.

Two workers, the store (decided by `ackwise.stores.protocol.transitions` itself), the Kafka copies of the key, and what may go
wrong: crashes, stalls beyond the lease, lost replies, failing handlers, moved partitions, a relay that repeats itself,
a store that forgets. `explore` visits every interleaving within the given number of each and says which of the
`INVARIANTS` broke, with the shortest way there. Not in it: other keys, poison thresholds, the event log, retention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from ackwise.middleware.storage.claimstore import WHOEVER, Ack, Acquired, Busy, ClaimAnswer, Outcome
from ackwise.stores.protocol import transitions
from ackwise.stores.protocol.transitions import Record

T = TypeVar("T")

LOSS = "the watermark passed a message that is neither done, parked nor dead"
STUCK = "a message that can't be settled any more"
STALE_OWNER = "an owner whose claim was taken over changed the record"
SECOND_RUN = "a process that had succeeded ran the handler again"
RUN_AFTER_DONE = "a handler started although the key was completed"
OVERLAP = "more handlers at once than leases that expired under them allow"
EFFECTS = "more effects than one, and one for each crash, for each lease that expired and for each record that was forgotten"
FENCING = "a claim that follows another without a larger epoch"
DEATH = "a key that is not known as done after the replay of its dead letter succeeded"
INVARIANTS = (DEATH, LOSS, STUCK, STALE_OWNER, SECOND_RUN, RUN_AFTER_DONE, OVERLAP, EFFECTS, FENCING)

# Time is 0 forever: a lease of 1 lives until it is made to expire.
NOW, LEASE, RETENTION = 0.0, 1.0, 10.0

# What a worker is about to do with a copy. Strings, because they hash once and read well in a trace.
IDLE = "idle"
HELD = "held"
ASKING = "asking"  # a claim was sent and its answer lost; it is repeated with the same token
RUNNING = "running"
SUCCEEDED = "succeeded"  # to be completed
FAILED = "failed"  # to be published
SUSPENDED = "suspended"  # failed in place: the key is to be given back, and claimed again for the same attempt
PUBLISHING = "publishing"  # the copy is in the air
PUBLISHED = "published"  # the copy is acknowledged, the store is to be told
SETTLED = "settled"  # to be committed
FOLLOWING = "following"  # a duplicate in the batch; `token` is the seat of its leader
HOLDING = frozenset({ASKING, RUNNING, SUCCEEDED, FAILED, PUBLISHING, PUBLISHED})

DEAD = 0
"""In place of the attempt of a published copy: it goes to the dead-letter topic."""
LIMIT = 2
"""The attempt after which a failing message is dead."""


class Faults(NamedTuple):
    """How often each thing may go wrong."""

    crashes: int = 0
    stalls: int = 0
    lost_replies: int = 0
    failures: int = 0
    moves: int = 0
    duplicates: int = 0
    evictions: int = 0
    replays: int = 0
    """Of the dead letter, all of which succeed; each has its own key, and tells the store of this one."""

    def less(self, name: str) -> Faults:
        return self._replace(**{name: getattr(self, name) - 1})


class Copy(NamedTuple):
    """One Kafka record of the key, in its own partition."""

    attempt: int
    owner: int
    committed: bool = False


class Seat(NamedTuple):
    """What one worker has to do with one copy."""

    step: str = IDLE
    token: int = 0
    late: bool = False
    """The lease may have ended: renew before publishing."""
    revoked: bool = False
    """The partition is gone: publish and commit nothing."""


EMPTY = Seat()


class State(NamedTuple):
    """Everything there is. Seat `2 * c + w` is that of worker `w` at copy `c`."""

    record: Record | None
    copies: tuple[Copy, ...]
    seats: tuple[Seat, ...]
    air: tuple[tuple[int, int], ...]
    """Attempt and seat of each copy that was sent and not appended yet."""
    remembers: tuple[bool, bool]
    """Which of the processes succeeded with this key."""
    holder: int | None
    """The seat that was granted the key last: the truth that tokens are there to tell."""
    named: int | None
    """The worker whose name stands beside the record, or `GONE` once it died."""
    effects: int
    consumed: bool
    dead: bool
    left: Faults


GONE = 2
"""In place of a worker that died: it is not the one that came after it."""


class ClaimRule(Protocol):
    def __call__(
        self,
        record: Record | None,
        token: int,
        attempt: int,
        now: float,
        lease: float,
        retention: float,
        owner: str,
        gone: Sequence[str],
        /,
    ) -> tuple[Record | None, ClaimAnswer]: ...


class CompleteRule(Protocol):
    def __call__(
        self, record: Record | None, token: int, attempt: int, outcome: Outcome, now: float, retention: float, /
    ) -> tuple[Record | None, Ack]: ...


class ReleaseRule(Protocol):
    def __call__(
        self, record: Record | None, token: int, sent_back: int | None, now: float, retention: float, /
    ) -> tuple[Record | None, Ack]: ...


class RenewRule(Protocol):
    def __call__(
        self, record: Record | None, token: int, now: float, lease: float, retention: float, owner: str, /
    ) -> tuple[Record | None, Ack]: ...


@dataclass(frozen=True)
class Rules:
    """The protocol; a sabotage is one entry changed."""

    claim: ClaimRule = transitions.claim
    complete: CompleteRule = transitions.complete
    release: ReleaseRule = transitions.release
    renew: RenewRule = transitions.renew
    publishes: bool = True
    """Later means that a copy is published."""
    publishes_first: bool = True
    """The store hears of a send-back once the copy is acknowledged."""
    commits_last: bool = True
    """Only what is settled is committed."""
    remembers: bool = True
    """What succeeded here is completed at the next grant, and not run."""
    highest_leads: bool = True
    """Of the duplicates in a batch the highest attempt leads."""
    gives_back: bool = True
    """What does not lead gives back the claim that it may hold, before the key is claimed for what leads."""
    suspends_plainly: bool = True
    """What failed in place is released for the attempt that it has had."""
    proves: bool = True
    """Only who died counts as gone."""


class Move(NamedTuple):
    """One step of the world."""

    what: str
    after: State
    broke: str | None = None
    fault: bool = False
    """Nobody can count on it to get on."""


@dataclass(frozen=True)
class Model:
    """The rules, how often what may go wrong, and where the copies are to start with."""

    faults: Faults
    rules: Rules = field(default_factory=Rules)
    owners: tuple[int, ...] = (0, 1)
    """Of the originals: one record each, all with the same key."""
    retry_owner: int = 1
    """Of the copies that are published."""
    names: tuple[bool, bool] = (False, False)
    """Which of the workers name themselves, and look whether others died."""
    in_place: bool = False
    """What fails runs again in place, or is a dead letter: no copy comes back."""

    def start(self) -> State:
        copies = tuple(Copy(1, owner) for owner in self.owners)
        return State(None, copies, (EMPTY, EMPTY) * len(copies), (), (False, False), None, None, 0, False, False, self.faults)

    def moves(self, state: State) -> Iterator[Move]:
        """Everything that can happen next."""
        for number, seat in enumerate(state.seats):
            if seat.step != IDLE or _claimable(state, number):
                yield from self._work(state, number)
        for worker in (0, 1):
            yield from self._claim_together(state, worker)
        yield from self._arrive(state)
        yield from self._expire(state)
        yield from self._go_wrong(state)

    def _work(self, state: State, seat: int) -> Iterator[Move]:
        """What the worker of a seat does next by itself."""
        step, _, late, revoked = state.seats[seat]
        copy = state.copies[seat // 2]
        owned = copy.owner == seat % 2
        if _claimable(state, seat) or step == ASKING:
            yield from self._claim(state, seat)
        elif step == RUNNING:
            yield from self._finish(state, seat)
        elif step == SUCCEEDED:
            yield from self._complete(state, seat, Outcome.OK)
        elif (step == FAILED and revoked) or step == SUSPENDED:
            sent_back = copy.attempt + 1 if step == SUSPENDED and not self.rules.suspends_plainly else None
            yield from self._release(state, seat, sent_back, EMPTY if revoked else Seat(HELD))
        elif step == FAILED and not late:
            yield from self._publish(state, seat)
        elif step == PUBLISHED:
            yield from self._settle_copy(state, seat)
        if late and step in (RUNNING, FAILED):
            yield from self._renew(state, seat)
        if owned and not copy.committed and (step == SETTLED or (step in HOLDING and not self.rules.commits_last)):
            yield self._commit(state, seat)
        if (not owned or copy.committed) and step != IDLE and not revoked:
            yield from self._revoke(state, seat)

    def _claim(self, state: State, seat: int, followers: tuple[int, ...] = (), stale: tuple[int, ...] = ()) -> Iterator[Move]:
        """Ask the store, alone or for the duplicates in the batch too."""
        token = state.seats[seat].token if state.seats[seat].step == ASKING else _new_token(state, seat)
        before, attempt, owner = self._owned(state), state.copies[seat // 2].attempt, self._name(seat)
        for other in (*stale, *followers):
            state = _put(state, other, Seat(SETTLED) if other in stale else Seat(FOLLOWING, seat))
        record, answer = self.rules.claim(before, token, attempt, NOW, LEASE, RETENTION, owner, ())
        if isinstance(answer, Busy):
            yield Move(f"{_who(seat)} finds it busy", _put(state, seat, Seat(HELD)))
            # Asked again, now that the holder's death is proved, by one who can tell.
            gone = [who for who in (str(GONE), *([] if self.rules.proves else [str(1 - seat % 2)])) if owner]
            record, answer = self.rules.claim(before, token, attempt, NOW, LEASE, RETENTION, owner, gone)
        if isinstance(answer, Acquired):
            yield from self._granted(state, seat, token, record)
        elif not isinstance(answer, Busy):
            yield Move(f"{_who(seat)} hears {answer}", _put(state, seat, Seat(SETTLED)))

    def _name(self, seat: int) -> str:
        return str(seat % 2) if self.names[seat % 2] else ""

    def _owned(self, state: State) -> Record | None:
        """The record, and who is believed to hold it."""
        if state.record is None or state.named is None:
            return state.record
        return state.record.held_by(str(state.named))

    def _written(self, state: State, record: Record | None) -> State:
        """The record as a worker writes it, and the name beside it."""
        return state._replace(record=_plain(record), named=int(record.owner) if record and record.owner else None)

    def _granted(self, state: State, seat: int, token: int, record: Record | None) -> Iterator[Move]:
        worker = seat % 2
        before, granted = state.record, self._written(state, record)._replace(holder=seat)
        broke = FENCING if before and record and before.token != token and record.epoch <= before.epoch and not before.outcome else None
        if state.left.lost_replies:
            left = state.left.less("lost_replies")
            yield Move(
                f"{_who(seat)} is granted it and does not hear", _put(granted, seat, Seat(ASKING, token))._replace(left=left), broke, True
            )
        if state.remembers[worker] and self.rules.remembers:
            yield Move(f"{_who(seat)} is granted what succeeded here", _put(granted, seat, Seat(SUCCEEDED, token)), broke)
            return
        running = 1 + sum(other.step == RUNNING for other in state.seats)
        if state.remembers[worker]:
            broke = SECOND_RUN
        elif state.consumed:
            broke = RUN_AFTER_DONE
        elif running > 1 + self._used(state, "stalls", "evictions"):
            broke = OVERLAP
        yield Move(f"{_who(seat)} is granted it and runs", _put(granted, seat, Seat(RUNNING, token)), broke)

    def _claim_together(self, state: State, worker: int) -> Iterator[Move]:
        """Claim every copy that this worker has in one batch: one leads, equal attempts follow, lower ones are stale."""
        seats = range(worker, len(state.seats), 2)
        batch = [seat for seat in seats if _claimable(state, seat) or state.seats[seat].step == ASKING]
        if len(batch) < 2:
            return
        attempts = {seat: state.copies[seat // 2].attempt for seat in batch}
        highest = max(attempts.values()) if self.rules.highest_leads else attempts[batch[0]]
        leader = next(seat for seat in batch if attempts[seat] == highest)
        others = [seat for seat in batch if seat != leader]
        stale = tuple(seat for seat in others if attempts[seat] < highest)
        unheard = next((seat for seat in others if state.seats[seat].step == ASKING), None)
        if unheard is not None:
            yield from self._let_go(state, unheard, unheard in stale)
        else:
            yield from self._claim(state, leader, tuple(seat for seat in others if seat not in stale), stale)

    def _let_go(self, state: State, seat: int, stale: bool) -> Iterator[Move]:
        """One that does not lead, and whose claim may have been granted unheard: the claim is given back before anything is claimed."""
        if self.rules.gives_back or not stale:
            yield from self._release(state, seat, None, Seat(SETTLED if stale else HELD))
        else:
            yield Move(f"{_who(seat)} is stale and keeps its claim", _put(state, seat, state.seats[seat]._replace(step=SUCCEEDED)))

    def _finish(self, state: State, seat: int) -> Iterator[Move]:
        """The handler returns or raises."""
        worker, now = seat % 2, state.seats[seat]
        effects = state.effects + 1
        remembers = (True, state.remembers[1]) if worker == 0 else (state.remembers[0], True)
        broke = EFFECTS if effects > 1 + self._used(state, "crashes", "stalls", "evictions") else None
        done = _put(state, seat, now._replace(step=SUCCEEDED))._replace(effects=effects, remembers=remembers)
        yield Move(f"{_who(seat)} succeeds", done, broke)
        if state.left.failures:
            failed = state._replace(left=state.left.less("failures"))
            if self.in_place:
                yield Move(f"{_who(seat)} fails in place", _put(failed, seat, now._replace(step=SUSPENDED, late=False)), fault=True)
            if now.revoked:
                yield Move(f"{_who(seat)} fails after the cut-off", _put(failed, seat, now._replace(step=FAILED)), fault=True)
            else:
                yield Move(f"{_who(seat)} fails", _put(failed, seat, now._replace(step=FAILED)), fault=True)

    def _publish(self, state: State, seat: int) -> Iterator[Move]:
        """Send the copy, or the dead letter after the last attempt."""
        attempt = state.copies[seat // 2].attempt
        copy = DEAD if attempt >= LIMIT or self.in_place else attempt + 1
        publishing = state.seats[seat]._replace(step=PUBLISHING)
        sent = state._replace(air=tuple(sorted((*state.air, (copy, seat)))))
        if not self.rules.publishes:
            yield from self._settle_copy(state, seat)
        elif not self.rules.publishes_first and copy != DEAD:
            yield from self._release(sent, seat, copy, publishing)
        else:
            yield Move(f"{_who(seat)} publishes attempt {copy}", _put(sent, seat, publishing))

    def _settle_copy(self, state: State, seat: int) -> Iterator[Move]:
        """Tell the store that the copy or the dead letter stands; whatever it answers, the message is settled."""
        attempt = state.copies[seat // 2].attempt
        if attempt >= LIMIT or self.in_place:
            yield from self._complete(state, seat, Outcome.DEAD)
        else:
            yield from self._release(state, seat, attempt + 1, EMPTY if state.seats[seat].revoked else Seat(SETTLED))

    def _complete(self, state: State, seat: int, outcome: Outcome) -> Iterator[Move]:
        now, before = state.seats[seat], state.record
        record, ack = self.rules.complete(before, now.token, state.copies[seat // 2].attempt, outcome, NOW, RETENTION)
        changed = record is not before
        marked = self._written(state, record) if changed else state
        marked = marked._replace(consumed=state.consumed or ack in (Ack.OK, Ack.RESTORED))
        was_dead = before is not None and before.outcome is Outcome.DEAD  # which a success may change, whoever had it
        broke = STALE_OWNER if changed and before is not None and state.holder != seat and not was_dead else None
        if outcome is Outcome.DEAD and changed and self._used(state, "replays"):
            broke = DEATH  # the replay has succeeded: this death is late
        if state.left.lost_replies and changed:
            yield Move(f"{_who(seat)} completes it and does not hear", marked._replace(left=state.left.less("lost_replies")), broke, True)
        settled = ack is not Ack.LOST or outcome is Outcome.DEAD
        after = EMPTY if now.revoked else Seat(SETTLED if settled else HELD)
        yield Move(f"{_who(seat)} completes it: {ack.value}", _put(marked, seat, after), broke)

    def _release(self, state: State, seat: int, sent_back: int | None, after: Seat) -> Iterator[Move]:
        """Give the key back. A failed release holds nothing, so its answer may as well be lost."""
        before = state.record
        record, ack = self.rules.release(before, state.seats[seat].token, sent_back, NOW, RETENTION)
        broke = None
        if record is not before:
            broke = STALE_OWNER if state.holder != seat else None
            state = self._written(state, record)._replace(holder=None)
        yield Move(f"{_who(seat)} releases it for attempt {sent_back}: {ack.value}", _put(state, seat, after), broke)

    def _renew(self, state: State, seat: int) -> Iterator[Move]:
        record, ack = self.rules.renew(state.record, state.seats[seat].token, NOW, LEASE, RETENTION, self._name(seat))
        state = self._written(state, record) if record is not state.record else state
        after = state.seats[seat]._replace(late=False) if ack is Ack.OK else EMPTY if state.seats[seat].revoked else Seat(HELD)
        yield Move(f"{_who(seat)} renews it: {ack.value}", _put(state, seat, after))

    def _commit(self, state: State, seat: int) -> Move:
        number = seat // 2
        copies = _changed(state.copies, number, state.copies[number]._replace(committed=True))
        parked = any(not copy.committed for copy in copies)
        after = EMPTY if state.seats[seat].step == SETTLED else state.seats[seat]
        committed = _put(state._replace(copies=copies), seat, after)
        return Move(f"{_who(seat)} commits", committed, None if state.effects or state.dead or parked else LOSS)

    def _revoke(self, state: State, seat: int) -> Iterator[Move]:
        """The worker learns that its partition is gone."""
        now = state.seats[seat]
        if now.step in (HELD, SETTLED, FOLLOWING):
            yield Move(f"{_who(seat)} lets go of its partition", _put(state, seat, EMPTY))
        elif now.step in (SUCCEEDED, PUBLISHED):
            yield Move(f"{_who(seat)} passed the cut-off", _put(state, seat, now._replace(revoked=True)))
        else:
            yield from self._release(state, seat, None, EMPTY)
        if now.step == RUNNING:
            yield Move(f"{_who(seat)} runs on after the cut-off", _put(state, seat, now._replace(revoked=True)))

    def _arrive(self, state: State) -> Iterator[Move]:
        """What was sent is appended, or never was if its sender is gone."""
        for number, (attempt, sender) in enumerate(state.air):
            rest = state._replace(air=state.air[:number] + state.air[number + 1 :])
            waiting = state.seats[sender].step == PUBLISHING
            if not waiting:
                yield Move(f"attempt {attempt} is lost in the air", rest)
            appended = rest._replace(dead=True) if attempt == DEAD else _appended(rest, Copy(attempt, self.retry_owner))
            if waiting:
                step = PUBLISHED if self.rules.publishes_first or attempt == DEAD else SETTLED
                appended = _put(appended, sender, state.seats[sender]._replace(step=step, late=False))
            yield Move(f"attempt {attempt} is appended", appended)

    def _expire(self, state: State) -> Iterator[Move]:
        """The lease ends: by itself once nobody holds the claim any more, and as a fault under its holder."""
        record = state.record
        if record is None or record.outcome or not record.token or record.leased_until <= NOW:
            return
        expired = state._replace(record=record._replace(leased_until=NOW))
        holder = next((i for i, seat in enumerate(state.seats) if seat.token == record.token and seat.step in HOLDING), None)
        if holder is None:
            yield Move("the lease of nobody ends", expired)
        elif state.left.stalls:
            seat = state.seats[holder]
            late = _put(expired, holder, seat._replace(late=seat.step in (RUNNING, FAILED)))
            yield Move(f"{_who(holder)} stalls beyond its lease", late._replace(left=state.left.less("stalls")), fault=True)

    def _go_wrong(self, state: State) -> Iterator[Move]:
        left = state.left
        if left.crashes:
            for worker in (0, 1):
                seats = tuple(EMPTY if number % 2 == worker else seat for number, seat in enumerate(state.seats))
                remembers = (False, state.remembers[1]) if worker == 0 else (state.remembers[0], False)
                named = GONE if state.named == worker else state.named
                crashed = state._replace(seats=seats, remembers=remembers, named=named, left=left.less("crashes"))
                yield Move(f"worker {worker} crashes", crashed, fault=True)
        for number, copy in enumerate(state.copies):
            if left.moves and not copy.committed:
                copies = _changed(state.copies, number, copy._replace(owner=1 - copy.owner))
                yield Move(f"copy {number} moves", state._replace(copies=copies, left=left.less("moves")), fault=True)
            if left.duplicates and copy.attempt > 1:
                again = _appended(state._replace(left=left.less("duplicates")), Copy(copy.attempt, self.retry_owner))
                yield Move(f"the relay repeats copy {number}", again, fault=True)
        if left.replays and state.dead:
            record, ack = self.rules.complete(state.record, WHOEVER, 1, Outcome.OK, NOW, RETENTION)
            consumed = state.consumed or ack in (Ack.OK, Ack.RESTORED)
            replayed = self._written(state, record)._replace(consumed=consumed, left=left.less("replays"))
            broke = DEATH if record and record.outcome is not Outcome.OK else None
            yield Move(f"the replay of the dead letter succeeds: {ack.value}", replayed, broke, fault=True)
        if left.evictions and state.record:
            evicted = state._replace(record=None, holder=None, named=None, consumed=False, left=left.less("evictions"))
            yield Move("the store forgets the key", evicted, fault=True)

    def _used(self, state: State, *names: str) -> int:
        return sum(getattr(self.faults, name) - getattr(state.left, name) for name in names)


@dataclass(frozen=True)
class Verdict:
    """What an exploration found."""

    states: int
    broken: dict[str, list[str]]
    """The shortest way to break each invariant that was broken."""


def explore(model: Model, until: str | None = None) -> Verdict:
    """Visit every state, or as many as it takes to break the invariant `until`."""
    start = model.start()
    found = {start: 0}
    states, came_from = [start], [(0, "")]
    broken: dict[str, list[str]] = {}
    onward: list[list[int]] = []
    for number, state in enumerate(states):  # which grows meanwhile
        nexts = []
        for what, after, broke, fault in model.moves(state):
            if broke is not None:
                if broke not in broken:
                    broken[broke] = [*_trace(came_from, number), what]
                continue
            if (known := found.get(after)) is None:
                known = found[after] = len(states)
                states.append(after)
                came_from.append((number, what))
            if not fault:
                nexts.append(known)
        onward.append(nexts)
        if until in broken:
            return Verdict(len(states), broken)
    stuck = _first_without_end(onward, [number for number, state in enumerate(states) if _is_over(state)])
    if stuck is not None and not broken:  # a broken way is not followed, so that what leads only there looks stuck
        broken[STUCK] = _trace(came_from, stuck)
    return Verdict(len(states), broken)


def _first_without_end(onward: list[list[int]], ends: list[int]) -> int | None:
    """The first state from which no end can be reached without a fault."""
    back: list[list[int]] = [[] for _ in onward]
    for number, nexts in enumerate(onward):
        for after in nexts:
            back[after].append(number)
    reaches = bytearray(len(onward))
    waiting = list(ends)
    while waiting:
        number = waiting.pop()
        if not reaches[number]:
            reaches[number] = 1
            waiting += back[number]
    stuck = reaches.find(0)
    return None if stuck < 0 else stuck


def _trace(came_from: list[tuple[int, str]], number: int) -> list[str]:
    steps = []
    while number:
        number, what = came_from[number]
        steps.append(what)
    return steps[::-1]


def _is_over(state: State) -> bool:
    return all(copy.committed for copy in state.copies) and not state.air and all(seat == EMPTY for seat in state.seats)


def _claimable(state: State, seat: int) -> bool:
    copy = state.copies[seat // 2]
    step = state.seats[seat].step
    return step == HELD or (step == IDLE and copy.owner == seat % 2 and not copy.committed)


def _new_token(state: State, seat: int) -> int:
    """One that the record does not carry; nothing else remembers an old one."""
    known = state.record and state.record.token
    return next(token for token in range(2 * seat + 1, 2 * seat + 3) if token != known)


def _put(state: State, seat: int, after: Seat) -> State:
    """The seat does `after` next, and those that follow it go where it goes."""
    seats = _changed(state.seats, seat, after)
    if after.step not in HOLDING:
        for number, other in enumerate(seats):
            if other.step == FOLLOWING and other.token == seat:
                seats = _changed(seats, number, Seat(SETTLED if after.step == SETTLED else HELD))
    return state._replace(seats=seats)


def _appended(state: State, copy: Copy) -> State:
    return state._replace(copies=(*state.copies, copy), seats=(*state.seats, EMPTY, EMPTY))


def _changed(items: tuple[T, ...], number: int, item: T) -> tuple[T, ...]:
    return (*items[:number], item, *items[number + 1 :])


def _plain(record: Record | None) -> Record | None:
    """Without what only counts: it would keep states apart that are the same to everybody."""
    return record and Record(record.token, 1, record.next_attempt, 0, False, record.outcome, record.leased_until, RETENTION)


def _who(seat: int) -> str:
    return f"worker {seat % 2} at copy {seat // 2}"
