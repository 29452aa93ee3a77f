"""`HostSettings`: how one group talks to Kafka, checked when they are made."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Final, Literal, TypedDict, get_args

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.limits import check_threshold
from ackwise.plugin.settings.addresses import parse_brokers
from ackwise.plugin.settings.redaction import shown_options
from ackwise.plugin.topictemplate import DEFAULT_TOPIC_NAMES, TopicTemplate

__all__ = ["DEFAULT_BROKERS", "REBALANCE_TIMEOUT", "AppSettings", "HostSettings", "LoopSettings", "refuse_unknown"]

DEFAULT_BROKERS: Final = "localhost:9092"

#: Seconds that a group waits for its members during a rebalance; aiokafka's default is the session timeout.
REBALANCE_TIMEOUT: Final = 60.0

#: Shortest and longest session that brokers accept by default (group.min.session.timeout.ms, group.max.session.timeout.ms).
_SESSION: Final = (6.0, 1800.0)

_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")

_DURATIONS: Final = (
    "pattern_interval",
    "commit_interval",
    "revoke_timeout",
    "drain_timeout",
    "start_timeout",
    "session_timeout",
    "clock_skew",
)

_CreateTopics = Literal["auto", "never", "broker"]
_Start = Literal["earliest", "latest"]
_Relay = Literal["inside", "apart"]
_ErrorText = Literal["class", "message"]


@dataclass(frozen=True, repr=False)
class HostSettings:
    """How one group talks to Kafka. Durations are seconds, or texts such as `"30s"` that become seconds.

    A field that is annotated with what it means may be set by a file or the environment as well (`entries.py`).
    Raises `ConfigurationError` for a setting that can't work.
    """

    brokers: Annotated[str, "`host:port`, several with commas between"]
    group: str
    create_topics: Annotated[_CreateTopics, "missing topics of the group: created, refused, or left to the broker"] = "auto"
    start: Annotated[_Start, "begin of a partition without a committed offset"] = "earliest"
    topic_names: Annotated[str, "names of the group's own topics, in which `{group}` and `{kind}` stand"] = DEFAULT_TOPIC_NAMES
    pattern_interval: Annotated[float, "interval of looks for topics that an agent's `pattern` matches"] = 30.0
    commit_interval: Annotated[float, "interval of commits; 0 is after every batch"] = 5.0
    revoke_timeout: Annotated[float, "time for running batches when their partition is taken away; at most 30 s"] = 25.0
    drain_timeout: Annotated[float, "time for running batches when the app stops"] = 25.0
    start_timeout: Annotated[float, "wait of a start for absent brokers; 0 is for ever"] = 0.0
    session_timeout: Annotated[float, "time that a crashed worker keeps its partitions"] = 10.0
    clock_skew: Annotated[float, "added to due times, since clocks differ"] = 0.5
    delayed_sends: Annotated[bool, "topics for `app.publish` and `Producer.send` with `delay` or `at`, one per delay level"] = False
    relay: Annotated[_Relay, "delay relay: inside of every worker, or apart, in `ackwise relay` alone"] = "inside"
    error_text: Annotated[
        _ErrorText, "what logs have of exceptions that handlers raise: class and place, or the text as well, which may hold a payload"
    ] = "class"
    max_buffered_bytes: Annotated[int, "bytes of fetched messages in a worker; above it each partition takes at most 1 MiB at a time"] = (
        512 * 2**20
    )
    partition_messages: Annotated[int, "fetched and unsettled messages of a partition, above which its fetching pauses"] = 1000
    partition_bytes: Annotated[int, "the same in bytes"] = 100 * 2**20
    partition_span: Annotated[int | None, "the same in offsets, from the first unsettled one"] = None
    client_id: Annotated[str, "name of the Kafka clients"] = "ackwise"
    instance: str = ""  #: of `Broadcasting`, whose own group is `group@instance`; `group` is that one then
    client_options: Annotated[
        Mapping[str, object], "option of every Kafka client, such as `security_protocol`, `sasl_mechanism`, `sasl_plain_password`"
    ] = field(default_factory=dict)

    def __repr__(self) -> str:
        """The settings without what a client proves itself with: a log, a traceback or a test may print them."""
        shown = {item.name: getattr(self, item.name) for item in fields(self)} | {"client_options": shown_options(self.client_options)}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __post_init__(self) -> None:
        for name in _DURATIONS:
            object.__setattr__(self, name, parse_duration(getattr(self, name), what=name))
        TopicTemplate(self.topic_names)
        if not self.pattern_interval:
            raise ConfigurationError("pattern_interval is 0; the brokers would be asked without a pause, so give it seconds, such as 30")
        parse_brokers(self.brokers)
        if self.instance:
            group = self.group.removesuffix(f"@{self.instance}")
            _check_group(group)
            object.__setattr__(self, "group", f"{group}@{self.instance}")
        else:
            _check_group(self.group)
        _check_choice("create_topics", self.create_topics, get_args(_CreateTopics))
        _check_choice("start", self.start, get_args(_Start))
        if not isinstance(self.delayed_sends, bool):
            raise ConfigurationError(f"delayed_sends is {self.delayed_sends!r}; it is True or False")
        if self.delayed_sends and self.instance:
            raise ConfigurationError("delayed_sends needs topics of the group, which an instance that broadcasts has not; use a Producer")
        _check_choice("relay", self.relay, get_args(_Relay))
        _check_choice("error_text", self.error_text, get_args(_ErrorText))
        _check_client_options(self.client_options)
        _check_bytes("max_buffered_bytes", self.max_buffered_bytes)
        check_threshold("partition_messages", self.partition_messages)
        check_threshold("partition_bytes", self.partition_bytes)
        if self.partition_span is not None:
            check_threshold("partition_span", self.partition_span)
        if self.revoke_timeout > REBALANCE_TIMEOUT / 2:
            raise ConfigurationError(
                f"revoke_timeout is {self.revoke_timeout:g} s; it must be at most {REBALANCE_TIMEOUT / 2:g} s, half of the rebalance "
                "timeout, or the broker throws out the member that drains"
            )
        if not _SESSION[0] <= self.session_timeout <= _SESSION[1]:
            raise ConfigurationError(
                f"session_timeout is {self.session_timeout:g} s; brokers accept {_SESSION[0]:g} to {_SESSION[1]:g} s unless told otherwise"
            )


class LoopSettings(TypedDict, total=False):
    """The settings of `HostSettings` that a consumer of the user's own does not bring itself, as keywords."""

    topic_names: str
    create_topics: _CreateTopics
    start: _Start
    commit_interval: float | str
    revoke_timeout: float | str
    drain_timeout: float | str
    start_timeout: float | str
    clock_skew: float | str
    delayed_sends: bool
    relay: _Relay
    error_text: _ErrorText
    max_buffered_bytes: int
    partition_messages: int
    partition_bytes: int
    partition_span: int | None


