"""Explanation of an app: its chain, its settings with their sources, its topics, and the consequence of each failure.

It connects to nothing. `Application` is the protocol of an app for the commands, for any host.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, astuple, dataclass, replace
from types import MappingProxyType
from typing import Final, Protocol, runtime_checkable

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.flow.breaker import FIRST, SHARE, WINDOW, Breaker
from ackwise.middleware.flow.limits import RateLimit
from ackwise.middleware.policies.policies import Broadcasting, Dedup, KeyByTopic, Transactional
from ackwise.middleware.policies.retry import ConsumeLater, Exponential, Order, RetryPolicy, Schedule
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.handlers.decoder import name_of
from ackwise.plugin.operate.failurepaths import FailurePath, delays_in_words, failures
from ackwise.plugin.operate.table import Table
from ackwise.plugin.policyslots import Slots, refuse_short_memory
from ackwise.plugin.registry import open_store
from ackwise.plugin.settings.clientoptions import EVERY_CLIENT, OWN_CONSUMER, OWN_PRODUCER
from ackwise.plugin.settings.config import Config
from ackwise.plugin.settings.connecting import is_made_here, shown_options, shown_url
from ackwise.plugin.settings.entries import ENTRIES, MIDDLEWARE, SettingEntry, dotted, spelled
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.group import Group
from ackwise.plugin.topics.topicnames import TopicNames


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One link of the chain that a message passes."""

    phase: str
    what: str
    how: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as it holds, and where it was set: `default`, `code`, a file or a variable."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class TopicUse:
    """A topic and what it is to this group."""

    topic: str
    use: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `explain` found out. `refusals` are the sentences with which the app would not start, `warnings` those it starts with."""

    group: str
    chain: tuple[ChainLink, ...]
    settings: tuple[Setting, ...]
    topics: tuple[TopicUse, ...]
    failures: tuple[FailurePath, ...]
    warnings: tuple[str, ...]
    refusals: tuple[str, ...]

    @property
    def tables(self) -> list[Table]:
        """What is shown in tables."""
        return [*tables_of(self.chain, self.settings), Table("Topics", ("topic", "what is in it"), list(map(astuple, self.topics)))]


def tables_of(chain: Sequence[ChainLink], settings: Sequence[Setting]) -> list[Table]:
    """The chain and the settings, as a terminal and a page have them."""
    return [
        Table("What a message passes", ("phase", "step", "how"), list(map(astuple, chain))),
        Table("Settings", ("setting", "value", "from"), list(map(astuple, settings))),
    ]


def explain(
    settings: HostSettings, slots: Slots, agents: Sequence[Agent], config: Config, *, origins: Mapping[str, str] = MappingProxyType({})
) -> Explanation:
    """Explain the app of these settings, policies and agents; `config` knows what was set outside of the code.

    `origins` says where settings come from that the host decided, such as those that Faust has itself.
    Raises `ConfigurationError` for an entry that can't be used, or a group whose topics can't be called so.
    """
    names = TopicNames.of(settings, dead_letter=slots.dead_letter.topic)
    return Explanation(
        group=settings.group,
        chain=tuple(_chain(settings, slots, agents)),
        settings=tuple(_settings(settings, slots, agents, names, config, origins)),
        topics=tuple(_topics(names, agents)),
        failures=failures(settings, slots, agents, names),
        warnings=tuple(_warnings(settings, slots)),
        refusals=tuple(_refusals(slots, agents, config)),
    )


def _chain(settings: HostSettings, slots: Slots, agents: Sequence[Agent]) -> Iterator[ChainLink]:
    if (broadcasting := slots.broadcasting) is not None:
        yield ChainLink("fetch", "broadcasting", f"every instance gets everything; this one is {broadcasting.instance}")
    for agent in agents:
        yield ChainLink("fetch", ", ".join([*agent.topics, *_pattern(agent)]), f"for {agent.name}, {_portion(agent)}")
    if (share := slots.share) is not None:
        lock, consumers = spelled(float(share.lock)), f"{share.consumers} consumer{'s' if share.consumers > 1 else ''} here"
        yield ChainLink(
            "fetch", f"share group {share.group_of(settings.group)}", f"any worker gets any record, locked for {lock}; {consumers}"
        )
    yield ChainLink("admit", "decode", "as each topic says" if all(agent.kind == "stream" for agent in agents) else "as each handler says")
    yield ChainLink("admit", "breaker", _breaker(slots.breaker))
    for agent in agents:
        if slots.has_own(agent.name, Breaker, "breaker"):
            yield ChainLink("admit", f"breaker of {agent.name}", _breaker(slots.breaker_of(agent.name)))
    if (limit := slots.rate_limit) is not None:
        yield ChainLink("admit", "rate", _rate(limit))
    for agent in agents:
        if slots.has_own(agent.name, RateLimit, "rate_limit") and (limit := slots.rate_limit_of(agent.name)) is not None:
            yield ChainLink("admit", f"rate of {agent.name}", _rate(limit))
    if (transactional := slots.transactional) is None:
        yield ChainLink("admit", "dedup", _dedup(slots.dedup) if broadcasting is None else "off: every instance runs every message")
    else:
        kept = _dedup(transactional) if transactional.mode == "inbox" else f"{_text(transactional.store)}, at the offset that is kept there"
        yield ChainLink("admit", "transaction", f"starts in {kept}")
    for agent in agents:
        if agent.dedup is not None:
            yield ChainLink("admit", f"dedup of {agent.name}", f"key: {_key(agent.dedup)}")
    if slots.tracing is not None:
        yield ChainLink("execute", "tracing", "a span of OpenTelemetry around each call of a handler")
    for place, around in enumerate(slots.arounds, 1):
        wrapped = "batch" if around.kinds == {"batch"} else f"handler that takes a {' or a '.join(sorted(around.kinds))}"
        yield ChainLink("execute", around.name, f"middleware {place}, around every {wrapped}")
    for agent in agents:
        for around in slots.own_arounds(agent.name):
            yield ChainLink("execute", around.name, f"middleware of {agent.name}, inside of those of the app")
        yield ChainLink("execute", agent.name, "loop over a stream" if agent.kind == "stream" else f"handler that takes a {agent.kind}")
    if broadcasting is None:
        yield ChainLink("settle", "copies", "published, acknowledged by all in-sync replicas")
    else:
        yield ChainLink("settle", "failures", "dropped, with an event and a count; nothing is sent back")
    if transactional is not None:
        yield ChainLink("settle", "transaction", "commits what the handler wrote and what is done")
    if (outbox := slots.outbox) is not None:
        who = "every worker sends its rows" if outbox.relay == "worker" else "ackwise relay sends its rows, no worker does"
        yield ChainLink("settle", "outbox", f"{_text(outbox.store)}; {who}{_kept_rows(slots)}")
    events = slots.events
    yield ChainLink(
        "settle", "events", "off: not given a sink" if events is None else f"{_text(events.sink)}, {events.mode.replace('_', ' ')}"
    )
    if transactional is None and broadcasting is None:
        yield ChainLink("settle", "claims", "off: not given a store" if slots.dedup is None else "completed or released")
    when = "after each batch" if settings.commit_interval == 0 else f"every {spelled(settings.commit_interval)}"
    yield ChainLink("commit", "offsets", when if broadcasting is None else f"{when}, {_kept(broadcasting, settings)}")
    if share is not None:
        yield ChainLink("commit", "records", "each is accepted once it is settled; offsets are those of the retry topic alone")
    for observer in slots.observers:
        yield ChainLink("observe", name_of(observer), "sees every event, decides nothing")


def _pattern(agent: Agent) -> list[str]:
    return [] if agent.pattern is None else [f"what matches {agent.pattern.pattern}"]


def _kept(broadcasting: Broadcasting, settings: HostSettings) -> str:
    file = broadcasting.offsets_file
    return f"in group {settings.group}" if file is None else f"to the file {os.fspath(file)}, in no group"


def _portion(agent: Agent) -> str:
    if agent.kind == "stream":
        return f"{agent.max_batch} messages of one partition are admitted together, or as many as it takes at a time"
    return f"at most {agent.max_batch} messages of one partition at a time{_IN_ORDER[agent.order]}"


_IN_ORDER: Final[dict[Order, str]] = {
    None: "",
    "key": ", equal keys one after the other",
    "partition": ", one after the other",
}


def _breaker(breaker: Breaker) -> str:
    values = [f"the first {FIRST} values, or {SHARE:.0%} of the last {WINDOW}, can't be decoded"] if breaker.undecodable else []
    raised = [f"as many calls raise {', '.join(kind.__name__ for kind in breaker.errors)}"] if breaker.errors else []
    return f"stops a handler if {' or if '.join([*values, *raised])}" if values or raised else "off"


def _rate(limit: RateLimit) -> str:
    return f"{limit.rate} for each {'key' if limit.key else 'handler'}, {limit.most} at once; the rest waits"


def _dedup(dedup: Dedup | Transactional | None) -> str:
    if dedup is None:
        return "off: not given a store"
    return f"{_text(dedup.store)}, key: {_key(dedup)}"


def _key(dedup: Dedup | Transactional) -> str:
    match dedup.key:
        case KeyByTopic(functions, default):
            by_topic = [f"{topic}: {_key_of(function)}" for topic, function in functions.items()]
            return ", ".join([*by_topic, *([] if default is None else [f"others: {_key_of(default)}"])])
        case key if callable(key):
            return name_of(key)
        case _:
            pass
    if dedup.message_id_header is None:
        return "where the message was written"
    return f"the header {dedup.message_id_header} with its topic, otherwise where the message was written"


def _key_of(key: object) -> str:
    return name_of(key) if callable(key) else "where the message was written"


def _text(target: object) -> str:
    return shown_url(os.fspath(target)) if isinstance(target, str | os.PathLike) else type(target).__name__


def _settings(
    settings: HostSettings,
    slots: Slots,
    agents: Sequence[Agent],
    names: TopicNames,
    config: Config,
    origins: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Setting]:
    for setting in _of_table((), settings, config):
        yield replace(setting, source=origins[setting.name]) if setting.name in origins else setting
    yield from _options(settings, config, origins)
    if slots.broadcasting is None:
        yield from _settings_of_copies(slots, names, config)
    else:
        yield from _of_table(("broadcasting",), slots.broadcasting, config)
    for table, policy_of_keys in (("dedup", slots.dedup), ("transactional", slots.transactional)):
        if policy_of_keys is not None:
            yield from _of_table((table,), policy_of_keys, config)
            yield Setting(f"{table}.key", _key(policy_of_keys), "default" if policy_of_keys.key is None else "code")
    if slots.outbox is not None:
        yield from _of_table(("outbox",), slots.outbox, config)
    if slots.events is not None:
        yield from _of_table(("events",), slots.events, config)
    yield from _of_table(("breaker",), slots.breaker, config)
    if slots.rate_limit is not None:
        yield from _of_table(("rate_limit",), slots.rate_limit, config)
    if (share := slots.share) is not None:
        yield from _of_table(("share",), share, config)
        for name, value in shown_options(share.client_options).items():
            yield Setting(f"share.client_options.{name}", value, "code")
    if slots.watch is not None:
        yield from _of_table(("watch",), slots.watch, config)
    for agent in agents:
        for setting in _of_table(("agents", agent.name), agent, config):
            if agent.kind != "stream" or setting.name.endswith(_OF_LOOPS):  # a loop says the others itself
                yield setting
        yield from _own_settings(slots, agent, config)
        if agent.order is not None:
            order = agent.order if agent.order_by is None else f"{agent.order}, by {name_of(agent.order_by)}"
            yield Setting(f"agents.{agent.name}.order", order, "code")
            yield Setting(f"agents.{agent.name}.in_place", str(agent.in_place), "code")


def _own_settings(slots: Slots, agent: Agent, config: Config) -> Iterator[Setting]:
    """What an agent has by itself, in place of what holds for the app. What only its entries change is otherwise the app's."""
    name, above = agent.name, ("agents", agent.name)
    own: list[tuple[type[ConsumeLater | Dedup | Breaker | RateLimit], str, object]] = []
    if agent.later is not None:
        own.append((ConsumeLater, "consume_later", agent.later))
    if agent.dedup is not None:
        own.append((Dedup, "dedup", agent.dedup))
    if slots.has_own(name, Breaker, "breaker"):
        own.append((Breaker, "breaker", slots.breaker_of(name)))
    if slots.has_own(name, RateLimit, "rate_limit"):
        own.append((RateLimit, "rate_limit", slots.rate_limit_of(name)))
    for kind, table, policy in own:
        settings = [*_of_table((*above, table), policy, config)]
        if isinstance(policy, ConsumeLater):
            settings += _of_retries((*above, table), policy)
        if isinstance(policy, Dedup):
            settings.append(Setting(dotted((*above, table, "key")), _key(policy), "default" if policy.key is None else "code"))
        is_of_app = not slots.uses(name, kind)
        for setting in settings:
            yield replace(setting, source="the app") if is_of_app and setting.source in ("code", "default") else setting


