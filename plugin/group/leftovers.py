"""Leftovers: copies from before their handler had an order. They would run whenever they are due, out of order, so its start is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aiokafka import TopicPartition

from ackwise.middleware.agent import Agent
from ackwise.middleware.ladder import CANCELLATIONS
from ackwise.middleware.message import Delivery
from ackwise.middleware.wire import ForeignCopy, OtherWire, parse_copy, reason_of
from ackwise.plugin.group.copyreader import CopyReader, Left, look
from ackwise.plugin.group.topics import TopicNames
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["REPAIR", "Leftover", "Leftovers", "find_leftovers"]

#: Seconds for the whole look: a start must not wait for as long as others have copies to read.
_TIMEOUT: Final = 15.0

#: How the reason of a copy begins that a repair plan sent. Whoever sends one has decided that it runs now.
REPAIR: Final = "repair of "


class Leftover(NamedTuple):
    """The first copy found of a handler that has an order."""

    handler: str
    order: str
    topic: str
    partition: int
    offset: int

    @property
    def sentence(self) -> str:
        """What it means, and what to do."""
        return (
            f"topic {self.topic!r} has a copy for agent {self.handler!r} from before it had order={self.order!r} (partition "
            f"{self.partition}, offset {self.offset}), and it would run out of order; let workers without the order run the delay and "
            "retry topics dry, or cancel what waits (ackwise cancel), and switch the order on then"
        )


class Leftovers(NamedTuple):
    """What was found. `unread` says why not everything was looked at, if so."""

    found: Sequence[Leftover]
    unread: str | None = None


async def find_leftovers(settings: HostSettings, names: TopicNames, agents: Iterable[Agent], *, within: float = _TIMEOUT) -> Leftovers:
    """Look for copies that wait for those of `agents` with an order, in the delay and retry topics, for at most `within` seconds.

    A replay has a position of its own, and a repair was asked for: neither counts. Raises `Unavailable` if the brokers do not answer.
    """
    orders = {agent.name: agent.order for agent in agents if agent.order is not None}
    if not orders or not names.all:
        return Leftovers(())
    found: dict[str, Leftover] = {}
    _, unread = await look(settings, names, lambda reader: _look(reader, names, orders, found), within=within)
    return Leftovers([*found.values()], unread)


async def _look(reader: CopyReader, names: TopicNames, orders: Mapping[str, str], found: dict[str, Leftover]) -> None:
    """Add the first copy of each handler to `found`. The relay's topics come first: what moves on meanwhile is seen where it goes."""
    committed = await reader.committed()
    for topic in (names.delay, names.retry):
        partitions = [each for each in await reader.partitions([topic]) if each != (names.delay, CANCELLATIONS)]
        for partition, left in (await reader.left(partitions, committed)).items():
            if left.position < left.end and len(found) < len(orders):
                await _search(reader, partition, left, names.group, orders, found)


async def _search(
    reader: CopyReader, partition: TopicPartition, left: Left, group: str, orders: Mapping[str, str], found: dict[str, Leftover]
) -> None:
    is_unfinished = left.unfinished()
    async for record in reader.deliveries(partition, left):
        handler = _waits_for(record, group) if is_unfinished(record.offset) else None
        if handler is not None and handler in orders:
            found.setdefault(handler, Leftover(handler, orders[handler], *partition, record.offset))
            if len(found) == len(orders):
                return


def _waits_for(record: Delivery, group: str) -> str | None:
    """The handler of a copy that nobody asked for; `None` for a replay, a repair, and what this group did not write."""
    try:
        copy = parse_copy(record, group)
        asked_for = copy.replay_id is not None or reason_of(record.headers, group).startswith(REPAIR)
    except (ForeignCopy, OtherWire):
        return None
    return None if asked_for else copy.handler
