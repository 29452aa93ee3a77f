"""What a dead process of this host held is taken over at once, and only if its death is proved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from tests.waiting import turns

from ackwise.middleware.message.batch import Batch
from ackwise.middleware.runs.run import Stage
from ackwise.middleware.storage.claimstore import Claim, Complete, Exchange, Outcome


class Host:
    """Who is dead, as everybody on it can tell."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.asked: list[str] = []

    def witness(self, owner: str) -> Any:
        return Witness(self, owner)


class Witness:
    def __init__(self, host: Host, owner: str) -> None:
        self._host, self.owner = host, owner

    def dead(self, owners: Iterable[str]) -> frozenset[str]:
        self._host.asked += owners
        return frozenset(owners) & self._host.gone


@pytest.fixture
def host() -> Host:
    return Host()


async def hang(batch: Batch[bytes]) -> None:
    await asyncio.Event().wait()


async def died_with_claims(make_spine: Any, host: Host, offsets: Iterable[int]) -> Any:
    """A worker that claimed these and does not come back; its store and its clock go on."""
    spine = make_spine(hang, dedup=True)
    spine.leases._witness = host.witness("a")
    running = asyncio.create_task(spine.run([spine.entry(offset) for offset in offsets]))
    await spine.store.claimed.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return spine


def successor(make_spine: Any, host: Host, first: Any, handler: Any, owner: str = "b") -> Any:
    spine = make_spine(handler, dedup=True, store=first.store, clock=first.clock)
    spine.leases._witness = host.witness(owner)
    return spine


@pytest.mark.parametrize("proved", [True, False])
async def test_later_messages_overtake_those_of_a_dead_worker_only_where_its_death_is_not_proved(
    make_spine: Any, host: Host, proved: bool
) -> None:
    ran: list[int] = []

    async def handler(batch: Batch[bytes]) -> None:
        ran.extend(message.offset for message in batch)

    first = await died_with_claims(make_spine, host, [100, 101])
    second = successor(make_spine, host, first, handler)
    host.gone = {"a"} if proved else set()
    entries = [second.entry(offset) for offset in (100, 101, 102)]
    await second.run(entries)
    assert ran == ([100, 101, 102] if proved else [102])
    assert [entry.claims.grant.took_unreleased for entry in entries] == [proved, proved, False]
    if not proved:
        second.clock.now += 31
        await second.run(entries)
        assert ran == [102, 100, 101]


async def test_what_an_owner_took_over_is_not_taken_for_the_dead_ones(make_spine: Any, host: Host, succeed: Any) -> None:
    first = await died_with_claims(make_spine, host, [100])
    host.gone = {"a"}
    second = successor(make_spine, host, first, hang)
    second.store.claimed.clear()
    running = asyncio.create_task(second.run([second.entry(100)]))
    await second.store.claimed.wait()
    await turns(5)
    third = successor(make_spine, host, first, succeed, "c")
    entries = [third.entry(100)]
    await third.run(entries)
    assert entries[0].stage is Stage.FETCHED
    assert host.asked[-1] == "b"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_take_over_whose_answer_is_lost_is_asked_again_with_its_token(make_spine: Any, host: Host, succeed: Any) -> None:
    first = await died_with_claims(make_spine, host, [100])
    host.gone = {"a"}
    second = successor(make_spine, host, first, succeed)
    second.store.swallow = lambda exchange: bool(exchange.gone)
    entries = [second.entry(offset) for offset in (100, 101)]
    await second.run(entries)
    tokens = [entry.token for entry in entries]
    assert [entry.stage for entry in entries] == [Stage.FETCHED, Stage.FETCHED]
    assert 0 not in tokens
    second.store.swallow = lambda exchange: False
    second.clock.now = max(entry.not_before for entry in entries)
    await second.run(entries)
    assert [claim.token for claim in first.store.trips[-2].claims] == tokens
    assert ([entry.stage for entry in entries], second.watermark.commit) == ([Stage.SETTLED] * 2, 102)


async def test_a_store_that_goes_away_before_a_take_over_leaves_its_other_answers_as_they_are(make_spine: Any, host: Host) -> None:
    ran: list[int] = []

    async def handler(batch: Batch[bytes]) -> None:
        ran.extend(message.offset for message in batch)

    spine = make_spine(handler, dedup={"on_store_down": "fail_open"})
    spine.leases._witness = host.witness("b")
    host.gone = {"a"}
    entries = done, elsewhere, orphan, _ = spine.entries(4)
    await spine.pipeline.admission.prepare(entries)
    others = [(done, "c"), (elsewhere, "c"), (orphan, "a")]
    for entry, owner in others:
        await spine.store.inner.exchange(Exchange([Claim(entry.key, 7)], owner=owner))
    await spine.store.inner.exchange(Exchange(completes=[Complete(done.key, 7, Outcome.OK)]))
    spine.store.fail = lambda exchange: bool(exchange.gone)
    await spine.run(entries)
    assert (ran, spine.pipeline.unprotected) == ([103], 0)
    assert [entry.stage for entry in entries] == [Stage.SETTLED, Stage.FETCHED, Stage.FETCHED, Stage.SETTLED]
    assert (elsewhere.token, orphan.why) == (0, "the store is not available")
    assert orphan.token, "its claim may be ours by now: the same is asked for again"
    spine.store.fail = lambda exchange: False
    spine.clock.now += 2
    await spine.run([orphan])
    assert (ran, orphan.claims.grant.took_unreleased) == ([103, 102], True)


async def test_without_a_proof_the_store_is_asked_once(make_spine: Any, host: Host, succeed: Any) -> None:
    first = await died_with_claims(make_spine, host, [100])
    second = successor(make_spine, host, first, succeed)
    before = len(first.store.trips)
    await second.run([second.entry(100)])
    assert len([trip for trip in first.store.trips[before:] if trip.claims]) == 1
    assert host.asked == ["a"]


async def test_what_a_worker_renews_after_it_lost_its_proof_has_no_owner(make_spine: Any, host: Host, succeed: Any) -> None:
    spine = make_spine(hang, dedup=True)
    spine.leases._witness = witness = host.witness("a")
    entry = spine.entry(100)
    running = asyncio.create_task(spine.run([entry]))
    await spine.store.claimed.wait()
    host.gone = {"a"}
    assert await spine.leases.renew([entry]) == []
    assert [trip.owner for trip in spine.store.trips if trip.renews] == ["a"]
    witness.owner = ""  # something in it closed its descriptors, and it lives
    assert await spine.leases.renew([entry]) == []
    second = successor(make_spine, host, spine, succeed)
    entries = [second.entry(100)]
    await second.run(entries)
    assert (entries[0].stage, host.asked) == (Stage.FETCHED, [])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
