"""What looks after topics beside the handlers: whatever a client raises while it looks, the worker goes on and looks again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from tests.tables import each
from tests.waiting import until

from ackwise.plugin.consumer.deletedtopics import OwnTopics, TopicWatch
from ackwise.plugin.kafka.brokeroffsets import Topic, topics_of
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicnames import TopicNames

ORDERS = TopicPartition("orders", 0)

ODD = [ValueError("bytes is not a 16-char string"), KeyError("topics"), RuntimeError("the client"), OSError(5, "of the network")]


@each("error", ODD)
async def test_a_look_for_topics_that_were_made_again_is_repeated_after_whatever_the_client_raises(error: Exception) -> None:
    lanes: Any = {ORDERS: (SimpleNamespace(log=Topic("first")),)}
    answers: list[Any] = [error, {ORDERS: Topic("second")}]
    begun = list[list[TopicPartition]]()

    async def ask(_: Any) -> Any:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer, {}

    watch = TopicWatch(lambda: lanes, ask, begun.append)
    await watch.look()
    assert begun == []
    await watch.look()
    assert begun == [[ORDERS]]


@each("error", ODD)
async def test_a_topic_whose_id_can_not_be_asked_for_is_unknown_and_not_without_an_id(error: Exception) -> None:
    async def send(*_: object) -> None:
        raise error

    cluster = SimpleNamespace(leader_for_partition=lambda _: 1, partitions_for_topic=lambda _: {0})
    consumer = SimpleNamespace(_client=SimpleNamespace(send=send, cluster=cluster))
    known, unknown = await topics_of(consumer, [ORDERS])
    assert known == {}
    assert isinstance(unknown[ORDERS], KafkaConnectionError)


@each("error", ODD)
async def test_a_topic_of_the_group_is_made_again_after_whatever_the_client_raised_at_first(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = TopicNames("billing")
    there, raised, made = {*names.all, names.control} - {names.retry}, [error], list[bool]()

    async def list_topics(_: HostSettings) -> set[str]:
        return there

    async def ensure() -> None:
        if raised:
            raise raised.pop()
        made.append(True)
        there.add(names.retry)

    monkeypatch.setattr("ackwise.plugin.consumer.deletedtopics.list_topics", list_topics)
    for constant in ("_CONFIRM", "_FIRST", "_LONGEST"):
        monkeypatch.setattr(f"ackwise.plugin.consumer.deletedtopics.{constant}", 0.0)
    own_topics = OwnTopics(HostSettings("127.0.0.1:1", "billing"), names, ensure)
    own_topics.suspect()
    keeping = asyncio.create_task(own_topics.keep())
    await until(lambda: made == [True] or keeping.done())
    keeping.cancel()
    assert made == [True]
