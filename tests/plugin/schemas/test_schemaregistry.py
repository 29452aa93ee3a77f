"""A Schema Registry that is unavailable, refuses or talks nonsense holds messages, and says why; bytes are never blamed for it."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Any, cast

import pytest
from aiohttp import web
from tests.plugin.schemas.registryserver import Fault, RegistryServer, basic, failed
from tests.tables import each

from ackwise.errors import CodecUnavailable, ConfigurationError
from ackwise.plugin.schemas import UnknownSchema
from ackwise.schemas import Avro, JsonSchema, Protobuf, SchemaRegistry

NUMBER = struct.pack(">bI", 0, 7) + b"\x54"


@each(
    ("fault", "sentence"),
    [
        (lambda: failed(500, 50001, "backend"), "answered HTTP 500"),
        (lambda: failed(503, 503, "starting"), "answered HTTP 503"),
        (lambda: failed(429, 42901, "slow down"), "answered HTTP 429"),
        (lambda: failed(401, 401, "secret"), "refuses this worker (HTTP 401); give it the right to read schemas"),
        (lambda: failed(403, 40301, "secret"), "refuses this worker (HTTP 403); give it the right to read schemas"),
        (lambda: failed(404, 404, "no such page"), "answered HTTP 404"),
        (lambda: web.Response(status=502, text="<html>secret"), "answered HTTP 502"),
        (lambda: web.Response(text="<html>log in, secret"), "gave no schema (JSONDecodeError)"),
        (lambda: web.json_response({}), "gave no schema (ValueError)"),
        (lambda: web.json_response(["secret"]), "gave no schema ("),
    ],
    ids=["500", "503", "429", "401", "403", "404 of a wrong path", "502 of a proxy", "200 of a proxy", "nothing", "a list"],
)
async def test_whatever_a_registry_answers_instead_of_a_schema_holds(server: RegistryServer, fault: Fault, sentence: str) -> None:
    server.register(7, '"long"')
    decode = Avro(server.url)
    server.fault = fault
    server.asked.clear()
    with pytest.raises(CodecUnavailable) as held:
        await decode(NUMBER)
    assert f"schema 7: the schema registry {server.url} {sentence}" in str(held.value)
    assert "secret" not in str(held.value)
    assert len(server.asked) == 1  # it is the worker that tries again
    server.fault = None
    assert await decode(NUMBER) == 42


async def test_a_registry_that_is_not_there_holds() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        with pytest.raises(CodecUnavailable, match=r"gave no schema \(ConnectError\)"):
            await Avro(f"http://127.0.0.1:{taken.getsockname()[1]}")(NUMBER)


async def test_a_registry_that_hangs_holds(server: RegistryServer) -> None:
    server.hangs = True
    with pytest.raises(CodecUnavailable, match=r"did not answer within 0.05 s"):
        await Avro(SchemaRegistry(server.url, timeout="50ms", options={"timeout": 60}))(NUMBER)


async def test_an_id_that_the_registry_does_not_know_holds_until_it_does(server: RegistryServer) -> None:
    decode = Avro(server.url)
    with pytest.raises(CodecUnavailable, match=r"does not know it; register or restore it, .* or give unknown=\"dead-letter\""):
        await decode(NUMBER)
    server.register(7, '"long"')
    assert await decode(NUMBER) == 42


async def test_an_id_that_the_registry_does_not_know_is_bad_where_that_is_asked_for(server: RegistryServer) -> None:
    decode = Avro(SchemaRegistry(server.url, unknown="dead-letter"))
    with pytest.raises(UnknownSchema, match=r"knows no schema 7"):
        await decode(NUMBER)
    server.fault = lambda: failed(404, 404, "HTTP 404 Not Found")
    with pytest.raises(CodecUnavailable):  # a wrong address knows no schema either, and says nothing of it
        await decode(NUMBER)


async def test_a_reference_that_the_registry_has_lost_holds(server: RegistryServer) -> None:
    server.register(7, '"B"', references=[{"name": "B", "subject": "b", "version": 1}])
    with pytest.raises(CodecUnavailable, match=r"^schema 7: .* answered HTTP 404"):
        await Avro(SchemaRegistry(server.url, unknown="dead-letter"))(NUMBER)


@each("kind", ["domainRules", "encodingRules"])
@each(("mode", "is_held"), [("READ", True), ("WRITEREAD", True), ("WRITE", False)])
async def test_a_schema_with_rules_for_reading_holds(server: RegistryServer, kind: str, mode: str, is_held: bool) -> None:
    rule = {"name": "hide", "kind": "TRANSFORM", "mode": mode, "type": "ENCRYPT", "disabled": False}
    server.register(7, '"long"', ruleSet={kind: [rule]})
    if not is_held:
        assert await Avro(server.url)(NUMBER) == 42
        return
    with pytest.raises(CodecUnavailable, match=r"^schema 7 has rules for reading, which are not run here"):
        await Avro(server.url)(NUMBER)


async def test_credentials_are_given_as_options(server: RegistryServer) -> None:
    server.register(7, '"long"')
    server.credentials = basic("reader", "p:w")
    with pytest.raises(CodecUnavailable, match=r"HTTP 401"):
        await Avro(server.url)(NUMBER)
    assert await Avro(SchemaRegistry(server.url, options={"basic.auth.user.info": "reader:p:w"}))(NUMBER) == 42


async def test_the_next_server_is_asked_where_one_is_away(server: RegistryServer) -> None:
    server.register(7, '"long"')
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert await Avro(f"http://127.0.0.1:{taken.getsockname()[1]}, {server.url}")(NUMBER) == 42


async def test_a_decoder_that_is_cancelled_ends_and_leaves_no_connection(server: RegistryServer) -> None:
    server.hangs = True
    decoding = asyncio.create_task(Avro(server.url)(NUMBER))
    await server.arrived.wait()
    decoding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await decoding


def test_a_decoder_goes_on_in_the_loop_of_an_app_that_was_started_again() -> None:
    decode = Avro("http://127.0.0.1:1")
    for _ in range(2):
        with pytest.raises(CodecUnavailable):
            asyncio.run(decode(NUMBER))


@each(
    ("arguments", "sentence"),
    [
        ({"url": "registry:8081"}, r"^the URL of the schema registry does not start with http:// or https://"),
        ({"url": 8081}, r"^the URL of the schema registry does not start"),
        ({"url": "http://u:secret@registry"}, r"^the URL of the schema registry has a user in it"),
        ({"timeout": 0}, r"^timeout of the schema registry is 0 s; it must be above 0 s and below 10 s"),
        ({"timeout": "1m"}, r"^timeout of the schema registry is 60 s"),
        ({"unknown": "skip"}, r"""^unknown of the schema registry is 'skip'; give "hold" or "dead-letter"$"""),
        (
            {"options": {"basic.auth": "secret"}},
            r"the options of the schema registry .* are refused \(ValueError\): basic.auth;",
        ),
        ({"options": {"ssl.ca.location": "/secret.pem"}}, r"are refused \(FileNotFoundError\): ssl.ca.location;"),
    ],
)
def test_what_can_not_work_is_refused_at_once_without_a_secret(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        SchemaRegistry(**{"url": "http://registry", **arguments})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("decoder", "package", "extra"),
    [
        (Avro, "confluent_kafka.schema_registry", "registry"),
        (Avro, "fastavro", "registry"),
        (JsonSchema, "jsonschema", "json-schema"),
        (lambda url: Protobuf(url, cast(Any, object)), "google.protobuf.message", "protobuf"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, decoder: Any, package: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=rf"needs {package}; pip install 'ackwise\[{extra}\]'$"):
        decoder("http://registry")
