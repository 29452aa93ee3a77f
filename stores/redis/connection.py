"""`OneServer` and `Cluster`: connections to Redis that ask all questions of an exchange in one trip."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from redis.asyncio import Redis, RedisCluster
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

from ackwise.stores.redis.question import Question

Command = tuple[str | int | bytes, ...]
Reply = bytes | BaseException

#: Somebody else may serve these keys by now.
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
        """What waits for them."""
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
    """What the store needs of a server or a cluster. Errors are those of the driver, and `NotReplicated`."""

    async def open(self) -> None:
        """Connect, or raise why that can't be done."""

    async def ask(self, questions: Sequence[Question]) -> list[bytes]:
        """One trip. A connection that broke is replaced and asked once more, with the same tokens."""
        ...

    async def command(self, *words: str | bytes) -> Any:
        """One command about one key."""
        ...

    async def on_every_primary(self, ask: Callable[[Callable[..., Awaitable[Any]]], Awaitable[Any]]) -> dict[str, Any]:
        """What `ask` learns of each primary, by address; it is given what runs a command there."""
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

    async def on_every_primary(self, ask: Callable[[Callable[..., Awaitable[Any]]], Awaitable[Any]]) -> dict[str, Any]:
        return {"": await ask(self._client.execute_command)}

    async def close(self) -> None:
        if self._ours:
            await self._client.aclose(close_connection_pool=True)


class Cluster:
    """A Redis Cluster. Every node is asked about its keys at once; who is no longer there is looked for and asked again.

    If a node fails, what the others were asked is applied there; only an exchange with keys of that node fails.
    With `follow`, keys of a slot that is on its way are looked for on both of its nodes. That is for records in keys of their own:
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
        return replies[:broken] + replies[broken : broken + 1] * (len(replies) - broken)  # the others can only tell of the same

    async def _follow(self, question: Question) -> Reply:
        """Ask for key by key: while a slot moves, that is what its two nodes serve. The driver goes where it is sent."""
        answers = [await _reply(self._client.execute_command(*one.command(whole_script=True))) for one in question.one_by_one()]
        return question.together(_believed(answers))

    async def command(self, *words: str | bytes) -> Any:
        return await self._client.execute_command(*words)

    async def on_every_primary(self, ask: Callable[[Callable[..., Awaitable[Any]]], Awaitable[Any]]) -> dict[str, Any]:
        await self._client.initialize()
        return {node.name: await ask(node.execute_command) for node in self._client.get_primaries()}

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
    """What Redis answers, be it an error."""
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
