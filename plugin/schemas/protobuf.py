"""Protobuf: messages whose schemas are in a Schema Registry."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.schemas.framing import framed, indexed
from ackwise.plugin.schemas.schemaregistry import SchemaRegistry, as_registry, importing, unusable

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
    from google.protobuf.message import Message

    M = TypeVar("M", bound=Message)
else:
    M = TypeVar("M")

__all__ = ["OtherMessage", "Protobuf"]


class OtherMessage(ValueError):
    """Bytes of a message that is not the one that the handler takes."""


class Protobuf(Generic[M]):
    """A decoder for `decode=`: Protobuf with the id of its schema in front, as serializers for a Schema Registry write it.

    `registry` is its URL or a `SchemaRegistry`; `message` is a class that protoc made, and what values are. The registry is asked which
    message of its file was written, since the bytes of another one could be read as this one. Schemas are asked for once and kept.

    Other messages and bad bytes can't be decoded; `SchemaRegistry` says when messages are held instead. The registry has to know
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
        """The message. Raises `CodecUnavailable` while its schema can't be had, anything else for bytes that are bad."""
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
        except Exception as error:  # of the parser: it is about the schema, never about the message
            raise unusable(schema_id, error) from error


def _name(file: FileDescriptorProto, indexes: tuple[int, ...]) -> str | None:
    """The full name of the message that `indexes` lead to; `None` if they lead to none."""
    names = [file.package] if file.package else []
    level: Any = file.message_type
    for index in indexes:
        if not 0 <= index < len(level):
            return None
        found: DescriptorProto = level[index]
        names.append(found.name)
        level = found.nested_type
    return ".".join(names)
