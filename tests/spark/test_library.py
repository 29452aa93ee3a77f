"""`ackwise.spark` in a session of the user's: the rows of the command, and nothing left in the session."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.events.test_runs import Worker
from tests.spark.histories import NOW, SECOND, History, hash_of
from tests.spark.reconciling import AS_OF, every_message, name_of, reconciled, root_of, rows_of, summary

import ackwise.spark
from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.storage.claimstore import Claim, ClaimKey, Complete, Exchange, Outcome
from ackwise.plugin.registry import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Nothing that the rules count on, and what a session has that was never configured.
UNUSUAL = {"spark.sql.session.timeZone": "America/New_York", "spark.sql.ansi.enabled": "false"}
DEFAULTS = ("spark.sql.shuffle.partitions",)


@pytest.fixture
def users(spark: SparkSession) -> Iterator[SparkSession]:
    """The session as a user has it."""
    before = spark.conf.getAll
    for name, value in UNUSUAL.items():
        spark.conf.set(name, value)
    for name in DEFAULTS:
        spark.conf.unset(name)
    yield spark
    for name in (*UNUSUAL, *DEFAULTS):
        spark.conf.set(name, before[name])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    history = History("g").say("w1", "RECEIVED_RANGE[0,7) 0:CS 1:CF 3:CSS 4:CFB W=7").say("w1", "GAP[7,9)").say("w2", "5:CS 5:CS W=9")
    return root_of(tmp_path / "root", history)


def config() -> Any:
    from ackwise.spark import ReconcileConfig

    return ReconcileConfig(as_of=NOW / SECOND)


def state_of(spark: SparkSession) -> tuple[object, ...]:
    return (dict(spark.conf.getAll), [table.name for table in spark.catalog.listTables()], cached(spark))


def cached(spark: Any) -> bool:
    """Whether the session keeps any plan of a frame."""
    return bool(not spark._jsparkSession.sharedState().cacheManager().isEmpty())


@pytest.mark.spark
@pytest.mark.slow  # starts Spark, and Python in its tasks
def test_verdicts_and_accounts_are_those_of_the_command_and_leave_nothing_behind(users: SparkSession, root: Path, tmp_path: Path) -> None:
    from ackwise.spark import accounts, read_events, verdicts

    reconciled(root, "--as-of", AS_OF, "--out", tmp_path / "out", "--engine", "local")
    before, folders = state_of(users), sorted(root.iterdir())
    judged = verdicts(users, root, config=config())
    found = [row.asDict() for row in judged.collect()]
    wanted = every_message(tmp_path / "out")
    shown = ("topic", "partition", "offset", "handler", "verdict", "flags")
    assert sorted([row[name] for name in shown] for row in found) == sorted([row[name] for name in shown] for row in wanted)
    judged.createOrReplaceTempView("mine")
    counted = users.sql("SELECT verdict, count(*) AS n FROM mine GROUP BY verdict").collect()
    users.catalog.dropTempView("mine")
    assert {row["verdict"]: row["n"] for row in counted} == Counter(row["verdict"] for row in wanted)
    (account,) = accounts(users, root, config=config()).collect()
    (written,) = summary(tmp_path / "out")["accounts"]
    assert (account["start"], account["end"], account["offsets"]) == (0, 9, 9)
    assert account["verdicts"] == written["verdicts"]
    assert sum(account["verdicts"].values()) + account["gaps"] == account["offsets"]
    events = read_events(users, root)
    assert events.count() == sum(1 for _ in rows_of(root / "events"))
    assert {row["event"] for row in events.select("event").distinct().collect()} >= {"CLAIMED", "SUCCEEDED", "COMMITTED"}
    assert (state_of(users), sorted(root.iterdir())) == (before, folders)


@pytest.mark.spark
@pytest.mark.slow  # starts Spark, and Python in its tasks
def test_the_partitions_follow_from_the_size_of_the_files(users: SparkSession, root: Path) -> None:
    from ackwise.spark import verdicts

    assert users.conf.get("spark.sql.shuffle.partitions") == "200"
    assert verdicts(users, root, config=config()).rdd.getNumPartitions() <= 8


@pytest.mark.spark
def test_an_event_of_two_files_is_one_row_and_a_stream_reads_the_files_to_come(users: SparkSession, root: Path, tmp_path: Path) -> None:
    from ackwise.spark import read_events

    number = read_events(users, root).count()
    second = tmp_path / "second"
    file = next((root / "events").rglob("*.parquet"))
    copy = second / "events" / "dt=2026-01-01" / "hr=01" / file.name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(file.read_bytes())
    assert read_events(users, root, second).count() == number
    events = read_events(users, second, stream=True)
    assert events.isStreaming
    query = events.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    query.awaitTermination()
    assert users.table("seen").count() == read_events(users, second).count()
    users.catalog.dropTempView("seen")


@pytest.mark.spark
def test_a_run_row_is_a_row_per_event_in_a_stream_too(users: SparkSession, tmp_path: Path) -> None:
    from ackwise.spark import read_events
    from ackwise.stores.journal.parquet import tables_of

    log = Worker(3).logs()[0]
    runs, singles = tables_of(log, 64)
    number = len(log.column("code"))
    assert len(runs) + len(singles) < number
    path = (
        tmp_path
        / "events"
        / "dt=2026-01-01"
        / "hr=00"
        / name_of(log.header.writer_id, log.header.first_seq, log.header.first_seq + number - 1)
    )
    path.parent.mkdir(parents=True)
    pq.write_table(pa.concat_tables([runs, singles]), path)
    events = read_events(users, tmp_path)
    assert (events.count(), events.select("seq").distinct().count()) == (number, number)
    read_events(users, tmp_path, stream=True).writeStream.format("memory").queryName("runs").trigger(
        availableNow=True
    ).start().awaitTermination()
    assert {*map(repr, users.table("runs").collect())} == {*map(repr, events.collect())}
    users.catalog.dropTempView("runs")


@pytest.mark.spark
def test_claims_are_those_of_the_store(users: SparkSession, tmp_path: Path) -> None:
    from ackwise.spark import claims

    url = f"sqlite:///{tmp_path}/claims.db"
    keys = [ClaimKey(hash_of(name).to_bytes(8, "big", signed=True) + bytes(8), None, 1) for name in ("done", "open")]

    async def claim() -> None:
        store = open_store(url)
        await store.open()
        await store.exchange(Exchange([Claim(key, 7) for key in keys]))
        await store.exchange(Exchange((), [Complete(keys[0], 7, Outcome.OK)]))
        await store.close()

    asyncio.run(claim())
    found = claims(users, url)
    rows = {row["dedup_hash"]: (row["outcome"], row["is_claimed"], row["key"]) for row in found.collect()}
    assert rows == {hash_of("done"): ("OK", False, keys[0].id.hex()), hash_of("open"): (None, True, keys[1].id.hex())}
    assert found.where("kept_until > now()").count() == 2
    with pytest.raises(Unavailable):
        claims(users, "redis://127.0.0.1:1/0")


@pytest.mark.spark
def test_a_folder_without_events_is_refused(users: SparkSession, tmp_path: Path) -> None:
    from ackwise.spark import accounts, read_events, verdicts

    (tmp_path / "events").mkdir()
    for ask in (accounts, read_events, verdicts):
        with pytest.raises(ConfigurationError, match="there are no events below"):
            ask(users, tmp_path)
        with pytest.raises(ConfigurationError, match="no folder of events is named"):
            ask(users)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events"]


def test_the_package_has_these_names_and_loads_no_pyspark_for_them() -> None:
    assert ackwise.spark.__all__ == ["ReconcileConfig", "accounts", "claims", "read_events", "verdicts"]
    assert {*ackwise.spark.__all__} <= {*dir(ackwise.spark)}
    for name in ackwise.spark.__all__:
        assert inspect.getdoc(getattr(ackwise.spark, name))
    with pytest.raises(AttributeError, match="no attribute 'messages'; its names are ReconcileConfig, accounts, claims"):
        ackwise.spark.messages  # noqa: B018  # asking is the test
    question = "import sys, ackwise.spark; print(sorted({'pyspark', 'duckdb', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=True).stdout.split() == ["[]"]
