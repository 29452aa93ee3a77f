"""Keys: the plain values that user functions may return, and the identity of a message for deduplication. Pure.

A key is a `str`, `bytes`, `int`, `bool`, `None`, `UUID`, `Decimal`, `date` or `datetime` and of no subclass, a member of an `Enum`, or a
tuple of these. So comparing two keys runs no user code.

The dedup id is the business key, otherwise the message id in the configured header, otherwise the origin coordinates with the record's
timestamp, so that a topic that was deleted and made again does not look like messages already seen.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import struct
import types
import typing
import zlib
from collections.abc import Callable, Hashable, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, NewType, Union
from uuid import UUID

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.usercode import Raised, Returned, Stops, called, class_name, close_coroutine

Key = str | bytes | int | UUID | Decimal | date | enum.Enum | tuple[Any, ...] | None
"""What a key function may return; see above."""


class DefaultKey(enum.Enum):
    """What a key function may return instead of a key."""

    DEFAULT_KEY = "DEFAULT_KEY"

    def __repr__(self) -> str:
        return self.name


DEFAULT_KEY: Final = DefaultKey.DEFAULT_KEY
"""Instead of a key of `Dedup`: the message is known by the coordinates of its origin record, as without a key function."""

_SCALARS: Final[frozenset[type]] = frozenset({str, bytes, int, bool, type(None), UUID, date})
_TYPES: Final[tuple[type, ...]] = (*_SCALARS, Decimal, datetime, tuple)

#: Tuples in each other, at most.
_DEPTH: Final = 16

_ALLOWED: Final = "a key is a str, bytes, int, bool, None, UUID, Decimal, date or datetime, a member of an Enum, or a tuple of these"


class _Member(typing.NamedTuple):
    """A member of an `Enum`, as class and name."""

    module: str
    class_name: str
    name: str

    def __repr__(self) -> str:
        return f"{self.class_name}.{self.name}"


def key_from(function: Callable[[Any], object], message: object, *, may_be_default: bool = False) -> Hashable | Raised | Stops:
    """The key that `function` finds for `message`, in a form that is compared by Python itself; what is no key counts as raised.

    `may_be_default`: `DEFAULT_KEY` may stand for one.
    """
    found = called(function, message)
    if not isinstance(found, Returned):
        return found
    if found.value is DEFAULT_KEY:
        return (
            DEFAULT_KEY if may_be_default else Raised(TypeError(f"it returned DEFAULT_KEY, which only a key of Dedup may be; {_ALLOWED}"))
        )
    key = called(_plain, found.value)
    return key.value if isinstance(key, Returned) else Raised(key.error)


def identifies(key: Hashable) -> bool:
    """Return whether a key of `key_from` is one: `None`, an empty text, and a tuple of nothing else are not."""
    if type(key) is tuple:
        return any(map(identifies, key))
    return key is not None and key not in ("", b"")


def packed(key: Hashable) -> bytes:
    """A key of `key_from` as bytes: the type and the length before each part, so that no other key has these bytes."""
    match key:
        case tuple():
            tag, data = b"m" if type(key) is _Member else b"t", b"".join(map(packed, key))
        case str():
            tag, data = b"s", key.encode("utf-8", "surrogatepass")
        case bytes():
            tag, data = b"b", key
        case UUID():
            tag, data = b"u", key.bytes
        case Decimal():
            tag, data = b"d", _decimal_bytes(key)
        case date():
            tag, data = type(key).__name__.encode(), key.isoformat().encode()
        case bool() | None:
            tag, data = b"c", repr(key).encode()
        case _:
            tag, data = b"i", b"%x" % typing.cast(int, key)
    return b"%s%d:%s" % (tag, len(data), data)


def _plain(value: object, depth: int = 0) -> Hashable:
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is tuple and depth < _DEPTH:
        return tuple(_plain(each, depth + 1) for each in typing.cast("tuple[object, ...]", value))
    if kind is datetime:
        when = typing.cast(datetime, value)
        return when if when.tzinfo is None else when.astimezone(UTC)  # else its zone is asked at each look
    if kind is Decimal and typing.cast(Decimal, value).is_finite():
        return typing.cast(Decimal, value)
    if issubclass(kind, enum.Enum) and type(name := object.__getattribute__(value, "_name_")) is str:
        return _Member(str(kind.__module__), str(kind.__qualname__), name)
    close_coroutine(value)
    raise TypeError(f"it returned a {class_name(value)}; {_ALLOWED}")


def _decimal_bytes(number: Decimal) -> bytes:
    """The same for numbers that are equal, such as 1.0 and 1.00."""
    sign, digits, exponent = number.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    return f"{'-' if sign else ''}{kept}e{int(exponent) + len(text) - len(kept)}".encode() if kept else b"0"


def check_key_function(function: Callable[..., Any], what: str) -> None:
    """Refuse a function that can find no key, as far as its definition shows that. Raises `ConfigurationError`."""
    refuse_async(function, what)
    annotation = _returned(function)
    if not _may_be_key(annotation):
        raise ConfigurationError(f"{what} returns {_spelled(annotation)} by its annotation; {_ALLOWED}")


def innermost(function: Any) -> Any:
    """The function inside of decorators, methods and partials, or the object whose class is callable."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return function


