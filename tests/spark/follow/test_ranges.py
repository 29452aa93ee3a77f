"""Sets of ranges behave as sets of numbers."""

from __future__ import annotations

import random

from ackwise.spark.follow.ranges import Findings, Kind, both, minus, size, together, union

KINDS = [Kind("LOST", "g", "bill", "orders/0"), Kind("STUCK", "g", "bill", "orders/0"), Kind("LOST", "g", "bill", "orders/1")]


def numbers(findings: Findings) -> set[tuple[Kind, int]]:
    return {(kind, number) for kind, ranges in findings.items() for start, end in ranges for number in range(start, end)}


def some(dice: random.Random) -> Findings:
    starts = [(dice.choice(KINDS), dice.randrange(40)) for _ in range(dice.randrange(9))]
    return together((kind, (start, start + dice.randrange(1, 9))) for kind, start in starts)


def test_they_are_as_sets_of_numbers() -> None:
    dice = random.Random(7)
    for _ in range(500):
        one, other, third = some(dice), some(dice), some(dice)
        assert numbers(union(one, other)) == numbers(one) | numbers(other)
        assert numbers(minus(one, other, third)) == numbers(one) - numbers(other) - numbers(third)
        assert numbers(both(one, other)) == numbers(one) & numbers(other)
        assert size(one) == len(numbers(one))
