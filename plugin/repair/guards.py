"""Guards of a repair: the key of a message is claimed before it is sent again, so that nothing is done twice.

The claim is of the attempt that ended. While it is held no worker begins the message; once the copy is acknowledged it is
released for the next attempt, so that an older delivery is stale from then on. Nothing is asked of a store that workers don't ask.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

from ackwise.middleware.policies import Dedup, Transactional
from ackwise.middleware.store import Acquired, AlreadyDone, Busy, Claim, ClaimStore, Exchange, ExchangeResult, Release, Stale
from ackwise.middleware.transaction import Finish, Finished, Taken, TransactionalStore
from ackwise.middleware.unrecorded import Unrecorded
from ackwise.plugin.repair.candidate import Candidate, RepairFate

__all__ = ["ClaimGuard", "Guard", "InboxGuard", "NoGuard"]

#: The verdict on messages whose copy was lost: that the store waits for the copy is no news.
_COPY_IS_LOST: Final = "RETRY_LOST"


class Guard(Protocol):
    """Asks whether messages may be sent."""

    suppresses: bool  #: whether what was done already is not run again, if a copy of it is sent all the same

    async def open(self) -> None:
        """Connect. Raises `AckwiseError`."""

    def asked(self, candidates: Sequence[Candidate]) -> AbstractAsyncContextManager[None]:
        """Gives a fate to those that may not be sent. The others are held until the block ends, and then released:
        those with the fate SENT for their next attempt. Raises `StoreUnavailable`.
        """
        ...

    async def close(self) -> None:
        """Disconnect."""


class NoGuard:
    """There is no store that knows what was done."""

    suppresses = False

    async def open(self) -> None:
        """Nothing to connect to."""

    @asynccontextmanager
    async def asked(self, candidates: Sequence[Candidate]) -> AsyncIterator[None]:
        """Everything may be sent."""
        yield

    async def close(self) -> None:
        """Nothing to disconnect from."""


class ClaimGuard:
    """Asks the store of `Dedup`. A run that goes on after a kill asks with the same tokens, so it need not wait for leases."""

    suppresses = True

    def __init__(self, store: ClaimStore, policy: Dedup, plan_id: str) -> None:
        self._store = store
        self._lease, self._retention = float(policy.lease), float(policy.retention)
        self._plan_id = plan_id

    async def open(self) -> None:
        """See `Guard.open`."""
        await self._store.open()

    @asynccontextmanager
    async def asked(self, candidates: Sequence[Candidate]) -> AsyncIterator[None]:
        """See `Guard.asked`."""
        leaders = _by_key(candidates)
        claims = [Claim(key, self._token(key.id)) for led in leaders if (key := led[0].run.key) is not None]
        answers = (await self._exchange(claims=claims)).claims if claims else []
        held = []
        for led, claim, answer in zip(leaders, claims, answers, strict=True):
            match answer:
                case Acquired():
                    held.append((led, claim))
                case AlreadyDone(_, unrecorded):
                    _set_fates(led, RepairFate.DONE)
                    for each in led:
                        each.ran = Unrecorded.read(unrecorded)
                case Stale():
                    _follow(led)
                case Busy():
                    _set_fates(led, RepairFate.HELD)
        try:
            yield
        finally:
            if held:
                await self._exchange(releases=[Release(*claim, sent_back=_next_attempt(led)) for led, claim in held])

    async def close(self) -> None:
        """See `Guard.close`."""
        await self._store.close()

    async def _exchange(self, *, claims: Sequence[Claim] = (), releases: Sequence[Release] = ()) -> ExchangeResult:
        return await self._store.exchange(Exchange(claims=claims, releases=releases, lease=self._lease, retention=self._retention))

    def _token(self, key_id: bytes) -> int:
        """Positive, below 2**63, and the same for each run of this plan."""
        digest = hashlib.blake2b(key_id + self._plan_id.encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "big") >> 2) + 1


class InboxGuard:
    """Asks the database of `Transactional`, in one transaction for all that are sent together."""

    def __init__(self, store: TransactionalStore, policy: Transactional) -> None:
        self._store = store
        self._retention = float(policy.retention)
        self.suppresses = policy.mode == "inbox"  # where offsets are kept, a copy is not told from the record that was passed

    async def open(self) -> None:
        """See `Guard.open`."""
        await self._store.open()

    @asynccontextmanager
    async def asked(self, candidates: Sequence[Candidate]) -> AsyncIterator[None]:
        """See `Guard.asked`."""
        leaders = _by_key(candidates)
        keys = [key for led in leaders if (key := led[0].run.key) is not None]
        async with self._store.begin(retention=self._retention) as transaction:
            answers = await transaction.claim(keys) if keys else []
            taken = []
            for led, key, answer in zip(leaders, keys, answers, strict=True):
                match answer:
                    case Taken():
                        taken.append((led, key))
                    case Finished():
                        _set_fates(led, RepairFate.DONE)
                    case Stale():
                        _follow(led)
            yield
            finishes = [Finish(key, led[0].run.delivery.origin[:3], 0, None, _next_attempt(led) or key.attempt) for led, key in taken]
            if finishes:
                await transaction.finish(finishes)

    async def close(self) -> None:
        """See `Guard.close`."""
        await self._store.close()


def _by_key(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Those of one key together, the highest attempt first: it leads, and the others share its answer."""
    found: dict[bytes, list[Candidate]] = {}
    for each in candidates:
        if each.run.key is not None:
            found.setdefault(each.run.key.id, []).append(each)
    return [sorted(led, key=lambda each: -each.run.delivery.attempt) for led in found.values()]


def _set_fates(led: Sequence[Candidate], fate: RepairFate) -> None:
    for each in led:
        each.fate = fate


def _follow(led: Sequence[Candidate]) -> None:
    for each in led:
        each.fate = None if each.step.verdict == _COPY_IS_LOST else RepairFate.FOLLOWED


def _next_attempt(led: Sequence[Candidate]) -> int | None:
    """The attempt of the copy that is on its way, if one is."""
    return max((each.run.delivery.attempt + 1 for each in led if each.fate is RepairFate.SENT), default=None)
