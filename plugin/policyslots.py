"""`Slots`: the policies (one of a kind), middleware (in order) and observers that an app uses."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

from ackwise.middleware.duration import format_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.events import EventSink
from ackwise.middleware.flow.breaker import Breaker
from ackwise.middleware.flow.flowcontrol import FlowControl
from ackwise.middleware.flow.limits import RateLimit
from ackwise.middleware.flow.pausing import Pausing
from ackwise.middleware.log import Log
from ackwise.middleware.policies.policies import Broadcasting, DeadLetter, Dedup, Events, Outbox, Share, Transactional, Watch
from ackwise.middleware.policies.retry import ConsumeLater, longest_delay
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.storage.claimstore import ClaimStore
from ackwise.middleware.storage.outbox import OutboxStore
from ackwise.middleware.storage.transaction import TransactionalStore
from ackwise.plugin.handlers.lifespan import Lifespans
from ackwise.plugin.handlers.observers import Observed, Observer, check_observer, is_observer
from ackwise.plugin.handlers.tracing import Tracing
from ackwise.plugin.handlers.usermiddleware import Around, inspect_middleware, wrap
from ackwise.plugin.producer.apppublish import Outside
from ackwise.plugin.registry import installed_middleware, open_inbox, open_outbox, open_sink, open_store
from ackwise.plugin.settings.config import Config

log = Log()

Policy = ConsumeLater | DeadLetter | Dedup | Transactional | Outbox | Events | Breaker | RateLimit | Broadcasting | Share | Watch | Tracing
PolicyT = TypeVar(
    "PolicyT", ConsumeLater, DeadLetter, Dedup, Transactional, Outbox, Events, Breaker, RateLimit, Broadcasting, Share, Watch, Tracing
)

_SLOTS: Final = (ConsumeLater, DeadLetter, Dedup, Transactional, Outbox, Events, Breaker, RateLimit, Broadcasting, Share, Watch, Tracing)

#: Policies that may not be used with `Broadcasting`: it sends nothing back.
_BACK: Final = (ConsumeLater, DeadLetter)

#: In broadcasting each failure is the last: no message is sent back.
_NEVER: Final = ConsumeLater(0)

_USABLE: Final = (
    "a policy (ConsumeLater(…), DeadLetter(…), Dedup(…), Transactional(…), Outbox(…), Events(…), Breaker(…), RateLimit(…), "
    "Broadcasting(…), Share(…), Watch(…), Tracing()), a middleware (async def mw(work, call_next)) or an observer (def observe(event))"
)


class Slots:
    """The policies, the middleware and the observers of one app. Without `use`, `ConsumeLater(16)` and `DeadLetter()` are on.

    Each policy is returned with the values of `config`. Reading one raises `ConfigurationError` if the values are refused.
    """

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self._used: list[Around] = []  #: middleware, in the order of use
        self.observers: list[Observer] = []
        self.pausing = Pausing()  #: by code, in this process
        self.watch_port: int | None = None  #: from the command line; overrides everything else
        self.lifespans = Lifespans()
        self.outside = Outside()
        self._policies: dict[type, Policy] = {}

    def use(self, thing: object) -> None:
        """Take a policy, a middleware or an observer. Raises `ConfigurationError` for anything else, and for a second policy of a kind."""
        if isinstance(thing, _SLOTS):
            self._fill(thing)
        elif callable(thing) and not isinstance(thing, type) and is_observer(thing):
            self.observers.append(check_observer(thing))
        elif callable(thing) and not isinstance(thing, type):
            self._used.append(inspect_middleware(thing))
        else:
            hint = f"; write {thing.__name__}(…)" if isinstance(thing, type) and thing in _SLOTS else ""
            raise ConfigurationError(f"{thing!r} can't be used{hint}; use takes {_USABLE}")

    def _fill(self, policy: Policy) -> None:
        slot = next(slot for slot in _SLOTS if isinstance(policy, slot))
        if slot in self._policies:
            raise ConfigurationError(f"{slot.__name__} was used twice; an app has one")
        self._policies[slot] = policy

    @functools.cached_property
    def _installed(self) -> list[Around]:
        return [inspect_middleware(function) for function in installed_middleware()]

    @functools.cached_property
    def _configured(self) -> list[Around]:
        return [inspect_middleware(function) for function in self.config.middleware()]

    @property
    def arounds(self) -> list[Around]:
        """Return the middleware, outermost first: installed, configured, and used. Loads it at the first call.

        Raises `ConfigurationError`.
        """
        return [*self._installed, *self._configured, *self._used]

    def check_middleware(self, kinds: Collection[str], why: str) -> None:
        """Refuse used or configured middleware that would never run with handlers of these `kinds`. Raises `ConfigurationError`."""
        for around in [*self._configured, *self._used]:
            if not (around.kinds & {*kinds} or ("message" in kinds and "batch" in around.kinds)):
                raise ConfigurationError(f"middleware {around.name!r} takes a {' or a '.join(sorted(around.kinds))}, and {why}")

    @property
    def later(self) -> ConsumeLater:
        """How failed messages are retried; in broadcasting they are not."""
        if self.broadcasting is not None:
            return _NEVER
        return self.config.later(self._get(ConsumeLater))

    @property
    def dead_letter(self) -> DeadLetter:
        """The topic of dead letters."""
        return self.config.dead_letter(self._get(DeadLetter))

    @property
    def dedup(self) -> Dedup | None:
        """Deduplication; default: off."""
        return self.config.dedup(self._get(Dedup))

    @property
    def transactional(self) -> Transactional | None:
        """Transactions around handlers; default: off. Raises `ConfigurationError` together with `Dedup`."""
        policy = self.config.transactional(self._get(Transactional))
        if policy is not None and self.dedup is not None:
            raise ConfigurationError("Dedup and Transactional are both on, and both store the keys; use one of them")
        return policy

    @property
    def outbox(self) -> Outbox | None:
        """The outbox for published messages; default: off."""
        return self.config.outbox(self._get(Outbox))

    @property
    def events(self) -> Events | None:
        """The export of events; default: off."""
        return self.config.events(self._get(Events))

    @property
    def breaker(self) -> Breaker:
        """The circuit breaker of handlers; default: on for values that can't be decoded."""
        return self.config.breaker(self._get(Breaker))

    @property
    def rate_limit(self) -> RateLimit | None:
        """The limit of messages that a handler starts per second; default: off."""
        return self.config.rate_limit(self._get(RateLimit))

    def flow_control(self, *, first_wait: float | None = None) -> FlowControl:
        """Return the flow control of a new worker. `first_wait`, in seconds, is that of the default breaker.

        Raises `ConfigurationError`.
        """
        breaker = self.breaker
        if first_wait is not None and self._get(Breaker) is None:
            breaker = dataclasses.replace(breaker, first_wait=first_wait)
        return FlowControl(self.pausing, breaker=breaker, rate_limit=self.rate_limit)

    @property
    def share(self) -> Share | None:
        """The share group that consumes the sources; default: off."""
        return self.config.share(self._get(Share))

    @property
    def watch(self) -> Watch | None:
        """The pages of the worker; default: off. Raises `ConfigurationError`."""
        used, port = self._get(Watch), self.watch_port
        if port is None:
            return self.config.watch(used)
        watch = self.config.watch(used or Watch(port))
        return None if watch is None else dataclasses.replace(watch, port=port)

    @property
    def tracing(self) -> Tracing | None:
        """Tracing of handlers; default: off."""
        return self._get(Tracing)

    def wrapped(self, agent: Agent, group: Callable[[], str]) -> Agent:
        """Return `agent` with middleware and span around its calls. Middleware for batches only wraps the whole batch."""
        call = wrap(agent.call, [around for around in self.arounds if agent.kind in around.kinds])
        of_batches = [around for around in self.arounds if agent.kind == "message" and agent.kind not in around.kinds]
        if self.tracing is not None:
            keeps = agent.keep_ack_index_on_error
            call = self.tracing.around(call, kind=agent.kind, handler=agent.name, group=group, keep_ack_index_on_error=keeps)
        return dataclasses.replace(agent, call=call, around=functools.partial(wrap, arounds=of_batches) if of_batches else None)

    def refuse_tracing(self, why: str) -> None:
        """Refuse `Tracing` where no handler is called. Raises `ConfigurationError`."""
        if self.tracing is not None:
            raise ConfigurationError(f"Tracing puts a span around each call of a handler, and {why}")

    def _get(self, slot: type[PolicyT]) -> PolicyT | None:
        policy = self._policies.get(slot)
        return policy if isinstance(policy, slot) else None

    @property
    def broadcasting(self) -> Broadcasting | None:
        """Broadcasting to every instance, with the name of this one; default: off."""
        return self.config.broadcasting(self._get(Broadcasting))

    def log_overrides(self, group: str) -> None:
        """Log the names of environment variables that override the code. Their values may be secrets."""
        if variables := self.config.variables:
            log.info("environment variables override settings", group=group, variables=", ".join(variables))

    def open_store(self) -> ClaimStore | None:
        """Return the claim store of `Dedup`, not connected. Raises `ConfigurationError`, also for a retention that is too short."""
        if (dedup := self.dedup) is None:
            return None
        with self.config.sourced("dedup"):
            refuse_short_memory(dedup, self.later)
            store = open_store(dedup.store) if isinstance(dedup.store, str) else dedup.store
        if type(store).__module__ == "ackwise.stores.memory":
            log.warning("claims are kept in memory")
        return store

    def open_inbox(self) -> TransactionalStore | None:
        """Return the database of `Transactional`, not connected. Raises `ConfigurationError`."""
        if (policy := self.transactional) is None:
            return None
        with self.config.sourced("transactional"):
            refuse_short_memory(policy, self.later)
            inbox = open_inbox(policy.store) if isinstance(policy.store, str) else policy.store
            if policy.mode == "offsets" and not hasattr(inbox, "take_over"):
                raise ConfigurationError(f"{type(inbox).__name__} keeps no offsets; use Transactional with mode='inbox'")
            return inbox

    def open_outbox(self) -> OutboxStore | None:
        """Return the outbox of `Outbox`, not connected. Raises `ConfigurationError`."""
        if (policy := self.outbox) is None:
            return None
        with self.config.sourced("outbox"):
            return open_outbox(policy.store) if isinstance(policy.store, str) else policy.store

    def check(self, agents: Sequence[Agent]) -> None:
        """Refuse agents that conflict with the policies. Raises `ConfigurationError`."""
        if self.broadcasting is not None:
            self._check_broadcasting()
        if self.share is not None:
            self._check_share(agents)
        self._refuse_patterns(agents)
        for agent in agents:
            if agent.order is not None and self.transactional is not None and self.transactional.mode == "offsets":
                raise ConfigurationError(
                    f"agent {agent.name!r} has order={agent.order!r}, and Transactional(mode='offsets') passes one offset for all: use "
                    "mode='inbox', or leave the order out"
                )
            if self.transactional is not None and agent.in_thread:
                raise ConfigurationError(
                    f"agent {agent.name!r} is a plain `def`, and the connection of Transactional belongs to the event loop; write it as an "
                    "`async def`"
                )
            if self.transactional is not None and agent.keep_ack_index_on_error:
                raise ConfigurationError(
                    f"agent {agent.name!r} has keep_ack_index_on_error, and Transactional rolls back what was written before an error; "
                    "leave one of them out"
                )

    def _check_broadcasting(self) -> None:
        """Refuse, together with `Broadcasting`, policies that keep a message from an instance, and those about retries."""
        if self.dedup is not None or self.transactional is not None:
            name = "Dedup" if self.dedup is not None else "Transactional"
            raise ConfigurationError(
                f"Broadcasting and {name} are both on: every instance gets every message, and {name} would let one of them run it; "
                "leave one of them out"
            )
        for kind, table in zip(_BACK, ("consume_later", "dead_letter"), strict=True):
            if kind in self._policies:
                raise ConfigurationError(f"Broadcasting drops failed messages, so {kind.__name__} would do nothing; leave it out")
            for name, given in self.config.of(table).items():
                raise ConfigurationError(
                    f"Broadcasting drops failed messages, so {table}.{name}, set by {given.source}, would do nothing; leave it out"
                )

    def _check_share(self, agents: Sequence[Agent]) -> None:
        """Refuse, together with `Share`, options that need an owner of partitions."""
        if self.broadcasting is not None:
            raise ConfigurationError("Share and Broadcasting are both on: one shares messages, the other gives each all of them; use one")
        for agent in agents:
            if agent.order is not None:
                raise ConfigurationError(
                    f"agent {agent.name!r} has order={agent.order!r}, and Share hands out records of one partition to all workers at once; "
                    "leave the order out, or Share"
                )
        if self.transactional is not None and self.transactional.mode == "offsets":
            raise ConfigurationError(
                "Share and Transactional(mode='offsets') are both on, and a share group has no offsets that a database could keep: use "
                "mode='inbox'"
            )

        for agent in agents:
            if agent.decodes_async:
                raise ConfigurationError(
                    f"agent {agent.name!r} has an asynchronous decode, and Share locks records for a time that this could outlast; decode "
                    "in a plain function, or leave Share out"
                )

    def _refuse_patterns(self, agents: Sequence[Agent]) -> None:
        """Refuse patterns with `Share` and `Broadcasting`: only a consumer group rebalances for a new topic."""
        policy = "Broadcasting" if self.broadcasting is not None else "Share" if self.share is not None else None
        for agent in agents if policy is not None else ():
            if agent.pattern is not None:
                raise ConfigurationError(
                    f"agent {agent.name!r} has the pattern {agent.pattern.pattern!r}, and {policy} reads topics by their names; name them, "
                    f"or leave {policy} out"
                )

    def refuse_share(self, host: str) -> None:
        """Refuse `Share` on a `host` that consumes by itself. Raises `ConfigurationError`."""
        if self.share is not None:
            raise ConfigurationError(
                f"Share was used, and {host} is the member of an ordinary group; use an App with @app.agent, or leave Share out"
            )

    def refuse_watch(self, host: str, instead: str) -> None:
        """Refuse `Watch` on a `host` with its own pages. Raises `ConfigurationError`."""
        if self.watch is not None:
            raise ConfigurationError(f"Watch was used, and {host} has no pages of Ackwise; {instead}")

    def open_sink(self, group: str, sources: Sequence[str], agents: Sequence[Agent] = ()) -> EventSink | None:
        """Return the receivers of events: the sink of `Events`, not open, and the observers.

        `sources` are the topics of the group, `agents` those that the process runs.

        Raises `ConfigurationError`.
        """
        sink = self._open_sink(group, sources, agents)
        return Observed(self.observers, sink) if self.observers else sink

    def _open_sink(self, group: str, sources: Sequence[str], agents: Sequence[Agent]) -> EventSink | None:
        if (events := self.events) is None:
            return None
        if not isinstance(events.sink, str | os.PathLike):
            return events.sink
        facts: dict[str, object] = {"levels": self.later.levels.seconds, "sources": list(sources)}
        if agents:
            facts["order"] = {agent.name: agent.order or "none" for agent in agents}
        if (broadcasting := self.broadcasting) is not None:
            facts["instance"] = broadcasting.instance
        if self.share is not None:
            facts["share"] = True
        if (dedup := self.dedup) is not None:
            facts |= {"lease": dedup.lease, "retention": dedup.retention}
        if (keyed := self.dedup or self.transactional) is not None:
            facts["namespace"] = keyed.namespace  # events have a hash of each key, which only this namespace can reproduce
        return open_sink(os.fspath(events.sink), group=group, mode=events.mode, permissions=events.permissions, facts=facts)


def refuse_short_memory(dedup: Dedup | Transactional, later: ConsumeLater) -> None:
    """Refuse a retention that is shorter than the longest delay: the store would forget a message before its copy returns.

    Raises `ConfigurationError`.
    """
    retention, longest = float(dedup.retention), longest_delay(later)
    if retention < longest:
        raise ConfigurationError(
            f"retention of {type(dedup).__name__} is {format_duration(retention)}, and a message may be retried after "
            f"{format_duration(longest)}: by then it would be forgotten, and could run twice; raise retention, or give ConsumeLater "
            "shorter levels"
        )