def _of_retries(table: tuple[str, ...], later: ConsumeLater) -> Iterator[Setting]:
    """What only the code says of retries."""
    by_error = ((f"retry_by_error.{kind.__name__}", policy) for kind, policy in later.retry_by_error.items())
    for name, policy in (("retry", later.retry), *by_error):
        yield Setting(dotted((*table, name)), _policy(policy), "default" if policy is None else "code")
    if later.no_retry:
        yield Setting(dotted((*table, "no_retry")), ", ".join(kind.__name__ for kind in later.no_retry), "code")


#: Entries of an agent that mean something for a loop over a stream.
_OF_LOOPS: Final = (".max_batch", ".max_age", ".expires")


def _options(settings: HostSettings, config: Config, origins: Mapping[str, str]) -> Iterator[Setting]:
    """Options of the Kafka clients. What a file has, such as `ssl_cafile`, is a part of `ssl_context` in the settings."""
    for table in (EVERY_CLIENT, OWN_CONSUMER, OWN_PRODUCER):
        given = config.of(table) if table not in origins else {}
        in_code = {name: str(value) if table != EVERY_CLIENT else value for name, value in getattr(settings, table).items()}
        for name, value in (shown_options(in_code) if table == EVERY_CLIENT else in_code).items():
            if name not in given and not is_made_here(getattr(settings, table)[name]) and f"{name}_file" not in given:
                yield Setting(f"{table}.{name}", value, origins.get(table, "code"))
        for name, (value, source) in given.items():
            yield Setting(f"{table}.{name}", shown_options({name: value})[name] if table == EVERY_CLIENT else str(value), source)


