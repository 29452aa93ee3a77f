"""What changes "all rows of this table" on a real MariaDB: the relay stops before it, or is refused at its start."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
from tests.databases.server import Server
from tests.plugin.outbox.cdc.binlogworld import BinlogWorld, binlog_world
from tests.plugin.outbox.cdc.world import until
from tests.stores.cases import case

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.changes import Change, UnreadableChange
from ackwise.plugin.outbox.cdcrelay import CdcRelay
from ackwise.stores.mysql.binlog.coverage import require_covered
from ackwise.stores.mysql.binlog.position import place_of
from ackwise.stores.sql.operation import Statement, Steps

pytestmark = pytest.mark.servers

ORDERS = (
    "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT) PARTITION BY RANGE (id) "
    "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
)


@pytest.fixture
async def shop(own_mariadb_with_log: Server) -> AsyncIterator[BinlogWorld]:
    """A database of this test alone, with an outbox and no position yet."""
    async with binlog_world(own_mariadb_with_log) as world:
        yield world


def note(change: Change) -> Outgoing:
    return Outgoing("orders", change.row["note"].encode())


def orders(shop: BinlogWorld) -> CdcRelay:
    return shop.relay(note, tables=["orders"])


#: Statements that change the table as a whole, then what makes the table again, if it is gone.
CHANGES: list[tuple[str, Sequence[str]]] = [
    ("/* by hand */ TRUNCATE `orders`", ()),
    ("/*!50001 TRUNCATE TABLE */ orders", ()),
    ("RENAME TABLE orders TO renamed", ("RENAME TABLE renamed TO orders",)),
    ("DROP TABLE IF EXISTS nothing, orders", (ORDERS,)),
    ("ALTER TABLE orders DROP PARTITION p0", ()),
    ("ALTER TABLE orders EXCHANGE PARTITION p0 WITH TABLE swapped", ()),
    ("ALTER TABLE whole ADD parent INT, ADD FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE", ()),
]

#: Those that only MariaDB has.
CHANGES_OF_MARIADB: list[tuple[str, Sequence[str]]] = [
    ("SET STATEMENT max_statement_time = 9 FOR TRUNCATE TABLE orders", ()),
    ("CREATE OR REPLACE TABLE orders (id INT PRIMARY KEY, note TEXT)", ()),
    ("CREATE OR REPLACE TABLE orders SELECT 7 AS id, 'seven' AS note", ()),
    ("ALTER TABLE orders NOWAIT TRUNCATE PARTITION p0", ()),
    ("ALTER TABLE whole ADD SYSTEM VERSIONING", ("ALTER TABLE whole DROP SYSTEM VERSIONING",)),
]


async def test_what_changes_a_table_as_a_whole_stops_the_relay_and_the_sentence_says_how_to_go_on(shop: BinlogWorld) -> None:
    for statement, undo in CHANGES:
        with case(statement):
            await stops_before(shop, statement, *undo)


async def test_what_changes_a_table_as_a_whole_on_mariadb_alone_stops_the_relay_too(shop: BinlogWorld) -> None:
    for statement, undo in CHANGES_OF_MARIADB:
        with case(statement):
            await stops_before(shop, statement, *undo)


async def stops_before(shop: BinlogWorld, statement: str, *undo: str) -> None:
    table = "whole" if "whole" in statement else "orders"
    await shop.run(
        "DROP TABLE IF EXISTS orders, swapped, whole, parents",
        "DROP TABLE IF EXISTS ackwise_cdc",
        ORDERS,
        "CREATE TABLE swapped (id INT PRIMARY KEY, note TEXT)",
        "CREATE TABLE whole (id INT PRIMARY KEY, note TEXT)",
        "CREATE TABLE parents (id INT PRIMARY KEY)",
    )
    shop.kafka.sent.clear()
    stops = shop.ends_with(UnreadableChange, rf"changed \S+\.{table} as a whole", shop.relay(note, tables=[table]))
    async with stops as caught:
        await shop.run(f"INSERT INTO {table} VALUES (1, 'before')")
        await until(lambda: shop.kafka.values == [b"before"])
        before = await shop.end()
        await shop.run(statement, *undo)
    assert place_of(await shop.confirmed()) <= place_of(before)
    on = re.search(r"UPDATE `ackwise_cdc` .*", str(caught.value))
    assert (on is None) == ("SELECT" in statement), caught.value
    if on is not None and "REFERENCES" not in statement:
        await shop.run(on[0], f"INSERT INTO {table} VALUES (2, 'behind')")
        await go_on(shop, table)


async def go_on(shop: BinlogWorld, table: str) -> None:
    """What undoes a change may be one, too."""
    while True:
        relay = shop.relay(note, tables=[table])
        try:
            async with shop.running(relay):
                await until(lambda: shop.kafka.values == [b"before", b"behind"], by=shop.task)
        except UnreadableChange as error:
            on = re.search(r"UPDATE `ackwise_cdc` .*", str(error))
            assert on is not None
            await shop.run(on[0])
        else:
            return


async def test_statements_in_place_of_rows_stop_it_however_they_are_written(shop: BinlogWorld) -> None:
    await shop.run("CREATE FUNCTION f() RETURNS INT DETERMINISTIC BEGIN DELETE FROM orders; RETURN 1; END")
    for statement in [
        "SET STATEMENT binlog_format = 'STATEMENT' FOR INSERT INTO orders VALUES (2, 'unseen')",
        "SET STATEMENT binlog_format = 'STATEMENT' FOR UPDATE orders SET note = 'unseen'",
        "SET STATEMENT binlog_format = 'STATEMENT' FOR ANALYZE UPDATE orders SET note = 'unseen'",
        "SET STATEMENT binlog_format = 'STATEMENT' FOR /* c */ SELECT f()",
        "SET STATEMENT binlog_format = 'STATEMENT' FOR CREATE TABLE copies SELECT f() AS id",
    ]:
        with case(statement):
            await shop.run(
                "DROP TABLE IF EXISTS orders, copies", ORDERS, "DROP TABLE IF EXISTS ackwise_cdc", "INSERT INTO orders VALUES (1, 'a')"
            )
            async with shop.ends_with(UnreadableChange, "a statement that changes rows stands in place of the rows", orders(shop)):
                before = await shop.end()
                await shop.run(statement)
            assert place_of(await shop.confirmed()) <= place_of(before)


async def test_what_does_not_change_which_rows_a_table_has_is_passed_over(shop: BinlogWorld) -> None:
    await shop.run(ORDERS)
    async with shop.running(orders(shop)):
        await shop.run(
            "CREATE TABLE IF NOT EXISTS orders (id INT)",
            "ALTER TABLE orders ADD more INT, ADD INDEX (more)",
            "ALTER TABLE orders ADD PARTITION (PARTITION p2 VALUES LESS THAN (30))",
            "CREATE TABLE items (id INT PRIMARY KEY, orders INT)",
            "DROP TABLE items",
            "CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW SET NEW.note = CONCAT(NEW.note, '!')",
            "CREATE INDEX i ON orders (id)",
            "ANALYZE TABLE orders",
            "OPTIMIZE TABLE orders",
            "CREATE TEMPORARY TABLE orders (id INT)",
            "DROP TEMPORARY TABLE orders",
            "CREATE USER u1@localhost",
            "GRANT SELECT ON orders TO u1@localhost",
            "DROP USER u1@localhost",
            "INSERT INTO orders (id, note) VALUES (1, 'as a row')",
        )
        await until(lambda: shop.kafka.values == [b"as a row!"], by=shop.task)


async def test_a_change_of_the_outbox_as_a_whole_stops_its_relay(shop: BinlogWorld) -> None:
    async with shop.ends_with(UnreadableChange, r"TRUNCATE changed \S+\.ackwise_outbox as a whole"):
        await shop.run("TRUNCATE ackwise_outbox")


async def test_a_table_whose_rows_a_foreign_key_changes_is_refused(shop: BinlogWorld) -> None:
    await shop.run("CREATE TABLE parents (id INT PRIMARY KEY)")
    for action in ("ON DELETE CASCADE", "ON DELETE SET NULL", "ON UPDATE CASCADE"):
        created = f"FOREIGN KEY (parent) REFERENCES parents (id) {action}"
        await is_refused(
            shop,
            f"(id INT PRIMARY KEY, parent INT COMMENT 'ON DELETE RESTRICT', {created})",
            rf"a foreign key .*\({action}\)",
            "ALTER TABLE checked DROP FOREIGN KEY checked_ibfk_1",
        )


async def test_a_table_that_the_log_does_not_report_in_full_is_refused_with_what_to_do(shop: BinlogWorld) -> None:
    await shop.run("CREATE TABLE plain (id INT) ENGINE = MyISAM", "SET GLOBAL mysql56_temporal_format = OFF")
    for created, sentence, mended in [
        ("(id INT PRIMARY KEY) WITH SYSTEM VERSIONING", "SYSTEM VERSIONING", "ALTER TABLE checked DROP SYSTEM VERSIONING"),
        ("(id INT) ENGINE = MERGE UNION = (plain)", "its engine is MRG_MYISAM", "CREATE OR REPLACE TABLE checked (id INT)"),
    ]:
        await is_refused(shop, created, sentence, mended)
    old = "(a DATETIME, b TIME(3), c TIMESTAMP NULL)"
    now = ("SET GLOBAL mysql56_temporal_format = ON", "ALTER TABLE checked FORCE")
    await is_refused(shop, old, r"columns a, b, c have an old format.*FORCE", *now)


async def is_refused(shop: BinlogWorld, created: str, sentence: str, *mended: str) -> None:
    with case(created):
        await shop.run(f"CREATE TABLE checked {created}")
        source = shop.source(tables=["checked"])
        with pytest.raises(ConfigurationError, match=sentence):
            await source.open()
        await shop.run(*mended)
        await source.open()
        await source.close()
        await shop.run("DROP TABLE checked", "DROP TABLE IF EXISTS ackwise_cdc")


async def test_the_modes_of_the_server_hide_no_foreign_key(shop: BinlogWorld) -> None:
    await shop.run(
        "SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'",
        "CREATE TABLE orders (id INT PRIMARY KEY COMMENT 'it is \\', a INT, FOREIGN KEY (a) REFERENCES orders (id) ON DELETE CASCADE) "
        "COMMENT 'so it is'",
        "SET GLOBAL sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'",
    )
    source = shop.source(tables=["orders"])
    with pytest.raises(ConfigurationError, match="ON DELETE CASCADE"):
        await source.open()
    await source.close()
    await shop.run("SET GLOBAL sql_mode = DEFAULT")


async def test_a_change_between_the_look_at_the_tables_and_the_first_position_is_seen(
    shop: BinlogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def covered_and_then_truncated(address: str, *name: str) -> Steps[Mapping[str, int]]:
        digits = yield from require_covered(address, *name)
        yield [Statement("TRUNCATE orders")]
        return digits

    await shop.run(ORDERS)
    monkeypatch.setattr("ackwise.stores.mysql.binlog.source.require_covered", covered_and_then_truncated)
    source = shop.source(tables=["orders"], silence=4.0)
    await source.open()
    with pytest.raises(UnreadableChange, match="TRUNCATE changed"):
        await source.read(10)
    await source.close()


async def test_old_formats_of_times_in_the_log_itself_are_told(shop: BinlogWorld) -> None:
    await shop.run("CREATE TABLE orders (id INT, note TEXT)")
    async with shop.ends_with(UnreadableChange, "column at has an old format of dates and times", orders(shop)):
        await shop.run("SET GLOBAL mysql56_temporal_format = OFF", "ALTER TABLE orders ADD at DATETIME")
        await shop.run("SET GLOBAL mysql56_temporal_format = ON", "INSERT INTO orders VALUES (1, 'a', '2024-01-02')")


async def test_names_with_dots_are_those_of_one_table(shop: BinlogWorld) -> None:
    database = shop.url.rpartition("/")[2]
    try:
        await shop.run(
            "CREATE TABLE `a.b` (id INT, note TEXT)",
            "CREATE DATABASE `cdc.a`",
            "CREATE TABLE `cdc.a`.b (id INT, note TEXT)",
            "CREATE DATABASE `cdc`",
            "CREATE TABLE `cdc`.`a.b` (id INT, note TEXT)",
        )
        for given, table in [("a.b", f"{database}.`a.b`"), ("`cdc.a`.b", "`cdc.a`.b"), ("`cdc`.`a.b`", "cdc.`a.b`")]:
            with case(given, table):
                shop.kafka.sent.clear()
                tables: list[str] = []
                await shop.run("DROP TABLE IF EXISTS ackwise_cdc")

                def mapping(change: Change, tables: list[str] = tables) -> Outgoing:
                    tables.append(change.table)
                    return note(change)

                async with shop.running(shop.relay(mapping, tables=[given])):
                    for name in ("`a.b`", "`cdc.a`.b", "`cdc`.`a.b`"):
                        await shop.run(f"INSERT INTO {name} VALUES (1, 'from {name}')")
                    await until(lambda: shop.kafka.sent)
                assert tables == [table]
        source = shop.source(tables=["cdc.a.b"])
        with pytest.raises(ConfigurationError, match=r"cdc\.a\.b may be one of two tables; write `database`\.`table`"):
            await source.open()
        await source.close()
    finally:
        await shop.run("DROP DATABASE IF EXISTS `cdc.a`", "DROP DATABASE IF EXISTS `cdc`")


async def test_a_view_is_refused(shop: BinlogWorld) -> None:
    await shop.run("CREATE TABLE orders (id INT)", "CREATE VIEW seen AS SELECT * FROM orders")
    source = shop.source(tables=["seen"])
    with pytest.raises(ConfigurationError, match="seen is a view, of whose rows the log has no changes; name the table itself"):
        await source.open()
    await source.close()
