"""Entries that a file or the environment may set: a name, a kind, a default and a meaning each, from the fields that they set."""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union

from ackwise.middleware.duration import format_duration, parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.flow.breaker import Breaker
from ackwise.middleware.flow.limits import RateLimit
from ackwise.middleware.policies.policies import Broadcasting, DeadLetter, Dedup, Events, Outbox, Share, Transactional, Watch
from ackwise.middleware.policies.retry import ConsumeLater, DelayLevels
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.settings.clientoptions import EVERY_CLIENT, OWN_CONSUMER, OWN_PRODUCER
from ackwise.plugin.settings.connecting import shown_url
from ackwise.plugin.settings.hostsettings import DEFAULT_BROKERS, HostSettings

PREFIX: Final = "ACKWISE_"

MIDDLEWARE: Final = "middleware"  #: the one entry at the top that is no setting of a host

#: Stands in a path for the name of an agent or of an option of the Kafka clients.
_ANY: Final = "NAME"

_FUNCTION: Final = re.compile(r"[\w.]+:[\w.]+")

#: Tables of options of the Kafka clients.
_OPTIONS: Final = (EVERY_CLIENT, OWN_CONSUMER, OWN_PRODUCER)


@dataclass(frozen=True, slots=True)
class SettingEntry:
    """One entry. `path` is its place in a file: `("dedup", "lease")` is `lease` in the table `dedup`."""

    path: tuple[str, ...]
    hint: Any  #: the type of the field that it sets
    default: object
    meaning: str

    @property
    def kind(self) -> str:
        """What its values are, in words."""
        return _kind(self.hint).words

    def read(self, value: object, *, what: str, from_text: bool) -> object:
        """`value` as the field takes it; `from_text` for one from the environment, which is always a text.

        Raises `ConfigurationError` that starts with `what`; it repeats no password, also where a URL should not be.
        """
        try:
            return _kind(self.hint).read(value, what, from_text)
        except ConfigurationError as error:
            if not value or not isinstance(value, str | dict | list):
                raise
            shown = repr(shown_url(value)) if isinstance(value, str) else _called(value)
            raise ConfigurationError(str(error).replace(repr(value), shown)) from None


def dotted(path: Sequence[str]) -> str:
    """`path` as messages and tables spell it: `dedup.lease`."""
    return ".".join(path)


def variable_of(path: Sequence[str]) -> str:
    """The environment variable of `path`: `ACKWISE_DEDUP__LEASE`. What is no letter or digit in a name is `_`."""
    return PREFIX + "__".join("".join(letter if letter.isalnum() else "_" for letter in part).upper() for part in path)


def entry_of(path: Sequence[str]) -> SettingEntry | None:
    """The entry at `path`, in which agents and options of Kafka clients have their own names."""
    return ENTRIES.get(tuple(path)) or ENTRIES.get((path[0], _ANY, *path[2:]) if len(path) > 1 else ())


def spelled(value: object) -> str:
    """A value as tables show it: durations as people write them."""
    if value is None or value is MISSING or value in ({}, ""):
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return format_duration(value) if isinstance(value, float) and value else str(value).removesuffix(".0")


@dataclass(frozen=True, slots=True)
class _EntryKind:
    words: str
    read: Callable[[object, str, bool], object]


def _kind(hint: Any) -> _EntryKind:
    members = [member for member in typing.get_args(hint) if member is not types.NoneType] if _is_union(hint) else [hint]
    origins = [typing.get_origin(member) for member in members]
    if Literal in origins:
        return _choice(typing.get_args(members[0]))
    if Sequence in origins:
        return _EntryKind("durations", _levels)
    if list in origins:
        return _EntryKind("list of `module:function`", _functions)
    if float in members:
        return _EntryKind("duration", lambda value, what, _: parse_duration(typing.cast(float, value), what=what))
    if bool in members:
        return _EntryKind("true or false", _boolean)
    if int in members and str in members:
        return _EntryKind("text or whole number", _text_or_whole)
    if int in members:
        return _EntryKind("whole number", _whole)
    return _EntryKind("text", _text)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (Union, types.UnionType)


def _choice(choices: tuple[str, ...]) -> _EntryKind:
    words = ", ".join(f"`{choice}`" for choice in choices)

    def read(value: object, what: str, _: bool) -> object:
        if value not in choices:
            raise ConfigurationError(f"{what} is {value!r}; it is one of {', '.join(map(repr, choices))}")
        return value

    return _EntryKind(words, read)


def _levels(value: object, what: str, _: bool) -> object:
    if not isinstance(value, str | list):
        raise ConfigurationError(f"{what} is {_called(value)}; write the delays as '1s 10s 1m'")
    try:
        return str(DelayLevels(value))
    except ConfigurationError as error:
        raise ConfigurationError(f"{what} can't be used: {error}") from None


