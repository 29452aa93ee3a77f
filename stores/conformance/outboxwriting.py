"""`OutboxWriting`: tests that rows share the fate of the business transaction; `OutboxScene` holds the outboxes of one test."""

from __future__ import annotations

import abc
import asyncio
import os
from collections.abc import Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from ackwise.middleware.errors import TransactionAborted
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import SHARDS, Failed, OutboxRow, OutboxStore, Sent, shard_of

T = TypeVar("T")

#: Seconds of a lease whose end no test waits for.
LEASE: Final = 60.0


class RolledBack(Exception):
    """Rolls a block back."""


@dataclass(frozen=True, slots=True)
class OutboxFeatures:
    """Optional features of an outbox."""

    relays: bool = True
    """Several relays share its shards; otherwise a second one is refused."""
    writers: bool = True
    """Several business transactions are open at once."""


class Business(abc.ABC):
    """The outbox and the business's table, as the suite needs them."""

    features = OutboxFeatures()

    @abc.abstractmethod
    def make(self, place: Path) -> OutboxStore:
        """An outbox that is not open yet; each call with the same `place`, a folder of this test, names the same tables, which only
        this test uses. What was rolled back is not kept by its cleanup."""

    @abc.abstractmethod
    async def prepare(self, place: Path) -> None:
        """Make an empty table for effects, which are short texts and unique in it."""

    @abc.abstractmethod
    def connect(self, place: Path) -> AbstractAsyncContextManager[Any]:
        """A connection of the business, no transaction open."""

    @abc.abstractmethod
    def begin(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        """A transaction as the business itself starts one: it commits at the end, and rolls back if the block raises."""

    @abc.abstractmethod
    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        """A savepoint as the business itself makes one: it is released at the end, and rolled back if the block raises."""

    @abc.abstractmethod
    async def write(self, connection: Any, effect: str) -> None:
        """Write an effect through a connection of the business."""

    @abc.abstractmethod
    async def effects(self, place: Path) -> list[str]:
        """Return the table's rows, as another connection sees them."""

    @abc.abstractmethod
    async def age(self, place: Path, seconds: float) -> None:
        """Make all rows and barriers older by `seconds`."""

    def make_keeping(self, place: Path, **settings: Any) -> OutboxStore:
        """As `make`, with `keep_sent`, `keep_parked` or `blank`. An outbox without these settings leaves it out, and `rows` too."""
        pytest.skip("this outbox has no settings for what stays of its rows")

    async def rows(self, place: Path) -> list[tuple[int, str, bytes | None, bytes | None, str | None]]:
        """All rows by id: state, message id, key, value and packed headers, as another connection sees them."""
        raise NotImplementedError("a suite that has make_keeping needs rows as well: return what is in the table, by id")


def message(value: bytes = b"v", *, key: bytes | None = None, topic: str = "orders", message_id: str | None = None) -> Outgoing:
    """A message with its own id."""
    return Outgoing(topic, value, key, message_id=message_id or os.urandom(8).hex())


class OutboxScene:
    """One test's outbox, which has its own tables."""

    def __init__(self, suite: Business, place: Path) -> None:
        self.runner = asyncio.Runner()
        self.suite, self.place = suite, place
        self.opened: list[OutboxStore] = []
        self.run(suite.prepare(place))
        self.outbox = self.open()

    def open(self, **keeping: Any) -> OutboxStore:
        """One more outbox object on the same tables, with settings of what stays if there are any, opened."""
        outbox = self.suite.make_keeping(self.place, **keeping) if keeping else self.suite.make(self.place)
        self.opened.append(outbox)
        self.run(outbox.open())
        return outbox

    def rows(self) -> list[tuple[int, str, bytes | None, bytes | None, str | None]]:
        """All rows of the table by id: state, message id, key, value and packed headers."""
        return self.run(self.suite.rows(self.place))

    def end(self) -> None:
        """Close everything."""
        for outbox in self.opened:
            self.run(outbox.close())
        self.runner.close()

    def run(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop that the outboxes live on, for a minute at most."""

        async def bounded() -> T:
            async with asyncio.timeout(60):
                return await waiting

        return self.runner.run(bounded())

    def commit(self, *messages: Outgoing, effects: Collection[str] = (), boom: bool = False) -> None:
        """One business transaction that writes `effects` and sends `messages`; `boom` raises at its end."""

        async def commit() -> None:
            async with self.suite.connect(self.place) as connection:
                with suppress(RolledBack):
                    async with self.outbox.transaction(connection) as transaction:
                        for effect in effects:
                            await self.suite.write(connection, effect)
                        for one in messages:
                            transaction.add(one)
                        if boom:
                            raise RolledBack

        self.run(commit())

    def effects(self) -> list[str]:
        """Return the committed rows of the business, sorted."""
        return sorted(self.run(self.suite.effects(self.place)))

    def own(self, owner: str = "a", *, lease: float = LEASE, share: int = SHARDS, outbox: OutboxStore | None = None) -> Mapping[int, int]:
        """The shards of `owner`, with their tokens."""
        return self.run((outbox or self.outbox).own(owner, lease=lease, share=share))

    def pending(
        self, shards: Mapping[int, int] | None = None, *, limit: int = 1000, outbox: OutboxStore | None = None, **asked: Any
    ) -> list[OutboxRow]:
        """Return the due rows of `shards`; default: of all. Before it, rows go on that wait behind none any more."""
        mine = dict.fromkeys(range(SHARDS), 0) if shards is None else shards
        return self.run(self._freed_and_pending(outbox or self.outbox, mine, limit=limit, **asked))

    async def _freed_and_pending(self, outbox: OutboxStore, mine: Mapping[int, int], **asked: Any) -> list[OutboxRow]:
        while await outbox.free(block_key=asked.get("block_key", True)):
            pass
        return await outbox.pending(mine, **asked)

    def values(self, **asked: Any) -> list[bytes | None]:
        """The values of `pending`."""
        return [row.message.value for row in self.pending(**asked)]

    def sent(self, rows: Collection[OutboxRow], shards: Mapping[int, int], *, outbox: OutboxStore | None = None) -> int:
        """Say that the broker acknowledged `rows`."""
        return self.run((outbox or self.outbox).sent([Sent(row.id, row.shard) for row in rows], shards))

    def fail(
        self,
        shards: Mapping[int, int],
        row: OutboxRow,
        again_in: float | None,
        *,
        cause: str = "refused",
        outbox: OutboxStore | None = None,
    ) -> int:
        """Say that `row` could not be sent."""
        return self.run((outbox or self.outbox).failed([Failed(row.id, row.shard, cause, again_in)], shards))

    def cleanup(self, outbox: Any = None) -> int:
        """Clean up; return how many records went."""
        maintained: Any = outbox or self.outbox
        return int(self.run(maintained.cleanup()))


class OutboxWriting:
    """The side of the business."""

    def test_a_row_is_there_from_the_commit_on_and_not_before(self, scene: OutboxScene) -> None:
        async def business() -> None:
            async with scene.suite.connect(scene.place) as connection, scene.outbox.transaction(connection) as transaction:
                await scene.suite.write(connection, "a")
                transaction.add(message(b"a"))
                await transaction.flush()
                during.extend(await scene.outbox.pending(dict.fromkeys(range(64), 0), limit=10))

        during: list[object] = []
        scene.run(business())
        assert (during, scene.values(), scene.effects()) == ([], [b"a"], ["a"])

    def test_what_is_rolled_back_was_never_sent(self, scene: OutboxScene) -> None:
        scene.commit(message(), message(), effects=["a"], boom=True)
        assert (scene.pending(), scene.effects()) == ([], [])
        scene.commit(message(b"b"), effects=["b"])
        assert (scene.values(), scene.effects()) == ([b"b"], ["b"])
        scene.commit(effects=["c"])
        assert (scene.values(), scene.effects()) == ([b"b"], ["b", "c"])

    def test_rows_of_a_transaction_that_was_joined_end_as_it_does(self, scene: OutboxScene) -> None:
        async def business(commits: bool) -> None:
            async with scene.suite.connect(scene.place) as connection:
                with suppress(RolledBack):
                    async with scene.suite.begin(connection):
                        await scene.suite.write(connection, "a")
                        async with scene.outbox.transaction(connection):
                            await scene.suite.write(connection, "b")
                            scene.outbox.send("orders", b"b")
                        await scene.suite.write(connection, "c")
                        if not commits:
                            raise RolledBack

        scene.run(business(commits=False))
        assert (scene.values(), scene.effects()) == ([], [])
        scene.run(business(commits=True))
        assert (scene.values(), scene.effects()) == ([b"b"], ["a", "b", "c"])

    def test_a_block_that_joined_and_raises_leaves_nothing_and_what_was_before_it_stays(self, scene: OutboxScene) -> None:
        async def business() -> None:
            async with scene.suite.connect(scene.place) as connection, scene.suite.begin(connection):
                async with scene.outbox.transaction(connection) as first:
                    first.add(message(b"a"))
                await scene.suite.write(connection, "a")
                with pytest.raises(RolledBack):  # noqa: PT012  # the block is what is tried
                    async with scene.outbox.transaction(connection) as second:
                        await scene.suite.write(connection, "b")
                        second.add(message(b"b"))
                        raise RolledBack

        scene.run(business())
        assert (scene.values(), scene.effects()) == ([b"a"], ["a"])

    def test_a_savepoint_that_is_rolled_back_takes_its_rows_and_no_others_and_a_released_one_keeps_them(self, scene: OutboxScene) -> None:
        async def business() -> None:
            async with scene.suite.connect(scene.place) as connection, scene.outbox.transaction(connection) as transaction:
                transaction.add(message(b"before"))
                with pytest.raises(RolledBack):  # noqa: PT012  # the block is what is tried
                    async with scene.suite.savepoint(connection):
                        await scene.suite.write(connection, "inside")
                        transaction.add(message(b"inside"))
                        raise RolledBack
                transaction.add(message(b"between"))
                async with scene.suite.savepoint(connection):
                    transaction.add(message(b"released"))
                    await scene.suite.write(connection, "released")
                transaction.add(message(b"after"))

        scene.run(business())
        assert (scene.values(), scene.effects()) == ([b"before", b"between", b"released", b"after"], ["released"])

    def test_savepoints_inside_of_savepoints_are_seen(self, scene: OutboxScene) -> None:
        async def level(connection: Any, transaction: Any, name: bytes, stays: bool, *deeper: bool) -> None:
            with suppress(RolledBack):
                async with scene.suite.savepoint(connection):
                    transaction.add(message(name + b"1"))
                    for inner in deeper:
                        await level(connection, transaction, b"inner", inner)
                    transaction.add(message(name + b"2"))
                    if not stays:
                        raise RolledBack

        async def business(outer: bool, inner: bool) -> None:
            async with scene.suite.connect(scene.place) as connection, scene.outbox.transaction(connection) as transaction:
                transaction.add(message(b"top1"))
                await level(connection, transaction, b"outer", outer, inner)
                transaction.add(message(b"top2"))

        expected: list[bytes | None] = []
        for outer, inner in ((True, True), (True, False), (False, True), (False, False)):
            scene.run(business(outer, inner))
            of_inner = [b"inner1", b"inner2"] if inner else []
            expected += [b"top1", *([b"outer1", *of_inner, b"outer2"] if outer else []), b"top2"]
            assert scene.values() == expected, (outer, inner)

    def test_a_statement_that_fails_in_a_savepoint_takes_the_rows_of_the_savepoint_alone(self, scene: OutboxScene) -> None:
        scene.commit(effects=["taken"])

        async def business() -> None:
            async with scene.suite.connect(scene.place) as connection, scene.outbox.transaction(connection) as transaction:
                transaction.add(message(b"before"))
                with pytest.raises(Exception):  # noqa: B017, PT011, PT012  # the driver's own error
                    async with scene.suite.savepoint(connection):
                        transaction.add(message(b"inside"))
                        await scene.suite.write(connection, "taken")
                await scene.suite.write(connection, "after")

        scene.run(business())
        assert (scene.values(), scene.effects()) == ([b"before"], ["after", "taken"])

    def test_rows_are_inserted_in_the_order_of_the_calls_and_equal_keys_share_a_shard(self, scene: OutboxScene) -> None:
        values = [str(number).encode() for number in range(300)]
        scene.commit(*(message(value, key=value[-1:], topic="bills" if value < b"2" else "orders") for value in values))
        rows = scene.pending()
        assert [row.message.value for row in rows] == values
        assert [row.id for row in rows] == sorted({row.id for row in rows})
        assert all(row.shard == shard_of(row.message) for row in rows)
        assert len({(row.message.topic, row.message.key) for row in rows}) == 20
        assert len({(row.message.topic, row.message.key, row.shard) for row in rows}) == 20

    def test_a_message_comes_out_as_it_went_in(self, scene: OutboxScene) -> None:
        messages = [
            Outgoing("orders", b"\0\xff\n'\"", b"\0k", (("h", b"\0\xff"), ("h", None), ("", b""), ("ü", b"x")), 7, message_id="é" * 90),
            Outgoing("orders", None, None, (), None, message_id="'; DROP TABLE ackwise_outbox; --"),
            Outgoing("a.b-c_d", b"", b"", message_id="x" * 200),
            Outgoing("orders", bytes(range(256)) * 20_000, b"large", (("h", b"y" * 100_000),)),
        ]
        for one in messages:
            scene.commit(one)
        rows = scene.pending()
        assert [row.message for row in rows] == messages
        assert {(row.attempts, row.created_ms > 1.6e12) for row in rows} == {(0, True)}

    def test_rows_of_nested_blocks_are_written_in_the_order_of_the_calls_through_either_handle(self, scene: OutboxScene) -> None:
        async def business(fails: bool) -> None:
            async with scene.suite.connect(scene.place) as connection, scene.outbox.transaction(connection) as outer:
                outer.add(message(b"1", key=b"k"))
                with suppress(RolledBack):
                    async with scene.outbox.transaction(connection) as inner:
                        inner.add(message(b"2", key=b"k"))
                        outer.add(message(b"3", key=b"k"))
                        inner.add(message(b"4", key=b"k"))
                        if fails:
                            raise RolledBack
                outer.add(message(b"5", key=b"k"))

        scene.run(business(False))
        assert scene.values() == [b"1", b"2", b"3", b"4", b"5"]
        scene.run(business(True))
        assert scene.values() == [b"1", b"2", b"3", b"4", b"5", b"1", b"5"], "what is added inside a block belongs to it"

    def test_send_means_the_innermost_transaction_of_its_outbox(self, scene: OutboxScene) -> None:
        async def business() -> None:
            async with scene.suite.connect(scene.place) as connection, scene.outbox.transaction(connection) as transaction:
                mine = scene.outbox.send("orders", b"1", key=b"k", headers=(("h", b"1"),), partition=3)
                assert scene.outbox.send("orders", b"2", message_id="given") == "given"
                assert await asyncio.create_task(in_a_task()) != mine
                transaction.send("orders", b"4")

        async def in_a_task() -> str:
            return scene.outbox.send("orders", b"3")

        scene.run(business())
        rows = scene.pending()
        assert [row.message.value for row in rows] == [b"1", b"2", b"3", b"4"]
        assert (rows[0].message.key, rows[0].message.headers, rows[0].message.partition) == (b"k", (("h", b"1"),), 3)

    def test_send_outside_of_a_transaction_is_refused(self, scene: OutboxScene) -> None:
        async def business() -> Any:
            async with scene.suite.connect(scene.place) as connection:
                async with scene.outbox.transaction(connection) as transaction:
                    pass
                with pytest.raises(TransactionAborted, match="had ended"):
                    transaction.send("orders", b"late")
                with pytest.raises(TransactionAborted, match="outside of a transaction"):
                    scene.outbox.send("orders", b"late")

        scene.run(business())
        assert scene.pending() == []

    def test_a_writer_writes_into_the_transaction_that_is_open(self, scene: OutboxScene) -> None:
        async def business(commits: bool) -> None:
            async with scene.suite.connect(scene.place) as connection:
                with suppress(RolledBack):
                    async with scene.suite.begin(connection):
                        writer = scene.outbox.writer(connection)
                        writer.add(message(b"1"))
                        writer.send("orders", b"2")
                        await writer.flush()
                        await writer.flush()
                        if not commits:
                            raise RolledBack
            scene.outbox.wake()

        scene.run(business(commits=False))
        assert scene.values() == []
        scene.run(business(commits=True))
        assert scene.values() == [b"1", b"2"]

    def test_a_commit_wakes_whoever_waits_for_rows(self, scene: OutboxScene) -> None:
        async def race() -> None:
            await scene.outbox.pending({0: 1}, limit=1)
            waiting = asyncio.create_task(scene.outbox.wait_for_rows(3600.0))
            async with scene.suite.connect(scene.place) as connection, another.transaction(connection) as transaction:
                transaction.add(message())
            await waiting

        another = scene.open()
        scene.run(race())

    def test_a_commit_since_the_last_look_is_not_waited_for_and_waiting_ends_without_rows(self, scene: OutboxScene) -> None:
        async def race() -> None:
            await scene.outbox.pending({0: 1}, limit=1)
            await scene.outbox.wait_for_rows(0.01)
            await scene.outbox.pending({0: 1}, limit=1)
            async with scene.suite.connect(scene.place) as connection, scene.outbox.transaction(connection) as transaction:
                transaction.add(message())
            await scene.outbox.wait_for_rows(3600.0)

        scene.run(race())
