"""The SQLite store passes the suite that every store passes, and bears what only a file can do to it."""

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.stores.cases import case
from tests.stores.claiming_process import BATCH, key_of

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.claimstore import Ack, Acquired, AlreadyDone, Claim, Complete, Exchange, Outcome, Release
from ackwise.stores.conformance import Clock, Features, StoreConformance
from ackwise.stores.sqlite import SQLiteStore, from_url

PROGRAM = Path(__file__).parents[1] / "claiming_process.py"


class TestSQLiteStore(StoreConformance):
    features = Features(persistent=True, shared=True, owners=True)

    def make(self, place: Path, clock: Callable[[], float]) -> SQLiteStore:
        return SQLiteStore(place / "claims.db", clock=clock)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "claims.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path, timeout=0.2)
    await store.open()
    yield store
    await store.close()


def claims(count: int, token: int = 1, first: int = 0) -> list[Claim]:
    return [Claim(key_of(number), token) for number in range(first, first + count)]


def start(path: Path, process: int, batches: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, str(PROGRAM), f"sqlite:///{path}?timeout=30", str(process), str(batches)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow  # starts four processes that share a file
def test_four_processes_share_a_file_and_no_key_goes_to_two(path: Path) -> None:
    processes = [start(path, number, batches=40) for number in range(1, 5)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    answers = [json.loads(line) for output in outputs for line in output.splitlines()]
    assert sorted(number for answer in answers for number in answer["acquired"]) == list(range(40 * BATCH))
    assert {ack for answer in answers for ack in answer["acks"]} == {"ok"}


@pytest.mark.slow  # waits for a process
@pytest.mark.parametrize("batches", [5, *(pytest.param(many, marks=pytest.mark.nightly) for many in (1, 20))])
async def test_a_killed_process_leaves_whole_exchanges_and_all_that_was_answered(path: Path, batches: int) -> None:
    with start(path, process=1, batches=10**6) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(batches)]
        process.kill()
        lines += process.stdout.read().splitlines()
    answered = [json.loads(line) for line in lines if line.endswith(("}", "}\n"))]
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert connection.execute("SELECT count(*) % ? FROM ackwise_claims", (BATCH,)).fetchone() == (0,)
    connection.close()
    store = SQLiteStore(path)
    await store.open()
    done = [Claim(key_of(number), 7) for answer in answered for number in answer["done"]]
    held = [Claim(key_of(number), 7) for number in answered[-1]["acquired"]]
    result = await store.exchange(Exchange([*done, *held]))
    await store.close()
    assert result.claims[: len(done)] == [AlreadyDone(Outcome.OK)] * len(done)
    assert not any(isinstance(answer, Acquired) for answer in result.claims)


async def test_a_file_can_be_opened_by_many_at_once(path: Path) -> None:
    stores = [SQLiteStore(path) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    results = await asyncio.gather(*(store.exchange(Exchange(claims(10, token))) for token, store in enumerate(stores, 1)))
    await asyncio.gather(*(store.close() for store in stores))
    assert sum(isinstance(answer, Acquired) for result in results for answer in result.claims) == 10


async def test_no_other_worker_writes_between_what_is_read_and_what_is_decided(store: SQLiteStore, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
    refused: list[bool] = []

    def look(statement: str) -> None:
        if "SELECT" in statement:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                refused.append(True)
            else:
                refused.append(False)
                other.execute("ROLLBACK")

    file: Any = store._connections  # its thread alone may touch its connection
    file._thread.submit(lambda: file._connection.set_trace_callback(look)).result()
    await store.exchange(Exchange(claims(1)))
    file._thread.submit(lambda: file._connection.set_trace_callback(None)).result()
    other.close()
    assert refused
    assert all(refused)


async def test_a_locked_file_makes_the_store_unavailable_within_its_timeout_and_only_while_it_is_locked(
    store: SQLiteStore, path: Path
) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    answers = await asyncio.gather(*(store.exchange(Exchange(claims(1))) for _ in range(100)), return_exceptions=True)
    assert time.monotonic() - began < 10.0, "they do not wait one after the other"
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert "claims.db: another writer held the file for 0.2 s" in str(answers[0])
    other.execute("ROLLBACK")
    other.close()
    assert (await store.exchange(Exchange(claims(1)))).claims == [Acquired(1)]


@pytest.mark.parametrize(
    ("trouble", "end", "sentence"),
    [
        ("PRAGMA query_only = ON", "PRAGMA query_only = OFF", "can't be written"),
        ("PRAGMA max_page_count = 1", "PRAGMA max_page_count = 1000000", "the disk is full"),
    ],
)
async def test_a_file_that_can_not_grow_or_be_written_is_named_and_used_again_when_it_can(
    store: SQLiteStore, trouble: str, end: str, sentence: str
) -> None:
    file = store._connections
    assert file._thread is not None
    assert file._connection is not None
    file._thread.submit(file._connection.execute, trouble).result()
    with pytest.raises(StoreUnavailable, match=sentence):
        await store.exchange(Exchange(claims(500)))
    file._thread.submit(file._connection.execute, end).result()
    assert (await store.exchange(Exchange(claims(500)))).claims == [Acquired(1)] * 500


async def test_a_failed_exchange_leaves_nothing_behind(store: SQLiteStore) -> None:
    file = store._connections
    assert file._thread is not None
    assert file._connection is not None
    await store.exchange(Exchange(claims(5)))
    file._thread.submit(file._connection.execute, "PRAGMA max_page_count = 1").result()
    with pytest.raises(StoreUnavailable):
        await store.exchange(Exchange(claims(500, token=2, first=100), [Complete(key_of(0), 1, Outcome.OK)]))
    assert (await store.exchange(Exchange(completes=[Complete(key_of(0), 1, Outcome.DEAD)]))).completes == [Ack.OK]
    assert (await store.exchange(Exchange([Claim(key_of(0), 3)]))).claims == [AlreadyDone(Outcome.DEAD)]


def test_a_file_that_is_no_database_is_refused_and_not_touched(path: Path) -> None:
    path.write_text("offset,value\n" * 100)
    with pytest.raises(ConfigurationError, match=r"claims\.db: this is no SQLite database; name another file"):
        asyncio.run(SQLiteStore(path).open())
    assert path.read_text().startswith("offset,value")


@pytest.mark.parametrize("version", [2, 4])
async def test_claims_of_another_version_are_refused_and_not_touched(path: Path, version: int) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE ackwise_schema (part TEXT PRIMARY KEY, version INTEGER)")
        connection.execute("INSERT INTO ackwise_schema VALUES ('claims', ?)", (version,))
    with pytest.raises(ConfigurationError, match=f"its claims have version {version}, and this Ackwise knows version 3 alone"):
        await SQLiteStore(path).open()
    assert connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall() == [("ackwise_schema",)]
    connection.close()


async def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the folder of the claim store does not exist; create it"):
        await SQLiteStore(tmp_path / "missing" / "claims.db").open()


async def test_a_folder_in_place_of_the_file_makes_the_store_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="the file can't be opened"):
        await SQLiteStore(tmp_path).open()


async def test_other_tables_in_the_file_are_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.execute("PRAGMA user_version = 41")
    connection.close()
    store = SQLiteStore(path)
    await store.open()
    await store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (41,)
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    connection.close()


async def test_forgotten_records_are_deleted_a_bounded_number_at_a_time(path: Path) -> None:
    clock = Clock()
    store = SQLiteStore(path, clock=clock)
    await store.open()
    await store.exchange(Exchange(completes=[Complete(key_of(number), 1, Outcome.OK) for number in range(2500)]))
    clock.now += 86400.0
    counts = []
    for token in range(1, 5):
        await store.exchange(Exchange(claims(1, token, first=9999)))
        reader = sqlite3.connect(path)
        counts += reader.execute("SELECT count(*) FROM ackwise_claims").fetchone()
        reader.close()
    await store.close()
    assert counts == [1501, 501, 1, 1]


async def test_a_released_key_is_free_even_if_the_clock_was_set_back(path: Path) -> None:
    clock = Clock()
    store = SQLiteStore(path, clock=clock)
    await store.open()
    await store.exchange(Exchange(claims(1)))
    await store.exchange(Exchange(releases=[Release(key_of(0), 1)]))
    clock.now -= 3600.0
    assert (await store.exchange(Exchange(claims(1, token=2)))).claims == [Acquired(2)]
    await store.close()


async def test_close_ends_the_thread_after_the_exchanges_under_way(path: Path) -> None:
    store = SQLiteStore(path)
    await store.open()
    last = asyncio.ensure_future(store.exchange(Exchange(claims(500))))
    await asyncio.sleep(0)
    await store.close()
    assert (await last).claims == [Acquired(1)] * 500
    assert not [thread for thread in threading.enumerate() if "claims.db" in thread.name]


def test_an_exchange_survives_the_end_of_the_loop_that_asked_for_it(path: Path) -> None:
    store = SQLiteStore(path)

    async def ask_and_leave() -> None:
        await store.open()
        asking = asyncio.ensure_future(store.exchange(Exchange(claims(500))))
        await asyncio.sleep(0)
        assert not asking.done()

    async def ask_again() -> list[object]:
        answers = (await store.exchange(Exchange(claims(500)))).claims
        await store.close()
        return list(answers)

    asyncio.run(ask_and_leave())
    assert asyncio.run(ask_again()) == [Acquired(1)] * 500


def test_the_url_gives_the_path_and_the_options(tmp_path: Path) -> None:
    store = from_url(f"sqlite:///{tmp_path}/my%20claims.db?synchronous=full&timeout=2.5")
    assert (store._file.path, store._synchronous, store._file.timeout) == (tmp_path / "my claims.db", "full", 2.5)
    assert from_url("sqlite:///claims.db")._file.path == Path("claims.db")


def test_a_url_that_can_not_work_is_refused() -> None:
    for url, sentence in [
        ("sqlite://claims.db", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite:///x?timeout=soon", "timeout is 'soon'"),
        ("sqlite:///x?timeout=0", "more than 0"),
        ("sqlite:///x?synchronous=off", "normal or full"),
        ("sqlite:///x?cache=shared", "no option cache"),
    ]:
        with case(url, sentence), pytest.raises(ConfigurationError, match=sentence):
            from_url(url)


async def test_in_a_working_folder_that_was_deleted_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(AckwiseError, match=r"x\.db: "):
        await SQLiteStore("x.db").open()
