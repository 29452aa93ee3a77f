"""The block of an outbox without a database: what it sends, and what becomes of the connection."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest

from ackwise.middleware.errors import AckwiseError, StoreUnavailable, TransactionAborted
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.stores.protocol.outbox import Buffer, RowColumns, Sends
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement, Steps, run_now
from ackwise.stores.sql.outboxwriting import Block, Business, Writes, transaction


class Shop:
    """A connection that notes what is sent, by first words, and fails where it is configured to."""

    def __init__(self, *, open: Packet = (), **fails: Problem) -> None:
        self.sent = list[str]()
        self.is_open = self.is_closed = False
        self._fails = fails
        self.business = Business(
            Writes(_insert, open=open),
            self,
            is_open=lambda: self.is_open,
            watched=self._watched,
            close=self._close,
            as_error=lambda error: StoreUnavailable(str(error)),
            timeout=1.0,
        )

    async def send(self, packet: Packet) -> Sequence[Answer]:
        for statement in packet:
            word = statement.text.partition(" ")[0]
            self.sent.append(word)
            if problem := self._fails.get(word):
                raise Failure(problem, OSError(word))
            self.is_open = word not in ("COMMIT", "ROLLBACK")
        return [Answer()] * len(packet)

    def _watched(self, block: Block) -> AbstractContextManager[None]:
        return nullcontext()

    def _close(self) -> None:
        self.is_closed = True


def _insert(rows: Sequence[RowColumns], before: Packet) -> Steps[None]:
    yield [*before, Statement("INSERT")]


async def trade(shop: Shop, *, boom: bool = False) -> bool:
    """Send one message; return whether relays were woken."""
    woken = list[bool]()
    async with transaction(shop.business, shop, Sends(), lambda: woken.append(True)) as block:
        block.send("orders", b"1")
        if boom:
            raise ZeroDivisionError
    return bool(woken)


async def test_a_transaction_of_its_own_is_marked_and_committed() -> None:
    shop = Shop()
    assert await trade(shop)
    assert shop.sent == ["BEGIN", "SAVEPOINT", "INSERT", "RELEASE", "COMMIT"]
    assert not shop.is_closed


async def test_a_transaction_that_is_joined_is_left_to_whoever_began_it() -> None:
    shop = Shop()
    shop.is_open = True
    assert not await trade(shop)
    with pytest.raises(ZeroDivisionError):
        await trade(shop, boom=True)
    assert shop.sent == ["SAVEPOINT", "INSERT", "RELEASE", "SAVEPOINT", "ROLLBACK", "RELEASE"]


async def test_a_mark_that_is_gone_aborts_and_undoes() -> None:
    shop = Shop(RELEASE=Problem.ENDED)
    with pytest.raises(TransactionAborted, match="leave its end to the block"):
        await trade(shop)
    assert shop.sent == ["BEGIN", "SAVEPOINT", "INSERT", "RELEASE", "ROLLBACK"]


@pytest.mark.parametrize(
    ("shop", "sent"),
    [
        (Shop(ROLLBACK=Problem.LOST), ["BEGIN", "SAVEPOINT", "ROLLBACK"]),
        (Shop(ROLLBACK=Problem.REFUSED), ["BEGIN", "SAVEPOINT", "ROLLBACK"]),
    ],
)
async def test_a_connection_whose_rollback_fails_is_closed(shop: Shop, sent: list[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        await trade(shop, boom=True)
    assert shop.sent == sent
    assert shop.is_closed


async def test_a_commit_without_an_answer_is_in_doubt_and_its_connection_is_closed() -> None:
    shop = Shop(COMMIT=Problem.LOST)
    with pytest.raises(StoreUnavailable, match="not known whether the transaction committed"):
        await trade(shop)
    assert shop.sent[-1] == "COMMIT"
    assert shop.is_closed


async def test_a_commit_that_is_refused_is_rolled_back_and_raises_what_the_driver_says() -> None:
    shop = Shop(COMMIT=Problem.REFUSED)
    with pytest.raises(OSError, match="COMMIT"):
        await trade(shop)
    assert shop.sent[-2:] == ["COMMIT", "ROLLBACK"]
    assert not shop.is_closed


async def test_a_block_that_can_not_begin_raises_what_the_driver_says_and_leaves_nothing_open() -> None:
    shop = Shop(SAVEPOINT=Problem.REFUSED)
    with pytest.raises(OSError, match="SAVEPOINT"):
        await trade(shop)
    assert shop.sent == ["BEGIN", "SAVEPOINT", "ROLLBACK"]


async def test_where_the_driver_does_not_know_what_is_open_a_block_that_can_not_begin_is_rolled_back_all_the_same() -> None:
    shop = Shop(open=[Statement("PROOF")], BEGIN=Problem.REFUSED)
    with pytest.raises(OSError, match="BEGIN"):
        await trade(shop)
    assert shop.sent == ["BEGIN", "ROLLBACK"]


async def test_a_row_that_is_refused_is_an_error_of_ackwise() -> None:
    with pytest.raises(AckwiseError, match="INSERT"):
        await trade(Shop(INSERT=Problem.REFUSED))


class Now:
    """Sends what a `Shop` would, for code that is not asynchronous."""

    def __init__(self) -> None:
        self.sent = list[str]()

    def send(self, packet: Packet) -> Sequence[Answer]:
        self.sent += [text.partition(" ")[0] for text, _ in packet]
        return [Answer()] * len(packet)


def test_a_block_needs_no_event_loop() -> None:
    shop, now = Shop(), Now()
    block = Block(shop.business)
    now.send(block.begin())
    shop.is_open = True
    block.send("orders", b"1")
    run_now(block.finish(), now)
    now.send(block.commit())
    assert block.commits
    assert now.sent == ["BEGIN", "SAVEPOINT", "INSERT", "RELEASE", "COMMIT"]


def test_a_block_on_a_connection_takes_the_rows_of_each_block_around_it_on_that_connection() -> None:
    sends, (first, other, last) = Sends(), (Buffer(), Buffer(), Buffer())
    with sends.within(first, "a"), sends.within(other, "b"), sends.within(last, "a"):
        first.add(Outgoing("orders", b"1"))
        sends.send("orders", b"2")
        other.add(Outgoing("orders", b"3"))
    assert [[row.value for row in buffer.rows] for buffer in (first, other, last)] == [[], [b"3"], [b"1", b"2"]]
    first.add(Outgoing("orders", b"4"))
    assert len(first.rows) == 1
