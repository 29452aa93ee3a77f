"""The PostgreSQL store's tables: who may make them, how they stay small, and what is read of them."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.stores.cases import case
from tests.waiting import PATIENCE

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.claimstore import Acquired, AlreadyDone, Busy, Claim, ClaimKey, Complete, Exchange, Outcome
from ackwise.stores.postgres import PostgresStore, maintenance
from ackwise.stores.postgres import claims as sql
from ackwise.stores.postgres.claims import SESSION
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.protocol.transitions import asked as asked_of
from ackwise.stores.protocol.transitions import rounds
from ackwise.stores.sql.claims import AT_ONCE

TODAY = int(time.time() // 86400)
DAYS = [None, TODAY]
GUIDE = Path(__file__).parents[3] / "docs" / "stores" / "postgres.md"


def keys(count: int, day: int | None = None) -> list[ClaimKey]:
    return [ClaimKey(os.urandom(16), day, 1) for _ in range(count)]


def claims(asked: list[ClaimKey], token: int = 1) -> Exchange:
    return Exchange([Claim(key, token) for key in asked])


def completes(asked: list[ClaimKey], retention: float = 86400.0) -> Exchange:
    return Exchange(completes=[Complete(key, 1, Outcome.OK) for key in asked], retention=retention)


async def partitions(database: asyncpg.Connection) -> set[str]:
    return {name for (name,) in await database.fetch("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'")}


async def until_somebody_waits(database: asyncpg.Connection) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if await database.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                return
            await asyncio.sleep(0.01)


def as_user(url: str, name: str) -> str:
    return url.replace("postgres@", f"{name}@")


async def test_a_user_with_the_rights_that_the_guide_grants_can_work(postgres_url: str, postgres_database: asyncpg.Connection) -> None:
    await PostgresStore(postgres_url).init()
    worker = f"worker_{os.urandom(4).hex()}"
    grants = re.findall(r"^GRANT .*;$", GUIDE.read_text("utf-8"), re.MULTILINE)
    assert len(grants) == 3
    await postgres_database.execute(f"CREATE ROLE {worker} LOGIN")
    for grant in grants:
        await postgres_database.execute(grant.replace("TO worker", f"TO {worker}"))
    store = PostgresStore(as_user(postgres_url, worker))
    await store.open()
    for day in (None, TODAY, TODAY - 400):
        asked = keys(3, day)
        assert (await store.exchange(claims(asked))).claims == [Acquired(1)] * 3
        await store.exchange(completes(asked, retention=0.001))
    await asyncio.sleep(0.01)
    assert await store.check() == []
    assert await store.cleanup() == 9
    await store.close()
    await drop_role(postgres_database, worker)


async def test_a_user_without_rights_is_told_to_let_somebody_else_make_the_tables(
    postgres_url: str, postgres_database: asyncpg.Connection
) -> None:
    worker = f"worker_{os.urandom(4).hex()}"
    await postgres_database.execute(f"CREATE ROLE {worker} LOGIN")
    store = PostgresStore(as_user(postgres_url, worker))
    for refused in (store.open, store.init):
        with pytest.raises(ConfigurationError, match="let an owner run `ackwise store init URL`, then grant SELECT, INSERT"):
            await refused()
    await PostgresStore(postgres_url).init()
    with pytest.raises(ConfigurationError, match=r"permission denied for table ackwise_schema.*grant SELECT, INSERT"):
        await store.open()
    await postgres_database.execute(f"GRANT SELECT ON ackwise_schema, ackwise_claims TO {worker}")
    assert [complaint.partition(": ")[2].partition(" on ")[0] for complaint in await store.check()] == [
        "this user has no right to INSERT, UPDATE, DELETE",
        "this user has no right to SELECT, INSERT, UPDATE, DELETE",
    ]
    with pytest.raises(ConfigurationError, match='no right to INSERT, UPDATE on "ackwise_claims"; let its owner grant it'):
        await store.open()
    await drop_role(postgres_database, worker)


async def drop_role(database: asyncpg.Connection, name: str) -> None:
    await database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_name_that_postgresql_would_cut_or_refuse_is_refused() -> None:
    for schema, prefix in [("", "a"), ("a\0", "a"), ("s" * 64, "a"), (None, "p" * 43), (None, "ü" * 22)]:
        with case(schema, prefix), pytest.raises(ConfigurationError, match=r"is .* for the PostgreSQL store"):
            PostgresStore("postgresql://localhost/x", schema=schema, prefix=prefix)


async def test_a_partition_is_dropped_once_all_of_it_is_forgotten_while_claims_go_on(
    postgres_store: PostgresStore, postgres_database: asyncpg.Connection
) -> None:
    old, older = TODAY - 10, TODAY - 11
    for day in (old, older):
        await postgres_database.execute(
            f"CREATE TABLE ackwise_daily_claims_{day} PARTITION OF ackwise_daily_claims FOR VALUES FROM ({day}) TO ({day + 1})"
        )
    gone, kept = [*keys(500, old), *keys(400, older)], keys(1, older)
    await postgres_store.exchange(completes(gone, retention=0.001))
    await postgres_store.exchange(completes(kept))
    ended = False

    async def work(day: int | None) -> int:
        trips = 0
        while not ended or trips < 20:
            assert (await postgres_store.exchange(claims(keys(20, day)))).claims == [Acquired(1)] * 20
            trips += 1
        return trips

    working = [asyncio.ensure_future(work(day)) for day in (None, TODAY, TODAY - 500)]
    assert await postgres_store.cleanup() == 500
    ended = True
    assert all(await asyncio.gather(*working))
    there = await partitions(postgres_database)
    assert f"ackwise_daily_claims_{old}" not in there
    assert f"ackwise_daily_claims_{older}" in there
    assert (await postgres_store.exchange(claims(kept, 2))).claims == [AlreadyDone(Outcome.OK)]
    assert (await postgres_store.exchange(claims(gone[:1], 2))).claims == [Acquired(1)]


async def test_a_claim_that_comes_in_while_its_partition_is_looked_at_keeps_it(
    postgres_store: PostgresStore, postgres_database: asyncpg.Connection, postgres_url: str
) -> None:
    old = TODAY - 10
    await postgres_database.execute(
        f"CREATE TABLE ackwise_daily_claims_{old} PARTITION OF ackwise_daily_claims FOR VALUES FROM ({old}) TO ({old + 1})"
    )
    (late,) = keys(1, old)
    other = await asyncpg.connect(postgres_url)
    await other.execute("BEGIN; LOCK TABLE ackwise_daily_claims IN ROW EXCLUSIVE MODE")
    text, values = sql.statement(Tables(), asked_of(claims([late])), claims([late]))
    await other.fetch(text, *values)
    cleaning = asyncio.ensure_future(postgres_store.cleanup())
    await until_somebody_waits(postgres_database)
    await other.execute("COMMIT")
    assert await cleaning == 0
    assert isinstance((await postgres_store.exchange(claims([late], 2))).claims[0], Busy)
    await other.close()


async def test_a_long_transaction_keeps_a_partition_and_does_not_hold_the_workers_up(
    postgres_store: PostgresStore, postgres_database: asyncpg.Connection, postgres_url: str
) -> None:
    old = TODAY - 10
    await postgres_database.execute(
        f"CREATE TABLE ackwise_daily_claims_{old} PARTITION OF ackwise_daily_claims FOR VALUES FROM ({old}) TO ({old + 1})"
    )
    other = await asyncpg.connect(postgres_url)
    await other.execute("BEGIN; SELECT count(*) FROM ackwise_daily_claims")
    assert await postgres_store.cleanup() == 0
    assert f"ackwise_daily_claims_{old}" in await partitions(postgres_database)
    await other.execute("ROLLBACK")
    await other.close()
    await postgres_store.cleanup()
    assert f"ackwise_daily_claims_{old}" not in await partitions(postgres_database)


@pytest.mark.nightly
async def test_a_partition_that_is_too_large_for_a_look_under_lock_is_emptied_first(
    postgres_store: PostgresStore, postgres_database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = TODAY - 10
    await postgres_database.execute(
        f"CREATE TABLE ackwise_daily_claims_{old} PARTITION OF ackwise_daily_claims FOR VALUES FROM ({old}) TO ({old + 1})"
    )
    for _ in range(50):  # so many that no server looks at all of them within a millisecond
        await postgres_store.exchange(completes(keys(1000, old), retention=0.001))
    with monkeypatch.context() as impatient:
        impatient.setattr(maintenance, "_PATIENCE", 1)
        assert await postgres_store.cleanup() == 50_000
    assert f"ackwise_daily_claims_{old}" in await partitions(postgres_database)
    assert await postgres_store.cleanup() == 0
    assert f"ackwise_daily_claims_{old}" not in await partitions(postgres_database)


async def test_cleaning_up_passes_over_what_somebody_is_writing(
    postgres_store: PostgresStore, postgres_database: asyncpg.Connection, postgres_url: str
) -> None:
    asked = keys(10)
    await postgres_store.exchange(completes(asked, retention=0.001))
    await asyncio.sleep(0.01)
    await postgres_database.execute("BEGIN")
    text, values = sql.statement(Tables(), asked_of(claims(asked[:4])), claims(asked[:4]))
    await postgres_database.fetch(text, *values)
    assert await postgres_store.cleanup() == 6
    await postgres_database.execute("COMMIT")


async def test_records_of_a_day_without_a_partition_share_one_and_stay_there(
    postgres_store: PostgresStore, postgres_database: asyncpg.Connection
) -> None:
    missing = f"ackwise_daily_claims_{time.strftime('%Y%m%d', time.gmtime((TODAY + 1) * 86400))}"
    await postgres_database.execute(f"DROP TABLE {missing}")
    assert any("has no partition for tomorrow" in complaint for complaint in await postgres_store.check())
    asked = keys(5, TODAY + 1)
    await postgres_store.exchange(claims(asked))
    await postgres_store.cleanup()
    assert missing not in await partitions(postgres_database)
    assert {type(answer) for answer in (await postgres_store.exchange(claims(asked, 2))).claims} == {Busy}


async def test_check_tells_of_an_index_that_makes_every_update_large(
    postgres_store: PostgresStore, postgres_database: asyncpg.Connection
) -> None:
    await postgres_database.execute("CREATE INDEX mine ON ackwise_claims (kept_until)")
    (complaint,) = await postgres_store.check()
    assert "the index mine has a column that every exchange changes" in complaint


@pytest.mark.parametrize("day", [pytest.param(None, marks=pytest.mark.nightly), TODAY])
async def test_a_plan_made_for_empty_tables_looks_up_single_keys_in_large_ones(
    postgres_store: PostgresStore, postgres_database: asyncpg.Connection, postgres_url: str, day: int | None
) -> None:
    # The worst case: statistics that say "empty", and nobody to correct them.
    await postgres_database.execute("ALTER TABLE ackwise_claims SET (autovacuum_enabled = off)")
    await postgres_database.execute("VACUUM ANALYZE")
    connection = await asyncpg.connect(postgres_url, server_settings=SESSION)
    text = sql.text_of(Tables(), undated=day is None, dated=day is not None)
    types = "uuid[], bigint[], bigint[], int[], smallint[], int[], float8, float8, text, text[]"
    await connection.execute(f"PREPARE exchange ({types}) AS {text}")
    await connection.execute(f"EXPLAIN EXECUTE exchange {literal(keys(1, day))}")  # the plan is made here
    some = []
    for _ in range(100):
        some = keys(1000, day)
        await postgres_store.exchange(claims(some))
    read = 0
    for asked in (keys(100, day), some[:100]):
        lines = [line for (line,) in await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS) EXECUTE exchange {literal(asked)}")]
        scans = [line.strip() for line in lines if " Scan " in line and ("ackwise" in line)]
        assert not [line for line in scans if not line.startswith(("->  Bitmap", "Bitmap"))]
        read = max(read, int(lines[0 if "Buffers" in lines[0] else 1].partition("hit=")[2].split()[0]))
    # Some pages of index and table for each key, where reading all of the table would be thousands for each.
    assert read < 100 * 20
    await connection.close()


def literal(asked: list[ClaimKey]) -> str:
    exchange = claims(asked)
    (some,) = rounds(asked_of(exchange), AT_ONCE)
    arrays: Any = sql.arguments(some, exchange)[:6]
    texts = ["{" + ",".join("NULL" if one is None else str(one) for one in array) + "}" for array in arrays]
    return f"({', '.join(map(repr, texts))}, 30, 86400, 'somebody', '{{a,b}}', '{{}}')"


@pytest.mark.nightly
@pytest.mark.slow  # fifty thousand messages
@pytest.mark.parametrize("day", DAYS)
async def test_updates_of_fifty_thousand_messages_touch_no_index(
    postgres_store: PostgresStore, postgres_database: asyncpg.Connection, day: int | None
) -> None:
    done: list[ClaimKey] = []
    owner = "8d5f3c1a-0123456789abcdef"
    for _ in range(500):
        some = keys(100, day)
        await postgres_store.exchange(
            Exchange([Claim(key, 1) for key in some], [Complete(key, 1, Outcome.OK) for key in done], owner=owner)
        )
        done = some
    await postgres_store.close()  # a connection that ends hands its statistics in
    ratio = "SELECT sum(n_tup_hot_upd) AS hot, sum(n_tup_upd) AS all FROM pg_stat_user_tables WHERE relname LIKE 'ackwise%'"
    async with asyncio.timeout(PATIENCE):
        while True:
            row = await postgres_database.fetchrow(ratio)
            if row and (row["all"] or 0) >= 49_900:
                break
            await asyncio.sleep(0.1)
    assert row["hot"] / row["all"] >= 0.95


async def test_a_standby_is_refused_and_named(postgres_url: str, postgres_database: asyncpg.Connection) -> None:
    name = postgres_url.rpartition("/")[2]
    store = PostgresStore(postgres_url)
    await store.open()
    await postgres_database.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable, match="the server takes no writes; it is a standby or default_transaction_read_only is on"):
        await PostgresStore(postgres_url).open()
    assert store._connections.pool is not None
    await store._connections.pool.expire_connections()
    with pytest.raises(StoreUnavailable, match="the server takes no writes"):
        await store.exchange(claims(keys(1)))
    await postgres_database.execute("SET default_transaction_read_only = off")
    await postgres_database.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    assert (await store.exchange(claims(keys(1)))).claims == [Acquired(1)]
    await store.close()
