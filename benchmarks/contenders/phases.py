"""Where the time of Ackwise's own process goes, phase by phase.

A phase counts only what runs in it: while its coroutine waits, the time belongs to whoever runs then.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final

from ackwise.middleware.pipeline.admission import Admission
from ackwise.middleware.pipeline.execution import Execution
from ackwise.middleware.pipeline.settlement import Settlement
from ackwise.plugin.consumer.backlog import Backlog
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.kafka.fetchbuffer import Taking

#: What belongs to which phase. Nothing here calls another of its own phase, or of another one without awaiting it.
_STEPS: Final[tuple[tuple[str, type[Any], str], ...]] = (
    ("fetch", Taking, "take"),
    ("offer", Member, "offer"),
    ("take", Backlog, "take"),
    ("admit", Admission, "prepare"),
    ("admit", Admission, "claim"),
    ("execute", Execution, "run"),
    ("execute", Execution, "_handle_batch"),
    ("settle", Settlement, "__call__"),
    ("commit", Member, "commit"),
)


class Phases:
    """CPU seconds of the event loop's thread in each phase between `start` and `stop`, and in everything else."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys([phase for phase, _, _ in _STEPS], 0.0)
        self.found: dict[str, float] = {}
        self._began: float | None = None

    def watch(self) -> None:
        """Put a clock around every step."""
        for phase, owner, name in _STEPS:
            setattr(owner, name, self._timed(phase, getattr(owner, name)))

    def start(self) -> None:
        """Count from now on; only the first call does something."""
        if self._began is None:
            self.seconds = dict.fromkeys(self.seconds, 0.0)
            self._began = time.thread_time()

    def stop(self) -> None:
        """The end: what no phase took is the client's own tasks, the lanes' and the event loop."""
        everything = time.thread_time() - (self._began or 0.0)
        self.found = {**self.seconds, "everything else": everything - sum(self.seconds.values())}

    def _timed(self, phase: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            seconds, started = self.seconds, time.thread_time()
            result = step(*args, **kwargs)
            seconds[phase] += time.thread_time() - started
            return self._driven(phase, result) if isinstance(result, Coroutine) else result

        return timed

    def _driven(self, phase: str, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        async def drive() -> Any:
            return await _Clocked(phase, work, self)

        return drive()


class _Clocked(Awaitable[Any]):
    """A coroutine whose steps are timed one by one."""

    def __init__(self, phase: str, work: Coroutine[Any, Any, Any], phases: Phases) -> None:
        self._phase, self._work, self._phases = phase, work, phases

    def __await__(self) -> Generator[Any, Any, Any]:
        sent: Any = None
        failed: BaseException | None = None
        while True:
            started = time.thread_time()
            try:
                waits_for = self._work.send(sent) if failed is None else self._work.throw(failed)
            except StopIteration as end:
                return end.value
            finally:
                self._phases.seconds[self._phase] += time.thread_time() - started
            try:
                sent, failed = (yield waits_for), None
            except BaseException as error:  # noqa: BLE001  # a cancellation, which is the inner coroutine's
                sent, failed = None, error
