"""Event files that somebody or something has changed: one of each kind at a time, and what is said of them."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from tests.spark.robbed import CONFIG, Night

from ackwise.middleware.errors import AckwiseError
from ackwise.spark.events.sources import gathered, refuse_nothing
from ackwise.spark.reference.oracle import Ruling, rule
from ackwise.stores.journal.parquet import SCHEMA, content_of

__all__ = ["KINDS", "Corruption", "Look", "corrupted", "events_of", "look_at", "table_of", "write_sealed"]

Content = Callable[[random.Random, bytes], bytes]
Files = Callable[[random.Random, Sequence[Path]], object]
_TIMES: Final = ("event_ts", "record_ts", "due_ts")


class Corruption(NamedTuple):
    """What happens to one file, or to several."""

    name: str
    change: Files
    may_differ: bool = False
    """Somebody wrote other events as whole files: what they say counts, so only accusations and tracebacks are wrong."""


@dataclass(frozen=True)
class Look:
    """What is said of some folders."""

    told: bool
    """A sentence names a file, or nothing is concluded."""
    ruling: Ruling | None
    traceback: str = ""


def write_sealed(each: Night, root: Path) -> list[Path]:
    """The files of a night as workers write them."""
    paths = []
    for file in each.files:
        first, last = file[0], file[-1]
        path = root / "events/dt=2025-12-31/hr=23" / f"events-{first['writer_id']:016x}-{first['seq']:012d}-{last['seq']:012d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content_of([table_of(file)], path.name))
        paths.append(path)
    return paths


def events_of(files: Iterable[Path]) -> list[dict[str, Any]]:
    """The events in these files; times are microseconds."""
    plain = pa.schema([pa.field(f.name, pa.int64() if pa.types.is_timestamp(f.type) else f.type) for f in SCHEMA])
    found: list[dict[str, Any]] = []
    for path in files:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            found += file.read().select(SCHEMA.names).cast(plain).to_pylist()
    return found


def look_at(root: Path) -> Look:
    """As `reconcile` does, with the plain algebra in place of Spark."""
    try:
        with tempfile.TemporaryDirectory() as scratch, gathered([root], Path(scratch) / "live") as evidence:
            refuse_nothing(evidence)
            return Look(bool(evidence.unreadable or evidence.foreign), rule(events_of(evidence.files), CONFIG, evidence.logs.unreadable))
    except AckwiseError:
        return Look(told=True, ruling=None)
    except Exception as error:  # noqa: BLE001  # this is what is looked for
        return Look(told=False, ruling=None, traceback=f"{type(error).__name__}: {error}")


def corrupted(each: Night, kind: Corruption, seed: int) -> Look:
    """What is said of a night to which this happened."""
    with tempfile.TemporaryDirectory() as folder:
        files = write_sealed(each, Path(folder) / "root")
        kind.change(random.Random(seed), files)
        return look_at(Path(folder) / "root")


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The events as a table of the exported files."""
    return pa.table([pa.array([row.get(field.name) for row in rows], field.type) for field in SCHEMA], schema=SCHEMA)


def _footer(content: bytes) -> int:
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def _in(change: Content) -> Files:
    def changed(draw: random.Random, files: Sequence[Path]) -> None:
        path = draw.choice(files)
        path.write_bytes(change(draw, path.read_bytes()))

    return changed


def _flip(begin: Callable[[bytes], int], end: Callable[[bytes], int]) -> Files:
    def flipped(draw: random.Random, content: bytes) -> bytes:
        found = bytearray(content)
        found[draw.randrange(begin(content), end(content))] ^= 1 << draw.randrange(8)
        return bytes(found)

    return _in(flipped)


def _fill(filling: Callable[[random.Random, int], bytes], begin: Callable[[bytes], int], end: Callable[[bytes], int]) -> Files:
    def filled(draw: random.Random, content: bytes) -> bytes:
        found = content
        while found == content:  # zeros may be written over zeros
            at = draw.randrange(begin(content), end(content))
            size = min(draw.choice([1, 16, 512]), end(content) - at)
            found = content[:at] + filling(draw, size) + content[at + size :]
        return found

    return _in(filled)


