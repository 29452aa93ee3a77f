"""Protobuf from a Schema Registry: the message that was written is the one that the handler takes, or it is bad."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from tests.plugin.schemas.registryserver import RegistryServer
from tests.tables import each

from ackwise.errors import CodecUnavailable, ConfigurationError
from ackwise.plugin.schemas import NotFramed, OtherMessage
from ackwise.schemas import Protobuf


def message(name: str, *nested: DescriptorProto) -> DescriptorProto:
    number = FieldDescriptorProto(name="id", number=1, type=FieldDescriptorProto.TYPE_STRING, label=FieldDescriptorProto.LABEL_OPTIONAL)
    return DescriptorProto(name=name, field=[number], nested_type=nested)


FILE = FileDescriptorProto(
    name="shop.proto", package="shop", syntax="proto3", message_type=[message("Order", message("Line")), message("Refund")]
)
POOL = DescriptorPool()
POOL.Add(FILE)
Order, Line, Refund = (GetMessageClass(POOL.FindMessageTypeByName(f"shop.{name}")) for name in ("Order", "Order.Line", "Refund"))


def written(indexes: bytes, value: Any) -> bytes:
    payload: bytes = value.SerializeToString()
    return struct.pack(">bI", 0, 7) + indexes + payload


@pytest.fixture
def registry(server: RegistryServer) -> RegistryServer:
    server.register(7, base64.b64encode(FILE.SerializeToString()).decode(), "PROTOBUF")
    return server


@each(
    ("kind", "indexes"),
    [(Order, b"\x00"), (Order, b"\x02\x00"), (Refund, b"\x02\x02"), (Line, b"\x04\x00\x00")],
    ids=["short", "first", "second", "nested"],
)
async def test_the_message_that_was_written_is_read(registry: RegistryServer, kind: type[Any], indexes: bytes) -> None:
    registry.asked.clear()
    decode = Protobuf(registry.url, kind)
    assert await decode(written(indexes, kind(id="a"))) == kind(id="a")
    assert await decode(written(indexes, kind(id="b"))) == kind(id="b")
    assert registry.asked == ["/schemas/ids/7?format=serialized"]


@each(("indexes", "found"), [(b"\x02\x02", "shop.Refund"), (b"\x02\x06", "no message"), (b"\x04\x00\x00", r"shop.Order.Line")])
async def test_another_message_is_bad_though_its_bytes_could_be_read(registry: RegistryServer, indexes: bytes, found: str) -> None:
    with pytest.raises(OtherMessage, match=rf"^it is {found} of schema 7, and not shop.Order$"):
        await Protobuf(registry.url, Order)(written(indexes, Refund(id="a")))


@each("indexes", [b"", b"\x04\x00", b"\xff\xff\xff\xff\xff\x01", b"\x01", b"\x80"])
async def test_indexes_that_lead_nowhere_are_bad(registry: RegistryServer, indexes: bytes) -> None:
    with pytest.raises(NotFramed):
        await Protobuf(registry.url, Order)(written(indexes, Order()))


async def test_bytes_that_can_not_be_read_are_bad(registry: RegistryServer) -> None:
    with pytest.raises(DecodeError):
        await Protobuf(registry.url, Order)(written(b"\x00", Order(id="order"))[:-2])


async def test_a_registry_that_gives_the_text_of_a_file_holds(server: RegistryServer) -> None:
    server.register(7, 'syntax = "proto3";', "PROTOBUF")
    with pytest.raises(CodecUnavailable, match=r"^schema 7, as the schema registry gives it, can't be used"):
        await Protobuf(server.url, Order)(written(b"\x00", Order(id="a")))


@each("kind", [str, "Order", Order(id="a")])
def test_what_is_no_class_of_protoc_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"give a class that protoc made$"):
        Protobuf("http://registry", kind)
