"""`ackwise store` on every kind of store, as a user calls it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from tests.databases.server import Endpoint
from tests.tables import each
from typer.testing import CliRunner

from ackwise.middleware.storage.claimstore import Claim, ClaimKey, Complete, Exchange, Outcome
from ackwise.plugin import registry
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.registry import open_store
from ackwise.stores.sqlite import SQLiteInbox, SQLiteStore, claims

NEWER = "UPDATE ackwise_schema SET version = 99 WHERE part = 'claims'"


def ackwise(arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `ackwise store …`."""
    done = CliRunner().invoke(new_app(), ["store", *shlex.split(arguments)], prog_name="ackwise")
    return done.exit_code, done.stdout, done.stderr


def facts(arguments: str) -> tuple[int, Any]:
    code, said, errors = ackwise(f"{arguments} --json")
    assert errors == ""
    return code, json.loads(said)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "shop.db"


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


async def remember(url_or_store: str | SQLiteStore, keys: int, retention: float) -> None:
    """Complete `keys` in a store, as a worker did that has ended."""
    store = open_store(url_or_store) if isinstance(url_or_store, str) else url_or_store
    await store.open()
    some = [ClaimKey(number.to_bytes(16), None, 1) for number in range(keys)]
    await store.exchange(Exchange([Claim(key, 1) for key in some], retention=retention))
    await store.exchange(Exchange(completes=[Complete(key, 1, Outcome.OK) for key in some], retention=retention))
    await store.close()


def test_init_makes_the_claims_and_the_inbox_and_does_it_once(path: Path) -> None:
    assert facts("init sqlite:///shop.db") == (0, {"claims": {"ready": True}, "inbox": {"ready": True}})
    made = tables(path)
    assert {"ackwise_claims", "ackwise_inbox"} <= made
    assert facts("init sqlite:///shop.db")[0] == 0
    assert tables(path) == made


@pytest.mark.parametrize(
    ("part", "table", "other"), [("claims", "ackwise_claims", "ackwise_inbox"), ("inbox", "ackwise_inbox", "ackwise_claims")]
)
def test_only_one_part_is_set_up_where_only_one_is_wanted(path: Path, part: str, table: str, other: str) -> None:
    assert facts(f"init --only {part} sqlite:///shop.db") == (0, {part: {"ready": True}})
    assert table in tables(path)
    assert other not in tables(path)
    assert facts(f"check --only {part} sqlite:///shop.db") == (0, {part: {"findings": []}})
    code, found = facts("check sqlite:///shop.db")
    assert (code, sorted(name for name, said in found.items() if said["findings"])) == (1, sorted({"claims", "inbox"} - {part}))


def test_what_a_worker_made_is_fine_and_stays_as_it_is(path: Path) -> None:
    asyncio.run(remember("sqlite:///shop.db", 10, 3600.0))
    before = path.read_bytes()
    assert facts("check --only claims sqlite:///shop.db") == (0, {"claims": {"findings": []}})
    assert path.read_bytes() == before


def test_check_makes_no_file_and_says_what_to_do(path: Path) -> None:
    code, said, errors = ackwise("check sqlite:///shop.db")
    assert (code, errors) == (1, "")
    assert said.count("shop.db: there is no such file; run `ackwise store init URL`") == 2
    assert not path.exists()


@each(
    ("spoil", "finding"),
    [
        ("DROP TABLE ackwise_claims", "has no table ackwise_claims"),
        ("DROP INDEX ackwise_claims_kept_until", "has no index ackwise_claims_kept_until"),
        ("PRAGMA journal_mode = DELETE", "the file is in journal mode delete"),
    ],
)
def test_what_is_missing_is_found_and_init_mends_it(path: Path, spoil: str, finding: str) -> None:
    ackwise("init sqlite:///shop.db")
    execute(path, spoil)
    code, said, _ = ackwise("check --only claims sqlite:///shop.db")
    assert (code, finding in said) == (1, True)
    ackwise("init sqlite:///shop.db")
    assert ackwise("check sqlite:///shop.db")[0] == 0


def test_a_damaged_file_is_found(path: Path) -> None:
    asyncio.run(remember("sqlite:///shop.db", 2000, 3600.0))
    with path.open("r+b") as file:
        file.seek(4096 * 20)
        file.write(b"\xff" * 4096)
    code, said, errors = ackwise("check --only claims sqlite:///shop.db")
    assert code in (1, 2)
    assert "shop.db: the file is damaged" in said + errors


