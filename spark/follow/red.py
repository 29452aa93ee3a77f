"""The red findings of a run, all of them, from the tables in its folder."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow.compute as pc
import pyarrow.dataset as ds

from ackwise.spark.follow.alarms import Red
from ackwise.spark.follow.ranges import Kind, Range, place_of, together
from ackwise.spark.report.report import UNDONE, RunReport
from ackwise.spark.storeclaims.findings import CLAIM_ANOMALIES
from ackwise.spark.vocabulary import ANOMALIES, DOUBTFUL, ENDED, INCONCLUSIVE, RED, ExitCode, Flag, LogicalVerdict, ProducedVerdict, Verdict

__all__ = ["red_of"]

_PLACE: Final = ("cluster", "group_id", "topic", "topic_id", "partition")
_MESSAGE: Final = (*_PLACE, "handler", "dedup_epoch", "offset")
#: Verdicts on messages that need no look; `_DOUBTFUL` is the flags that make an exception with `--strict`.
_FINE: Final = tuple(sorted(verdict.name for verdict in ENDED - ANOMALIES))
_DOUBTFUL: Final = frozenset(flag.name for flag in DOUBTFUL)
_RED: Final = frozenset(verdict.name for verdict in ANOMALIES)
_RED_FLAGS: Final = frozenset(str(flag.name) for flag in RED)
_UNKNOWN: Final = frozenset(verdict.name for verdict in INCONCLUSIVE)

#: Stands for anomalies that are in the summary only.
_OTHERS: Final = Kind("ANOMALIES", "", "", "see the report", has_offsets=False)

_Piece: TypeAlias = tuple[Kind, Range]


def red_of(report: RunReport) -> Red:
    """Return what makes the exit code of `report` 1. Raises `OSError` if a table can't be read."""
    out, strict = Path(report.output), report.config.strict
    if report.exit_code is ExitCode.CLEAN:
        return Red()
    is_overtaken = any(report.flags.get(flag) for flag in (Flag.OVERTAKEN, Flag.MAYBE_OVERTAKEN))
    rows = list(_of_messages(out / "verdicts", () if is_overtaken else (Verdict.EXACTLY_ONCE.name,) if strict else _FINE))
    absent = list(_rows(out / "missing", (*_PLACE, "start", "end", "verdict")))
    red = [row for row in rows if _is_red(row, strict)]
    settled = together(_message(row) for row in red if Flag.PROVISIONAL.name not in row["flags"])
    provisional = [_message(row) for row in red if Flag.PROVISIONAL.name in row["flags"]]
    ageless = [*(_offsets(row) for row in absent if row["verdict"] in _RED), *_of_keys(out / "logical"), *_of_claims(out / "claims")]
    young = together([*provisional, *ageless, *_of_producers(out / "produced", strict)])
    unknown = [_message(row) for row in rows if row["verdict"] in _UNKNOWN]
    unknown += [_offsets(row) for row in absent if row["verdict"] in _UNKNOWN]
    if report.exit_code is ExitCode.ANOMALIES and not settled and not young:
        settled = {_OTHERS: [(0, 1)]}  # an anomaly that no table has would else alarm nobody
    return Red(settled, young, together((place_of(kind), piece) for kind, piece in unknown))


def _is_red(row: dict[str, Any], strict: bool) -> bool:
    flags = set(row["flags"])
    if row["verdict"] in _RED or flags & _RED_FLAGS:
        return True
    return strict and (bool(flags & _DOUBTFUL) or row["verdict"] in {verdict.name for verdict in UNDONE})


def _of_messages(folder: Path, fine: Collection[str]) -> Iterator[dict[str, Any]]:
    return _rows(folder, (*_MESSAGE, "verdict", "flags"), ~pc.field("verdict").isin(list(fine)) if fine else None)


def _of_keys(folder: Path) -> Iterator[_Piece]:
    is_twice = pc.field("logical_verdict") == LogicalVerdict.LOGICAL_DUPLICATE.name
    for row in _rows(folder, (*_MESSAGE, "logical_verdict"), is_twice):
        yield _message(row | {"verdict": row["logical_verdict"], "flags": ()})


def _of_producers(folder: Path, strict: bool) -> Iterator[_Piece]:
    asked = [ProducedVerdict.NOT_PUBLISHED.name]
    asked += [ProducedVerdict.PARKED.name, ProducedVerdict.ORPHAN_CONSUMED.name] if strict else []
    columns = (*_PLACE, "start", "end", "key", "timestamp", "outbox", "row", "verdict")
    for row in _rows(folder, columns, pc.field("verdict").isin(asked)):
        if row["start"] is not None:
            yield _offsets(row)
        else:  # the key is for nobody's eyes: it may be that of a customer
            identity = "|".join(str(row[name]) for name in ("key", "timestamp", "outbox", "row"))
            number = int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=7).digest())
            yield Kind(row["verdict"], "", "", row["topic"] or "", topic_id=row["topic_id"] or "", has_offsets=False), (number, number + 1)


def _of_claims(folder: Path) -> Iterator[_Piece]:
    is_anomaly = pc.field("finding").isin(sorted(finding.name for finding in CLAIM_ANOMALIES))
    for row in _rows(folder, (*_MESSAGE, "finding"), is_anomaly):
        yield _message(row | {"verdict": row["finding"], "flags": ()})


def _message(row: dict[str, Any]) -> _Piece:
    telling = () if row["verdict"] in _RED else _RED_FLAGS if row["verdict"] not in _FINE else {*_RED_FLAGS, Flag.MAYBE_OVERTAKEN.name}
    name = next((flag for flag in row["flags"] if flag in telling), str(row["verdict"]))
    return _kind(row, name, row["handler"] or ""), (row["offset"], row["offset"] + 1)


def _offsets(row: dict[str, Any]) -> _Piece:
    return _kind(row, row["verdict"], ""), (row["start"], row["end"])


def _kind(row: dict[str, Any], verdict: str, handler: str) -> Kind:
    place = f"{row['topic']}/{row['partition']}"
    return Kind(verdict, row["group_id"], handler, place, row["cluster"] or "", row["topic_id"] or "", row.get("dedup_epoch") or 0)


def _rows(folder: Path, columns: Collection[str], chosen: pc.Expression | None = None) -> Iterator[dict[str, Any]]:
    """Return rows of a table; columns that it lacks are null. None if there is no such table."""
    if not folder.is_dir():
        return
    table = ds.dataset(folder, format="parquet", exclude_invalid_files=True)
    for batch in table.to_batches(columns=[name for name in columns if name in table.schema.names], filter=chosen):
        for row in batch.to_pylist():
            yield dict.fromkeys(columns) | row
