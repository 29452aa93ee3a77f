"""A claim store compared with the events: what it forgot, what it alone knows, and what can't be told. In every store, on both engines."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.databases.server import free_port
from tests.shared import SharedServer
from tests.spark.histories import NOW, History, hash_of
from tests.spark.reconciling import reconciled, root_of, rows_of

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.message.keys import Identity, business_id
from ackwise.middleware.storage.claimstore import Claim, ClaimKey, Complete, Exchange, Maintained, Outcome, Release
from ackwise.plugin.registry import open_store
from ackwise.spark.local.session import local_engine
from ackwise.spark.storeclaims.table import claim_table
from ackwise.stores.postgres import PostgresStore

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


def test_the_store_is_compared_with_the_events(tmp_path: Path, postgres: SharedServer, engine: str) -> None:
    keys = asyncio.run(fill(postgres))
    roots = [root_of(tmp_path / history.group, history) for history in happened()]
    result = reconciled(*roots, "--out", tmp_path / "out", "--claims", url_of(postgres), "--retention", "1d", "--engine", engine)
    assert result.exit_code == 1, f"{result.output}{result.exception!r}"
    assert not result.exception or isinstance(result.exception, SystemExit), repr(result.exception)
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


async def claim(url: str) -> None:
    """Offset 0 is done by the store, 1 is unknown to it, 2 was given back, and 3 is of an app without keys and done."""
    store = open_store(url)
    assert isinstance(store, Maintained)
    await store.init()
    await store.open()
    keys = [ClaimKey(bytes.fromhex(key_of(hash_of(f"{offset}"))), 20_000 if offset == 3 else None, 1) for offset in (0, 2, 3)]
    await store.exchange(Exchange([Claim(key, 7) for key in keys], retention=KEPT))
    done = [Complete(key, 7, Outcome.OK) for key in (keys[0], keys[2])]
    await store.exchange(Exchange((), done, [Release(keys[1], 7)], retention=KEPT))
    await store.close()


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.servers) for name in ("mysql", "redis", "compact", "cluster"))])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a claim store of this test alone, with a password where it can have one."""
    name, own = str(request.param), f"n{secrets.token_hex(6)}"
    if name == "sqlite":
        yield f"sqlite:///{tmp_path}/claims.db"
    elif name == "mysql":
        server = request.getfixturevalue("mariadb")
        yield f"mysql://root:@127.0.0.1:{server.port}/test?prefix={own}_"
    elif name == "cluster":
        yield f"redis+cluster://127.0.0.1:{request.getfixturevalue('cluster')[0].port}?namespace={own}"
    else:
        compact = f"&layout=compact&retention={KEPT:.0f}&keys=100000" if name == "compact" else ""
        yield f"redis://127.0.0.1:{request.getfixturevalue('redis').port}?namespace={own}{compact}"


def test_every_store_is_compared_alike(tmp_path: Path, url: str, engine: str) -> None:
    asyncio.run(claim(url))
    history = told(History("g").say("w1", "RECEIVED_RANGE[0,4)", ago=400).say("w1", "0:CS 1:CS 2:CS 3:CS", ago=390).say("w1", "W=4", ago=2))
    result = reconciled(
        root_of(tmp_path / "g", history), "--out", tmp_path / "out", "--claims", url, "--retention", "1d", "--engine", engine
    )
    assert result.exit_code == 1, f"{result.output}{result.exception!r}"
    claims = json.loads((tmp_path / "out" / "summary.json").read_text())["claims"]
    assert [(row["offset"], row["finding"]) for row in claims["findings"]] == [(1, "FORGOTTEN"), (2, "UNMARKED")]
    assert (claims["claims"], claims["known"]) == (3, 3)


def test_a_store_that_can_not_be_read_is_named_without_its_password(postgres: SharedServer) -> None:
    with local_engine() as session:
        with pytest.raises(ConfigurationError, match=r"the claim tables are missing|ackwise store init"):
            claim_table(url_of(postgres, "nowhere_")).read_here(session)
        away = url_of(postgres).replace(str(postgres.port), str(free_port()))
        with pytest.raises(Unavailable) as gone:
            claim_table(away).read_here(session)
    assert PASSWORD not in f"{gone.value}{claim_table(away)!r}"


def test_a_store_that_lists_nothing_is_refused_without_its_password() -> None:
    for store, sentence in (
        ("memory://", "the store memory:// does not list its claims; those in Redis, PostgreSQL, MariaDB or MySQL, and SQLite do"),
        ("open-sesame", "the store of Dedup has no scheme"),
        ("postgresql://u@h/x?password=open-sesame", "password is an option in the URL"),
    ):
        with pytest.raises(ConfigurationError, match=sentence) as refused:
            claim_table(store)
        assert PASSWORD not in str(refused.value)


def test_an_app_names_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = 'from ackwise import App, Dedup\napp = App("g")\napp.use(Dedup("postgresql://u:open-sesame@db/claims"))\n'
    (tmp_path / "claimed_shop.py").write_text(app + '@app.agent("orders")\nasync def bill(batch): pass\n')
    monkeypatch.syspath_prepend(tmp_path)
    found = claim_table("claimed_shop:app")
    assert (PASSWORD in found.url, repr(found)) == (True, "ClaimTable(postgresql://db/claims)")
