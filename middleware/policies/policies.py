"""Policies for `app.use`: one frozen policy per slot. `ConsumeLater` is in `retry.py`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.events import EventSink
from ackwise.middleware.message.keys import DEFAULT_KEY, DefaultKey, Key, check_key_function, refuse_async
from ackwise.middleware.message.message import Message
from ackwise.middleware.storage.claimstore import ClaimStore
from ackwise.middleware.storage.outbox import OutboxStore
from ackwise.middleware.storage.transaction import TransactionalStore
from ackwise.middleware.usercode import shown

KeyFunction = Callable[[Message[Any]], Key | DefaultKey]


@dataclass(frozen=True, slots=True)
class KeyByTopic:
    """The key function of each topic, by the topic of the origin record; `default` is that of all others."""

    functions: Mapping[str, KeyFunction]
    default: KeyFunction | DefaultKey | None = None

    def __call__(self, message: Message[Any]) -> Key | DefaultKey:
        """Return the key of `message`."""
        found = self.functions.get(message.topic, self.default)
        return DEFAULT_KEY if found is None or found is DEFAULT_KEY else found(message)


_HEADER: Final = "header that identifies a message on its topic, without a key function"


@dataclass(frozen=True)
class Dedup:
    """Run each message once: claims in `store`, a URL or a `ClaimStore`.

    `key` takes a message and returns its business key; `None` or `""` means "not deduplicated", `DEFAULT_KEY` "as without a key". It may
    be a mapping from topic to such a function: `key={"orders": order_id}, default=DEFAULT_KEY`; `default` is for the topics that it does
    not name, and without it each topic needs a function. Without `key` a message is known by the coordinates of its origin record, or by
    the id in its `message_id_header` if one is named. The other fields say beside them what they mean.

    Used by one agent, it says how the messages of that agent are known, and nothing else: `use=[Dedup(key=refund_id)]`.

    Raises `ConfigurationError` for a setting that can't work.
    """

    store: Annotated[str | ClaimStore, "URL of the claim store, such as `sqlite:///claims.db`; turns Dedup on"] = field(
        default="", repr=False
    )  # it may hold a password; an agent gives none
    key: KeyFunction | Mapping[str, KeyFunction] | DefaultKey | None = None
    default: KeyFunction | DefaultKey | None = None
    lease: Annotated[float | str, "time that a crashed worker keeps others from its messages; renewed while a handler runs"] = 30.0
    retention: Annotated[float | str, "memory of finished messages"] = 86400.0
    namespace: Annotated[str, "part of every key, for installations that share a store"] = "ackwise"
    epoch: Annotated[int, "part of every key; raise it for an intended replay"] = 0
    on_store_down: Annotated[
        Literal["block", "fail_open", "fail_closed"],
        "while the store does not answer: `block` holds messages, `fail_open` runs them without a claim and marks them later, "
        "`fail_closed` stops the app",
    ] = "block"
    message_id_header: Annotated[str | None, _HEADER] = None
    on_busy: Annotated[
        Literal["copy", "wait"],
        "while another call runs the same key: `copy` waits in place for a lease, then sends a copy back without charging an attempt, "
        "`wait` waits in place for the end of that call",
    ] = "copy"

    def __post_init__(self) -> None:
        lease = parse_duration(self.lease, what="lease of Dedup")
        object.__setattr__(self, "lease", lease)
        retention = _checked_identity(self)
        if lease < 0.1:
            raise ConfigurationError(
                f"lease of Dedup is {lease} s; it must be at least 0.1 s, since it is renewed three times in that time"
            )
        if retention < lease:
            raise ConfigurationError(
                f"retention of Dedup is {retention} s, shorter than its lease of {lease} s; finished messages would run again"
            )
        if self.on_store_down not in ("block", "fail_open", "fail_closed"):
            raise ConfigurationError(f"on_store_down of Dedup is {self.on_store_down!r}; it is 'block', 'fail_open' or 'fail_closed'")
        if self.on_busy not in ("copy", "wait"):
            raise ConfigurationError(f"on_busy of Dedup is {self.on_busy!r}; it is 'copy' or 'wait'")


@dataclass(frozen=True)
class Transactional:
    """Exactly once, as far as one database reaches: what the handler writes there and the mark "done" are one transaction.

    `store` is a URL or a `TransactionalStore`. The handler writes through `batch.connection` or `message.connection`, and
    neither commits nor rolls back. A batch is one transaction; where the handler raises, it is rolled back and run again
    in halves until the culprit is alone. `key`, `default` and the last fields are those of `Dedup`, in whose place this policy is.
    Raises `ConfigurationError` for a setting that can't work.
    """

    store: Annotated[str | TransactionalStore, "URL of the handler's database; turns Transactional on"] = field(
        repr=False
    )  # it may hold a password
    key: KeyFunction | Mapping[str, KeyFunction] | DefaultKey | None = None
    default: KeyFunction | DefaultKey | None = None
    mode: Annotated[
        Literal["inbox", "offsets"],
        "`inbox` keeps a row per key; `offsets` one per partition, which costs less, keeps the partition's order, and does not see what a "
        "producer sent twice",
    ] = "inbox"
    retention: Annotated[float | str, "memory of finished messages"] = 7 * 86400.0
    namespace: Annotated[str, "part of every key, for installations that share a database"] = "ackwise"
    epoch: Annotated[int, "part of every key; raise it for an intended replay"] = 0
    message_id_header: Annotated[str | None, _HEADER] = None

    def __post_init__(self) -> None:
        if self.mode not in ("inbox", "offsets"):
            raise ConfigurationError(f"mode of Transactional is {self.mode!r}; it is 'inbox' or 'offsets'")
        if self.mode == "offsets" and self.key is not None:
            raise ConfigurationError("Transactional was given a key, and mode='offsets' asks for none; leave it out, or use mode='inbox'")
        if self.mode == "offsets" and self.message_id_header is not None:
            raise ConfigurationError(
                "Transactional was given a message_id_header, and mode='offsets' reads none; leave it out, or use mode='inbox'"
            )
        if _checked_identity(self) <= 0:
            raise ConfigurationError("retention of Transactional is 0 s; it must be above 0, or finished messages would run again")


def _checked_identity(policy: Dedup | Transactional) -> float:
    """Check what both have in common, make the retention seconds, and answer them."""
    name = type(policy).__name__
    retention = parse_duration(policy.retention, what=f"retention of {name}")
    object.__setattr__(policy, "retention", retention)
    if isinstance(policy.epoch, bool) or not isinstance(policy.epoch, int) or not 0 <= policy.epoch < 2**31:
        raise ConfigurationError(f"epoch of {name} is {policy.epoch!r}; it must be a whole number from 0; raise it by one for a replay")
    _check_key(policy)
    _check_message_id(policy)
    return retention


def _check_key(policy: Dedup | Transactional) -> None:
    """Refuse what finds no key, and make a mapping from topic to key function one function."""
    name, key, default = type(policy).__name__, policy.key, policy.default
    if isinstance(key, Mapping):
        key = KeyByTopic(dict(key), default)
        object.__setattr__(policy, "key", key)
    if not isinstance(key, KeyByTopic):
        if default is not None:
            raise ConfigurationError(
                f"{name} was given default=, which is for the topics of a mapping; write key={{topic: function}}, or leave it out"
            )
        _check_key_function(key, f"the key function of {name}", f"key of {name}")
        return
    for topic, function in key.functions.items():
        if not isinstance(topic, str) or not topic:
            raise ConfigurationError(f"key of {name} has {topic!r} among its topics; give the name of a topic, such as 'orders'")
        _check_key_function(function, f"the key function of {name} for {topic!r}", f"key of {name} for {topic!r}")
    _check_key_function(key.default, f"the key function of {name} for other topics", f"default of {name}")


def _check_key_function(key: object, function: str, what: str) -> None:
    if key is None or key is DEFAULT_KEY:
        return
    if not callable(key):
        raise ConfigurationError(
            f"{what} is {shown(key, repr)}; it must be a function that takes a message and answers its key, or DEFAULT_KEY"
        )
    check_key_function(key, function)


def _check_message_id(policy: Dedup | Transactional) -> None:
    name, header = type(policy).__name__, policy.message_id_header
    if header is not None and (not isinstance(header, str) or not header):
        raise ConfigurationError(f"message_id_header of {name} is {header!r}; give the name of a header, or leave it out")
    if header is not None and policy.key is not None:
        raise ConfigurationError(
            f"{name} was given a key and a message_id_header, and only one of them can say who a message is; leave one of them out"
        )


#: The owner reads and writes.
_FILE_MODE: Final = re.compile(r"0?6[0246][0246]", re.ASCII)


@dataclass(frozen=True)
class DeadLetter:
    """Messages that can't be consumed go to `topic`."""

    topic: Annotated[str | None, "where messages go that can't be consumed; `<group>.dlq` unless set"] = None


