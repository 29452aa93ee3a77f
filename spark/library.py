"""The audit as DataFrames of your Spark session: events, verdicts, accounts and claims.

Works with PySpark 4, in a classic session and one of Spark Connect. No view, cache or setting is left in the session.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.events import EventCode
from ackwise.middleware.storage.claimstore import Outcome
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.bitmap import count
from ackwise.spark.events.runs import explode
from ackwise.spark.events.schema import FILE_SCHEMA
from ackwise.spark.events.sources import gathered, recovered, refuse_nothing
from ackwise.spark.events.sources import read_events as read_files
from ackwise.spark.fold.folded import FoldedEvents
from ackwise.spark.frames import DataFrame, F, SparkSession
from ackwise.spark.judge.accounts import PartitionAccount, check, keep
from ackwise.spark.judge.offsets import absent
from ackwise.spark.judging import Judgement, conclude
from ackwise.spark.results.tables import name_of, names, offsets, verdict_rows
from ackwise.spark.session.rows import at_once
from ackwise.spark.session.tasks import in_tasks, rows_in_spark
from ackwise.spark.storeclaims.table import claim_table
from ackwise.spark.vocabulary import Verdict

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ReconcileConfig", "accounts", "claims", "read_events", "verdicts"]

_ACCOUNTS: Final = (
    "cluster string, group_id string, topic string, topic_id string, partition int, start long, end long, offsets long, "
    "verdicts map<string,long>, gaps long, rewound boolean"
)


def read_events(spark: SparkSession, *folders: str | Path, stream: bool = False) -> DataFrame:
    """Return the events in the folders that `Events` was given, a row each: all columns, and `event`, the name of `event_type`.

    Logs of workers that have ended are rolled into event files first; what a running worker has not rolled yet, for at most a minute, is
    left out. With `stream` it is a stream of the files that are there and of those to come; an event in two files comes twice then.

    Raises `ConfigurationError` if a folder holds no events.
    """
    roots = _roots(folders)
    evidence = recovered(roots)
    if stream:
        streams = [_stream(spark, root) for root in roots]
        return _with_names(reduce(lambda one, other: one.unionByName(other), streams))
    refuse_nothing(evidence)
    events = read_files(spark, evidence)
    return _with_names(events.dropDuplicates(["writer_id", "seq"]) if _overlap(evidence.files) else events)


def verdicts(spark: SparkSession, *folders: str | Path, config: ReconcileConfig | None = None) -> DataFrame:
    """Judge the events in the folders, and return a row per message: its coordinates, the `verdict` and the `flags` by name.

    It takes as long as `ackwise reconcile`; then the rows are kept by the executors, as by `DataFrame.localCheckpoint`, until the frame is
    garbage. A message is a record for one handler in one dedup epoch. Verdicts need all events, so they do not stream.

    Raises `ConfigurationError` if a folder holds no events, and what Spark raises.
    """
    with _judged(spark, folders, config or ReconcileConfig()) as (found, session):
        return rows_in_spark(spark, verdict_rows(found.every, names(session, found.facts)).drop("state"))


def accounts(spark: SparkSession, *folders: str | Path, config: ReconcileConfig | None = None) -> DataFrame:
    """Judge the events in the folders, and return a row per source partition of each group: what became of all its offsets.

    `start` to before `end` are its offsets, from the first that the group read to its last commit. `verdicts` has the number of them by
    verdict, an offset of several handlers by the worst; `gaps` counts those that the broker does not have. They add up to `offsets`.

    Raises `UnbalancedAccounts` if they do not, `ConfigurationError` if a folder holds no events, and what Spark raises.
    """
    with _judged(spark, folders, config or ReconcileConfig()) as (found, _):
        accounts = _accounts(found)
    check(accounts)
    return spark.createDataFrame(_table(accounts), _ACCOUNTS)


def claims(spark: SparkSession, store: str) -> DataFrame:
    """Return the claims in a store, a row per key: `dedup_hash` as in the events, the record's name as `key`, and its state.

    `store` is the URL of a store in Redis, PostgreSQL, MariaDB or MySQL, or SQLite, or an app as `module:app`. `outcome` is null while
    the key is not done; `unrecorded`: it is done, and its worker could not write that down. Each use of the frame reads the store again,
    in one task, whose Python needs Ackwise with the extra of the store, and whose machine must reach it.

    Raises `ConfigurationError`, and `Unavailable` if the store can't be read from here.
    """
    instants = [F.timestamp_micros(name).alias(name) for name in ("leased_until", "kept_until")]
    rows = claim_table(store).read(spark).rows
    return rows.select("dedup_hash", "key", name_of("outcome", Outcome).alias("outcome"), "is_claimed", "unrecorded", *instants)


def _roots(folders: Sequence[str | Path]) -> list[Path]:
    if not folders:
        raise ConfigurationError("no folder of events is named; give those that Events was given")
    return [Path(folder).absolute() for folder in folders]


def _stream(spark: SparkSession, root: Path) -> DataFrame:
    folder = root / "events"
    folder.mkdir(exist_ok=True)  # of a worker that has recorded nothing yet
    files = spark.readStream.schema(FILE_SCHEMA).option("recursiveFileLookup", "true").option("pathGlobFilter", "events-*.parquet")
    return explode(files.parquet(str(folder)))


def _with_names(events: DataFrame) -> DataFrame:
    return events.withColumn("event", name_of("event_type", EventCode))


def _overlap(files: Sequence[Path]) -> bool:
    """Return True if two files may have the same event, by their names."""
    last = dict[str, int]()
    for _, writer, first, after in sorted(file.stem.split("-") for file in files):
        if int(first) <= last.get(writer, -1):
            return True
        last[writer] = max(int(after), last.get(writer, -1))
    return False


@contextmanager
def _judged(spark: SparkSession, folders: Sequence[str | Path], config: ReconcileConfig) -> Iterator[tuple[Judgement, SparkSession]]:
    """Judge in tasks of the session, and yield what is found and what computes it."""
    roots = _roots(folders)
    with _scratch(roots[0]) as scratch, gathered(roots, scratch) as evidence:
        refuse_nothing(evidence)
        with in_tasks(spark, evidence.size, scratch) as session:
            yield conclude(session, FoldedEvents(session, evidence), config, evidence.logs), session


@contextmanager
def _scratch(root: Path) -> Iterator[Path]:
    """A new folder for copies of logs that are being written: beside the events, where executors can read it, if that is possible."""
    runs = root / "runs"
    with tempfile.TemporaryDirectory(prefix="ackwise-") as elsewhere:
        place, there = Path(elsewhere) / "live", runs.exists()
        with suppress(OSError):
            runs.mkdir(exist_ok=True)
            (beside := runs / f".live-{secrets.token_hex(4)}").mkdir()
            place = beside
        try:
            yield place
        finally:
            with suppress(OSError):
                place.rmdir()
            if not there:
                with suppress(OSError):
                    runs.rmdir()


def _accounts(found: Judgement) -> list[PartitionAccount]:
    masks = absent()
    counted, partitions = at_once(offsets(found.every), count(found.words, masks))
    accounted = [(pk, Verdict(verdict), number) for pk, verdict, number in counted]
    return keep(found.facts, found.commits, accounted, {row["key"]: {name: row[name] for name in masks} for row in partitions})


def _table(accounts: Sequence[PartitionAccount]) -> pa.Table:
    import pyarrow as pa

    whole, name = pa.int64(), pa.string()
    types = [name, name, name, name, pa.int32(), whole, whole, whole, pa.map_(name, whole), whole, pa.bool_()]
    rows = [
        (
            *place.group,
            place.topic,
            place.topic_id,
            place.partition,
            account.start,
            account.committed,
            account.expected,
            _counts(account),
            account.gaps,
            account.rewound,
        )
        for account, place in ((account, account.partition) for account in accounts)
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    names = [column.split()[0] for column in _ACCOUNTS.split(", ")]
    return pa.table([pa.array(column, kind) for column, kind in zip(columns, types, strict=True)], names=names)


def _counts(account: PartitionAccount) -> list[tuple[str, int]]:
    return [(verdict.name, number) for verdict, number in account.verdicts.items() if number]
