"""Plans dealt from a list of calls and of what may become of each: together they have everything once."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import pytest

from ackwise.testing.hostile.plan import Fault, Plan

#: The same number deals the same plans; HOSTILE_SEED deals others, and HOSTILE_PLANS (with commas between) has some played alone.
SEED: Final = int(os.environ.get("HOSTILE_SEED", "1"))
WANTED: Final = [text for text in os.environ.get("HOSTILE_PLANS", "").split(",") if text]


def deal(harms: Mapping[str, Sequence[str]], seed: int, *, apart: Mapping[str, str] = MappingProxyType({})) -> list[Plan]:
    """Return plans, each with at most one fault of a call, that have every fault of `harms` once: the same for the same seed.

    `harms` has for each call what may become of it, as in a fault behind the colon: `loading`, `late@2`, `corrupt@3x2`. A call in
    `apart` has no fault in a plan that has one of the call that it names there.
    """
    chance = random.Random(seed)
    calls = list(harms)
    piles: list[list[str | None]] = [
        [*itertools.repeat(None, len(harms.get(apart.get(call, ""), ()))), *chance.sample(whats, len(whats))]
        for call, whats in harms.items()
    ]
    return [
        Plan(*(Fault.parse(f"{call}:{what}") for call, what in zip(calls, faults, strict=True) if what is not None))
        for faults in itertools.zip_longest(*piles)
    ]


def parted(harms: Mapping[str, Sequence[str]], few: int, *, apart: Mapping[str, str] = MappingProxyType({})) -> pytest.MarkDecorator:
    """Parametrizes a test with plans, written down: a `few` of those that are dealt, in which each call has a fault; all at night."""
    plans = WANTED or [str(plan) for plan in deal(harms, SEED, apart=apart)]
    parts = [pytest.param(plans[:few], id="few"), pytest.param(plans[few:], id="others", marks=pytest.mark.nightly)]
    return pytest.mark.parametrize("plans", parts)
