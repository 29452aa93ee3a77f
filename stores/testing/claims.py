"""`StoreConformance`: the test suite that every claim store passes, for the stores here and for yours.

A store of your own is tested by these lines (with pytest and hypothesis installed):

    from ackwise.stores.testing import Features, StoreConformance

    class TestEtcdStore(StoreConformance):
        features = Features(shared=True, persistent=True, injected_clock=False, lease=0.5, retention=1.5)

        def make(self, place, clock):
            return EtcdStore("http://localhost:2379")

Put `pytest.register_assert_rewrite("ackwise.stores.testing")` into your `conftest.py` to see both sides of what fails.
Keys are random, so runs may share a server. The rules behind the tests are in `docs/store-protocol.md`.
"""

from __future__ import annotations

import abc
import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ackwise.middleware.store import (
    Ack,
    Acquired,
    AlreadyDone,
    Busy,
    Claim,
    ClaimAnswer,
    ClaimKey,
    ClaimStore,
    Complete,
    Exchange,
    ExchangeResult,
    Outcome,
    Release,
    Renew,
    Stale,
)
from ackwise.stores.protocol.transitions import Place, Record, decide

__all__ = ["Clock", "Features", "Scene", "StoreConformance"]

T = TypeVar("T")

MINE, YOURS, THIRD = 1, 2**63 - 1, 3
"""Tokens; the second is the largest that a store has to take."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a store can do, so that the suite asks for no more than that, and for all of that."""

    injected_clock: bool = True
    """`make` gives its `clock` to the store. If not, the suite waits in real time."""
    persistent: bool = False
    """What one store wrote is there for the next one opened on the same place."""
    shared: bool = False
    """Several stores can be open on the same place at once."""
    owners: bool = False
    """Keeps who holds a claim, and lets those that are gone be taken over. A store may do without: then everybody waits for leases."""
    lease: float = 30.0
    """Seconds; a store on its own clock wants short ones, but some hundred times its round trip."""
    retention: float = 86400.0
    """Seconds, a multiple of the lease."""
    tolerance: float = 0.01
    """Seconds by which a wait may be answered differently than by the injected clock."""


