"""Own file: an instance that broadcasts takes all partitions, is in no group, and keeps its positions in a local file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from ackwise.plugin.broadcast.offsetsfile import OffsetsFile
from ackwise.plugin.client.internals import hear_assignments
from ackwise.plugin.client.offsets import Asked, Committed, Reach, Standing, Topic, reaches, topics_of
from ackwise.plugin.consume.consumer import AiokafkaClient
from ackwise.plugin.consume.opening import Opening
from ackwise.plugin.group.member import Member
from ackwise.plugin.group.topics import connected
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["OwnFile"]


class OwnFile:
    """The model of an instance whose positions are in the file `path`."""

    group_id: str | None = None

    def __init__(self, settings: HostSettings, path: Path) -> None:
        self._group = settings.group
        self._path = path

    @asynccontextmanager
    async def opened(self, member: Member, client: AiokafkaClient) -> AsyncIterator[AiokafkaClient]:
        """See `MessageModel.opened`. Raises `ConfigurationError` if the file is another's, damaged or in use."""
        cluster: list[str | None] = []

        async def name_cluster() -> None:
            async with connected(member.settings) as admin:
                cluster.append((await admin.describe_cluster()).get("cluster_id"))

        await member.opening.insist(name_cluster)
        file = OffsetsFile(self._path, self._group, cluster[-1])
        file.open()
        try:
            yield _FileClient(client, file)
        finally:
            await file.close()

    def join(self, member: Member, client: AiokafkaClient, topics: Sequence[str], opening: Opening) -> None:
        """See `MessageModel.join`. All partitions are this instance's, those that are made later too."""
        hear_assignments(client.consumer, partial(_take, member, client, opening))
        client.consumer.subscribe([*topics])


def _take(member: Member, client: AiokafkaClient, opening: Opening) -> None:
    """The client has all partitions there are, and no positions: lanes that go on keep theirs, the others are opened or given up."""
    assigned = client.assignment()
    for partition, lanes in member.lanes.items():
        if partition in assigned:
            client.seek(partition, lanes[0].position)
            lanes[0].left_at = lanes[0].position
    if gone := member.lanes.keys() - assigned:
        member.spawn(opening.give_up(gone), "revoke")
    opening.note(assigned - member.lanes.keys())


class _FileClient(AiokafkaClient):
    """Keeps the positions of a member in a file, and asks the brokers for the rest."""

    def __init__(self, client: AiokafkaClient, file: OffsetsFile) -> None:
        """Take the place of `client`."""
        self.__dict__.update(client.__dict__)
        self._file = file

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], /) -> object:
        """Return once they are on the disk. Raises `OSError`."""
        await self._file.commit(_committed(offsets))
        return None

    async def ask(self, partitions: Collection[TopicPartition], /) -> Asked:
        """See `Broker`. The file says what was committed."""
        topics, nameless = await topics_of(self.consumer, partitions)  # first, as `offsets.ask` says
        reached, unknown = await reaches(self.consumer, topics)
        known = {partition: self._standing(partition, reach, topics[partition]) for partition, reach in reached.items()}
        return Asked(known, {**nameless, **unknown})

    def _standing(self, partition: TopicPartition, reach: Reach, topic: Topic) -> Standing:
        positions = self._file.positions
        others = [committed for other, committed in positions.items() if other.topic == partition.topic]
        return Standing(positions.get(partition), *reach, topic, others)


def _committed(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, Committed]:
    return {partition: Committed(offset, metadata) for partition, (offset, metadata) in offsets.items()}
