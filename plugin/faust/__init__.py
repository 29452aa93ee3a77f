"""Ackwise on Faust: stock agents that stop losing messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ackwise.plugin.faust.faustapp import App as App
    from ackwise.plugin.faust.faustapp import handler as handler
    from ackwise.plugin.faust.faustapp import use as use
    from ackwise.plugin.faust.work import current_batch as current_batch

__all__ = ["App", "current_batch", "handler", "use"]


def __getattr__(name: str) -> Any:
    """Faust asks for the fixup in this package whenever an app is made: nothing else is loaded for that."""
    if name == "App":
        from ackwise.plugin.faust.faustapp import App

        return App
    if name == "handler":
        from ackwise.plugin.faust.faustapp import handler

        return handler
    if name == "use":
        from ackwise.plugin.faust.faustapp import use

        return use
    if name == "current_batch":
        from ackwise.plugin.faust.work import current_batch

        return current_batch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
