"""The changes of any table, as a function makes messages of them, on a real PostgreSQL."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from tests.plugin.outbox.cdc.world import World, until

from ackwise.middleware.errors import ConfigurationError, PublishRefused
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.changes import Change, ChangesLost, Operation, UnreadableChange
from ackwise.plugin.outbox.cdcrelay import CdcRelay
from ackwise.plugin.outbox.cdcroutes import MappedRows

pytestmark = pytest.mark.servers


def to_message(change: Change) -> Outgoing | None:
    """Paid orders, and what was deleted."""
    if change.operation is Operation.DELETE:
        return Outgoing("orders", None, key=str(change.row["id"]).encode())
    if not change.row["paid"]:
        return None
    return Outgoing("orders", change.row["note"].encode(), key=str(change.row["id"]).encode(), message_id="the relay gives its own")


@pytest.fixture
async def shop(world: World) -> World:
    await world.database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text, paid bool); CREATE TABLE other (id int)")
    return world


def orders(shop: World, mapping: Callable[[Change], Outgoing | None] = to_message, **options: Any) -> CdcRelay:
    """A relay of the changes of `orders`."""
    return shop.relay(mapping, tables=["orders"], **options)


async def test_the_function_says_what_is_sent_and_the_log_gives_the_id(shop: World) -> None:
    seen: list[Change] = []

    def mapping(change: Change) -> Outgoing | None:
        seen.append(change)
        return to_message(change)

    async with shop.running(orders(shop, mapping)):
        async with shop.database.transaction():
            await shop.database.execute("INSERT INTO other VALUES (1)")
            await shop.database.execute("INSERT INTO orders VALUES (1, 'tea', true), (2, 'milk', false)")
        await shop.database.execute("UPDATE orders SET paid = true WHERE id = 2")
        await shop.database.execute("DELETE FROM orders WHERE id = 1")
        await until(lambda: len(shop.kafka.sent) == 3)
    assert shop.kafka.values == [b"tea", b"milk", None]
    system_id, timeline = await shop.database.fetchrow("SELECT system_id, timeline FROM ackwise_cdc")  # type: ignore[misc]
    lsn = seen[0].position.replace("/", "-")
    assert shop.kafka.ids[0] == seen[0].id == f"{system_id}-{timeline}-{shop.slot}-{lsn}-0"
    assert seen[1].number == 1


async def test_a_table_whose_own_updates_a_publication_would_break_is_refused_and_nothing_is_made(shop: World) -> None:
    await shop.database.execute(
        "INSERT INTO other VALUES (1); CREATE VIEW seen AS SELECT * FROM other; CREATE UNLOGGED TABLE brief (id int PRIMARY KEY);"
        "CREATE TABLE years (id int PRIMARY KEY); CREATE TABLE year_1 () INHERITS (years)"
    )
    for table, refused, sentence in (
        (
            "other",
            "other",
            "has no replica identity, so publishing it would make PostgreSQL refuse each UPDATE and DELETE of it; give it a",
        ),
        ("years", "year_1", "has no replica identity"),
        ("seen", "seen", "is no table"),
        ("brief", "brief", "is an unlogged table"),
    ):
        with pytest.raises(ConfigurationError, match=f"{refused} {sentence}"):
            async with shop.running(shop.relay(to_message, tables=["orders", table])):
                pass
    assert await shop.database.fetchval("SELECT count(*) FROM pg_publication") == 0
    assert await shop.database.execute("UPDATE other SET id = 2") == "UPDATE 1"
    await shop.database.execute("ALTER TABLE other REPLICA IDENTITY FULL")
    async with shop.running(shop.relay(lambda change: Outgoing("others", b"%d" % change.row["id"]), tables=["other"])):
        assert await shop.database.execute("UPDATE other SET id = 3") == "UPDATE 1"
        await until(lambda: shop.kafka.values == [b"3"])


async def test_after_a_crash_the_same_changes_have_the_same_ids(shop: World) -> None:
    async with shop.killed(shop.relay(to_message, tables=["public.orders"])):
        await shop.database.execute("INSERT INTO orders SELECT n, n::text, true FROM generate_series(1, 3) n")
        await until(lambda: len(shop.kafka.sent) == 3)
    async with shop.running(orders(shop)):
        await until(lambda: len(shop.kafka.sent) == 6)
    assert shop.kafka.sent[:3] == shop.kafka.sent[3:]


async def test_a_function_that_raises_stops_the_relay_before_the_change(shop: World) -> None:
    def mapping(change: Change) -> Outgoing | None:
        return Outgoing("orders", b"%d" % (100 // change.row["id"]))

    said = r"mapping raised ZeroDivisionError at .*test_tables\.py:\d+ for change 1 of public\.orders"
    async with shop.ends_with(UnreadableChange, said, orders(shop, mapping)) as caught:
        await shop.database.execute("INSERT INTO orders VALUES (10, 'secret', true), (0, 'secret', true), (20, 'secret', true)")
    assert "secret" not in str(caught.value)
    assert shop.kafka.values == [b"10"]

    async with shop.running(shop.relay(lambda change: Outgoing("orders", b"%d" % change.row["id"]), tables=["orders"])):
        await until(lambda: shop.kafka.values == [b"10", b"10", b"0", b"20"])
    assert shop.kafka.ids[0] == shop.kafka.ids[1]


async def test_what_kafka_refuses_stops_the_relay_before_it(shop: World) -> None:
    shop.kafka.refuse = lambda message: message.value == b"2"
    async with shop.ends_with(PublishRefused, r"the message is too large: message .*nothing from there on is sent", orders(shop)):
        await shop.database.execute("INSERT INTO orders VALUES (1, '1', true)")
        await until(lambda: len(shop.kafka.sent) == 1)
        await shop.database.execute("INSERT INTO orders VALUES (2, '2', true)")
    shop.kafka.refuse = lambda _: False
    async with shop.running(orders(shop)):
        await until(lambda: shop.kafka.values == [b"1", b"2"])


async def test_a_column_that_is_not_in_the_log_stops_the_relay_until_the_table_puts_it_there(shop: World) -> None:
    await shop.database.execute("ALTER TABLE orders ALTER note SET STORAGE EXTERNAL")
    await shop.database.execute("INSERT INTO orders VALUES (1, repeat('x', 5000), false)")
    async with shop.ends_with(UnreadableChange, r"column note of public\.orders is not in the log", orders(shop)):
        await shop.database.execute("UPDATE orders SET paid = true")


async def test_a_changed_table_stops_the_relay_and_the_next_one_reads_on(shop: World) -> None:
    def mapping(change: Change) -> Outgoing | None:
        return Outgoing("orders", repr(dict(change.row)).encode())

    async with shop.ends_with(
        UnreadableChange, r"public\.orders was changed while it was read, column paid is gone", orders(shop, mapping)
    ):
        await shop.database.execute("INSERT INTO orders VALUES (1, 'a', true)")
        await until(lambda: len(shop.kafka.sent) == 1)
        await shop.database.execute("ALTER TABLE orders ADD more text")
        await shop.database.execute("INSERT INTO orders VALUES (2, 'b', true, 'm')")
        await until(lambda: len(shop.kafka.sent) == 2)
        await shop.database.execute("ALTER TABLE orders DROP paid")
        await shop.database.execute("INSERT INTO orders VALUES (3, 'c')")
    async with shop.running(orders(shop, mapping)):
        await until(lambda: len(shop.kafka.sent) == 3)
    assert shop.kafka.values[2] == b"{'id': 3, 'note': 'c', 'more': None}"


async def test_data_and_ddl_in_one_transaction_stop_the_relay_once_and_the_next_start_reads_both(shop: World) -> None:
    def mapping(change: Change) -> Outgoing | None:
        return Outgoing("orders", repr(dict(change.row)).encode())

    steps = (
        "INSERT INTO orders VALUES (1, '10', true)",
        "ALTER TABLE orders ALTER note TYPE int USING note::int",
        "INSERT INTO orders VALUES (2, 20, true)",
        "ALTER TABLE orders RENAME paid TO settled",
        "UPDATE orders SET note = note + 1",
        "ALTER TABLE orders DROP settled",
        "INSERT INTO orders VALUES (3, 30)",
    )
    async with shop.ends_with(UnreadableChange, "changed while it was read, column note has another type", orders(shop)):
        await shop.database.execute(f"BEGIN; {'; '.join(steps)}; COMMIT")
    shop.kafka.sent.clear()
    async with shop.running(orders(shop, mapping)):
        await until(lambda: len(shop.kafka.sent) == 5)
    assert shop.kafka.values == [
        b"{'id': 1, 'note': '10', 'paid': True}",
        b"{'id': 2, 'note': 20, 'paid': True}",
        b"{'id': 1, 'note': 11, 'settled': True}",
        b"{'id': 2, 'note': 21, 'settled': True}",
        b"{'id': 3, 'note': 30}",
    ]


async def test_names_with_dots_capitals_and_quotes_are_read(shop: World) -> None:
    seen: list[Change] = []

    def mapping(change: Change) -> Outgoing | None:
        seen.append(change)
        return Outgoing("orders", b"")

    dotted, odd, other = '"my.shop"."old.Orders"', """ "it's ""odd" """.strip(), 'my."shop.old.Orders"'
    await shop.database.execute('CREATE SCHEMA "my.shop"; CREATE SCHEMA my')
    for table in (dotted, odd, other):
        await shop.database.execute(f'CREATE TABLE {table} ("Id.x" int PRIMARY KEY)')
    await shop.database.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    for number, publication in enumerate(("everything", "ackwise")):
        slot = f"{shop.slot}_{number}"
        async with shop.running(shop.relay(mapping, name=slot, publication=publication, tables=[dotted, odd])):
            for table in (other, dotted, odd):
                await shop.database.execute(f"INSERT INTO {table} VALUES ({number})")
            await until(lambda: len(seen) == 2)
        assert [(change.table, change.row) for change in seen] == [
            ("my.shop.old.Orders", {"Id.x": number}),
            ("public.it's \"odd", {"Id.x": number}),
        ]
        seen.clear()
    for wrong in ("my.shop.old.Orders", "a.b.c", '"half', "", "a..b"):
        await shop.refuses(ConfigurationError, "double quotes around a part that has a dot", shop.relay(mapping, tables=[wrong]))


async def test_a_table_that_inherits_is_refused_until_its_children_are_named(shop: World) -> None:
    await shop.database.execute("CREATE TABLE late () INHERITS (orders); ALTER TABLE late ADD PRIMARY KEY (id)")
    sentence = r"late inherits from orders, .*name it with --table, too, or run: ALTER TABLE late NO INHERIT orders"
    await shop.refuses(ConfigurationError, sentence, orders(shop))
    assert await shop.database.fetchval("SELECT count(*) FROM pg_publication") == 0
    await shop.database.execute("CREATE PUBLICATION ackwise FOR ALL TABLES")
    await shop.refuses(ConfigurationError, sentence, orders(shop))
    both = shop.relay(lambda change: Outgoing("orders", change.table.encode()), tables=["orders", "late"])
    async with shop.running(both):
        await shop.database.execute("INSERT INTO orders VALUES (1); INSERT INTO late VALUES (2)")
        await until(lambda: shop.kafka.values == [b"public.orders", b"public.late"])


async def test_what_no_publication_can_have_is_refused_where_there_is_one_too(shop: World) -> None:
    await shop.database.execute(
        "CREATE VIEW seen AS SELECT * FROM other; CREATE UNLOGGED TABLE brief (id int PRIMARY KEY);"
        "CREATE MATERIALIZED VIEW kept AS SELECT 1 AS id; CREATE SEQUENCE numbers; CREATE PUBLICATION ackwise FOR ALL TABLES"
    )
    for table in ("seen", "kept", "numbers", "brief"):
        sentence = "is an unlogged table" if table == "brief" else "is no table"
        await shop.refuses(ConfigurationError, f"{table} {sentence}", shop.relay(to_message, tables=[table]))


async def test_a_publication_that_names_the_root_of_partitions_is_refused(shop: World) -> None:
    await shop.database.execute(
        "CREATE TABLE years (id int, year int, PRIMARY KEY (id, year)) PARTITION BY LIST (year);"
        "CREATE TABLE year_1 PARTITION OF years FOR VALUES IN (1);"
        "CREATE PUBLICATION ackwise FOR TABLE years, year_1 WITH (publish_via_partition_root = true)"
    )
    await shop.refuses(ConfigurationError, r"SET \(publish_via_partition_root = false\)", shop.relay(to_message, tables=["year_1"]))


async def test_a_publication_without_truncate_is_refused(shop: World) -> None:
    await shop.database.execute("CREATE PUBLICATION ackwise FOR TABLE orders WITH (publish = 'insert, update, delete')")
    await shop.refuses(ConfigurationError, r"not publish truncate; .*\(publish = 'insert, update, delete, truncate'\)", orders(shop))


async def test_a_lost_slot_of_a_table_says_that_changes_are_missing(shop: World) -> None:
    async with shop.running(orders(shop)):
        pass
    await shop.drop_slot()
    await shop.refuses(ChangesLost, "changes that were not sent yet will be missing in Kafka", orders(shop))


async def test_a_slot_that_was_made_again_by_hand_passes_nothing_over_in_silence(shop: World) -> None:
    async with shop.running(orders(shop)):
        await shop.database.execute("INSERT INTO orders VALUES (1, 'a', true)")
        await until(lambda: len(shop.kafka.sent) == 1)
    await shop.drop_slot()
    await shop.database.execute("INSERT INTO orders VALUES (2, 'b', true)")
    await shop.database.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", shop.slot)
    await shop.refuses(ChangesLost, "made again, or moved forward; changes that were not sent yet will be missing", orders(shop))
    async with shop.running(orders(shop, replace_lost=True)):
        await shop.database.execute("INSERT INTO orders VALUES (3, 'c', true)")
        await until(lambda: len(shop.kafka.sent) == 2)
    async with shop.running(orders(shop)):
        pass


def test_what_is_no_message_is_refused() -> None:
    change = Change("public.orders", Operation.INSERT, {"id": 1}, None, "0/1", 0, "id", 0)
    with pytest.raises(UnreadableChange, match=r"returned dict for a change of public\.orders; return an Outgoing, or None"):
        MappedRows(lambda _: {}).judge(change)  # type: ignore[arg-type, return-value]
    made = MappedRows(lambda _: Outgoing("t", b"v", message_id="mine")).judge(change)
    assert made == (dataclasses.replace(Outgoing("t", b"v"), message_id="id"), "0/1", None)