class AppSettings(LoopSettings, total=False):
    """All settings of `HostSettings` but the group and the brokers, as keywords."""

    pattern_interval: float | str
    session_timeout: float | str
    client_id: str
    client_options: Mapping[str, object]


#: Options of the Kafka clients that would undo what Ackwise promises, or that it sets itself, and what to do instead.
_NOT_YOURS: Final = {
    "acks": "copies are acknowledged by all in-sync replicas",
    "auto_commit_interval_ms": "offsets are committed when their messages are settled; set commit_interval",
    "auto_offset_reset": "set start",
    "bootstrap_servers": "set brokers",
    "client_id": "set client_id beside client_options",
    "enable_auto_commit": "it would commit messages that were merely fetched, and lose them",
    "enable_idempotence": "a copy that comes twice is recognised by its attempt",
    "group_id": "it is the first argument of App",
    "group_instance_id": "a static member's partitions would wait for it after a stop",
    "heartbeat_interval_ms": "it follows session_timeout",
    "isolation_level": "what an aborted transaction wrote must not be consumed",
    "key_deserializer": "one that raises blocks its partition for ever; message.key is bytes",
    "key_serializer": "copies are the bytes of their origin",
    "loop": "the clients run in the event loop of the worker",
    "max_request_size": "the brokers decide how large a copy may be",
    "rebalance_timeout_ms": "it is 60 s, twice the largest revoke_timeout",
    "request_timeout_ms": "each call has a time limit of its own",
    "session_timeout_ms": "set session_timeout",
    "transactional_id": "copies are not written in transactions",
    "value_deserializer": "one that raises blocks its partition for ever; annotate the handler with the type of its values",
    "value_serializer": "copies are the bytes of their origin",
}


def _check_client_options(options: Mapping[str, object]) -> None:
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"client_options is a {type(options).__name__}; give a dict of options such as security_protocol")
    for name in options:
        if (advice := _NOT_YOURS.get(name)) is not None:
            raise ConfigurationError(f"client_options has {name!r}, which is not for users to set: {advice}")
        if name not in (known := _options_of_every_client()):
            near = difflib.get_close_matches(str(name), known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"they take {', '.join(known)}"
            raise ConfigurationError(f"client_options has {name!r}, which not every Kafka client of a worker takes; {advice}")


@cache
def _options_of_every_client() -> tuple[str, ...]:
    """What consumer, producer and admin client take alike, since all of them get the same options; without those of `_NOT_YOURS`."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # settings without options need no Kafka client
    from aiokafka.admin import AIOKafkaAdminClient

    takes = [inspect.signature(client).parameters.keys() for client in (AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient)]
    return tuple(sorted(set.intersection(*map(set, takes)) - _NOT_YOURS.keys()))


def refuse_unknown(owner: str, settings: Mapping[str, object]) -> None:
    """Raise `ConfigurationError` for a name that is no setting of `owner`, which takes `AppSettings`."""
    known = sorted({field.name for field in fields(HostSettings)} - {"group", "instance"})
    for name in settings.keys() - set(known):
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
        raise ConfigurationError(f"{owner} has no setting {name!r}; {advice}")


def _check_group(group: str) -> None:
    if not isinstance(group, str) or not _LEGAL_NAME.fullmatch(group):
        raise ConfigurationError(f"group is {group!r}; its name begins topic names, so use letters, digits, '.', '_' and '-' only")


def _check_bytes(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 2**20:
        raise ConfigurationError(f"{name} is {value!r}; it is a whole number of bytes, at least {2**20}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} is {value!r}; it is one of {', '.join(repr(choice) for choice in choices)}")
