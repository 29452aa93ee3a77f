"""A run that is split while somebody else knows it: leases that are renewed, copies that wait, handlers that look late."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from tests.tables import each

from ackwise.middleware.errors import PublishUnavailable, StoreUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, Duplicate
from ackwise.middleware.runs.run import Run, Stage, pick
from ackwise.middleware.storage.claimstore import Ack, Claim, ClaimKey, Exchange, ExchangeResult, in_columns


class Between:
    """A store that does something between the question and the answer of a renewal."""

    def __init__(self, store: Any, meanwhile: Callable[[], object], lost: set[int]) -> None:
        self.store, self.meanwhile, self.lost = store, meanwhile, lost

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        result: ExchangeResult = await self.store.exchange(exchange)
        if exchange.renews:
            self.meanwhile()
            result.renews[:] = [
                Ack.LOST if ask.token in self.lost else ack for ask, ack in zip(exchange.renews, result.renews, strict=True)
            ]
        return result


async def granted(spine: Any, count: int) -> list[Run]:
    runs = [spine.together(count)]
    await spine.pipeline.admission.prepare(runs)
    await spine.pipeline.admission.claim(runs)
    assert [run.stage for run in runs] == [Stage.ADMITTED]
    return runs


async def test_a_renewal_counts_for_all_parts_of_a_run_that_was_split_before_its_answer_came(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    runs = await granted(spine, 4)
    tokens = [*(runs[0].claims.tokens or ())]
    spine.leases._columns = in_columns(Between(spine.store, lambda: [*pick(runs, runs[0], [1, 2])], {tokens[2]}))
    spine.clock.now += 12
    await spine.leases.beat()
    assert [(run.first, run.claim_lost) for run in runs] == [(100, False), (101, False), (102, True)]
    assert {lease.asked_at.monotonic for lease in spine.leases._held.values()} == {spine.clock.now}
    assert len(spine.leases) == 3, "the lost one is not renewed any more"


async def test_of_a_run_in_a_handler_only_the_message_whose_claim_was_lost_is_told_of(make_spine: Any) -> None:
    inside = asyncio.Event()

    async def handler(batch: Batch[bytes]) -> None:
        inside.set()
        await asyncio.Event().wait()

    spine = make_spine(handler, dedup=True)
    runs = [spine.together(3)]
    running = asyncio.create_task(spine.run(runs))
    await inside.wait()
    tokens = [*(runs[0].claims.tokens or ())]
    spine.leases._columns = in_columns(Between(spine.store, lambda: None, {tokens[1]}))
    spine.clock.now += 12
    await spine.leases.beat()
    await running
    assert {run.stage for run in runs} == {Stage.FETCHED}
    assert [EventCode.CLAIM_LOST in spine.sink.codes(offset) for offset in (100, 101, 102)] == [False, True, False]
    assert len(spine.leases) == 0


async def test_what_falls_out_of_a_run_is_renewed_until_its_copy_is_acknowledged(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        batch.later(batch[1])

    spine = make_spine(handler, dedup=True)
    spine.publisher.answer = lambda copy: PublishUnavailable("no broker")
    runs = [spine.together(3)]
    await spine.run(runs)
    assert (len(spine.leases), spine.watermark.commit) == (1, 101)
    spine.clock.now += 12
    await spine.leases.beat()
    assert [ask.token for ask in spine.store.trips[-1].renews] == [run.token for run in runs if run.stage is Stage.RULED]

    spine.publisher.answer = lambda copy: None
    await spine.run(runs)
    assert (len(spine.leases), spine.watermark.commit) == (0, 103)


async def test_of_a_run_that_is_done_only_what_somebody_else_owns_is_claimed_again(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        column = runs[0].column()
        key = ClaimKey(column.ids[1], column.day, column.attempt)
        spine.clock.now += 100
        await spine.store.inner.exchange(Exchange(claims=[Claim(key, 7)]))

    spine = make_spine(handler, dedup=True)
    runs = [spine.together(3)]
    await spine.run(runs)
    assert sorted((run.first, run.stage, run.succeeded) for run in runs) == [
        (100, Stage.SETTLED, True),
        (101, Stage.FETCHED, True),
    ]
    assert spine.watermark.commit == 101
    spine.clock.now += 200
    await spine.run([run for run in runs if run.stage is not Stage.SETTLED])
    assert spine.watermark.commit == 103
    assert len(spine.leases) == 0


async def test_a_handler_that_looks_late_sees_the_whole_batch_although_its_run_was_split(make_spine: Any) -> None:
    kept: list[Batch[bytes]] = []

    async def handler(batch: Batch[bytes]) -> Any:
        kept.append(batch)
        return CONSUME_LATER

    spine = make_spine(handler)
    await spine.run([spine.together(3)])
    assert [message.value for message in kept[0]] == [b"v100", b"v101", b"v102"]
    assert [message.offset for message in kept[0]] == [100, 101, 102]


async def test_what_succeeded_here_since_it_was_granted_falls_out_of_its_run_and_is_not_given(make_spine: Any) -> None:
    seen: list[list[int]] = []

    async def handler(batch: Batch[bytes]) -> None:
        seen.append([message.offset for message in batch])

    spine = make_spine(handler, dedup=True)
    runs = await granted(spine, 3)
    spine.leases.remember_successes(runs[0]._part([1]))
    await spine.run(runs)
    assert seen == [[100, 102]]
    assert {run.first: run.disposition for run in runs}[101] == Duplicate()
    assert spine.watermark.commit == 103


async def test_what_a_handler_ruled_on_before_it_was_called_off_is_remembered_as_done(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        batch.done(batch[1])
        call = runs[0].call
        assert call is not None
        call.call_off()
        await asyncio.Event().wait()

    spine = make_spine(handler, dedup=True)
    runs = [spine.together(3)]
    await spine.run(runs)
    done = next(run for run in runs if run.first == 101)
    assert (done.stage, done.succeeded, len(runs)) == (Stage.SETTLED, True, 2)
    assert spine.leases.succeeded(done.claims.ids or ()) == [0]
    assert spine.watermark.commit == 100


async def test_a_run_is_told_of_as_its_messages_would_be(make_spine: Any, succeed: Any) -> None:
    together, one_by_one = make_spine(succeed, dedup=True), make_spine(succeed, dedup=True)
    await together.run([together.together(5)])
    await one_by_one.run(one_by_one.entries(5))
    told = [[event._replace(exec_id=None, duration_us=None) for event in spine.sink.durable] for spine in (together, one_by_one)]
    assert sorted(told[0], key=str) == sorted(told[1], key=str)
    claimed, succeeded = (
        [event.exec_id for event in together.sink.durable if event.code is code] for code in (EventCode.CLAIMED, EventCode.SUCCEEDED)
    )
    assert claimed == succeeded
    assert len({*claimed}) == 5


@each("applied", [False, True], ids=["not applied", "applied"])
async def test_a_run_whose_claims_were_not_answered_asks_with_the_same_tokens_also_for_what_fell_out(
    make_spine: Any, succeed: Any, applied: bool
) -> None:
    spine = make_spine(succeed, dedup=True)
    setattr(spine.store, "swallow" if applied else "fail", lambda exchange: True)
    runs = [spine.together(4)]
    await spine.run(runs)
    first = {ask.key.id: ask.token for ask in spine.store.trips[-1].claims}
    pick(runs, runs[0], [2])
    spine.store.swallow = spine.store.fail = lambda exchange: False
    spine.clock.now += 1
    await spine.run(runs)
    again = next({ask.key.id: ask.token for ask in trip.claims} for trip in spine.store.trips[1:] if trip.claims)
    assert again == first
    assert spine.watermark.commit == 104


async def test_an_answer_about_another_number_of_keys_is_no_answer(make_spine: Any, succeed: Any) -> None:
    class Short:
        def __init__(self, store: Any) -> None:
            self.store = store

        async def open(self) -> None: ...

        async def close(self) -> None: ...

        async def exchange(self, exchange: Exchange) -> ExchangeResult:
            result: ExchangeResult = await self.store.exchange(exchange)
            del result.claims[1:]
            return result

    spine = make_spine(succeed, dedup=True)
    spine.leases._columns = in_columns(Short(spine.store))
    runs = [spine.together(3)]
    await spine.run(runs)
    assert [(run.stage, run.why) for run in runs] == [(Stage.FETCHED, "the store is not available")]
    with pytest.raises(StoreUnavailable, match="answered 1 keys and was asked about 3"):
        await spine.leases.claim([runs[0].column()])


async def test_nothing_of_what_is_settled_is_kept(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    runs = [spine.together(3)]
    kept = weakref.ref(runs[0])
    await spine.run(runs)
    runs.clear()
    gc.collect()
    assert kept() is None
    assert not spine.leases._running


async def test_dead_letters_go_out_in_the_order_of_their_offsets_whoever_ruled_them(make_spine: Any) -> None:
    def decode(value: bytes | None) -> bytes:
        if value in (b"v101", b"v103"):
            raise ValueError("no order")
        return value or b""

    async def handler(batch: Batch[bytes]) -> None:
        for message in batch:
            if message.offset in (100, 102):
                batch.dead(message, "no price")

    spine = make_spine(handler, decode=decode)
    await spine.run([spine.together(5)])
    assert [copy.value for copy in spine.publisher.sent] == [b"v100", b"v101", b"v102", b"v103"]
    assert [event.offset for event in spine.sink.durable if event.code is EventCode.DEAD_LETTERED] == [100, 101, 102, 103]
