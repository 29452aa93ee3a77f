"""`use`: the guarantees of Ackwise for the agents of a stock `faust.App`."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, cast

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.faust.host import FaustHost
from ackwise.plugin.settings import LoopSettings

if TYPE_CHECKING:
    from typing import Unpack

    import faust

    from ackwise.plugin.faust.settings import FaustSettings
    from ackwise.plugin.observers import Observer
    from ackwise.plugin.slots import Policy

__all__ = ["use"]

#: What the app's own configuration says already, and by which of its names.
_FAUSTS = {"start": "consumer_auto_offset_reset", "commit_interval": "broker_commit_interval"}


def use(app: faust.App, *things: Policy | Observer, **settings: Unpack[FaustSettings]) -> None:
    """Let the agents that are declared on `app` from here on lose nothing: policies, one of a kind, and observers, as for `App.use`.

    Without any, `ConsumeLater(16)` and `DeadLetter()` are on. Call it right after the app is made, before its first agent;
    it may be called again. `settings` are `create_topics`, `revoke_timeout`, `drain_timeout` and `clock_skew` of
    `HostSettings`; the others are Faust's own. Raises `ConfigurationError`.
    """
    known = sorted(LoopSettings.__annotations__.keys() - _FAUSTS.keys())
    for name in settings.keys() - set(known):
        if name in _FAUSTS:
            raise ConfigurationError(f"use() has no setting {name!r} on Faust; set {_FAUSTS[name]} of the app")
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
        raise ConfigurationError(f"use() has no setting {name!r}; {advice}")
    anything: Any = app
    host = anything.__dict__.get("ackwise")
    if host is None:
        host = FaustHost(app)
        host.install()
        anything.ackwise = host
    elif app.agents:
        raise ConfigurationError(
            f"app.use() comes after agent {next(iter(app.agents))!r} was declared; call it right after the app is made"
        )
    for thing in things:
        cast(FaustHost, host).slots.use(thing)
    host.keywords.update(settings)
