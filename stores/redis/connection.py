"""`OneServer` and `Cluster`: connections to Redis that send all questions of an exchange in one trip.

`Address` is the host, user and TLS of a Redis; its text hides user and password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import Connection as RedisConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import AuthenticationError as RedisAuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.redis.script import Question

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
        """Return the address that a URL without options names. Raise `ConfigurationError`, which does not repeat it."""
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
        """A client of a cluster that goes on without the slots that no node serves; it repeats nothing either.

        Whenever a node fails it asks the hosts of the URL again who serves what. With those that it found instead, it would never
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
    if not host or port == 0:
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


class PlainConnection(_Packing, RedisConnection):
    """Over TCP."""


class SocketConnection(_Packing, UnixDomainSocketConnection):
    """Over a socket of this host."""


class TLSConnection(_Packing, SSLConnection):
    """Over TLS."""


Command = tuple[str | int | bytes, ...]
Reply = bytes | BaseException

#: Another node may serve these keys by now.
_MISLED = (RedisConnectionError, ReadOnlyError, RedisClusterException, MovedError)


class NotReplicated(Exception):
    """Fewer replicas than asked for acknowledged in time; `acknowledged` is how many did."""

    def __init__(self, acknowledged: int) -> None:
        super().__init__(acknowledged)
        self.acknowledged = acknowledged


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many replicas have to acknowledge an exchange, within how many seconds."""

    count: int
    timeout: float

    def command(self) -> Command:
        """Return the command that waits for the replicas."""
        return ("WAIT", self.count, max(1, round(self.timeout * 1000)))

    def judge(self, replies: list[Any]) -> list[Reply]:
        """The replies without the last one, which says how many acknowledged; nothing is believed if those were too few."""
        *said, acknowledged = replies
        if isinstance(acknowledged, BaseException):
            return [acknowledged] * len(said)
        if acknowledged < self.count:
            return [reply if isinstance(reply, NoScriptError) else NotReplicated(acknowledged) for reply in said]
        return said


class Connection(Protocol):
    """The connection to a server or a cluster. Methods raise the driver's errors and `NotReplicated`."""

    async def open(self) -> None:
        """Connect, or raise why that can't be done."""

    async def ask(self, questions: Sequence[Question]) -> list[bytes]:
        """One trip. A connection that broke is replaced and asked once more, with the same tokens."""
        ...

    async def command(self, *words: str | bytes) -> Any:
        """One command about one key."""
        ...

    async def primaries(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """Return for each primary, by address, a function that runs a command there."""
        ...

    async def close(self) -> None:
        """Give the connections back, unless the client is the user's."""


class OneServer:
    """One Redis, or the primary of some replicas."""

    def __init__(self, client: Redis, replicas: Replicas | None, *, ours: bool) -> None:
        self._client = client
        self._replicas = replicas
        self._ours = ours

    async def open(self) -> None:
        await self._client.execute_command("PING")

    async def ask(self, questions: Sequence[Question]) -> list[bytes]:
        try:
            return _believed(await self._ask_once(questions))
        except RedisAuthenticationError:  # asked twice, it may lock us out
            raise
        except (RedisConnectionError, ReadOnlyError):
            pass
        if self._ours:  # the others have most likely broken with it, or lead to what is a replica now
            await self._client.connection_pool.disconnect(inuse_connections=False)
        return _believed(await self._ask_once(questions))

    async def _ask_once(self, questions: Sequence[Question]) -> list[Reply]:
        return await _with_the_script(questions, self._send)

    async def _send(self, commands: Sequence[Command]) -> list[Reply]:
        if self._replicas is None and len(commands) == 1:
            return [await _reply(self._client.execute_command(*commands[0]))]
        pipeline = self._client.pipeline(transaction=False)
        for command in commands if self._replicas is None else [*commands, self._replicas.command()]:
            pipeline.execute_command(*command)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies if self._replicas is None else self._replicas.judge(replies)

    async def command(self, *words: str | bytes) -> Any:
        return await self._client.execute_command(*words)

    async def primaries(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        return {"": self._client.execute_command}

    async def close(self) -> None:
        if self._ours:
            await self._client.aclose(close_connection_pool=True)


class Cluster:
    """A Redis Cluster. Every node is asked about its keys at once; who is no longer there is looked for and asked again.

    If a node fails, what the others were asked is applied there; only an exchange with keys of that node fails.
    With `follow`, keys of a slot that is on its way are looked for on both of its nodes. That is for records in their own keys:
    a page of many may still be on one node while the other one is asked, and would be missed.
    """

    def __init__(self, client: RedisCluster, replicas: Replicas | None, *, ours: bool, follow: bool) -> None:
        self._client = client
        self._replicas = replicas
        self._ours = ours
        self._follows = follow and replicas is None  # WAIT can't follow

    async def open(self) -> None:
        await self._client.initialize()

    async def ask(self, questions: Sequence[Question]) -> list[bytes]:
        await self._client.initialize()
        replies = await self._ask_nodes(questions)
        misled = [i for i, reply in enumerate(replies) if isinstance(reply, _MISLED)]
        if misled:
            await self._client.nodes_manager.initialize()
            for i, reply in zip(misled, await self._ask_nodes([questions[i] for i in misled]), strict=True):
                replies[i] = reply
        for i, reply in enumerate(replies):
            if _is_on_its_way(reply):
                replies[i] = await self._follow(questions[i]) if self._follows else TryAgainError()
        return _believed(replies)

    async def _ask_nodes(self, questions: Sequence[Question]) -> list[Reply]:
        """Ask each node for its part, all at the same time."""
        nodes: dict[str, tuple[Any, list[int]]] = {}
        replies: list[Reply] = [b""] * len(questions)
        for i, question in enumerate(questions):
            try:
                node = self._client.get_node_from_key(question.keys[0])  # type: ignore[arg-type]  # declared as str, takes bytes as well
            except RedisClusterException as error:
                replies[i] = error
            else:
                assert node is not None  # only a replica that was asked for may be missing
                nodes.setdefault(node.name, (node, []))[1].append(i)
        parts = [self._ask_node(node, [questions[i] for i in mine]) for node, mine in nodes.values()]
        for (_, mine), part in zip(nodes.values(), await asyncio.gather(*parts), strict=True):
            for i, reply in zip(mine, part, strict=True):
                replies[i] = reply
        return replies

    async def _ask_node(self, node: Any, questions: Sequence[Question]) -> list[Reply]:
        async def send(commands: Sequence[Command]) -> list[Reply]:
            pipeline = self._client.pipeline()
            for command in commands:
                pipeline.execute_command(*command)
            if self._replicas is not None:
                pipeline.execute_command(*self._replicas.command(), target_nodes=node)
            replies: list[Any] = await pipeline.execute(raise_on_error=False, allow_redirections=False)
            return replies if self._replicas is None else self._replicas.judge(replies)

        replies: list[Reply]
        try:
            replies = await _with_the_script(questions, send)
        except (RedisError, RedisClusterException) as error:
            replies = [error] * len(questions)
        for failure in {reply for reply in replies if isinstance(reply, BaseException)}:
            failure.add_note(f"node {node.name}")
        broken = next((i for i, reply in enumerate(replies) if isinstance(reply, RedisConnectionError | RedisTimeoutError)), len(replies))
        return replies[:broken] + replies[broken : broken + 1] * (len(replies) - broken)  # the others can only fail alike

    async def _follow(self, question: Question) -> Reply:
        """Ask for key by key: while a slot moves, that is what its two nodes serve. The driver goes where it is sent."""
        answers = [await _reply(self._client.execute_command(*one.command(whole_script=True))) for one in question.one_by_one()]
        return question.together(_believed(answers))

    async def command(self, *words: str | bytes) -> Any:
        return await self._client.execute_command(*words)

    async def primaries(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        await self._client.initialize()
        return {node.name: node.execute_command for node in self._client.get_primaries()}

    async def close(self) -> None:
        if self._ours:
            await self._client.aclose()


async def _with_the_script(questions: Sequence[Question], send: Callable[[Sequence[Command]], Awaitable[list[Reply]]]) -> list[Reply]:
    """Ask by the name of the script, and send the script along where it is not known (any more)."""
    replies = await send([question.command() for question in questions])
    unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:
        again = await send([questions[i].command(whole_script=True) for i in unknown])
        for i, reply in zip(unknown, again, strict=True):
            replies[i] = reply
    return replies


async def _reply(waiting: Awaitable[Any]) -> Reply:
    """Return the reply of Redis, which may be an error."""
    try:
        reply: bytes = await waiting
    except ResponseError as error:
        return error
    return reply


def _is_on_its_way(reply: Reply) -> bool:
    return isinstance(reply, AskError | TryAgainError) or (isinstance(reply, ResponseError) and "non local key" in str(reply))


def _believed(replies: Sequence[Reply]) -> list[bytes]:
    """The replies; raises the first one that is an error."""
    failed = next((reply for reply in replies if isinstance(reply, BaseException)), None)
    if failed is not None:
        raise failed
    return [reply for reply in replies if isinstance(reply, bytes)]
