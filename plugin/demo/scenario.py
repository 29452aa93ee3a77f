"""Scenario and outcome of the demo: seeded orders with typical failures, and the judgement on the result. Pure.

Equal numbers of messages and seeds give equal messages. The judgement uses delivery reports, the ledger and the dead-letter topic,
not the records of Ackwise. It fails on a lost order, a wrong ledger, and more repeats than messages in flight at the kill.
"""

from __future__ import annotations

import enum
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ackwise.middleware.message.disposition import Reason
from ackwise.plugin.demo.ledger import LedgerLine

#: How often the demo's worker lets a message come back; a poison message is dead after one delivery more.
MAX_RECONSUME_TIMES: Final = 3

#: The worker's largest batch and its delay levels: short, since the user is watching.
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
    """`messages` records: orders of which some fail for a while, forever or by right, bytes that are no order, and duplicates."""
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
    return PlannedRecord(key, b"\x80" + draw.randbytes(20), PlannedFate.UNDECODABLE)  # no UTF-8 starts so


_TROUBLES: Final = {_bill_later: _TRANSIENT, _never_bill: _POISON, _reject: _STOLEN, _garble: _UNDECODABLE}


def _order(key: str, cents: int, *, outage: int = 0, stolen: bool = False) -> bytes:
    return json.dumps({"id": key, "cents": cents, "outage": outage, "stolen": stolen}).encode()


@dataclass(frozen=True, slots=True)
class DeadLetterSeen:
    """One record of the dead-letter topic."""

    key: str
    reason: str
    partition: int  #: of the origin
    offset: int


@dataclass(frozen=True, slots=True)
class Observations:
    """What the outside world saw."""

    positions: Sequence[tuple[int, int]]  #: where the broker says that it put each record: partition and offset
    ledger: Sequence[LedgerLine]
    dead_letters: Sequence[DeadLetterSeen]
    retried: Mapping[str, int]  #: copies on the rung of each delay level
    in_flight: int  #: messages that were claimed and unfinished at the kills, at most
    kills: int


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """The result, in numbers that a person can check."""

    sent: int
    billed: int
    repeated_by_kill: int
    suppressed: int
    retried: dict[str, int]
    dead: dict[str, int]
    lost: int
    expected_cents: int
    actual_cents: int  #: of the orders in the ledger, each counted once
    repeated_cents: int  #: of the entries beyond that
    in_flight: int
    kills: int
    failures: tuple[str, ...]  #: a sentence for each condition that does not hold


def judge(scenario: Scenario, observed: Observations) -> DemoOutcome:
    """Compare what was sent with what became of it."""
    billed = {entry.order: entry.cents for entry in observed.ledger}
    repeated = len(observed.ledger) - len(billed)
    dead = {letter.key: letter.reason for letter in observed.dead_letters}
    lost = [key for key in scenario.fates if key not in billed and key not in dead]
    failures = [
        *_of_losses(lost),
        *_of_accounts(scenario, billed, dead),
        *_of_repeats(repeated, observed.in_flight),
    ]
    return DemoOutcome(
        sent=len(observed.positions),
        billed=len(billed),
        repeated_by_kill=repeated,
        suppressed=_suppressed(scenario, observed),
        retried=dict(observed.retried),
        dead=dict(sorted(Counter(dead.values()).items())),
        lost=len(lost),
        expected_cents=sum(scenario.prices.values()),
        actual_cents=sum(billed.values()),
        repeated_cents=sum(entry.cents for entry in observed.ledger) - sum(billed.values()),
        in_flight=observed.in_flight,
        kills=observed.kills,
        failures=tuple(failures),
    )


def _suppressed(scenario: Scenario, observed: Observations) -> int:
    """Records that did nothing themselves, because another record of the same order did."""
    acted = {(entry.partition, entry.offset) for entry in observed.ledger}
    acted |= {(letter.partition, letter.offset) for letter in observed.dead_letters}
    settled = {entry.order for entry in observed.ledger} | {letter.key for letter in observed.dead_letters}
    records = zip(scenario.records, observed.positions, strict=True)
    return sum(position not in acted and record.key in settled for record, position in records)


def _of_losses(lost: Sequence[str]) -> list[str]:
    return [f"{len(lost)} orders were neither billed nor dead-lettered, {lost[0]} among them"] if lost else []


def _of_accounts(scenario: Scenario, billed: Mapping[str, int], dead: Mapping[str, str]) -> list[str]:
    failures = []
    if wrong := [order for order, cents in billed.items() if scenario.prices.get(order) != cents]:
        failures.append(f"{len(wrong)} orders were billed that should not be, or at another price, {wrong[0]} among them")
    if unpaid := scenario.prices.keys() - billed.keys():
        failures.append(f"{len(unpaid)} orders should have been billed and were not, {min(unpaid)} among them")
    fates = scenario.fates
    if odd := [key for key, reason in dead.items() if fates.get(key, PlannedFate.BILLED).value != reason]:
        failures.append(f"{len(odd)} dead letters have another reason than they should, {odd[0]} ({dead[odd[0]]}) among them")
    return failures


def _of_repeats(repeated: int, in_flight: int) -> list[str]:
    return [f"{repeated} orders were billed again, and at most {in_flight} were in flight at the kill"] if repeated > in_flight else []
