"""`MessageModel`: assigns the partitions of a worker and keeps its positions. RocketMQ's CLUSTERING and BROADCASTING.

`Clustering`: the members of a group share the messages. `OwnGroup`: a broadcasting instance is the only member of the group
`group@instance`. `OwnFile`: it is in no group, takes all partitions, and keeps its positions in a local file, as RocketMQ's
`LocalFileOffsetStore`. The file is written next to the old one, synced and renamed: after a crash it is the old or the new one.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from aiokafka import TopicPartition
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, for_code
from aiokafka.structs import OffsetAndMetadata

from ackwise.middleware.errors import AckwiseError, ConfigurationError, Unavailable
from ackwise.middleware.log import Log, said
from ackwise.middleware.policies.policies import Broadcasting
from ackwise.plugin.consumer.aiokafkaclient import AiokafkaClient
from ackwise.plugin.consumer.assignment import Opening
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.handlers.lifespan import StoppedWhileStarting
from ackwise.plugin.kafka.aiokafkainternals import hear_assignments, member_id_of, partitions_of
from ackwise.plugin.kafka.brokeroffsets import Asked, Committed, Reach, Standing, Topic, reaches, topics_of
from ackwise.plugin.kafka.kafkaerrors import is_refusal
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicadmin import connected

log = Log()

_FORMAT: Final = "ackwise-offsets-1"

_Positions = dict[TopicPartition, Committed]


class OffsetsFile:
    """The positions of `group`, which is that of one instance, in the file `path`. One process has it open at a time."""

    def __init__(self, path: Path, group: str, cluster: str | None) -> None:
        """`cluster`: the id of the Kafka cluster; `None` if it has none."""
        self.path = Path(os.path.realpath(path))  # a link to it would be replaced, and what it leads to is forgotten
        self._group = group
        self._cluster = cluster
        self._positions: _Positions = {}
        self._lock: int | None = None
        self._writing: asyncio.Future[None] | None = None

    def open(self) -> None:
        """Lock and read it. Raises `ConfigurationError` if another process has it, or if it is not what this instance wrote."""
        was_here = _lock_of(self.path).exists()
        self._lock = _locked(self.path)
        try:
            self._positions = self._read(was_here=was_here)
        except BaseException:
            self._unlock()
            raise

    async def close(self) -> None:
        """Let another process have it. Waits for a write that is under way."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing})
        self._unlock()

    @property
    def positions(self) -> Mapping[TopicPartition, Committed]:
        """What is on the disk."""
        return self._positions

    async def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Return once `offsets` are on the disk, beside those of other partitions. Raises `OSError`; the file is as before then.

        Who no longer waits ends no write: the next one comes after it, and has what it wrote.
        """
        while self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing})
        writing = self._writing = asyncio.ensure_future(self._replace({**self._positions, **offsets}))
        writing.add_done_callback(_take_note)
        await asyncio.shield(writing)

    async def _replace(self, positions: _Positions) -> None:
        await asyncio.to_thread(_write, self.path, self._encoded(positions))
        self._positions = positions

    def _encoded(self, positions: _Positions) -> bytes:
        rows = [[*partition, *committed] for partition, committed in sorted(positions.items())]
        body = {"format": _FORMAT, "group": self._group, "cluster": self._cluster, "positions": rows}
        return json.dumps(body | {"checksum": _checksum(body)}, indent=1).encode()

    def _read(self, *, was_here: bool) -> _Positions:
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            if was_here:
                log.warning("offsets file is gone", group=self._group, file=str(self.path))
            else:
                log.info("no offsets file yet", group=self._group, file=str(self.path))
            return {}
        except OSError as error:
            raise ConfigurationError(
                f"offsets_file {self.path} can't be read ({error.strerror}); make it a file that this worker may read"
            ) from None
        body = _decoded(text, self.path)
        if body["group"] != self._group:
            raise ConfigurationError(
                f"offsets_file {self.path} has the positions of {body['group']!r}, and this is {self._group!r}; give each instance "
                "its own file"
            )
        if None not in (body["cluster"], self._cluster) and body["cluster"] != self._cluster:
            raise ConfigurationError(
                f"offsets_file {self.path} has positions in the Kafka cluster {body['cluster']}, and this is {self._cluster}; correct "
                "brokers, or take the file away to start as a new instance"
            )
        return {TopicPartition(topic, partition): Committed(offset, metadata) for topic, partition, offset, metadata in body["positions"]}

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _decoded(text: bytes, path: Path) -> dict[str, Any]:
    """What `text` says. Raises `ConfigurationError` if it is damaged or something else: a wrong position would pass over messages."""
    try:
        body: Any = json.loads(text)
        claimed, found = body["format"], body.pop("checksum")
    except (ValueError, KeyError, TypeError, RecursionError):
        claimed, found, body = None, None, {}
    if claimed is not None and claimed != _FORMAT:
        raise ConfigurationError(
            f"offsets_file {path} is of a format that this Ackwise does not know ({claimed!r}); run the version that wrote it"
        )
    if claimed is None or found != _checksum(body):
        raise ConfigurationError(
            f"offsets_file {path} is damaged, or was written by something else; put back a copy of it, or take it away to start as a new "
            "instance"
        )
    return dict(body)


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _locked(path: Path) -> int:
    """The lock of `path`, a file beside it that stays: held until it is closed. Raises `ConfigurationError`."""
    lock = _lock_of(path)
    try:
        file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"offsets_file {path} can't be locked ({error.strerror}: {lock}); give a file in a folder that is there and that this worker "
            "may write to"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        why = "another worker has it" if isinstance(error, BlockingIOError) else f"its file system has no locks: {error.strerror}"
        raise ConfigurationError(f"offsets_file {path} can't be locked ({why}); give each instance its own local file") from None
    return file


def _write(path: Path, text: bytes) -> None:
    """Replace the file `path`. Raises `OSError`; the old one is whole then."""
    beside = path.with_name(f"{path.name}.new")
    with beside.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _take_note(writing: asyncio.Future[None]) -> None:
    """It may not be awaited any more; whether it failed shows in the next commit."""
    if not writing.cancelled():
        writing.exception()


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


#: Seconds between two looks at a group that should be empty, and whether all partitions are here.
_LOOK_AGAIN: Final = 0.5

#: Times the session timeout until another member must be gone: one that was killed, or that a lost answer has made of this very
#: instance, is missed after one of them.
_SESSIONS: Final = 1.5


class OwnGroup:
    """The model of an instance whose positions are committed to the brokers."""

    def __init__(self, settings: HostSettings) -> None:
        self.group_id: str | None = settings.group
        self._settings = settings

    @asynccontextmanager
    async def opened(self, member: Member, client: AiokafkaClient) -> AsyncIterator[AiokafkaClient]:
        """See `MessageModel.opened`. Raises `ConfigurationError` if an instance of the same name is running, and what Kafka refuses."""
        self._settings = member.settings
        await member.opening.insist(partial(self._require_alone, member))
        yield client

    def join(self, member: Member, client: AiokafkaClient, topics: Sequence[str], opening: Opening) -> None:
        """See `MessageModel.join`."""
        client.subscribe(topics, member, opening)
        member.keep(partial(self._stay_alone, client.consumer, topics), "instance")

    async def _require_alone(self, member: Member) -> None:
        """Wait until the group is empty: one that was killed is in it until its session is over."""
        now, patience = asyncio.get_running_loop().time, _SESSIONS * self._settings.session_timeout
        begun, is_told = now(), False
        while others := await _members(self._settings):
            if now() > begun + patience:
                raise self._refusal(others)
            if not is_told:
                is_told = True
                log.info("instance name in use", group=self._settings.group, at_most=patience)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN):
                    await member.stop.wait()
            if member.stop.is_set():
                raise StoppedWhileStarting

    async def _stay_alone(self, consumer: Any, topics: Sequence[str]) -> None:
        """Two that start together both find the group empty: then the one whose member id is smaller goes on.

        Raises `ConfigurationError` in the other.
        """
        now, patience = asyncio.get_running_loop().time, _SESSIONS * self._settings.session_timeout
        whole_at = now()
        while True:
            await asyncio.sleep(_LOOK_AGAIN)
            if not partitions_of(consumer, topics) - consumer.assignment():
                whole_at = now()
            if now() <= whole_at + patience:
                continue
            try:
                members = await _members(self._settings)
            except (KafkaError, AckwiseError) as error:
                log.debug("members of the group could not be read", group=self._settings.group, error=said(error))
                continue
            mine = member_id_of(consumer)
            if any(other["member_id"] < mine for other in members):
                raise self._refusal([other for other in members if other["member_id"] != mine])

    def _refusal(self, others: Sequence[Any]) -> ConfigurationError:
        group, _, instance = self._settings.group.rpartition("@")
        where = others[0]["client_host"].lstrip("/")
        return ConfigurationError(
            f"instance {instance!r} of group {group!r} is running at {where} already, and each message would reach one of the two only; "
            "give every instance its own name"
        )


async def _members(settings: HostSettings) -> list[Any]:
    """Who is in the group of `settings`; empty, if its brokers can't answer that. Raises `Unavailable`, and `KafkaError` if they refuse."""
    async with connected(settings) as admin:
        try:
            (answer,) = await admin.describe_consumer_groups([settings.group])
        except IncompatibleBrokerVersion:
            return []
        described: Any = answer.to_object()["groups"][0]
    if described["error_code"]:
        error = for_code(described["error_code"])(settings.group)
        if is_refusal(error):
            raise error
        raise Unavailable(f"who is in group {settings.group!r} can't be read ({said(error)})")
    return list(described["members"])


