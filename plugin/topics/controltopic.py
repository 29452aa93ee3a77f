"""Control topic: `ackwise pause`, `ackwise inplace` and the like write to it; every worker of the group reads all of it, in no group.

Workers write to it how they are, which only `ackwise status` reads (`workerstate`).

What it says is a wish of an operator and no record of what is done: where it can't be read, workers go on as they know it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.flow.controlrecords import (
    ControlRecord,
    MessageCommand,
    UnreadableControl,
    decode,
    decode_command,
    encode,
    encode_command,
    is_command,
    is_worker,
    letters_topic,
)
from ackwise.middleware.flow.flowcontrol import FlowControl
from ackwise.middleware.flow.pausing import Target
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.plugin.kafka.clients import opened
from ackwise.plugin.kafka.topicreader import TopicReader
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicadmin import connected
from ackwise.plugin.topics.topicnames import TopicNames

log = Log()

#: Seconds that a worker which starts waits at most to learn what is paused; then it starts all the same.
KNOWN_WITHIN: Final = 3.0

#: Seconds until a topic that is missing is looked for again, and until a broker that failed is asked again.
_LOOK_AGAIN, _READ_AGAIN = 30.0, 5.0

#: Where all of it is: a later word about something must not overtake an earlier one.
_PARTITION: Final = 0

#: Seconds for a command to read or write.
_TIMEOUT: Final = 30.0


class Control:
    """What a worker knows of its control topic. It updates `flow`, and gives `obey` the commands about one message."""

    def __init__(self, settings: HostSettings, names: TopicNames, flow: FlowControl, obey: Callable[[MessageCommand, bool], None]) -> None:
        self._settings = settings
        self._names = names
        self._flow = flow
        self._obey_about_message = obey
        self.is_there = False  #: whether there is such a topic
        self._has_read = False
        self._throttle = LogThrottle()

    async def follow(self) -> None:
        """Read what there is, and whatever comes, forever. Nothing starts until that is known, for a few seconds at most."""
        self._flow.await_control()
        deadline = asyncio.get_running_loop().call_later(KNOWN_WITHIN, self._give_up_waiting)
        try:
            while True:
                try:
                    await self._read()
                except Exception as error:  # noqa: BLE001  # whatever a client raises here, the worker must go on with its messages
                    if self._throttle.is_due():
                        log.warning(
                            "control topic could not be read",
                            topic=self._names.control,
                            error=said(error),
                            retry_in=_READ_AGAIN,
                        )
                    await asyncio.sleep(_READ_AGAIN)
        finally:
            deadline.cancel()
            self._flow.know_control()

    def _give_up_waiting(self) -> None:
        if not self._has_read:
            log.info("pauses are not known yet", topic=self._names.control)
        self._flow.know_control()

    async def _read(self) -> None:
        async with connected(self._settings, "control") as admin:
            reader = _reader(admin)
            self.is_there = bool(await reader.partitions([self._names.control]))
            if not self.is_there:
                log.debug("control topic missing", topic=self._names.control)
                self._flow.know_control()
                await asyncio.sleep(_LOOK_AGAIN)
                return
            place = TopicPartition(self._names.control, _PARTITION)
            start, end = (await reader.bounds([place]))[place]
            async for record in reader.records(place, start, end):
                self._take(record)
            self._throttle.reset()
            self._has_read = True
            self._flow.know_control()
            async for record in reader.records(place, end):
                self._take(record)

    def _take(self, record: Any) -> None:
        if is_worker(record.key) or letters_topic(record.key) is not None:
            return
        try:
            if is_command(record.key):
                self._obey_about_message(decode_command(record.key, record.value), self._has_read)
            else:
                self._obey(decode(record.key, record.value))
        except UnreadableControl as error:
            log.warning("a control record is passed over", topic=self._names.control, offset=record.offset, error=said(error))

    def _obey(self, record: ControlRecord) -> None:
        target = str(record.target)
        if record.paused:
            if self._flow.pausing.pause(record.target, "command"):
                log.info("paused by command", group=self._settings.group, paused=target)
            return
        if self._flow.pausing.resume(record.target, "command"):
            log.info("resumed by command", group=self._settings.group, resumed=target)
        if self._has_read and record.target.handler is not None:  # what was said before this worker started is not about it
            self._flow.resume(record.target.handler, dead=record.dead)


async def read_control(settings: HostSettings, names: TopicNames) -> dict[Target, ControlRecord]:
    """The last word about everything that was ever paused. Raises `ConfigurationError` without a control topic, and `Unavailable`."""
    found = dict[Target, ControlRecord]()
    for record in await _read_all(settings, names):
        try:
            read = decode(record.key, record.value)
        except UnreadableControl:
            continue
        found[read.target] = read
    return found


async def read_commands(settings: HostSettings, names: TopicNames) -> list[MessageCommand]:
    """The last word about each message of which there is one. Raises as `read_control`."""
    found = dict[object, MessageCommand]()
    for record in await _read_all(settings, names):
        if is_command(record.key):
            try:
                command = decode_command(record.key, record.value)
            except UnreadableControl:
                continue
            found[command.at] = command
    return [command for command in found.values() if command.do is not None]


async def _read_all(settings: HostSettings, names: TopicNames) -> list[Any]:
    async with connected(settings, "control") as admin, asyncio.timeout(_TIMEOUT):
        await _require_topic(admin, settings, names)
        reader, place = _reader(admin), TopicPartition(names.control, _PARTITION)
        return [record async for record in reader.records(place, *(await reader.bounds([place]))[place])]


async def write_control(settings: HostSettings, names: TopicNames, target: Target, *, paused: bool, dead: bool = False) -> None:
    """Tell every worker. Returns once all replicas have it. Raises `ConfigurationError` without a control topic, and `Unavailable`."""
    await _write(settings, names, [encode(ControlRecord(target, paused, dead, round(time.time() * 1000)))])


async def write_commands(settings: HostSettings, names: TopicNames, commands: Iterable[MessageCommand]) -> None:
    """As `write_control`, of single messages."""
    await _write(settings, names, map(encode_command, commands))


async def _write(settings: HostSettings, names: TopicNames, records: Iterable[tuple[bytes, bytes | None]]) -> None:
    options: dict[str, Any] = dict(settings.client_options)
    async with connected(settings, "control") as admin, asyncio.timeout(_TIMEOUT):
        await _require_topic(admin, settings, names)
        producer = AIOKafkaProducer(bootstrap_servers=settings.brokers, client_id=f"{settings.client_id}-control", acks="all", **options)
        async with opened(producer):
            for key, value in records:
                await producer.send_and_wait(names.control, value, key=key, partition=_PARTITION)


async def _require_topic(admin: AIOKafkaAdminClient, settings: HostSettings, names: TopicNames) -> None:
    if names.control not in await admin.list_topics():
        raise ConfigurationError(
            f"there is no topic {names.control!r} at {settings.brokers}, which carries commands to workers; run ackwise topics create"
        )


def _reader(admin: AIOKafkaAdminClient) -> TopicReader:
    """Commands are not written in transactions, and a transaction of another program that hangs must hold none of them."""
    return TopicReader(admin, committed=False)
