"""What the serializers of confluent-kafka write is what is read."""

from __future__ import annotations

import json
from typing import Any, cast

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.plugin.schemas.registryserver import RegistryServer
from tests.plugin.schemas.test_avro import ORDER
from tests.plugin.schemas.test_protobuf import Line, Order, Refund
from tests.tables import each

from ackwise.schemas import Avro, JsonSchema, Protobuf

#: Type checkers do not see how these are made.
AVRO: Any = AvroSerializer
JSON: Any = JSONSerializer
PROTOBUF: Any = ProtobufSerializer

OBJECT = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "string"}}})


def avro(client: Any) -> tuple[Any, Any, Any]:
    return AVRO(client, json.dumps(ORDER)), {"id": "a", "amount": 1}, Avro


def json_schema(client: Any) -> tuple[Any, Any, Any]:
    return JSON(OBJECT, client), {"id": "a"}, JsonSchema


def protobuf(kind: Any) -> Any:
    def serializer(client: Any) -> tuple[Any, Any, Any]:
        return PROTOBUF(kind, client), kind(id="a"), lambda url: Protobuf(url, kind)

    return serializer


@each(
    "made",
    [avro, json_schema, protobuf(Order), protobuf(Refund), protobuf(Line)],
    ids=["avro", "json", "first message", "second message", "nested message"],
)
async def test_what_the_serializers_of_confluent_write_is_read(server: RegistryServer, made: Any) -> None:
    client = cast(Any, SchemaRegistryClient.new_client({"url": "mock://"}))  # keeps in memory what a serializer registers
    serialize, value, decoder = made(client)
    raw = serialize(value, SerializationContext("orders", MessageField.VALUE))
    schema_id = int.from_bytes(raw[1:5], "big")
    found = client.get_schema(schema_id)
    server.register(schema_id, found.schema_str, found.schema_type)
    assert await decoder(server.url)(raw) == value
