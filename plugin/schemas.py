"""Decoders for values whose schemas are in a Schema Registry: `Avro`, `JsonSchema` and `Protobuf`.

    0x00, schema id (4 bytes, big-endian), payload
    0x00, schema id, message indexes (zigzag varints: their number, then each; a single 0 stands for [0]), payload    Protobuf

This framing is Confluent's "Wire format"; an id in a header, which newer serializers can write, is not supported. Any error of the
registry holds the messages: it is no evidence against their bytes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar, get_args, overload

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import CodecUnavailable, ConfigurationError
from ackwise.plugin.handlers.decoder import checked_into
from ackwise.plugin.settings.connecting import shown_url

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import AsyncSchemaRegistryClient, Schema
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
    from google.protobuf.message import Message

    M = TypeVar("M", bound=Message)
else:
    M = TypeVar("M")


_HEAD: Final = struct.Struct(">bI")


class NotFramed(ValueError):
    """Bytes that no serializer for a Schema Registry wrote. The text does not contain them."""


class Framed(NamedTuple):
    """A payload and the id of its schema."""

    schema_id: int
    payload: memoryview


def framed(raw: bytes) -> Framed:
    """Return payload and schema id of framed bytes. Raises `NotFramed`."""
    if len(raw) < _HEAD.size:
        raise NotFramed(f"{len(raw)} bytes are too few for a magic byte and a schema id")
    magic, schema_id = _HEAD.unpack_from(raw)
    if magic != 0:
        raise NotFramed("the first byte is not the magic byte 0 of a Schema Registry's serializer")
    return Framed(schema_id, memoryview(raw)[_HEAD.size :])


def indexed(payload: memoryview) -> tuple[tuple[int, ...], memoryview]:
    """Return the message indexes before a Protobuf payload, and the payload. Raises `NotFramed`."""
    number, rest = _zigzag(payload)
    if number == 0:
        return (0,), rest
    if number < 0 or number > len(rest):  # each takes a byte at least
        raise NotFramed("the message indexes end before the value does")
    indexes = []
    for _ in range(number):
        index, rest = _zigzag(rest)
        indexes.append(index)
    return tuple(indexes), rest


def _zigzag(data: memoryview) -> tuple[int, memoryview]:
    value = 0
    for place, byte in enumerate(data[:5]):  # 32 bits are in five bytes at most
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), data[place + 1 :]
    raise NotFramed("the message indexes end before the value does")


Unknown = Literal["hold", "dead-letter"]

#: Seconds for a schema with its references; less than the limit of an asynchronous decoder.
TIMEOUT: Final = 5.0

#: The registry's code for an unknown id; a plain 404 means a wrong address.
_NO_SCHEMA: Final = 40403


_FOR_READING: Final = frozenset({"READ", "WRITEREAD"})


class UnknownSchema(ValueError):
    """The registry has no schema of this id, and such messages shall be dead letters."""


class Registered(NamedTuple):
    """A registered schema, and the texts of its references, by the names that it uses."""

    text: str
    references: Mapping[str, str]


class SchemaRegistry:
    """A Schema Registry with Confluent's REST interface, for `Avro`, `JsonSchema` and `Protobuf`.

    `url` may name several of its servers, with commas between. `options` are properties of confluent-kafka's client, such as
    `{"basic.auth.user.info": "user:password"}` or `{"ssl.ca.location": "ca.pem"}`. `timeout` is for one schema with its
    references.

    While the registry returns no schema, messages are held: `CodecUnavailable`. This includes unknown ids: the registry may be the wrong
    one, or be restored later. With `unknown="dead-letter"` such messages become dead letters `undecodable`. The first request is sent for
    the first message. Raises `ConfigurationError`.
    """

    def __init__(
        self, url: str, *, options: Mapping[str, object] = MappingProxyType({}), timeout: float | str = TIMEOUT, unknown: Unknown = "hold"
    ) -> None:
        seconds = parse_duration(timeout, what="timeout of the schema registry")
        _check(url, seconds, unknown)
        self.address = ", ".join(map(shown_url, url.split(",")))
        self._timeout = seconds
        self._unknown = unknown
        # No retries: held messages are decoded again with back-off, and a stop does not wait for it.
        self._properties = {"timeout": seconds, "max.retries": 0, **options, "url": url}
        try:
            self._client()
        except (ValueError, TypeError, OSError) as error:
            raise ConfigurationError(
                f"the options of the schema registry {self.address} are refused ({type(error).__name__}): {', '.join(options)}; "
                "they are properties of confluent-kafka's client"
            ) from None

    async def schema(self, schema_id: int, kind: str, fmt: str | None = None) -> Registered:
        """Return the schema. Raises `CodecUnavailable`, `UnknownSchema`, or `ValueError` if it is not of `kind`."""
        try:
            async with asyncio.timeout(self._timeout), self._client() as client:
                found = await client.get_schema(schema_id, fmt=fmt)
                text = _text(found)
                references = {} if fmt else await _references(client, found)
        except Exception as error:  # any error of the client is about the registry, never about the message
            raise self._said(error, schema_id) from error
        _refuse_rules(found, schema_id)
        if (found.schema_type or "AVRO") != kind:
            raise ValueError(f"schema {schema_id} is of type {found.schema_type}, where {kind} is expected")
        return Registered(text, references)

    def _client(self) -> AsyncSchemaRegistryClient:
        with importing("registry"):
            from confluent_kafka.schema_registry import AsyncSchemaRegistryClient
        return AsyncSchemaRegistryClient(dict(self._properties))

    def _said(self, error: Exception, schema_id: int) -> Exception:
        status, code = getattr(error, "http_status_code", None), getattr(error, "error_code", None)
        if code == _NO_SCHEMA and self._unknown == "dead-letter":
            return UnknownSchema(f"the schema registry {self.address} knows no schema {schema_id}")
        return CodecUnavailable(f"schema {schema_id}: the schema registry {self.address} {_reason(error, status, code, self._timeout)}")


def _check(url: str, timeout: float, unknown: str) -> None:
    if not isinstance(url, str) or not all(one.strip().startswith(("http://", "https://")) for one in url.split(",")):
        raise ConfigurationError(
            'the URL of the schema registry does not start with http:// or https://; give one such as "http://registry:8081"'
        )
    if "@" in url:
        raise ConfigurationError(
            "the URL of the schema registry has a user in it; leave it out, and give options={'basic.auth.user.info': 'user:password'}"
        )
    if not 0 < timeout < 10:
        raise ConfigurationError(f"timeout of the schema registry is {timeout:g} s; it must be above 0 s and below 10 s")
    if unknown not in get_args(Unknown):
        raise ConfigurationError(f'unknown of the schema registry is {unknown!r}; give "hold" or "dead-letter"')


def _reason(error: Exception, status: int | None, code: int | None, timeout: float) -> str:
    """Return the fault of the registry and the remedy. Texts of its answers are not repeated."""
    if isinstance(error, TimeoutError):
        return f"did not answer within {timeout:g} s"
    if status in (401, 403):
        return f"refuses this worker (HTTP {status}); give it the right to read schemas, or other credentials in `options`"
    if code == _NO_SCHEMA:
        return 'does not know it; register or restore it, check whether this is the right registry, or give unknown="dead-letter"'
    if status is not None:
        return f"answered HTTP {status}"
    return f"gave no schema ({type(error).__name__})"


def _text(found: Schema) -> str:
    if not isinstance(found.schema_str, str) or not found.schema_str:
        raise ValueError("an answer without a schema")
    return found.schema_str


async def _references(client: AsyncSchemaRegistryClient, schema: Schema) -> dict[str, str]:
    """Return the texts of the references of `schema`, including indirect ones."""
    found: dict[str, str] = {}
    waiting = list(schema.references or ())
    while waiting:
        reference = waiting.pop()
        if not reference.name or not reference.subject or reference.version is None:
            raise ValueError("a reference that names no schema")
        if reference.name in found:
            continue
        version = await client.get_version(reference.subject, reference.version, deleted=True)
        found[reference.name] = _text(version.schema)
        waiting += version.schema.references or ()
    return found


def _refuse_rules(schema: Schema, schema_id: int) -> None:
    """Refuse a schema with rules for reading: they may decrypt or change values."""
    if (rules := schema.rule_set) is None:
        return
    for rule in (*(rules.domain_rules or ()), *(rules.encoding_rules or ())):
        if not rule.disabled and getattr(rule.mode, "value", rule.mode) in _FOR_READING:
            raise CodecUnavailable(
                f"schema {schema_id} has rules for reading, which are not run here; decode with a function that runs them"
            )


def unusable(schema_id: int, error: Exception) -> CodecUnavailable:
    """Return the error for an unusable schema; the message is not at fault."""
    return CodecUnavailable(f"schema {schema_id}, as the schema registry gives it, can't be used ({type(error).__name__}); fix it there")


@contextmanager
def importing(extra: str) -> Iterator[None]:
    """Turn a missing package into a `ConfigurationError` that names the extra."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"decoding with a schema registry needs {error.name}; pip install 'ackwise[{extra}]'") from None


