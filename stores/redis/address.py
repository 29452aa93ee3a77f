"""`Address`: host, user and TLS of a Redis; shown without user and password. Its connections write the keys of a question in one go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ackwise.middleware.errors import ConfigurationError

SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster", "redis+unix")
_FORMS = "redis://host:6379/0, rediss:// for TLS, redis+cluster://host,host or rediss+cluster:// for a cluster, or redis+unix:///path"


@dataclass(frozen=True, slots=True)
class Address:
    """`ca`, `cert` and `key` are paths of PEM files for TLS."""

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    database: int = 0
    path: str = ""
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, url: str, *, ca: str | None, cert: str | None, key: str | None) -> Address:
        """What a URL without options names. Raises `ConfigurationError`, which does not repeat it."""
        scheme, separator, _ = url.partition("://")
        if not separator or scheme not in SCHEMES:
            raise ConfigurationError(f"this is no URL of a Redis store; write {_FORMS}")
        if (ca or cert or key) and not scheme.startswith("rediss"):
            raise ConfigurationError(f"ca, cert and key are for TLS, and {scheme}:// has none; write rediss:// or leave them out")
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ConfigurationError(f"the URL of the Redis store can't be read; write {_FORMS}, with special characters as %XX") from None
        if "@" in parts.path + parts.query or parts.fragment:  # what stands before it would be taken for host and port, and shown
            raise ConfigurationError(f"the URL of the Redis store can't be read; write {_FORMS}, with special characters as %XX")
        userinfo, _, places = parts.netloc.rpartition("@")
        username, _, password = userinfo.partition(":")
        user, secret = unquote(username) or None, unquote(password) or None
        if scheme == "redis+unix":
            if places or len(parts.path) < 2:
                raise ConfigurationError("the URL of the Redis store names no socket; write redis+unix:///run/redis/redis.sock")
            return cls(scheme, path=unquote(parts.path), username=user, password=secret)
        database = parts.path.strip("/")
        if database and (not database.isdecimal() or scheme.endswith("cluster")):
            raise ConfigurationError("the URL of the Redis store ends with a number of a database, and for a cluster with none")
        hosts = tuple(_host(place) for place in places.split(","))
        if len(hosts) > 1 and not scheme.endswith("cluster"):
            raise ConfigurationError("several hosts are for a cluster; write redis+cluster:// or rediss+cluster://, or name one")
        return cls(scheme, hosts, int(database or 0), "", user, secret, ca, cert, key)

    def __str__(self) -> str:
        if self.path:
            return f"{self.scheme}://{self.path}"
        places = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{self.scheme}://{places}{f'/{self.database}' if self.database else ''}"

    @property
    def is_cluster(self) -> bool:
        return self.scheme.endswith("cluster")

    def client(self, timeout: float) -> Redis:
        """A client of one server. It repeats nothing: the store does, with the same tokens and within its own time."""
        kind: type[PlainConnection | SocketConnection | TLSConnection] = PlainConnection
        options = self._options(timeout)
        if self.path:
            kind = SocketConnection
            options |= {"path": self.path}
            del options["socket_connect_timeout"]
        else:
            ((host, port),) = self.hosts
            options |= {"host": host, "port": port, "db": self.database}
            if self.scheme == "rediss":
                kind = TLSConnection
                options |= self._tls()
        return Redis(connection_pool=ConnectionPool(connection_class=kind, **options))

    def cluster_client(self, timeout: float) -> RedisCluster:
        """A client of a cluster that goes on without the slots that nobody serves; it repeats nothing either.

        Whenever a node fails it asks the hosts of the URL anew who serves what. With those that it found instead, it would never
        come back to a cluster that was moved to other machines behind the same names.
        """
        tls = {"ssl": True, **self._tls()} if self.scheme == "rediss+cluster" else {}
        nodes = [ClusterNode(host, port) for host, port in self.hosts]
        kept: dict[str, Any] = {"require_full_coverage": False, "dynamic_startup_nodes": False}
        return RedisCluster(startup_nodes=nodes, **kept, **self._options(timeout), **tls)

    def _options(self, timeout: float) -> dict[str, Any]:
        return {
            "username": self.username,
            "password": self.password,
            "socket_timeout": 0.9 * timeout,  # before the store gives up as a whole, so that who did not answer can be named
            "socket_connect_timeout": 0.9 * timeout,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,  # a connection says nothing but what it is asked to, and older servers know no other
        }

    def _tls(self) -> dict[str, Any]:
        files = {"ssl_ca_certs": self.ca, "ssl_certfile": self.cert, "ssl_keyfile": self.key}
        return {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **files}


def _host(place: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise ConfigurationError(f"the URL of the Redis store has no host and port that can be read; write {_FORMS}")
    return host, port or 6379


def packed(name: str, script: str, count: int, *rest: str | bytes) -> bytes:
    """EVAL or EVALSHA in the protocol of Redis; the driver would look at each key by itself."""
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
