"""Decoders for values whose schemas are in a Schema Registry."""

from ackwise.plugin.schemas import Avro as Avro
from ackwise.plugin.schemas import JsonSchema as JsonSchema
from ackwise.plugin.schemas import Protobuf as Protobuf
from ackwise.plugin.schemas import SchemaRegistry as SchemaRegistry