class MessageModel(Protocol):
    """What differs between the members of a group and the instances that broadcast."""

    @property
    def group_id(self) -> str | None:
        """The group that the client joins; `None`: none."""
        ...

    def opened(self, member: Member, client: AiokafkaClient) -> AbstractAsyncContextManager[AiokafkaClient]:
        """With the positions at hand; gives what asks for them. `client` is connected and has no partitions yet.

        Raises `ConfigurationError` where another worker is in the way.
        """
        ...

    def join(self, member: Member, client: AiokafkaClient, topics: Sequence[str], opening: Opening) -> None:
        """Take partitions of `topics` from now on; `opening` gets them."""


class Clustering:
    """The members of one group share the messages; the positions are committed to the brokers."""

    def __init__(self, settings: HostSettings) -> None:
        self.group_id: str | None = settings.group

    @asynccontextmanager
    async def opened(self, member: Member, client: AiokafkaClient) -> AsyncIterator[AiokafkaClient]:
        """See `MessageModel.opened`."""
        yield client

    def join(self, member: Member, client: AiokafkaClient, topics: Sequence[str], opening: Opening) -> None:
        """See `MessageModel.join`."""
        client.subscribe([*topics, member.names.retry], member, opening)


def model_of(settings: HostSettings, broadcasting: Broadcasting | None) -> MessageModel:
    """How a worker of `settings` comes to its partitions and keeps its positions."""
    if broadcasting is None:
        return Clustering(settings)
    return OwnGroup(settings) if broadcasting.offsets_file is None else OwnFile(settings, Path(broadcasting.offsets_file))
