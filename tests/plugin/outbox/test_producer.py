"""`TransactionalProducer`, with an outbox and a Kafka in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.plugin.outbox.halfstore import HalfStore
from tests.waiting import PATIENCE, until

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.policies.policies import Outbox
from ackwise.middleware.storage.outbox import Prepared, TransactionOutcome, Wait
from ackwise.plugin.outbox.halfmessages import LocalTransaction
from ackwise.plugin.outbox.transactionalproducer import TransactionalProducer
from ackwise.stores.memoryoutbox import MemoryConnection, MemoryOutbox
from ackwise.testing import MemoryKafka

PAID = Outgoing("paid", b"42", key=b"k", message_id="pay-42")


@pytest.fixture
async def kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as kafka:
        kafka.create_topic("paid")
        yield kafka


@pytest.fixture
def outbox() -> MemoryOutbox:
    return MemoryOutbox()


async def until_sent(kafka: MemoryKafka, count: int = 1) -> list[tuple[bytes | None, bytes | None]]:
    await until(lambda: len(kafka.records("paid")) >= count)
    return [(record.value, dict(record.headers)["message-id"]) for record in kafka.records("paid")]


async def until_deleted(outbox: MemoryOutbox) -> None:
    """What was sent is deleted after that."""
    await until(outbox.status, lambda status: not status.waiting)


async def test_a_message_is_sent_once_its_local_transaction_has_committed(kafka: MemoryKafka, outbox: MemoryOutbox) -> None:
    async with TransactionalProducer("orders", outbox, brokers=kafka.bootstrap) as producer:
        connection = MemoryConnection()
        async with producer.prepare(PAID) as transaction, connection.transaction():
            await transaction.barrier(connection)
        assert transaction.ended is TransactionOutcome.COMMIT
        assert await until_sent(kafka) == [(b"42", b"pay-42")]
    assert (await outbox_status(outbox)).waiting == 0


async def outbox_status(outbox: MemoryOutbox):  # type: ignore[no-untyped-def]
    await outbox.open()
    return await outbox.status()


async def test_a_local_transaction_that_can_not_be_awaited_is_refused_before_anything_is_written(
    kafka: MemoryKafka, outbox: MemoryOutbox
) -> None:
    def local(transaction: LocalTransaction) -> None:
        pytest.fail("it is not called")

    async with TransactionalProducer("orders", outbox, brokers=kafka.bootstrap) as producer:
        for wrong in (local, None):
            with pytest.raises(ConfigurationError, match=r"can't be awaited; write `async def local\(tx\)`"):
                await producer.send_in_transaction(PAID, wrong)  # type: ignore[arg-type]
        assert outbox._last_id == 0


async def test_a_lambda_may_return_a_coroutine_and_is_rolled_back_if_it_returns_none(kafka: MemoryKafka, outbox: MemoryOutbox) -> None:
    async def pay(transaction: LocalTransaction) -> None:
        connection = MemoryConnection()
        async with connection.transaction():
            await transaction.barrier(connection)

    async with TransactionalProducer("orders", outbox, brokers=kafka.bootstrap) as producer:
        assert await producer.send_in_transaction(PAID, lambda tx: pay(tx)) is TransactionOutcome.COMMIT
        await until_sent(kafka)
        with pytest.raises(ConfigurationError, match=r"returned int, which can't be awaited"):
            await producer.send_in_transaction([Outgoing("paid", b"2")], lambda tx: 2)  # type: ignore[arg-type, return-value]
        await until_deleted(outbox)
        assert (await outbox.status()).prepared == 0
    assert len(kafka.records("paid")) == 1


async def test_a_local_transaction_that_fails_sends_nothing(kafka: MemoryKafka, outbox: MemoryOutbox) -> None:
    async def local(transaction: LocalTransaction) -> None:
        connection = MemoryConnection()
        async with connection.transaction():
            await transaction.barrier(connection)
            raise ValueError("no money")

    async with TransactionalProducer("orders", outbox, brokers=kafka.bootstrap) as producer:
        with pytest.raises(ValueError, match="no money"):
            await producer.send_in_transaction(PAID, local)
        status = await outbox.status()
        assert (status.prepared, status.waiting) == (0, 0)
    assert kafka.records("paid") == []


async def test_what_a_dead_instance_left_is_checked_and_sent_by_another(kafka: MemoryKafka, outbox: MemoryOutbox) -> None:
    await outbox.open()
    connection = MemoryConnection()
    await outbox.prepare([PAID], "left", producer_group="orders", barrier_in=await outbox.database_id(), first_check=0.0)
    async with connection.transaction():
        await outbox.barrier(connection, "left")
    async with TransactionalProducer("orders", outbox, brokers=kafka.bootstrap) as producer:
        assert await until_sent(kafka) == [(b"42", b"pay-42")]
        assert producer.counts.committed == 1


async def test_a_check_callback_answers_where_there_is_no_sql(kafka: MemoryKafka, outbox: MemoryOutbox) -> None:
    asked: list[Prepared] = []

    async def check(half: Prepared) -> TransactionOutcome:
        asked.append(half)
        return TransactionOutcome.COMMIT

    async def local(transaction: LocalTransaction) -> TransactionOutcome:
        return TransactionOutcome.UNKNOWN

    async with TransactionalProducer("orders", outbox, brokers=kafka.bootstrap, check=check) as producer:
        assert await producer.send_in_transaction(PAID, local, first_check=0.0) is TransactionOutcome.UNKNOWN
        await until_sent(kafka)
    assert [half.message.message_id for half in asked] == ["pay-42"]


async def test_another_system_says_whether_and_what_to_send(kafka: MemoryKafka, outbox: MemoryOutbox) -> None:
    answers: list[TransactionOutcome | Wait | bytes] = [Wait("10ms"), b"9.99"]

    async def check(half: Prepared) -> TransactionOutcome | Wait | bytes:
        return answers.pop(0)

    async with TransactionalProducer("orders", outbox, brokers=kafka.bootstrap, check=check, max_checks=1) as producer:
        async with producer.prepare(Outgoing("paid", None, b"k", message_id="pay-42"), first_check=0.0) as transaction:
            transaction.tell(TransactionOutcome.UNKNOWN)
        assert await until_sent(kafka) == [(b"9.99", b"pay-42")]
        assert (producer.counts.waiting, producer.counts.committed, producer.counts.parked) == (1, 1, 0)


async def test_a_relay_apart_sends_what_is_committed_here(kafka: MemoryKafka, outbox: MemoryOutbox) -> None:
    async with TransactionalProducer("orders", Outbox(outbox, relay="apart"), brokers=kafka.bootstrap) as producer:
        connection = MemoryConnection()
        async with producer.prepare(PAID) as transaction, connection.transaction():
            await transaction.barrier(connection)
        assert (await outbox.status()).waiting == 1
    assert kafka.records("paid") == []


async def test_it_is_entered_once_and_prepares_nothing_outside_of_its_block(kafka: MemoryKafka, outbox: MemoryOutbox) -> None:
    producer = TransactionalProducer("orders", outbox, brokers=kafka.bootstrap)
    with pytest.raises(ConfigurationError, match="not started"):
        producer.prepare(PAID)
    async with producer:
        pass
    with pytest.raises(ConfigurationError, match="entered before"):
        await producer.__aenter__()
    with pytest.raises(ConfigurationError, match="not started"):
        producer.prepare(PAID)


async def test_once_its_relay_has_ended_it_raises_that_and_prepares_nothing(kafka: MemoryKafka, outbox: MemoryOutbox) -> None:
    await outbox.open()
    await outbox.claim_relay("cdc")
    producer = await TransactionalProducer("orders", outbox, brokers=kafka.bootstrap).__aenter__()
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait(producer._tasks, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(ConfigurationError, match="relays of kind 'cdc' send the rows"):
        producer.prepare(PAID)
    with pytest.raises(ConfigurationError, match="relays of kind 'cdc' send the rows"):
        await producer.__aexit__(None, None, None)


async def test_a_business_database_of_its_own_has_the_barriers(kafka: MemoryKafka, outbox: MemoryOutbox) -> None:
    shop = MemoryOutbox()
    async with TransactionalProducer("orders", outbox, business=shop, brokers=kafka.bootstrap) as producer:
        connection = MemoryConnection()
        async with producer.prepare(PAID) as transaction, connection.transaction():
            await transaction.barrier(connection)
        await until_sent(kafka)
        assert await shop.probe(transaction.id, wait=0.0) is TransactionOutcome.COMMIT
        assert (await shop.status()).waiting == 0


async def test_half_messages_in_the_sqlite_file_of_the_business_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    for business in (None, url):
        with pytest.raises(ConfigurationError, match="their own file"):
            await TransactionalProducer("orders", url, business=business).__aenter__()


def test_a_producer_group_that_is_no_name_is_refused_without_its_password(outbox: MemoryOutbox) -> None:
    for name in ("", "a b", "x" * 101, 3):
        with pytest.raises(ConfigurationError, match="producer_group is"):
            TransactionalProducer(name, outbox)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="producer_group is a URL; use up to 100 letters") as error:
        TransactionalProducer("postgresql://shop:secret@localhost/shop", "orders")
    assert "secret" not in str(error.value)


def test_settings_that_can_not_work_are_refused(outbox: MemoryOutbox) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"check_every": 0}, "every 0 s"),
        ({"max_checks": 0}, "give a number from 1"),
        ({"first_check": "soon"}, "first of the check-back"),
        ({"check": lambda half: TransactionOutcome.COMMIT}, "async def check"),
    ]
    for setting, sentence in wrong:
        with pytest.raises(ConfigurationError, match=sentence):
            TransactionalProducer("orders", outbox, **setting)


async def test_what_was_opened_here_is_closed_and_what_was_given_is_not() -> None:
    class Opened(HalfStore):
        pass

    given = Opened()
    given.fail = lambda call: call == "due_checks"
    producer = TransactionalProducer("orders", Outbox(given, relay="apart"))
    async with producer:
        pass
    assert (given.opened, given.closed) == (1, 0)


async def test_a_database_that_is_away_at_the_start_is_said() -> None:
    class Away(HalfStore):
        async def open(self) -> None:
            raise StoreUnavailable("the database does not answer")

    with pytest.raises(StoreUnavailable):
        await TransactionalProducer("orders", Away()).__aenter__()
