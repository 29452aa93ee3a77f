"""The settings of Ackwise on Faust: five that Faust does not have, and the others as Faust calls them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypedDict, cast

import faust
from faust.types.settings import params, sections

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.faust.faustinternals import (
    Transport,
    credentials_to_aiokafka_auth,
    keywords_of,
    server_list,
    source_of,
    was_set,
)
from ackwise.plugin.settings.config import Config
from ackwise.plugin.settings.entries import ENTRIES
from ackwise.plugin.settings.hostsettings import HostSettings

_PREFIX: Final = "ackwise_"


class FaustSettings(TypedDict, total=False):
    """The settings of `HostSettings` that Faust does not have, as keywords."""

    topic_names: str
    create_topics: Literal["auto", "never", "broker"]
    revoke_timeout: float | str
    drain_timeout: float | str
    start_timeout: float | str
    clock_skew: float | str


_OURS: Final = tuple(FaustSettings.__annotations__)

#: Settings of `HostSettings` that an app of Faust says itself, and by which of its names.
_FAUSTS: Final = {
    "brokers": "broker",
    "start": "consumer_auto_offset_reset",
    "commit_interval": "broker_commit_interval",
    "session_timeout": "broker_session_timeout",
    "client_id": "broker_client_id",
    "client_options": "broker_credentials",
    "group_instance_id": "consumer_group_instance_id",
    "consumer_options": "consumer_max_fetch_size, broker_heartbeat_interval and the like",
}

#: Tables of options, which an entry may be in.
_TABLES: Final = ("client_options", "consumer_options")


class _FaustSetting(params.Param[Any, Any]):
    """A setting of Ackwise, checked as the entry of the same name. `None` is kept while it is not set."""

    def to_python(self, conf: Any, value: Any) -> Any:
        """The value as `HostSettings` takes it. Raises `ConfigurationError`."""
        return ENTRIES[(self.name.removeprefix(_PREFIX),)].read(value, what=self.name, from_text=False)

    def prepare_get(self, conf: Any, value: Any) -> Any:
        """The value, or what holds where it was not set."""
        return _default(self.name.removeprefix(_PREFIX), conf) if value is None else value


def _setting(name: str) -> _FaustSetting:
    return _FaustSetting(name=f"{_PREFIX}{name}", section=sections.Extension, help=ENTRIES[(name,)].meaning)


class Settings(faust.Settings):
    """Faust's, and those of Ackwise that Faust does not have. Raises `ConfigurationError` for another one that starts with `ackwise_`.

    They have no variables of Faust's kind, since `ACKWISE_…` is the same on every host, whatever `env_prefix` is; an
    `ackwise.plugin.faust.App` puts in what a file and the environment set.
    """

    ackwise_topic_names = _setting("topic_names")
    ackwise_create_topics = _setting("create_topics")
    ackwise_revoke_timeout = _setting("revoke_timeout")
    ackwise_drain_timeout = _setting("drain_timeout")
    ackwise_start_timeout = _setting("start_timeout")
    ackwise_clock_skew = _setting("clock_skew")

    def on_init(self, id: str, **kwargs: Any) -> None:
        """Like Faust's, which would drop what it does not know."""
        super().on_init(id, **kwargs)
        _ours(kwargs)


def _default(name: str, conf: Any) -> Any:
    """Return the default of a setting. The broker waits for a drain no longer than for a rebalance."""
    default: Any = ENTRIES[(name,)].default
    return min(default, conf.broker_rebalance_timeout / 2) if name == "revoke_timeout" else default


def refuse_unknown(names: Iterable[str], *, owner: str, prefix: str = "") -> None:
    """Refuse a setting that is none of `FaustSettings`; `owner` was given it, in whose words it starts with `prefix`.

    Raises `ConfigurationError`.
    """
    for name in names:
        if name in _FAUSTS:
            raise ConfigurationError(f"{owner} has no setting {prefix + name!r} on Faust; set {_FAUSTS[name]} of the app")
        if name not in _OURS:
            near = difflib.get_close_matches(name, _OURS, n=1)
            advice = f"did you mean {prefix + near[0]!r}?" if near else f"it has {', '.join(prefix + known for known in _OURS)}"
            raise ConfigurationError(f"{owner} has no setting {prefix + name!r}; {advice}")


def _ours(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `entries` that are for Ackwise, without their prefix."""
    ours = {name.removeprefix(_PREFIX): entries[name] for name in entries if name.startswith(_PREFIX)}
    refuse_unknown(ours, owner="the app", prefix=_PREFIX)
    return {name: value for name, value in ours.items() if value is not None}


def keywords(app: faust.App) -> dict[str, Any]:
    """Return Ackwise's settings among the keywords of `app`. Raise `ConfigurationError` for an unknown setting."""
    return _ours(keywords_of(app))


def _said(app: faust.App) -> dict[str, Any]:
    """What keywords and the configuration object of `app` say for Ackwise. Raises `ConfigurationError` as `keywords` does."""
    if isinstance(conf := app.conf, Settings):
        return {name: value for name in _OURS if (value := was_set(conf, _PREFIX + name)) is not None}
    return keywords(app) | _ours(source_of(app))


def resolve(app: faust.App, config: Config) -> HostSettings:
    """How the members beside Faust's own talk to Kafka: as `app` is configured. Raises `ConfigurationError`."""
    _refuse_those_of_faust(config)
    conf: Any = app.conf
    fixed = {
        "brokers": ",".join(server_list(conf.broker_consumer, Transport.default_port)),
        "session_timeout": float(conf.broker_session_timeout),
        "commit_interval": float(conf.broker_commit_interval),
        "client_id": conf.broker_client_id,
        "client_options": dict(credentials_to_aiokafka_auth(conf.broker_credentials, conf.ssl_context)),
        "start": conf.consumer_auto_offset_reset,
        "consumer_options": {},
        "group_instance_id": conf.consumer_group_instance_id or "",
    }
    made = config.host_settings(conf.id, fixed=fixed, **{"revoke_timeout": _default("revoke_timeout", conf), **_said(app)})
    if made.revoke_timeout > (most := conf.broker_rebalance_timeout / 2):
        raise ConfigurationError(
            f"revoke_timeout is {made.revoke_timeout:g} s, and broker_rebalance_timeout allows {most:g} s, half of it: the broker would "
            "throw out the worker that drains; lower it, or raise broker_rebalance_timeout"
        )
    return made


def put_in(settings: Settings, config: Config) -> None:
    """Let `settings` hold what a file and the environment set, which win over the code."""
    for name, (value, _) in config.of().items():
        if name in _OURS:
            setattr(settings, _PREFIX + name, value)


def _refuse_those_of_faust(config: Config) -> None:
    """Refuse entries that would silently mean nothing here."""
    given = [*config.of().items(), *((table, each) for table in _TABLES for each in config.of(table).values())]
    for name, (_, source) in given:
        if name in _FAUSTS:
            raise ConfigurationError(f"{name} is set by {source}, and Faust says it itself; remove it, and set {_FAUSTS[name]} of the app")


def origins(app: faust.App) -> dict[str, str]:
    """The sources of the settings that Faust decides, and not `HostSettings`, a file or the environment."""
    found = {name: f"{fausts} of the app" for name, fausts in _FAUSTS.items()}
    conf = cast(Any, app.conf)
    if "revoke_timeout" not in _said(app) and _default("revoke_timeout", conf) != ENTRIES[("revoke_timeout",)].default:
        found["revoke_timeout"] = "half of broker_rebalance_timeout of the app"
    return found
