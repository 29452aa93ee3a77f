"""Avro from a Schema Registry: values as they were written, resolved to the schema of the reader."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import fastavro
import pydantic
import pytest
from tests.plugin.schemas.registryserver import RegistryServer
from tests.tables import each

from ackwise.errors import CodecUnavailable, ConfigurationError
from ackwise.plugin.schemas import NotFramed
from ackwise.schemas import Avro, SchemaRegistry

ORDER = {"type": "record", "name": "shop.Order", "fields": [{"name": "id", "type": "string"}, {"name": "amount", "type": "int"}]}


def written(schema_id: int, schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return struct.pack(">bI", 0, schema_id) + stream.getvalue()


async def test_a_value_is_what_was_written_and_its_schema_is_asked_for_once(server: RegistryServer) -> None:
    server.register(7, ORDER)
    decode = Avro(server.url)
    for amount in (1, 2):
        assert await decode(written(7, ORDER, {"id": "a", "amount": amount})) == {"id": "a", "amount": amount}
    assert server.asked == ["/schemas/ids/7"]


async def test_values_are_of_the_type_that_is_asked_for(server: RegistryServer) -> None:
    @dataclass
    class Order:
        id: str
        amount: Decimal

    server.register(7, ORDER)
    assert await Avro(server.url, Order)(written(7, ORDER, {"id": "a", "amount": 3})) == Order("a", Decimal(3))
    with pytest.raises(pydantic.ValidationError):
        await Avro(server.url, dict[str, int])(written(7, ORDER, {"id": "a", "amount": 3}))


async def test_a_reader_gets_values_of_older_and_newer_writers(server: RegistryServer) -> None:
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string"}]}
    reader = {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "number", "type": "string", "aliases": ["id"]},
            {"name": "amount", "type": "long"},
            {"name": "currency", "type": "string", "default": "EUR"},
        ],
    }
    server.register(7, ORDER)
    server.register(8, newer)
    decode = Avro(server.url, reader=reader)
    expected = {"number": "a", "amount": 1, "currency": "EUR"}
    assert await decode(written(7, ORDER, {"id": "a", "amount": 1})) == expected
    assert await decode(written(8, newer, {"id": "a", "amount": 1, "note": "x"})) == expected


async def test_schemas_that_a_schema_refers_to_are_fetched_as_well_each_once(server: RegistryServer) -> None:
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "int"}]}
    line = {"type": "record", "name": "shop.Line", "fields": [{"name": "price", "type": "shop.Money"}]}
    basket = {"type": "record", "name": "shop.Basket", "fields": [
        {"name": "lines", "type": {"type": "array", "items": "shop.Line"}}, {"name": "total", "type": "shop.Money"}]}  # fmt: skip
    to_money = {"name": "shop.Money", "subject": "money", "version": 1}
    server.register(1, money)
    server.register(2, line, references=[to_money])
    server.register(3, basket, references=[{"name": "shop.Line", "subject": "line", "version": 4}, to_money])
    server.register_version("money", 1, 1)
    server.register_version("line", 4, 2)
    whole = {**basket, "fields": [
        {"name": "lines", "type": {"type": "array", "items": {**line, "fields": [{"name": "price", "type": money}]}}},
        {"name": "total", "type": "shop.Money"}]}  # fmt: skip
    value = {"lines": [{"price": {"cents": 5}}], "total": {"cents": 5}}
    assert await Avro(server.url)(written(3, whole, value)) == value
    assert len(server.asked) == 3


@each(
    "raw",
    [b"", b"\x00\x00\x00", b'{"id": "a"}', b"\x01" + bytes(20)],
    ids=["nothing", "too short", "JSON", "another magic byte"],
)
async def test_bytes_without_the_frame_are_bad_and_nobody_is_asked(server: RegistryServer, raw: bytes) -> None:
    with pytest.raises(NotFramed):
        await Avro(server.url)(raw)
    assert server.asked == []


async def test_bytes_that_end_too_early_are_bad(server: RegistryServer) -> None:
    server.register(7, ORDER)
    with pytest.raises((EOFError, IndexError)):
        await Avro(server.url)(written(7, ORDER, {"id": "order", "amount": 1})[:-3])


async def test_a_schema_of_another_kind_makes_bytes_bad(server: RegistryServer) -> None:
    server.register(7, {"type": "object"}, "JSON")
    with pytest.raises(ValueError, match=r"schema 7 is of type JSON, where AVRO is expected"):
        await Avro(server.url)(written(7, ORDER, {"id": "a", "amount": 1}))


@each("schema", ['{"type": "nonsense"}', "no JSON", '{"type": "record", "name": "A", "fields": [{"name": "b", "type": "B"}]}'])
async def test_a_schema_that_can_not_be_used_holds_and_is_asked_for_again(server: RegistryServer, schema: str) -> None:
    server.register(7, schema)
    decode, raw = Avro(server.url), written(7, ORDER, {"id": "a", "amount": 1})
    with pytest.raises(CodecUnavailable, match=r"^schema 7, as the schema registry gives it, can't be used"):
        await decode(raw)
    server.register(7, ORDER)
    assert await decode(raw) == {"id": "a", "amount": 1}


@each(
    ("arguments", "sentence"),
    [
        ({"reader": '{"type": "nonsense"}'}, r"^reader of Avro is not a valid schema"),
        ({"into": object()}, r"^Avro can't make values of type"),
    ],
)
def test_what_can_not_work_is_refused_at_once(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Avro(SchemaRegistry("http://registry:8081"), **arguments)
