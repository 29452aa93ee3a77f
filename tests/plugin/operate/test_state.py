"""What a look at a member says of it: a real member with lanes in memory, whose broker is never asked."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from tests.fakes import FULL_DISK, Publisher, Sink
from tests.tables import each
from tests.waiting import until

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.streaming import InFlight, Streaming
from ackwise.middleware.policies.policies import DeadLetter, Dedup
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.storage.claimstore import ClaimStore, ColumnExchange, ColumnResult
from ackwise.plugin.consumer.lane import Lane, Told
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.operate.state import State, by_agent, look
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.stores.memory import MemoryStore

ORDERS, RETRY = TopicPartition("orders", 0), TopicPartition("billing.retry", 0)

Handler = Callable[[Batch[Any]], Awaitable[object]]


class AwayStore(MemoryStore):
    async def exchange_columns(self, exchange: ColumnExchange) -> ColumnResult:
        raise StoreUnavailable("it is unavailable")


async def do_nothing(batch: Batch[Any]) -> None: ...


def agent(name: str, topic: str, handler: Handler = do_nothing) -> Agent:
    return Agent(name, (topic,), "batch", handler, lambda value: value)


def make_member(*agents: Agent, store: ClaimStore | None = None, key: Callable[..., Any] | None = None, sink: Any = None) -> Member:
    member = Member(
        HostSettings(brokers="nowhere:1", group="billing"),
        agents,
        Parts(
            ConsumeLater(3, levels="1s 1h"), DeadLetter(), dedup=None if store is None else Dedup(store, key=key), store=store, sink=sink
        ),
    )
    member._build_pipelines(Publisher())  # type: ignore[arg-type]  # what a member does when it is opened, without its broker
    return member


def give(member: Member, partition: TopicPartition, count: int, **fields: Any) -> Lane:
    """A lane of `partition` at offset 100 that was offered `count` messages."""
    lane = member.lane(*partition, "source" if partition is ORDERS else "retry", 100, **fields)
    member.lanes[partition] = (lane,)
    lane.offer([*deliveries(partition, count)])
    return lane


def deliveries(partition: TopicPartition, count: int, headers: tuple[tuple[str, bytes], ...] = ()) -> Iterator[Delivery]:
    for offset in range(100, 100 + count):
        yield Delivery(*partition, offset, 0, b"the key", b"the value", headers, Origin(*partition, offset, 0))


async def end(*lanes: Lane) -> None:
    for lane in lanes:
        lane.cut()
        assert lane.task is not None
        await lane.task


def told(state: State) -> str:
    return json.dumps(dataclasses.asdict(state))


def test_what_was_fetched_is_in_hand_and_lags_behind_the_end_of_its_log() -> None:
    member = make_member(agent("bill", "orders"))
    give(member, ORDERS, 3, agent="bill").told = Told(90)
    (lane,) = look(member, {ORDERS: 110}).lanes
    assert (lane.topic, lane.partition, lane.role, lane.agent) == ("orders", 0, "source", "bill")
    assert (lane.position, lane.committed, lane.watermark, lane.end, lane.lag) == (103, 90, 100, 110, 10)
    assert (lane.in_hand, lane.running, lane.held) == (3, 0, ())


def test_the_lag_behind_an_end_that_nobody_knows_is_unknown() -> None:
    member = make_member(agent("bill", "orders"))
    give(member, ORDERS, 3)
    (lane,) = look(member, {}).lanes
    assert (lane.end, lane.lag, lane.committed, lane.agent) == (None, None, None, None)


def test_a_member_without_lanes_still_names_its_agents_and_its_topics() -> None:
    state = look(make_member(agent("ship", "parcels"), agent("bill", "orders")), {})
    assert [(one.agent, one.topics, one.in_hand) for one in state.agents] == [("bill", ("orders",), 0), ("ship", ("parcels",), 0)]
    assert (state.group, state.topics.retry, state.topics.dead_letters) == ("billing", "billing.retry", "billing.dlq")
    assert state.topics.delay == "billing.delay"


def test_without_a_store_nothing_is_said_of_claims() -> None:
    state = look(make_member(agent("bill", "orders")), {})
    assert (state.claims, state.store_down, state.event_log_outage) == (None, None, False)


async def test_what_a_handler_works_on_is_taken_and_holds_a_claim_each() -> None:
    goes_on, begun = asyncio.Event(), asyncio.Event()

    async def wait(batch: Batch[Any]) -> None:
        begun.set()
        await goes_on.wait()

    member = make_member(agent("bill", "orders", wait), store=MemoryStore())
    lane = give(member, ORDERS, 3)
    lane.start()
    await begun.wait()
    state = look(member, {ORDERS: 103})
    (bill,) = state.agents
    assert (bill.in_hand, bill.waiting, bill.taken, bill.held, state.claims) == (3, 0, 3, 0, 3)
    assert (state.lanes[0].running, state.lanes[0].lag) == (3, 3)
    goes_on.set()
    await until(lambda: lane.in_hand == 0)
    state = look(member, {ORDERS: 103})
    assert (state.agents[0].taken, state.claims, state.store_down, state.lanes[0].watermark, state.lanes[0].lag) == (0, 0, False, 103, 0)
    await end(lane)


async def test_what_waits_for_a_loop_is_told_from_what_it_has_taken() -> None:
    given: list[InFlight] = []

    async def flush() -> None: ...

    member = make_member(agent("bill", "orders"))
    member.pipelines["bill"] = pipeline = Pipeline(
        member.pipelines["bill"].agent, member.worker, partial(Streaming, hand_over=given.extend, flush=flush)
    )
    member.routes._by_topic["orders"] = pipeline
    lane = give(member, ORDERS, 3, overlapping=True)
    lane.start()
    await until(lambda: given)
    given[0].take(0.0)
    (bill,) = look(member, {}).agents
    assert (bill.in_hand, bill.waiting, bill.taken) == (3, 2, 1)
    for one in given:
        one.decide()
    await until(lambda: lane.in_hand == 0)
    await end(lane)


async def test_a_store_that_is_away_shows_in_what_is_held_and_why() -> None:
    member = make_member(agent("bill", "orders"), store=AwayStore())
    lane = give(member, ORDERS, 3)
    lane.start()
    await until(lambda: lane.held)
    state = look(member, {})
    (held,) = state.lanes[0].held
    assert (held.why, held.messages, held.offset, state.agents[0].held) == ("the store is not available", 3, 100, 3)
    assert held.again_in is not None
    assert 0 <= held.again_in <= 5
    assert state.store_down is True
    await end(lane)


async def test_an_event_log_that_cannot_be_written_shows_as_an_outage() -> None:
    sink = Sink()
    sink.error = FULL_DISK
    member = make_member(agent("bill", "orders"), sink=sink)
    lane = give(member, ORDERS, 1)
    lane.start()
    await until(lambda: lane.held)
    state = look(member, {})
    assert (state.event_log_outage, state.lanes[0].held[0].why) == (True, "the event log is not durable, nothing is started")
    await end(lane)


async def test_messages_that_ran_without_a_key_are_counted_for_their_agent() -> None:
    member = make_member(agent("bill", "orders"), agent("ship", "parcels"), store=MemoryStore(), key=lambda message: None)
    lane = give(member, ORDERS, 3)
    lane.start()
    await until(lambda: lane.in_hand == 0)
    assert {one.agent: one.undeduplicated for one in look(member, {}).agents} == {"bill": 3, "ship": 0}
    await end(lane)


def test_copies_are_counted_for_the_agent_that_they_name_and_unreadable_ones_for_none() -> None:
    member = make_member(agent("bill", "orders"), agent("ship", "parcels"))
    lane = give(member, RETRY, 0)
    lane.offer([*deliveries(RETRY, 1, headers=(("ackwise-version", b"99"),))])
    in_hand, held = by_agent(member)
    assert (in_hand, held) == ({"bill": 0, "ship": 0, "-": 1}, {"bill": 0, "ship": 0})


@each("secret", ["the key", "the value"])
async def test_nothing_of_a_message_stands_in_a_state(secret: str) -> None:
    member = make_member(agent("bill", "orders"), store=AwayStore(), key=lambda message: message.value)
    lane = give(member, ORDERS, 3)
    lane.start()
    await until(lambda: lane.held)
    assert secret not in told(look(member, {}))
    await end(lane)


class Broker:
    """Knows where logs end, or does not answer."""

    def __init__(self, answer: dict[TopicPartition, int] | Exception) -> None:
        self.answer = answer
        self.asked: list[list[TopicPartition]] = []

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        self.asked.append(partitions)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@each(
    ("answer", "ends"),
    [({ORDERS: 110}, {ORDERS: 110}), (KafkaConnectionError("nobody there"), {}), (TimeoutError(), {})],
)
async def test_the_ends_of_the_logs_are_what_the_broker_says_and_unknown_if_it_does_not(answer: Any, ends: object) -> None:
    member, broker = make_member(agent("bill", "orders")), Broker(answer)
    member._client = broker  # type: ignore[assignment]  # it is asked for nothing else
    give(member, ORDERS, 1)
    assert await member.ends() == ends
    assert broker.asked == [[ORDERS]]


async def test_a_broker_is_not_asked_for_the_ends_of_no_logs() -> None:
    member, broker = make_member(agent("bill", "orders")), Broker({})
    member._client = broker  # type: ignore[assignment]  # it is asked for nothing else
    assert (await member.ends(), broker.asked) == ({}, [])


async def test_what_is_held_for_no_matter_of_time_has_no_time_to_come_up_again() -> None:
    member = make_member(agent("bill", "orders"), store=AwayStore())
    lane = give(member, ORDERS, 1)
    lane.start()
    await until(lambda: lane.held)
    await end(lane)
    lane.held[0].not_before = math.inf
    (held,) = look(member, {}).lanes[0].held
    assert held.again_in is None