@each("command", ["init", "check", "cleanup"])
def test_the_schema_of_a_newer_ackwise_is_refused(path: Path, command: str) -> None:
    ackwise("init sqlite:///shop.db")
    execute(path, NEWER)
    before = path.read_bytes()
    code, said, errors = ackwise(f"{command} sqlite:///shop.db")
    assert (code, said) == (2, "")
    assert "have version 99, and this Ackwise knows version 3 alone; start the Ackwise that made them" in errors
    assert path.read_bytes() == before


@each("command", ["init", "check", "cleanup"])
@each(
    ("url", "sentence"),
    [
        ("sqlite:///absent/shop.db", "the folder of the claim store does not exist"),
        ("sqlite:///text", "text: this is no SQLite database"),
        ("sqlite:///shop.db?timeot=3", "the SQLite store has no option timeot"),
        ("sqlte:///shop.db", "no store is known for sqlte://; did you mean sqlite://"),
        (
            "sqlite:///shop.db?synchronous=full",
            "has no option synchronous; it has timeout; --only claims leaves the inbox out",
        ),
        ("redis://user:hunter2@127.0.0.1:1", "redis://127.0.0.1:1: nothing listens there"),
        ("postgresql://user:hunter2@127.0.0.1:1/shop", "postgresql://127.0.0.1:1/shop: it can't be reached"),
    ],
)
def test_a_mistake_is_one_sentence_without_the_password_and_exit_code_2(path: Path, command: str, url: str, sentence: str) -> None:
    (path.parent / "text").write_text("no database " * 200)
    code, said, errors = ackwise(f"{command} {url}")
    assert (code, said) == (2, "")
    assert sentence in errors
    assert errors.count("\n") == 1
    assert "hunter2" not in errors


def test_cleanup_needs_a_store_that_was_set_up(path: Path) -> None:
    assert "there is no such file" in ackwise("cleanup sqlite:///shop.db")[2]
    execute(path, "CREATE TABLE theirs (x)")
    assert "has no table ackwise_claims; name another" in ackwise("cleanup sqlite:///shop.db")[2]


def test_cleanup_deletes_what_is_forgotten_and_nothing_else(path: Path) -> None:
    ackwise("init sqlite:///shop.db")
    asyncio.run(remember("sqlite:///shop.db", 3500, 3600.0))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE ackwise_claims SET kept_until = 1.0 WHERE place < ?", (f"{3000:032x}",))
        columns = "place, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id, kept_until"
        connection.execute(f"INSERT INTO ackwise_inbox ({columns}) VALUES ('a', 1, 1, '', 0, 0, 1, 1.0), ('b', 1, 1, '', 0, 0, 1, 1e12)")
        connection.commit()
    assert facts("cleanup sqlite:///shop.db") == (0, {"claims": {"deleted": 3000}, "inbox": {"deleted": 1}})
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM ackwise_claims").fetchone() == (500,)
        assert connection.execute("SELECT place FROM ackwise_inbox").fetchall() == [("b",)]
    assert ackwise("cleanup sqlite:///shop.db")[1].count("0 records deleted") == 2


async def test_all_three_work_on_stores_that_are_open_and_leave_them_open(path: Path) -> None:
    store, inbox = SQLiteStore(path), SQLiteInbox(path)
    await store.open()
    await inbox.open()
    for part in (store, inbox):
        await part.init()
        assert await part.check() == []
        assert await part.cleanup() == 0
    assert len((await store.exchange(Exchange([Claim(ClaimKey(bytes(16), None, 1), 1)]))).claims) == 1
    async with inbox.begin(retention=60.0) as transaction:
        assert len(await transaction.claim([ClaimKey(bytes(16), None, 1)])) == 1
    await inbox.close()
    await store.close()


@pytest.mark.slow  # cleans up fifty thousand claims
async def test_a_cleanup_keeps_no_worker_from_the_file_for_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = SQLiteStore(path, timeout=1.0)
    monkeypatch.setattr(claims, "_FORGET_AT_ONCE", 0)  # it would help with the cleaning
    await worker.open()
    with closing(sqlite3.connect(path)) as connection:
        forgotten = ((f"old-{number}", 1, 1, 1, 0, 0, 1, 0.0, 1.0, "") for number in range(50_000))
        connection.executemany("INSERT INTO ackwise_claims VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", forgotten)
        connection.commit()
    cleaning = asyncio.ensure_future(SQLiteStore(path).cleanup())
    exchanges = 0
    while not cleaning.done():
        await worker.exchange(Exchange([Claim(ClaimKey(exchanges.to_bytes(16), None, 1), 1)]))
        exchanges += 1
    assert exchanges > 5
    assert await cleaning == 50_000
    await worker.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM ackwise_claims").fetchone() == (exchanges,)


