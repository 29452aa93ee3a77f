"""Connections that write the keys of a question in one go; the driver would look at each of them by itself."""

from __future__ import annotations

from typing import Any

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection


def packed(name: str, script: str, count: int, *rest: str | bytes) -> bytes:
    """EVAL or EVALSHA in the protocol of Redis."""
    keys, others = rest[:count], rest[count:]
    head, tail = map(_bulk, (name, script, str(count))), map(_bulk, others)
    return b"".join([b"*%d\r\n" % (3 + len(rest)), *head, _bulks(keys), *tail])


def _bulks(keys: tuple[Any, ...]) -> bytes:
    sizes = set(map(len, keys))
    if len(sizes) != 1 or not isinstance(keys[0], bytes):
        return b"".join(map(_bulk, keys))
    begin = b"$%d\r\n" % sizes.pop()
    return begin + (b"\r\n" + begin).join(keys) + b"\r\n"


def _bulk(word: Any) -> bytes:
    said = word if isinstance(word, bytes) else str(word).encode()
    return b"$%d\r\n%b\r\n" % (len(said), said)


class _Packing(AbstractConnection):
    def pack_command(self, *args: Any) -> list[bytes]:
        return [packed(*args)] if args[0] in ("EVALSHA", "EVAL") else super().pack_command(*args)


class PlainConnection(_Packing, Connection):
    """Over TCP."""


class SocketConnection(_Packing, UnixDomainSocketConnection):
    """Over a socket of this host."""


class TLSConnection(_Packing, SSLConnection):
    """Over TLS."""
