"""When writers recorded, and what their clocks showed: of most files a few columns are enough."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from ackwise.middleware.events import EventCode as E
from ackwise.spark.events.reading import RowGroup, for_each, opened
from ackwise.spark.events.schema import MESSAGE_CODES
from ackwise.spark.kernels.arrays import Numbers, arrow, begins, flat, is_there, lengths, no_rows, numbers
from ackwise.spark.why.columns import COLUMNS, alike, has_any, ints
from ackwise.spark.why.scanning import batches_of
from ackwise.stores.journal.parquet import SCHEMA

__all__ = ["Life", "Looks", "Sign", "look_at", "looks_of", "together"]

_OF_ALL: Final = ("writer_id", "seq", "event_type", "event_ts", "record_ts")
_OF_RUNS: Final = ("n", "ok_n", "at_us", "ok_ts_max")
#: What events of writers have; the other columns are null.
_CHOSEN: Final = (
    *("writer_id", "seq", "event_type", "event_ts", "cluster", "group_id", "client", "topic", "topic_id", "partition", "offset"),
    *("range_end", "role", "from_commit", "attrs"),
)
_NOTHING: Final = no_rows(SCHEMA).select(COLUMNS)


class Sign(NamedTuple):
    """An event, by which its writer's clock is known. Microseconds."""

    at: int
    seq: int
    record: int | None
    """When the record was written that it is about."""


class Life(NamedTuple):
    """What is known of a writer's time."""

    first: Sign
    last: Sign
    messages: Sequence[Sign]
    """The first and the last about a message, and the one that followed its record soonest. Those of run rows are of the first message,
    and have the oldest record of the row: a clock that is right does not look slow by them."""


class Looks(NamedTuple):
    """What files show, whatever messages are asked for."""

    lives: Mapping[int, Life]
    """By writer."""
    events: Mapping[Path, int]
    """How many each file has."""
    rows: pa.Table
    """The single events that were asked for, in `COLUMNS`."""


def look_at(groups: Iterable[RowGroup], codes: Collection[E]) -> Looks:
    """Return what row groups show, with their single events of these codes. Raises `OSError`."""
    lives: dict[int, list[Life]] = defaultdict(list)
    events: dict[Path, int] = defaultdict(int)
    tables = [_NOTHING]
    for some in batches_of(groups):
        looks = [look for of_file in for_each(some, partial(_look, codes)) for look in of_file]
        for has_runs in (False, True):
            alike = [look for look in looks if look.group.has_runs == has_runs]
            if alike:
                rows = pa.concat_tables([look.rows for look in alike])
                _add(lives, _lives(rows, *_spans(rows)))
                _count(events, alike, rows)
        tables += [look.chosen for look in looks if look.chosen is not None]
    return Looks(_joined(lives), events, pa.concat_tables(tables, promote_options="default"))


class _Look(NamedTuple):
    """What a row group shows."""

    group: RowGroup
    rows: pa.Table
    chosen: pa.Table | None


def _look(codes: Collection[E], groups: Sequence[RowGroup]) -> list[_Look]:
    found = []
    with opened(groups[0]) as read:
        for group in groups:
            rows = read(group, (*_OF_ALL, *(_OF_RUNS if group.has_runs else ())))
            places = np.flatnonzero(has_any(rows, codes) & (~is_there(rows["n"]) if group.has_runs else True))
            found.append(_Look(group, rows, read(group, _CHOSEN).take(arrow(places)) if len(places) else None))
    return found


def _count(events: dict[Path, int], looks: Sequence[_Look], rows: pa.Table) -> None:
    """Add how many events the row groups have whose rows these are."""
    number = np.ones(len(rows), np.int64)
    if looks[0].group.has_runs:
        number = numbers(rows["n"], 1) + numbers(rows["ok_n"], 0)
    ends = np.cumsum([len(look.rows) for look in looks])
    total = np.append(0, np.cumsum(number))[np.append(0, ends)]
    for look, each in zip(looks, np.diff(total).tolist(), strict=True):
        events[look.group.path] += each


def looks_of(files: Iterable[pa.Table], codes: Collection[E]) -> Looks:
    """Return what the events in these tables show."""
    lives: dict[int, list[Life]] = defaultdict(list)
    tables = []
    for events in files:
        at = ints(events["event_ts"])
        _add(lives, _lives(events, at, at))
        tables.append(events.filter(arrow(has_any(events, codes))).select(COLUMNS))
    return Looks(_joined(lives), {}, pa.concat_tables([_NOTHING, *tables]))


def together(looks: Sequence[Looks]) -> Looks:
    """Return what several of them show."""
    lives: dict[int, list[Life]] = defaultdict(list)
    for look in looks:
        _add(lives, look.lives)
    events = {path: number for look in looks for path, number in look.events.items()}
    return Looks(_joined(lives), events, pa.concat_tables([look.rows for look in looks]))


def _add(lives: Mapping[int, list[Life]], more: Mapping[int, Life]) -> None:
    for writer, life in more.items():
        lives[writer].append(life)


def _joined(lives: Mapping[int, list[Life]]) -> dict[int, Life]:
    return {writer: _joined_life(each) for writer, each in lives.items()}


def _joined_life(lives: Iterable[Life]) -> Life:
    """Return what is known of one writer's time by all of these."""
    each = [*lives]
    messages = [sign for life in each for sign in life.messages]
    return Life(min((life.first for life in each), key=_at), max((life.last for life in each), key=_at), _telling(messages))


def _at(sign: Sign) -> tuple[int, int]:
    return sign.at, sign.seq


def _telling(messages: Collection[Sign]) -> list[Sign]:
    if not messages:
        return []
    return [*{min(messages, key=_at), max(messages, key=_at), min(messages, key=lambda sign: sign.at - (sign.record or 0))}]


def _lives(rows: pa.Table, first: Numbers, last: Numbers) -> dict[int, Life]:
    writer, seq, at, record = (ints(rows[name]) for name in ("writer_id", "seq", "event_ts", "record_ts"))
    is_message, has_record = has_any(rows, MESSAGE_CODES), is_there(rows["record_ts"])

    def sign(place: int, when: Numbers) -> Sign:
        return Sign(int(when[place]), int(seq[place]), int(record[place]) if is_message[place] and has_record[place] else None)

    found = {}
    for mine in alike(writer):
        timed = mine[(is_message & has_record)[mine]]
        places = {int(timed[which]) for which in _extremes(at[timed], record[timed])}
        begin, end = int(mine[np.argmin(first[mine])]), int(mine[np.argmax(last[mine])])
        found[int(writer[begin])] = Life(sign(begin, first), sign(end, last), [sign(place, at) for place in sorted(places)])
    return found


def _extremes(at: Numbers, record: Numbers) -> list[int]:
    """The places of the least and the largest time, and of the least lag."""
    return [int(np.argmin(at)), int(np.argmax(at)), int(np.argmin(at - record))] if len(at) else []


def _spans(rows: pa.Table) -> tuple[Numbers, Numbers]:
    """The times of the first and of the last event of each row."""
    at = ints(rows["event_ts"])
    if "n" not in rows.column_names:
        return at, at
    lists, has_values = rows["at_us"], lengths(rows["at_us"]) > 0
    firsts, values = begins(lists)[has_values], numbers(flat(lists), 0)
    low, high = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
    if len(firsts):
        low[has_values], high[has_values] = np.minimum.reduceat(values, firsts), np.maximum.reduceat(values, firsts)
    return at + low, np.maximum(at + high, ints(rows["ok_ts_max"]))
