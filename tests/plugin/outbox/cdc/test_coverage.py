"""What "all rows of a table" means is watched: a change of it stops the relay with a sentence, and the position stays before it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plugin.outbox.cdc.world import World, until

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.changes import Change, ChangesLost
from ackwise.plugin.outbox import cdcrelay
from ackwise.plugin.outbox.cdcrelay import CdcRelay
from ackwise.stores.postgres.replication.slot import parse_lsn

pytestmark = pytest.mark.servers

_ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, note text)"

_SHOP = f"""
{_ORDERS}; CREATE TABLE other (id int PRIMARY KEY); CREATE SCHEMA apart;
CREATE TABLE years (id int, year int, PRIMARY KEY (id, year)) PARTITION BY LIST (year);
CREATE TABLE year_1 PARTITION OF years FOR VALUES IN (1); CREATE TABLE year_2 PARTITION OF years FOR VALUES IN (2);
CREATE TABLE many (id int PRIMARY KEY); CREATE TABLE parent (id int); CREATE TABLE child_1 (PRIMARY KEY (id)) INHERITS (parent)
"""


def to_message(change: Change) -> Outgoing:
    return Outgoing("orders", b"%d" % change.row["id"])


@pytest.fixture
async def shop(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(cdcrelay, "_BEAT", 0.05)  # the position is kept at each heartbeat
    await world.database.execute(_SHOP)
    return world


def reading(shop: World, *tables: str, **options: Any) -> CdcRelay:
    return shop.relay(to_message, tables=tables or ["orders"], **options)


_PUBLICATION = "the publication ackwise is another one than before"
_ENTRY = r"public\.orders was taken out of the publication ackwise"
_TABLE = r"public\.orders is (gone: it was dropped, renamed, or moved|another table than before)"

_CHANGES = {
    "renamed": ("ALTER TABLE orders RENAME TO gone", _TABLE),
    "replaced": (
        f"ALTER TABLE orders RENAME TO gone; {_ORDERS}; ALTER PUBLICATION ackwise ADD TABLE orders",
        _TABLE,
    ),
    "moved": ("ALTER TABLE orders SET SCHEMA apart", _TABLE),
    "dropped": ("DROP TABLE orders", _TABLE),
    "made-again": (f"DROP TABLE orders; {_ORDERS}; ALTER PUBLICATION ackwise ADD TABLE orders", _TABLE),
    "not-published": ("ALTER PUBLICATION ackwise DROP TABLE orders", _ENTRY),
    "not-published-for-a-while": ("ALTER PUBLICATION ackwise DROP TABLE orders; ALTER PUBLICATION ackwise ADD TABLE orders", _ENTRY),
    "filtered": ("ALTER PUBLICATION ackwise SET TABLE orders WHERE (id > 5), ackwise_cdc", _ENTRY),
    "filtered-for-a-while": (
        "ALTER PUBLICATION ackwise SET TABLE orders WHERE (id > 5), ackwise_cdc; ALTER PUBLICATION ackwise SET TABLE orders, ackwise_cdc",
        _ENTRY,
    ),
    "fewer-columns": ("ALTER PUBLICATION ackwise SET TABLE orders (id), ackwise_cdc", _ENTRY),
    "fewer-operations": ("ALTER PUBLICATION ackwise SET (publish = 'insert')", _PUBLICATION),
    "fewer-operations-for-a-while": (
        "ALTER PUBLICATION ackwise SET (publish = 'insert'); ALTER PUBLICATION ackwise SET (publish = 'insert, update, delete, truncate')",
        _PUBLICATION,
    ),
    "by-schema-too": (
        "ALTER PUBLICATION ackwise ADD TABLES IN SCHEMA public",
        r"the schema of public\.orders was added to the publication",
    ),
    "child": (
        "CREATE TABLE child () INHERITS (orders)",
        r"public\.child inherits from public\.orders, and the log names its rows by public\.child: name it",
    ),
    "child-for-a-while": ("CREATE TABLE child () INHERITS (orders); DROP TABLE child", r"public\.orders has or had a child"),
    "without-old-values": ("ALTER TABLE orders REPLICA IDENTITY NOTHING", r"the replica identity of public\.orders was changed"),
    "emptied": ("TRUNCATE orders", r"public\.orders was emptied by TRUNCATE, of which the log does not say the rows"),
    "emptied-beside-another": ("TRUNCATE other, orders", r"public\.orders was emptied by TRUNCATE"),
    "renamed-for-a-while": (
        "ALTER TABLE orders RENAME TO gone; INSERT INTO gone VALUES (2); ALTER TABLE gone RENAME TO orders",
        r"public\.orders was renamed to public\.gone, in the transaction that was committed at",
    ),
}


@pytest.mark.parametrize("name", _CHANGES)
async def test_a_change_of_what_is_read_stops_the_relay_at_each_start_until_it_is_accepted(shop: World, name: str) -> None:
    statements, sentence = _CHANGES[name]
    async with shop.ends_with(ChangesLost, f"{sentence}.*start once with --replace-lost-slot to read on", reading(shop)):
        await shop.database.execute("INSERT INTO orders VALUES (1)")
        await until(lambda: shop.kafka.values == [b"1"])
        after = 0
        for statement in statements.split("; "):
            await shop.database.execute(statement)
            if not after or statement.startswith("INSERT"):  # a rename alone concerns no row
                after = parse_lsn(await shop.database.fetchval("SELECT pg_current_wal_insert_lsn()::text"))
    assert parse_lsn(await shop.confirmed()) < after
    if "for-a-while" in name or name in ("emptied", "replaced", "made-again"):
        await shop.refuses(ChangesLost, sentence, reading(shop))
        accepted = reading(shop, replace_lost=True)
        async with shop.running(accepted):
            await shop.database.execute("INSERT INTO orders VALUES (3)")
            await until(lambda: shop.kafka.values[-1] == b"3")
            if name not in ("emptied", "renamed-for-a-while"):  # those are in the log alone
                await until(lambda: "as --replace-lost-slot" in str(accepted.counts.status))
        async with shop.running(reading(shop)):
            await shop.database.execute("INSERT INTO orders VALUES (4)")
            await until(lambda: shop.kafka.values[-1] == b"4")


async def test_a_change_while_no_relay_runs_is_found_at_the_start(shop: World) -> None:
    async with shop.running(reading(shop)):
        pass
    await shop.database.execute("ALTER PUBLICATION ackwise DROP TABLE orders")
    await shop.database.execute("INSERT INTO orders VALUES (1)")
    await shop.refuses(ConfigurationError, r"has no table public\.orders; ALTER PUBLICATION", reading(shop))
    await shop.database.execute("ALTER PUBLICATION ackwise ADD TABLE orders")
    for _ in range(2):
        await shop.refuses(ChangesLost, _ENTRY, reading(shop))
    async with shop.running(reading(shop, replace_lost=True)):
        await shop.database.execute("INSERT INTO orders VALUES (2)")
        await until(lambda: shop.kafka.values == [b"2"])


async def test_a_table_that_was_renamed_is_not_taken_for_another_one(shop: World) -> None:
    async with shop.running(reading(shop)):
        pass
    await shop.database.execute("ALTER TABLE orders RENAME TO sales")
    await shop.refuses(ConfigurationError, "there is no table orders; correct --table", reading(shop))
    await shop.refuses(ChangesLost, r'"public"\."orders" was renamed to public\.sales', reading(shop, "sales"))
    async with shop.running(reading(shop, "sales", replace_lost=True)):
        await shop.database.execute("INSERT INTO sales VALUES (1)")
        await until(lambda: shop.kafka.values == [b"1"])


async def test_a_new_partition_or_a_partition_that_is_detached_stops_the_relay_of_one(shop: World) -> None:
    for statement, sentence in (
        (
            "CREATE TABLE year_3 PARTITION OF years FOR VALUES IN (3)",
            r"public\.year_3 was attached as a partition beside what is read",
        ),
        ("ALTER TABLE years DETACH PARTITION year_1", r"public\.year_1 was detached from what it was a partition of"),
        ("ALTER TABLE years ATTACH PARTITION year_1 FOR VALUES IN (1)", r"public\.year_1 was attached"),
        ("CREATE TABLE year_4 PARTITION OF years FOR VALUES IN (4) PARTITION BY LIST (id)", r"public\.year_4 was attached"),
        ("CREATE TABLE year_4_1 PARTITION OF year_4 FOR VALUES IN (1)", r"public\.year_4_1 was attached"),
    ):
        async with shop.ends_with(ChangesLost, sentence, reading(shop, "year_1", replace_lost=True)):
            await shop.database.execute(statement)


async def test_what_leaves_nothing_out_stops_nothing(shop: World) -> None:
    async with shop.running(reading(shop, "orders", "year_1", "child_1")) as relay:
        for statement in (
            "ALTER TABLE orders ADD paid bool",
            "CREATE INDEX ON orders (note)",
            "GRANT SELECT ON orders TO PUBLIC",
            "VACUUM FULL orders",
            "ANALYZE orders",
            "ALTER TABLE orders REPLICA IDENTITY FULL",
            "ALTER PUBLICATION ackwise ADD TABLE other",
            "ALTER TABLE other RENAME TO others",
            "TRUNCATE others",
            "DROP TABLE year_2",
            "ALTER TABLE child_1 NO INHERIT parent",
        ):
            await shop.database.execute(statement)
        await shop.database.execute("INSERT INTO orders VALUES (1)")
        end = parse_lsn(await shop.database.fetchval("SELECT pg_current_wal_insert_lsn()::text"))
        await until(lambda: parse_lsn(relay.counts.status.acknowledged) >= end)  # type: ignore[union-attr, arg-type]
    await shop.database.execute("ALTER PUBLICATION ackwise ADD TABLE many")
    async with shop.running(reading(shop, "orders", "child_1", "many")):  # new to the relay, so nothing of it can be missing
        pass
    assert shop.kafka.values == [b"1"]


async def test_the_outbox_is_watched_too(world: World) -> None:
    for statement, sentence in (
        ("TRUNCATE ackwise_outbox", r"public\.ackwise_outbox was emptied by TRUNCATE.*Rows that wait in the table are sent from there"),
        ("ALTER PUBLICATION ackwise DROP TABLE ackwise_outbox; ALTER PUBLICATION ackwise ADD TABLE ackwise_outbox", "was taken out of"),
    ):
        async with world.ends_with(ChangesLost, sentence, world.relay(replace_lost=True)):
            await world.write(b"1")
            await world.is_sent_and_deleted(b"1")
            await world.database.execute(statement)
            await world.write(b"2")
    async with world.running(world.relay(replace_lost=True)):
        await world.is_sent_and_deleted(b"2")
