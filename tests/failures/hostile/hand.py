"""Plans dealt from a list of calls and of what may become of each: together they have everything once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

from tests.failures.hostile.fault import Fault
from tests.failures.hostile.plan import Plan

__all__ = ["deal"]


def deal(harms: Mapping[str, Sequence[str]], seed: int) -> list[Plan]:
    """Return plans, each with at most one fault of a call, that have every fault of `harms` once: the same for the same seed.

    `harms` has for each call what may become of it, as in a fault behind the colon: `loading`, `late@2`, `corrupt@3x2`.
    """
    chance = random.Random(seed)
    piles = [chance.sample(whats, len(whats)) for whats in harms.values()]
    calls = list(harms)
    return [
        Plan(*(Fault.parse(f"{call}:{what}") for call, what in zip(calls, faults, strict=True) if what is not None))
        for faults in itertools.zip_longest(*piles)
    ]