def as_registry(registry: SchemaRegistry | str) -> SchemaRegistry:
    """Return the registry of a URL, or the given one."""
    return SchemaRegistry(registry) if isinstance(registry, str) else registry


T = TypeVar("T")

AvroSchema = str | Mapping[str, Any] | Sequence[Any]


class Avro(Generic[T]):
    """A decoder for `decode=`: Avro with the id of its schema in front, as serializers for a Schema Registry write it.

    `registry` is its URL or a `SchemaRegistry`. Values are dictionaries, numbers and texts as fastavro gives them, or of type `into`,
    checked by pydantic. With `reader`, a schema as JSON text or Python object, each value is resolved from its writer's schema to this
    one: fields are renamed by aliases, left out, or filled with defaults. Schemas are cached.

    A value that does not fit its schema, `reader` or `into` can't be decoded; for messages that are held instead see `SchemaRegistry`.
    Raises `ConfigurationError`.
    """

    @overload
    def __init__(
        self: Avro[Any], registry: SchemaRegistry | str, into: UnionType | None = None, *, reader: AvroSchema | None = None
    ) -> None: ...
    @overload
    def __init__(self, registry: SchemaRegistry | str, into: type[T], *, reader: AvroSchema | None = None) -> None: ...
    def __init__(self, registry: SchemaRegistry | str, into: Any = None, *, reader: AvroSchema | None = None) -> None:
        with importing("registry"):
            import fastavro
        self._read = fastavro.schemaless_reader
        self._registry = as_registry(registry)
        self._into: Callable[[Any], T] = checked_into(into, "Avro")
        self._reader = None if reader is None else _of_user(reader)
        self._writers: dict[int, Any] = {}

    async def __call__(self, raw: bytes) -> T:
        """Return the value. Raises `CodecUnavailable` while its schema is unavailable, any other error for invalid bytes."""
        schema_id, payload = framed(raw)
        if schema_id not in self._writers:
            self._writers[schema_id] = await self._writer(schema_id)
        return self._into(self._read(BytesIO(payload), self._writers[schema_id], self._reader))

    async def _writer(self, schema_id: int) -> Any:
        registered = await self._registry.schema(schema_id, "AVRO")
        try:
            return _parsed(registered)
        except Exception as error:  # any error of the parser is about the schema, never about the message
            raise unusable(schema_id, error) from error


