"""`ShareClient`: a `ShareConsumer` of confluent-kafka in its own thread; its options, and the share group's configuration."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ackwise.middleware.errors import AckwiseError, ConfigurationError, Unavailable
from ackwise.middleware.log import Log, LogThrottle
from ackwise.middleware.message.message import Headers, TopicPartition
from ackwise.middleware.policies.policies import Share
from ackwise.plugin.settings.hostsettings import HostSettings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException, ShareConsumer
    from confluent_kafka.admin import AdminClient


#: What both clients can be told alike.
_ALIKE: Final = {
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
}

#: What a client proves itself with, and can't be told to another one. Others, such as `fetch_max_bytes`, are for its own client.
_PROOF: Final = ("ssl_context", "sasl_kerberos_service_name", "sasl_kerberos_domain_name", "sasl_oauth_token_provider")

#: Records that a poll asks for. A broker hands out whole batches of producers, so it may get more.
_POLLED: Final = 100

#: Only errors: the client says once that it is a preview, which the page says too.
_LOG_LEVEL: Final = 3


def admin_config(settings: HostSettings, share: Share) -> dict[str, Any]:
    """What any client of librdkafka needs. Raises `ConfigurationError` for credentials that only aiokafka understands."""
    theirs = settings.client_options
    for name in _PROOF:
        if theirs.get(name) is not None and not any(option.startswith(("ssl.", "sasl.")) for option in share.client_options):
            raise ConfigurationError(
                f"client_options has {name!r}, which the client of share groups does not know; give Share(client_options=…) "
                "what librdkafka takes instead, such as ssl.ca.location"
            )
    alike = {ours: theirs[name] for name, ours in _ALIKE.items() if theirs.get(name) is not None}
    return {
        "bootstrap.servers": settings.brokers,
        "client.id": settings.client_id,
        "log_level": _LOG_LEVEL,
        **alike,
        **share.client_options,
    }


def consumer_config(settings: HostSettings, share: Share) -> dict[str, Any]:
    """What a consumer of the share group needs. Raises as `admin_config`."""
    return {
        **admin_config(settings, share),
        "group.id": share.group_of(settings.group),
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": share.client_options.get("max.poll.records", _POLLED),
    }


log = Log()

#: Seconds that brokers have to answer.
_TIMEOUT: Final = 10.0


def wanted(settings: HostSettings, share: Share) -> dict[str, str]:
    """What the share group must be told.

    Nothing of an aborted transaction, the start of a partition that it has never read, and how long a record is locked.
    """
    return {
        "share.isolation.level": "read_committed",
        "share.auto.offset.reset": settings.start,
        "share.record.lock.duration.ms": str(round(float(share.lock) * 1000)),
    }


async def ensure_share_group(settings: HostSettings, share: Share) -> None:
    """Set what the share group lacks. Raises `ConfigurationError` if brokers refuse that, `Unavailable` if they don't answer."""
    await _asked(_ensure, settings, share)


async def read_share_group(settings: HostSettings, share: Share) -> dict[str, str]:
    """What brokers have of what is `wanted`. Raises as `ensure_share_group`."""
    found = await _asked(_read, settings, share)
    return {name: found.get(name, "") for name in wanted(settings, share)}


async def _asked(ask: Any, settings: HostSettings, share: Share) -> Any:
    """The client of confluent-kafka blocks, and has its own time limits."""
    return await asyncio.to_thread(ask, settings, share)


def _ensure(settings: HostSettings, share: Share) -> None:
    group, needed = share.group_of(settings.group), wanted(settings, share)
    admin = _admin(settings, share)
    found = _described(admin, settings, group)
    missing = {name: value for name, value in needed.items() if found.get(name) != value}
    if not missing:
        return
    _alter(admin, settings, group, missing)
    log.info("the share group is configured", group=group, set=_listed(missing))


def _read(settings: HostSettings, share: Share) -> dict[str, str]:
    return _described(_admin(settings, share), settings, share.group_of(settings.group))


def _admin(settings: HostSettings, share: Share) -> AdminClient:
    try:
        kafka: Any = import_module("confluent_kafka")
        kafka.ShareConsumer  # noqa: B018  # older releases lack it
    except (ImportError, AttributeError):
        raise ConfigurationError("Share needs the share consumer of confluent-kafka: pip install 'ackwise[share]'") from None
    try:
        admin: AdminClient = _api().AdminClient(admin_config(settings, share))
    except (kafka.KafkaException, TypeError, ValueError) as error:
        raise ConfigurationError(f"client_options of Share can't be used: {error}") from error
    return admin


def _api() -> Any:
    """The module exports what it does not say that it exports."""
    return import_module("confluent_kafka.admin")