@dataclass(frozen=True)
class Outbox:
    """Messages that wait as rows in `store`, a URL or an outbox, until a broker has acknowledged them.

    A relay sends them: any number on PostgreSQL, MariaDB and MySQL, one on SQLite. Rows of a key are sent in the order of their inserts.
    The other fields say beside them what they mean. Raises `ConfigurationError` for a setting that can't work.
    """

    store: Annotated[str | OutboxStore, "URL of the database with the outbox, such as `postgresql://host/shop`; turns Outbox on"] = field(
        repr=False
    )  # it may hold a password
    relay: Annotated[
        Literal["worker", "apart"], "who sends the rows: every `worker` beside its handlers, or `apart`, in `ackwise relay` alone"
    ] = "worker"
    on_error: Annotated[
        Literal["block", "skip"],
        "a row that is parked: `block` sends no later row of its key until it is requeued, `skip` goes on with them",
    ] = "block"
    max_attempts: Annotated[
        int, "failures of a row until it is parked; they take about 45 minutes, and outages of all brokers are none"
    ] = 30
    batch: Annotated[int, "rows that a relay reads and sends side by side"] = 500
    lease: Annotated[float | str, "time that a crashed relay keeps its shards from others; renewed at a third of it"] = 15.0
    poll: Annotated[float | str, "longest wait for rows of which no wake-up came"] = 1.0

    def __post_init__(self) -> None:
        for name, choices in (("relay", ("worker", "apart")), ("on_error", ("block", "skip"))):
            if (given := getattr(self, name)) not in choices:
                raise ConfigurationError(f"{name} of Outbox is {given!r}; it is {choices[0]!r} or {choices[1]!r}")
        for name, most in (("max_attempts", 10_000), ("batch", 10_000)):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
                raise ConfigurationError(f"{name} of Outbox is {number!r}; it must be a whole number from 1 to {most}")
        for name, least, longest in (("lease", 1.0, 3600.0), ("poll", 0.01, 60.0)):
            seconds = parse_duration(getattr(self, name), what=f"{name} of Outbox")
            object.__setattr__(self, name, seconds)
            if not least <= seconds <= longest:
                raise ConfigurationError(f"{name} of Outbox is {seconds:g} s; it must be from {least:g} s to {longest:g} s")


