"""Into: a decoded value as the type that a handler takes, checked by pydantic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pydantic

from ackwise.middleware.errors import ConfigurationError

__all__ = ["checked_into"]


def checked_into(kind: Any, decoder: str) -> Callable[[Any], Any]:
    """What turns a value into `kind`; it stays as it is if that is `None`. Raises `ConfigurationError`."""
    if kind is None:
        return _as_it_is
    try:
        return pydantic.TypeAdapter(kind).validate_python
    except (
        pydantic.errors.PydanticSchemaGenerationError,
        pydantic.errors.PydanticUndefinedAnnotation,
        pydantic.PydanticUserError,
    ) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigurationError(f"{decoder} can't make values of type {kind!r} ({reason}); give a model, or leave it out") from None


def _as_it_is(value: Any) -> Any:
    return value
