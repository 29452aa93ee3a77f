"""A worker of Faust on a desk: agents, streams, lanes and the member are those of a `faust worker`; only Kafka is made of lists."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import faust
import pytest
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata
from faust.types import TP
from tests import fakes
from tests.waiting import PATIENCE

from ackwise.middleware.message.message import Delivery, Message, Origin
from ackwise.middleware.message.wire import Copy
from ackwise.middleware.pipeline.streaming import Flight, InFlight
from ackwise.middleware.runs.run import Run
from ackwise.plugin.consumer.fetching import Fetched
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.faust import use
from ackwise.plugin.faust.fausthost import FaustHost
from ackwise.plugin.kafka import brokeroffsets
from ackwise.plugin.kafka.brokeroffsets import Asked, Standing, Topic, known_offsets, topics_of


class Publisher(fakes.Publisher):
    """As a host starts and stops it."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Broker:
    """What the host asks of Faust's consumer. A group that never committed starts at offset 100."""

    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        self.assigned: set[TP] = set()
        self.topic = Topic()  #: that of every partition
        self.say_where: Callable[[Collection[TopicPartition]], Awaitable[Asked]] = _at_100

    def assignment(self) -> set[TP]:
        return self.assigned

    async def call(self, ask: Any, *args: Any) -> Any:
        if ask is brokeroffsets.ask:
            return await self.say_where(args[1])
        if ask is topics_of:
            return dict.fromkeys(args[0], self.topic), {}
        return dict.fromkeys(args[1] if ask is known_offsets else args[0], 0)

    async def on_task_error(self, error: BaseException) -> None: ...

    async def commit_settled(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        self.commits.append({partition: each.offset for partition, each in offsets.items()})


class Client:
    """The Kafka client of Faust's producer. What is sent is acknowledged at once, unless `answer` says when, or with what error."""

    def __init__(self) -> None:
        self.sent: list[bytes | None] = []
        self.answer: Callable[[asyncio.Future[Any]], None] = lambda report: report.set_result(None)
        self._reports: list[asyncio.Future[Any]] = []
        self._sender = SimpleNamespace(sender_task=None)  # by these two it is seen whether a client has stopped by itself
        self.client = SimpleNamespace(_sync_task=None)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def send(self, topic: str, value: bytes | None, **_: object) -> asyncio.Future[Any]:
        report = asyncio.get_running_loop().create_future()
        self.sent.append(value)
        self._reports.append(report)
        self.answer(report)
        return report

    async def flush(self) -> None:
        await asyncio.gather(*self._reports, return_exceptions=True)


class Desk:
    """A worker of group `billing`, with partition 3 of the topics."""

    orders = TopicPartition("orders", 3)

    def __init__(self, app: faust.App, publisher: Publisher) -> None:
        self.app = app
        self.host: FaustHost = cast(Any, app).ackwise
        self.publisher = publisher
        self.broker = Broker()
        self.client = Client()
        cast(Any, app.producer)._new_producer = lambda: self.client
        cast(Any, app.producer).create_topic = _exists
        cast(Any, app)._consumer = self.broker
        self.topics: tuple[str, ...] = ("orders",)

    async def start(self) -> None:
        await cast(Any, self.app.producer).start()
        await self.host.open(cast(Any, self.broker))
        for agent in self.app.agents.values():
            await cast(Any, agent).start()
        await self.assign(*self.topics, "billing.retry")

    async def assign(self, *topics: str) -> None:
        """As if the group had given us partition 3 of `topics`, and the broker had said where they go on."""
        await self.assign_all([TP(topic, 3) for topic in topics])
        await self.until(lambda: all(self.is_read(TopicPartition(topic, 3)) for topic in topics), "a lane for each partition")

    async def assign_all(self, assigned: Collection[TP]) -> None:
        """As if the group had given us these."""
        self.broker.assigned |= {*assigned}
        await self.host.assigned(assigned)

    def is_read(self, partition: TopicPartition) -> bool:
        """Whether it is known where it goes on."""
        return partition in self.host.lanes and not self.host.awaits(partition)

    def resume(self, partition: TopicPartition) -> int:
        """The offset that is fetched next."""
        return self.host.lanes[partition][0].position

    async def stop(self) -> None:
        await self.host.drain()
        for agent in self.app.agents.values():
            await cast(Any, agent).stop()
        with nullcontext() if self.fatal is None else pytest.raises(type(self.fatal)):
            await self.host.close()
        await cast(Any, self.app.producer).stop()

    @property
    def fatal(self) -> BaseException | None:
        """What ends the worker."""
        return cast(Any, self.host)._member.fatal  # type: ignore[no-any-return]  # of a member

    async def revoke(self) -> None:
        """As if another worker took the partition of the orders."""
        await self.host.revoked([TP("orders", 3)])
        self.broker.assigned.discard(TP("orders", 3))

    def lanes(self, topic: str = "orders") -> tuple[Lane, ...]:
        return cast(Any, self.host)._member.lanes[TopicPartition(topic, 3)]  # type: ignore[no-any-return]  # of a member

    def fetch(self, *values: bytes | None, topic: str = "orders", start: int = 100, **fields: Any) -> None:
        """As if these had been fetched, with offsets from `start`."""
        assert self.host.take(self.fetched(*values, topic=topic, start=start, **fields)) == {}

    def fetched(self, *values: bytes | None, topic: str = "orders", start: int = 100, **fields: Any) -> Fetched:
        """What the thread of the consumer would hand over now."""
        partition = TopicPartition(topic, 3)
        about = {"topic": topic, "partition": 3, "timestamp": 1_700_000_000_000, "key": b"k", "headers": (), **fields}
        records = [SimpleNamespace(offset=start + index, value=value, **about) for index, value in enumerate(values)]
        fetched = Fetched()
        fetched[partition] = records
        fetched.lanes, fetched.left_at = {partition: self.host.lanes[partition][0]}, {partition: start + len(values)}
        return fetched

    def bring_back(self, copy: Copy, offset: int = 100) -> None:
        """As if the relay had brought `copy` to the retry topic."""
        self.fetch(copy.value, topic="billing.retry", start=offset, key=copy.key, headers=copy.headers)

    async def until(self, condition: Callable[[], bool], what: str = "it") -> None:
        """Until `condition` holds, which is looked at whenever the loop has nothing else to do."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():  # noqa: ASYNC110  # what it waits for wakes nobody here
                    await asyncio.sleep(0.002)
        except TimeoutError:
            raise AssertionError(f"{what} did not happen") from None

    async def until_passed(self, offset: int, topic: str = "orders") -> None:
        """Until everything below `offset` is settled."""
        await self.until(lambda: all(lane.watermark.commit == offset for lane in self.lanes(topic)), f"the watermark {offset}")

    async def committed(self, topic: str = "orders") -> int | None:
        """What is committed, once what is settled is."""
        await self.host.commit()
        partition = TopicPartition(topic, 3)
        return next((offsets[partition] for offsets in reversed(self.broker.commits) if partition in offsets), None)

    def sent(self) -> list[tuple[str, bytes | None]]:
        """Topic, with the rung of a copy that waits, and value of each acknowledged copy."""
        return [(topic, copy.value) for topic, copy in zip(self.publisher.topics, self.publisher.sent, strict=True)]


def reading(*topics: str, name: str = "bill", **options: Any) -> Callable[[faust.App], object]:
    """Declares an agent that does nothing with what it reads."""

    async def loop(stream: Any) -> None:
        async for _ in stream:
            pass

    return lambda app: app.agent(app.topic(*(topics or ("orders",)), value_serializer="raw"), name=name, **options)(loop)


def flown(count: int) -> list[InFlight]:
    """Messages on their way to an agent; their values are their offsets."""
    made = []
    for offset in range(count):
        delivery = Delivery("orders", 0, offset, 0, None, b"", (), Origin("orders", 0, offset, 0))
        made.append(InFlight(Run.of(delivery), Message(delivery, offset), count))
    Flight(made)
    return made


async def _at_100(partitions: Collection[TopicPartition]) -> Asked:
    return Asked(dict.fromkeys(partitions, Standing(None, 100, 100)), {})


async def _exists(*_: object, **__: object) -> None:
    """As if the topic were there already."""


@asynccontextmanager
async def desk(monkeypatch: pytest.MonkeyPatch, declare: Callable[[faust.App], object], *things: Any, **said: Any) -> AsyncIterator[Desk]:
    """A desk whose agents `declare` declares on a stock app that uses `things`; `said` are settings."""
    publisher = Publisher()
    monkeypatch.setattr("ackwise.plugin.consumer.startup.KafkaPublisher", lambda settings, **_: publisher)
    monkeypatch.setattr("ackwise.plugin.topics.controltopic.KNOWN_WITHIN", 0.0)  # nobody here says what is paused
    app = faust.App("billing", broker="kafka://127.0.0.1:1")
    settings: Any = {"drain_timeout": 0.05, **said}
    use(app, *things, **settings)
    declare(app)
    made = Desk(app, publisher)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()
