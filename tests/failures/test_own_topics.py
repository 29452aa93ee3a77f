"""Topics of the group that are deleted while its worker runs, and a store that is down when it starts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.fakes import Sink
from tests.waiting import until

from ackwise import App, ConsumeLater, DeadLetter, Dedup, Message
from ackwise.middleware.errors import ConfigurationError, EventLogUnavailable, StoreUnavailable, Unavailable
from ackwise.plugin.aiokafkahost import AiokafkaHost
from ackwise.plugin.consumer.deletedtopics import OwnTopics
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.stores.memory import MemoryStore
from ackwise.testing import MemoryKafka, TestApp


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_LOOK_EVERY", 0.05), ("_CONFIRM", 1.0), ("_FIRST", 0.05), ("_LONGEST", 0.05)):
        monkeypatch.setattr(f"ackwise.plugin.consumer.deletedtopics.{name}", seconds)
    monkeypatch.setattr("ackwise.plugin.consumer.polling._LOOK_FOR_TOPICS", 0.2)
    monkeypatch.setattr("ackwise.plugin.delays.delayrelay._BEGIN_ANEW", (0.05, 0.2))
    monkeypatch.setattr("ackwise.plugin.consumer.workerstate.EVERY", 0.5)
    monkeypatch.setattr("ackwise.plugin.producer.copypublisher._TIMEOUT", 1.0)
    monkeypatch.setattr("ackwise.plugin.producer.copypublisher._SILENT", 0.5)
    monkeypatch.setattr("ackwise.middleware.pipeline.settlement.PUBLISH_AGAIN", 0.2)
    monkeypatch.setattr("ackwise.plugin.consumer.startup._START_AGAIN", 0.05)


def failing() -> App:
    app = App("billing", brokers="127.0.0.1:1")
    app.use(ConsumeLater(1, levels="10s"))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        raise ValueError

    return app


@pytest.mark.parametrize(
    ("topic", "forgotten"),
    [
        ("billing.delay", "copies that waited, and cancellations"),
        ("billing.retry", "copies that were due"),
        ("billing.dlq", "dead letters"),
        ("billing.control", "what was paused or buried by command"),
    ],
)
async def test_a_topic_of_the_group_that_goes_is_made_again_and_what_is_forgotten_is_said(
    topic: str, forgotten: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with TestApp(failing()) as worker:
        first = await worker.deliver("orders", b"1")
        assert (await worker.redeliver(first)).kind == "dead"
        worker.kafka.create_topic("billing.dlq.state", cleanup_policy="compact")
        await until(lambda: worker.kafka.committed("billing")["billing.retry", 0].offset == 1)  # else it is tried for ten seconds
        for gone in (topic, "billing.dlq.state"):
            worker.kafka.delete_topic(gone)
        second = await worker.deliver("orders", b"2", max_wait=20)
        assert (await worker.redeliver(second, max_wait=20)).kind == "dead"
        await until(lambda: worker.kafka.has_topic(topic))
        await until(lambda: f'topic={topic} forgotten="{forgotten}' in caplog.text)
        assert not worker.kafka.has_topic("billing.dlq.state"), "only commands make it"
        made = worker.kafka._cluster.topics[topic].configs
        assert ("LogAppendTime" in made.values()) == ("delay" in topic)
    alarms = [record for record in caplog.records if "deleted topic of the group created again" in record.getMessage()]
    assert [record.levelname for record in alarms] == ["ERROR"]


async def test_brokers_that_are_away_are_no_topics_that_are_gone(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    names = TopicNames("billing")
    answers: list[set[str] | None] = [None, None, {names.retry}, None, {*names.all, names.control}]

    async def list_topics(_: HostSettings) -> set[str]:
        if (answer := answers.pop(0)) is None:
            raise Unavailable("the brokers do not answer")
        return answer

    async def ensure() -> None:
        raise AssertionError("nothing is gone")

    monkeypatch.setattr("ackwise.plugin.consumer.deletedtopics.list_topics", list_topics)
    own_topics = OwnTopics(HostSettings("127.0.0.1:1", "billing"), names, ensure)
    own_topics.suspect()
    keeping = asyncio.create_task(own_topics.keep())
    await until(lambda: not answers)
    keeping.cancel()
    assert not caplog.records


async def test_a_topic_that_may_not_be_made_is_an_alarm_and_the_worker_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise ConfigurationError("topic 'billing.dlq' can't be created")

    async with TestApp(failing()) as worker:
        first = await worker.deliver("orders", b"1")
        monkeypatch.setattr("ackwise.plugin.consumer.startup.ensure_topics", refuse)
        worker.kafka.delete_topic("billing.dlq")
        worker.clock.advance_to((first.due or 0) + 1)
        await until(lambda: "missing topics of the group not created" in caplog.text)
        monkeypatch.undo()
        worker.kafka.create_topic("billing.dlq", max_message_bytes=2_000_000)
        assert (await worker.fate(first.place, attempt=2)).kind == "dead"


class DownAtFirst(MemoryStore):
    """A store that can't be reached a few times."""

    down = 3

    async def open(self) -> None:
        if self.down:
            self.down -= 1
            raise StoreUnavailable("redis at 10.0.0.1 does not answer")
        await super().open()


@pytest.mark.parametrize("policy", ["block", "fail_open", "fail_closed"])
async def test_a_store_that_is_down_at_the_start_is_waited_for_and_said(policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    app, seen = App("billing", brokers="127.0.0.1:1"), list[bytes]()
    app.use(Dedup("memory://", on_store_down=policy))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        seen.append(message.value)

    store = DownAtFirst()
    async with TestApp(app, store=store) as worker:
        assert (await worker.deliver("orders", b"1")).kind == "done"
    assert (seen, store.down) == ([b"1"], 0)
    (said,) = (record for record in caplog.records if "store or log could not be opened" in record.getMessage())
    assert (said.levelname, "redis at 10.0.0.1 does not answer" in said.getMessage()) == ("WARNING", True)


class FullDisk(Sink):
    """An event log whose disk is full for a while."""

    down = 2

    async def open(self) -> None:
        if self.down:
            self.down -= 1
            raise EventLogUnavailable("the disk is full")


async def test_an_event_log_that_can_t_be_opened_now_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    stop, sink = asyncio.Event(), FullDisk()
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        agent = failing().group().agents[0]
        settings = HostSettings(kafka.bootstrap, "billing")
        host = AiokafkaHost(settings, [agent], Parts(ConsumeLater(1), DeadLetter(), sink=sink))
        running = asyncio.create_task(host.run(stop))
        await until(lambda: kafka.group("billing").described()["members"] or running.done())
        stop.set()
        await running
    assert sink.down == 0
    assert "part=FullDisk" in caplog.text
