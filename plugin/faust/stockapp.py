"""`use`: the guarantees of Ackwise for the agents of a stock `faust.App`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.faust.host import FaustHost
from ackwise.plugin.faust.internals import keywords_of, settings_of
from ackwise.plugin.faust.settings import keywords, refuse_unknown
from ackwise.plugin.settings.config import read_config

if TYPE_CHECKING:
    from typing import Unpack

    import faust

    from ackwise.plugin.app import Usable
    from ackwise.plugin.faust.settings import FaustSettings

__all__ = ["use"]


def use(app: faust.App, *things: Usable, **settings: Unpack[FaustSettings]) -> None:
    """Let the agents that are declared on `app` from here on lose nothing: policies, one of a kind, and observers, as for `App.use`;
    and middleware, which wraps handler functions, while other agents are loops.

    Without any, `ConsumeLater(16)` and `DeadLetter()` are on. Call it right after the app is made, before its first agent;
    it may be called again. `settings` are `create_topics`, `revoke_timeout`, `drain_timeout`, `start_timeout` and `clock_skew` of
    `HostSettings`, which the app takes as well, as keywords `ackwise_create_topics` and so on; the others are Faust's own.
    Raises `ConfigurationError`.
    """
    refuse_unknown(settings, owner="use()")
    keywords(app)  # refuses what Faust would drop
    anything: Any = app
    options = keywords_of(app)
    host = anything.__dict__.get("ackwise")
    if host is None:
        host = FaustHost(app, read_config(environ=options.get("env")))
        host.install()
        anything.ackwise = host
    elif app.agents:
        raise ConfigurationError(
            f"app.use() comes after agent {next(iter(app.agents))!r} was declared; call it right after the app is made"
        )
    for thing in things:
        cast(FaustHost, host).slots.use(thing)
    for name, value in settings.items():
        options[f"ackwise_{name}"] = value
        if (conf := settings_of(app)) is not None and name not in host.config.of():
            setattr(conf, f"ackwise_{name}", value)
