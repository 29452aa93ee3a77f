"""`Slots`: the policies (one of a kind), middleware (in order) and observers that an app uses."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar

from ackwise.middleware.duration import format_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.events import EventSink
from ackwise.middleware.flow.breaker import Breaker
from ackwise.middleware.flow.flowcontrol import FlowControl
from ackwise.middleware.flow.limits import RateLimit
from ackwise.middleware.flow.pausing import Pausing
from ackwise.middleware.log import Log
from ackwise.middleware.policies.policies import Broadcasting, DeadLetter, Dedup, Events, KeyByTopic, Outbox, Share, Transactional, Watch
from ackwise.middleware.policies.retry import MAX_DELAY, ConsumeLater, longest_delay
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.storage.claimstore import ClaimStore
from ackwise.middleware.storage.outbox import OutboxStore
from ackwise.middleware.storage.transaction import TransactionalStore
from ackwise.middleware.usercode import shown
from ackwise.plugin.handlers.decoder import name_of
from ackwise.plugin.handlers.lifespan import Lifespans
from ackwise.plugin.handlers.observers import Observed, Observer, check_observer, is_observer
from ackwise.plugin.handlers.tracing import Tracing
from ackwise.plugin.handlers.usermiddleware import Around, Middleware, inspect_middleware, wrap
from ackwise.plugin.producer.apppublish import Outside
from ackwise.plugin.registry import installed_middleware, open_inbox, open_outbox, open_sink, open_store
from ackwise.plugin.settings.config import Config

log = Log()

Policy = ConsumeLater | DeadLetter | Dedup | Transactional | Outbox | Events | Breaker | RateLimit | Broadcasting | Share | Watch | Tracing
PolicyT = TypeVar(
    "PolicyT", ConsumeLater, DeadLetter, Dedup, Transactional, Outbox, Events, Breaker, RateLimit, Broadcasting, Share, Watch, Tracing
)

UsableByAgent = ConsumeLater | Dedup | Breaker | RateLimit | Middleware
"""What an agent can use by itself."""

_SLOTS: Final = (ConsumeLater, DeadLetter, Dedup, Transactional, Outbox, Events, Breaker, RateLimit, Broadcasting, Share, Watch, Tracing)

#: Policies that an agent may have by itself, and what its Dedup says.
_OF_AGENTS: Final = (ConsumeLater, Dedup, Breaker, RateLimit)
_KEYS: Final = ("key", "default", "message_id_header")

_USABLE_BY_AGENTS: Final = (
    "use= of an agent takes ConsumeLater(…), RateLimit(…), Breaker(…), Dedup(key=…) and middleware (async def mw(work, call_next)); "
    "everything else is for app.use"
)

#: Policies that may not be used with `Broadcasting`: it sends nothing back.
_BACK: Final = (ConsumeLater, DeadLetter)

#: In broadcasting each failure is the last: no message is sent back.
_NEVER: Final = ConsumeLater(0)

_USABLE: Final = (
    "a policy (ConsumeLater(…), DeadLetter(…), Dedup(…), Transactional(…), Outbox(…), Events(…), Breaker(…), RateLimit(…), "
    "Broadcasting(…), Share(…), Watch(…), Tracing()), a middleware (async def mw(work, call_next)) or an observer (def observe(event))"
)


class AgentSlots:
    """The policies and the middleware that one agent uses. Each policy is in the place of the app's, as a whole."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.used: list[Around] = []  #: middleware, in the order of use
        self.policies: dict[type, Policy] = {}

    def use(self, thing: object) -> None:
        """Take a policy or a middleware. Raises `ConfigurationError` for what is not for one agent, and for a second policy of a kind."""
        if isinstance(thing, _OF_AGENTS):
            if isinstance(thing, Dedup):
                _refuse_all_but_keys(thing, self.name)
            _fill(self.policies, thing, f"agent {self.name!r}")
        elif isinstance(thing, _SLOTS):
            kind = type(thing).__name__
            raise ConfigurationError(
                f"agent {self.name!r} was given {kind}, and an app has one for all its agents; write app.use({kind}(…))"
            )
        elif callable(thing) and not isinstance(thing, type) and is_observer(thing):
            observer = name_of(thing)
            raise ConfigurationError(
                f"agent {self.name!r} was given the observer {observer}, which sees every event of an app; write app.use({observer})"
            )
        elif callable(thing) and not isinstance(thing, type):
            self.used.append(inspect_middleware(thing))
        else:
            raise ConfigurationError(f"{shown(thing, repr)} can't be used by agent {self.name!r}{_hint(thing)}; {_USABLE_BY_AGENTS}")


