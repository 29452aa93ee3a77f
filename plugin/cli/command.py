"""What commands share: the event loop, options in a dataclass, and the app that MODULE:APP names.

asyncio is imported when a command runs: `--help` needs no event loop.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import sys
import traceback
import typing
from collections.abc import Callable, Coroutine
from dataclasses import fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from ackwise.middleware.errors import AckwiseError, ConfigurationError

if TYPE_CHECKING:
    from ackwise.plugin.operate.explanation import Application


T = TypeVar("T")


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` in a new event loop and return its result."""
    import asyncio

    return asyncio.run(coroutine)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` for typer: each parameter that is a dataclass is replaced by its fields."""
    hints = typing.get_type_hints(command, include_extras=True)
    parameters, groups = list[Parameter](), dict[str, Any]()
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            groups[parameter.name] = kind
            of_field = typing.get_type_hints(kind, include_extras=True)
            parameters += [_parameter(field.name, of_field[field.name], field.default) for field in fields(kind)]
        else:
            parameters.append(_parameter(parameter.name, kind, parameter.default))

    @functools.wraps(command)
    def called(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    as_typer: Any = called
    as_typer.__signature__ = inspect.Signature(parameters)
    as_typer.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
    """Keyword-only, so that a parameter with a default may precede one without."""
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app, such as [bold]billing.worker:app[/bold].")]
"""The argument of every command that takes an app."""

_TRACEBACK: Final = "ackwise --traceback COMMAND … shows the traceback"


def find_app(target: str) -> Application:
    """Return the app that `target`, a `module:attribute`, names. The current folder is searched for the module first.

    Raises `ConfigurationError`, also for any error while importing the module.
    """
    module_name, _, attribute = target.partition(":")
    _check_form(target, module_name, attribute)
    module = _imported(module_name)
    found = getattr(module, attribute, None)
    if (app := _as_application(found)) is not None:
        return app
    if _is_of_faust(found):
        raise ConfigurationError(f"{target} is an app of Faust that does not use Ackwise; call app.use() right after it is made")
    apps = [name for name, value in vars(module).items() if _as_application(value) is not None]
    near = difflib.get_close_matches(attribute, apps, n=1, cutoff=0.0)
    advice = f"did you mean {module_name}:{near[0]}" if near else "it has no App at all"
    what = f"has no {attribute!r}" if found is None else f"has a {type(found).__name__} as {attribute!r}, not an App"
    raise ConfigurationError(f"module {module_name!r} {what}; {advice}")


def find_attribute(target: str, what: str, example: str) -> object:
    """Return the object that `target`, a `module:attribute`, names; errors call it `what`. The current folder is searched first.

    Raises `ConfigurationError`, also for any error while importing the module.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute or "/" in module_name:
        raise ConfigurationError(f"{target!r} does not name {what}; write MODULE:NAME, such as {example}")
    module = _imported(module_name)
    if not hasattr(module, attribute):
        near = difflib.get_close_matches(attribute, vars(module), n=1)
        raise ConfigurationError(f"module {module_name!r} has no {attribute!r}{f'; did you mean {module_name}:{near[0]}' if near else ''}")
    return getattr(module, attribute)


def _as_application(found: object) -> Application | None:
    """Return an `App`, or the application that `use` attached to a Faust app, so that no other command imports Faust."""
    from ackwise.plugin.operate.explanation import Application

    candidates = (found, vars(found).get("ackwise") if _is_of_faust(found) else None)
    return next((each for each in candidates if isinstance(each, Application) and not isinstance(each, type)), None)


def _is_of_faust(found: object) -> bool:
    return any(f"{kind.__module__}.{kind.__qualname__}" == "faust.app.base.App" for kind in type(found).__mro__)


def _check_form(target: str, module: str, attribute: str) -> None:
    if not module or not attribute:
        raise ConfigurationError(f"{target!r} does not name an app; write MODULE:APP, such as billing.worker:app")
    if "/" in module or module.endswith(".py"):
        raise ConfigurationError(
            f"{module!r} is a file; name the module instead, from the folder that it is in: {Path(module).stem}:{attribute}"
        )
    if not all(part.isidentifier() for part in module.split(".")):
        raise ConfigurationError(f"{module!r} can't be the name of a module; write MODULE:APP, such as billing.worker:app")


def _imported(name: str) -> ModuleType:
    from ackwise.plugin.settings.config import working_folder

    here = str(working_folder())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except AckwiseError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error
        raise ConfigurationError(f"there is no module {error.name!r} in {here} or among the installed packages") from None
    except Exception as error:  # the user's module is the user's code
        raise _broken(name, error) from error


def _broken(module: str, error: Exception) -> ConfigurationError:
    said = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return ConfigurationError(f"module {module!r} can't be imported, {_place(error)} raises {type(error).__name__}: {said}; {_TRACEBACK}")


def _place(error: Exception) -> str:
    """Return file and line to open: the innermost frame in user code, or the file that could not be read or parsed."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen ")]
    theirs = [frame for frame in frames if _is_below_here(frame.filename)]
    if theirs:
        return f"{_short(theirs[-1].filename)}:{theirs[-1].lineno}"
    if isinstance(error, OSError) and error.filename:
        return _short(str(error.filename))
    return f"{frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else "importing it"


def _is_below_here(file: str) -> bool:
    path = Path(file)
    return path.is_relative_to(Path.cwd()) and "site-packages" not in path.parts


def _short(file: str) -> str:
    return str(Path(file).relative_to(Path.cwd())) if _is_below_here(file) else file
