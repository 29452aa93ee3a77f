"""`Exchanges`: many requests in one exchange, many exchanges at once, and `Histories`: random ones."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

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
from ackwise.stores.testing.scene import MINE, ONE, OTHER, SHAPES, THIRD, YOURS, Scene, same_claims


@dataclass(frozen=True, slots=True)
class _Request:
    """One thing that a random exchange asks for one of three keys."""

    key: int
    kind: type[Claim] | type[Complete] | type[Release] | type[Renew]
    token: int
    attempt: int
    sent_back: int | None
    outcome: Outcome
    unrecorded: str


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
                completes.append(Complete(key, request.token, request.outcome, request.unrecorded if owners else ""))
            elif request.kind is Release:
                releases.append(Release(key, request.token, request.sent_back))
            else:
                renews.append(Renew(key, request.token))
        named = (self.owner, self.gone) if owners else ("", ())
        return Exchange(claims, completes, releases, renews, lease, 3 * lease, *named)


_requests = st.builds(
    _Request,
    key=st.integers(0, 2),
    kind=st.sampled_from([Claim, Complete, Release, Renew]),
    token=st.integers(1, 3),
    attempt=st.integers(1, 3),
    sent_back=st.sampled_from([None, 2, 3]),
    outcome=st.sampled_from(Outcome),
    unrecorded=st.sampled_from(["", "", "1 2 3 4 orders"]),
)
_steps = st.builds(
    _Step,
    leases=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]),
    requests=st.lists(_requests, max_size=3, unique_by=lambda request: request.key),
    owner=st.sampled_from(["", ONE, OTHER]),
    gone=st.sampled_from([(), (ONE,), (OTHER,), (ONE, OTHER)]),
)


class Histories:
    """Random histories of three keys, on a store and in `decide`."""

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors])
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
            answered = scene.run(scene.ask(exchange))
            tolerance = scene.features.tolerance if scene.features.injected_clock else lease / 2
            assert same_claims(answered.claims, expected.claims, tolerance)
            assert (answered.completes, answered.releases, answered.renews) == (expected.completes, expected.releases, expected.renews)


class Exchanges:
    """Batches, repeated keys, races and cancellation."""

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

    def test_a_key_that_is_claimed_twice_or_completed_and_claimed_in_one_exchange_is_granted_once_at_most(self, scene: Scene) -> None:
        kept = scene.retention
        for shape in SHAPES:
            twice, done = scene.keys(2)
            scene.run(scene.ask_as(shape, Exchange([Claim(done, MINE)], retention=kept)))
            with suppress(ValueError):
                answers = scene.run(scene.ask_as(shape, Exchange([Claim(twice, MINE), Claim(twice, YOURS)], retention=kept))).claims
                assert sum(isinstance(answer, Acquired) for answer in answers) <= 1, shape
            with suppress(ValueError):
                both = Exchange([Claim(done, YOURS)], [Complete(done, MINE, Outcome.OK)], retention=kept)
                (answer,) = scene.run(scene.ask_as(shape, both)).claims
                assert not isinstance(answer, Acquired), shape
                later = scene.run(scene.ask_as(shape, Exchange([Claim(done, THIRD)], retention=kept)))
                assert later.claims == [AlreadyDone(Outcome.OK)], shape

    def test_each_of_500_keys_goes_to_exactly_one_of_two_workers(self, scene: Scene) -> None:
        keys = scene.keys(500)
        rival = scene.open_store() if scene.features.shared else scene.store

        async def claim_some(shape: Literal["keys", "columns"], store: ClaimStore, token: int) -> dict[ClaimKey, ClaimAnswer]:
            order = random.Random(token).sample(keys, len(keys))
            answers: dict[ClaimKey, ClaimAnswer] = {}
            for start in range(0, len(order), 50):
                some = [Claim(key, token) for key in order[start : start + 50]]
                result = await scene.ask_as(shape, Exchange(some, lease=600.0, retention=scene.retention), store)
                answers.update(zip(order[start : start + 50], result.claims, strict=True))
            return answers

        async def race(shape: Literal["keys", "columns"]) -> tuple[dict[ClaimKey, ClaimAnswer], dict[ClaimKey, ClaimAnswer]]:
            return await asyncio.gather(claim_some(shape, scene.store, MINE), claim_some(shape, rival, YOURS))

        for shape in SHAPES:
            mine, yours = scene.run(race(shape))
            assert [isinstance(mine[key], Acquired) + isinstance(yours[key], Acquired) for key in keys] == [1] * 500, shape
            assert [isinstance(mine[key], Busy) + isinstance(yours[key], Busy) for key in keys] == [1] * 500, shape
            keys = scene.keys(500)

    def test_a_cancelled_exchange_is_applied_as_a_whole_or_not_at_all(self, scene: Scene) -> None:
        async def claim_and_cancel(shape: Literal["keys", "columns"], keys: list[ClaimKey], turns: int) -> None:
            exchange = asyncio.ensure_future(scene.ask_as(shape, Exchange([Claim(key, MINE) for key in keys], retention=scene.retention)))
            for _ in range(turns):
                await asyncio.sleep(0)
            exchange.cancel()
            await asyncio.wait([exchange])

        for shape in SHAPES:
            for turns in range(4):
                keys = scene.keys(50)
                scene.run(claim_and_cancel(shape, keys, turns))
                again = Exchange([Claim(key, YOURS) for key in keys], lease=600.0, retention=scene.retention)
                answers = scene.run(scene.ask_as(shape, again)).claims
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
