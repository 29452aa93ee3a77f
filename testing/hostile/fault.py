"""One thing that a hostile client does: which call it harms, how, and how often. It is written as `relay.OffsetFetch:loading@2x3`."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ackwise.testing.hostile.harm import HARMS

__all__ = ["FOREVER", "Fault"]

#: More calls than any test makes.
FOREVER: Final = 1_000_000

_WRITTEN: Final = re.compile(r"(?P<call>[a-z]+\.[A-Za-z]+):(?P<harm>[a-z-]+)(?:@(?P<first>\d+))?(?:x(?P<times>\d+))?")


class Fault(NamedTuple):
    """The calls number `first` and the `times - 1` after it come to harm; `call` is `who.What`, such as `relay.OffsetFetch`."""

    call: str
    harm: str
    first: int = 1
    times: int = 1

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Return the fault that `str` wrote as `text`. Raise `ValueError` if it is none."""
        found = _WRITTEN.fullmatch(text)
        if found is None or found["harm"] not in HARMS:
            raise ValueError(f"{text!r} is no fault; write it as relay.OffsetFetch:loading@2x3, with a harm of {', '.join(HARMS)}")
        return cls(found["call"], found["harm"], int(found["first"] or 1), int(found["times"] or 1))

    def __str__(self) -> str:
        first = f"@{self.first}" if self.first > 1 else ""
        times = f"x{self.times}" if self.times > 1 else ""
        return f"{self.call}:{self.harm}{first}{times}"