def _described(admin: AdminClient, settings: HostSettings, group: str) -> dict[str, str]:
    from confluent_kafka import KafkaException

    api = _api()
    try:
        (answer,) = admin.describe_configs([api.ConfigResource(api.ResourceType.GROUP, group)], request_timeout=_TIMEOUT).values()
        entries = answer.result(_TIMEOUT * 2)
    except KafkaException as error:
        raise _refused(error, settings, group, "can't be read", "describe its configuration (DESCRIBE_CONFIGS)") from error
    found = {name: str(entry.value) for name, entry in entries.items()}
    if "share.isolation.level" not in found:
        raise ConfigurationError(
            f"the brokers {settings.brokers!r} do not know share groups as Share needs them; it needs Kafka 4.2 or later, with the "
            "feature share.version on"
        )
    return found


def _alter(admin: AdminClient, settings: HostSettings, group: str, missing: Mapping[str, str]) -> None:
    from confluent_kafka import KafkaException

    api = _api()
    entries = [api.ConfigEntry(name, value, incremental_operation=api.AlterConfigOpType.SET) for name, value in missing.items()]
    resource = api.ConfigResource(api.ResourceType.GROUP, group, incremental_configs=entries)
    try:
        (answer,) = admin.incremental_alter_configs([resource], request_timeout=_TIMEOUT).values()
        answer.result(_TIMEOUT * 2)
    except KafkaException as error:
        said = _listed(missing)
        if (found := error.args[0]).name() == "INVALID_CONFIG":
            raise ConfigurationError(
                f"the brokers refuse {said} for the share group {group!r} ({found.str()}); give Share what they allow, or let them allow it"
            ) from error
        raise _refused(
            error,
            settings,
            group,
            f"can't be given {said}",
            f"set it (ALTER_CONFIGS), or set it once: kafka-configs --alter --entity-type groups --entity-name {group} --add-config {said}",
        ) from error


def _listed(entries: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in entries.items())


def _refused(error: Any, settings: HostSettings, group: str, what: str, need: str) -> ConfigurationError | Unavailable:
    found = error.args[0]
    if found.retriable() or found.code() < 0:  # the client's own codes: no broker has answered
        return Unavailable(f"the brokers {settings.brokers!r} do not answer about the share group ({found.name()})")
    return ConfigurationError(f"the share group {group!r} {what} ({found.name()}: {found.str()}); let this worker {need}")


T = TypeVar("T")


class Caller:
    """Calls what it is given in its own thread. The thread ends with the process, whatever a call waits for."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """What `work` returns or raises, once all that was asked for before is done. A future that is cancelled stops no call."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((work, future))
        return future

    def end(self) -> None:
        """Let the thread end after what was asked for."""
        self._calls.put(None)

    def _run(self) -> None:
        while (asked := self._calls.get()) is not None:
            work, future = asked
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001  # it is raised where the answer is awaited
                error = raised
            with suppress(RuntimeError):  # the event loop is closed: there is no waiter any more
                self._loop.call_soon_threadsafe(_answer, future, result, error)