def _rows(change: Callable[[random.Random, list[dict[str, Any]]], object]) -> Files:
    """Somebody wrote the file anew, without a sum."""

    def changed(draw: random.Random, files: Sequence[Path]) -> None:
        path = draw.choice(files)
        rows = events_of([path])
        change(draw, rows)
        nullable = pa.schema([field.with_nullable(True) for field in SCHEMA])
        arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in nullable]
        pq.write_table(pa.table(arrays, schema=nullable), path)

    return changed


def _every(**values: Any) -> Files:
    def changed(draw: random.Random, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row.update(values)

    return _rows(changed)


def _one(**values: Any) -> Files:
    return _rows(lambda draw, rows: draw.choice(rows).update(values))


def _attrs(text: str) -> Files:
    return _every(attrs=text)


def _renamed(draw: random.Random, files: Sequence[Path], *, to: Callable[[Path], str], copy: bool = False) -> None:
    path = draw.choice(files)
    place = path.with_name(to(path))
    if copy:
        shutil.copy(path, place)
    else:
        path.rename(place)


def _other_writer(path: Path) -> str:
    return path.name.replace(path.name[7:23], "00000000deadbeef")


def _other_numbers(path: Path) -> str:
    return f"{path.name[:23]}-000000900000-000000900009.parquet"


def _swap(draw: random.Random, files: Sequence[Path]) -> None:
    one, other = draw.sample(list(files), 2)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _again_elsewhere(draw: random.Random, files: Sequence[Path]) -> None:
    path = draw.choice(files)
    place = path.parents[2] / "dt=2026-01-01/hr=00" / path.name
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, place)


def _other_content(draw: random.Random, files: Sequence[Path]) -> None:
    """The same numbers in one more file, and one event there says something else."""
    path = draw.choice(files)
    rows = events_of([path])
    changed = draw.choice(rows)
    changed["offset"] = 7 if changed["offset"] is None else changed["offset"] + 1
    place = path.parents[2] / "dt=2026-01-01/hr=00" / path.name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content_of([table_of(rows)], place.name))


def _foreign(draw: random.Random, files: Sequence[Path]) -> None:
    pq.write_table(pa.table({"name": ["a", "b"], "offset": [1, 2]}), draw.choice(files))


def _replaced(by: Callable[[Path], object]) -> Files:
    def replaced(draw: random.Random, files: Sequence[Path]) -> None:
        path = draw.choice(files)
        path.unlink()
        by(path)

    return replaced


def _begin(content: bytes) -> int:
    return 4


def _end(content: bytes) -> int:
    return len(content) - 8


def _whole(content: bytes) -> int:
    return len(content)