class Clock:
    """A clock that the suite moves; gives seconds."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Scene:
    """One test's stores, keys and clock; drives the stores without `await`, so that a test reads as a list of facts."""

    def __init__(self, make: Callable[[Path, Clock], ClaimStore], features: Features, place: Path) -> None:
        self.features = features
        self.lease, self.retention = features.lease, features.retention
        self.clock = Clock()
        self._make, self._place = make, place
        self._runner = asyncio.Runner()
        self._stores: list[ClaimStore] = []
        self.store = self.open_store()

    def open_store(self) -> ClaimStore:
        """One more store on the same place, opened."""
        store = self._make(self._place, self.clock)
        self.run(store.open())
        self._stores.append(store)
        return store

    def reopen(self) -> None:
        """Close the store and open another one in its place, as a restarted worker does."""
        self.run(self.store.close())
        self.store = self.open_store()

    def end(self) -> None:
        """Close every store."""
        for store in self._stores:
            self.run(store.close())
        self._runner.close()

    def run(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop that the stores live on."""
        return self._runner.run(waiting)

    def wait(self, seconds: float) -> None:
        """Let the store's clock move on by at least `seconds`."""
        if self.features.injected_clock:
            self.clock.now += seconds
        else:
            self.run(asyncio.sleep(seconds + 0.05))

    def key(self, attempt: int = 1, day: int | None = None) -> ClaimKey:
        """A key that nobody used before."""
        return ClaimKey(os.urandom(16), day, attempt)

    def original_and_copy(self) -> tuple[ClaimKey, ClaimKey]:
        """One key as its first and as its second attempt ask for it."""
        key = self.key(attempt=1)
        return key, key._replace(attempt=2)

    def keys(self, count: int) -> list[ClaimKey]:
        """Keys that nobody used before."""
        return [self.key() for _ in range(count)]

    def exchange(
        self,
        claims: Sequence[Claim] = (),
        completes: Sequence[Complete] = (),
        releases: Sequence[Release] = (),
        renews: Sequence[Renew] = (),
    ) -> ExchangeResult:
        """One round trip of the store, with the lease and the retention of the features."""
        return self.run(self.store.exchange(Exchange(claims, completes, releases, renews, self.lease, self.retention)))

    def patiently(self, claims: Sequence[Claim] = (), completes: Sequence[Complete] = ()) -> ExchangeResult:
        """The same with a lease that ends long after the slowest machine is through: for many keys at once."""
        return self.run(self.store.exchange(Exchange(claims, completes, lease=600.0, retention=self.retention)))

    def claim(self, key: ClaimKey, token: int = MINE) -> ClaimAnswer:
        """Claim one key."""
        return self.exchange(claims=[Claim(key, token)]).claims[0]

    def claim_as(self, owner: str, key: ClaimKey, token: int, *, gone: Sequence[str] = ()) -> ClaimAnswer:
        """Claim one key as a process that has a name."""
        asked = Exchange([Claim(key, token)], lease=self.lease, retention=self.retention, owner=owner, gone=gone)
        return self.run(self.store.exchange(asked)).claims[0]

    def renew_as(self, owner: str, key: ClaimKey, token: int) -> Ack:
        """Renew one key as a process that has a name, or none any more."""
        asked = Exchange(renews=[Renew(key, token)], lease=self.lease, retention=self.retention, owner=owner)
        return self.run(self.store.exchange(asked)).renews[0]

    def complete(self, key: ClaimKey, token: int = MINE, outcome: Outcome = Outcome.OK) -> Ack:
        """Complete one key."""
        return self.exchange(completes=[Complete(key, token, outcome)]).completes[0]

    def release(self, key: ClaimKey, token: int = MINE, sent_back: int | None = None) -> Ack:
        """Release one key."""
        return self.exchange(releases=[Release(key, token, sent_back)]).releases[0]

    def renew(self, key: ClaimKey, token: int = MINE) -> Ack:
        """Renew one key."""
        return self.exchange(renews=[Renew(key, token)]).renews[0]

    def is_busy(self, key: ClaimKey, token: int = THIRD) -> bool:
        """Whether somebody holds the key, as a stranger finds it."""
        return isinstance(self.claim(key, token), Busy)


@dataclass(frozen=True, slots=True)
class _Request:
    """One thing that a random exchange asks for one of three keys."""

    key: int
    kind: type[Claim] | type[Complete] | type[Release] | type[Renew]
    token: int
    attempt: int
    sent_back: int | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _Step:
    """A random exchange and how long before it nothing happened, in leases; a retention is as long as three of them."""

    leases: float
    requests: list[_Request]
    owner: str
    gone: tuple[str, ...]

    def exchange(self, keys: Sequence[ClaimKey], lease: float, *, owners: bool) -> Exchange:
        claims: list[Claim] = []
        completes: list[Complete] = []
        releases: list[Release] = []
        renews: list[Renew] = []
        for request in self.requests:
            key = keys[request.key]._replace(attempt=request.attempt)
            if request.kind is Claim:
                claims.append(Claim(key, request.token))
            elif request.kind is Complete:
                completes.append(Complete(key, request.token, request.outcome))
            elif request.kind is Release:
                releases.append(Release(key, request.token, request.sent_back))
            else:
                renews.append(Renew(key, request.token))
        named = (self.owner, self.gone) if owners else ("", ())
        return Exchange(claims, completes, releases, renews, lease, 3 * lease, *named)


#: Owners, as a worker names itself.
_ONE, _OTHER = "8d5f3c1a-0123456789abcdef", "8d5f3c1a-fedcba9876543210"

_requests = st.builds(
    _Request,
    key=st.integers(0, 2),
    kind=st.sampled_from([Claim, Complete, Release, Renew]),
    token=st.integers(1, 3),
    attempt=st.integers(1, 3),
    sent_back=st.sampled_from([None, 2, 3]),
    outcome=st.sampled_from(Outcome),
)
_steps = st.builds(
    _Step,
    leases=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]),
    requests=st.lists(_requests, max_size=3, unique_by=lambda request: request.key),
    owner=st.sampled_from(["", _ONE, _OTHER]),
    gone=st.sampled_from([(), (_ONE,), (_OTHER,), (_ONE, _OTHER)]),
)


