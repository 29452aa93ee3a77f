"""What a handler publishes: sent once its message is done, before that counts as done, and under ids that a repeated run has again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

import pytest
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError, InvalidRuling
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, Dead, Delayed, Done
from ackwise.middleware.message.message import Message, Origin
from ackwise.middleware.message.outgoing import MISSING, Outgoing, SendFailed
from ackwise.middleware.pipeline.publishing import Publication, identified, publish
from ackwise.middleware.pipeline.settlement import Undecided
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.run import Stage

AWAY = SendFailed("the broker is unavailable", retriable=True, error="KafkaConnectionError")
REFUSED = SendFailed("it is too large", retriable=False, error="MessageSizeTooLargeError")


def send(value: bytes, *, to: str = "invoices", source: Message[Any] | None = None, message_id: str | None = None) -> None:
    message = Outgoing(to, value) if message_id is None else Outgoing(to, value, message_id=message_id)
    publish(message, source, has_id=message_id is not None)


async def one(message: Message[bytes]) -> None:
    send(b"of " + message.value)


async def all_of(batch: Batch[bytes]) -> None:
    for message in batch:
        send(b"of " + message.value, source=message)


def values(spine: Any) -> list[bytes | None]:
    return [message.value for message in spine.sender.sent]


def ids(spine: Any) -> list[str]:
    return [message.message_id for message in spine.sender.sent]


@each(("kind", "handler"), [("message", one), ("batch", all_of)])
@each("dedup", [True, False])
async def test_what_a_handler_publishes_is_sent_before_its_message_is_settled(
    make_spine: Any, kind: str, handler: Callable[[Any], Awaitable[None]], *, dedup: bool
) -> None:
    spine = make_spine(handler, kind=kind, dedup=dedup)
    assert set(await spine.run([spine.together(3)])) == {Stage.SETTLED}
    assert values(spine) == [b"of v100", b"of v101", b"of v102"]
    assert spine.watermark.commit == 103


@each(("kind", "handler"), [("message", one), ("batch", all_of)])
async def test_nothing_is_settled_completed_or_remembered_before_it_is_acknowledged(
    make_spine: Any, kind: str, handler: Callable[[Any], Awaitable[None]]
) -> None:
    spine = make_spine(handler, kind=kind, dedup={"key": lambda message: str(message.offset)})
    spine.sender.answer = lambda message: AWAY if message.value == b"of v101" else None
    runs = [spine.together(3)]
    await spine.run(runs)
    (held,) = [run for run in runs if run.stage is not Stage.SETTLED]
    assert (held.first, held.stage, held.succeeded) == (101, Stage.RULED, False)
    assert not spine.leases.succeeded(held.claims.ids)
    assert spine.watermark.commit == 101
    assert all(complete.key.id != held.claims.ids[0] for trip in spine.store.trips for complete in trip.completes)
    spine.sender.answer = lambda message: None
    spine.clock.now += 5
    await spine.run(runs)
    assert values(spine) == [b"of v100", b"of v102", b"of v101"]
    assert spine.leases.succeeded(held.claims.ids)
    assert spine.watermark.commit == 103


async def test_a_topic_that_is_missing_for_two_minutes_fails_the_message_and_an_outage_does_not(make_spine: Any) -> None:
    gone = SendFailed("topic 'invoices' did not acknowledge", retriable=True, error=MISSING)
    spine = make_spine(one, kind="message")
    runs = spine.entries(1)

    async def for_minutes(answer: SendFailed) -> Stage:
        spine.sender.answer = lambda message: answer
        stage = Stage.RULED
        for _ in range(30):
            spine.clock.now += 5
            if (stage := (await spine.run(runs))[0]) is Stage.SETTLED:
                break
        return stage

    assert await for_minutes(AWAY) is Stage.RULED
    assert await for_minutes(gone) is Stage.SETTLED
    (copy,) = spine.publisher.sent
    assert dict(copy.headers)["ackwise-attempt"] == b"2"
    assert (spine.watermark.commit, values(spine)) == (101, [])


async def test_what_is_acknowledged_is_not_sent_again_with_the_rest(make_spine: Any) -> None:
    async def two(message: Message[bytes]) -> None:
        send(b"1")
        send(b"2")

    spine = make_spine(two, kind="message")
    spine.sender.answer = lambda message: AWAY if message.value == b"2" else None
    runs = spine.entries(1)
    await spine.run(runs)
    spine.sender.answer = lambda message: None
    spine.clock.now += 5
    assert await spine.run(runs) == [Stage.SETTLED]
    assert values(spine) == [b"1", b"2"]


async def test_a_message_that_fails_publishes_nothing_and_its_next_run_sends_the_same(make_spine: Any) -> None:
    fails = True

    async def handler(message: Message[bytes]) -> object:
        send(b"of " + message.value)
        return CONSUME_LATER if fails else None

    spine = make_spine(handler, kind="message")
    await spine.run(spine.entries(1))
    assert values(spine) == []
    fails = False
    await spine.run([spine.returned(spine.publisher.sent[0])])
    assert values(spine) == [b"of v100"]
    other = make_spine(handler, kind="message")
    await other.run(other.entries(1))
    assert ids(other) == ids(spine)


async def test_of_a_batch_only_what_is_done_publishes(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        for message in batch:
            send(b"of " + message.value, source=message)
        batch.later(batch[1])
        batch.dead(batch[2])

    spine = make_spine(handler)
    await spine.run([spine.together(4)])
    assert values(spine) == [b"of v100", b"of v103"]


async def test_rulings_that_survive_an_exception_publish(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        for message in batch:
            send(b"of " + message.value, source=message)
        batch.done(batch[0])
        raise ValueError

    spine = make_spine(handler, dedup=True)
    runs = [spine.together(2, key=b"a")]
    await spine.run(runs)
    assert values(spine) == [b"of v100"]


async def test_what_was_ruled_done_before_a_call_ended_undecided_publishes(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        for message in batch:
            send(b"of " + message.value, source=message)
        batch.done(batch[0])
        raise Undecided

    spine = make_spine(handler, dedup={"key": lambda message: str(message.offset)})
    spine.sender.answer = lambda message: AWAY
    runs = [spine.together(2)]
    await spine.run(runs)
    (held,) = [run for run in runs if run.stage is Stage.RULED]
    assert (held.first, held.succeeded, spine.leases.succeeded(held.claims.ids)) == (100, False, [])
    spine.sender.answer = lambda message: None
    spine.clock.now += 5
    await spine.run([held])
    assert values(spine) == [b"of v100"]


async def test_an_id_that_is_given_is_kept_and_equal_messages_have_ids_of_their_own(make_spine: Any) -> None:
    async def handler(message: Message[bytes]) -> None:
        for given in (None, None, "mine"):
            send(b"same", message_id=given)

    spine = make_spine(handler, kind="message")
    await spine.run(spine.entries(2))
    found = ids(spine)
    assert (found[2], found[5]) == ("mine", "mine")
    assert len(set(found)) == 5


def test_a_topic_that_was_made_again_gives_other_ids() -> None:
    published = [Publication(Outgoing("invoices", b"same"), has_id=False)]
    made = [identified(published, Origin("orders", 0, 0, at), group="g", handler="bill", delayed=None)[0].message_id for at in (1, 2, 2)]
    assert made[0] != made[1] == made[2]


async def test_another_handler_has_other_ids(make_spine: Any) -> None:
    spines = [make_spine(one, kind="message", name=name) for name in ("bill", "mail")]
    for spine in spines:
        await spine.run(spine.entries(1))
    assert ids(spines[0]) != ids(spines[1])


async def test_after_the_cut_off_unsent_publishes_are_a_plain_release_and_a_failure(make_spine: Any) -> None:
    async def handler(message: Message[bytes]) -> None:
        send(b"late")
        spine.partition.cut_off = True

    spine = make_spine(handler, kind="message", dedup=True)
    (run,) = runs = spine.entries(1)
    ids_of_claim = None
    await spine.run(runs)
    ids_of_claim = run.claims.ids
    assert values(spine) == []
    assert run.stage is Stage.FETCHED
    assert not run.succeeded
    assert not spine.leases.succeeded(ids_of_claim)
    assert spine.sink.codes(100)[-1] is EventCode.FAILED
    await spine.leases.flush()
    assert [release.sent_back for trip in spine.store.trips for release in trip.releases] == [None]
    assert not any(trip.completes for trip in spine.store.trips)


async def test_what_was_held_and_is_cut_off_is_run_again_by_whoever_comes_next(make_spine: Any) -> None:
    spine = make_spine(one, kind="message", dedup=True)
    spine.sender.answer = lambda message: AWAY
    runs = spine.entries(1)
    await spine.run(runs)
    spine.partition.cut_off = True
    await spine.run(runs)
    await spine.leases.flush()
    heir = make_spine(one, kind="message", dedup=True, store=spine.store, clock=spine.clock)
    assert await heir.run(heir.entries(1)) == [Stage.SETTLED]
    assert values(heir) == [b"of v100"]


async def test_a_claim_that_is_lost_sends_nothing(make_spine: Any) -> None:
    spine = make_spine(one, kind="message", dedup=True)
    spine.sender.answer = lambda message: AWAY
    runs = spine.entries(1)
    await spine.run(runs)
    spine.clock.now += 31
    heir = make_spine(one, kind="message", dedup=True, store=spine.store, clock=spine.clock)
    await heir.run(heir.entries(1))
    spine.sender.answer = lambda message: None
    await spine.run(runs)
    assert values(heir) == [b"of v100"]
    assert values(spine) == []
    spine.clock.now += 31
    assert await spine.run(runs) == [Stage.SETTLED]
    assert values(spine) == []


async def test_past_the_lease_nothing_is_sent_while_the_store_can_t_confirm_it(make_spine: Any) -> None:
    spine = make_spine(one, kind="message", dedup=True)
    spine.sender.answer = lambda message: AWAY
    runs = spine.entries(1)
    await spine.run(runs)
    spine.sender.answer = lambda message: None
    spine.clock.now += 29
    spine.store.fail = lambda exchange: True
    await spine.run(runs)
    assert values(spine) == []
    spine.store.fail = lambda exchange: False
    spine.clock.now += 0.5
    await spine.run(runs)
    assert values(spine) == [b"of v100"]


async def test_messages_that_run_again_in_smaller_batches_publish_once(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        for message in batch:
            send(b"of " + message.value, source=message)
        if batch[-1].value == b"v103":
            raise ValueError

    spine = make_spine(handler, later=ConsumeLater(3, no_retry=ValueError))
    await spine.run([spine.together(4)])
    assert values(spine) == [b"of v100", b"of v101", b"of v102"]


async def test_a_publish_that_is_refused_for_good_fails_its_message(make_spine: Any) -> None:
    spine = make_spine(one, kind="message", dedup=True, later=ConsumeLater(1))
    spine.sender.answer = lambda message: REFUSED
    (run,) = runs = spine.entries(1)
    assert await spine.run(runs) == [Stage.SETTLED]
    assert isinstance(run.disposition, Delayed)
    assert spine.sink.codes(100)[-2:] == [EventCode.FAILED, EventCode.SENT_BACK]
    (copy,) = spine.publisher.sent
    back = spine.returned(copy)
    assert await spine.run([back]) == [Stage.SETTLED]
    assert isinstance(back.disposition, Dead)
    letter = dict(spine.publisher.sent[1].headers)
    assert (letter["ackwise-error-class"], letter["ackwise-error-message"]) == (b"PublishRefused", b"it is too large")


async def test_a_batch_with_copies_and_publishes_settles_both(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        send(b"fine", source=batch[0])
        send(b"refused", source=batch[1])
        batch.later(batch[2])

    spine = make_spine(handler)
    spine.sender.answer = lambda message: REFUSED if message.value == b"refused" else None
    runs = [spine.together(4)]
    assert set(await spine.run(runs)) == {Stage.SETTLED}
    assert values(spine) == [b"fine"]
    assert sorted(copy.value for copy in spine.publisher.sent) == [b"v101", b"v102"]


async def test_a_follower_is_settled_once_its_leader_s_publishes_are_acknowledged(make_spine: Any) -> None:
    spine = make_spine(one, kind="message", dedup={"key": lambda message: "same"})
    spine.sender.answer = lambda message: AWAY
    runs = spine.entries(2)
    await spine.run(runs)
    assert Stage.SETTLED not in {run.stage for run in runs}
    spine.sender.answer = lambda message: None
    spine.clock.now += 5
    await spine.run(runs)
    spine.clock.now += 5
    assert set(await spine.run(runs)) == {Stage.SETTLED}
    assert values(spine) == [b"of v100"]


async def test_produced_events_name_record_id_and_origin(make_spine: Any) -> None:
    spine = make_spine(one, kind="message")
    await spine.run(spine.entries(1))
    (event,) = [event for event in spine.sink.durable if event.code is EventCode.PRODUCED]
    assert (event.topic, event.partition, event.offset, event.handler) == ("invoices", 0, 0, "bill")
    assert event.dedup_key == ids(spine)[0]
    assert event.attrs == '{"origin": "orders/3/100"}'


async def test_without_publishes_nothing_is_asked_of_the_sender(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed)
    spine.worker.sender.send_many = None
    (run,) = runs = [spine.together(5)]
    assert await spine.run(runs) == [Stage.SETTLED]
    assert isinstance(run.disposition, Done)
    assert len(run) == 5


async def refused(call: Callable[[], object]) -> str:
    with pytest.raises((InvalidRuling, ConfigurationError)) as error:
        call()
    return str(error.value)


def test_outside_of_a_handler_nothing_is_kept() -> None:
    assert publish(Outgoing("invoices", b"v"), None, has_id=False) is False


async def test_a_handler_of_batches_must_say_for_which_message(make_spine: Any) -> None:
    said = []

    async def handler(batch: Batch[bytes]) -> None:
        said.append(await refused(lambda: send(b"v")))
        said.append(await refused(lambda: send(b"v", source=Message(batch[0].delivery, b"v"))))

    spine = make_spine(handler)
    await spine.run(spine.entries(1))
    assert "source=message" in said[0]
    assert "not in this batch" in said[1]


async def test_a_task_of_the_handler_says_for_which_message_and_a_thread_need_not(make_spine: Any) -> None:
    said = []

    async def handler(message: Message[bytes]) -> None:
        async def task() -> None:
            said.append(await refused(lambda: send(b"from a task")))
            send(b"for a message", source=message)

        await asyncio.create_task(task())
        thread = threading.Thread(target=copy_context().run, args=(send, b"from a thread"))
        thread.start()
        thread.join()

    spine = make_spine(handler, kind="message")
    await spine.run(spine.entries(1))
    assert values(spine) == [b"for a message", b"from a thread"]
    assert "source=message" in said[0]


async def test_a_task_that_outlives_its_handler_publishes_nothing_in_silence(make_spine: Any) -> None:
    said, tasks, go = list[str](), list[asyncio.Task[None]](), asyncio.Event()

    async def handler(message: Message[bytes]) -> None:
        async def task() -> None:
            await go.wait()
            said.append(await refused(lambda: send(b"late", source=message)))

        tasks.append(asyncio.create_task(task()))

    spine = make_spine(handler, kind="message")
    await spine.run(spine.entries(1))
    go.set()
    await asyncio.wait(tasks)
    assert said == ["app.publish was called after its handler had ended; wait in the handler for whatever publishes"]
    assert values(spine) == []
