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
from ackwise.middleware.policies import DeadLetter, Transactional
from ackwise.middleware.retry import ConsumeLater
from ackwise.middleware.transaction import Progress
from ackwise.plugin.client.offsets import Asked, Committed, Standing
from ackwise.plugin.group.member import Member
from ackwise.plugin.group.positions import Position, Positions
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
        self.member = Member(settings, [], later=ConsumeLater(), dead_letter=DeadLetter(), dedup=dedup, inbox=database, sink=sink)
        self.say: Mapping[TopicPartition, Standing | KafkaError] = {}
        self.positions = Positions(self.member, self._ask)

    async def _ask(self, partitions: Collection[TopicPartition]) -> Asked:
        said = {partition: self.say.get(partition, KafkaConnectionError()) for partition in partitions}
        return Asked(
            {partition: standing for partition, standing in said.items() if isinstance(standing, Standing)},
            {partition: error for partition, error in said.items() if isinstance(error, KafkaError)},
        )

    async def find(self, standing: Standing | KafkaError, partition: TopicPartition = ORDERS) -> Position | None:
        self.say = {partition: standing}
        return (await self.positions.find([partition])).get(partition)


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
        assert await scene.positions.find([ORDERS, RETRY]) == {RETRY: Position(5, 5, None, "metadata")}
    assert caplog.text.count("where partitions go on can't be read now") == 1
    assert await scene.find(at(7, 3, 9)) == Position(7, 7, None, "metadata")


async def test_a_position_outside_of_the_log_begins_at_its_start_since_what_is_there_may_be_new(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ackwise.plugin.group.positions._LOOKS_AT_END", 1)
    for start, end, passed in ((50, 60, (10, 50)), (0, 3, (0, 10))):
        sink = Sink()
        found = await Scene(sink=sink).find(at(10, start, end))
        assert found is not None
        assert found.next == start
        assert [(event.code, event.offset, event.range_end) for event in sink.events] == [(EventCode.SEEK, *passed)]
    assert caplog.text.count("the position is outside of what the topic holds") == 2


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
    monkeypatch.setattr("ackwise.plugin.group.positions._LOOKS_AT_END", 1)
    with pytest.raises(ConfigurationError, match=r"orders/0 goes on at 10, and its log ends at 9: the topic was made anew"):
        await Scene(database=Passed()).find(at(None, 0, 9))


async def test_a_database_that_knows_more_or_less_than_the_broker_is_believed_aloud(caplog: pytest.LogCaptureFixture) -> None:
    assert await Scene(database=Passed()).find(at(None, 0, 12)) == Position(10, None, 2)
    assert "the database is believed" in caplog.text
    assert await Scene(database=Passed()).find(at(11, 0, 12)) == Position(10, 11, 2, "metadata")
    assert "the database is behind the broker" in caplog.text
