"""A claim store in PostgreSQL laid beside the events: what it forgot, what it alone knows, and what can't be told."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.databases.server import free_port
from tests.shared import SharedServer
from tests.spark.histories import NOW, History, hash_of
from tests.spark.reconciling import reconciled, root_of, rows_of

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.message.keys import Identity, business_id
from ackwise.spark.claims.table import claim_table
from ackwise.stores.postgres import PostgresStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = "open-sesame"
KEPT = 86400.0
PREFIX = "audited_"


def url_of(postgres: SharedServer, prefix: str = PREFIX) -> str:
    return f"postgresql://postgres:{PASSWORD}@127.0.0.1:{postgres.port}/postgres?prefix={prefix}"


def told(history: History) -> History:
    """The same as if it had happened now: a store's clock is its server's."""
    delay = time.time_ns() // 1000 - NOW
    for event in history.events:
        event["event_ts"] += delay
    return history


def happened() -> list[History]:
    """Every key but that of offset 0 is called as its offset."""
    ours = History("g").say("w1", "6:CS", ago=2 * KEPT).say("w1", "RECEIVED_RANGE[0,13)", ago=400)
    ours.say("w1", "0:CS", ago=390, dedup_hash=Identity("ackwise", "g", "bill").of(business_id("order-1"))[1])
    ours.say("w1", "1:CS 2:CS 3:CF 4:CF 5:CF 8:S 11:CS", ago=380).say("w1", "9:CFX 9@2:CS", ago=370)
    ours.say("w1", "12:C", ago=365)
    ours.say("w1", "10:CS", ago=360, dedup_epoch=1).say("w1", "W=12", ago=350).say("w1", "7:CS", ago=2)
    theirs = History("elsewhere").say("w9", "0:CS", ago=300, key="theirs").say("w9", "W=1", ago=2)
    return [told(ours), told(theirs)]


def key_of(hash_: int) -> str:
    return hash_.to_bytes(8, "big", signed=True).hex() + secrets.token_hex(8)


async def fill(postgres: SharedServer) -> dict[int, str]:
    """The records of the store; the keys of those that the events have, by offset."""
    store = PostgresStore(f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres", prefix=PREFIX)
    await store.init()
    await store.close()
    real = Identity("ackwise", "g", "bill").of(business_id("order-1"))[0].hex()
    keys = {offset: real if offset == 0 else key_of(hash_of(f"{offset}")) for offset in (0, 1, 2, 3, 4, 5, 11, 12)}
    connection = await asyncpg.connect(host="127.0.0.1", port=postgres.port, user="postgres", database="postgres")
    # Key, token, outcome, seconds from now until it is free, and until it is forgotten, and who holds it or what is not recorded.
    records = [
        (keys[0], 5, 1, -390, KEPT - 390, ""),
        (keys[1], 5, 1, -90_000, -1, ""),
        (keys[2], 5, 0, -350, KEPT - 350, ""),
        (keys[3], 5, 1, -300, KEPT - 300, ""),
        (keys[4], 5, 0, -300, KEPT - 300, "somebody"),
        (keys[5], 5, 1, 0, KEPT, ""),
        (keys[12], 5, 1, -300, KEPT - 300, "1 7 0 12 orders"),
        (key_of(hash_of("nobody's")), 5, 1, 0, KEPT, ""),
    ]
    columns = "k, token, outcome, leased_until, kept_until, epoch, next_attempt, lost, took_unreleased, holder"
    values = "$1::uuid, $2, $3, now() + $4 * interval '1 s', now() + $5 * interval '1 s', 1, 1, 0, false, $6"
    await connection.executemany(f"INSERT INTO {PREFIX}claims ({columns}) VALUES ({values})", records)
    daily = f"INSERT INTO {PREFIX}daily_claims (day, {columns}) VALUES (20000, {values})"
    await connection.execute(daily, keys[11], 5, 2, -300, KEPT - 300, "")
    await connection.close()
    return keys


@pytest.mark.usefixtures("spark")
def test_the_store_is_compared_with_the_events(tmp_path: Path, postgres: SharedServer) -> None:
    keys = asyncio.run(fill(postgres))
    roots = [root_of(tmp_path / history.group, history) for history in happened()]
    result = reconciled(*roots, "--out", tmp_path / "out", "--claims", url_of(postgres), "--retention", "1d", "--engine", "spark")
    assert result.exit_code == 1, result.output
    summary: dict[str, Any] = json.loads((tmp_path / "out" / "summary.json").read_text())
    claims = summary["claims"]
    assert [(row["offset"], row["finding"], row["verdict"], row["key"] and row["key"].replace("-", "")) for row in claims["findings"]] == [
        (3, "DONE_UNSEEN", "LOST", keys[3]),
        (1, "FORGOTTEN", "EXACTLY_ONCE", None),
        (4, "LEFT_OPEN", "LOST", keys[4]),
        (2, "UNMARKED", "EXACTLY_ONCE", keys[2]),
        (12, "UNRECORDED", "IN_FLIGHT", keys[12]),
    ]
    assert claims["counts"] == {"DONE_UNSEEN": 1, "FORGOTTEN": 1, "UNMARKED": 1, "LEFT_OPEN": 1, "UNRECORDED": 1}
    assert (claims["claims"], claims["known"]) == (8, 7)
    assert (claims["strangers"], claims["later"]) == (["bill in elsewhere"], ["bill in g"])
    lost = summary["verdicts"]["LOST"]
    assert summary["anomalies"] == lost + 2
    rows = rows_of(tmp_path / "out" / "claims")
    assert {(row["offset"], row["finding"]) for row in rows} == {(row["offset"], row["finding"]) for row in claims["findings"]}
    assert "none of the keys of bill in elsewhere is in postgresql://127.0.0.1" in result.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "DONE_UNSEEN" in page
    assert not [text for text in (result.output, json.dumps(summary), page) if PASSWORD in text]


def test_a_store_that_can_not_be_read_is_said_without_its_password(spark: SparkSession, postgres: SharedServer) -> None:
    with pytest.raises(ConfigurationError, match=r'has no table "nowhere_claims"; `ackwise store init` creates it') as missing:
        claim_table(url_of(postgres, "nowhere_")).read(spark, lambda step: None)
    away = url_of(postgres).replace(str(postgres.port), str(free_port()))
    with pytest.raises(Unavailable, match="can't be read; check address, user, password and rights") as gone:
        claim_table(away).read(spark, lambda step: None)
    assert PASSWORD not in f"{missing.value}{gone.value}{claim_table(away)!r}"


def test_the_url_of_the_store_becomes_one_of_jdbc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "from the environment")
    found = claim_table("postgresql://bill%40shop@db-1:5433/claims?schema=ours&sslmode=verify-full&timeout=2")
    assert found.url == "jdbc:postgresql://db-1:5433/claims?sslmode=verify-full&ApplicationName=ackwise+reconcile"
    assert (found.user, found.password, found.tables.claims) == ("bill@shop", "from the environment", '"ours"."ackwise_claims"')
    assert claim_table("postgres://u:p%2Fw@db/x").password == "p/w"


def test_what_is_no_store_of_postgresql_is_refused_without_its_password() -> None:
    for store, sentence in (
        ("redis://:open-sesame@host/0", "--claims reads stores in PostgreSQL alone"),
        ("open-sesame", "--claims reads stores in PostgreSQL alone"),
        ("postgresql://u:open-sesame@/x?host=/var/run", "the JDBC driver has no 'host'"),
        ("postgresql://u@h/x?password=open-sesame", "password is an option in the URL"),
    ):
        with pytest.raises(ConfigurationError, match=sentence) as refused:
            claim_table(store)
        assert PASSWORD not in str(refused.value)


def test_an_app_names_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = 'from ackwise import App, Dedup\napp = App("g")\napp.use(Dedup("postgresql://u:open-sesame@db/claims"))\n'
    (tmp_path / "claimed_shop.py").write_text(app + '@app.agent("orders")\nasync def bill(batch): pass\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert claim_table("claimed_shop:app").password == PASSWORD
