"""Configuration from a file and the environment: each value with its source, and its effect on the settings in code.

Precedence: the code < `ackwise.toml`, or `[tool.ackwise]` in `pyproject.toml` < variables `ACKWISE_…`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.flow.breaker import Breaker
from ackwise.middleware.flow.limits import RateLimit
from ackwise.middleware.policies.policies import Broadcasting, DeadLetter, Dedup, Events, Outbox, Share, Transactional, Watch
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.handlers.handler import check_agent
from ackwise.plugin.settings.clientoptions import EVERY_CLIENT, OWN_CONSUMER, OWN_PRODUCER
from ackwise.plugin.settings.entries import ENTRIES, MIDDLEWARE, PREFIX, dotted, entry_of, variable_of
from ackwise.plugin.settings.hostsettings import DEFAULT_BROKERS, HostSettings

#: The token of `ackwise ui`: no setting of an app, which would be shown.
UI_TOKEN: Final = "ACKWISE_UI_TOKEN"

T = TypeVar("T")

_FILE: Final = "ackwise.toml"
_PROJECT: Final = "pyproject.toml"

#: What Kubernetes sets in every pod for a Service `ackwise` or `ackwise-…` of its namespace.
_OF_A_SERVICE: Final = re.compile(
    rf"{PREFIX}([A-Z0-9]+_)*(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)

_Path = tuple[str, ...]


class Given(NamedTuple):
    """A value and where it was set: a file's name, or a variable's."""

    value: object
    source: str


def read_config(folder: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration in `folder` and `environ`; by default those of this process.

    Raises `ConfigurationError` for two files at once, for one that can't be read, and for an entry that is unknown or
    has a value of another type; it names the entry, where it was set, and the nearest entry that there is.
    """
    return Config(_from_folder(working_folder() if folder is None else folder), _from_environ(os.environ if environ is None else environ))


