"""Gives every `faust.App` a method `use`, through Faust's entry point for such extensions. Nothing happens until it is called."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import faust

__all__ = ["Fixup"]


class Fixup:
    """What Faust makes for each app."""

    def __init__(self, app: faust.App) -> None:
        if not hasattr(type(app), "use"):
            anything: Any = app
            anything.use = functools.partial(_use, app)

    def enabled(self) -> bool:
        """Faust need not keep it."""
        return False


def _use(app: faust.App, *things: Any, **settings: Any) -> None:
    """Use Ackwise on this app, from here on. See `ackwise.plugin.faust.use`."""
    from ackwise.plugin.faust.usage import use  # an app that does not call it loads nothing

    use(app, *things, **settings)
