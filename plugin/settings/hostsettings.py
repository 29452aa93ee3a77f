"""`HostSettings`: the settings of one group, checked when they are made; `placed` returns those of a broadcasting instance."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Final, Literal, TypedDict, cast, get_args

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.flow.limits import check_threshold
from ackwise.middleware.policies.delaytopic import width
from ackwise.middleware.policies.policies import Broadcasting
from ackwise.plugin.settings.clientoptions import EVERY_CLIENT, OWN_CONSUMER, OWN_PRODUCER, checked_options
from ackwise.plugin.settings.connecting import parse_brokers, shown_options, with_credentials
from ackwise.plugin.topictemplate import DEFAULT_TOPIC_NAMES, TopicTemplate

DEFAULT_BROKERS: Final = "localhost:9092"

#: Seconds that a group waits for its members during a rebalance; aiokafka's default is the session timeout.
REBALANCE_TIMEOUT: Final = 60.0

#: Shortest and longest session that brokers accept by default (group.min.session.timeout.ms, group.max.session.timeout.ms).
_SESSION: Final = (6.0, 1800.0)

#: Longest time between heartbeats unless said otherwise, as Kafka's own client has it.
_HEARTBEAT: Final = 3.0

#: Lanes of a delay topic: more than 26 partitions for each would be wider than any source.
_MOST_LANES: Final = 100

#: Characters of an instance id; Kafka allows 249, and a worker process adds its number.
_LONGEST_ID: Final = 200

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
    start: Annotated[_Start, "where a group starts; a partition that is added later starts at its start"] = "earliest"
    topic_names: Annotated[str, "names of the group's own topics, in which `{group}` and `{kind}` stand"] = DEFAULT_TOPIC_NAMES
    pattern_interval: Annotated[float, "interval of looks for topics that an agent's `pattern` matches"] = 30.0
    commit_interval: Annotated[float, "interval of commits; 0 is after every batch"] = 5.0
    revoke_timeout: Annotated[float, "time for running batches when their partition is taken away; at most 30 s"] = 25.0
    drain_timeout: Annotated[float, "time for running batches when the app stops"] = 25.0
    start_timeout: Annotated[float, "wait of a start for absent brokers and stores; 0 is without a limit"] = 0.0
    session_timeout: Annotated[float, "time that a crashed worker keeps its partitions"] = 10.0
    clock_skew: Annotated[float, "added to due times, since clocks differ"] = 0.5
    delayed_sends: Annotated[bool, "let `app.publish` send with `delay` or `at`; the delay topic has its own partitions for them"] = False
    lanes: Annotated[int, "partitions for each wait of the delay topic, so that more copies are moved at a time"] = 1
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
    group_instance_id: Annotated[
        str, "id of a static member, which no other worker of the group has; `run --workers N` adds `-1` to `-N`"
    ] = ""
    instance: str = ""  #: of `Broadcasting`, whose own group is `group@instance`; `group` is that one then
    client_options: Annotated[
        Mapping[str, object], "option of every Kafka client, such as `security_protocol`, `sasl_mechanism`, `sasl_plain_password`"
    ] = field(default_factory=dict)
    consumer_options: Annotated[Mapping[str, object], "tuning of the consumer, such as `fetch_max_bytes`"] = field(default_factory=dict)
    producer_options: Annotated[Mapping[str, object], "tuning of the producers of copies, such as `compression_type`"] = field(
        default_factory=dict
    )

    @property
    def rungs(self) -> int:
        """Partitions of the group's delay topic."""
        return width(lanes=self.lanes, delayed_sends=self.delayed_sends)

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
        _check_instance_id(self.group_instance_id, self.instance)
        _check_choice("create_topics", self.create_topics, get_args(_CreateTopics))
        _check_choice("start", self.start, get_args(_Start))
        if not isinstance(self.delayed_sends, bool):
            raise ConfigurationError(f"delayed_sends is {self.delayed_sends!r}; it is True or False")
        if isinstance(self.lanes, bool) or not isinstance(self.lanes, int) or not 1 <= self.lanes <= _MOST_LANES:
            raise ConfigurationError(f"lanes is {self.lanes!r}; give a whole number from 1 to {_MOST_LANES}")
        if self.delayed_sends and self.instance:
            raise ConfigurationError("delayed_sends needs topics of the group, which an instance that broadcasts has not; use a Producer")
        _check_choice("relay", self.relay, get_args(_Relay))
        _check_choice("error_text", self.error_text, get_args(_ErrorText))
        object.__setattr__(self, EVERY_CLIENT, with_credentials(checked_options(EVERY_CLIENT, self.client_options)))
        for name in (OWN_CONSUMER, OWN_PRODUCER):
            object.__setattr__(self, name, checked_options(name, getattr(self, name)))
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
                f"session_timeout is {self.session_timeout:g} s; brokers accept {_SESSION[0]:g} to {_SESSION[1]:g} s by default"
            )
        if self.heartbeat_interval > self.session_timeout / 3:
            raise ConfigurationError(
                f"consumer_options has heartbeat_interval_ms={self.heartbeat_interval * 1000:g}; it is at most a third of session_timeout, "
                f"{self.session_timeout / 3 * 1000:.0f}: one that is lost must not end the session"
            )

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between the heartbeats of a worker. It learns of a rebalance by them, and has 60 s for that, however long its session."""
        given = cast("int | None", self.consumer_options.get("heartbeat_interval_ms"))
        return min(self.session_timeout / 5, _HEARTBEAT) if given is None else given / 1000


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
    lanes: int
    relay: _Relay
    error_text: _ErrorText
    max_buffered_bytes: int
    partition_messages: int
    partition_bytes: int
    partition_span: int | None
    producer_options: Mapping[str, object]


class AppSettings(LoopSettings, total=False):
    """All settings of `HostSettings` but the group and the brokers, as keywords."""

    pattern_interval: float | str
    session_timeout: float | str
    client_id: str
    group_instance_id: str
    client_options: Mapping[str, object]
    consumer_options: Mapping[str, object]


def refuse_unknown(owner: str, settings: Mapping[str, object]) -> None:
    """Raise `ConfigurationError` for a name that is no setting of `owner`, which takes `AppSettings`."""
    known = sorted({field.name for field in fields(HostSettings)} - {"group", "instance"})
    for name in settings.keys() - set(known):
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
        raise ConfigurationError(f"{owner} has no setting {name!r}; {advice}")


def _check_group(group: str) -> None:
    if not isinstance(group, str) or not _LEGAL_NAME.fullmatch(group):
        raise ConfigurationError(f"group is {group!r}; its name starts topic names, so use letters, digits, '.', '_' and '-' only")


def _check_instance_id(found: str, instance: str) -> None:
    if not isinstance(found, str) or (found and not (_LEGAL_NAME.fullmatch(found) and len(found) <= _LONGEST_ID)):
        raise ConfigurationError(
            f"group_instance_id is {found!r}; use up to {_LONGEST_ID} letters, digits, '.', '_' and '-', such as the name of the pod"
        )
    if found and instance:
        raise ConfigurationError("group_instance_id is for workers that share a group; an instance that broadcasts has its own")


def _check_bytes(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 2**20:
        raise ConfigurationError(f"{name} is {value!r}; it is a whole number of bytes, at least {2**20}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} is {value!r}; it is one of {', '.join(repr(choice) for choice in choices)}")


def placed(settings: HostSettings, broadcasting: Broadcasting, *, says_start: bool) -> HostSettings:
    """`settings` of the group as those of this instance: the group `group@instance`.

    A new instance starts at the end, as RocketMQ's does (`CONSUME_FROM_LAST_OFFSET`), unless the user `says_start`.
    """
    start = settings.start if says_start else "latest"
    return dataclasses.replace(settings, instance=broadcasting.instance, start=start)
