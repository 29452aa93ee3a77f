"""Scenario of the demo: seeded orders with everything that goes wrong in production. Pure.

The same number of messages and the same seed give the same messages.
"""

from __future__ import annotations

import enum
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ackwise.middleware.disposition import Reason

__all__ = ["LEVELS", "MAX_BATCH", "MAX_RECONSUME_TIMES", "PlannedFate", "PlannedRecord", "Scenario", "make_scenario"]

#: How often the demo's worker lets a message come back; a poison message is dead after one delivery more.
MAX_RECONSUME_TIMES: Final = 3

#: The worker's largest batch and its delay levels: short, since somebody is watching.
MAX_BATCH: Final = 50
LEVELS: Final = ("1s", "2s", "5s")

#: Shares of the messages that go wrong, at least one of each; the rest is billed at once.
_TRANSIENT, _POISON, _STOLEN, _UNDECODABLE, _DUPLICATE = 0.04, 0.002, 0.004, 0.002, 0.05

#: A producer that got no answer sends again, while a few hundred other messages have gone out.
_LATEST_DUPLICATE = 400


class PlannedFate(enum.Enum):
    """What shall become of a record, whatever happens to the worker."""

    BILLED = "billed"
    REJECTED = Reason.REJECTED
    EXHAUSTED = Reason.MAX_RECONSUME_TIMES
    UNDECODABLE = Reason.UNDECODABLE


@dataclass(frozen=True, slots=True)
class PlannedRecord:
    """One record that the producer sends; `key` is the order's business key."""

    key: str
    value: bytes
    fate: PlannedFate
    cents: int = 0
    is_duplicate: bool = False  #: the producer sends the same order again


@dataclass(frozen=True)
class Scenario:
    """Everything that is sent, in order."""

    records: Sequence[PlannedRecord]
    seed: int

    @cached_property
    def fates(self) -> dict[str, PlannedFate]:
        """What shall become of each key."""
        return {record.key: record.fate for record in self.records}

    @cached_property
    def prices(self) -> dict[str, int]:
        """The cents of each order that shall be billed."""
        return {record.key: record.cents for record in self.records if record.fate is PlannedFate.BILLED}


def make_scenario(messages: int, seed: int) -> Scenario:
    """`messages` records: orders of which some fail for a while, for ever or by right, bytes that are no order, and duplicates."""
    draw = random.Random(seed)
    duplicates = round(messages * _DUPLICATE)
    troubles = [trouble for trouble, share in _TROUBLES.items() for _ in range(max(1, round(messages * share)))]
    troubles += [_bill_at_once] * (messages - duplicates - len(troubles))
    draw.shuffle(troubles)
    originals = [trouble(f"order-{number:06d}", draw) for number, trouble in enumerate(troubles)]
    return Scenario(_with_duplicates(originals, duplicates, draw), seed)


def _with_duplicates(originals: Sequence[PlannedRecord], duplicates: int, draw: random.Random) -> list[PlannedRecord]:
    """Undecodable bytes have no business key and can't be told apart from their duplicate, so they have none."""
    places = [(float(place), record) for place, record in enumerate(originals)]
    again = draw.sample([placed for placed in places if placed[1].fate is not PlannedFate.UNDECODABLE], duplicates)
    places += [(place + draw.randint(1, _LATEST_DUPLICATE) + 0.5, replace(record, is_duplicate=True)) for place, record in again]
    return [record for _, record in sorted(places, key=lambda placed: placed[0])]


def _bill_at_once(key: str, draw: random.Random, outage: int = 0) -> PlannedRecord:
    cents = draw.randint(100, 25_000)
    return PlannedRecord(key, _order(key, cents, outage=outage), PlannedFate.BILLED, cents)


def _bill_later(key: str, draw: random.Random) -> PlannedRecord:
    return _bill_at_once(key, draw, outage=draw.randint(1, MAX_RECONSUME_TIMES))


def _never_bill(key: str, draw: random.Random) -> PlannedRecord:
    return PlannedRecord(key, _order(key, draw.randint(100, 25_000), outage=MAX_RECONSUME_TIMES + 1), PlannedFate.EXHAUSTED)


def _reject(key: str, draw: random.Random) -> PlannedRecord:
    return PlannedRecord(key, _order(key, draw.randint(100, 25_000), stolen=True), PlannedFate.REJECTED)


def _garble(key: str, draw: random.Random) -> PlannedRecord:
    return PlannedRecord(key, b"\x80" + draw.randbytes(20), PlannedFate.UNDECODABLE)  # no UTF-8 begins so


_TROUBLES: Final = {_bill_later: _TRANSIENT, _never_bill: _POISON, _reject: _STOLEN, _garble: _UNDECODABLE}


def _order(key: str, cents: int, *, outage: int = 0, stolen: bool = False) -> bytes:
    return json.dumps({"id": key, "cents": cents, "outage": outage, "stolen": stolen}).encode()
