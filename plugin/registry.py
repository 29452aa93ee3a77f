"""Stores and event sinks by URL: the scheme names an entry point, so that other distributions can add some."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import TYPE_CHECKING, Any, Final, Literal

from ackwise.middleware.errors import ConfigurationError, PackageMissing

if TYPE_CHECKING:
    from ackwise.middleware.events import EventSink
    from ackwise.middleware.storage.changes import ChangeSource
    from ackwise.middleware.storage.claimstore import ClaimStore
    from ackwise.middleware.storage.outbox import OutboxStore
    from ackwise.middleware.storage.transaction import TransactionalStore


_STORES: Final = "ackwise.stores"
_INBOXES: Final = "ackwise.inboxes"
_OUTBOXES: Final = "ackwise.outboxes"
_CHANGES: Final = "ackwise.changes"
_EVENTS: Final = "ackwise.events"
_MIDDLEWARE: Final = "ackwise.middleware"


def open_store(url: str) -> ClaimStore:
    """Return the claim store of `url`, such as `sqlite:///claims.db`, not connected.

    Raises `ConfigurationError`, which never repeats the URL: it may hold a password.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigurationError("the store of Dedup has no scheme; write it as a URL such as 'sqlite:///claims.db'")
    store: ClaimStore = _factory(_STORES, scheme, what="store")(url)
    return store


def open_inbox(url: str) -> TransactionalStore:
    """Return the database of `url` for `Transactional`, such as `postgresql://…`, not connected.

    Raises `ConfigurationError`, which never repeats the URL: it may hold a password.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigurationError("the store of Transactional has no scheme; write it as a URL such as 'sqlite:///shop.db'")
    inbox: TransactionalStore = _factory(_INBOXES, scheme, what="transactional store")(url)
    return inbox


def open_outbox(url: str) -> OutboxStore:
    """Return the outbox in the database of `url`, such as `postgresql://…`, not connected.

    Raises `ConfigurationError`, which never repeats the URL: it may hold a password.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigurationError("the outbox has no scheme; write it as a URL such as 'sqlite:///shop.db'")
    outbox: OutboxStore = _factory(_OUTBOXES, scheme, what="outbox")(url)
    return outbox


def open_changes(
    url: str, *, name: str, publication: str, tables: Sequence[str] = (), create: bool = False, replace_lost: bool = False
) -> ChangeSource:
    """Return the changes of the database of `url`, for `ackwise cdc`, not connected. `name` is that of the position or slot.

    Raises `ConfigurationError`, which never repeats the URL: it may hold a password.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigurationError("the database of change data capture has no scheme; write it as a URL such as 'postgresql://host/shop'")
    factory = _factory(_CHANGES, scheme, what="change data capture")
    source: ChangeSource = factory(url, name=name, publication=publication, tables=tables, create=create, replace_lost=replace_lost)
    return source


def has_inbox(url: str) -> bool:
    """Return True if `open_inbox` knows the scheme of `url`."""
    return url.partition("://")[0] in announced(_INBOXES).names


def open_sink(
    location: str, *, group: str, mode: Literal["before_settle", "async"], permissions: int, facts: Mapping[str, object]
) -> EventSink:
    """Return the event sink at `location`, a folder or a URL, not open. `facts` go into its SESSION_START.

    `permissions` are those of the files of a folder's sink; other sinks ignore them.

    Raises `ConfigurationError`.
    """
    scheme, separator, _ = location.partition("://")
    name = scheme if separator else "file"
    only_files = {"file_mode": permissions, "marks": True} if name == "file" else {}
    sink: EventSink = _factory(_EVENTS, name, what="event sink")(location, group=group, mode=mode, attrs=facts, **only_files)
    return sink


def installed_middleware() -> list[Any]:
    """Return the middleware of installed distributions, sorted by name. Raises `ConfigurationError` for one that can't be loaded."""
    return [_loaded(point, "middleware") for point in sorted(announced(_MIDDLEWARE), key=lambda point: point.name)]


@functools.cache
def announced(group: str) -> EntryPoints:
    """Return the entry points of `group`. Cached: reading them opens the metadata of every installed distribution."""
    return entry_points(group=group)


def _factory(group: str, scheme: str, *, what: str) -> Any:
    known = {point.name: point for point in announced(group)}
    point = known.get(scheme)
    if point is None:
        raise ConfigurationError(_unknown(scheme, sorted(known), what, group))
    return _loaded(point, what)


def _unknown(scheme: str, known: list[str], what: str, group: str) -> str:
    near = difflib.get_close_matches(scheme, known, n=1)
    advice = f"did you mean {near[0]}://" if near else f"the known ones are {', '.join(f'{name}://' for name in known) or 'none'}"
    return f"no {what} is known for {scheme}://; {advice}, or install the distribution that adds it to the entry points {group!r}"


def _loaded(point: EntryPoint, what: str) -> Any:
    try:
        return point.load()
    except PackageMissing:
        raise
    except ImportError as error:
        raise ConfigurationError(f"the {what} {point.name}:// can't be loaded ({error}); install the package that it needs") from error