#: Entries that are shown by themselves.
_NOT_OF_A_TABLE: Final = (EVERY_CLIENT, OWN_CONSUMER, OWN_PRODUCER, MIDDLEWARE)


def _of_table(table: tuple[str, ...], holder: object, config: Config) -> Iterator[Setting]:
    """The entries of one table: as `holder` has them, with where each was set."""
    given = config.of_agent(*table[1:]) if table[:1] == ("agents",) else config.of(*table)
    known = (*table[:1], "NAME", *table[2:])[: len(table)]
    for entry in ENTRIES.values():
        if entry.path[:-1] == known and not {entry.path[0], entry.path[-1]} & {*_NOT_OF_A_TABLE}:
            name = entry.path[-1]
            value = getattr(holder, name)
            source = given[name].source if name in given else _source_in_code(entry, value)
            yield Setting(dotted((*table, name)), spelled(value) if _is_plain(value) or value == "" else _text(value), source)


def _settings_of_copies(slots: Slots, names: TopicNames, config: Config) -> Iterator[Setting]:
    later = slots.later
    yield from _of_table(("consume_later",), later, config)
    yield from _of_retries(("consume_later",), later)
    for setting in _of_table(("dead_letter",), slots.dead_letter, config):
        yield replace(setting, value=names.dead_letter)


