"""How one group talks to Kafka: the settings of a host, checked when they are made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError

__all__ = ["REBALANCE_TIMEOUT", "HostSettings"]

#: Seconds that a group waits for its members during a rebalance; aiokafka's default is the session timeout.
REBALANCE_TIMEOUT: Final = 60.0

#: Shortest and longest session that brokers accept by default (group.min.session.timeout.ms, group.max.session.timeout.ms).
_SESSION: Final = (6.0, 1800.0)

_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")

_CreateTopics = Literal["auto", "never", "broker"]
_Start = Literal["earliest", "latest"]


@dataclass(frozen=True)
class HostSettings:
    """How one group talks to Kafka. Durations are seconds, or texts such as `"30s"` that become seconds.

    Raises `ConfigurationError` for a setting that can't work.
    """

    brokers: str  #: `host:port`, several with commas between
    group: str
    create_topics: _CreateTopics = "auto"  #: `broker`: rely on the broker's auto-creation; `never`: they must be there
    start: _Start = "earliest"  #: where a partition without a committed offset begins
    commit_interval: float = 5.0  #: 0 commits after every batch
    revoke_timeout: float = 25.0  #: how long a running batch may take to finish when its partition is taken away
    drain_timeout: float = 25.0  #: how long running batches may take to finish when the app stops
    session_timeout: float = 10.0  #: how long a crashed worker's partitions stay with it
    clock_skew: float = 0.5  #: added to due times, so that a copy is never early on another machine's clock
    client_id: str = "ackwise"
    client_options: Mapping[str, object] = field(default_factory=dict)
    """Passed to every Kafka client: `security_protocol`, `ssl_context`, `sasl_mechanism` and so on."""

    def __post_init__(self) -> None:
        for name in ("commit_interval", "revoke_timeout", "drain_timeout", "session_timeout", "clock_skew"):
            object.__setattr__(self, name, parse_duration(getattr(self, name), what=name))
        _check_brokers(self.brokers)
        _check_group(self.group)
        _check_choice("create_topics", self.create_topics, get_args(_CreateTopics))
        _check_choice("start", self.start, get_args(_Start))
        if self.revoke_timeout > REBALANCE_TIMEOUT / 2:
            raise ConfigurationError(
                f"revoke_timeout is {self.revoke_timeout:g} s; it must be at most {REBALANCE_TIMEOUT / 2:g} s, half of the rebalance "
                "timeout, or the broker throws out the member that drains"
            )
        if not _SESSION[0] <= self.session_timeout <= _SESSION[1]:
            raise ConfigurationError(
                f"session_timeout is {self.session_timeout:g} s; brokers accept {_SESSION[0]:g} to {_SESSION[1]:g} s unless told otherwise"
            )


def _check_brokers(brokers: str) -> None:
    if not isinstance(brokers, str) or not all(address.strip() for address in brokers.split(",")):
        raise ConfigurationError(f"brokers is {brokers!r}; write it as 'host:port', several with commas between")
    if "://" in brokers:
        raise ConfigurationError("brokers is a URL; write it as 'host:port' without a scheme, and credentials into client_options")


def _check_group(group: str) -> None:
    if not isinstance(group, str) or not _LEGAL_NAME.fullmatch(group):
        raise ConfigurationError(f"group is {group!r}; its name begins topic names, so use letters, digits, '.', '_' and '-' only")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} is {value!r}; it is one of {', '.join(repr(choice) for choice in choices)}")
