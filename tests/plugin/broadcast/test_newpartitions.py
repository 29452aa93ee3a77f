"""Which partitions are new: those without a position, of a topic that the instance has begun with."""

from __future__ import annotations

from collections.abc import Collection

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError

from ackwise.plugin.broadcast.newpartitions import NewPartitions
from ackwise.plugin.client.offsets import Asked, Committed, Standing

PLACES = [TopicPartition("changes", number) for number in range(3)]


class Brokers:
    """What was committed, and which partitions no broker answers for."""

    def __init__(self, *committed: int, silent: Collection[int] = ()) -> None:
        self.committed = committed
        self.silent = silent

    async def __call__(self, partitions: Collection[TopicPartition]) -> Asked:
        found = Asked({}, {})
        for partition in partitions:
            if partition.partition in self.silent:
                found.unknown[partition] = KafkaConnectionError("away")
            else:
                position = Committed(5, "") if partition.partition in self.committed else None
                found.known[partition] = Standing(position, 0, 9)
        return found


def new_in(asked: Asked) -> list[int]:
    return [partition.partition for partition, standing in asked.known.items() if standing.is_new]


async def test_new_is_what_has_no_position_beside_one_that_has_or_in_a_topic_that_the_file_has() -> None:
    for begun_with, committed, new in [((), (), []), ((), (1,), [0, 2]), ({"changes"}, (), [0, 1, 2])]:
        assert new_in(await NewPartitions(begun_with).ask(Brokers(*committed), PLACES)) == new, (begun_with, committed)


async def test_one_that_comes_after_the_others_is_new_and_one_of_the_first_that_is_asked_for_again_is_not() -> None:
    partitions = NewPartitions()
    await partitions.ask(Brokers(), PLACES[:2])
    assert new_in(await partitions.ask(Brokers(), PLACES[2:])) == [2]
    assert new_in(await partitions.ask(Brokers(0, 2), PLACES[1:2])) == []


async def test_while_a_position_may_be_there_none_begins_without_one() -> None:
    partitions = NewPartitions()
    some = await partitions.ask(Brokers(0, silent=[0]), PLACES)
    assert (some.known, sorted(some.unknown)) == ({}, PLACES)
    assert new_in(await partitions.ask(Brokers(0), PLACES)) == [1, 2]


async def test_what_has_a_position_goes_on_while_others_are_not_known_and_is_remembered() -> None:
    partitions = NewPartitions()
    some = await partitions.ask(Brokers(0, silent=[1]), PLACES)
    assert sorted(some.known) == [PLACES[0], PLACES[2]]
    assert new_in(some) == [2]
    assert new_in(await partitions.ask(Brokers(), PLACES[1:])) == [1, 2]
