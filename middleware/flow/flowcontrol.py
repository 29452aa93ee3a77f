"""Flow control of one worker: pauses, breakers and rates. Owned by the host's member."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ackwise.middleware.flow.breaker import Breaker, Circuit, Position
from ackwise.middleware.flow.controlrecords import Burials
from ackwise.middleware.flow.limits import Limiter, RateLimit
from ackwise.middleware.flow.pausing import Pausing
from ackwise.middleware.log import Log
from ackwise.middleware.message.disposition import Dead, Reason
from ackwise.middleware.message.message import TopicPartition
from ackwise.middleware.message.raising import Later, Reject
from ackwise.middleware.runs.expiry import Expiry
from ackwise.middleware.runs.run import Run, Stage
from ackwise.middleware.usercode import class_name, is_a, leaves, looked

log = Log()

#: Why a batch of a paused handler, or of a paused partition, is held.
PAUSED = "it is paused"

#: Seconds after which a paused target is checked again, in case the resume was missed.
_LOOK_AGAIN = 60.0

_WITHHELD = "the breaker withholds its dead letter"


class FlowControl:
    """What each lane asks before it offers a batch, and what admission asks of values that it could not decode. `clock` is monotonic."""

    def __init__(
        self,
        pausing: Pausing | None = None,
        *,
        breaker: Breaker | None = None,
        rate_limit: RateLimit | None = None,
        breakers: Mapping[str, Breaker] = MappingProxyType({}),
        rate_limits: Mapping[str, RateLimit] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`breakers` and `rate_limits` are those of handlers with their own, by name; the others have `breaker` and `rate_limit`."""
        self.pausing = pausing or Pausing()
        self.burials = Burials()  #: by code and by command
        self.expiries: dict[str, list[Expiry]] = {}  #: of the handlers whose messages expire, one for each of their pipelines
        self._is_known = True  #: what a command has paused; until then nothing starts
        self._listeners: dict[object, Callable[[], None]] = {}
        self._unlisten: Callable[[], None] | None = None
        self.breaker, self._breakers = breaker, breakers
        self.rate_limit, self._rate_limits = rate_limit, rate_limits
        self._clock = clock
        self._limiters: dict[str, Limiter] = {}
        self._undecodable: dict[str, Circuit] = {}
        self._failing: dict[str, Circuit] = {}
        self._stopped: frozenset[str] = frozenset()  #: handlers; most of the time there is none

    def breaker_of(self, handler: str) -> Breaker | None:
        """Return the breaker of `handler`."""
        return self._breakers.get(handler, self.breaker)

    def rate_limit_of(self, handler: str) -> RateLimit | None:
        """Return the rate limit of `handler`."""
        return self._rate_limits.get(handler, self.rate_limit)

    # What lanes ask.

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing is paused or stopped, so that whatever may be asked here may start."""
        return self._is_known and not self._stopped and not self.pausing.paused

    def held_until(self, handler: str, partition: TopicPartition) -> float | None:
        """Return when a batch of `handler` that may not start now may ask again, monotonic seconds; `None` if it may start."""
        if not self._is_known or self.pausing.is_paused(handler, partition):
            return self._clock() + _LOOK_AGAIN
        if not self._stopped:
            return None
        now = self._clock()
        for circuit in self._circuits(handler):
            if (until := circuit.held_until(now)) is not None:
                return until
        return None

    def is_paused(self, handler: str, partition: TopicPartition) -> bool:
        """Return whether not even the rest of a batch of `handler` may start."""
        if handler in self._stopped and any(circuit.position is Position.OPEN for circuit in self._circuits(handler)):
            return True
        return self.pausing.is_paused(handler, partition)

    def is_shut(self, handler: str | None, partition: TopicPartition) -> bool:
        """Return whether nothing more is to be fetched of `partition`, whose messages are all of `handler` if that is given."""
        if self.pausing.is_paused(handler, partition):
            return True
        return bool(self._stopped) and handler is not None and any(each.is_shut(self._clock()) for each in self._circuits(handler))

    def await_control(self) -> None:
        """Let nothing start until `know_control`: a command may have paused it."""
        self._is_known = False

    def know_control(self) -> None:
        """Note that the pauses by command are known."""
        if not self._is_known:
            self._is_known = True
            self.has_changed()

    # What admission asks.

    def judge(self, handler: str, runs: list[Run], settling: Sequence[Run]) -> None:
        """Count what could be decoded of `runs` and what could not, and withhold the dead letters of those where the breaker is open.

        `settling` are those of `runs` that were decided before.
        """
        breaker = self.breaker_of(handler)
        if breaker is None or not breaker.undecodable:
            return
        circuit = self._undecodable.get(handler) or self._undecodable.setdefault(handler, Circuit(breaker, withholds=True))
        decided = set(settling)
        undecided = [
            run for run in runs if run not in decided and run.stage is not Stage.WITHHELD
        ]  # a withheld message could not be decoded
        recovered = [run for run in undecided if run.counted == "bad" and run.prepared]
        fresh = [*recovered, *(run for run in undecided if not run.counted)]
        bad = [run for run in undecided if _is_undecodable(run)]
        now = self._clock()
        if not fresh and not bad:
            return
        if bad or recovered:
            news = circuit.count(_in_order(fresh), now, recovered=bool(recovered))
        else:
            news = circuit.count_good(sum(map(len, fresh)), now)
        for run in fresh:
            run.counted = "bad" if _is_undecodable(run) else "good"
        if news:
            self._has_moved(handler, circuit, "values that can't be decoded")
        until = circuit.withheld_until(now) if bad else None
        if until is not None:
            for run in bad:
                _withhold(run, until)

    def limit(self, handler: str, runs: list[Run], *, ahead: float = 0.0) -> BaseException | None:
        """Withhold what the rate of `handler` lets start neither now nor within `ahead` seconds.

        Returns what stops the app if user code raised that.
        """
        if (limiter := self._limiter(handler)) is None:
            return None
        return limiter.admit(runs, self._clock(), ahead=ahead, but={run for run in runs if self._never_begins(handler, run)})

    # What is asked where a call starts, or does not.

    def start_after(self, handler: str, runs: Sequence[Run]) -> float:
        """Seconds until the rate lets all messages of `runs` start together."""
        if (limiter := self._limiter(handler)) is None:
            return 0.0
        return limiter.wait([run for run in runs if not self._never_begins(handler, run)], self._clock())

    def start(self, handler: str, runs: Sequence[Run]) -> None:
        """All messages of `runs` start now."""
        if (limiter := self._limiter(handler)) is not None:
            limiter.start(runs, self._clock())

    def forget(self, handler: str, runs: Sequence[Run]) -> None:
        """Forget those of `runs` that have not started: they are admitted again first."""
        if (limiter := self._limiter(handler)) is not None:
            limiter.forget(runs)

    def _never_begins(self, handler: str, run: Run) -> bool:
        has_expired = any(expiry.is_over(run) for expiry in self.expiries.get(handler, ())[:1])
        return has_expired or (bool(self.burials) and len(self.burials.places(run)) == len(run))

    def _limiter(self, handler: str) -> Limiter | None:
        rate_limit = self.rate_limit_of(handler)
        if rate_limit is None:
            return None
        return self._limiters.get(handler) or self._limiters.setdefault(handler, Limiter(rate_limit, handler))

    @property
    def expired(self) -> int:
        """Return the number of messages that expired in this worker."""
        return sum(expiry.messages for expiries in self.expiries.values() for expiry in expiries)

    # What is called around handlers.

    def guarded(self, handler: str, call: Callable[[Any], Awaitable[object]]) -> Callable[[Any], Awaitable[object]]:
        """`call`, counted where the breaker looks at what handlers raise; otherwise `call` itself."""
        breaker = self.breaker_of(handler)
        if breaker is None or not breaker.errors:
            return call
        kinds, circuit = breaker.errors, self._failing.setdefault(handler, Circuit(breaker, withholds=False))

        async def guarded(argument: Any) -> object:
            try:
                result = await call(argument)
            except BaseException as error:
                is_bad = looked(_is_failure, error, kinds, otherwise=None)
                if is_bad is not None and circuit.count([(is_bad, 1)], self._clock()):
                    self._has_moved(handler, circuit, class_name(error))
                raise
            if circuit.count_good(1, self._clock()):
                self._has_moved(handler, circuit, "what it raises")
            return result

        return guarded

    # What people ask.

    def resume(self, handler: str, *, dead: bool) -> None:
        """The operator resumed `handler`: it tries at once, and with `dead` the withheld dead letters go."""
        now = self._clock()
        for circuit in self._circuits(handler):
            moved = circuit.let_go() if dead else circuit.try_now(now)
            if moved:
                self._has_moved(handler, circuit, "an operator")
        self.has_changed()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when something may start or may not that was otherwise before, until what this returns is called."""
        key = object()
        if not self._listeners:
            self._unlisten = self.pausing.listen(self.has_changed)
        self._listeners[key] = listener

        def end() -> None:
            del self._listeners[key]
            if not self._listeners and self._unlisten is not None:
                self._unlisten()

        return end

    def has_changed(self) -> None:
        """Tell those who listen."""
        for listener in [*self._listeners.values()]:
            listener()

    @property
    def stopped(self) -> dict[str, Position]:
        """The handlers that a breaker has stopped."""
        circuits = [*self._undecodable.items(), *self._failing.items()]
        return {name: circuit.position for name, circuit in circuits if circuit.position in (Position.OPEN, Position.HALF_OPEN)}

    def _circuits(self, handler: str) -> list[Circuit]:
        return [circuits[handler] for circuits in (self._undecodable, self._failing) if handler in circuits]

    def _has_moved(self, handler: str, circuit: Circuit, why: str) -> None:
        was_stopped, self._stopped = handler in self._stopped, frozenset(self.stopped)
        if circuit.position is Position.OPEN and (breaker := self.breaker_of(handler)) is not None:
            log.error(
                "breaker stopped a handler",
                handler=handler,
                why=why,
                retry_in=breaker.rest,
            )
        elif circuit.position is Position.CLOSED and was_stopped:
            log.info("breaker let the handler continue", handler=handler, why=why)
        self.has_changed()