#: As long as leaves room for a group's name in front of it; the characters are those that are legal in it.
_INSTANCE: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True)
class Broadcasting:
    """Every instance gets every message: RocketMQ's BROADCASTING. `instance` is the name of this one, the same after a restart.

    What fails is dropped, with an event and a count: nothing is sent back, and nothing is a dead letter. The positions of an instance
    are committed in the group `group@instance`, or kept in `offsets_file`; then no group is joined. An instance that is new starts
    at the end of the topics, unless the app says `start="earliest"`. Raises `ConfigurationError` for a name that can't be used.
    """

    instance: Annotated[str, "name of this instance, of which no other has the same; turns Broadcasting on"]
    offsets_file: Annotated[
        str | os.PathLike[str] | None,
        "local file for the positions of this instance, which then joins no group; without it they are committed to Kafka",
    ] = None

    def __post_init__(self) -> None:
        if not isinstance(self.instance, str) or not _INSTANCE.fullmatch(self.instance):
            raise ConfigurationError(
                f"instance of Broadcasting is {self.instance!r}; use up to 100 letters, digits, '.', '_' "
                "and '-', such as the name of its host"
            )
        file = self.offsets_file
        if file is not None:
            if not isinstance(file, str | os.PathLike) or not os.fspath(file):
                raise ConfigurationError(f"offsets_file of Broadcasting is {file!r}; give the path of a file, or leave it out")
            object.__setattr__(self, "offsets_file", os.fspath(file))


@dataclass(frozen=True)
class Events:
    """Export what happened to every message to `sink`, a folder (a path or a `file://` URL) or an `EventSink`.

    With `before_settle` a missing event proves a loss; with `async` a crash may cost the last ones.
    """

    sink: Annotated[str | EventSink, "folder of exported events; turns Events on"]
    mode: Annotated[Literal["before_settle", "async"], "whether events are durable before anything is acknowledged, or written behind"] = (
        "before_settle"
    )
    file_mode: Annotated[str, "who may read the files, in octal: they have texts of messages, such as keys"] = "0640"

    def __post_init__(self) -> None:
        if self.mode not in ("before_settle", "async"):
            raise ConfigurationError(f"mode of Events is {self.mode!r}; it is 'before_settle' or 'async'")
        refuse_async(getattr(self.sink, "record", None), "the method record of the event sink")
        if not isinstance(self.file_mode, str) or _FILE_MODE.fullmatch(self.file_mode) is None:
            raise ConfigurationError(
                f"file_mode of Events is {self.file_mode!r}; write it in octal, such as '0640', as a text: "
                "its owner reads and writes, and no one executes"
            )

    @property
    def permissions(self) -> int:
        """`file_mode` as the system takes it."""
        return int(self.file_mode, 8)