def _of_user(reader: AvroSchema) -> Any:
    try:
        return _parsed(Registered(reader if isinstance(reader, str) else json.dumps(reader), {}))
    except Exception as error:  # noqa: BLE001  # the parser raises many kinds
        raise ConfigurationError(f"reader of Avro is not a valid schema ({type(error).__name__}: {error})") from None


def _parsed(registered: Registered) -> Any:
    from fastavro.repository import AbstractSchemaRepository
    from fastavro.schema import load_schema

    class Repository(AbstractSchemaRepository):
        """The schema under the empty name, and its references."""

        def load(self, name: str) -> Any:
            return json.loads(registered.references[name] if name else registered.text)

    return load_schema("", repo=Repository())


class Misfit(ValueError):
    """A value that does not fit its schema. The text does not contain the value."""


class JsonSchema(Generic[T]):
    """A decoder for `decode=`: JSON with the id of its schema in front, as serializers for a Schema Registry write it.

    `registry` is its URL or a `SchemaRegistry`. Each value is checked with its writer's schema, and is parsed JSON, or of type `into`,
    checked by pydantic. Schemas are cached; remote references of a schema are never fetched.

    A value that does not fit can't be decoded; for messages that are held instead see `SchemaRegistry`. Raises `ConfigurationError`.
    """

    @overload
    def __init__(self: JsonSchema[Any], registry: SchemaRegistry | str, into: UnionType | None = None) -> None: ...
    @overload
    def __init__(self, registry: SchemaRegistry | str, into: type[T]) -> None: ...
    def __init__(self, registry: SchemaRegistry | str, into: Any = None) -> None:
        with importing("json-schema"):
            import jsonschema  # noqa: F401  # it is there
        self._registry = as_registry(registry)
        self._into: Callable[[Any], T] = checked_into(into, "JsonSchema")
        self._validators: dict[int, Any] = {}

    async def __call__(self, raw: bytes) -> T:
        """Return the value. Raises `CodecUnavailable` while its schema is unavailable, any other error for invalid bytes."""
        schema_id, payload = framed(raw)
        if schema_id not in self._validators:
            self._validators[schema_id] = await self._validator(schema_id)
        value = json.loads(bytes(payload))
        self._check(value, schema_id)
        return self._into(value)

    def _check(self, value: object, schema_id: int) -> None:
        from referencing.exceptions import Unresolvable

        try:
            wrong = next(self._validators[schema_id].iter_errors(value), None)
        except (Unresolvable, re.error) as error:  # a schema with a broken reference, or a pattern that Python can't compile
            raise unusable(schema_id, error) from error
        if wrong is not None:
            raise Misfit(f"it does not fit schema {schema_id}: {wrong.validator} of {'/'.join(map(str, wrong.absolute_schema_path))}")

    async def _validator(self, schema_id: int) -> Any:
        registered = await self._registry.schema(schema_id, "JSON")
        try:
            return _validator_of(registered)
        except Exception as error:  # an invalid schema raises many kinds
            raise unusable(schema_id, error) from error