def working_folder() -> Path:
    """The one that this process is in. Raises `ConfigurationError` if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigurationError("the working folder was deleted, and configuration is read from there; go to one that exists") from None


class Config:
    """What files (`file`) and variables (`variables`) set, by the path of the entry; empty unless `read_config` made it.

    Every way into Ackwise resolves its settings the same way: `host_settings` when it is made, `Slots(config)` for the
    policies, `agents` when all agents are known. `of` returns what was set in a table, for those who show sources.
    """

    def __init__(self, file: Mapping[_Path, Given] | None = None, variables: Mapping[_Path, Given] | None = None) -> None:
        self._file = dict(file or {})
        self._variables = dict(variables or {})

    @property
    def variables(self) -> list[str]:
        """The environment variables that set something, by name."""
        return sorted({given.source for given in self._variables.values()})

    def of(self, *table: str) -> dict[str, Given]:
        """The entries that are set in `table`: `of("dedup")`, `of("client_options")`, `of()` for the top level."""
        return {path[-1]: given for source in (self._file, self._variables) for path, given in source.items() if path[:-1] == table}

    def options(self, table: str = EVERY_CLIENT) -> dict[str, object]:
        """The options of Kafka clients that are set in `table`."""
        return {name: given.value for name, given in self.of(table).items()}

    def without_app(self, make: Callable[..., T], brokers: str | None, **more: Any) -> T:
        """What `make` makes of the brokers and client options that hold for a command without an app; `brokers` are those of its line.

        Raises `ConfigurationError`.
        """
        entries = {name: given.value for name, given in self.of().items()}
        with self.sourced(EVERY_CLIENT):
            return make(brokers=brokers or entries.get("brokers", DEFAULT_BROKERS), client_options=self.options(), **more)

    def of_agent(self, name: str, *table: str) -> dict[str, Given]:
        """The entries that are set for the agent `name`, in this table of it; variables spell it in capitals."""
        spelled = ("agents", _as_variable(name), *table)
        return self.of("agents", name, *table) | {path[-1]: given for path, given in self._variables.items() if path[:-1] == spelled}

    def _in(self, table: str, agent: str | None) -> tuple[_Path, dict[str, Given]]:
        """The path of a table of the app, or of one of its agents, and what is set there."""
        return ((table,), self.of(table)) if agent is None else (("agents", agent, table), self.of_agent(agent, table))

    def host_settings(
        self, group: str, *, brokers: str = DEFAULT_BROKERS, fixed: Mapping[str, Any] | None = None, **keywords: Any
    ) -> HostSettings:
        """The settings of a host, of which `keywords` are what the code says.

        `fixed` are settings that no entry may change, as what a consumer of the user's own has decided already. Raises
        `ConfigurationError`.
        """
        fixed = fixed or {}
        given = {name: value for name, value in self.of().items() if name not in fixed and name != MIDDLEWARE}
        for table in (EVERY_CLIENT, OWN_CONSUMER, OWN_PRODUCER):
            options = self.options(table)
            if options and table not in fixed:
                keywords[table] = {**keywords.get(table, {}), **options}
        with self.sourced(EVERY_CLIENT), self.sourced(OWN_CONSUMER), self.sourced(OWN_PRODUCER):
            return _made(lambda **set_here: HostSettings(group=group, **{"brokers": brokers, **keywords, **set_here, **fixed}), given, ())

    def middleware(self, agent: str | None = None) -> list[Any]:
        """The functions that the entry `middleware` names, of the app or of an agent, imported now. Raises `ConfigurationError`."""
        given = (self.of() if agent is None else self.of_agent(agent)).get(MIDDLEWARE)
        return [] if given is None else [_imported(name, given.source) for name in cast(list[str], given.value)]

    def later(self, used: ConsumeLater | None, agent: str | None = None) -> ConsumeLater:
        """`ConsumeLater` as it holds, from the one that the code uses, if any. Raises `ConfigurationError`."""
        policy, (table, given) = ConsumeLater() if used is None else used, self._in("consume_later", agent)
        if not given:
            return policy

        def make(**set_here: Any) -> ConsumeLater:
            checked = ConsumeLater(**{"max_delay": policy.max_delay, **set_here})
            made = policy.changed(**{name: getattr(checked, name) for name in set_here})
            made.require_delays()
            return made

        return _made(make, given, table)

    def dead_letter(self, used: DeadLetter | None) -> DeadLetter:
        """`DeadLetter` as it holds."""
        return self._changed(used or DeadLetter(), "dead_letter")

    def dedup(self, used: Dedup | None) -> Dedup | None:
        """`Dedup` as it holds; an entry `dedup.store` turns it on. Raises `ConfigurationError`."""
        return self._optional(Dedup, used, "dedup", "store")

    def transactional(self, used: Transactional | None) -> Transactional | None:
        """`Transactional` as it holds; an entry `transactional.store` turns it on. Raises `ConfigurationError`."""
        return self._optional(Transactional, used, "transactional", "store")

    def events(self, used: Events | None) -> Events | None:
        """`Events` as it holds; an entry `events.sink` turns it on. Raises `ConfigurationError`."""
        return self._optional(Events, used, "events", "sink")

    def outbox(self, used: Outbox | None) -> Outbox | None:
        """`Outbox` as it holds; an entry `outbox.store` turns it on. Raises `ConfigurationError`."""
        return self._optional(Outbox, used, "outbox", "store")

    def breaker(self, used: Breaker | None, agent: str | None = None) -> Breaker:
        """`Breaker` as it holds."""
        return self._changed(used or Breaker(), "breaker", agent)

    def rate_limit(self, used: RateLimit | None, agent: str | None = None) -> RateLimit | None:
        """`RateLimit` as it holds; an entry `rate_limit.rate` turns it on. Raises `ConfigurationError`."""
        return self._optional(RateLimit, used, "rate_limit", "rate", agent)

    def keys(self, dedup: Dedup, agent: str) -> Dedup:
        """`Dedup` with what is set of the keys of `agent`. Raises `ConfigurationError`."""
        return self._changed(dedup, "dedup", agent)

    def broadcasting(self, used: Broadcasting | None) -> Broadcasting | None:
        """`Broadcasting` as it holds; an entry `broadcasting.instance` turns it on. Raises `ConfigurationError`."""
        return self._optional(Broadcasting, used, "broadcasting", "instance")

    def share(self, used: Share | None) -> Share | None:
        """`Share` as it holds; an entry `share.consumers` turns it on. Raises `ConfigurationError`."""
        return self._optional(Share, used, "share", "consumers")

    def watch(self, used: Watch | None) -> Watch | None:
        """`Watch` as it holds; an entry `watch.port` turns it on. Raises `ConfigurationError`."""
        return self._optional(Watch, used, "watch", "port")

    def sourced(self, *table: str) -> AbstractContextManager[None]:
        """Around what may refuse the entries of `table`: the sentence then also says where those that it names were set."""
        return _sourced(self.of(*table), table)

    def agents(self, agents: Sequence[Agent]) -> list[Agent]:
        """`agents` as they hold. Raises `ConfigurationError` for an entry that names an agent there is not, or two at once."""
        names = [agent.name for agent in agents]
        for path, given in self._file.items():
            if path[0] == "agents" and path[1] not in names:
                raise ConfigurationError(
                    f"{dotted(path)}, set by {given.source}, names an agent that there is not; {_nearest(path[1], names)}"
                )
        for path, given in self._variables.items():
            if path[0] == "agents":
                _refuse_ambiguous(path[1], given.source, names)
        return [self._agent(agent) for agent in agents]

    def _agent(self, agent: Agent) -> Agent:
        def make(**set_here: Any) -> Agent:
            made = dataclasses.replace(agent, **set_here)
            check_agent(made)
            return made

        fields = {name: given for name, given in self.of_agent(agent.name).items() if name != MIDDLEWARE}
        return _made(make, fields, ("agents", agent.name))

    def _optional(self, policy: Callable[..., T], used: T | None, table: str, switch: str, agent: str | None = None) -> T | None:
        path, given = self._in(table, agent)
        if used is not None:
            return self._changed(used, table, agent)
        if given and switch not in given:
            name, (_, source) = next(iter(given.items()))
            kind = table.title().replace("_", "")
            raise ConfigurationError(
                f"{dotted((*path, name))} is set by {source}, and this {'app' if agent is None else 'agent'} does not use {kind}; "
                f"use({kind}(…)) in the code, or set {dotted((*path, switch))} as well"
            )
        return _made(policy, given, path) if given else None

    def _changed(self, used: T, table: str, agent: str | None = None) -> T:
        path, given = self._in(table, agent)
        replace: Any = dataclasses.replace
        return _made(lambda **set_here: replace(used, **set_here), given, path) if given else used


def _made(make: Callable[..., T], given: Mapping[str, Given], table: _Path) -> T:
    with _sourced(given, table):
        return make(**{name: value for name, (value, _) in given.items()})


@contextmanager
def _sourced(given: Mapping[str, Given], table: _Path) -> Iterator[None]:
    """A refusal of what is set also says where the fields that it names were set."""
    try:
        yield
    except ConfigurationError as error:
        named = [name for name in given if re.search(rf"\b{name}\b", str(error))]
        if not named:
            raise
        where = ", ".join(f"{dotted((*table, name))} is set by {given[name].source}" for name in named)
        raise ConfigurationError(f"{error} ({where})") from None


def _refuse_ambiguous(spelled: str, variable: str, names: Sequence[str]) -> None:
    meant = [name for name in names if _as_variable(name) == spelled]
    if not meant:
        raise ConfigurationError(f"{variable} names an agent that there is not; {_nearest(spelled.lower(), names)}")
    if len(meant) > 1:
        raise ConfigurationError(
            f"{variable} may mean the agents {' and '.join(map(repr, meant))}, whose names differ in what a variable can't hold; "
            f"set it in {_FILE}, or rename one"
        )


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"the agents are {', '.join(map(repr, known))}"


def _imported(name: str, source: str) -> Any:
    module, _, path = name.partition(":")
    try:
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"middleware {name!r}, set by {source}, can't be imported: {error}") from error


def _as_variable(name: str) -> str:
    return variable_of((name,)).removeprefix(PREFIX)


def _from_folder(folder: Path) -> dict[_Path, Given]:
    own, project = _load(folder / _FILE), _load(folder / _PROJECT)
    tool = (project or {}).get("tool", {})
    in_project = tool.get("ackwise") if isinstance(tool, dict) else None
    if own is not None and in_project is not None:
        raise ConfigurationError(f"{folder} has both {_FILE} and [tool.ackwise] in {_PROJECT}; keep one of them")
    source, table = (_FILE, own) if own is not None else (_PROJECT, in_project or {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"tool.ackwise in {_PROJECT} is not a table; write it as [tool.ackwise]")
    return {path: Given(_value(path, value, source), source) for path, value in _flat(table)}


def _load(path: Path) -> dict[str, Any] | None:
    try:
        if path.is_fifo():  # it would be waited for
            raise ConfigurationError(f"{path} is a pipe; make it a file, or take it away")
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return None
    except RecursionError:
        raise ConfigurationError(f"{path} nests its values too deeply to be read; it has entries that there are not") from None
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read ({error.strerror}); make it a readable file, or take it away") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from None


def _flat(table: Mapping[str, Any], above: _Path = ()) -> Iterator[tuple[_Path, object]]:
    for name, value in table.items():
        path = (*above, name)
        if isinstance(value, dict) and any(len(known) > len(path) and _covers(known, path) for known in ENTRIES):
            yield from _flat(value, path)
        else:
            yield path, value


def _covers(known: _Path, path: _Path) -> bool:
    """Whether an entry `known` may be below the table `path`."""
    return all(here in (part, "NAME") or part == "NAME" for part, here in zip(known, path, strict=False))


def _value(path: _Path, value: object, source: str) -> object:
    entry = entry_of(path)
    if entry is None:
        raise ConfigurationError(f"{source} sets {dotted(path)}, and there is no such entry; {_advice(dotted(path), _names(path))}")
    return entry.read(value, what=f"{dotted(path)}, set by {source},", from_text=False)


def _names(path: _Path) -> list[str]:
    """How the author of `path` would write the entries: with the agent that it names."""
    agent = path[1] if path[0] == "agents" and len(path) > 1 else "NAME"
    return [dotted([agent if part == "NAME" else part for part in known]) for known in ENTRIES]


def _from_environ(environ: Mapping[str, str]) -> dict[_Path, Given]:
    found = {}
    for variable, text in environ.items():
        if variable.startswith(PREFIX) and variable != UI_TOKEN:
            path, entry = _path_of(variable)
            if entry is None and _OF_A_SERVICE.fullmatch(variable):
                raise ConfigurationError(
                    f"{variable} is set, and there is no such entry; Kubernetes sets such variables for a Service whose name starts with "
                    "'ackwise': rename the Service, or set enableServiceLinks: false in the pod"
                )
            if entry is None:
                raise ConfigurationError(f"{variable} is set, and there is no such entry; {_advice(variable, _variables(path))}")
            found[path] = Given(entry.read(text, what=variable, from_text=True), variable)
    return found


def _path_of(variable: str) -> tuple[_Path, Any]:
    """The path and the entry of `variable`. The name of an agent stays in capitals, and may have its own underscores."""
    table, _, rest = variable.removeprefix(PREFIX).partition("__")
    if table == "AGENTS":
        parts = rest.split("__")
        for place in range(1, len(parts)):
            path: _Path = ("agents", "__".join(parts[:place]), *(part.lower() for part in parts[place:]))
            if path[1] and (entry := entry_of(path)) is not None:
                return path, entry
        agent, _, field = rest.rpartition("__")
        return ("agents", agent, field.lower()), None
    path = (table.lower(), rest.lower()) if rest else (table.lower(),)
    return path, entry_of(path)


def _variables(path: _Path) -> list[str]:
    agent = path[1] if path[0] == "agents" and path[1] else "NAME"
    return [variable_of([agent if part == "NAME" else part for part in known]) for known in ENTRIES]


def _advice(wrong: str, known: Sequence[str]) -> str:
    """The nearest of `known`; the start that all variables share makes none of them nearer."""
    near = difflib.get_close_matches(wrong.removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in known], n=1, cutoff=0.7)
    named = next((name for name in known if near and name.removeprefix(PREFIX) == near[0]), None)
    return f"did you mean {named}?" if named else f"the entries are {', '.join(known)}"
