"""What a claim store lists is what it remembers, key by key, in every store and layout."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.waiting import until

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.storage.claimstore import (
    Column,
    ColumnExchange,
    ListedStore,
    Maintained,
    Outcome,
    Remembered,
    hash_of,
    in_columns,
)
from ackwise.plugin.registry import open_store

DAY = int(time.time() // 86400)
RETENTION = 3600.0
#: More than one page of a database.
MANY = 5_500

_STORES = ["sqlite", *(pytest.param(name, marks=pytest.mark.servers) for name in ("postgres", "mysql", "redis", "compact", "cluster"))]


@pytest.fixture(params=_STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a claim store of this test alone."""
    name, own = str(request.param), f"n{os.urandom(6).hex()}"
    if name == "sqlite":
        return f"sqlite:///{tmp_path}/claims.db"
    if name == "cluster":
        return f"redis+cluster://127.0.0.1:{request.getfixturevalue('cluster')[0].port}?namespace={own}&buckets=5"
    if name in ("redis", "compact"):
        compact = f"&layout=compact&retention={RETENTION:.0f}&keys=100000" if name == "compact" else ""
        return f"redis://127.0.0.1:{request.getfixturevalue('redis').port}?namespace={own}{compact}"
    return str(request.getfixturevalue("postgres_url")) if name == "postgres" else str(request.getfixturevalue("mysql").url)


def ids(number: int) -> list[bytes]:
    return [os.urandom(16) for _ in range(number)]


async def listed(store: object) -> list[Remembered]:
    assert isinstance(store, ListedStore)
    return [record async for some in store.records() for record in some]


def named(records: Iterable[Remembered]) -> dict[int, tuple[int, bool, bool]]:
    return {each.dedup_hash: (each.outcome, each.is_claimed, each.is_unrecorded) for each in records}


@pytest.mark.slow  # two pages of records in each server
async def test_all_records_are_listed_with_what_became_of_them(url: str) -> None:
    kinds = {name: (ids(MANY if name == "done" else 3), ids(MANY if name == "done" else 3)) for name in ("done", "dead", "open", "untold")}
    released, days = ids(3), (None, DAY)
    store = open_store(url)
    await store.open()
    every = in_columns(store)
    for place, day in enumerate(days):

        def column(name: str, outcome: Outcome = Outcome.OK, unrecorded: str = "", *, n: int = place, of: int | None = day) -> Column:
            keys = kinds[name][n]
            return Column(keys, of, 1, range(7, 7 + len(keys)), outcome, None, unrecorded)

        claims = [column(name) for name in kinds]
        completes = [column("done"), column("dead", Outcome.DEAD), column("untold", Outcome.OK, "1 7 0 12 orders")]
        await every.exchange_columns(ColumnExchange(claims, lease=60.0, retention=RETENTION))
        await every.exchange_columns(ColumnExchange((), completes, lease=60.0, retention=RETENTION))
    given_back = Column(released, None, 1, range(7, 10))
    await every.exchange_columns(ColumnExchange([given_back], lease=60.0, retention=RETENTION))
    await every.exchange_columns(ColumnExchange((), (), [given_back], lease=60.0, retention=RETENTION))
    found = await listed(store)
    await store.close()
    became = {"done": (1, False, False), "dead": (2, False, False), "open": (0, True, False), "untold": (1, False, True)}
    expected = {hash_of(key): became[name] for name, both in kinds.items() for keys in both for key in keys}
    expected |= dict.fromkeys(map(hash_of, released), (0, False, False))
    assert named(found) == expected
    assert len({record.key for record in found}) == len(expected)
    now = time.time() * 1_000_000
    for record in found:
        assert abs(record.now - now) < 60_000_000
        late = RETENTION + (60 if record.outcome == 0 else 0)
        assert abs(record.kept_until - now - late * 1_000_000) < 62_000_000
        assert record.outcome or abs((record.leased_until or 0) - now) < 122_000_000


async def test_listing_makes_nothing_and_leaves_out_what_is_forgotten(url: str) -> None:
    store = open_store(url)
    with pytest.raises(ConfigurationError, match=r"there is no such file|store init|holds no claims"):
        await listed(store)
    assert isinstance(store, Maintained)
    await store.init()
    assert await listed(store) == []
    await store.open()
    every, (kept, forgotten) = in_columns(store), ids(2)
    for key, retention in ((kept, RETENTION), (forgotten, 0.001)):
        asked = Column([key], None, 1, range(7, 8))
        await every.exchange_columns(ColumnExchange([asked], lease=60.0, retention=retention))
        await every.exchange_columns(ColumnExchange((), [asked], lease=60.0, retention=retention))

    found = await until(lambda: listed(store), lambda records: len(records) == 1)
    assert [record.dedup_hash for record in found] == [hash_of(kept)]
    await store.close()
