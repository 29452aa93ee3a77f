"""Checks of the places where an app keeps claims and events, and whether it can write there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ackwise.middleware.policies import Dedup, Events, Outbox, Transactional
from ackwise.plugin.doctor.finding import Finding
from ackwise.plugin.doctor.machine import space
from ackwise.plugin.registry import open_inbox, open_outbox, open_store

__all__ = ["claims", "events", "identity", "outbox"]


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
    """Whether the outbox can be used, whether rows are parked in it, and whether somebody sends those that wait."""
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
    if dedup.key is not None:
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
