"""What the shop sends: seeded orders with everything that goes wrong in production. Pure.

The same number of messages and the same seed give the same messages.
"""

from __future__ import annotations

import enum
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ackwise.middleware.disposition import Reason

__all__ = ["LEVELS", "MAX_BATCH", "MAX_RECONSUME_TIMES", "Fate", "Record", "Scenario", "make_scenario"]

#: How often the demo's worker lets a message come back; a poison message is dead after one delivery more.
MAX_RECONSUME_TIMES: Final = 3

#: The worker's largest batch and its delay levels: short, since somebody is watching.
MAX_BATCH: Final = 50
LEVELS: Final = ("1s", "2s", "3s")

#: Shares of the messages; the rest is billed at once.
_TRANSIENT, _POISON, _STOLEN, _UNDECODABLE, _DUPLICATE = 0.04, 0.002, 0.004, 0.002, 0.05

#: A producer that got no answer sends again, while a few hundred other messages have gone out.
_LATEST_DUPLICATE = 400


class Fate(enum.Enum):
    """What shall become of a record, whatever happens to the worker."""

    BILLED = "billed"
    REJECTED = Reason.REJECTED
    EXHAUSTED = Reason.MAX_RECONSUME_TIMES
    UNDECODABLE = Reason.UNDECODABLE


@dataclass(frozen=True, slots=True)
class Record:
    """One record that the producer sends; `key` is the order's business key."""

    key: str
    value: bytes
    fate: Fate
    cents: int = 0
    is_duplicate: bool = False  #: the producer sends the same order again


@dataclass(frozen=True)
class Scenario:
    """Everything that is sent, in order."""

    records: Sequence[Record]
    seed: int

    @cached_property
    def fates(self) -> dict[str, Fate]:
        """What shall become of each key."""
        return {record.key: record.fate for record in self.records}

    @cached_property
    def prices(self) -> dict[str, int]:
        """The cents of each order that shall be billed."""
        return {record.key: record.cents for record in self.records if record.fate is Fate.BILLED}


def make_scenario(messages: int, seed: int) -> Scenario:
    """`messages` records: orders of which some fail for a while, for ever or by right, bytes that are no order, and duplicates."""
    draw = random.Random(seed)
    duplicates = round(messages * _DUPLICATE)
    originals = [_record(number, draw) for number in range(messages - duplicates)]
    again = draw.sample([place for place, record in enumerate(originals) if record.fate is not Fate.UNDECODABLE], duplicates)
    places = [(float(place), record) for place, record in enumerate(originals)]
    for place in again:
        first = originals[place]
        repeated = Record(first.key, first.value, first.fate, first.cents, is_duplicate=True)
        places.append((place + draw.randint(1, _LATEST_DUPLICATE) + 0.5, repeated))
    places.sort(key=lambda placed: placed[0])
    return Scenario([record for _, record in places], seed)


def _record(number: int, draw: random.Random) -> Record:
    key, cents, chance = f"order-{number:06d}", draw.randint(100, 25_000), draw.random()
    if (chance := chance - _UNDECODABLE) < 0:
        return Record(key, b"\x80" + draw.randbytes(20), Fate.UNDECODABLE)  # no UTF-8 begins so
    if (chance := chance - _STOLEN) < 0:
        return Record(key, _order(key, cents, stolen=True), Fate.REJECTED)
    if (chance := chance - _POISON) < 0:
        return Record(key, _order(key, cents, outage=MAX_RECONSUME_TIMES + 1), Fate.EXHAUSTED)
    outage = draw.randint(1, MAX_RECONSUME_TIMES) if chance < _TRANSIENT else 0
    return Record(key, _order(key, cents, outage=outage), Fate.BILLED, cents)


def _order(key: str, cents: int, *, outage: int = 0, stolen: bool = False) -> bytes:
    return json.dumps({"id": key, "cents": cents, "outage": outage, "stolen": stolen}).encode()