def refuse_async(function: object, what: str) -> None:
    """Refuse a function that would have to be awaited, or that yields. Raises `ConfigurationError`."""
    for each in (function, getattr(type(function), "__call__", None)):  # noqa: B004  # an object whose class is callable
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            raise ConfigurationError(f"{what} is an `async def`, and is not awaited; write it as a plain `def`")
        if inspect.isgeneratorfunction(each):
            raise ConfigurationError(f"{what} is a generator; let it return what it finds")


def _returned(function: Any) -> Any:
    """Return the annotated return type; `Any` if there is none, or it can't be resolved."""
    function = innermost(function)
    if isinstance(function, type):
        return Any
    if not inspect.isroutine(function):
        function = type(function).__call__
    annotation = getattr(function, "__annotations__", {}).get("return", Any)
    if not isinstance(annotation, str):
        return annotation
    only = types.SimpleNamespace(__annotations__={"return": annotation})
    try:
        return typing.get_type_hints(only, globalns=getattr(function, "__globals__", {}), include_extras=True)["return"]
    except Exception:  # noqa: BLE001  # a name that only type checkers see: what is returned shows
        return Any


def _may_be_key(annotation: Any) -> bool:
    """Return whether a value of this type can be a key."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        some = [each for each in arguments if each is not types.NoneType]
        return not some or any(map(_may_be_key, some))
    if origin is Annotated:
        return _may_be_key(arguments[0])
    if origin is tuple:
        return all(_may_be_key(each) for each in arguments if each is not ...)
    if isinstance(annotation, NewType):
        return _may_be_key(annotation.__supertype__)
    if annotation is Any:
        return True
    kind: Any = origin or annotation
    if not inspect.isclass(kind):
        return True
    try:
        return issubclass(kind, enum.Enum) or any(issubclass(each, kind) for each in _TYPES)
    except TypeError:  # a protocol that can't be checked
        return True


def _spelled(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


_COORDINATES = struct.Struct(">iqq")
_HASH = struct.Struct(">q")


def business_id(key: Hashable) -> bytes:
    """The dedup id of a business key of `key_from`; a text and its UTF-8 bytes are the same key."""
    if isinstance(key, str):
        return b"k" + key.encode("utf-8", "surrogatepass")
    return b"k" + key if isinstance(key, bytes) else b"v" + packed(key)


def order_hash(key: Hashable) -> int | None:
    """32 bits of a hash of a key by which messages are in order, signed and above the least: `None` for one without order.

    The same in every process. Two keys may share one.
    """
    if key is None:
        return None
    found = zlib.crc32(business_id(key))
    return max(found - (1 << 32) if found >> 31 else found, -(2**31) + 1)


def message_id(topic: str, header: bytes) -> bytes:
    """The dedup id of a message id in a header, of a message that was written to `topic`: on another topic it is another message."""
    name = topic.encode()
    return b"h" + len(name).to_bytes(4, "big") + name + header


def coordinates_id(topic: str, partition: int, offset: int, timestamp_ms: int) -> bytes:
    """The dedup id of a record that has no other."""
    return b"o" + _COORDINATES.pack(partition, offset, timestamp_ms) + topic.encode()


class Identity:
    """Claim ids for one handler of one group: blake2b-128 over namespace, group, handler and dedup id.

    The dedup epoch and a replay id are mixed in afterwards, so that `hash` stays the same across an intended replay.
    Fields carry their length: no choice of names makes two handlers answer for each other.
    """

    __slots__ = ("_prefix", "_salt", "is_salted")

    def __init__(self, namespace: str, group: str, handler: str, epoch: int = 0) -> None:
        self._prefix = hashlib.blake2b(digest_size=16)
        for name in (namespace, group, handler):
            data = name.encode()
            self._prefix.update(len(data).to_bytes(4, "big") + data)
        self._salt = b"" if epoch == 0 else b"e" + epoch.to_bytes(8, "big", signed=True)
        self.is_salted = epoch != 0  #: a dedup epoch is mixed in, so that a hash is not the start of its claim id

    def of_coordinates(self, topic: str, partition: int, offsets: Iterable[int], timestamps_ms: Iterable[int]) -> list[bytes]:
        """The claim ids of records that have no other dedup id, before a dedup epoch is mixed in."""
        tail = topic.encode()
        empty, pack, found = self._prefix.copy, struct.Struct(f">ciqq{len(tail)}s").pack, []
        for offset, timestamp_ms in zip(offsets, timestamps_ms, strict=True):
            digest = empty()
            digest.update(pack(b"o", partition, offset, timestamp_ms, tail))
            found.append(digest.digest())
        return found

    def of(self, dedup_id: bytes, replay_id: bytes | None = None) -> tuple[bytes, int]:
        """`(claim id, hash)`: 16 bytes, and the first 8 of the id without epoch and replay id as a signed integer."""
        digest = self._prefix.copy()
        digest.update(dedup_id)
        claim = base = digest.digest()
        if salt := self._salt if replay_id is None else self._salt + b"r" + replay_id:
            claim = hashlib.blake2b(base + salt, digest_size=16).digest()
        return claim, _HASH.unpack_from(base)[0]
