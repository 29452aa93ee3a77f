"""Avro: values whose schemas are in a Schema Registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from types import UnionType
from typing import Any, Generic, TypeVar, overload

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.schemas.framing import framed
from ackwise.plugin.schemas.into import checked_into
from ackwise.plugin.schemas.schemaregistry import Registered, SchemaRegistry, as_registry, importing, unusable

__all__ = ["Avro"]

T = TypeVar("T")

AvroSchema = str | Mapping[str, Any] | Sequence[Any]


class Avro(Generic[T]):
    """A decoder for `decode=`: Avro with the id of its schema in front, as serializers for a Schema Registry write it.

    `registry` is its URL or a `SchemaRegistry`. Values are dictionaries, numbers and texts as fastavro gives them, or of type `into`,
    checked by pydantic. With `reader`, a schema as JSON text or as Python has it, each value is resolved from the schema that it was
    written with to this one: fields are renamed by aliases, left out, or filled with their defaults. Schemas are asked for once and kept.

    What does not fit its schema, `reader` or `into` can't be decoded; `SchemaRegistry` says when messages are held instead. Raises
    `ConfigurationError`.
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
        """The value. Raises `CodecUnavailable` while its schema can't be had, anything else for bytes that are bad."""
        schema_id, payload = framed(raw)
        if schema_id not in self._writers:
            self._writers[schema_id] = await self._writer(schema_id)
        return self._into(self._read(BytesIO(payload), self._writers[schema_id], self._reader))

    async def _writer(self, schema_id: int) -> Any:
        registered = await self._registry.schema(schema_id, "AVRO")
        try:
            return _parsed(registered)
        except Exception as error:  # of the parser, of any kind: it is about the schema, never about the message
            raise unusable(schema_id, error) from error


def _of_user(reader: AvroSchema) -> Any:
    try:
        return _parsed(Registered(reader if isinstance(reader, str) else json.dumps(reader), {}))
    except Exception as error:  # noqa: BLE001  # the parser raises many kinds
        raise ConfigurationError(f"reader of Avro is no schema that can be used ({type(error).__name__}: {error})") from None


def _parsed(registered: Registered) -> Any:
    from fastavro.repository import AbstractSchemaRepository
    from fastavro.schema import load_schema

    class Repository(AbstractSchemaRepository):
        """The schema itself under no name, and what it refers to."""

        def load(self, name: str) -> Any:
            return json.loads(registered.references[name] if name else registered.text)

    return load_schema("", repo=Repository())
