"""What a user gives to `app.use`: one frozen policy per slot. `ConsumeLater` is in `retry.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.events import EventSink
from ackwise.middleware.message import Message
from ackwise.middleware.store import ClaimStore

__all__ = ["DeadLetter", "Dedup", "Events", "KeyFunction"]

KeyFunction = Callable[[Message[Any]], str | bytes | None]


@dataclass(frozen=True)
class Dedup:
    """Run each message once: claims in `store`, a URL such as `"sqlite:///claims.db"` or a `ClaimStore`.

    `key` takes a message and answers its business key; `None` or `""` means "not deduplicated". Without it the
    producer's `message_id_header` counts, else the coordinates of the origin record. `lease` (30 s) is how long a
    crashed worker keeps others from its messages, not how long a handler may take; `retention` (24 h) is how long
    a finished message is remembered. Raise `epoch` for an intended replay.
    """

    store: str | ClaimStore
    key: KeyFunction | None = None
    lease: float | str = 30.0
    retention: float | str = 86400.0
    namespace: str = "ackwise"
    epoch: int = 0
    message_id_header: str = "message-id"

    def __post_init__(self) -> None:
        lease = parse_duration(self.lease, what="lease of Dedup")
        retention = parse_duration(self.retention, what="retention of Dedup")
        object.__setattr__(self, "lease", lease)
        object.__setattr__(self, "retention", retention)
        if lease < 0.1:
            raise ConfigurationError(
                f"lease of Dedup is {lease} s; it must be at least 0.1 s, since it is renewed three times in that time"
            )
        if retention < lease:
            raise ConfigurationError(
                f"retention of Dedup is {retention} s, shorter than its lease of {lease} s; finished messages would run again"
            )
        if isinstance(self.epoch, bool) or not isinstance(self.epoch, int) or not 0 <= self.epoch < 2**31:
            raise ConfigurationError(f"epoch of Dedup is {self.epoch!r}; it must be a whole number from 0; raise it by one for a replay")
        if self.key is not None and not callable(self.key):
            raise ConfigurationError(f"key of Dedup is {self.key!r}; it must be a function that takes a message and answers its key")


@dataclass(frozen=True)
class DeadLetter:
    """Messages that can't be consumed go to `topic`, by default `<group>.dlq`."""

    topic: str | None = None


@dataclass(frozen=True)
class Events:
    """Export what happened to every message: `sink` is a folder (a path or a `file://` URL) or an `EventSink`.

    Mode `before_settle` makes events durable before anything is acknowledged, so that a missing event proves a
    loss; `async` writes them behind, and a crash may cost the last ones.
    """

    sink: str | EventSink
    mode: Literal["before_settle", "async"] = "before_settle"

    def __post_init__(self) -> None:
        if self.mode not in ("before_settle", "async"):
            raise ConfigurationError(f"mode of Events is {self.mode!r}; it is 'before_settle' or 'async'")
