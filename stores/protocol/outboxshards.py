"""Who owns which shard of an outbox. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Shard(NamedTuple):
    """A shard as the database has it."""

    number: int
    token: int
    owner: str
    """Empty if it is free."""
    is_leased: bool
    """Whether the lease of its owner is alive, by the database's clock."""


class Division(NamedTuple):
    """What `own` changes; everything by number."""

    keep: list[int]
    take: list[int]
    """Their tokens grow by one."""
    give: list[int]


def divide(shards: Sequence[Shard], owner: str, share: int) -> Division:
    """Return what `owner` keeps, takes and gives back, so that it has `share` shards if enough are free or expired.

    An own shard whose lease has passed is kept if nobody took it, with its token: nobody else wrote meanwhile.
    """
    mine = [shard.number for shard in shards if shard.owner == owner]
    free = [shard.number for shard in shards if shard.owner != owner and not (shard.owner and shard.is_leased)]
    keep, give = mine[:share], mine[share:]
    return Division(keep, free[: max(0, share - len(keep))], give)
