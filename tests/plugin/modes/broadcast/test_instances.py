"""Instances that broadcast, on a Kafka in memory: each gets everything, in both ways to keep positions."""

from __future__ import annotations

import pytest
from tests.plugin.modes.broadcast.instances import FileOf, Instance

from ackwise import RetryInPlace
from ackwise.middleware.events import EventCode
from ackwise.testing import MemoryKafka

pytestmark = pytest.mark.filterwarnings("error")


async def test_every_instance_gets_everything(kafka: MemoryKafka, file_of: FileOf) -> None:
    async with Instance(kafka, "web-1", file_of("web-1")) as one, Instance(kafka, "web-2", file_of("web-2")) as two:
        for partition in (0, 1):
            kafka.produce("changes", b"a", b"b", partition=partition)
        for instance in (one, two):
            await instance.until(lambda instance=instance: len(instance.seen) == 4)  # type: ignore[misc]
    assert sorted(one.seen) == sorted(two.seen) == [b"a", b"a", b"b", b"b"]


async def test_B01_what_fails_is_dropped_counted_and_passed(kafka: MemoryKafka, file_of: FileOf, caplog: pytest.LogCaptureFixture) -> None:
    async with Instance(kafka, "web-1", file_of("web-1")) as one:
        kafka.produce("changes", b"bad", b"good")
        await one.until(lambda: one.committed().get(0) == 2)
    assert one.seen == [b"bad", b"good"]
    (dropped,) = one.codes(EventCode.DROPPED)
    assert (dropped.offset, dropped.handler, dropped.error) == (0, "evict", "not-retried")
    assert one.codes(EventCode.SENT_BACK) == one.codes(EventCode.DEAD_LETTERED) == []
    assert "messages dropped in broadcasting" in caplog.text


async def test_B03_there_are_no_topics_and_no_groups_for_what_comes_back(kafka: MemoryKafka) -> None:
    async with Instance(kafka, "web-1") as one:
        kafka.produce("changes", b"bad")
        await one.until(lambda: bool(one.codes(EventCode.DROPPED)))
    assert [topic for topic in kafka._cluster.topics if topic.startswith("cache")] == []


async def test_a_new_instance_begins_at_the_end_or_as_told_and_goes_on_where_it_was(kafka: MemoryKafka, file_of: FileOf) -> None:
    kafka.produce("changes", b"before")
    async with Instance(kafka, "web-1", file_of("web-1")) as one:
        await one.until(lambda: len(one.committed()) == 2)
        kafka.produce("changes", b"now")
        await one.until(lambda: one.seen == [b"now"])
    kafka.produce("changes", b"while it was away")
    async with Instance(kafka, "web-1", file_of("web-1")) as again:
        await again.until(lambda: again.seen == [b"while it was away"])
    async with Instance(kafka, "web-2", file_of("web-2"), start="earliest") as whole:
        await whole.until(lambda: whole.seen == [b"before", b"now", b"while it was away"])
    assert {event.from_commit for event in one.codes(EventCode.ASSIGNED)} == {False}
    assert {event.from_commit for event in again.codes(EventCode.ASSIGNED)} == {True}


async def test_with_an_order_a_failure_is_tried_again_in_place_and_dropped_at_its_limit(kafka: MemoryKafka) -> None:
    one = Instance(kafka, "web-1", order="partition", in_place=RetryInPlace(2, delay=0.01))
    async with one:
        kafka.produce("changes", b"bad", b"good")
        await one.until(lambda: one.committed().get(0) == 2)
    assert one.seen == [b"bad", b"bad", b"bad", b"good"]
    assert [event.error for event in one.codes(EventCode.DROPPED)] == ["max-reconsume-times"]
