"""Lays the tables of a run beside the truth of made-up sets."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import duckdb

from ackwise.spark.vocabulary import Flag

_FLAGS: Final = ", ".join(f"CASE WHEN flags & {int(flag)} != 0 THEN '{flag.name}' END" for flag in Flag)
_NAMED: Final = f"list_filter([{_FLAGS}], lambda name: name IS NOT NULL)"
_OFFSETS: Final = 'unnest(range(start, "end")) AS "offset"'
_IS_SET: Final = '(masks[("offset" >> 6) - (start >> 6) + 1] >> ("offset" & 63)::INTEGER) & 1 = 1'

#: What a run says, table by table. `{run}` is its folder.
_SAID: Final = {
    "messages": """SELECT group_id, topic, partition, "offset", verdict, flags FROM '{run}/verdicts/*.parquet'""",
    "missing": f"SELECT group_id, topic, partition, {_OFFSETS}, verdict FROM '{{run}}/missing/*.parquet'",
    "logical": "SELECT DISTINCT group_id, dedup_hash, logical_verdict, 'BEYOND_TTL' IN logical_flags FROM '{run}/logical/*.parquet'",
    "orphans": f"SELECT group_id, topic, partition, {_OFFSETS} FROM '{{run}}/produced/*.parquet' WHERE verdict = 'ORPHAN_CONSUMED'",
}
#: The messages that a run tells of by ranges, if it does.
_RANGES: Final = f"""UNION ALL SELECT group_id, topic, partition, "offset", verdict, flags
    FROM (SELECT *, {_OFFSETS} FROM '{{run}}/ranges/*.parquet') WHERE masks IS NULL OR {_IS_SET}"""
#: What is true, in the same columns. `{truth}` are the files, `{verdict}` the column of them.
_TRUE: Final = {
    "messages": f"""SELECT group_id, topic, partition, "offset", verdict, {_NAMED} FROM {{truth}}""",
    "missing": f"SELECT group_id, topic, partition, {_OFFSETS}, {{verdict}} FROM {{truth}} WHERE {{verdict}} IS NOT NULL",
    "logical": "SELECT group_id, dedup_hash, verdict, beyond FROM {truth}",
    "orphans": 'SELECT group_id, topic, partition, "offset" FROM {truth}',
}
_ACCOUNTS: Final = "SELECT group_id, topic, partition, start, committed, gaps FROM {truth}"


def differences(run: Path, sets: Sequence[Path], *, produced: bool = False) -> list[str]:
    """A sentence for each way in which the tables in a run's folder differ from the truth of all the sets that it judged.

    `produced`: it was told of what was produced.
    """
    verdict = "told" if produced else "verdict"
    names = [name for name in _SAID if produced or name != "orphans"]
    said = {**_SAID, "messages": _SAID["messages"] + (_RANGES if (run / "ranges").exists() else "")}
    with _database() as connection:
        queries = {name: (said[name].format(run=run), _TRUE[name].format(truth=_files(sets, name), verdict=verdict)) for name in names}
        return list(_apart(connection, queries))


def account_differences(run: Path, sets: Sequence[Path]) -> list[str]:
    """The same of the accounts in `summary.json`."""
    with _database() as connection:
        true = set(connection.sql(_ACCOUNTS.format(truth=_files(sets, "partitions"))).fetchall())
    accounts = json.loads((run / "summary.json").read_text())["accounts"]
    said = {tuple(account[name] for name in ("group", "topic", "partition", "start", "committed", "gaps")) for account in accounts}
    odd = {"that are not so": said - true, "too few": true - said}
    return [f"accounts: {len(each)} {what}, such as {min(each, key=str)}" for what, each in odd.items() if each]


def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 2, "memory_limit": "4GB", "temp_directory": tempfile.gettempdir()})


def _files(sets: Sequence[Path], name: str) -> str:
    return f"read_parquet({[str(folder / 'truth' / f'{name}.parquet') for folder in sets]})"


def _apart(connection: duckdb.DuckDBPyConnection, queries: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    for name, (said, true) in queries.items():
        for what, rows in (("that are not so", f"({said}) EXCEPT ALL ({true})"), ("too few", f"({true}) EXCEPT ALL ({said})")):
            count = len(connection.sql(f"SELECT 1 FROM ({rows})"))
            if count:
                yield f"{name}: {count} rows {what}, such as {connection.sql(f'FROM ({rows}) LIMIT 3').fetchall()}"
