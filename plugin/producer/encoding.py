"""Delaying: when a message that is sent for later is due. Pure.

Encoding: what users give to be sent becomes the bytes that handlers decode. Pure.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, cast

import pydantic_core

from ackwise.middleware.duration import parse_duration, parse_instant
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.message import Headers
from ackwise.middleware.message.outgoing import Outgoing, new_message_id, refuse_own_headers
from ackwise.middleware.usercode import Returned, called, class_name, is_a, plain


def due_of(delay: float | str | None, at: datetime.datetime | float | None, now: float) -> int | None:
    """Epoch milliseconds, or `None` for at once; `now` is epoch seconds. Raises `ConfigurationError` for what can't be told."""
    if delay is not None and at is not None:
        raise ConfigurationError("delay= and at= were both given; give one of them")
    if delay is not None:
        return round((now + parse_duration(delay, what="delay")) * 1000)
    return None if at is None else round(parse_instant(at) * 1000)


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
    made = called(_made, topic, value, key, headers, partition, message_id)
    if isinstance(made, Returned):
        return made.value
    if is_a(made.error, ConfigurationError):
        raise made.error
    raise ConfigurationError(f"of what was given no message can be made ({class_name(made.error)}); give plain texts, numbers and bytes")


def _made(topic: str, value: Any, key: Any, headers: GivenHeaders, partition: int | None, message_id: str | None) -> Outgoing:
    message = Outgoing(
        cast(str, plain(topic)),
        encoded(value, f"the value of a message to {topic!r}"),
        _text(key, f"the key of a message to {topic!r}"),
        _headers(headers, topic),
        cast("int | None", plain(partition)),
        new_message_id() if message_id is None else cast(str, plain(message_id)),
    )
    refuse_own_headers(message)
    return message


def encoded(value: Any, what: str) -> bytes | None:
    """Bytes as they are, a text as UTF-8, `None` as no value, everything else as JSON, as a handler that annotates its type reads it."""
    own: Any = plain(value)
    if own is None or type(own) is bytes:
        return own
    outcome = called(str.encode if type(own) is str else pydantic_core.to_json, own)
    if isinstance(outcome, Returned):
        return outcome.value
    raise ConfigurationError(  # the error may repeat the value
        f"{what} is of type {class_name(value)}, which can't be encoded ({class_name(outcome.error)}); "
        "give bytes, str, a pydantic model, or what JSON can hold"
    )


def _text(value: object, what: str) -> bytes | None:
    if value is None or is_a(value, bytes, str):
        return encoded(value, what)
    raise ConfigurationError(f"{what} is of type {class_name(value)}; give str, bytes or None")


def _headers(given: GivenHeaders, topic: str) -> Headers:
    try:
        pairs = cast("Iterable[tuple[str, str | bytes | None]]", given.items() if isinstance(given, Mapping) else given)
        return tuple((cast(str, plain(name)), _text(value, f"a header of a message to {topic!r}")) for name, value in pairs)
    except (TypeError, ValueError):
        raise ConfigurationError(f"headers of a message to {topic!r} are {type(given).__qualname__}; give a dict or pairs") from None
