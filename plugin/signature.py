"""Signature: what is said of a user's function by its parameters and their annotations."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection
from typing import Annotated, Any, Final, Union

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.keys import innermost

__all__ = ["UNTYPED", "bare", "first_parameter", "is_async", "name_of", "resolved", "spelled"]

UNTYPED: Final = inspect.Parameter.empty


def name_of(function: object) -> str:
    """The name that messages call `function` by."""
    function = innermost(function)
    return str(getattr(function, "__name__", type(function).__name__))


def is_async(function: object) -> bool:
    """Whether calling `function` gives a coroutine, as far as its definition says."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def first_parameter(function: Callable[..., Any], *, what: str, arity: int = 1, given: Collection[str] = ()) -> inspect.Parameter:
    """The first parameter of `function`, its annotation resolved, after checking that `arity` positional arguments fit.

    The parameters `given` are given by name.
    """
    signature = inspect.signature(function)
    try:
        signature.bind(*[None] * arity, **dict.fromkeys(given))
    except TypeError:
        wanted = "one argument" if arity == 1 else f"{arity} arguments"
        raise ConfigurationError(
            f"{what} has the parameters {signature}; it is called with {wanted}, so the others need defaults"
        ) from None
    first = next(iter(signature.parameters.values()))
    return first.replace(annotation=resolved(function, first, what))


def resolved(function: Callable[..., Any], parameter: inspect.Parameter, what: str) -> Any:
    """The annotation of `parameter` alone: what the others and the result are annotated with need not exist at run time."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    function = innermost(function)
    namespace = getattr(function, "__globals__", None) or vars(sys.modules[type(function).__module__])
    only = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return typing.get_type_hints(only, globalns=namespace, include_extras=True)[parameter.name]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"{what} annotates {parameter.name!r} with {parameter.annotation!r}, which can't be resolved ({error}); "
            "import its names outside of TYPE_CHECKING and define them in the module, not in a function"
        ) from None


def bare(payload: Any) -> Any:
    """`T` of `Annotated[T, …]` and of `T | None`."""
    origin, arguments = typing.get_origin(payload), typing.get_args(payload)
    if origin is Annotated:
        return bare(arguments[0])
    rest = [kind for kind in arguments if kind is not types.NoneType]
    return bare(rest[0]) if origin in (Union, types.UnionType) and len(rest) == 1 else payload


def spelled(kind: Any) -> str:
    if typing.get_args(kind):
        return str(kind)
    return kind.__qualname__ if isinstance(kind, type) else str(kind)
