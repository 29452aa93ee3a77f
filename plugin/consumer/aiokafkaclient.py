"""aiokafka's consumer as a `Client`. Hosts on aiokafka, and what Faust fetches with, ask it through this alone."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, cast

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from ackwise.middleware.errors import AckwiseError
from ackwise.plugin.consumer.assignment import Opening
from ackwise.plugin.consumer.fetching import FETCHED
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.staticmember import StaticMember
from ackwise.plugin.kafka import aiokafkainternals
from ackwise.plugin.kafka.brokeroffsets import EARLIEST, LATEST, Asked, Topic, ask, known_offsets, topics_of
from ackwise.plugin.kafka.fetchbuffer import Taking
from ackwise.plugin.kafka.recordbatches import RawRecords, read_raw

#: Asked for no partitions.
_NOBODYS: Final = TopicPartition("", -1)


class AiokafkaClient:
    """`consumer`, which is started, for the group `group`. `plugin/consumer/clientprotocol.py` describes its methods."""

    def __init__(self, consumer: AIOKafkaConsumer, group: str, *, wait: int | None = None, static: StaticMember | None = None) -> None:
        """`wait`: milliseconds that the broker keeps a fetch which finds nothing, while something is expected; `None` leaves it as it is.

        `static` is the membership of a worker with its own id.
        """
        self.consumer: Any = consumer
        self._group = group
        self._wait = wait
        self._static = static
        self._taking = Taking(consumer)
        self.positions = partial(aiokafkainternals.positions_of, consumer)
        self.raising = partial(aiokafkainternals.standing_before_errors, consumer)
        self.revive = partial(aiokafkainternals.revive, consumer)
        self.rejoin_if_broken = partial(aiokafkainternals.rejoin_if_broken, consumer)
        self.missing_topics = partial(aiokafkainternals.missing_topics, consumer)
        self.look_for_topics = partial(aiokafkainternals.look_for_topics, consumer)
        self.is_gone = partial(aiokafkainternals.has_no_partitions, consumer)

    def subscribe(self, topics: Iterable[str], member: Member, opening: Opening) -> None:
        """Join the group for `topics`; `opening` gets what is assigned, and drains what is revoked."""
        self.consumer.subscribe([*topics], listener=_Listener(member, opening))

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], /) -> object:
        """See `Broker`."""
        await self.consumer.commit(offsets)
        return None

    async def beginning_offsets(self, partitions: list[TopicPartition], /) -> Mapping[TopicPartition, int]:
        """See `Broker`."""
        return await known_offsets(self.consumer, EARLIEST, partitions)

    async def end_offsets(self, partitions: list[TopicPartition], /) -> Mapping[TopicPartition, int]:
        """See `Broker`."""
        return await known_offsets(self.consumer, LATEST, partitions)

    async def ask(self, partitions: Collection[TopicPartition], /) -> Asked:
        """See `Broker`."""
        return await ask(self.consumer, self._group, partitions)

    async def topics_of(
        self, partitions: Collection[TopicPartition], /
    ) -> tuple[Mapping[TopicPartition, Topic], Mapping[TopicPartition, KafkaError]]:
        """See `Broker`."""
        return await topics_of(self.consumer, partitions)

    def assignment(self) -> AbstractSet[TopicPartition]:
        """See `Assignment`."""
        return cast("AbstractSet[TopicPartition]", self.consumer.assignment())

    def paused(self) -> AbstractSet[TopicPartition]:
        """See `Assignment`."""
        return cast("AbstractSet[TopicPartition]", self.consumer.paused())

    def seek(self, partition: TopicPartition, offset: int, /) -> None:
        """See `Assignment`."""
        self.consumer.seek(partition, offset)

    def pause(self, partition: TopicPartition, /) -> None:
        """See `Assignment`."""
        self.consumer.pause(partition)

    def resume(self, partition: TopicPartition, /) -> None:
        """See `Assignment`."""
        self.consumer.resume(partition)

    async def take(
        self, partitions: Collection[TopicPartition] | None, /, *, timeout: float, most: int | None
    ) -> Mapping[Any, Sequence[Any]]:
        """See `Source`."""
        aiokafkainternals.raise_group_errors(self.consumer)
        asked = () if partitions is None else partitions or (_NOBODYS,)
        return await self._taking.take(*asked, timeout_ms=round(timeout * 1000), most=most or FETCHED)

    async def wait(self, timeout: float, /) -> bool:
        """See `Source`."""
        aiokafkainternals.raise_group_errors(self.consumer)
        return aiokafkainternals.has_stopped_fetching(self.consumer) or await self._taking.wait(timeout)

    async def read_past(self, partition: TopicPartition, position: int, /) -> RawRecords:
        """See `Source`."""
        return await read_raw(self.consumer, partition, position)

    def answered_at(self, partition: TopicPartition, /) -> int | None:
        """See `Source`."""
        return cast("int | None", self.consumer.last_poll_timestamp(partition))

    def require_membership(self) -> None:
        """See `Source`."""
        if self._static is not None:
            self._static.require()
        if aiokafkainternals.has_left_the_group(self.consumer):
            raise AckwiseError(
                f"the Kafka client of group {self._group!r} has left the group and does not come back; the worker stops, start it again"
            )

    def expect(self, idle: int | None, /) -> None:
        """See `Client`. While a lane is at work the client may fetch for some alone, and what the others have waits for that answer."""
        if self._wait is not None:
            aiokafkainternals.set_fetch_wait(self.consumer, self._wait if idle is None else aiokafkainternals.idle_wait(idle))


class _Listener(ConsumerRebalanceListener):
    """aiokafka logs and swallows what a listener raises; a partition without a lane would then never be consumed."""

    def __init__(self, member: Member, opening: Opening) -> None:
        self._member = member
        self._opening = opening

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, revoked: Iterable[TopicPartition]
    ) -> None:
        await asyncio.wait({self._member.spawn(self._opening.give_up(revoked), "revoke")})

    async def on_partitions_assigned(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, assigned: Iterable[TopicPartition]
    ) -> None:
        self._opening.note(assigned)