def _is_plain(value: object) -> bool:
    return not isinstance(value, str | os.PathLike) and (value is None or isinstance(value, bool | int | float) or hasattr(value, "names"))


def _source_in_code(entry: SettingEntry, value: object) -> str:
    default = entry.default
    return "default" if default is not MISSING and (value == default or str(value) == str(default)) else "code"


def _policy(policy: RetryPolicy | None) -> str:
    match policy:
        case None:
            return "by level"
        case Exponential():
            jitter = f", ± {policy.jitter:.0%}" if policy.jitter else ""
            return f"{spelled(policy.initial)} × {policy.multiplier:g} each time, at most {spelled(policy.maximum)}{jitter}"
        case Schedule():
            return delays_in_words(policy.delays)
        case _:
            return type(policy).__name__


def _topics(names: TopicNames, agents: Sequence[Agent]) -> Iterator[TopicUse]:
    for agent in agents:
        for topic in agent.topics:
            yield TopicUse(topic, f"source of {agent.name}")
        for pattern in _pattern(agent):
            yield TopicUse(pattern, f"sources of {agent.name}, each from its first record; ackwise topics check lists them")
    if not names.all:
        return
    yield TopicUse(names.retry, "copies that are due, read beside the sources")
    yield TopicUse(names.delay, f"copies that wait, and cancellations, read by the relay in group {names.relay_group}")
    yield TopicUse(names.dead_letter, "dead letters")
    yield TopicUse(names.control, "what ackwise pause and resume say, read by every worker")