class StoreConformance(abc.ABC):
    """Derive a class whose name starts with `Test`, say what `make` makes and which `features` it has."""

    features = Features()

    @abc.abstractmethod
    def make(self, place: Path, clock: Callable[[], float]) -> ClaimStore:
        """A store that is not open yet. `place` is a folder of this test alone; each call names the same state in it."""

    @pytest.fixture
    def scene(self, tmp_path: Path) -> Iterator[Scene]:
        scene = Scene(self.make, self.features, tmp_path)
        yield scene
        scene.end()

    def test_a_fresh_claim_is_acquired_with_epoch_1(self, scene: Scene) -> None:
        assert scene.claim(scene.key()) == Acquired(1, lost=0, took_unreleased=False)

    def test_a_repeated_claim_is_answered_as_the_first_time(self, scene: Scene) -> None:
        key = scene.key()
        assert scene.claim(key) == scene.claim(key) == Acquired(1)

    def test_a_repeated_claim_starts_the_lease_again(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease * 0.6)
        scene.claim(key)
        scene.wait(scene.lease * 0.6)
        assert scene.is_busy(key)

    def test_a_repeated_take_over_is_answered_as_the_first_time(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.claim(key, YOURS) == scene.claim(key, YOURS) == Acquired(2, lost=1, took_unreleased=True)

    def test_an_expired_claim_is_still_its_owners_if_nobody_took_over(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.claim(key) == Acquired(1)
        assert scene.is_busy(key)

    def test_a_held_key_is_busy_for_at_most_the_rest_of_the_lease(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        answer = scene.claim(key, YOURS)
        assert isinstance(answer, Busy)
        assert 0 < answer.retry_after <= scene.lease

    def test_a_busy_answer_changes_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.claim(key, YOURS)
        assert scene.complete(key) is Ack.OK

    def test_an_expired_claim_is_taken_over_with_the_next_epoch(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.claim(key, YOURS) == Acquired(2, lost=1, took_unreleased=True)

    def test_an_expired_claim_keeps_its_epoch_long_after_the_lease(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease + scene.retention / 2)
        assert scene.claim(key, YOURS) == Acquired(2, lost=1, took_unreleased=True)

    def test_an_abandoned_claim_is_forgotten_a_retention_after_its_lease(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease + scene.retention)
        assert scene.claim(key, YOURS) == Acquired(1)

    def test_a_released_claim_is_taken_at_once_with_the_next_epoch(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        assert scene.release(key) is Ack.OK
        assert scene.claim(key, YOURS) == Acquired(2, lost=0, took_unreleased=False)

    def test_the_attempt_is_no_part_of_a_keys_identity(self, scene: Scene) -> None:
        key = scene.key(attempt=1)
        scene.claim(key)
        assert scene.is_busy(key._replace(attempt=2))

    def test_the_day_is_a_part_of_a_keys_identity(self, scene: Scene) -> None:
        key = scene.key()
        days = [key._replace(day=day) for day in (None, -1, 0, 19_000, 19_001)]
        assert [scene.claim(day) for day in days] == [Acquired(1)] * len(days)
        for day in days:
            assert scene.complete(day) is Ack.OK
            assert scene.claim(day, YOURS) == AlreadyDone(Outcome.OK)

    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_a_completed_key_is_already_done_and_says_how(self, scene: Scene, outcome: Outcome) -> None:
        key = scene.key()
        scene.claim(key)
        assert scene.complete(key, MINE, outcome) is Ack.OK
        assert scene.claim(key, YOURS) == AlreadyDone(outcome)
        assert scene.claim(key, MINE) == AlreadyDone(outcome)

    def test_a_completed_key_is_remembered_beyond_the_lease(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.complete(key)
        scene.wait(scene.retention - scene.lease)
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.OK)

    def test_a_completed_key_is_fresh_after_the_retention(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.complete(key)
        scene.wait(scene.retention)
        assert scene.claim(key, YOURS) == Acquired(1)

    def test_a_claim_of_a_later_attempt_leaves_a_completed_key_done(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.complete(key)
        assert scene.claim(key._replace(attempt=2), YOURS) == AlreadyDone(Outcome.OK)

    def test_complete_can_be_repeated(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        assert [scene.complete(key), scene.complete(key)] == [Ack.OK, Ack.OK]

    def test_an_expired_claim_can_be_completed_if_nobody_took_over(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.complete(key) is Ack.OK
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.OK)

    def test_a_stale_owner_completes_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        assert scene.complete(key, MINE) is Ack.LOST
        assert scene.is_busy(key)
        assert scene.complete(key, YOURS) is Ack.OK

    def test_a_released_claim_can_not_be_completed(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.release(key)
        assert scene.complete(key) is Ack.LOST
        assert scene.claim(key, YOURS) == Acquired(2)

    def test_completing_what_somebody_else_completed_says_so(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        scene.complete(key, YOURS)
        assert scene.complete(key, MINE, Outcome.DEAD) is Ack.LOST_DONE
        assert scene.claim(key, THIRD) == AlreadyDone(Outcome.OK)

    def test_completing_an_unknown_key_restores_it(self, scene: Scene) -> None:
        key = scene.key()
        assert scene.complete(key, MINE, Outcome.SKIPPED) is Ack.RESTORED
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.SKIPPED)
        assert scene.complete(key, MINE, Outcome.SKIPPED) is Ack.OK
        scene.wait(scene.retention - scene.lease)
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.SKIPPED)

    def test_a_stale_owner_releases_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        assert scene.release(key, MINE, sent_back=2) is Ack.LOST
        assert scene.is_busy(key)
        assert scene.renew(key, YOURS) is Ack.OK

    def test_a_release_repeated_changes_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.release(key, sent_back=2)
        assert scene.release(key, sent_back=2) is Ack.LOST
        assert scene.claim(key._replace(attempt=2), YOURS) == Acquired(2)
        assert scene.release(key, sent_back=2) is Ack.LOST
        assert scene.is_busy(key._replace(attempt=2))

    def test_releasing_a_completed_key_changes_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.complete(key)
        assert scene.release(key) is Ack.LOST
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.OK)

    def test_releasing_or_renewing_an_unknown_key_changes_nothing(self, scene: Scene) -> None:
        key = scene.key()
        assert scene.release(key, sent_back=2) is Ack.LOST
        assert scene.renew(key) is Ack.LOST
        assert scene.claim(key) == Acquired(1)

    def test_renew_starts_the_lease_again(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        for _ in range(2):
            scene.wait(scene.lease * 0.6)
            assert scene.renew(key) is Ack.OK
        assert scene.is_busy(key)

    def test_renew_revives_an_expired_claim_if_nobody_took_over(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.renew(key) is Ack.OK
        assert scene.is_busy(key)

    def test_renew_tells_a_stale_owner_that_it_lost(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        assert scene.renew(key, MINE) is Ack.LOST
        assert scene.renew(key, YOURS) is Ack.OK

    def test_a_released_or_completed_claim_can_not_be_renewed(self, scene: Scene) -> None:
        released, completed = scene.keys(2)
        scene.claim(released)
        scene.release(released)
        scene.claim(completed)
        scene.complete(completed)
        assert [scene.renew(released), scene.renew(completed)] == [Ack.LOST, Ack.LOST]
        assert scene.claim(released, YOURS) == Acquired(2)

    def test_a_renewed_claim_answers_a_repeated_claim_as_the_first_time(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        taken = scene.claim(key, YOURS)
        scene.renew(key, YOURS)
        assert scene.claim(key, YOURS) == taken

    def test_a_sent_back_key_is_stale_for_its_original(self, scene: Scene) -> None:
        key = scene.key(attempt=1)
        scene.claim(key)
        assert scene.release(key, sent_back=2) is Ack.OK
        assert scene.claim(key, YOURS) == Stale()

    def test_a_sent_back_key_is_acquired_by_its_copy(self, scene: Scene) -> None:
        key = scene.key(attempt=1)
        scene.claim(key)
        scene.release(key, sent_back=2)
        assert scene.claim(key._replace(attempt=2), YOURS) == Acquired(2, lost=0, took_unreleased=False)

    def test_stale_comes_before_busy(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(copy)
        assert scene.claim(key, YOURS) == Stale()

    def test_stale_comes_before_take_over(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(copy)
        scene.wait(scene.lease)
        assert scene.claim(key, YOURS) == Stale()

    def test_done_comes_before_stale(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(copy)
        scene.complete(copy)
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.OK)

    def test_a_stale_answer_changes_nothing(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        taken = scene.claim(copy)
        scene.claim(key, YOURS)
        assert scene.claim(copy) == taken
        assert scene.complete(copy) is Ack.OK

    def test_an_equal_attempt_is_not_stale(self, scene: Scene) -> None:
        key = scene.key(attempt=2)
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.claim(key, YOURS) == Acquired(2, lost=1, took_unreleased=True)

    def test_an_original_stays_stale_after_its_copy_was_claimed_and_released(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(key)
        scene.release(key, sent_back=2)
        scene.claim(copy, YOURS)
        scene.release(copy, YOURS)
        assert scene.claim(key, THIRD) == Stale()

    def test_an_original_stays_stale_after_the_worker_of_its_copy_was_killed(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(key)
        scene.release(key, sent_back=2)
        scene.claim(copy, YOURS)
        scene.wait(scene.lease)
        assert scene.claim(key, THIRD) == Stale()

    def test_a_copy_claimed_before_the_release_makes_the_original_stale_too(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.claim(copy, YOURS) == Acquired(2, lost=0, took_unreleased=True)
        assert scene.release(key, MINE, sent_back=2) is Ack.LOST
        assert scene.claim(key, THIRD) == Stale()

    def test_a_sent_back_key_is_remembered_for_the_retention_counted_from_the_release(self, scene: Scene) -> None:
        key = scene.key(attempt=1)
        scene.claim(key)
        scene.wait(scene.lease / 2)
        scene.release(key, sent_back=2)
        scene.wait(scene.retention - scene.lease / 2)
        assert scene.claim(key, YOURS) == Stale()
        scene.wait(scene.lease / 2)
        assert scene.claim(key, YOURS) == Acquired(1)

    def test_every_killed_worker_is_counted(self, scene: Scene) -> None:
        key = scene.key()
        answers = []
        for token in range(1, 5):
            answers.append(scene.claim(key, token))
            scene.wait(scene.lease)
        assert answers == [Acquired(1), Acquired(2, 1, True), Acquired(3, 2, True), Acquired(4, 3, True)]

    def test_a_plain_release_keeps_the_count_and_adds_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key, MINE)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        scene.release(key, YOURS)
        assert scene.claim(key, THIRD) == Acquired(3, lost=1, took_unreleased=False)

    def test_a_send_back_starts_the_count_anew(self, scene: Scene) -> None:
        key = scene.key(attempt=1)
        scene.claim(key, MINE)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        scene.release(key, YOURS, sent_back=2)
        assert scene.claim(key._replace(attempt=2), THIRD) == Acquired(3, lost=0, took_unreleased=False)

    def test_a_later_attempt_starts_the_count_anew(self, scene: Scene) -> None:
        key = scene.key(attempt=1)
        scene.claim(key, MINE)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        scene.wait(scene.lease)
        assert scene.claim(key._replace(attempt=3), THIRD) == Acquired(3, lost=0, took_unreleased=True)

    def test_an_empty_exchange_is_answered_empty(self, scene: Scene) -> None:
        assert scene.exchange() == ExchangeResult([], [], [], [])

    def test_the_answers_come_in_the_order_of_the_requests(self, scene: Scene) -> None:
        keys = scene.keys(500)
        fresh, held, done, stale = keys[0::4], keys[1::4], keys[2::4], keys[3::4]
        scene.patiently(claims=[Claim(key._replace(attempt=2), YOURS) for key in (*held, *done, *stale)])
        scene.patiently(completes=[Complete(key, YOURS, Outcome.DEAD) for key in done])
        mixed = [key._replace(attempt=2) if key in held else key for key in keys]
        answers = scene.patiently(claims=[Claim(key, MINE) for key in mixed]).claims
        assert answers[0::4] == [Acquired(1)] * len(fresh)
        assert {type(answer) for answer in answers[1::4]} == {Busy}
        assert answers[2::4] == [AlreadyDone(Outcome.DEAD)] * len(done)
        assert answers[3::4] == [Stale()] * len(stale)

    def test_all_four_requests_travel_together(self, scene: Scene) -> None:
        done, back, longer, next_one, stolen = scene.keys(5)
        scene.exchange(claims=[Claim(key, MINE) for key in (done, back, longer)] + [Claim(stolen, YOURS)])
        result = scene.exchange(
            claims=[Claim(next_one, THIRD)],
            completes=[Complete(stolen, MINE, Outcome.OK), Complete(done, MINE, Outcome.OK)],
            releases=[Release(stolen, MINE), Release(back, MINE, 2)],
            renews=[Renew(longer, MINE), Renew(stolen, MINE)],
        )
        assert result == ExchangeResult([Acquired(1)], [Ack.LOST, Ack.OK], [Ack.LOST, Ack.OK], [Ack.OK, Ack.LOST])
        assert scene.claim(done, THIRD) == AlreadyDone(Outcome.OK)
        assert scene.claim(back, THIRD) == Stale()

    def test_five_thousand_keys_are_no_different(self, scene: Scene) -> None:
        keys = scene.keys(5000)
        assert scene.patiently(claims=[Claim(key, MINE) for key in keys]).claims == [Acquired(1)] * 5000
        assert scene.patiently(completes=[Complete(key, MINE, Outcome.OK) for key in keys]).completes == [Ack.OK] * 5000

    def test_a_repeated_exchange_has_the_effect_of_one(self, scene: Scene) -> None:
        claimed, done, back, longer = scene.keys(4)
        scene.exchange(claims=[Claim(key, MINE) for key in (done, back, longer)])
        for _ in range(3):
            result = scene.exchange(
                claims=[Claim(claimed, MINE)],
                completes=[Complete(done, MINE, Outcome.OK)],
                releases=[Release(back, MINE, 2)],
                renews=[Renew(longer, MINE)],
            )
            assert (result.claims, result.completes, result.renews) == ([Acquired(1)], [Ack.OK], [Ack.OK])
        assert scene.claim(back._replace(attempt=2), MINE) == Acquired(2)

    def test_two_claims_of_one_key_in_one_exchange_are_never_both_granted(self, scene: Scene) -> None:
        key = scene.key()
        try:
            answers = scene.exchange(claims=[Claim(key, MINE), Claim(key, YOURS)]).claims
        except ValueError:
            return
        assert sum(isinstance(answer, Acquired) for answer in answers) <= 1

    def test_a_key_completed_and_claimed_in_one_exchange_is_not_granted(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        try:
            (answer,) = scene.exchange(claims=[Claim(key, YOURS)], completes=[Complete(key, MINE, Outcome.OK)]).claims
        except ValueError:
            return
        assert not isinstance(answer, Acquired)
        assert scene.claim(key, THIRD) == AlreadyDone(Outcome.OK)

    def test_each_of_500_keys_goes_to_exactly_one_of_two_workers(self, scene: Scene) -> None:
        keys = scene.keys(500)
        rival = scene.open_store() if scene.features.shared else scene.store

        async def claim_some(store: ClaimStore, token: int) -> dict[ClaimKey, ClaimAnswer]:
            order = random.Random(token).sample(keys, len(keys))
            answers: dict[ClaimKey, ClaimAnswer] = {}
            for start in range(0, len(order), 50):
                some = [Claim(key, token) for key in order[start : start + 50]]
                result = await store.exchange(Exchange(some, lease=600.0, retention=scene.retention))
                answers.update(zip(order[start : start + 50], result.claims, strict=True))
            return answers

        async def race() -> tuple[dict[ClaimKey, ClaimAnswer], dict[ClaimKey, ClaimAnswer]]:
            return await asyncio.gather(claim_some(scene.store, MINE), claim_some(rival, YOURS))

        mine, yours = scene.run(race())
        assert [isinstance(mine[key], Acquired) + isinstance(yours[key], Acquired) for key in keys] == [1] * 500
        assert [isinstance(mine[key], Busy) + isinstance(yours[key], Busy) for key in keys] == [1] * 500

    def test_a_cancelled_exchange_is_applied_as_a_whole_or_not_at_all(self, scene: Scene) -> None:
        async def claim_and_cancel(keys: list[ClaimKey], turns: int) -> None:
            exchange = asyncio.ensure_future(scene.store.exchange(Exchange([Claim(key, MINE) for key in keys])))
            for _ in range(turns):
                await asyncio.sleep(0)
            exchange.cancel()
            await asyncio.wait([exchange])

        for turns in range(4):
            keys = scene.keys(50)
            scene.run(claim_and_cancel(keys, turns))
            answers = scene.patiently(claims=[Claim(key, YOURS) for key in keys]).claims
            assert {type(answer) for answer in answers} in ({Acquired}, {Busy})

    def test_the_wall_clock_of_the_caller_does_not_matter(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        key = scene.key()
        scene.claim(key)
        real = time.time
        for shift in (3600.0, -3600.0):
            monkeypatch.setattr(time, "time", lambda shift=shift: real() + shift)
            answer = scene.claim(key, YOURS)
            assert isinstance(answer, Busy)
            assert answer.retry_after <= scene.lease

    def test_a_claim_of_an_owner_that_is_gone_is_taken_over_before_its_lease_ends(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim_as(_ONE, key, MINE)
        answer = scene.claim_as(_OTHER, key, YOURS)
        assert isinstance(answer, Busy)
        if not scene.features.owners:
            pytest.skip("the store keeps no owners")
        assert answer.owner == _ONE
        assert scene.claim_as(_OTHER, key, YOURS, gone=[_ONE]) == Acquired(2, lost=1, took_unreleased=True)
        assert (scene.complete(key, MINE), scene.renew(key, MINE)) == (Ack.LOST, Ack.LOST)
        busy = scene.claim_as(_ONE, key, THIRD, gone=[_ONE])
        assert isinstance(busy, Busy)
        assert busy.owner == _OTHER
        assert scene.complete(key, YOURS) is Ack.OK
        assert scene.claim_as(_ONE, key, THIRD, gone=[_OTHER]) == AlreadyDone(Outcome.OK)

    def test_only_the_owner_that_is_gone_loses_its_claims(self, scene: Scene) -> None:
        unnamed, renewed, released, back = scene.keys(4)
        scene.claim(unnamed)
        for key in (renewed, released, back):
            scene.claim_as(_ONE, key, MINE)
        scene.exchange(releases=[Release(released, MINE), Release(back, MINE, 2)])
        scene.renew_as(_ONE, renewed, MINE)
        for key in (unnamed, renewed):
            assert isinstance(scene.claim_as(_OTHER, key, YOURS, gone=[_OTHER, "", "9d5f3c1a-0123456789abcdef"]), Busy)
        assert isinstance(scene.claim_as(_OTHER, unnamed, YOURS, gone=[_ONE]), Busy)
        assert scene.claim_as(_OTHER, released, YOURS, gone=[_ONE]) == Acquired(2)
        assert scene.claim_as(_OTHER, back, YOURS, gone=[_ONE]) == Stale()
        if scene.features.owners:
            assert scene.claim_as(_OTHER, renewed, YOURS, gone=[_ONE]) == Acquired(2, lost=1, took_unreleased=True)

    def test_a_renewal_says_anew_who_holds_the_claim(self, scene: Scene) -> None:
        renamed, unnamed = scene.keys(2)
        for key, owner in ((renamed, _OTHER), (unnamed, "")):
            scene.claim_as(_ONE, key, MINE)
            assert scene.renew_as(owner, key, MINE) is Ack.OK
        for key, owner in ((renamed, _OTHER), (unnamed, "")):
            answer = scene.claim_as(_OTHER, key, YOURS, gone=[_ONE])
            assert isinstance(answer, Busy), "the one that is gone does not hold it any more"
            assert not scene.features.owners or answer.owner == owner
        assert scene.renew(unnamed) is Ack.OK
        if scene.features.owners:
            assert scene.claim_as(_ONE, renamed, YOURS, gone=[_OTHER]) == Acquired(2, lost=1, took_unreleased=True)

    def test_closing_twice_does_nothing(self, scene: Scene) -> None:
        scene.run(scene.store.close())
        scene.run(scene.store.close())

    def test_another_store_on_the_same_place_sees_every_record_at_once(self, scene: Scene) -> None:
        if not scene.features.shared:
            pytest.skip("only one store at a time can be open on a place")
        held, done = scene.keys(2)
        scene.exchange(claims=[Claim(held, MINE), Claim(done, MINE)])
        scene.complete(done)
        scene.store = scene.open_store()
        assert scene.is_busy(held)
        assert scene.claim(done, YOURS) == AlreadyDone(Outcome.OK)

    def test_a_restarted_worker_finds_every_record_again(self, scene: Scene) -> None:
        if not scene.features.persistent:
            pytest.skip("the records end with the store")
        held, done, back = scene.keys(3)
        scene.exchange(claims=[Claim(key, MINE) for key in (held, done, back)])
        scene.exchange(completes=[Complete(done, MINE, Outcome.DEAD)], releases=[Release(back, MINE, 2)])
        scene.reopen()
        assert scene.is_busy(held)
        assert scene.claim(done, YOURS) == AlreadyDone(Outcome.DEAD)
        assert scene.claim(back, YOURS) == Stale()
        scene.wait(scene.lease)
        scene.reopen()
        assert scene.claim(held, YOURS) == Acquired(2, lost=1, took_unreleased=True)

    @settings(
        max_examples=100,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(steps=st.lists(_steps, max_size=20))
    def test_any_history_is_answered_as_the_transition_table_says(self, scene: Scene, steps: list[_Step]) -> None:
        lease = 64.0  # exact in floating point, and longer than a history takes on a store with its own clock
        keys = [scene.key(), key := scene.key(), key._replace(day=19_000)]
        records: dict[Place, Record] = {}
        for step in steps:
            if scene.features.injected_clock:
                scene.clock.now += step.leases * lease
            exchange = step.exchange(keys, lease, owners=scene.features.owners)
            expected, written = decide(records.get, exchange, scene.clock.now)
            records.update(written)
            answered = scene.run(scene.store.exchange(exchange))
            tolerance = scene.features.tolerance if scene.features.injected_clock else lease / 2
            assert _same(answered.claims, expected.claims, tolerance)
            assert (answered.completes, answered.releases, answered.renews) == (expected.completes, expected.releases, expected.renews)


def _same(answered: Sequence[ClaimAnswer], expected: Sequence[ClaimAnswer], tolerance: float) -> bool:
    """Whether the answers are equal, up to `tolerance` seconds of a wait."""
    return len(answered) == len(expected) and all(
        (a.owner == b.owner and abs(a.retry_after - b.retry_after) <= tolerance) if isinstance(a, Busy) and isinstance(b, Busy) else a == b
        for a, b in zip(answered, expected, strict=True)
    )
