"""Protocol of a claim store: one call, `exchange`, for a whole batch.

A store keeps one record per claim key and decides every transition atomically on its own clock (the transition
table is in `docs/store-protocol.md`). Everything is idempotent by token: repeating an exchange whose answer was
lost gives the answer that was lost, but for a release (LOST then, and as good) and a complete that was RESTORED (OK then).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

__all__ = [
    "WHOEVER",
    "Ack",
    "Acquired",
    "AlreadyDone",
    "Busy",
    "Claim",
    "ClaimAnswer",
    "ClaimKey",
    "ClaimStore",
    "Complete",
    "Exchange",
    "ExchangeResult",
    "Maintained",
    "MaintainedStore",
    "Outcome",
    "Release",
    "Renew",
    "Stale",
]


WHOEVER: Final = 0
"""In place of a token: that of nobody's claim."""


class Outcome(enum.IntEnum):
    """How a completed message ended."""

    OK = 1
    DEAD = 2
    SKIPPED = 3


class ClaimKey(NamedTuple):
    """What a claim is about."""

    id: bytes
    """16 bytes: blake2b-128 over namespace, dedup epoch, group, handler and dedup id."""
    day: int | None
    """Days since 1970-01-01 of the origin record, for stores that partition by it; `None` for business keys."""
    attempt: int
    """`reconsume_times + 1` of the copy that asks; a claim with a smaller one than the record's is stale."""


class Claim(NamedTuple):
    """May I run this message? `token` is chosen by the caller, unique per claim, positive and below 2**63."""

    key: ClaimKey
    token: int


class Complete(NamedTuple):
    """This message is finished; remember it for the retention. A success with the token `WHOEVER` counts whoever holds the key."""

    key: ClaimKey
    token: int
    outcome: Outcome
    unrecorded: str = ""
    """What became of it and could not be recorded elsewhere, kept with the outcome: up to 400 ASCII characters. A store that keeps no
    owners may forget it."""


class Release(NamedTuple):
    """I no longer hold this message. `sent_back` is the attempt of the copy on its way, or `None`."""

    key: ClaimKey
    token: int
    sent_back: int | None = None


class Renew(NamedTuple):
    """I am still working on this message: its lease starts again now."""

    key: ClaimKey
    token: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """N keys of each kind, one round trip.

    The store applies completes, then releases, then renews, then claims. A key that stands in both `completes` and
    `claims`, in both `releases` and `claims`, or twice in `claims` is the caller's mistake.
    """

    claims: Sequence[Claim] = ()
    completes: Sequence[Complete] = ()
    releases: Sequence[Release] = ()
    renews: Sequence[Renew] = ()
    lease: float = 30.0  #: seconds
    retention: float = 86400.0  #: seconds that a completed or sent-back record is remembered
    owner: str = ""
    """The process that asks, as others on its host can tell whether it lives; kept beside the token of what it claims
    or renews. Up to 64 letters, digits and hyphens; empty if nobody can tell."""
    gone: Sequence[str] = ()
    """Owners whose death is proved: their claims may be taken over before the lease ends."""

    def __len__(self) -> int:
        return len(self.claims) + len(self.completes) + len(self.releases) + len(self.renews)


class Acquired(NamedTuple):
    """Yours until the lease ends. `epoch` is the fencing token: it grows with every claim that follows another."""

    epoch: int
    lost: int = 0
    """How many claims of this attempt ended without being completed or released: crashed workers."""
    took_unreleased: bool = False
    """The claim before this one was neither completed nor released: somebody may have run it and died."""


class Busy(NamedTuple):
    """Somebody else holds it, for at most `retry_after` seconds more."""

    retry_after: float
    owner: str = ""
    """The process that holds it, if the store keeps owners and it named itself."""


class AlreadyDone(NamedTuple):
    """Completed before; nothing to run."""

    outcome: Outcome
    unrecorded: str = ""
    """As whoever completed it said."""


class Stale(NamedTuple):
    """A copy with a later attempt is already on its way; this one is dropped."""


ClaimAnswer = Acquired | Busy | AlreadyDone | Stale


class Ack(enum.Enum):
    """The answer to a complete, a release or a renew."""

    OK = "ok"
    RESTORED = "restored"
    """complete: the record was gone (evicted, failed over) and was written again; counted and alarmed."""
    LOST = "lost"
    """Somebody else owns the record: change nothing, and claim again before believing anything."""
    LOST_DONE = "lost-done"
    """complete: somebody else completed it; the offset may advance."""


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """The answers, each list in the order of its request."""

    claims: list[ClaimAnswer]
    completes: list[Ack]
    releases: list[Ack]
    renews: list[Ack]


class ClaimStore(Protocol):
    """A claim store. `ackwise.stores.testing` has the suite that every store passes."""

    async def open(self) -> None:
        """Connect and create what is missing. Raises `StoreUnavailable` or `ConfigurationError`."""

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Apply everything in one round trip. Raises `StoreUnavailable` if the answer did not come."""
        ...

    async def close(self) -> None:
        """Give back connections and threads. Closing twice does nothing."""


@runtime_checkable
class Maintained(Protocol):
    """What has something to set up and to keep tidy, as `ackwise store init|check|cleanup URL` does.

    All three connect by themselves, and work on a store that is open as well as on one that is not. They raise
    `StoreUnavailable`, and `ConfigurationError` for a schema of another version, or for missing rights.
    """

    async def init(self) -> None:
        """Create what is missing and bring what is old to this version. Doing it twice changes nothing."""

    async def check(self) -> list[str]:
        """What is wrong or unwise, one sentence each with what to do; empty if all is well. Changes nothing."""
        ...

    async def cleanup(self) -> int:
        """Delete what is forgotten, in bounded steps beside running workers; returns how many records."""
        ...


class MaintainedStore(ClaimStore, Maintained, Protocol):
    """A claim store that has something to set up and to keep tidy."""