#: Seconds before the end of the lock in which nothing runs, or a quarter of the lock: for copies and acknowledgements to arrive.
_RESERVE: Final = 5.0

#: Options of the client that the host sets, and what to do instead.
_NOT_YOURS: Final = {
    "bootstrap.servers": "it is brokers of App",
    "group.id": "it is the group of App with .share behind it",
    "client.id": "it is client_id of App",
    "share.acknowledgement.mode": "each record is acknowledged once it is settled",
    "error_cb": "what the client reports is logged",
}


@dataclass(frozen=True)
class Share:
    """Consume the sources in the share group `<group>.share`. Experimental, as the client calls its own part "preview".

    A broker locks what it hands to a worker for `lock` seconds. What has not started 5 s before its lock ends, or
    can't start, goes to the retry topic, and no attempt is charged. Handlers, `Dedup`, `Transactional`, delays, dead letters and
    events are as anywhere; there is no order. Needs Kafka 4.2 and `ackwise[share]`. Raises `ConfigurationError` for a setting that
    can't work.
    """

    consumers: Annotated[int, "consumers of the share group in this worker, each with a thread; turns Share on"] = 1
    lock: Annotated[
        float | str, "time that a broker keeps others from a record that it handed out; set for the share group at the start"
    ] = 30.0
    client_options: Mapping[str, str | int | float | bool] = field(default_factory=dict, repr=False)  # they may hold a password
    """Options of librdkafka, such as `ssl.ca.location`, or `max.poll.records` (100 here)."""

    def __post_init__(self) -> None:
        if not isinstance(self.consumers, int) or isinstance(self.consumers, bool) or self.consumers < 1:
            raise ConfigurationError(f"consumers of Share is {self.consumers!r}; it is a whole number from 1")
        lock = parse_duration(self.lock, what="lock of Share")
        object.__setattr__(self, "lock", lock)
        if not lock:
            raise ConfigurationError("lock of Share is 0 s; it must be above 0, with time left to acknowledge what is done")
        if not isinstance(self.client_options, Mapping):
            raise ConfigurationError(
                f"client_options of Share is a {type(self.client_options).__name__}; give a dict of options of librdkafka"
            )
        for name in self.client_options:
            if (advice := _NOT_YOURS.get(name)) is not None:
                raise ConfigurationError(f"client_options of Share has {name!r}, which is not for users to set: {advice}")

    @staticmethod
    def group_of(group: str) -> str:
        """The share group of a consumer group: Kafka lets no two kinds of group have one name."""
        return f"{group}.share"

    @property
    def seconds(self) -> float:
        """Seconds from the lock until what runs is cancelled, and what has not started is copied."""
        return float(self.lock) - min(_RESERVE, float(self.lock) / 4)


#: The port that OpenTelemetry's exporters for Prometheus use by default.
PORT: Final = 9464


@dataclass(frozen=True)
class Watch:
    """Serve this worker's health, metrics and state over HTTP: `/live`, `/ready`, `/metrics` and `/ackwise/`.

    Bound to this machine alone unless `host` says otherwise: the pages have no login. They name topics, agents and settings, and have
    no key, payload or password. `port` 0 takes any free one, which the log names. Needs `ackwise[watch]`. Raises `ConfigurationError`
    for a port or a host that can't be one; a port that is in use is refused at the start.
    """

    port: Annotated[int, "port of the pages for those who watch the worker; turns Watch on"] = PORT
    host: Annotated[str, "address that the pages are served on; `0.0.0.0` is every address of the machine"] = "127.0.0.1"

    def __post_init__(self) -> None:
        if not isinstance(self.port, int) or isinstance(self.port, bool) or not 0 <= self.port <= 65535:
            raise ConfigurationError(f"port of Watch is {self.port!r}; it must be a whole number from 0 to 65535")
        if not isinstance(self.host, str) or not self.host.strip() or not self.host.isprintable():
            raise ConfigurationError(f"host of Watch is {self.host!r}; give an address of this machine, such as '127.0.0.1'")