def _functions(value: object, what: str, from_text: bool) -> object:
    names = [name.strip() for name in value.split(",")] if from_text and isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and _FUNCTION.fullmatch(name) for name in names):
        raise ConfigurationError(f'{what} is {names!r}; write each as "module:function", such as ["shop.hooks:timed"]')
    return names


def _boolean(value: object, what: str, from_text: bool) -> object:
    if from_text and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what} is {value!r}; it must be true or false")
    return value


def _whole(value: object, what: str, from_text: bool) -> object:
    if from_text and re.fullmatch(r"\d{1,18}", str(value)):
        return int(str(value))
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{what} is {value!r}; it must be a whole number")
    return value


def _text_or_whole(value: object, what: str, from_text: bool) -> object:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole else _text(value, what, from_text)


def _text(value: object, what: str, _: bool) -> object:
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} is {_called(value)}; it must be a text in quotes")
    if not value:
        raise ConfigurationError(f"{what} is empty; write a text, or leave the entry out")
    return value


def _called(value: object) -> str:
    return {dict: "a table", list: "a list", str: "a text", bool: "true or false"}.get(type(value), "a number or a time")


def _annotated(hints: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """The fields whose annotation says what they mean: type and meaning of each."""
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items() if typing.get_origin(hint) is Annotated}


def _of_fields(section: tuple[str, ...], kind: Any, **defaults: object) -> list[SettingEntry]:
    found = _annotated(typing.get_type_hints(kind, include_extras=True))
    given = {field.name: field.default for field in fields(kind)} | defaults
    return [SettingEntry((*section, name), hint, given[name], meaning) for name, (hint, meaning) in found.items()]


def _of_consume_later() -> list[SettingEntry]:
    found, default = _annotated(typing.get_type_hints(ConsumeLater.__init__, include_extras=True)), ConsumeLater()
    return [SettingEntry(("consume_later", name), hint, getattr(default, name), meaning) for name, (hint, meaning) in found.items()]


#: Entries of the app that each agent may have as well, in its own table.
_ALSO_OF_AGENTS: Final = (
    "consume_later.max_reconsume_times",
    "consume_later.levels",
    "dedup.message_id_header",
    "breaker.undecodable",
    "breaker.first_wait",
    "breaker.rest",
    "rate_limit.rate",
    "rate_limit.burst",
    MIDDLEWARE,
)


def _of_one_agent(of_app: Sequence[SettingEntry]) -> list[SettingEntry]:
    """The entries of the policies and of the middleware that an agent has by itself; without them it has those of the app."""
    entries = [entry for entry in of_app if dotted(entry.path) in _ALSO_OF_AGENTS]
    return [SettingEntry(("agents", _ANY, *entry.path), entry.hint, None, f"of one agent: {entry.meaning}") for entry in entries]


def _all() -> dict[tuple[str, ...], SettingEntry]:
    host = _of_fields((), HostSettings, brokers=DEFAULT_BROKERS)
    options = [entry for entry in host if entry.path[0] in _OPTIONS]
    for entry in options:
        host.remove(entry)
    of_app = (
        *host,
        SettingEntry((MIDDLEWARE,), list[str], None, "middleware around every handler that it takes, the first the outermost"),
        *_of_consume_later(),
        *_of_fields(("dead_letter",), DeadLetter),
        *_of_fields(("dedup",), Dedup),
        *_of_fields(("transactional",), Transactional),
        *_of_fields(("events",), Events),
        *_of_fields(("outbox",), Outbox),
        *_of_fields(("breaker",), Breaker),
        *_of_fields(("rate_limit",), RateLimit),
        *_of_fields(("broadcasting",), Broadcasting),
        *_of_fields(("share",), Share),
        *_of_fields(("watch",), Watch),
    )
    of_agents = (*_of_fields(("agents", _ANY), Agent), *_of_one_agent(of_app))
    of_clients = [SettingEntry((*entry.path, _ANY), int | str, None, entry.meaning) for entry in options]
    return {entry.path: entry for entry in (*of_app, *of_agents, *of_clients)}


ENTRIES: Final = _all()


def table() -> str:
    """The published table of entries, in Markdown."""
    rows = [
        f"| `{dotted(entry.path)}` | {entry.kind} | {_cell(entry.default)} | `{variable_of(entry.path)}` | {entry.meaning} |"
        for entry in ENTRIES.values()
    ]
    return "\n".join(["| entry | type | default | environment | meaning |", "|---|---|---|---|---|", *rows])


def _cell(default: object) -> str:
    return text if (text := spelled(default)) == "–" else f"`{text}`"


_BEGIN, _END = "<!-- entries: written by python -m ackwise.plugin.settings.entries -->", "<!-- end of entries -->"


def _rewrite(page: Path) -> None:
    text = page.read_text()
    before, _, rest = text.partition(_BEGIN)
    after = rest.partition(_END)[2]
    page.write_text(f"{before}{_BEGIN}\n\n{table()}\n\n{_END}{after}")


if __name__ == "__main__":
    _rewrite(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/config.md"))
