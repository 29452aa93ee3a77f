"""`ackwise run module:app`: finds the app that the user wrote and runs it."""

from __future__ import annotations

import difflib
import importlib
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ackwise.middleware.errors import ConfigurationError

if TYPE_CHECKING:
    from ackwise.plugin.app import App

__all__ = ["find_app", "run"]

LogLevel = Literal["debug", "info", "warning", "error"]


def run(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the App is, such as [bold]billing.worker:app[/bold].")],
    log_level: Annotated[LogLevel, typer.Option(help="What is logged to stderr.")] = "info",
) -> None:
    """Run the handlers of an app until SIGINT or SIGTERM; it drains and commits before it leaves.

    The module is looked for in the current folder first. A second signal cancels what still runs, the third kills.
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr)
    sys.path.insert(0, str(Path.cwd()))
    find_app(target).run()


def find_app(target: str) -> App:
    """The `App` that `target`, a `module:attribute`, names. Raises `ConfigurationError`; an error inside of the module passes."""
    from ackwise.plugin.app import App

    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"{target!r} does not name an app; write MODULE:APP, such as billing.worker:app")
    if "/" in module_name or module_name.endswith(".py"):
        raise ConfigurationError(
            f"{module_name!r} is a file; name the module instead, from the folder that it is in: {Path(module_name).stem}:{attribute}"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(f"there is no module {error.name!r} in {Path.cwd()} or among the installed packages") from None
    found = getattr(module, attribute, None)
    if isinstance(found, App):
        return found
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    near = difflib.get_close_matches(attribute, apps, n=1, cutoff=0.0)
    advice = f"did you mean {module_name}:{near[0]}" if near else "it has no App at all"
    what = f"has no {attribute!r}" if found is None else f"has a {type(found).__name__} as {attribute!r}, not an App"
    raise ConfigurationError(f"module {module_name!r} {what}; {advice}")
