"""Where partitions go on, by what the brokers and the database of `Transactional(mode="offsets")` say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupLoadInProgressError, KafkaConnectionError, KafkaError
from tests.fakes import FULL_DISK, Sink

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.policies.policies import DeadLetter, Transactional
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.progress.commitmetadata import CommitMetadata, group_hash
from ackwise.middleware.storage.transaction import Progress
from ackwise.plugin.consumer.commits import Position
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startpositions import Positions
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.kafka.brokeroffsets import Asked, Committed, Standing, Topic
from ackwise.plugin.settings.hostsettings import HostSettings

ORDERS = TopicPartition("orders", 0)
RETRY = TopicPartition("billing.retry", 0)


class Passed:
    """A database that has passed ten offsets of every partition."""

    def __init__(self) -> None:
        self.is_away = False

    async def take_over(self, owner: str, topic: str, partition: int, *, position: int) -> Progress:
        if self.is_away:
            raise StoreUnavailable("away")
        return Progress(10, 2)


class Scene:
    """Positions of a member whose brokers say what the test wants of them."""

    def __init__(self, *, start: Any = "earliest", database: Any = None, sink: Any = None, **standings: Standing | KafkaError) -> None:
        settings = HostSettings(brokers="nowhere:1", group="billing", start=start)
        dedup = None if database is None else Transactional(database, mode="offsets")
        self.member = Member(settings, [], Parts(ConsumeLater(), DeadLetter(), dedup=dedup, inbox=database, sink=sink))
        self.say: Mapping[TopicPartition, Standing | KafkaError] = {}
        self.positions = Positions(self.member, self._ask)

    async def _ask(self, partitions: Collection[TopicPartition]) -> Asked:
        said = {partition: self.say.get(partition, KafkaConnectionError()) for partition in partitions}
        return Asked(
            {partition: standing for partition, standing in said.items() if isinstance(standing, Standing)},
            {partition: error for partition, error in said.items() if isinstance(error, KafkaError)},
        )

    async def find(self, standing: Standing | KafkaError, partition: TopicPartition = ORDERS) -> Position | None:
        return _place(await self.ask(standing, partition))

    async def ask(self, standing: Standing | KafkaError, partition: TopicPartition = ORDERS) -> Position | None:
        self.say = {partition: standing}
        return (await self.positions.find([partition])).get(partition)


def _place(found: Position | None) -> Position | None:
    """Where it goes on, without whose log it is."""
    return found and Position(*found[:4])


def at(committed: int | None, start: int, end: int) -> Standing:
    return Standing(None if committed is None else Committed(committed, "metadata"), start, end)


async def test_S19_a_retry_topic_is_read_from_its_beginning_whatever_start_says() -> None:
    for partition, start, position in ((RETRY, "latest", 3), (ORDERS, "latest", 9), (ORDERS, "earliest", 3)):
        assert await Scene(start=start).find(at(None, 3, 9), partition) == Position(position, None)


async def test_a_topic_that_a_pattern_found_later_is_read_from_its_beginning_whatever_start_says(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(start="latest")
    monkeypatch.setattr(scene.member.sources, "begins_whole", lambda topic: topic == ORDERS.topic)
    assert await scene.find(at(None, 3, 9)) == Position(3, None)


async def test_a_group_goes_on_where_it_committed_and_what_it_wrote_beside_is_known() -> None:
    assert await Scene().find(at(5, 3, 9)) == Position(5, 5, None, "metadata")


async def test_nobody_begins_where_it_can_not_be_said_and_the_others_do_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.say = {RETRY: at(5, 3, 9), ORDERS: GroupLoadInProgressError()}
    for _ in range(3):
        found = await scene.positions.find([ORDERS, RETRY])
        assert {partition: _place(each) for partition, each in found.items()} == {RETRY: Position(5, 5, None, "metadata")}
    assert caplog.text.count("start positions could not be read") == 1
    assert await scene.find(at(7, 3, 9)) == Position(7, 7, None, "metadata")


async def test_a_position_outside_of_the_log_begins_at_its_start_since_what_is_there_may_be_new(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """D08, but from the start: RocketMQ goes on at the nearest end, past what it has not delivered."""
    monkeypatch.setattr("ackwise.plugin.consumer.startpositions._LOOKS_AT_END", 1)
    for start, end, passed in ((50, 60, (10, 50)), (0, 3, (0, 10))):
        sink = Sink()
        found = await Scene(sink=sink).find(at(10, start, end))
        assert found is not None
        assert found.next == start
        assert [(event.code, event.offset, event.range_end) for event in sink.events] == [(EventCode.SEEK, *passed)]
    assert caplog.text.count("position out of range") == 2


async def test_a_log_that_ends_too_early_is_looked_at_again_since_a_new_leader_may_not_know_its_end() -> None:
    scene = Scene()
    assert [await scene.find(at(10, 0, 3)) for _ in range(9)] == [None] * 9
    assert await scene.find(at(10, 0, 12)) == Position(10, 10, None, "metadata")
    looks = [await scene.find(at(10, 0, 3)) for _ in range(10)]
    assert looks[:9] == [None] * 9
    assert looks[9] is not None
    assert looks[9].next == 0


async def test_what_a_database_has_passed_is_durable_before_the_broker_can_be_told() -> None:
    sink = Sink()
    scene = Scene(database=Passed(), sink=sink)
    sink.error = FULL_DISK
    assert [await scene.find(at(7, 0, 12)) for _ in range(2)] == [None, None]
    sink.error = None
    assert await scene.find(at(7, 0, 12)) == Position(10, 7, 2, "metadata")
    assert [(event.code, event.offset, event.range_end) for event in sink.durable] == [(EventCode.TX_SETTLED, 7, 10)]


async def test_a_database_that_is_away_is_asked_again_and_retry_topics_do_not_wait_for_it() -> None:
    database = Passed()
    database.is_away = True
    scene = Scene(database=database)
    scene.say = {ORDERS: at(7, 0, 12), RETRY: at(5, 0, 12)}
    assert set(await scene.positions.find([ORDERS, RETRY])) == {RETRY}
    database.is_away = False
    assert set(await scene.positions.find([ORDERS])) == {ORDERS}


async def test_a_topic_that_was_made_anew_is_not_taken_for_one_that_was_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.startpositions._LOOKS_AT_END", 1)
    with pytest.raises(ConfigurationError, match=r"orders/0 goes on at 10, and its log ends at 9: the topic was recreated"):
        await Scene(database=Passed()).find(at(None, 0, 9))


async def test_a_database_that_knows_more_or_less_than_the_broker_is_believed_aloud(caplog: pytest.LogCaptureFixture) -> None:
    assert await Scene(database=Passed()).find(at(None, 0, 12)) == Position(10, None, 2)
    assert "broker lacks an offset the database has" in caplog.text
    assert await Scene(database=Passed()).find(at(11, 0, 12)) == Position(10, 11, 2, "metadata")
    assert "database is behind the broker" in caplog.text


def left(topic: Topic, committed: int | None = None, others: Collection[Committed] = (), *, end: int = 9) -> Standing:
    """A partition whose log has 3 to 9, and what its group left of it."""
    return Standing(None if committed is None else Committed(committed, beside(topic)), 3, end, topic, [*others])


def beside(topic: Topic, group: str = "billing", partitions: int | None = 2) -> str:
    return CommitMetadata(group=group_hash(group), topic_id=topic.id, partitions=partitions, is_open=False).encode()


async def test_a_topic_that_was_made_again_is_read_from_its_start_though_it_has_grown_past_the_commit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Sink()
    scene = Scene(sink=sink, start="latest")
    found = await scene.ask(left(Topic("new", 2))._replace(committed=Committed(5, beside(Topic("old", 2)))))
    assert found is not None
    assert (found.next, found.committed, found.metadata) == (3, None, "")
    assert caplog.text.count("topic was deleted and created again") == 1
    assert [(event.code, event.offset, event.range_end) for event in sink.events] == [(EventCode.SEEK, 3, 5)]


async def test_a_topic_that_was_made_again_is_read_from_its_start_though_its_commits_went_with_the_one_before() -> None:
    scene = Scene(start="latest")
    await scene.ask(left(Topic("old", 2), 5))
    for partition in (ORDERS, TopicPartition("orders", 1)):
        found = await scene.ask(left(Topic("new", 2)), partition)
        assert found is not None
        assert (found.next, found.topic.partitions) == (3, 0), "another worker reads all of the others too"


async def test_an_offset_counts_where_no_id_says_that_it_is_about_another_topic() -> None:
    for before, now in ((None, "new"), ("old", None), (None, None), ("same", "same")):
        found = await Scene().ask(left(Topic(now, 2))._replace(committed=Committed(5, beside(Topic(before, 2)))))
        assert found is not None
        assert found.next == 5, (before, now)


async def test_an_offset_that_was_copied_from_another_group_counts_and_what_stands_beside_it_does_not() -> None:
    copied = Committed(5, beside(Topic("old", 2), "shipping", partitions=1))
    found = await Scene().ask(left(Topic("new", 2))._replace(committed=copied))
    assert found is not None
    assert (found.next, found.topic.partitions) == (5, 2)


async def test_offsets_in_a_database_of_a_topic_that_was_made_again_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"deleted and made again .* raise epoch of Transactional"):
        await Scene(database=Passed()).ask(left(Topic("new", 2), end=50)._replace(committed=Committed(5, beside(Topic("old", 2)))))


async def test_a_partition_that_was_made_since_the_group_began_with_its_topic_is_read_from_its_start() -> None:
    now = Topic("id", 4)
    for number, others, position in (
        (1, [beside(now)], 9),  # it was there, and another worker has started
        (2, [beside(now)], 3),
        (3, [beside(now)], 3),
        (2, [beside(now), beside(now, partitions=4)], 3),  # the least is what the group started with
        (2, [], 9),  # nobody has started
        (2, [beside(now, "shipping"), "somebody else's"], 9),
    ):
        partition = TopicPartition("orders", number)
        found = await Scene(start="latest").ask(left(now, others=[Committed(5, metadata) for metadata in others]), partition)
        assert found is not None
        assert found.next == position, (number, others)


async def test_the_count_of_partitions_that_a_group_began_with_is_told_on() -> None:
    now = Topic("id", 4)
    for standing, count in (
        (left(now), 4),
        (left(now, others=[Committed(5, beside(now))]), 2),
        (left(now, 5), 2),
        (left(now)._replace(committed=Committed(5, "somebody else's")), 4),
    ):
        found = await Scene(start="latest").ask(standing)
        assert found is not None
        assert found.topic == Topic("id", count)


async def test_a_group_whose_offsets_are_gone_though_it_has_copies_is_told_that_messages_may_run_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for standing, partition, warnings in (
        (at(None, 0, 0), RETRY, 0),
        (at(None, 0, 9), ORDERS, 0),
        (at(5, 0, 9), RETRY, 0),
        (at(None, 0, 9), RETRY, 1),
    ):
        scene = Scene()
        await scene.find(standing, partition)
        await scene.find(standing, partition)
        assert caplog.text.count("lost its committed offsets") == warnings, (standing, partition)
