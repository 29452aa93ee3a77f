"""`Share`: the sources are consumed by a share group of Kafka (KIP-932), so that more workers than partitions have work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError

__all__ = ["Share"]

#: Seconds before the end of the lock in which nothing runs, or a quarter of the lock: for copies and acknowledgements to arrive.
_RESERVE: Final = 5.0

#: What the client is told by the host, and what to do instead.
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

    A broker locks what it hands to a worker for `lock` seconds. What has not begun 5 s before its lock ends, or
    can't begin, goes to the retry topic, and no attempt is charged. Handlers, `Dedup`, `Transactional`, delays, dead letters and
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
        """Seconds from the lock until what runs is cancelled, and what has not begun is copied."""
        return float(self.lock) - min(_RESERVE, float(self.lock) / 4)
