"""Options that several commands take together: declared once, as the fields of a dataclass, and given to a command as one value."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from inspect import Parameter
from typing import Any

__all__ = ["with_options"]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as typer reads it: in place of each parameter that is a dataclass there are the fields of that."""
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
    """By keyword, so that one with a default may stand before one without."""
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
