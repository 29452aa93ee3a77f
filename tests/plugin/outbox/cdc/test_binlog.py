"""The outbox, and any table, by the binary log of a real MariaDB: what is sent, when the position moves, and what is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.databases.server import Server
from tests.plugin.outbox.cdc.binlogworld import BinlogWorld, binlog_world
from tests.plugin.outbox.cdc.world import until
from tests.shared import SharedServer

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.changes import Change, ChangesLost, Operation, SourceBusy, UnreadableChange
from ackwise.plugin.outbox.cdcrelay import CdcRelay
from ackwise.stores.mysql.binlog import MySQLChanges

pytestmark = pytest.mark.servers


@pytest.fixture
def mariadb_with_log(own_mariadb_with_log: Server) -> Server:
    """One that no other test uses, since its log and its settings are changed here."""
    return own_mariadb_with_log


@pytest.fixture
async def shop(mariadb_with_log: Server) -> AsyncIterator[BinlogWorld]:
    """A database of this test alone, with an outbox, a table, and no position yet."""
    async with binlog_world(mariadb_with_log) as world:
        await world.run(
            "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT CHARACTER SET utf8mb4, paid BOOL) ENGINE = InnoDB",
            "CREATE TABLE log_of_all (id INT) ENGINE = MyISAM",
        )
        yield world


def note(change: Change) -> Outgoing | None:
    """The note of an order, or that it was deleted."""
    if change.operation is Operation.DELETE:
        return Outgoing("orders", None, key=b"%d" % change.row["id"])
    return Outgoing("orders", change.row["note"].encode(), key=b"%d" % change.row["id"], message_id="the relay gives its own")


def orders(shop: BinlogWorld, mapping: Callable[[Change], Outgoing | None] = note, **options: Any) -> CdcRelay:
    """A relay of the changes of `orders`."""
    return shop.relay(mapping, tables=["orders"], **options)


async def test_the_position_stays_before_what_kafka_did_not_acknowledge(shop: BinlogWorld) -> None:
    async with shop.running(orders(shop)):
        shop.kafka.gate = asyncio.Event()
        before = await shop.end()
        await shop.run("INSERT INTO orders VALUES (1, 'tea', true)", "INSERT INTO orders VALUES (2, 'milk', true)")
        await until(lambda: shop.kafka.asked)
        await shop.run("FLUSH LOGS", "INSERT INTO log_of_all VALUES (1)")
        await asyncio.sleep(1.5)  # a report passes
        assert position(await shop.confirmed()) <= position(before)
        shop.kafka.gate.set()
        await until(lambda: len(shop.kafka.sent) == 2)
    assert position(await shop.confirmed()) > position(before)


def position(text: str) -> tuple[str, int]:
    file, _, offset = text.rpartition(":")
    return file, int(offset)


async def test_an_idle_source_goes_forward_over_what_is_not_its_own_and_over_files(shop: BinlogWorld) -> None:
    async with shop.running(orders(shop)):
        await shop.run("INSERT INTO log_of_all VALUES (1)", "FLUSH LOGS", "INSERT INTO log_of_all VALUES (2)")
        after = position(await shop.end())
        await wait_for_position(shop, after)


async def wait_for_position(shop: BinlogWorld, after: tuple[str, int]) -> None:
    await until(shop.confirmed, lambda confirmed: position(confirmed) >= after)


async def test_after_a_crash_the_same_changes_have_the_same_ids(shop: BinlogWorld) -> None:
    async with shop.killed(orders(shop)):
        await shop.run("INSERT INTO orders VALUES (1, '1', true), (2, '2', true)", "UPDATE orders SET note = '3' WHERE id = 1")
        await until(lambda: len(shop.kafka.sent) == 3)
    await shop.freed()
    async with shop.running(orders(shop)):
        await until(lambda: len(shop.kafka.sent) == 6)
    assert shop.kafka.values[:3] == [b"1", b"2", b"3"]
    assert shop.kafka.sent[:3] == shop.kafka.sent[3:]
    assert len(set(shop.kafka.ids)) == 3


async def test_a_change_says_table_operation_and_both_rows(shop: BinlogWorld) -> None:
    seen: list[Change] = []

    def mapping(change: Change) -> Outgoing | None:
        seen.append(change)
        return note(change)

    async with shop.running(orders(shop, mapping)):
        await shop.run("INSERT INTO orders VALUES (1, 'é', NULL)", "UPDATE orders SET paid = true", "DELETE FROM orders")
        await until(lambda: len(shop.kafka.sent) == 3)
    (file,) = {change.position.rpartition(":")[0] for change in seen}
    database = shop.url.rpartition("/")[2]
    assert {change.table for change in seen} == {f"{database}.orders"}
    assert [(change.operation, change.row, change.old) for change in seen] == [
        (Operation.INSERT, {"id": 1, "note": "é", "paid": None}, None),
        (Operation.UPDATE, {"id": 1, "note": "é", "paid": 1}, {"id": 1, "note": "é", "paid": None}),
        (Operation.DELETE, {"id": 1, "note": "é", "paid": 1}, None),
    ]
    server, created, number, _, row = seen[0].id.split("-")
    assert (server, number, row) == ("1", file.rpartition(".")[2].lstrip("0"), "0")
    assert int(created) > 1_600_000_000


async def test_what_the_log_has_of_rolled_back_work_is_never_sent_though_little_of_it_is_held(shop: BinlogWorld) -> None:
    async with shop.running(orders(shop, most_held=10)):
        await shop.run(
            "START TRANSACTION",
            "CREATE TEMPORARY TABLE t1 (a INT)",  # with it MariaDB writes a transaction into the log that it rolls back
            "INSERT INTO orders VALUES (1, 'rolled back', true)",
            "ROLLBACK",
            "START TRANSACTION",
            "INSERT INTO orders VALUES (2, 'before', true)",
            "CREATE TEMPORARY TABLE t2 (a INT)",
            "SAVEPOINT here",
            "INSERT INTO orders VALUES (3, 'taken back', true)",
            "ROLLBACK TO here",
            "INSERT INTO orders VALUES (4, 'after', true)",
            "COMMIT",
        )
        await until(lambda: len(shop.kafka.sent) == 2)
    assert shop.kafka.values == [b"before", b"after"]
    found = await shop.run("SELECT note FROM orders ORDER BY id")
    assert [row[0] for row in found] == ["before", "after"]


async def test_a_large_transaction_is_read_twice_and_sent_in_parts(shop: BinlogWorld) -> None:
    async with shop.running(orders(shop, most_held=50_000)):
        await shop.run("INSERT INTO orders VALUES (100001, 'first', true)")
        await shop.run("INSERT INTO orders SELECT seq, CONCAT('n', seq), true FROM seq_1_to_20000")
        await shop.run("INSERT INTO orders VALUES (100002, 'last', true)")
        await until(lambda: len(shop.kafka.sent) == 20_002, within=60)
    assert shop.kafka.values == [b"first", *(b"n%d" % number for number in range(1, 20_001)), b"last"]
    assert len(set(shop.kafka.ids)) == 20_002
    assert shop.kafka.largest <= 2000


async def test_two_relays_take_turns(shop: BinlogWorld) -> None:
    async with shop.running():
        second = shop.source()
        with pytest.raises(SourceBusy, match="another relay reads the log from the position ackwise"):
            await second.open()
        await second.close()
    third = shop.source()
    await third.open()
    await third.close()


async def test_one_that_lost_its_lease_moves_the_position_no_more(shop: BinlogWorld) -> None:
    first, second = shop.source(), shop.source()
    await first.open()
    await shop.freed()
    await second.open()
    kept = await shop.confirmed()
    await shop.run("INSERT INTO log_of_all VALUES (1)")
    with pytest.raises(SourceBusy, match="another reader of the log came with our server id"):
        await first.read(10)
    await first.close()
    assert (await second.status()).active
    assert position(await shop.confirmed()) >= position(kept)
    await second.close()


async def test_one_whose_token_is_not_the_last_ends_with_its_next_report(shop: BinlogWorld) -> None:
    source = shop.source()
    await source.open()
    await shop.run("UPDATE ackwise_cdc SET token = token + 1, log_position = 4")
    await source.beat()
    with pytest.raises(SourceBusy, match="another relay has taken over the position ackwise"):
        await source.read(10)
    await source.close()
    assert (await shop.confirmed()).endswith(":4")


async def test_without_a_position_it_begins_only_if_it_is_told_to(shop: BinlogWorld) -> None:
    source = shop.source(create=False)
    with pytest.raises(ConfigurationError, match="no position is kept under the name ackwise; --create-slot starts at the end of the log"):
        await source.open()
    with pytest.raises(ChangesLost, match="no position is kept"):
        await source.status()
    await source.close()


async def test_a_purged_file_is_told_and_nothing_passed_over_until_somebody_says_so(shop: BinlogWorld) -> None:
    async with shop.running():
        pass
    await shop.write(b"in the table", b"too")
    await shop.run("FLUSH LOGS")
    file = (await shop.end()).rpartition(":")[0]
    await shop.run("FLUSH LOGS", f"PURGE BINARY LOGS TO '{file}'")
    await shop.refuses(ChangesLost, r"can't send the log from where it was read last .* still in the outbox.*--replace-lost-slot")
    assert any("is gone" in finding for finding in (await status(shop)).findings)
    async with shop.running(shop.relay(replace_lost=True)):
        await shop.is_sent_and_deleted(b"in the table", b"too")


async def status(shop: BinlogWorld):  # type: ignore[no-untyped-def]
    source = shop.source()
    try:
        return await source.status()
    finally:
        await source.close()


async def test_a_log_that_was_reset_or_is_another_one_is_told(shop: BinlogWorld) -> None:
    async with shop.running(orders(shop)):
        pass
    await shop.run("UPDATE ackwise_cdc SET log_created = log_created - 1")
    await shop.refuses(ChangesLost, r"started at \d+ .* and not at \d+: RESET MASTER was run, or .*will be missing in Kafka", orders(shop))
    await shop.run("UPDATE ackwise_cdc SET log_created = log_created + 1, server = '7'")
    await shop.refuses(ChangesLost, r"this is another server: .* on server 7, and this one is 1", orders(shop))
    await shop.run("UPDATE ackwise_cdc SET server = '1', log_position = log_position + 1000000")
    await shop.refuses(ChangesLost, "can't send the log", orders(shop))


async def test_reset_master_is_told_whether_a_relay_reads_then_or_not(shop: BinlogWorld) -> None:
    async with shop.ends_with(ChangesLost, ".", orders(shop, silence=4.0)):
        await shop.run("INSERT INTO orders VALUES (1, '1', true)")
        await until(lambda: len(shop.kafka.sent) == 1)
        await shop.run("RESET MASTER")
    await shop.refuses(ChangesLost, "will be missing in Kafka", orders(shop))
    async with shop.running(orders(shop, replace_lost=True)):
        await shop.run("INSERT INTO orders VALUES (2, '2', true)")
        await until(lambda: len(shop.kafka.sent) == 2)


async def test_a_position_inside_a_transaction_is_refused(shop: BinlogWorld) -> None:
    async with shop.running(orders(shop)):
        pass
    file = (await shop.end()).rpartition(":")[0]
    await shop.run("INSERT INTO orders VALUES (1, 'never sent from here', true)")
    events = await shop.run(f"SHOW BINLOG EVENTS IN '{file}'")
    (inside,) = [row[1] for row in events if row[2].startswith("Write_rows")][-1:]
    await shop.run(f"UPDATE ackwise_cdc SET log_file = '{file}', log_position = {inside}")
    await shop.refuses(UnreadableChange, "the position is inside a transaction", orders(shop))
    assert not shop.kafka.sent


async def test_a_changed_table_stops_the_relay_and_the_next_one_reads_on(shop: BinlogWorld) -> None:
    def mapping(change: Change) -> Outgoing | None:
        return Outgoing("orders", repr(dict(change.row)).encode())

    async with shop.ends_with(UnreadableChange, r"orders was changed while it was read, column paid is gone", orders(shop, mapping)):
        await shop.run("INSERT INTO orders VALUES (1, 'a', true)")
        await until(lambda: len(shop.kafka.sent) == 1)
        await shop.run("ALTER TABLE orders ADD more TEXT", "INSERT INTO orders VALUES (2, 'b', true, 'm')")
        await until(lambda: len(shop.kafka.sent) == 2)
        await shop.run("ALTER TABLE orders DROP paid", "INSERT INTO orders VALUES (3, 'c', NULL)")
    async with shop.running(orders(shop, mapping)):
        await until(lambda: len(shop.kafka.sent) == 3)
    assert shop.kafka.values[2] == b"{'id': 3, 'note': 'c', 'more': None}"


async def test_old_rows_keep_the_names_that_their_columns_had(shop: BinlogWorld) -> None:
    async with shop.running(orders(shop)):
        pass
    await shop.run(
        "INSERT INTO orders VALUES (1, 'old', true)",
        "ALTER TABLE orders CHANGE note remark TEXT CHARACTER SET utf8mb4, ADD COLUMN note INT",
    )
    async with shop.running(orders(shop)):
        await until(lambda: shop.kafka.values == [b"old"])


async def test_a_statement_in_place_of_rows_stops_a_table_and_not_the_outbox(shop: BinlogWorld) -> None:
    statement = (
        "SET SESSION binlog_format = 'STATEMENT'",
        "INSERT INTO orders VALUES (9, 'unseen', true)",
        "SET SESSION binlog_format = 'ROW'",
    )
    async with shop.ends_with(UnreadableChange, "a statement that changes rows stands in place of the rows", orders(shop)):
        await shop.run(*statement)
    await shop.run("DELETE FROM orders", "DELETE FROM ackwise_cdc")
    async with shop.running():
        await shop.run(*statement)
        await shop.write(b"after the statement")
        await shop.is_sent_and_deleted(b"after the statement")


async def test_outbox_rows_that_the_log_does_not_have_are_sent_from_the_table(shop: BinlogWorld) -> None:
    async with shop.running():
        await shop.run("SET SESSION binlog_format = 'STATEMENT', binlog_row_image = 'MINIMAL'")
        await shop.write(b"as a statement")
        await shop.run("SET SESSION binlog_format = 'ROW'")
        await shop.write(b"not whole")
        await shop.run("SET SESSION sql_log_bin = 0")
        await shop.write(b"not in the log")
        await shop.run("SET SESSION sql_log_bin = 1, binlog_row_image = 'FULL'")
        await shop.write(b"whole")
        await until(lambda: b"whole" in shop.kafka.values)
    async with shop.running():  # as once a minute, too
        await shop.is_sent_and_deleted(b"as a statement", b"not whole", b"not in the log", b"whole")
    assert len(shop.kafka.ids) == len(set(shop.kafka.ids)) == 4


async def test_rows_of_a_transaction_of_xa_stop_a_table(shop: BinlogWorld) -> None:
    async with shop.ends_with(UnreadableChange, "XA is not read", orders(shop)):
        await shop.run("XA START 'x'", "INSERT INTO orders VALUES (1, 'not yet', true)", "XA END 'x'", "XA PREPARE 'x'")
        await shop.run("XA ROLLBACK 'x'")
    assert not shop.kafka.sent


async def test_rows_that_are_not_whole_stop_the_relay(shop: BinlogWorld) -> None:
    await shop.run("INSERT INTO orders VALUES (1, 'a', true)")
    async with shop.ends_with(UnreadableChange, "are not whole; set binlog_row_image = FULL in the session", orders(shop)):
        await shop.run("SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE orders SET paid = false")


async def test_a_log_that_is_silent_is_opened_anew(shop: BinlogWorld) -> None:
    relay = orders(shop, silence=0.3)
    async with shop.running(relay):
        await asyncio.sleep(1.0)  # longer than it may be silent
        await shop.run("INSERT INTO orders VALUES (1, '1', true)")
        await until(lambda: shop.kafka.values == [b"1"])


async def test_status_says_how_far_it_has_come(shop: BinlogWorld) -> None:
    async with shop.running():
        await shop.write(b"1")
        await shop.is_sent_and_deleted(b"1")
        seen = await status(shop)
        assert seen.active
    seen = await status(shop)
    assert (seen.active, seen.retained, seen.findings) == (False, None, ())
    assert seen.behind is not None
    assert seen.acknowledged == await shop.confirmed()


async def test_a_wrong_setting_is_named_with_what_to_do(shop: BinlogWorld) -> None:
    for wrong, sentence in (
        ("binlog_format = 'MIXED'", "binlog_format is MIXED; set it to ROW"),
        ("binlog_row_image = 'MINIMAL'", "binlog_row_image is MINIMAL; set it to FULL"),
        ("binlog_row_metadata = 'MINIMAL'", "binlog_row_metadata is MINIMAL, so the log does not name columns; set it to FULL"),
        ("log_bin_compress = ON", "log_bin_compress is ON, which is not read; turn it off"),
    ):
        name = wrong.partition(" ")[0]
        before = (await shop.run(f"SELECT @@GLOBAL.{name}"))[0][0]
        await shop.run(f"SET GLOBAL {wrong}")
        source = shop.source()
        try:
            with pytest.raises(ConfigurationError, match=sentence):
                await source.open()
        finally:
            await source.close()
            await shop.run(f"SET GLOBAL {name} = {before!r}")


async def test_a_server_without_a_log_is_refused(mariadb: SharedServer) -> None:
    source = MySQLChanges(f"mariadb://root@127.0.0.1:{mariadb.port}/mysql")
    with pytest.raises(ConfigurationError, match="the binary log is off; start the server with log_bin"):
        await source.status()
    await source.close()


async def test_each_missing_right_is_named(shop: BinlogWorld, mariadb_with_log: Server) -> None:
    database = shop.url.rpartition("/")[2]
    user = f"u_{database[-8:]}"
    await shop.run(f"CREATE USER {user}@'127.0.0.1'", f"GRANT SELECT ON {database}.orders TO {user}@'127.0.0.1'")
    source = MySQLChanges(f"mariadb://{user}@127.0.0.1:{mariadb_with_log.port}/{database}", tables=["orders"], create=True)
    for sentence, grant in (
        (
            "may not use it, nor create it; let a user who may run: CREATE TABLE",
            f"CREATE, SELECT, INSERT, UPDATE ON {database}.ackwise_cdc",
        ),
        (r"GRANT BINLOG MONITOR ON \*\.\*", "BINLOG MONITOR ON *.*"),
        (r"GRANT REPLICATION SLAVE ON \*\.\*", "REPLICATION SLAVE ON *.*"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            await source.open()
        await shop.run(f"GRANT {grant} TO {user}@'127.0.0.1'")
    await source.open()
    await source.close()
    await shop.run(f"DROP USER {user}@'127.0.0.1'")


async def test_a_table_that_is_not_there_and_a_bad_name_are_refused(shop: BinlogWorld) -> None:
    source = shop.source(tables=["missing"])
    with pytest.raises(ConfigurationError, match="there is no table missing; correct --table"):
        await source.open()
    await source.close()
    with pytest.raises(ConfigurationError, match="use up to 64 letters"):
        MySQLChanges(shop.url, name="a b")
