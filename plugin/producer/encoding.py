"""Encoding: what users give to be sent becomes the bytes that handlers decode. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import pydantic_core

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message import Headers
from ackwise.middleware.outgoing import Outgoing, new_message_id, refuse_own_headers

__all__ = ["GivenHeaders", "encoded", "outgoing"]

GivenHeaders = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]
"""Headers as users write them; a text is sent as UTF-8."""


def outgoing(
    topic: str,
    value: Any,
    *,
    key: str | bytes | None = None,
    headers: GivenHeaders = (),
    partition: int | None = None,
    message_id: str | None = None,
) -> Outgoing:
    """The message. Raises `ConfigurationError` for what can't be sent, with nothing of the value in it."""
    message = Outgoing(
        topic,
        encoded(value, f"the value of a message to {topic!r}"),
        _text(key, f"the key of a message to {topic!r}"),
        _headers(headers, topic),
        partition,
        new_message_id() if message_id is None else message_id,
    )
    refuse_own_headers(message)
    return message


def encoded(value: Any, what: str) -> bytes | None:
    """Bytes as they are, a text as UTF-8, `None` as no value, everything else as JSON, as a handler that annotates its type reads it."""
    if value is None or isinstance(value, bytes):
        return value
    try:
        return value.encode() if isinstance(value, str) else pydantic_core.to_json(value)
    except (ValueError, TypeError, RecursionError) as error:  # the error may repeat the value
        raise ConfigurationError(
            f"{what} is of type {type(value).__qualname__}, which can't be encoded ({type(error).__name__}); "
            "give bytes, str, a pydantic model, or what JSON can hold"
        ) from None


def _text(value: object, what: str) -> bytes | None:
    match value:
        case None | bytes():
            return value
        case str():
            return encoded(value, what)
    raise ConfigurationError(f"{what} is of type {type(value).__qualname__}; give str, bytes or None")


def _headers(given: GivenHeaders, topic: str) -> Headers:
    try:
        pairs = cast("Iterable[tuple[str, str | bytes | None]]", given.items() if isinstance(given, Mapping) else given)
        return tuple((name, _text(value, f"a header of a message to {topic!r}")) for name, value in pairs)
    except (TypeError, ValueError):
        raise ConfigurationError(f"headers of a message to {topic!r} are {type(given).__qualname__}; give a dict or pairs") from None
