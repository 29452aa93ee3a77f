"""Tests of exchanges: many keys in one column, many requests in one exchange, many exchanges at once, and random histories."""

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

from ackwise.middleware.storage.claimstore import (
    Ack,
    Acquired,
    AlreadyDone,
    Answered,
    Busy,
    Claim,
    ClaimAnswer,
    ClaimKey,
    ClaimStore,
    Column,
    ColumnExchange,
    ColumnResult,
    Complete,
    Exchange,
    ExchangeResult,
    Outcome,
    Release,
    Renew,
    Stale,
)
from ackwise.stores.conformance.scene import MINE, ONE, OTHER, SHAPES, THIRD, UNRECORDED, YOURS, Scene, same_claims
from ackwise.stores.protocol.transitions import Place, Record, decide


class Columns:
    """Tests of a store's answers in columns; all other cases test the table itself."""

    def test_an_exchange_without_columns_or_keys_is_answered_about_none(self, columnar: Scene) -> None:
        result = columnar.exchange_columns(ColumnExchange())
        assert [len(answers) for answers in (result.claims, result.completes, result.releases, result.renews)] == [0] * 4
        nothing = [Column([], 19_000, 1, range(0))]
        result = columnar.exchange_columns(ColumnExchange(nothing, nothing, nothing, nothing))
        assert _plain(result) == [[(0, {})]] * 4

    def test_a_column_is_claimed_and_completed_without_exceptions(self, columnar: Scene) -> None:
        column = _column(columnar.keys(100), range(1000, 1100))
        assert columnar.exchange_columns(ColumnExchange([column])).claims == [Answered(100, {})]
        assert columnar.exchange_columns(ColumnExchange(completes=[column])).completes == [Answered(100, {})]
        assert columnar.exchange_columns(ColumnExchange(completes=[column])).completes == [Answered(100, {})]
        answered = columnar.exchange_columns(ColumnExchange([column])).claims
        assert answered == [Answered(100, dict.fromkeys(range(100), AlreadyDone(Outcome.OK)))]

    def test_what_is_not_recorded_is_that_of_every_key_of_its_column(self, columnar: Scene) -> None:
        scene = columnar
        column = _column(scene.keys(7), range(1000, 1007))
        scene.exchange_columns(ColumnExchange([column]))
        told = [_part(column, [0, 1, 2])._replace(unrecorded=UNRECORDED), _part(column, [4])._replace(unrecorded="7")]
        scene.exchange_columns(ColumnExchange(completes=[*told, _part(column, [3, 5, 6])]))
        (answered,) = scene.exchange_columns(ColumnExchange([column])).claims
        if not scene.features.owners:
            pytest.skip("the store keeps no owners")
        texts = [UNRECORDED, UNRECORDED, UNRECORDED, "", "7", "", ""]
        assert answered.exceptions == {place: AlreadyDone(Outcome.OK, text) for place, text in enumerate(texts)}

    def test_each_claim_of_a_column_is_answered_by_its_own_record(self, columnar: Scene) -> None:
        keys = columnar.keys(12)
        _, busy, done, _, stale, lost, released, copied, mine, _, dead, _ = keys
        columnar.claim(lost, YOURS)
        columnar.claim(copied, YOURS)
        columnar.wait(columnar.lease)
        for key in (busy, done, stale, released, dead):
            columnar.claim(key, YOURS)
        columnar.claim(mine, 1008)
        columnar.complete(done, YOURS)
        columnar.complete(dead, YOURS, Outcome.DEAD)
        columnar.release(stale, YOURS, sent_back=3)
        columnar.release(released, YOURS)
        columnar.claim(copied, THIRD)
        columnar.release(copied, THIRD)
        (answered,) = columnar.exchange_columns(ColumnExchange([_column(keys, range(1000, 1012))])).claims
        exceptions = dict(answered.exceptions)
        assert isinstance(exceptions.pop(1), Busy)
        assert answered.keys == 12
        assert exceptions == {
            2: AlreadyDone(Outcome.OK),
            4: Stale(),
            5: Acquired(2, lost=1, took_unreleased=True),
            6: Acquired(2, lost=0, took_unreleased=False),
            7: Acquired(3, lost=1, took_unreleased=False),
            10: AlreadyDone(Outcome.DEAD),
        }
        # And each record is what its answer says.
        (acks,) = columnar.exchange_columns(ColumnExchange(completes=[_column(keys, range(1000, 1012))])).completes
        assert acks == Answered(12, {1: Ack.LOST, 2: Ack.LOST_DONE, 4: Ack.LOST})

    def test_each_complete_of_a_column_is_answered_by_its_own_record(self, columnar: Scene) -> None:
        keys = columnar.keys(8)
        mine, unknown, taken, done, again, last = keys[0], keys[1], keys[3], keys[4], keys[6], keys[7]
        column = _column(keys, range(2000, 2008))
        known = [place for place, key in enumerate(keys) if key != unknown]
        assert columnar.exchange_columns(ColumnExchange([_part(column, known)])).claims == [Answered(7, {})]
        columnar.wait(columnar.lease)
        columnar.claim(taken, YOURS)
        columnar.claim(done, YOURS)
        columnar.complete(done, YOURS)
        columnar.complete(again, 2006)
        assert columnar.exchange_columns(ColumnExchange(completes=[column])).completes == [
            Answered(8, {1: Ack.RESTORED, 3: Ack.LOST, 4: Ack.LOST_DONE})
        ]
        for key in (mine, unknown, again, last):
            assert columnar.claim(key, THIRD) == AlreadyDone(Outcome.OK)
        assert columnar.renew(taken, YOURS) is Ack.OK

    def test_each_release_and_renewal_of_a_column_is_answered_by_its_own_record(self, columnar: Scene) -> None:
        keys = columnar.keys(6)
        column = _column(keys, range(3000, 3006))
        columnar.exchange_columns(ColumnExchange([_part(column, [0, 1, 2, 4])]))
        columnar.complete(keys[2], 3002)
        columnar.claim(keys[3], YOURS)
        lost = {2: Ack.LOST, 3: Ack.LOST, 5: Ack.LOST}
        assert columnar.exchange_columns(ColumnExchange(renews=[column])).renews == [Answered(6, lost)]
        assert columnar.exchange_columns(ColumnExchange(releases=[column])).releases == [Answered(6, lost)]
        assert columnar.exchange_columns(ColumnExchange(releases=[column])).releases == [Answered(6, dict.fromkeys(range(6), Ack.LOST))]
        assert columnar.claim(keys[4], THIRD) == Acquired(2)

    def test_a_column_that_is_asked_again_after_a_lost_answer_is_answered_the_same(self, columnar: Scene) -> None:
        keys = columnar.keys(20)
        columnar.claim(keys[3], YOURS)
        columnar.wait(columnar.lease)
        columnar.claim(keys[5], YOURS)
        columnar.release(keys[5], YOURS, sent_back=2)
        column = _column(keys, range(4000, 4020))
        exceptions = {3: Acquired(2, lost=1, took_unreleased=True), 5: Stale()}
        for _ in range(3):
            assert columnar.exchange_columns(ColumnExchange([column])).claims == [Answered(20, exceptions)]
        for _ in range(3):
            assert columnar.exchange_columns(ColumnExchange(renews=[column])).renews == [Answered(20, {5: Ack.LOST})]
        for _ in range(3):
            assert columnar.exchange_columns(ColumnExchange(completes=[column])).completes == [Answered(20, {5: Ack.LOST})]

    def test_the_tokens_of_a_column_need_not_follow_each_other_and_may_cross_any_border(self, columnar: Scene) -> None:
        keys = columnar.keys(6)
        tokens: Sequence[int] = [7, 2**63 - 1, 2**32 - 1, 2**32, 1, 8]
        assert columnar.exchange_columns(ColumnExchange([_column(keys, tokens)])).claims == [Answered(6, {})]
        assert columnar.exchange_columns(ColumnExchange(renews=[_column(keys, sorted(tokens))])).renews == [
            Answered(6, {place: Ack.LOST for place in range(6) if sorted(tokens)[place] != tokens[place]})
        ]
        assert columnar.exchange_columns(ColumnExchange(completes=[_column(keys, tokens)])).completes == [Answered(6, {})]
        for begin in (2**32 - 3, 2**40 - 2, 2**53 - 2, 2**63 - 6):
            keys, tokens = columnar.keys(6), range(begin, begin + 6)
            assert columnar.exchange_columns(ColumnExchange([_column(keys, tokens)])).claims == [Answered(6, {})]
            assert [columnar.renew(key, token) for key, token in zip(keys, tokens, strict=True)] == [Ack.OK] * 6
            assert columnar.exchange_columns(ColumnExchange(completes=[_column(keys, list(tokens))])).completes == [Answered(6, {})]

    def test_parts_of_a_column_go_different_ways(self, columnar: Scene) -> None:
        keys = columnar.keys(12)
        column = _column(keys, range(5000, 5012))
        columnar.exchange_columns(ColumnExchange([column]))
        result = columnar.exchange_columns(
            ColumnExchange(
                completes=[_part(column, [0, 1, 2]), _part(column, [4, 3])._replace(outcome=Outcome.SKIPPED)],
                releases=[_part(column, [5, 6]), _part(column, [7])._replace(sent_back=2)],
                renews=[_part(column, [8, 10])],
            )
        )
        assert _plain(result) == [[], [(3, {}), (2, {})], [(2, {}), (1, {})], [(2, {})]]
        (answered,) = columnar.exchange_columns(ColumnExchange([_column(keys, range(6000, 6012))])).claims
        assert [type(answered.exceptions[place]) for place in (8, 9, 10, 11)] == [Busy] * 4
        assert {place: answer for place, answer in answered.exceptions.items() if place < 8} == {
            **dict.fromkeys([0, 1, 2], AlreadyDone(Outcome.OK)),
            **dict.fromkeys([3, 4], AlreadyDone(Outcome.SKIPPED)),
            **dict.fromkeys([5, 6], Acquired(2)),
            7: Stale(),
        }
        (acks,) = columnar.exchange_columns(ColumnExchange(renews=[column])).renews
        assert acks == Answered(12, dict.fromkeys(range(8), Ack.LOST))

    def test_columns_of_one_exchange_differ_in_day_and_attempt(self, columnar: Scene) -> None:
        ids = [key.id for key in columnar.keys(3)]
        days = [Column(ids, day, attempt, range(10 * attempt, 10 * attempt + 3)) for attempt, day in enumerate((None, -1, 0, 19_000), 1)]
        assert columnar.exchange_columns(ColumnExchange(days)).claims == [Answered(3, {})] * 4
        older = [column._replace(attempt=column.attempt - 1, tokens=[90, 91, 92]) for column in days[1:]]
        assert columnar.exchange_columns(ColumnExchange(older)).claims == [Answered(3, dict.fromkeys(range(3), Stale()))] * 3
        assert columnar.exchange_columns(ColumnExchange(completes=days)).completes == [Answered(3, {})] * 4

    def test_a_column_is_taken_over_from_an_owner_that_is_gone(self, columnar: Scene) -> None:
        keys = columnar.keys(5)
        columnar.exchange_columns(ColumnExchange([_column(keys[:4], range(1, 5))], owner=ONE))
        columnar.exchange_columns(ColumnExchange(renews=[_column(keys[1:2], range(2, 3))], owner=OTHER))
        columnar.exchange_columns(ColumnExchange(completes=[_column(keys[3:4], range(4, 5))], owner=ONE))
        asked = ColumnExchange([_column(keys, range(11, 16))], owner=OTHER, gone=[ONE])
        (answered,) = columnar.exchange_columns(asked).claims
        assert answered.keys == 5
        if not columnar.features.owners:
            pytest.skip("the store keeps no owners")
        busy = answered.exceptions[1]
        assert isinstance(busy, Busy)
        assert busy.owner == OTHER
        taken = Acquired(2, lost=1, took_unreleased=True)
        assert {place: answer for place, answer in answered.exceptions.items() if place != 1} == {
            0: taken,
            2: taken,
            3: AlreadyDone(Outcome.OK),
        }

    def test_the_leases_of_a_column_end_and_are_renewed_and_it_is_forgotten_after_the_retention(self, columnar: Scene) -> None:
        keys = columnar.keys(4)
        column = _column(keys, range(1, 5))
        columnar.exchange_columns(ColumnExchange([column]))
        columnar.wait(columnar.lease * 0.6)
        assert columnar.exchange_columns(ColumnExchange(renews=[_part(column, [0, 1])])).renews == [Answered(2, {})]
        columnar.wait(columnar.lease * 0.6)
        (answered,) = columnar.exchange_columns(ColumnExchange([column._replace(tokens=range(11, 15))])).claims
        assert [type(answered.exceptions[place]) for place in (0, 1)] == [Busy] * 2
        assert [answered.exceptions[place] for place in (2, 3)] == [Acquired(2, lost=1, took_unreleased=True)] * 2
        columnar.exchange_columns(ColumnExchange(completes=[_part(column, [0, 1])]))
        columnar.wait(columnar.retention + columnar.lease)
        assert columnar.exchange_columns(ColumnExchange([column._replace(tokens=range(21, 25))])).claims == [Answered(4, {})]


def _column(keys: Sequence[ClaimKey], tokens: Sequence[int]) -> Column:
    return Column([key.id for key in keys], keys[0].day, 1, tokens)


def _part(column: Column, places: Sequence[int]) -> Column:
    """The rest of a column, after keys with another answer have left it."""
    return column._replace(ids=[column.ids[place] for place in places], tokens=[column.tokens[place] for place in places])


def _plain(result: ColumnResult) -> list[list[tuple[int, dict[int, object]]]]:
    answered = (result.claims, result.completes, result.releases, result.renews)
    return [[(answer.keys, dict(answer.exceptions)) for answer in answers] for answers in answered]


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
