"""JSON Schema from a Schema Registry: each value is checked by the schema that it was written with."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

import pytest
from tests.plugin.schemas.registryserver import RegistryServer
from tests.tables import each

from ackwise.errors import CodecUnavailable
from ackwise.plugin.schemas import Misfit
from ackwise.schemas import JsonSchema

ORDER = {"type": "object", "properties": {"id": {"type": "string"}, "price": {"$ref": "money.json"}}, "required": ["id"]}
MONEY = {"type": "object", "properties": {"cents": {"type": "integer"}}}


def written(value: Any) -> bytes:
    return struct.pack(">bI", 0, 7) + json.dumps(value).encode()


@pytest.fixture
def registry(server: RegistryServer) -> RegistryServer:
    server.register(1, MONEY, "JSON")
    server.register_version("money", 2, 1)
    server.register(7, ORDER, "JSON", [{"name": "money.json", "subject": "money", "version": 2}])
    return server


async def test_a_value_that_fits_is_what_json_gives(registry: RegistryServer) -> None:
    decode, value = JsonSchema(registry.url), {"id": "a", "price": {"cents": 5}}
    assert await decode(written(value)) == value
    assert await decode(written(value)) == value
    assert len(registry.asked) == 2


async def test_values_are_of_the_type_that_is_asked_for(registry: RegistryServer) -> None:
    @dataclass
    class Order:
        id: str

    assert await JsonSchema(registry.url, Order)(written({"id": "a"})) == Order("a")


@each("value", [{}, {"id": 5}, {"id": "a", "price": {"cents": "secret"}}])
async def test_a_value_that_does_not_fit_is_bad_and_the_error_repeats_nothing_of_it(registry: RegistryServer, value: Any) -> None:
    with pytest.raises(Misfit, match=r"^it does not fit schema 7: (required|type) of ") as bad:
        await JsonSchema(registry.url)(written(value))
    assert "secret" not in str(bad.value)


async def test_bytes_that_are_no_json_are_bad(registry: RegistryServer) -> None:
    with pytest.raises(json.JSONDecodeError):
        await JsonSchema(registry.url)(written({"id": "a"})[:-2])


@each(
    "schema",
    [{"$ref": "http://127.0.0.1:1/elsewhere.json"}, {"type": "nonsense"}, {"pattern": "["}],
    ids=["no such reference", "none", "pattern"],
)
async def test_a_schema_that_can_not_be_used_holds(server: RegistryServer, schema: Any) -> None:
    server.register(7, schema, "JSON")
    with pytest.raises(CodecUnavailable, match=r"^schema 7, as the schema registry gives it, can't be used"):
        await JsonSchema(server.url)(written("a"))
