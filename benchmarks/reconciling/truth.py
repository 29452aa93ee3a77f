"""What the reconciliation must say of a made-up set, written while the set is made.

truth/messages.parquet     one row per message: verdict and flags
truth/missing.parquet      ranges of offsets without events: `verdict`, and `told` beside what was produced
truth/logical.parquet      dedup hashes where deduplication failed
truth/partitions.parquet   the accounts: first offset, end, and how many offsets are markers
truth/orphans.parquet      offsets that were consumed and that the producer does not tell of
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.reconciling.rows import Numbers

from ackwise.spark.vocabulary import LogicalVerdict, Verdict

_TIME: Final = pa.timestamp("us", "UTC")
_WHERE: Final = {"group_id": pa.string(), "topic": pa.string(), "partition": pa.int32()}
_TABLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "truth/messages": {**_WHERE, "offset": pa.int64(), "verdict": pa.string(), "flags": pa.int64()},
    "truth/missing": {**_WHERE, "start": pa.int64(), "end": pa.int64(), "verdict": pa.string(), "told": pa.string()},
    "truth/logical": {"group_id": pa.string(), "dedup_hash": pa.int64(), "verdict": pa.string(), "beyond": pa.bool_()},
    "truth/partitions": {**_WHERE, "start": pa.int64(), "committed": pa.int64(), "gaps": pa.int64()},
    "truth/orphans": {**_WHERE, "offset": pa.int64()},
    "produced/produced": {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "timestamp": _TIME, "key": pa.string()},
}
_NAMES: Final = pa.array([verdict.name for verdict in Verdict], pa.string())


class Truth:
    """The tables of one set, open while it is made."""

    def __init__(self, folder: Path) -> None:
        self._writers: dict[str, Any] = {}
        self.messages = 0
        self.produced = 0
        for name, types in _TABLES.items():
            path = folder / f"{name}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writers[name] = pq.ParquetWriter(path, pa.schema(list(types.items())), compression="zstd")

    def __enter__(self) -> Truth:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for writer in self._writers.values():
            writer.close()

    def say_messages(self, where: tuple[str, str, int], offsets: Numbers, verdicts: Numbers, flags: Numbers) -> None:
        """What becomes of messages of one partition."""
        self.messages += len(offsets)
        self._columns("truth/messages", where, offsets, _names(verdicts), flags)

    def say_missing(self, where: tuple[str, str, int], offsets: Numbers, verdicts: Numbers, told: Numbers) -> None:
        """What becomes of single offsets without events, and beside what was produced."""
        self._columns("truth/missing", where, offsets, offsets + 1, _names(verdicts), _names(told))

    def say_range(self, where: tuple[str, str, int], start: int, end: int, verdict: Verdict | None, told: Verdict) -> None:
        """The same of a range; None: the table has it only beside what was produced."""
        self._rows("truth/missing", [(*where, start, end, None if verdict is None else verdict.name, told.name)])

    def say_orphans(self, where: tuple[str, str, int], offsets: Numbers) -> None:
        self._columns("truth/orphans", where, offsets)

    def say_logical(self, group: str, verdict: LogicalVerdict, hashes: Mapping[int, bool]) -> None:
        """Hashes, and whether their runs are further apart than the store remembers."""
        self._rows("truth/logical", [(group, hashed, verdict.name, beyond) for hashed, beyond in hashes.items()])

    def say_accounts(self, accounts: Iterable[tuple[str, str, int, int, int, int]]) -> None:
        self._rows("truth/partitions", list(accounts))

    def produce(self, topic: str, partition: int, offsets: Numbers, times: Numbers) -> None:
        """Records that the producer tells of."""
        self.produced += len(offsets)
        count = len(offsets)
        self._arrays("produced/produced", [_same(topic, count), _same(partition, count), offsets, pa.array(times), pa.nulls(count)])

    def hold_back(self, topic: str, count: int, at: int) -> None:
        """Records that were to be produced and have no coordinates."""
        self._rows("produced/produced", [(topic, None, None, at, f"order {number}") for number in range(count)])

    def _columns(self, name: str, where: tuple[str, str, int], *columns: Any) -> None:
        if len(columns[0]):
            self._arrays(name, [*(_same(value, len(columns[0])) for value in where), *columns])

    def _arrays(self, name: str, columns: Sequence[Any]) -> None:
        types = _TABLES[name]
        arrays = [pa.array(column).cast(kind) for column, kind in zip(columns, types.values(), strict=True)]
        self._writers[name].write_table(pa.table(arrays, schema=pa.schema(list(types.items()))))

    def _rows(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        types = _TABLES[name]
        arrays = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(types.values())]
        self._writers[name].write_table(pa.table(arrays, schema=pa.schema(list(types.items()))))


def _same(value: object, count: int) -> Any:
    return pa.repeat(pa.scalar(value), count)


def _names(verdicts: Numbers) -> Any:
    return _NAMES.take(pa.array(verdicts - 1)) if len(verdicts) else pa.array(np.empty(0, object), pa.string())
