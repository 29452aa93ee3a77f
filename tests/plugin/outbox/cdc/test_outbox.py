"""The outbox by its database's log, on a real PostgreSQL: what is sent, when the position moves, and what is resumed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes import FULL_DISK, Sink
from tests.plugin.outbox.cdc.world import World, close_outbox, until

from ackwise.middleware.errors import ConfigurationError, PublishRefused
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.changes import ChangesLost, UnreadableChange
from ackwise.middleware.storage.outbox import CheckAnswer, TransactionOutcome
from ackwise.stores.postgres.driver import AsyncpgRunner
from ackwise.stores.postgres.replication import PostgresChanges, slot
from ackwise.stores.postgres.replication.slot import Known
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.sql.operation import run

pytestmark = pytest.mark.servers


async def test_a_committed_row_is_sent_as_it_was_written_and_deleted(any_world: World) -> None:
    message = Outgoing("orders", b"\x00\xff tea", key=b"k\x00", headers=(("h", b"\x01"), ("none", None)), partition=0, message_id="id-1 ✓")
    async with any_world.running():
        async with any_world.outbox.transaction(any_world.database) as outbox:
            outbox.add(message)
        await any_world.is_sent_and_deleted(b"\x00\xff tea")
    assert any_world.kafka.sent == [message]


async def test_rows_are_sent_in_the_order_of_the_commits(any_world: World) -> None:
    async with any_world.running(), any_world.connected() as late:
        async with any_world.outbox.transaction(late) as outbox:
            outbox.send("orders", b"written first, committed last")
            await outbox.flush()
            await any_world.write(b"1", b"2")
            await until(lambda: any_world.kafka.values == [b"1", b"2"])
        await any_world.is_sent_and_deleted(b"written first, committed last")
    assert any_world.kafka.values == [b"1", b"2", b"written first, committed last"]


async def test_what_was_rolled_back_is_never_sent_nor_what_a_savepoint_took_back(world: World) -> None:
    async with world.running():
        with pytest.raises(ValueError, match="no"):  # noqa: PT012  # it ends where the relay is awaited
            async with world.outbox.transaction(world.database) as outbox:
                outbox.send("orders", b"rolled back")
                await outbox.flush()
                raise ValueError("no")
        async with world.database.transaction():
            await world.write(b"before")
            with pytest.raises(ValueError, match="no"):  # noqa: PT012  # it ends where the relay is awaited
                async with world.database.transaction():
                    await world.write(b"inside the savepoint")
                    raise ValueError("no")
            await world.write(b"after")
        await world.is_sent_and_deleted(b"before", b"after")
    assert world.kafka.values == [b"before", b"after"]


async def test_rows_that_are_older_than_the_position_are_sent_from_the_table(any_world: World) -> None:
    await any_world.write(b"1", b"2")
    async with any_world.running():
        await any_world.write(b"3")
        await any_world.is_sent_and_deleted(b"1", b"2", b"3")
    assert sorted(filter(None, any_world.kafka.values)) == [b"1", b"2", b"3"]


async def test_rows_that_stay_for_an_audit_are_sent_once_and_have_no_payload(any_world: World) -> None:
    any_world.keep_sent = 3600.0
    for number in range(2):
        async with any_world.running():
            await any_world.write(b"%d" % number, key=b"k")
            await any_world.is_sent_and_deleted(b"%d" % number)
    assert await any_world.rows("SELECT state, message_key, value FROM ackwise_outbox") == [(4, None, None)] * 2
    assert any_world.kafka.values == [b"0", b"1"]


async def test_after_a_stop_nothing_is_sent_twice_and_nothing_missing(any_world: World) -> None:
    for number in range(3):
        async with any_world.running():
            await any_world.write(b"%d" % number)
            await any_world.is_sent_and_deleted(b"%d" % number)
        await any_world.write(b"while away %d" % number)
    async with any_world.running():
        await any_world.is_sent_and_deleted(b"while away 2")
    assert len(any_world.kafka.ids) == len(set(any_world.kafka.ids)) == 6


async def test_the_position_stays_before_what_kafka_did_not_acknowledge(world: World) -> None:
    async with world.running():
        await world.write(b"1")
        await world.is_sent_and_deleted(b"1")
    before = await world.confirmed()
    world.kafka.down = True
    async with world.killed():
        await world.write(b"2")
        await until(lambda: world.kafka.asked >= 2)
    async with world.running() as relay:
        await world.write(b"3")
        await until(lambda: world.kafka.asked >= 4)
        assert relay.counts.position is None
        assert await world.confirmed() == before
        world.kafka.down = False
        await world.is_sent_and_deleted(b"2", b"3")
        assert world.kafka.values == [b"1", b"2", b"3"]


async def test_what_was_acknowledged_and_not_reported_is_sent_again_under_its_id(world: World) -> None:
    async with world.killed() as relay:
        await world.write(b"1", b"2")
        await world.write(b"3")
        await world.is_sent_and_deleted(b"1", b"2", b"3")
        await until(lambda: relay.counts.position is not None)
    first = list(world.kafka.ids)
    async with world.running() as relay:
        await until(lambda: relay.counts.position is not None and len(world.kafka.ids) >= 6)
    assert world.kafka.ids == first + first  # the log is read again from before it, and the rows are gone from the table


async def test_a_row_whose_deletion_was_cut_short_is_deleted_by_the_next_session(world: World) -> None:
    relay = world.relay()
    relay._route._delete = lambda: asyncio.sleep(0)  # type: ignore[attr-defined]
    async with world.killed(relay):
        await world.write(b"1")
        await until(lambda: world.kafka.values == [b"1"])
    assert await world.waiting() == 1
    async with world.running():
        await world.is_sent_and_deleted(b"1")


async def test_an_idle_outbox_lets_the_position_go_forward(world: World) -> None:
    async with world.running():
        before = await world.confirmed()
        await world.database.execute("CREATE TABLE other AS SELECT generate_series(1, 1000) AS n")
        await world.database.execute("SELECT pg_logical_emit_message(false, 'x', 'y')")
        await until(world.confirmed, lambda position: position != before)


async def test_a_row_that_is_inserted_and_deleted_at_once_is_sent_from_the_log(world: World) -> None:
    async with world.running():
        async with world.database.transaction():
            await world.write(b"only in the log")
            await world.database.execute("DELETE FROM ackwise_outbox")
        await until(lambda: world.kafka.values == [b"only in the log"])


async def test_a_half_message_is_sent_once_it_is_decided_whatever_its_size(world: World) -> None:
    value = bytes(range(256)) * 64  # stored out of line: the log of the update does not repeat it
    async with world.running():
        await world.outbox.prepare([Outgoing("orders", value, key=b"k")], "tx-1", producer_group="g")
        await world.outbox.prepare([Outgoing("orders", b"never")], "tx-2", producer_group="g")
        await world.write(b"1", key=b"other")
        await until(lambda: world.kafka.values == [b"1"])
        await world.outbox.decide("tx-2", TransactionOutcome.ROLLBACK)
        await world.outbox.decide("tx-1", TransactionOutcome.COMMIT)
        await world.is_sent_and_deleted(value)
    assert world.kafka.values == [b"1", value]


@pytest.mark.parametrize("size", [1, 64])
async def test_the_content_that_a_check_back_gave_is_sent_and_not_that_of_before(world: World, size: int) -> None:
    before, after = bytes(range(256)) * 64, b"content" * 100 * size
    async with world.running():
        await world.outbox.prepare([Outgoing("orders", before, b"k", message_id="half")], "tx", producer_group="g", first_check=0.0)
        (due,) = await world.outbox.due_checks("g", limit=10, lease=60.0)
        content = Outgoing("orders", after, b"other", message_id="half")
        assert await world.outbox.answered([CheckAnswer(due.id, TransactionOutcome.COMMIT, content=content)]) == 1
        await world.is_sent_and_deleted(after)
    assert world.kafka.values == [after]


async def test_a_refused_row_is_parked_and_holds_its_key_until_it_is_requeued(world: World) -> None:
    world.kafka.refuse = lambda message: message.value == b"bad"
    async with world.running() as relay:
        await world.write(b"1", b"bad", b"2", key=b"a")
        await world.write(b"3", key=b"a")
        await world.write(b"4", key=b"b")
        await until(lambda: world.kafka.values == [b"1", b"4"] and relay.counts.parked == 1)
        (parked,) = await world.outbox.parked()
        assert (parked.cause, parked.attempts) == ("the message is too large", 1)
    async with world.running():  # what is held stays so in the next session, also where the log is read again
        await world.write(b"5", key=b"a")
        await world.write(b"6", key=b"b")
        await until(lambda: world.kafka.values[-1] == b"6")
        await world.waits(3)
        world.kafka.refuse = lambda _: False
        await world.outbox.requeue()
        await world.is_sent_and_deleted(b"bad", b"2", b"3", b"5")
    assert [value for value in world.kafka.values if value not in (b"4", b"6")] == [b"1", b"bad", b"2", b"3", b"5"]


async def test_a_parked_row_that_skips_holds_nothing(world: World) -> None:
    world.kafka.refuse = lambda message: message.value == b"bad"
    async with world.running(world.relay(on_error="skip")):
        await world.write(b"1", b"bad", b"2", key=b"a")
        await world.is_sent_and_deleted(b"1", b"2")
        assert len(await world.outbox.parked()) == 1


async def test_a_row_of_a_missing_topic_waits_in_the_table_and_the_log_goes_on(any_world: World) -> None:
    any_world.kafka.missing = {"misspelt"}
    async with any_world.running() as relay:
        async with any_world.outbox.transaction(any_world.database) as outbox:
            outbox.send("misspelt", b"1", key=b"k")
            outbox.send("orders", b"2", key=b"k")
            outbox.send("misspelt", b"3", key=b"k")
        await until(lambda: any_world.kafka.values == [b"2"] and relay.counts.position is not None)
        await any_world.write(b"4", key=b"k")
        await until(lambda: any_world.kafka.values == [b"2", b"4"])
        left = [(2, True), (2, False)]
        await until(lambda: any_world.rows("SELECT state, attempts > 0 FROM ackwise_outbox ORDER BY id"), lambda rows: rows == left)
    async with any_world.running():  # the key waits in the next session, too
        async with any_world.outbox.transaction(any_world.database) as outbox:
            outbox.send("misspelt", b"5", key=b"k")
        await any_world.write(b"6", key=b"k")
        await until(lambda: any_world.kafka.values == [b"2", b"4", b"6"])
        any_world.kafka.missing = set()
        await any_world.is_sent_and_deleted(b"1", b"3", b"5")
    assert any_world.kafka.values == [b"2", b"4", b"6", b"1", b"3", b"5"]


async def test_a_row_that_has_failed_too_often_is_parked_and_holds_its_key(world: World) -> None:
    world.kafka.missing = {"misspelt"}
    relay = world.relay()
    relay._route._max_attempts = 2  # type: ignore[attr-defined]
    async with world.running(relay):
        async with world.outbox.transaction(world.database) as outbox:
            outbox.send("misspelt", b"1", key=b"k")
            outbox.send("misspelt", b"2", key=b"k")
        await until(world.outbox.parked)
        (parked,) = await world.outbox.parked()
        assert (parked.attempts, parked.cause) == (2, "no such topic; it has failed 2 times")
        assert relay.counts.parked == 1
        await world.waits(1)


async def test_an_outage_of_all_brokers_is_no_attempt(world: World) -> None:
    async with world.running():
        world.kafka.down = True
        await world.write(b"1", key=b"k")
        await until(lambda: world.kafka.asked >= 3)
        assert await world.rows("SELECT attempts FROM ackwise_outbox") == [(0,)]
        world.kafka.down = False
        await world.is_sent_and_deleted(b"1")


async def test_a_row_of_a_missing_topic_that_is_in_no_table_holds_the_log(world: World) -> None:
    world.kafka.missing = {"misspelt"}
    async with world.running() as relay:
        async with world.database.transaction():
            async with world.outbox.transaction(world.database) as outbox:
                outbox.send("misspelt", b"1")
            await world.database.execute("DELETE FROM ackwise_outbox")
        await world.write(b"2")
        await until(lambda: world.kafka.asked >= 3)
        assert relay.counts.position is None
        source = world.source()
        (why,) = [finding for finding in (await source.status()).findings if "is held" in finding]
        assert "to misspelt, committed at " in why
        assert "(no such topic): create the topic" in why
        world.kafka.missing = set()
        await until(lambda: relay.counts.position is not None)
        assert not [finding for finding in (await source.status()).findings if "is held" in finding]
        await source.close()
    assert b"1" in world.kafka.values


async def test_a_refused_row_that_is_not_in_the_table_stops_the_relay_before_it(world: World) -> None:
    world.kafka.refuse = lambda message: message.value == b"bad"
    async with world.ends_with(PublishRefused, "is not in the table and can't be parked"), world.database.transaction():
        await world.write(b"bad")
        await world.database.execute("DELETE FROM ackwise_outbox")
    world.kafka.refuse = lambda _: False
    async with world.running():
        await until(lambda: world.kafka.values == [b"bad"])


#: Another program that writes what no JSON parser reads.
_SPOILED = """
CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.headers := repeat('[', 100000); RETURN NEW; END $$;
CREATE TRIGGER spoil BEFORE INSERT ON ackwise_outbox FOR EACH ROW WHEN (NEW.value = 'bad'::bytea) EXECUTE FUNCTION spoil();
"""


async def test_a_row_that_can_not_be_read_is_parked_and_the_log_goes_on(world: World) -> None:
    async with world.running() as relay:
        await world.database.execute(_SPOILED)
        await world.write(b"1", b"bad", b"2", key=b"a")
        await world.write(b"3", key=b"b")
        await until(lambda: world.kafka.values == [b"1", b"3"])
        (parked,) = await world.outbox.parked()
        assert "can't be read (one of its columns, RecursionError)" in parked.cause
    async with world.running() as relay:
        await world.write(b"4", key=b"b")
        await until(lambda: world.kafka.values[-1] == b"4")
        assert relay.counts.status is not None


async def test_a_row_that_can_not_be_read_and_that_is_in_no_table_stops_the_relay_before_it(world: World) -> None:
    await world.outbox.open()
    await world.database.execute(_SPOILED)
    async with world.ends_with(UnreadableChange, "can't be read .*; it is not in the table"), world.database.transaction():
        await world.write(b"bad")
        await world.database.execute("DELETE FROM ackwise_outbox")


async def test_a_row_deleted_with_its_insert_is_sent_although_its_key_is_held(world: World) -> None:
    world.kafka.refuse = lambda message: message.value == b"bad"
    async with world.running() as relay:
        await world.write(b"bad", key=b"a")
        await until(lambda: relay.counts.parked == 1)
        async with world.database.transaction():
            await world.write(b"only in the log", key=b"a")
            await world.database.execute("DELETE FROM ackwise_outbox WHERE state = 2")
        await until(lambda: world.kafka.values == [b"only in the log"])


async def test_a_transaction_larger_than_what_is_sent_at_once_is_acknowledged_at_its_end(world: World) -> None:
    async with world.running() as relay:
        before = await world.confirmed()
        world.kafka.gate = asyncio.Event()
        await world.database.execute(
            "INSERT INTO ackwise_outbox (message_id, shard, topic, value, size) "
            "SELECT n::text, 0, 'orders', decode(repeat('ab', 5000), 'hex'), 5000 FROM generate_series(1, 5000) n"
        )
        await until(lambda: world.kafka.asked == 1)
        world.kafka.gate.set()
        await until(lambda: len(world.kafka.ids) >= 5000)
        assert world.kafka.largest < 2000  # by bytes, before the number of rows is reached
        assert await world.confirmed() >= before
        await until(lambda: relay.counts.position is not None)
        await world.is_sent_and_deleted()
    assert world.kafka.ids == [str(n) for n in range(1, 5001)]


async def test_a_lost_slot_is_told_and_nothing_passed_over_until_somebody_says_so(world: World) -> None:
    async with world.running():
        await world.write(b"1")
        await world.is_sent_and_deleted(b"1")
    await world.write(b"2")
    await world.drop_slot()
    for _ in range(2):
        await world.refuses(ChangesLost, r"is gone, which was read up to .* still in the outbox.*--replace-lost-slot")
    assert world.kafka.values == [b"1"]
    async with world.running(world.relay(replace_lost=True)):
        await world.write(b"3")
        await world.is_sent_and_deleted(b"2", b"3")
    assert world.kafka.values == [b"1", b"2", b"3"]


async def test_another_server_is_told(world: World) -> None:
    async with world.running():
        pass
    await world.database.execute("UPDATE ackwise_cdc SET system_id = '1'")
    await world.refuses(ChangesLost, "this is another server")


async def test_two_relays_share_a_slot_and_one_takes_over(world: World) -> None:
    second, stop = world.relay(), asyncio.Event()
    async with world.running() as first:
        await world.write(b"1")
        await world.is_sent_and_deleted(b"1")
        waiting = asyncio.create_task(second.run(stop))
        await world.write(b"2")
        await world.is_sent_and_deleted(b"2")
        assert (first.counts.sent, second.counts.sent) == (2, 0)
    await world.write(b"3")
    await world.is_sent_and_deleted(b"3", by=waiting)
    assert second.counts.sent == 1
    stop.set()
    await waiting
    await second._route._store.close()  # type: ignore[attr-defined]
    assert world.kafka.values == [b"1", b"2", b"3"]


async def test_a_relay_that_stops_while_another_looks_at_the_slot_is_not_taken_for_a_loss(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, stop_first, second, stop = world.relay(), asyncio.Event(), world.relay(), asyncio.Event()
    running = asyncio.create_task(first.run(stop_first))
    await world.write(b"1")
    await world.is_sent_and_deleted(b"1", by=running)
    steps = 0

    ask = PostgresChanges._ask

    async def then_the_first_stops(source: PostgresChanges, asked: Any) -> Any:
        nonlocal steps
        found = await ask(source, asked)
        if asyncio.current_task() is waiting and asked.__name__ in ("recall", "look_at"):
            steps += 1
            if steps == 1:
                stop_first.set()
                await running
        return found

    monkeypatch.setattr(PostgresChanges, "_ask", then_the_first_stops)
    waiting = asyncio.create_task(second.run(stop))
    await until(lambda: running.done() or waiting.done())
    await world.write(b"2")
    await world.is_sent_and_deleted(b"2", by=waiting)
    stop.set()
    await waiting
    for relay in (first, second):
        await close_outbox(relay)


async def test_a_relay_that_comes_late_does_not_put_the_position_back(world: World) -> None:
    tables = Tables(None, "ackwise_")
    async with world.running():
        pass

    async def remembered(position: str, system: str = "1") -> str:
        runner = AsyncpgRunner(world.database)
        await run(slot.remember(tables, world.slot, Known(system, 1, position)), runner)
        known = await run(slot.recall(tables, world.slot), runner)
        assert known is not None
        return known.position

    assert [await remembered(each) for each in ("9/0", "A/0", "9/8")] == ["9/0", "A/0", "A/0"]
    assert await remembered("1/0", system="2") == "1/0"


async def test_an_outbox_of_relays_of_the_table_is_refused(world: World) -> None:
    await world.outbox.claim_relay("table")
    await world.refuses(ConfigurationError, "table")


async def test_without_slot_publication_or_table_the_relay_says_what_is_missing(world: World) -> None:
    await world.refuses(ConfigurationError, r"no replication slot .*--create-slot", world.relay(create=False))
    await world.database.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", world.slot)
    await world.refuses(
        ConfigurationError,
        r'no publication ackwise.*CREATE PUBLICATION "ackwise" FOR TABLE "public"."ackwise_outbox"',
        world.relay(create=False),
    )
    await world.database.execute("CREATE TABLE other (n int)")
    await world.database.execute("CREATE PUBLICATION ackwise FOR TABLE other")
    await world.refuses(ConfigurationError, r"no table public\.ackwise_outbox; ALTER PUBLICATION", world.relay(create=False))
    await world.database.execute("ALTER PUBLICATION ackwise ADD TABLE ackwise_outbox")
    await world.database.execute("ALTER PUBLICATION ackwise SET (publish = 'update')")
    await world.refuses(ConfigurationError, "does not publish insert", world.relay(create=False))
    await world.database.execute("ALTER PUBLICATION ackwise SET (publish = 'insert, update')")
    await world.database.execute("ALTER PUBLICATION ackwise SET TABLE ackwise_outbox WHERE (id > 5)")
    await world.refuses(ConfigurationError, "leaves out rows", world.relay(create=False))


async def test_a_publication_that_is_younger_than_the_slot_is_told(world: World) -> None:
    await world.database.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", world.slot)
    await world.write(b"1")
    await world.refuses(ConfigurationError, "made after the slot")


async def test_a_column_that_goes_in_mid_stream_stops_the_relay_and_nothing_is_lost(world: World) -> None:
    # Whichever comes first: the change in the log, or a look at the table, after which the relay starts again and finds what is wrong.
    gone = r"public\.ackwise_outbox was changed while it was read, column value is gone|leaves out column value of public\.ackwise_outbox"
    async with world.ends_with((UnreadableChange, ConfigurationError), gone):
        await world.write(b"1")
        await world.is_sent_and_deleted(b"1")
        await world.database.execute("ALTER TABLE ackwise_outbox RENAME COLUMN value TO payload")
        await world.database.execute(
            "INSERT INTO ackwise_outbox (message_id, shard, topic, payload, size) VALUES ('later', 0, 'orders', '2', 1)"
        )
    await world.database.execute("ALTER TABLE ackwise_outbox RENAME COLUMN payload TO value")
    assert await world.waiting() == 1
    async with world.ends_with(UnreadableChange, r"can't be read .*(no column 'value'|column value is gone)"):
        await until(lambda: world.kafka.values == [b"1", b"2"])  # the table has it, too


async def test_events_are_durable_before_the_row_goes_and_name_the_position(any_world: World) -> None:
    any_world.sink = Sink()
    async with any_world.running():
        await any_world.write(b"1", key=b"k")
        await any_world.is_sent_and_deleted(b"1")
        await until(lambda: any(event.code is EventCode.RELAY_POSITION for event in any_world.sink.events))  # type: ignore[union-attr]
        (sent,) = [event for event in any_world.sink.events if event.code is EventCode.OUTBOX_SENT]
        assert (sent.topic, sent.partition, sent.offset, sent.dedup_key) == ("orders", 0, 0, any_world.kafka.ids[0])
        assert '"row": 1' in str(sent.attrs)
        any_world.sink.error = FULL_DISK
        await any_world.write(b"2")
        await until(lambda: b"2" in any_world.kafka.values)
        assert await any_world.waiting() == 1
        any_world.sink.error = None
        await any_world.is_sent_and_deleted(b"2")


async def test_a_restart_of_the_connection_goes_on_where_it_was(any_world: World) -> None:
    async with any_world.running():
        for number in range(3):
            await any_world.write(b"%d" % number)
            await any_world.is_sent_and_deleted(b"%d" % number)
            await any_world.cut_off()
        await any_world.write(b"last")
        await any_world.is_sent_and_deleted(b"last")
    assert [*dict.fromkeys(any_world.kafka.values)] == [b"0", b"1", b"2", b"last"]


async def test_the_retention_of_the_slot_is_in_the_status(world: World) -> None:
    async with world.running() as relay:
        status = relay.counts.status
        assert status is not None
        assert status.active
        assert status.name == world.slot
        assert any("max_slot_wal_keep_size is -1" in finding for finding in status.findings)


def test_the_server_is_told_no_position_that_is_not_remembered() -> None:
    source, told = PostgresChanges("postgresql://nobody@127.0.0.1/none", name="shop"), list[bytes]()
    source._stream = SimpleNamespace(send=told.append)  # type: ignore[assignment]
    source._remembered = 16
    source._progress.passed(64)
    assert source._progress.done == 64
    source._report()
    assert (len(told), source._reported) == (1, 16)