def _fill(slots: dict[type, Policy], policy: Policy, owner: str) -> None:
    slot = next(slot for slot in _SLOTS if isinstance(policy, slot))
    if slot in slots:
        raise ConfigurationError(f"{slot.__name__} was used twice; {owner} has one: leave one out, or give all its values to one")
    slots[slot] = policy


def _hint(thing: object) -> str:
    return f"; write {thing.__name__}(…)" if isinstance(thing, type) and thing in _SLOTS else ""


def _takes(around: Around, kinds: Collection[str]) -> bool:
    """Return whether a middleware runs with handlers of these `kinds`: one for batches also wraps batches of single messages."""
    return bool(around.kinds & {*kinds}) or ("message" in kinds and "batch" in around.kinds)


def _refuse_all_but_keys(policy: Dedup, agent: str) -> None:
    """Refuse what is the same for all agents of an app, since they share a store. Raises `ConfigurationError`."""
    default = Dedup()
    for field in dataclasses.fields(Dedup):
        value, unless_set = getattr(policy, field.name), getattr(default, field.name)
        if field.name not in _KEYS and (type(value) is not type(unless_set) or value != unless_set):
            raise ConfigurationError(
                f"agent {agent!r} has a Dedup with {field.name}, and an app has one store for all its agents; give it to "
                f"app.use(Dedup(…)): of an agent are {', '.join(_KEYS)}"
            )
    if policy.key is None and policy.message_id_header is None:
        raise ConfigurationError(
            f"agent {agent!r} has a Dedup without key and message_id_header, which says nothing; give one of them, key=DEFAULT_KEY for the "
            "place where a message was written, or leave it out"
        )


