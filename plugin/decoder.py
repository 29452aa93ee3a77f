"""Decoder: how the values of a handler are made, by its annotation or by a function of the user's."""

from __future__ import annotations

import builtins
import sys
import types
import typing
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

import pydantic

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message import Message
from ackwise.plugin.signature import UNTYPED, bare, first_parameter, is_async, spelled

__all__ = ["Decoder", "Decoding", "decoder_of", "own_decoding"]

Decoder = Callable[[Any], object]
"""Payload to value; raises anything for what can't be decoded, and `CodecUnavailable` for what can't be decoded now."""


class Decoding(NamedTuple):
    """A decoder, what it takes, and whether what it returns has to be awaited."""

    decode: Decoder
    takes: Literal["value", "message"] = "value"
    is_async: bool = False


def decoder_of(name: str, annotation: Any, model: Any = None) -> Decoder:
    """How handler `name` gets its values: by `annotation`, or by `model` where that says nothing. Raises `ConfigurationError`."""
    payload = annotation if model is None else model
    if model is not None and annotation not in (UNTYPED, Any, model):
        raise ConfigurationError(f"handler {name!r} takes {spelled(annotation)} and was given model={spelled(model)}; give one of them")
    if payload is UNTYPED:
        payload = bytes
    if (of_struct := _of_struct(payload)) is not None:
        return of_struct
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(payload)
    except (
        pydantic.errors.PydanticSchemaGenerationError,
        pydantic.errors.PydanticUndefinedAnnotation,
        pydantic.PydanticUserError,
    ) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigurationError(
            f"handler {name!r} takes {spelled(payload)}, which pydantic can't decode ({reason}); take a model or bytes"
        ) from None
    match bare(payload):
        case builtins.bytes:
            return adapter.validator.validate_python  # without the wrapper that takes as long again
        case builtins.str:
            return lambda raw: adapter.validate_python(None if raw is None else raw.decode())
        case _:
            return lambda raw: adapter.validate_python(None) if raw is None else adapter.validate_json(raw)


def own_decoding(name: str, decode: Callable[[Any], Any], payload: Any, model: Any = None) -> Decoding:
    """The decoding of handler `name` by the user's function `decode`, whose values are of type `payload` as far as people know.

    It takes the raw value, or a `Message[bytes]` if its annotation says so; only the latter is asked about a null value, which otherwise is
    `None` where the annotation of the handler admits that, and can't be decoded where it does not. Raises `ConfigurationError`.
    """
    if model is not None:
        raise ConfigurationError(f"handler {name!r} was given model={spelled(model)} and a decode; give one of them")
    if not callable(decode):
        raise ConfigurationError(f"decode of handler {name!r} is {decode!r}; give a function from bytes to the value")
    try:
        annotation = first_parameter(decode, what=f"decode of handler {name!r}").annotation
    except ValueError:  # one in C has no signature
        annotation = bytes
    waits = is_async(decode)
    if (typing.get_origin(annotation) or annotation) is Message:
        return Decoding(decode, "message", waits)
    admits_none = payload in (UNTYPED, Any, object, None, types.NoneType) or types.NoneType in typing.get_args(payload)
    return Decoding((_values_async if waits else _values)(decode, admits_none), "value", waits)


def _values(decode: Callable[[bytes], Any], admits_none: bool) -> Decoder:
    def decode_value(raw: bytes | None) -> object:
        if raw is None:
            return _admitted(admits_none)
        return decode(raw)

    return decode_value


def _values_async(decode: Callable[[bytes], Awaitable[Any]], admits_none: bool) -> Decoder:
    async def decode_value(raw: bytes | None) -> object:
        if raw is None:
            return _admitted(admits_none)
        return await decode(raw)

    return decode_value


def _admitted(admits_none: bool) -> object:
    """A null value, where the handler admits one."""
    if not admits_none:
        raise ValueError("a null value, which the annotation of the handler does not admit")
    return None


def _of_struct(payload: Any) -> Decoder | None:
    """The decoder of a `msgspec.Struct`, from JSON; whoever has such a class has imported it."""
    msgspec = sys.modules.get("msgspec")
    kind = bare(payload)
    if msgspec is None or not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return None
    decode: Decoder = msgspec.json.Decoder(payload).decode
    return _values(decode, types.NoneType in typing.get_args(payload))
