"""Fixup of Faust: gives every `faust.App` the methods `use` and `handler`, which do nothing until they are called."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import faust


class Fixup:
    """What Faust makes for each app."""

    def __init__(self, app: faust.App) -> None:
        if not hasattr(type(app), "use"):
            anything: Any = app
            anything.use = functools.partial(_use, app)
            anything.handler = functools.partial(_handler, app)

    def enabled(self) -> bool:
        """Faust need not keep it."""
        return False


def _use(app: faust.App, *things: Any, **settings: Any) -> None:
    """Use Ackwise on this app, from here on. See `ackwise.plugin.faust.use`."""
    from ackwise.plugin.faust.faustapp import use  # an app that does not call it loads nothing

    use(app, *things, **settings)


def _handler(app: faust.App, *topics: Any, **options: Any) -> Any:
    """Register a handler function on this app. See `ackwise.plugin.faust.handler`."""
    from ackwise.plugin.faust.faustapp import handler

    return handler(app, *topics, **options)
