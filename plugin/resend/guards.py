"""Guards of a repair: the key of a message is claimed before it is sent again, so that nothing is done twice.

The claim is of the attempt that ended. While it is held no worker begins the message; once the copy is acknowledged it is
released for the next attempt, so that an older delivery is stale from then on. Nothing is asked of a store that workers don't ask.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ackwise.middleware.policies import Dedup, Transactional
from ackwise.middleware.store import Acquired, AlreadyDone, Busy, Claim, ClaimAnswer, ClaimKey, ClaimStore, Exchange, Release, Stale
from ackwise.middleware.transaction import Finish, Finished, Taken, TransactionalStore, TransactionAnswer
from ackwise.middleware.unrecorded import Unrecorded
from ackwise.plugin.group.group import Group
from ackwise.plugin.resend.candidate import Candidate, Fate

__all__ = ["ClaimGuard", "InboxGuard", "guard_of"]

Led = tuple[ClaimKey, list[Candidate]]
"""Candidates of one key, the highest attempt first: it leads, and the others share its answer."""


class ClaimGuard:
    """Asks the store of `Dedup`. A run that goes on after a kill asks with the same tokens, so it need not wait for leases."""

    suppresses = True  #: what was done already is not run again, if a copy of it is sent all the same

    def __init__(self, store: ClaimStore, policy: Dedup, plan_id: str) -> None:
        self.store = store
        self._lease, self._retention = float(policy.lease), float(policy.retention)
        self._plan_id = plan_id

    @asynccontextmanager
    async def asked(self, candidates: Sequence[Candidate]) -> AsyncIterator[None]:
        """Gives a fate to those that may not be sent. The others are held until the block ends, and then released:
        those with the fate SENT for their next attempt. Raises `StoreUnavailable`.
        """
        leaders = _by_key(candidates)
        claims = [Claim(key, self._token(key.id)) for key, _ in leaders]
        answers = (await self.store.exchange(self._exchange(claims=claims))).claims if claims else []
        held = [(led, claim) for (_, led), claim, answer in zip(leaders, claims, answers, strict=True) if _is_granted(led, answer)]
        try:
            yield
        finally:
            if held:
                releases = [Release(*claim, sent_back=_next_attempt(led)) for led, claim in held]
                await self.store.exchange(self._exchange(releases=releases))

    def _exchange(self, *, claims: Sequence[Claim] = (), releases: Sequence[Release] = ()) -> Exchange:
        return Exchange(claims=claims, releases=releases, lease=self._lease, retention=self._retention)

    def _token(self, key_id: bytes) -> int:
        """Positive, below 2**63, and the same for each run of this plan."""
        digest = hashlib.blake2b(key_id + self._plan_id.encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "big") >> 2) + 1


class InboxGuard:
    """Asks the database of `Transactional`, in one transaction for all that are sent together."""

    def __init__(self, store: TransactionalStore, policy: Transactional) -> None:
        self.store = store
        self._retention = float(policy.retention)
        self.suppresses = policy.mode == "inbox"  # where offsets are kept, a copy is not told from the record that was passed

    @asynccontextmanager
    async def asked(self, candidates: Sequence[Candidate]) -> AsyncIterator[None]:
        """See `ClaimGuard.asked`."""
        leaders = _by_key(candidates)
        async with self.store.begin(retention=self._retention) as transaction:
            answers = await transaction.claim([key for key, _ in leaders]) if leaders else []
            taken = [(key, led) for (key, led), answer in zip(leaders, answers, strict=True) if _is_granted(led, answer)]
            yield
            finishes = [Finish(key, led[0].run.delivery.origin[:3], 0, None, _next_attempt(led) or key.attempt) for key, led in taken]
            if finishes:
                await transaction.finish(finishes)


def guard_of(group: Group, plan_id: str) -> ClaimGuard | InboxGuard | None:
    """The guard that asks the store which knows what was done; `None` without one."""
    policy = group.dedup
    if isinstance(policy, Dedup) and (store := group.slots.open_store()) is not None and type(store).__module__ != "ackwise.stores.memory":
        return ClaimGuard(store, policy, plan_id)
    if isinstance(policy, Transactional) and (inbox := group.slots.open_inbox()) is not None:
        return InboxGuard(inbox, policy)
    return None


def _by_key(candidates: Sequence[Candidate]) -> list[Led]:
    found: dict[bytes, list[Candidate]] = {}
    keys: dict[bytes, ClaimKey] = {}
    for each in sorted(candidates, key=lambda each: -each.run.delivery.attempt):
        if (key := each.run.key) is not None:
            keys.setdefault(key.id, key)
            found.setdefault(key.id, []).append(each)
    return [(keys[key_id], led) for key_id, led in found.items()]


def _is_granted(led: Sequence[Candidate], answer: ClaimAnswer | TransactionAnswer) -> bool:
    """Whether these may be sent and are held; otherwise they have their fate."""
    match answer:
        case Acquired() | Taken():
            return True
        case Finished(None):  # its handler committed it unseen: how much of it is done nobody knows
            for each in led:
                each.fate = Fate.MANUAL
        case AlreadyDone() | Finished():
            for each in led:
                each.fate = Fate.DONE
                each.ran = Unrecorded.read(answer.unrecorded) if isinstance(answer, AlreadyDone) else None
        case Stale():
            for each in led:
                each.fate = None if each.lost_its_copy else Fate.FOLLOWED
        case Busy():
            for each in led:
                each.fate = Fate.HELD
    return False


def _next_attempt(led: Sequence[Candidate]) -> int | None:
    """The attempt of the copy that is on its way, if one is."""
    return max((each.run.delivery.attempt + 1 for each in led if each.fate is Fate.SENT), default=None)
