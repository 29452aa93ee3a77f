"""The plan of a hostile client, in one line that can be read back: which calls to harm, how, and how often.

One harm is written as `relay.OffsetFetch:loading@2x3`.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ackwise.testing.hostile.harm import HARMS, SPARING, Send, Spared

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


class Plan:
    """Faults, and what has come of them so far; `tell` is called with each that strikes."""

    def __init__(self, *faults: Fault, tell: Callable[[Fault], None] = lambda fault: None) -> None:
        self.faults = faults
        self._tell = tell
        self.calls: Counter[str] = Counter()
        self.clients: set[Any] = set()  #: those whose calls passed; what a broken close left open is closed by the test
        self._harmed: Counter[Fault] = Counter()
        self._lock = threading.Lock()  # a worker of Faust has a thread for its consumer
        self._struck = threading.Event()

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Return the plan that `str` wrote as `text`. Raise `ValueError` if it is none."""
        return cls(*map(Fault.parse, text.split()))

    def __str__(self) -> str:
        return " ".join(map(str, self.faults))

    @property
    def spent(self) -> bool:
        """Whether every fault has struck at least once."""
        return all(self._harmed[fault] for fault in self.faults)

    @property
    def unspent(self) -> list[str]:
        """The faults that have not struck."""
        return [str(fault) for fault in self.faults if not self._harmed[fault]]

    async def wait_until_spent(self) -> None:
        """Until every fault has struck, and the call that the last one struck has ended."""
        while not self._struck.is_set():  # noqa: ASYNC110  # it is set by whatever thread
            await asyncio.sleep(0.02)

    async def pass_through(self, call: str, send: Send) -> object:
        """Make `call`, harmed if it is its turn."""
        with self._lock:
            self.calls[call] += 1
            fault = self._fault_of(call)
            if fault is not None and fault.harm not in SPARING:
                self._harmed[fault] += 1
        if fault is None:
            return await send()
        has_struck = True
        try:
            return await HARMS[fault.harm](send)
        except Spared as spared:
            has_struck = False
            return spared.answer
        finally:
            if has_struck:
                self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        """One that might have found nothing to harm counts only now: another call beside it was not its last chance."""
        with self._lock:
            if fault.harm in SPARING:
                self._harmed[fault] += 1
        self._tell(fault)
        if self.spent:
            self._struck.set()

    def _fault_of(self, call: str) -> Fault | None:
        """The fault whose turn it is; one that found nothing to harm takes the next call."""
        return next(
            (
                fault
                for fault in self.faults
                if fault.call == call and self.calls[call] >= fault.first and self._harmed[fault] < fault.times
            ),
            None,
        )