def _validator_of(registered: Registered) -> Any:
    from jsonschema.validators import Draft7Validator, validator_for
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    schema = json.loads(registered.text)
    kind = validator_for(schema, default=Draft7Validator)
    kind.check_schema(schema)
    known: Registry[Any] = Registry()  # fetches nothing
    for name, text in registered.references.items():
        known = known.with_resource(name, Resource.from_contents(json.loads(text), default_specification=DRAFT7))
    return kind(schema, registry=known)


class OtherMessage(ValueError):
    """The bytes are of another message type than the handler's."""


class Protobuf(Generic[M]):
    """A decoder for `decode=`: Protobuf with the id of its schema in front, as serializers for a Schema Registry write it.

    `registry` is its URL or a `SchemaRegistry`; `message` is the class of the values, made by protoc. The schema tells which message of
    its file was written: the bytes of another one could be parsed as this one. Schemas are cached.

    Other messages and invalid bytes can't be decoded; for messages that are held instead see `SchemaRegistry`. The registry must support
    `format=serialized`, as Confluent's does. Raises `ConfigurationError`.
    """

    def __init__(self, registry: SchemaRegistry | str, message: type[M]) -> None:
        with importing("protobuf"):
            from google.protobuf.message import Message
        if not isinstance(message, type) or not issubclass(message, Message) or getattr(message, "DESCRIPTOR", None) is None:
            raise ConfigurationError(f"message of Protobuf is {message!r}; give a class that protoc made")
        self._registry = as_registry(registry)
        self._message = message
        self._files: dict[int, FileDescriptorProto] = {}

    async def __call__(self, raw: bytes) -> M:
        """Return the message. Raises `CodecUnavailable` while its schema is unavailable, any other error for invalid bytes."""
        schema_id, payload = framed(raw)
        indexes, payload = indexed(payload)
        if schema_id not in self._files:
            self._files[schema_id] = await self._file(schema_id)
        written, wanted = _name(self._files[schema_id], indexes), self._message.DESCRIPTOR.full_name
        if written != wanted:
            raise OtherMessage(f"it is {written or 'no message'} of schema {schema_id}, and not {wanted}")
        value = self._message()
        value.ParseFromString(bytes(payload))
        return value

    async def _file(self, schema_id: int) -> Any:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        registered = await self._registry.schema(schema_id, "PROTOBUF", fmt="serialized")
        try:
            return FileDescriptorProto.FromString(base64.b64decode(registered.text, validate=True))
        except Exception as error:  # any error of the parser is about the schema, never about the message
            raise unusable(schema_id, error) from error


def _name(file: FileDescriptorProto, indexes: tuple[int, ...]) -> str | None:
    """Return the full name of the message at `indexes`; `None` if there is none."""
    names = [file.package] if file.package else []
    level: Any = file.message_type
    for index in indexes:
        if not 0 <= index < len(level):
            return None
        found: DescriptorProto = level[index]
        names.append(found.name)
        level = found.nested_type
    return ".".join(names)
