"""Decoders of a handler's values: from its annotation, or from the user's function."""

from __future__ import annotations

import builtins
import inspect
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Collection
from typing import Annotated, Any, Final, Literal, NamedTuple, Union

import pydantic

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.keys import innermost
from ackwise.middleware.message.message import Message

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

    It takes the raw value, or a `Message[bytes]` if its annotation asks for that; only the latter gets a null value, which otherwise is
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
    """The decoder of a `msgspec.Struct`, from JSON; the user who has such a class has imported it."""
    msgspec = sys.modules.get("msgspec")
    kind = bare(payload)
    if msgspec is None or not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return None
    decode: Decoder = msgspec.json.Decoder(payload).decode
    return _values(decode, types.NoneType in typing.get_args(payload))


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
