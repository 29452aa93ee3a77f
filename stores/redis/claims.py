"""`RedisStore`: claims in Redis; `script.lua` decides there, and `connection.py` asks it."""

from __future__ import annotations

import asyncio
import difflib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.claimstore import ColumnExchange, ColumnResult, Exchange, ExchangeResult, Remembered
from ackwise.stores.protocol.options import may_hold_an_at_sign
from ackwise.stores.redis.connection import Address, Cluster, Connection, NotReplicated, OneServer, Replicas
from ackwise.stores.redis.durability import Memory, advice
from ackwise.stores.redis.failures import is_misconfigured, reason
from ackwise.stores.redis.listing import listed
from ackwise.stores.redis.script import Layout, columns_of, key_by_key, questions, result

_BUCKETS = 16
"""Default of a cluster: an exchange of 100 keys still asks each node for a handful of keys at a time."""


_AT_A_TIME = 8
"""Exchanges under way, and so connections to a node; the others wait. Redis works on one thing at a time, more would not be faster."""


_A_MOMENT = 0.5
"""Seconds that a look at the memory may hold up an answer."""


class RedisStore:
    """A claim store in Redis, at a URL or through a client that you have; for all workers that use that Redis.

    URLs: `redis://user:password@host:6379/0`, `rediss://` with TLS, `redis+cluster://host:6379,host:6380` and `rediss+cluster://`
    for a cluster, `redis+unix:///path`. `client` is a `redis.asyncio.Redis` or `RedisCluster` without `decode_responses`; its
    settings stay yours, and it is not closed.

    `timeout` (seconds) is how long an exchange may take, connecting and one repetition included, before it raises `StoreUnavailable`.
    `namespace` starts every key. `wait` is how many replicas have to acknowledge an exchange within `wait_timeout` seconds (half of
    `timeout` by default); otherwise it raises `StoreUnavailable` and nothing of it is believed. `buckets` is how many hash tags
    spread the keys of a cluster.

    `layout="compact"` keeps completed messages in a seventh of the memory: `keys` is how many there are at a time and `retention`
    (seconds) the longest that they are remembered; an exchange that wants longer raises `ConfigurationError`.
    `ca`, `cert` and `key` are PEM files for TLS.

    Raises `ConfigurationError` for what can't work.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        client: Redis | RedisCluster | None = None,
        timeout: float = 5.0,
        namespace: str = "ackwise",
        layout: str = "plain",
        retention: float = 86400.0,
        keys: int = 1_000_000,
        buckets: int | None = None,
        wait: int = 0,
        wait_timeout: float | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> None:
        if (url is None) == (client is None):
            raise ConfigurationError("the Redis store takes either a URL or a client; give one of them")
        if not 0 < timeout < math.inf:
            raise ConfigurationError(f"timeout is {timeout}; give the seconds that an exchange with Redis may take, more than 0")
        if layout not in ("plain", "compact"):
            raise ConfigurationError(f"layout is {layout!r} for the Redis store; it can be plain or compact")
        self._address = None if url is None else Address.of(url, ca=ca, cert=cert, key=key)
        if client is not None:
            _refuse_unusable(client)
        self._client = client
        self._timeout = timeout
        is_cluster = isinstance(client, RedisCluster) if self._address is None else self._address.is_cluster
        if buckets is not None and not is_cluster:
            raise ConfigurationError("buckets is for a cluster, and this is one server; leave it out, or write redis+cluster://")
        self._layout = Layout(namespace, layout == "compact", retention, keys, (buckets or _BUCKETS) if is_cluster else 0)
        self._replicas = _replicas(wait, timeout / 2 if wait_timeout is None else wait_timeout, timeout)
        self._is_cluster = is_cluster
        self._where = _where(client) if self._address is None else str(self._address)
        self._memory = Memory(self._layout.memory, self._where)
        self._connection: Connection | None = None
        self._turns = asyncio.Semaphore(_AT_A_TIME)

    def __repr__(self) -> str:
        return f"RedisStore({self._where!r}, namespace={self._layout.namespace!r})"

    async def open(self) -> None:
        """Connect, and mark the namespace as laid out this way. Opening twice does nothing.

        Raises `ConfigurationError` if user, rights, certificate or kind of server are wrong, or if the namespace was laid out
        otherwise or in another version than ours; `StoreUnavailable` if Redis does not answer.
        """
        if self._connection is not None:
            return
        connection = self._connect()
        try:
            with self._errors():
                async with asyncio.timeout(self._timeout):
                    await connection.open()
                    await self._agree(connection)
                await self._look_after_memory(connection)
        except BaseException:
            await connection.close()
            raise
        self._turns = asyncio.Semaphore(_AT_A_TIME)  # again, since it belongs to the loop that first had to wait for it
        self._connection = connection

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Apply everything, each 500 keys at once, in one round trip.

        Raises `StoreUnavailable` if an answer is missing; what was asked may have been applied, and asking again is safe. On a
        cluster that is so if any node fails: what the others were asked is applied. An exchange whose caller is cancelled is
        applied or not, as a whole for each 500 keys, and its connection is given up.
        """
        return key_by_key(await self.exchange_columns(columns_of(exchange)))

    async def exchange_columns(self, exchange: ColumnExchange) -> ColumnResult:
        """As `exchange`: what the keys of a column share is sent once, and only what went otherwise than well comes back."""
        connection = self._connection
        if connection is None:
            raise StoreUnavailable(f"{self._where}: the store is not open; open it before the first exchange")
        if self._layout.compact and exchange.retention > self._layout.retention:
            raise ConfigurationError(
                f"{self._where}: the compact layout remembers {self._layout.retention:g} s, and {exchange.retention:g} s are wanted; "
                f"open another namespace with retention={exchange.retention:g}"
            )
        asked = questions(exchange, self._layout, always_write=self._replicas is not None)
        try:
            async with asyncio.timeout(self._timeout), self._turns:
                answers = await connection.ask(asked) if asked else []
        except NotReplicated as error:
            raise StoreUnavailable(self._not_replicated(error)) from None
        except (RedisError, RedisClusterException, OSError) as error:
            raise StoreUnavailable(f"{self._where}: {reason(error, self._timeout)}") from None
        if self._memory.is_due():
            await self._look_after_memory(connection)
        return result(exchange, zip(asked, answers, strict=True))

    async def close(self) -> None:
        """Give the connections back. Closing twice does nothing; a client that you passed in stays open."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    async def init(self) -> None:
        """Mark the namespace as laid out this way, which `open` does as well. Raises as `open` does."""
        await self._with_connection(self._agree)

    async def check(self) -> list[str]:
        """Return what is wrong or unwise about this Redis, a sentence each with what to do. Raises as `open` does."""
        facts: dict[str, list[str]] = await self._with_connection(self._examine_all)
        return [f"{place or self._where}: {sentence}" for place, sentences in facts.items() for sentence in sentences]

    async def cleanup(self) -> int:
        """Nothing to do: Redis itself deletes what is forgotten. Raises as `open` does."""
        await self._with_connection(self._agree)
        return 0

    async def records(self) -> AsyncIterator[Sequence[Remembered]]:
        """Yield all that is remembered, about a thousand records at a time, on a connection of its own; changes nothing.

        Raises `ConfigurationError` if nothing or something else was laid out in the namespace, and `StoreUnavailable`.
        """
        connection = self._connect()
        try:
            with self._errors():
                await connection.open()
                found = await connection.command("GET", self._layout.mark)
                if found is None:
                    raise ConfigurationError(
                        f"{self._where}: the namespace {self._layout.namespace} holds no claims; name the one that the workers use"
                    )
                self._layout.agree(found.decode("utf-8", "replace"), self._where)
                for command in (await connection.primaries()).values():
                    async for some in listed(self._layout, command):
                        yield some
        finally:
            await connection.close()

    async def _look_after_memory(self, connection: Connection) -> None:
        """Tell of it in the log if Redis has forgotten; nothing else depends on it, so nothing fails with it."""
        with suppress(RedisError, RedisClusterException, OSError):
            async with asyncio.timeout(min(_A_MOMENT, self._timeout / 2)):
                if not await self._memory.look(connection.command):
                    await self._agree(connection)

    def _connect(self) -> Connection:
        if isinstance(self._client, RedisCluster):
            return Cluster(self._client, self._replicas, ours=False, follow=not self._layout.compact)
        if self._client is not None:
            return OneServer(self._client, self._replicas, ours=False)
        assert self._address is not None
        if self._is_cluster:
            client = self._address.cluster_client(self._timeout)
            return Cluster(client, self._replicas, ours=True, follow=not self._layout.compact)
        return OneServer(self._address.client(self._timeout), self._replicas, ours=True)

    async def _agree(self, connection: Connection) -> None:
        """Write how the namespace is laid out, or compare it with what stands there."""
        mark = self._layout.mark
        found = await connection.command("GET", mark)
        if found is None:
            await connection.command("SET", mark, str(self._layout), "NX")
            found = await connection.command("GET", mark) or b""
        self._layout.agree(found.decode("utf-8", "replace"), self._where)

    async def _examine_all(self, connection: Connection) -> dict[str, list[str]]:
        return {place: await self._examine(command) for place, command in (await connection.primaries()).items()}

    async def _examine(self, command: Callable[..., Awaitable[Any]]) -> list[str]:
        info = _facts(await command("INFO", "all"))
        try:
            said = await command("CONFIG", "GET", "*")
        except ResponseError:
            config = None
        else:
            config = _settings(said)
        found = advice(info, config, self._layout, self._replicas.count if self._replicas else 0)
        if self._is_cluster:
            state = _facts(await command("CLUSTER", "INFO"))
            if state.get("cluster_slots_ok") != "16384":
                found.append(f"{state.get('cluster_slots_ok')} of the cluster's 16384 slots are served; look at CLUSTER INFO")
        return found

    async def _with_connection(self, use: Callable[[Connection], Awaitable[Any]]) -> Any:
        """Use the connection of an open store, or its own."""
        connection = self._connection or self._connect()
        try:
            with self._errors():
                async with asyncio.timeout(self._timeout):
                    if self._connection is None:
                        await connection.open()
                    return await use(connection)
        finally:
            if connection is not self._connection:
                await connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, RedisClusterException, OSError) as error:
            kind = ConfigurationError if is_misconfigured(error) else StoreUnavailable
            raise kind(f"{self._where}: {reason(error, self._timeout)}") from None

    def _not_replicated(self, error: NotReplicated) -> str:
        assert self._replicas is not None
        return (
            f"{self._where}: {error.acknowledged} of {self._replicas.count} replicas acknowledged within {self._replicas.timeout:g} s, "
            "so nothing of the exchange is believed; check whether the replicas run and keep up"
        )


def _refuse_unusable(client: object) -> None:
    if not isinstance(client, Redis | RedisCluster):
        name = f"{type(client).__module__}.{type(client).__name__}"
        raise ConfigurationError(f"client is a {name}; the Redis store takes a redis.asyncio.Redis or a redis.asyncio.RedisCluster")
    if client.get_encoder().decode_responses:
        raise ConfigurationError("the client has decode_responses, and records are bytes; give the Redis store a client without it")


def _replicas(wait: int, timeout: float, all_in_all: float) -> Replicas | None:
    if wait < 0:
        raise ConfigurationError(f"wait is {wait} for the Redis store; give how many replicas have to acknowledge, 0 for none")
    if not 0 < timeout < all_in_all:
        raise ConfigurationError(f"wait_timeout is {timeout}; give seconds, more than 0 and less than the timeout ({all_in_all:g})")
    return Replicas(wait, timeout) if wait else None


def _where(client: Redis | RedisCluster | None) -> str:
    """The address of a client that was passed in, without what it keeps secret."""
    if isinstance(client, RedisCluster):
        return f"redis+cluster://{','.join(client.nodes_manager.startup_nodes)}"
    assert client is not None
    options = client.connection_pool.connection_kwargs
    if "path" in options:
        return f"redis+unix://{options['path']}"
    # A pool that finds its server through others, as Sentinel's does, knows a name only.
    return (
        f"redis://{options['host']}:{options.get('port', 6379)}"
        if "host" in options
        else f"redis ({type(client.connection_pool).__name__})"
    )


def _facts(said: Any) -> dict[str, Any]:
    """INFO as a table; some clients give one, others the text."""
    if isinstance(said, dict):
        return said
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {**facts, "aof_enabled": facts.get("aof_enabled") == "1"}


def _settings(said: Any) -> dict[str, str]:
    words = [word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word) for word in said]
    return dict(zip(words[::2], words[1::2], strict=False))


_OPTIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    "timeout": (float, "seconds, such as timeout=2.5"),
    "namespace": (str, "a name"),
    "layout": (str, "plain or compact"),
    "retention": (float, "seconds, such as retention=86400"),
    "keys": (int, "a number, such as keys=5000000"),
    "buckets": (int, "a number, such as buckets=16"),
    "wait": (int, "a number of replicas, such as wait=1"),
    "wait_timeout": (float, "seconds, such as wait_timeout=0.5"),
    "ca": (str, "a path"),
    "cert": (str, "a path"),
    "key": (str, "a path"),
}
_TEXTS = ("namespace", "ca", "cert", "key")


def from_url(url: str) -> RedisStore:
    """Return the store that `redis://user:password@host:6379/0` names; see `RedisStore` for the other schemes and the options.

    Options follow as a query: `?timeout=2&layout=compact`. Raises `ConfigurationError`, which never repeats user or password.
    """
    address, _, query = url.partition("?")
    if "@" in query and not may_hold_an_at_sign(query, address, _OPTIONS, _TEXTS):
        raise ConfigurationError(
            "the URL of the Redis store has an @ after a question mark; "
            "write a question mark in a password as %3F, and an @ in an option as %40"
        )
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, n=1)
            advice = f"did you mean {near[0]}?" if near else f"it has {', '.join(_OPTIONS)}"
            raise ConfigurationError(f"the Redis store has no option {name}; {advice}")
        convert, wanted = _OPTIONS[name]
        try:
            options[name] = convert(value)
        except ValueError:
            raise ConfigurationError(f"{name} is {value!r} in the URL of the Redis store; give {wanted}") from None
    return RedisStore(address, **options)