class Slots:
    """The policies, the middleware and the observers of one app. Without `use`, `ConsumeLater(16)` and `DeadLetter()` are on.

    Each policy is returned with the values of `config`. Reading one raises `ConfigurationError` if the values are refused.
    The methods that take the name of an agent return what holds for that agent.
    """

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self._used: list[Around] = []  #: middleware, in the order of use
        self.agents: dict[str, AgentSlots] = {}  #: what agents use by themselves
        self.observers: list[Observer] = []
        self.pausing = Pausing()  #: by code, in this process
        self.watch_port: int | None = None  #: from the command line; overrides everything else
        self.lifespans = Lifespans()
        self.outside = Outside()
        self._policies: dict[type, Policy] = {}

    def use(self, thing: object) -> None:
        """Take a policy, a middleware or an observer. Raises `ConfigurationError` for anything else, and for a second policy of a kind."""
        if isinstance(thing, _SLOTS):
            _fill(self._policies, thing, "an app")
        elif callable(thing) and not isinstance(thing, type) and is_observer(thing):
            self.observers.append(check_observer(thing))
        elif callable(thing) and not isinstance(thing, type):
            self._used.append(inspect_middleware(thing))
        else:
            raise ConfigurationError(f"{shown(thing, repr)} can't be used{_hint(thing)}; use takes {_USABLE}")

    def use_for(self, agent: str, things: Iterable[object]) -> None:
        """As `use`, for one agent. Raises `ConfigurationError`."""
        for thing in things:
            self.agents.setdefault(agent, AgentSlots(agent)).use(thing)

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
            if not _takes(around, kinds):
                raise ConfigurationError(f"middleware {around.name!r} takes a {' or a '.join(sorted(around.kinds))}, and {why}")

    def arounds_of(self, agent: str) -> list[Around]:
        """Return the middleware of `agent`, outermost first: that of the app, then its own, configured and used."""
        return [*self.arounds, *self.own_arounds(agent)]

    def own_arounds(self, agent: str) -> list[Around]:
        """Return the middleware that `agent` alone has, outermost first. Raises `ConfigurationError`."""
        configured = [inspect_middleware(function) for function in self.config.middleware(agent)]
        return [*configured, *(self.agents[agent].used if agent in self.agents else ())]

    def _own(self, agent: str, slot: type[PolicyT]) -> PolicyT | None:
        policy = self.agents[agent].policies.get(slot) if agent in self.agents else None
        return policy if isinstance(policy, slot) else None

    def later_of(self, agent: str) -> ConsumeLater:
        """How failed messages of `agent` are retried. `max_delay` is the app's: relays cut by it, whosever the message is."""
        app, own = self.later, self._own(agent, ConsumeLater)
        if self.broadcasting is not None and self.has_own(agent, ConsumeLater, "consume_later"):
            raise ConfigurationError(
                f"Broadcasting drops failed messages, so ConsumeLater of agent {agent!r} would do nothing; leave it out"
            )
        if own is not None and own.max_delay not in (MAX_DELAY, app.max_delay):
            raise ConfigurationError(
                f"agent {agent!r} has a ConsumeLater with max_delay={format_duration(own.max_delay)!r}, and an app has one max_delay, here "
                f"{format_duration(app.max_delay)}; set it in app.use(ConsumeLater(max_delay=…))"
            )
        if own is not None:
            own = own.changed(max_delay=app.max_delay)
            own.require_delays()
        return self.config.later(app if own is None else own, agent)

    def breaker_of(self, agent: str) -> Breaker:
        """The circuit breaker of `agent`."""
        return self.config.breaker(self._own(agent, Breaker) or self.breaker, agent)

    def rate_limit_of(self, agent: str) -> RateLimit | None:
        """The rate limit of `agent`."""
        return self.config.rate_limit(self._own(agent, RateLimit) or self.rate_limit, agent)

    def dedup_of(self, agent: str) -> Dedup | Transactional | None:
        """`Dedup` or `Transactional`, with the keys of `agent`."""
        app, own = self.dedup or self.transactional, self._own(agent, Dedup)
        header = self.config.of_agent(agent, "dedup").get("message_id_header")
        if own is None and header is None:
            return app
        if not isinstance(app, Dedup):
            said = "Dedup" if own is not None else f"dedup.message_id_header, set by {header.source if header else '-'}"
            instead = "use Dedup with a store in the app" if app is None else "its keys are those of Transactional(key={topic: function})"
            raise ConfigurationError(f"agent {agent!r} has {said}, and the app does not use Dedup; {instead}")
        if own is not None:
            app = dataclasses.replace(app, key=own.key, default=own.default, message_id_header=own.message_id_header)
        return self.config.keys(app, agent)

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
        policy = self.config.dedup(self._get(Dedup))
        if policy is not None and isinstance(policy.store, str) and not policy.store:
            raise ConfigurationError("Dedup was used without a store; write Dedup('redis://…'), or set dedup.store in the configuration")
        return policy

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

    def flow_control(self, agents: Iterable[str], *, first_wait: float | None = None) -> FlowControl:
        """Return the flow control of a new worker that runs `agents`. `first_wait`, in seconds, is that of the default breaker.

        Raises `ConfigurationError`.
        """
        breaker = self.breaker
        if first_wait is not None and self._get(Breaker) is None:
            breaker = dataclasses.replace(breaker, first_wait=first_wait)
        breakers = {name: self.breaker_of(name) for name in agents if self.has_own(name, Breaker, "breaker")}
        limits = {name: self.rate_limit_of(name) for name in agents if self.has_own(name, RateLimit, "rate_limit")}
        rate_limits = {name: limit for name, limit in limits.items() if limit is not None}
        return FlowControl(self.pausing, breaker=breaker, rate_limit=self.rate_limit, breakers=breakers, rate_limits=rate_limits)

    def uses(self, agent: str, slot: type[object]) -> bool:
        """Return whether the code gives `agent` its own policy of this kind."""
        return agent in self.agents and slot in self.agents[agent].policies

    def has_own(self, agent: str, slot: type[PolicyT], table: str) -> bool:
        """Return whether `agent` has its own policy of this kind, in the code or by entries in `table`."""
        return self.uses(agent, slot) or bool(self.config.of_agent(agent, table))

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

    def governed(self, agent: Agent, *, of: str | None = None) -> Agent:
        """Return `agent` with its own policies, or with those of the agent `of`. Raises `ConfigurationError`."""
        name = agent.name if of is None else of
        later, keys = self.later_of(name), self.dedup_of(name)
        has_later, has_keys = self.has_own(name, ConsumeLater, "consume_later"), self.has_own(name, Dedup, "dedup")
        return dataclasses.replace(agent, later=later if has_later else None, dedup=keys if has_keys else None)

    def wrapped(self, agent: Agent, group: Callable[[], str]) -> Agent:
        """Return `agent` with its own policies, and with middleware and span around its calls.

        Middleware for batches only wraps the whole batch. Raises `ConfigurationError`.
        """
        agent, arounds = self.governed(agent), self.arounds_of(agent.name)
        call = wrap(agent.call, [around for around in arounds if agent.kind in around.kinds])
        of_batches = [around for around in arounds if agent.kind == "message" and agent.kind not in around.kinds]
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
        self.check_own(agents)
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

    def refuse_unknown_agents(self, names: Sequence[str]) -> None:
        """Refuse policies for an agent that there is not. Raises `ConfigurationError`."""
        for name in self.agents:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"the agents are {', '.join(map(repr, names))}"
                raise ConfigurationError(f"use() was called for agent {name!r}, and there is none; {hint}")

    def check_own(self, agents: Sequence[Agent]) -> None:
        """Refuse what agents use by themselves and can't work for them. Raises `ConfigurationError`."""
        self._refuse_unread(agents)
        for agent in agents:
            keys = agent.dedup or self.dedup or self.transactional
            if keys is not None and agent.later is not None:
                refuse_short_memory(keys, agent.later)
            if keys is not None:
                _require_keys(keys, agent)
            for around in self.own_arounds(agent.name):
                if not _takes(around, {agent.kind}):
                    takes = " or a ".join(sorted(around.kinds))
                    raise ConfigurationError(
                        f"middleware {around.name!r} takes a {takes}, and agent {agent.name!r} "
                        f"{'is a loop' if agent.kind == 'stream' else f'takes a {agent.kind}'}; it would never run"
                    )

    def _refuse_unread(self, agents: Sequence[Agent]) -> None:
        """Refuse a key function for a topic that no agent reads."""
        key = None if (keys := self.dedup or self.transactional) is None else keys.key
        if not isinstance(key, KeyByTopic) or any(agent.pattern is not None for agent in agents):
            return
        read = [topic for agent in agents for topic in agent.topics]
        for topic in key.functions.keys() - {*read}:
            near = difflib.get_close_matches(topic, read, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"they read {', '.join(map(repr, read))}"
            raise ConfigurationError(f"key has a function for topic {topic!r}, which no agent of this app reads; {hint}")

    def refuse_own_middleware(self, agent: str, why: str) -> None:
        """Refuse middleware that is configured for `agent`, which has no handler. Raises `ConfigurationError`."""
        for around in self.own_arounds(agent):
            raise ConfigurationError(f"middleware {around.name!r} is set for agent {agent!r}, and {why}")

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


def _require_keys(keys: Dedup | Transactional, agent: Agent) -> None:
    """Refuse key functions by topic that leave out a topic of `agent`. Raises `ConfigurationError`."""
    if not isinstance(key := keys.key, KeyByTopic):
        return
    missing = [topic for topic in agent.topics if topic not in key.functions]
    if key.default is None and (missing or agent.pattern is not None):
        what = f"topic {missing[0]!r}" if missing else f"topics by the pattern {'' if agent.pattern is None else agent.pattern.pattern!r}"
        raise ConfigurationError(
            f"agent {agent.name!r} reads {what}, and key of {type(keys).__name__} has no function for it; add one, or say "
            "default=DEFAULT_KEY for the place where a message was written"
        )


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
