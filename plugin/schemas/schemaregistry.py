"""Schema Registry: asks for schemas by id. Whatever goes wrong while it asks holds the messages, since it says nothing of their bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import CodecUnavailable, ConfigurationError
from ackwise.plugin.settings.redaction import shown_url

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import AsyncSchemaRegistryClient, Schema

__all__ = ["Registered", "SchemaRegistry", "Unknown", "UnknownSchema", "as_registry", "importing", "unusable"]

Unknown = Literal["hold", "dead-letter"]

#: Seconds for a schema with all that it refers to; less than an asynchronous decoder may take.
TIMEOUT: Final = 5.0

#: What a registry calls an id that it has not, whereas a plain 404 is a wrong address.
_NO_SCHEMA: Final = 40403


_FOR_READING: Final = frozenset({"READ", "WRITEREAD"})


class UnknownSchema(ValueError):
    """The id is of no schema of this registry, and such messages are to be dead letters."""


class Registered(NamedTuple):
    """A schema as it is registered, and the texts of what it refers to, by the names that it uses."""

    text: str
    references: Mapping[str, str]


class SchemaRegistry:
    """A Schema Registry with Confluent's REST interface, for `Avro`, `JsonSchema` and `Protobuf`.

    `url` may name several of its servers, with commas between. `options` are properties of confluent-kafka's client, such as
    `{"basic.auth.user.info": "user:password"}` or `{"ssl.ca.location": "ca.pem"}`. `timeout` is for one schema with all that it
    refers to.

    While the registry is away, refuses, or gives what is no schema, messages are held: `CodecUnavailable`. So they are for an id that it
    does not know, since it may be the wrong registry, or be restored; with `unknown="dead-letter"` they are dead letters `undecodable`.
    Nothing is asked before the first message. Raises `ConfigurationError`.
    """

    def __init__(
        self, url: str, *, options: Mapping[str, object] = MappingProxyType({}), timeout: float | str = TIMEOUT, unknown: Unknown = "hold"
    ) -> None:
        seconds = parse_duration(timeout, what="timeout of the schema registry")
        _check(url, seconds, unknown)
        self.address = ", ".join(map(shown_url, url.split(",")))
        self._timeout = seconds
        self._unknown = unknown
        # No tries of its own: held messages are decoded again with back-off, and a stop does not wait for it.
        self._properties = {"timeout": seconds, "max.retries": 0, **options, "url": url}
        try:
            self._client()
        except (ValueError, TypeError, OSError) as error:
            raise ConfigurationError(
                f"the options of the schema registry {self.address} are refused ({type(error).__name__}): {', '.join(options)}; "
                "they are properties of confluent-kafka's client"
            ) from None

    async def schema(self, schema_id: int, kind: str, fmt: str | None = None) -> Registered:
        """The schema, which is of `kind`. Raises `CodecUnavailable`, `UnknownSchema`, or `ValueError` for one of another kind."""
        try:
            async with asyncio.timeout(self._timeout), self._client() as client:
                found = await client.get_schema(schema_id, fmt=fmt)
                text = _text(found)
                references = {} if fmt else await _references(client, found)
        except Exception as error:  # the client's, of any kind: it is about the registry, never about the message
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
            'the URL of the schema registry does not begin with http:// or https://; give one such as "http://registry:8081"'
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
    """What is wrong with the registry, and what to do. Nothing that it answered is repeated."""
    if isinstance(error, TimeoutError):
        return f"did not answer within {timeout:g} s"
    if status in (401, 403):
        return f"refuses this worker (HTTP {status}); give it the right to read schemas, or other credentials in `options`"
    if code == _NO_SCHEMA:
        return 'does not know it; register or restore it, look whether this is the right registry, or give unknown="dead-letter"'
    if status is not None:
        return f"answered HTTP {status}"
    return f"gave no schema ({type(error).__name__})"


def _text(found: Schema) -> str:
    if not isinstance(found.schema_str, str) or not found.schema_str:
        raise ValueError("an answer without a schema")
    return found.schema_str


async def _references(client: AsyncSchemaRegistryClient, schema: Schema) -> dict[str, str]:
    """The texts of what `schema` refers to, and of what they refer to."""
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
    """Rules for reading may decrypt or change values; a handler must not get them as if there were none."""
    if (rules := schema.rule_set) is None:
        return
    for rule in (*(rules.domain_rules or ()), *(rules.encoding_rules or ())):
        if not rule.disabled and getattr(rule.mode, "value", rule.mode) in _FOR_READING:
            raise CodecUnavailable(
                f"schema {schema_id} has rules for reading, which are not run here; decode with a function that runs them"
            )


def unusable(schema_id: int, error: Exception) -> CodecUnavailable:
    """What is raised for a schema that can't be used, which is no fault of the message."""
    return CodecUnavailable(f"schema {schema_id}, as the schema registry gives it, can't be used ({type(error).__name__}); mend it there")


@contextmanager
def importing(extra: str) -> Iterator[None]:
    """Turn a missing package into the sentence which extra brings it."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"decoding with a schema registry needs {error.name}; pip install 'ackwise[{extra}]'") from None


def as_registry(registry: SchemaRegistry | str) -> SchemaRegistry:
    """A registry given by its URL alone, or as an object."""
    return SchemaRegistry(registry) if isinstance(registry, str) else registry