def _warnings(settings: HostSettings, slots: Slots) -> Iterator[str]:
    if settings.relay == "apart":
        yield "no worker moves copies, they wait until ackwise relay runs"
    if (outbox := slots.outbox) is not None:
        if outbox.relay == "apart":
            yield "no worker sends the rows of the outbox, they wait until ackwise relay runs"
        if outbox.on_error == "skip":
            yield "with on_error of Outbox = skip, later messages of a key are sent although an earlier one is parked"
    if slots.share is not None:
        yield "share groups are experimental here, as the client calls its own part a preview"
    if (dedup := slots.dedup) is None:
        return
    store = dedup.store
    if store.startswith("memory://") if isinstance(store, str) else type(store).__module__ == "ackwise.stores.memory":
        yield "claims are kept in memory, they are gone with the process and unknown to other workers"


def _refusals(slots: Slots, agents: Sequence[Agent], config: Config) -> Iterator[str]:
    for check in (lambda: _check_store(slots, config), slots.open_inbox, slots.open_outbox, lambda: slots.check(agents)):
        try:
            check()
        except ConfigurationError as error:
            yield str(error)


def _kept_rows(slots: Slots) -> str:
    """What stays of rows of the outbox; an outbox of the user's own may not say."""
    try:
        keeping = getattr(slots.open_outbox(), "keeping", None)
    except ConfigurationError:  # which is among the refusals
        return ""
    return "" if keeping is None else f"; {keeping}"


def _check_store(slots: Slots, config: Config) -> None:
    """As a start does, without its warnings, which are shown apart."""
    if (dedup := slots.dedup) is not None:
        with config.sourced("dedup"):
            refuse_short_memory(dedup, slots.later)
            if isinstance(dedup.store, str):
                open_store(dedup.store)


@runtime_checkable
class Application(Protocol):
    """An app that can be asked, without being started. Each raises `ConfigurationError` for what a start would refuse."""

    def explain(self) -> Explanation:
        """What it does with its messages."""
        ...

    def group(self) -> Group:
        """What it needs of Kafka and of this machine."""
        ...