@each("command", ["init", "check", "cleanup"])
def test_of_a_store_in_memory_it_is_said_that_there_is_nothing_to_do(command: str) -> None:
    code, said, _ = ackwise(f"{command} memory://")
    assert (code, "nothing to do: each worker keeps them in its memory" in said) == (0, True)


class Bare:
    """A store of another distribution that has nothing to set up."""

    def __init__(self, url: str) -> None: ...
    async def open(self) -> None: ...
    async def exchange(self, exchange: Exchange) -> None: ...
    async def close(self) -> None: ...


@pytest.fixture
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = EntryPoints([EntryPoint("bare", f"{__name__}:Bare", "ackwise.stores")])
    monkeypatch.setattr(registry, "announced", lambda group: bare.select(group=group))


@pytest.mark.usefixtures("_bare")
@each("command", ["init", "check", "cleanup"])
def test_a_store_that_has_none_of_it_is_one_sentence(command: str) -> None:
    code, said, errors = ackwise(f"{command} bare://x")
    assert (code, said) == (2, "")
    assert "the Bare has no init, check and cleanup" in errors


APP = """
from ackwise import App, Dedup, Transactional
from ackwise.stores.sqlite import SQLiteStore

def new(*policies):
    app = App("billing", brokers="127.0.0.1:1")
    app.use(*policies)

    @app.agent("orders")
    async def bill(value: bytes) -> None: ...

    return app

claims = new(Dedup("sqlite:///shop.db?synchronous=full"))
inbox = new(Transactional("sqlite:///shop.db"))
object = new(Dedup(SQLiteStore("shop.db")))
neither = new()
"""


@pytest.fixture
def _apps(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (path.parent / "apps.py").write_text(APP)
    yield
    sys.modules.pop("apps", None)


@pytest.mark.usefixtures("_apps")
@each(("app", "part"), [("claims", "claims"), ("object", "claims"), ("inbox", "inbox")])
def test_of_an_app_what_it_uses_is_looked_after(path: Path, app: str, part: str) -> None:
    assert facts(f"init apps:{app}") == (0, {part: {"ready": True}})
    assert facts(f"check apps:{app}") == (0, {part: {"findings": []}})
    assert facts(f"cleanup apps:{app}") == (0, {part: {"deleted": 0}})
    assert ("ackwise_inbox" in tables(path)) == (part == "inbox")


@pytest.mark.usefixtures("_apps")
@each(
    ("arguments", "sentence"),
    [
        ("check apps:neither", "the app apps:neither uses neither Dedup nor Transactional"),
        ("check apps:claim", "module 'apps' has no 'claim'; did you mean apps:claims"),
        ("check --only inbox apps:claims", "the app apps:claims keeps no inbox, only its claims; leave out --only"),
        ("check postgres:/user:hunter2@host/shop", "has no scheme; write it as a URL"),
        ("check shop.db", "has no scheme; write it as a URL"),
    ],
)
def test_what_is_neither_a_url_nor_an_app_with_a_store_is_one_sentence(arguments: str, sentence: str) -> None:
    code, said, errors = ackwise(arguments)
    assert (code, said) == (2, "")
    assert sentence in errors
    assert "hunter2" not in errors


# Real servers


def new_redis(server: Endpoint) -> str:
    return f"redis://127.0.0.1:{server.port}/9?namespace=cli-{os.urandom(4).hex()}"


def new_postgres(server: Endpoint) -> str:
    return f"postgresql://postgres@127.0.0.1:{server.port}/postgres?prefix=cli_{os.urandom(4).hex()}_"


def new_mariadb(server: Endpoint) -> str:
    return f"mariadb://root@127.0.0.1:{server.port}/test?prefix=cli_{os.urandom(4).hex()}_"


@pytest.mark.servers
@pytest.mark.parametrize(("server", "new"), [("redis", new_redis), ("postgres", new_postgres), ("mariadb", new_mariadb)])
def test_a_server_is_examined_set_up_twice_and_cleaned(server: str, new: Callable[[Endpoint], str], request: pytest.FixtureRequest) -> None:
    url = new(request.getfixturevalue(server))
    code, before = facts(f"check '{url}'")
    parts = sorted(before)
    missing = [part for part, said in before.items() if "missing" in str(said["findings"])]
    assert code == any(said["findings"] for said in before.values())
    assert missing == ([] if server == "redis" else parts)
    for _ in range(2):
        assert facts(f"init '{url}'") == (0, {part: {"ready": True} for part in parts})
    code, after = facts(f"check '{url}'")
    assert code == any(said["findings"] for said in after.values())
    assert [part for part, said in after.items() if "missing" in str(said["findings"])] == []
    assert facts(f"cleanup '{url}'") == (0, {part: {"deleted": 0} for part in parts})