def is_withheld_letter(run: Run) -> bool:
    """Return whether `run` would be a dead letter, and a breaker keeps it."""
    return run.stage is Stage.WITHHELD and isinstance(run.disposition, Dead)


def _withhold(run: Run, until: float) -> None:
    failure = run.disposition.failure if isinstance(run.disposition, Dead) else None
    run.error = Reason.UNDECODABLE if failure is None else failure.error
    run.stage = Stage.WITHHELD
    run.postpone(until, _WITHHELD)


def _is_undecodable(run: Run) -> bool:
    return run.stage is Stage.RULED and isinstance(run.disposition, Dead) and run.disposition.reason == Reason.UNDECODABLE


def _in_order(runs: Sequence[Run]) -> list[tuple[bool, int]]:
    """Return whether each message of `runs` is bad, in the order of their offsets."""
    return [(bad, 1) for _, bad in sorted((offset, _is_undecodable(run)) for run in runs for offset in run.offsets)]


def _is_failure(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool | None:
    """Return whether all that was raised is of `kinds`; `None`: it is a ruling of the handler, or no failure, and proves nothing."""
    raised = list(leaves(error))
    if any(is_a(leaf, Reject, Later) or not is_a(leaf, Exception, *kinds) for leaf in raised):
        return None
    return all(is_a(leaf, *kinds) for leaf in raised)
