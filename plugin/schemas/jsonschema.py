"""JSON Schema: JSON values whose schemas are in a Schema Registry."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import UnionType
from typing import Any, Generic, TypeVar, overload

from ackwise.plugin.schemas.framing import framed
from ackwise.plugin.schemas.into import checked_into
from ackwise.plugin.schemas.schemaregistry import Registered, SchemaRegistry, as_registry, importing, unusable

__all__ = ["JsonSchema", "Misfit"]

T = TypeVar("T")


class Misfit(ValueError):
    """A value that does not fit the schema that it names. Nothing of the value is in the text."""


class JsonSchema(Generic[T]):
    """A decoder for `decode=`: JSON with the id of its schema in front, as serializers for a Schema Registry write it.

    `registry` is its URL or a `SchemaRegistry`. Each value is checked by the schema that it was written with, and is what JSON gives, or
    of type `into`, checked by pydantic. Schemas are asked for once and kept; nothing else is fetched, whatever a schema refers to.

    What fits neither can't be decoded; `SchemaRegistry` says when messages are held instead. Raises `ConfigurationError`.
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
        """The value. Raises `CodecUnavailable` while its schema can't be had, anything else for bytes that are bad."""
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
        except (Unresolvable, re.error) as error:  # a schema that refers to nothing, or has a pattern that Python can't read
            raise unusable(schema_id, error) from error
        if wrong is not None:
            raise Misfit(f"it does not fit schema {schema_id}: {wrong.validator} of {'/'.join(map(str, wrong.absolute_schema_path))}")

    async def _validator(self, schema_id: int) -> Any:
        registered = await self._registry.schema(schema_id, "JSON")
        try:
            return _validator_of(registered)
        except Exception as error:  # a schema that is none, in many ways
            raise unusable(schema_id, error) from error


def _validator_of(registered: Registered) -> Any:
    from jsonschema.validators import Draft7Validator, validator_for
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    schema = json.loads(registered.text)
    kind = validator_for(schema, default=Draft7Validator)
    kind.check_schema(schema)
    known: Registry[Any] = Registry()  # one that fetches nothing
    for name, text in registered.references.items():
        known = known.with_resource(name, Resource.from_contents(json.loads(text), default_specification=DRAFT7))
    return kind(schema, registry=known)
