"""Sentences for the driver's errors: the cause and what to do, without the secrets of a URL."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    MaxConnectionsError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

_NO_ANSWER = "no answer within {timeout:g} s; check whether it is overloaded, stopped or out of reach"
_NOBODY = "nothing listens there; start Redis, or correct host and port"
_CREDENTIALS = "it refused the user or the password; correct them in the URL"
_RIGHTS = "the user may not do what a claim takes ({error}); docs/stores/redis.md lists the rights"
_MOVING = "a slot is on its way to another node, and keys that are asked for together are on both; it can be used once it has arrived"

_BY_CLASS: tuple[tuple[type[BaseException], str], ...] = (
    (RedisTimeoutError, _NO_ANSWER),
    (TimeoutError, _NO_ANSWER),
    (AuthenticationError, _CREDENTIALS),
    (AuthorizationError, _CREDENTIALS),
    (NoPermissionError, _RIGHTS),
    (BusyLoadingError, "it is still loading its data; nothing to do but wait"),
    (MaxConnectionsError, "all connections of the client are in use; give the client more of them"),
    (ReadOnlyError, "it is a replica, which takes no claims; name the primary, or wait for the fail-over to end"),
    (OutOfMemoryError, "its memory is full; raise maxmemory or shorten the retention, and keep maxmemory-policy noeviction"),
    (SlotNotCoveredError, "no node of the cluster serves some of the keys; look at CLUSTER INFO"),
    (TryAgainError, _MOVING),
    (MovedError, "it is a node of a cluster; write redis+cluster:// or rediss+cluster://"),
    (AskError, _MOVING),
    (ClusterDownError, "the cluster is down; look at CLUSTER INFO for the slots that no node serves"),
    (ClusterError, _MOVING),
    (ssl.SSLCertVerificationError, "its certificate is not trusted ({verify}); name the authority that signed it with ca=/path/to/ca.pem"),
    (ssl.SSLError, "no TLS is spoken there, or another one; compare rediss:// with the port and the server's certificates"),
    (ConnectionRefusedError, _NOBODY),
    (FileNotFoundError, "the socket is not there; start Redis, or correct the path"),
    (PermissionError, "the socket can't be opened; check its rights"),
)
_BY_TEXT = (
    (r"Connect call failed|Connection refused", _NOBODY),
    (r"Name or service not known|nodename nor servname|Temporary failure in name", "the name of the host is unknown; correct it"),
    (r"NOAUTH|WRONGPASS|invalid password|invalid username-password|without any password", _CREDENTIALS),
    (r"Authentication required", _CREDENTIALS),
    (r"NOPERM", _RIGHTS),
    (r"READONLY", "it is a replica, which takes no claims; name the primary, or wait for the fail-over to end"),
    (r"OOM ", "its memory is full; raise maxmemory or shorten the retention, and keep maxmemory-policy noeviction"),
    (r"MISCONF", "it can't write to its disk and so takes no writes; make room there, or look at its log"),
    (r"NOREPLICAS", "too few replicas are connected for its min-replicas-to-write"),
    (r"BUSY ", "another client's script keeps it busy; SCRIPT KILL ends it"),
    (r"Cluster mode is not enabled", "it is no cluster; write redis:// or rediss://"),
    (r"Redis Cluster cannot be connected", "no node that was named answers; start the cluster, or correct the addresses"),
    (r"DB index is out of range", "it has no database of that number; correct the end of the URL"),
    (r"non local key", _MOVING),
    (r"non deterministic|unknown command", "this Redis is too old; 6.2 or newer is needed"),
)
_OTHER_CONNECTION = "the connection broke and could not be replaced; check whether Redis runs and is reachable"
_OTHER = "it refused: {error}"


def reason(error: BaseException, timeout: float) -> str:
    """Return cause and remedy, for a sentence that starts with the address; a note on it names the node. `timeout` is in seconds."""
    chain = list(_causes(error))
    said = " ".join(str(link) for link in chain)
    found = next((text for link in chain for kind, text in _BY_CLASS if isinstance(link, kind)), None)
    found = next((text for pattern, text in _BY_TEXT if re.search(pattern, said)), None) if found is None else found
    if found is None:
        found = _OTHER_CONNECTION if isinstance(error, RedisConnectionError | OSError) else _OTHER
    verify = next((link.verify_message for link in chain if isinstance(link, ssl.SSLCertVerificationError)), "")
    place = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
    return place + found.format(error=str(error)[:200], timeout=timeout, verify=verify)


def is_misconfigured(error: BaseException) -> bool:
    """Return True for a permanent error: wrong user, password, rights, certificate or kind of server."""
    kinds = AuthenticationError | AuthorizationError | NoPermissionError | ssl.SSLCertVerificationError | MovedError
    said = " ".join(str(link) for link in _causes(error))
    patterns = r"NOAUTH|WRONGPASS|NOPERM|Authentication required|Cluster mode is not enabled|DB index is out of range|non deterministic"
    return any(isinstance(link, kinds) for link in _causes(error)) or re.search(patterns, said) is not None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
