"""Outcome of the demo: its own judgement, from the producer's delivery reports, the ledger and the dead-letter topic. Pure.

Nothing here was written or counted by Ackwise. It fails on an order that was lost, on books that do not balance, and
on more repeats than were in flight at the kill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ackwise.plugin.demo.ledger import LedgerLine
from ackwise.plugin.demo.scenario import PlannedFate, Scenario

__all__ = ["DeadLetterSeen", "Observations", "DemoOutcome", "judge"]


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
        *_of_books(scenario, billed, dead),
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


def _of_books(scenario: Scenario, billed: Mapping[str, int], dead: Mapping[str, str]) -> list[str]:
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