def _answer(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


#: Seconds that a poll waits for records: a stop waits for it.
_POLL: Final = 0.5

#: Seconds until a poll is tried again that has failed.
_POLL_AGAIN: Final = 1.0

#: Not `message.headers()`: for a name that is no UTF-8 the client returns a list with a hole in it and an error beside it. Python sees
#: that error at once in a call from C; in bytecode it has run often, only later and elsewhere, and touching the hole crashes.
_READ_HEADERS: Final = methodcaller("headers")

#: What stands for headers that the client can't read, since the name of one is no UTF-8: a name that is none.
_UNREADABLE: Final[Headers] = (("\udcff", None),)


class Record(NamedTuple):
    """A record as the pipeline takes it."""

    offset: int
    timestamp: int
    """Epoch milliseconds; -1 for none."""
    key: bytes | None
    value: bytes | None
    headers: Headers


class Poll(NamedTuple):
    """What one poll brought: records by partition, in the order of their offsets."""

    at: float
    """Monotonic seconds at which the poll started, which is before the lock: what is believed of it ends too early, not too late."""
    first: dict[TopicPartition, list[Record]]
    again: dict[TopicPartition, list[Record]]
    """What was delivered before: to this worker or another, which ended or was too slow."""


#: Is told what the broker says of acknowledgements: offsets of a partition, and why they are refused, if they are.
Acknowledged = Callable[[TopicPartition, Sequence[int], str | None], None]


class ShareClient:
    """One consumer of a share group. All of a poll must be acknowledged before the next one."""

    def __init__(self, config: dict[str, Any], topics: Sequence[str], acknowledged: Acknowledged, *, group: str) -> None:
        self._config = config
        self._topics = list(topics)
        self._acknowledged = acknowledged
        self._group = group
        self._caller = Caller(f"ackwise share {group}")
        self._loop = asyncio.get_running_loop()
        self._consumer: ShareConsumer | None = None
        self._throttle = LogThrottle()

    async def open(self) -> None:
        """Make the consumer, which joins the group once it is polled. Raises `ConfigurationError` for options that it refuses."""
        await self._caller.call(self._open)

    async def poll(self) -> Poll | None:
        """What is locked for this worker now; `None` if nothing came for a moment. Raises `AckwiseError` if it never will."""
        from confluent_kafka import KafkaException

        began = time.monotonic()
        try:
            return await self._caller.call(partial(self._poll, began))
        except KafkaException as error:
            self._report(error.args[0])
            await asyncio.sleep(_POLL_AGAIN)
            return None

    def accept(self, place: TopicPartition, offsets: Iterable[int]) -> None:
        """These are settled. The broker's answer is reported later."""
        self._caller.call(partial(self._acknowledge, place, [*offsets], is_done=True))

    def release(self, place: TopicPartition, offsets: Iterable[int]) -> None:
        """These are for another worker, which the broker counts as a delivery."""
        self._caller.call(partial(self._acknowledge, place, [*offsets], is_done=False))

    async def close(self) -> None:
        """Send what was acknowledged, and leave the group."""
        try:
            await self._caller.call(self._close)
        finally:
            self._caller.end()

    # In the thread.

    def _open(self) -> None:
        from confluent_kafka import KafkaException, ShareConsumer

        try:
            self._consumer = ShareConsumer({**self._config, "error_cb": self._report})
            self._consumer.set_acknowledgement_commit_callback(self._told)
            self._consumer.subscribe(self._topics)
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigurationError(f"client_options of Share can't be used: {error}") from error

    def _poll(self, began: float) -> Poll | None:
        if self._consumer is None:
            raise AckwiseError("the consumer of the share group is not open")
        first: dict[TopicPartition, list[Record]] = {}
        again: dict[TopicPartition, list[Record]] = {}
        message: Any  # its place and offset are `None` only beside an error
        for message in self._consumer.poll(_POLL):
            if (error := message.error()) is not None:
                self._report(error)
                continue
            kind, timestamp = message.timestamp()
            record = Record(message.offset(), timestamp if kind else -1, message.key(), message.value(), _headers(message))
            records = first if (message.delivery_count() or 1) == 1 else again
            records.setdefault(TopicPartition(message.topic(), message.partition()), []).append(record)
        return Poll(began, first, again) if first or again else None

    def _acknowledge(self, place: TopicPartition, offsets: Sequence[int], *, is_done: bool) -> None:
        from confluent_kafka import AcknowledgeType, IllegalStateException, KafkaException

        kind, consumer, gone = AcknowledgeType.ACCEPT if is_done else AcknowledgeType.RELEASE, self._consumer, []
        if consumer is None:
            return
        for offset in offsets:
            try:
                consumer.acknowledge_offset(*place, offset, kind)
            except (IllegalStateException, KafkaException):  # the client has given it up, as after it was thrown out of the group
                gone.append(offset)
        if gone:
            self._loop.call_soon_threadsafe(self._acknowledged, place, gone, "the client has given it up")
        try:
            consumer.commit_async()
        except KafkaException as error:
            self._report(error.args[0])

    def _told(self, offsets: dict[Any, set[int]], error: KafkaException | None) -> None:
        why = None if error is None else error.args[0].name()
        for partition, acknowledged in offsets.items():
            place = TopicPartition(partition.topic, partition.partition)
            self._loop.call_soon_threadsafe(self._acknowledged, place, sorted(acknowledged), why)

    def _close(self) -> None:
        from confluent_kafka import KafkaException

        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            try:
                consumer.close()
            except KafkaException as error:
                self._report(error.args[0])

    def _report(self, error: KafkaError) -> None:
        """One line for what the client says of brokers that are unavailable; what it can't go on with ends the worker."""
        if error.fatal():
            raise AckwiseError(f"Kafka refuses this worker of share group {self._group!r} ({error.name()}: {error.str()})")
        if self._throttle.is_due(error.name()):
            log.warning("share group client reported an error", group=self._group, error=f"{error.name()}: {error.str()}")


def _headers(message: Any) -> Headers:
    try:
        return tuple(_READ_HEADERS(message) or ())
    except (UnicodeDecodeError, SystemError):  # 2.16 raises the first inside of the second; asked again, it would crash the process
        return _UNREADABLE