DEEP: Final = "[" * 5000 + "]" * 5000
KINDS: Final = [
    Corruption("a bit of the pages", _flip(_begin, _footer)),
    Corruption("a bit of the footer", _flip(_footer, _end)),
    Corruption("a bit of the footer's length", _flip(_end, lambda content: len(content) - 4)),
    Corruption("a bit of the first magic", _flip(lambda content: 0, _begin)),
    Corruption("a bit of the last magic", _flip(lambda content: len(content) - 4, _whole)),
    Corruption("a bit of the sum", _flip(lambda c: c.rindex(b"ackwise.sum") + 11, lambda c: c.rindex(b"ackwise.sum") + 29)),
    Corruption("zeros in the pages", _fill(lambda draw, size: bytes(size), _begin, _footer)),
    Corruption("zeros in the footer", _fill(lambda draw, size: bytes(size), _footer, _end)),
    Corruption("ones in the pages", _fill(lambda draw, size: b"\xff" * size, _begin, _footer)),
    Corruption("noise in the pages", _fill(lambda draw, size: draw.randbytes(size), _begin, _footer)),
    Corruption("noise in the footer", _fill(lambda draw, size: draw.randbytes(size), _footer, _end)),
    Corruption("noise anywhere", _fill(lambda draw, size: draw.randbytes(size), lambda content: 0, _whole)),
    Corruption("a byte too many", _in(lambda draw, c: c[: (at := draw.randrange(len(c)))] + b"x" + c[at:])),
    Corruption("a byte too few", _in(lambda draw, c: c[: (at := draw.randrange(len(c)))] + c[at + 1 :])),
    Corruption("an empty file", _in(lambda draw, content: b"")),
    Corruption("a file of zeros", _in(lambda draw, content: bytes(len(content)))),
    Corruption("cut in the pages", _in(lambda draw, content: content[: draw.randrange(4, _footer(content))])),
    Corruption("cut in the footer", _in(lambda draw, content: content[: draw.randrange(_footer(content), len(content))])),
    Corruption("nothing but magics", _in(lambda draw, content: b"PAR1" + bytes(4) + b"PAR1")),
    Corruption("noise behind the end", _in(lambda draw, content: content + draw.randbytes(100))),
    Corruption("zeros behind the end", _in(lambda draw, content: content + bytes(4096))),
    Corruption("twice in one file", _in(lambda draw, content: content + content)),
    Corruption("pages without their beginning", _in(lambda draw, content: b"PAR1" + content[_footer(content) // 2 :])),
    Corruption("the name of another writer", lambda d, f: _renamed(d, f, to=_other_writer)),
    Corruption("the name of other numbers", lambda d, f: _renamed(d, f, to=_other_numbers)),
    Corruption("a copy by another writer's name", lambda d, f: _renamed(d, f, to=_other_writer, copy=True)),
    Corruption("no name of events", lambda d, f: _renamed(d, f, to=lambda path: f"old-{path.name}")),
    Corruption("a copy in another folder", _again_elsewhere),
    Corruption("two files in each other's place", _swap),
    Corruption("the same numbers with other content", _other_content),
    Corruption("a table of somebody else", _foreign),
    Corruption("a text", _in(lambda draw, content: b"writer,seq\n1,2\n" * 20)),
    Corruption("a folder", _replaced(lambda path: path.mkdir())),
    Corruption("a link to nowhere", _replaced(lambda path: path.symlink_to("/nowhere"))),
    Corruption("a pipe", _replaced(lambda path: os.mkfifo(path))),
    Corruption("rows of nulls", _rows(lambda draw, rows: rows.extend([{}] * 3))),
    Corruption("nothing but rows of nulls", _every(**dict.fromkeys(SCHEMA.names))),
    Corruption("a row without a writer", _one(writer_id=None)),
    Corruption("a row without a time", _one(event_ts=None)),
    Corruption("a row without a type", _one(event_type=None)),
    Corruption("rows twice", _rows(lambda draw, rows: rows.extend(list(rows)))),
    Corruption("rows in no order", _rows(lambda draw, rows: draw.shuffle(rows))),
    Corruption("attributes that are a list", _attrs("[1, 2]"), may_differ=True),
    Corruption("attributes that are a number", _attrs("7"), may_differ=True),
    Corruption("attributes that are a text", _attrs('"down"'), may_differ=True),
    Corruption("attributes that are null", _attrs("null"), may_differ=True),
    Corruption("attributes that are no JSON", _attrs('{"writer": 1, '), may_differ=True),
    Corruption("attributes that are too deep", _attrs(DEEP), may_differ=True),
    Corruption(
        "attributes of other types",
        _attrs(
            json.dumps(dict.fromkeys(("writer", "seq", "committed", "in_place", "lease", "retention", "goes_on_at"), "x") | {"levels": 3})
        ),
        may_differ=True,
    ),
    Corruption("attributes beyond all numbers", _attrs('{"lease": 1e999, "retention": NaN, "writer": 1e30, "seq": -5}'), may_differ=True),
    Corruption("the year 1970", _one(event_ts=1), may_differ=True),
    Corruption("the year 9999", _one(event_ts=253_402_300_799_000_000), may_differ=True),
    Corruption("a time before all dates", _one(event_ts=-(2**62)), may_differ=True),
    Corruption("all times in 9999", _every(event_ts=253_402_300_799_000_000), may_differ=True),
    Corruption("all times in 1970", _every(event_ts=1), may_differ=True),
]
