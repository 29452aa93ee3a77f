"""The excerpt of events that the verdicts on a few messages need, read with pyarrow in place of Spark.

A verdict needs all events of its message and of the records of the same key, and little else: who wrote, who had which
partition, what is missing, and what was fetched, committed or jumped over around the offset. Of these a file's first, last,
largest and smallest are kept; the rest could not change the verdict.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import dataset
from pyarrow.compute import SetLookupOptions
from pyarrow.compute import call_function as call
from pyarrow.dataset import field

from ackwise.middleware.events import OUTGOING
from ackwise.middleware.events import EventCode as E
from ackwise.middleware.progress.commitmetadata import LastCommit
from ackwise.spark.events.attributes import attributes, whole_number
from ackwise.spark.events.disputed import Disputed
from ackwise.spark.events.exploding import EVENTS, exploded
from ackwise.spark.events.numbers import Run, joined, runs_in
from ackwise.spark.events.schema import NO_OFFSET
from ackwise.spark.events.sources import counted, events_of
from ackwise.spark.reference.oracle import Event
from ackwise.spark.why.place import Place
from ackwise.stores.journal.parquet import SCHEMA

__all__ = ["EventFiles", "Excerpt"]

#: Times as the numbers that the oracle counts in.
_PLAIN: Final = pa.schema([pa.field(f.name, pa.int64() if pa.types.is_timestamp(f.type) else f.type) for f in EVENTS])
_OF_WRITERS: Final = (E.SESSION_START, E.SESSION_END, E.ASSIGNED, E.REVOKED)
#: What is read of events that are not about the messages in question; the rest is half of the work.
_COLUMNS: Final = [
    *("writer_id", "seq", "event_type", "event_ts", "cluster", "group_id", "client", "handler", "topic", "topic_id", "partition", "offset"),
    *("range_end", "record_ts", "phys_topic", "attempt", "dedup_epoch", "role", "from_commit", "attrs", "proved"),
]
_OF_RUNS: Final = ("n", "ok_n", "last_offset", "ok_ts_max")
#: Rows of several messages, see `stores/journal/runs.py`.
_IS_RUN: Final = field("n").is_valid()
_JUMPS: Final = (E.GAP, E.SEEK, E.TX_SETTLED, E.ACCEPT_REFUSED)
#: Codes that we don't know are passed over, as the oracle does, and offsets that no log has.
_MESSAGES: Final = (
    field("event_type").isin([int(code) for code in E if code < 20 and code not in OUTGOING])
    & field("partition").is_valid()
    & (field("offset") >= 0)
    & (field("offset") < NO_OFFSET)
    & (field("range_end").is_null() | ((field("range_end") >= 0) & (field("range_end") < NO_OFFSET)))
)

_SENDING: Final = field("event_type").isin([int(code) for code in OUTGOING])

_KNOWN: Final = frozenset(map(int, E))


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The events that verdicts need beyond those of the messages themselves."""

    events: Sequence[Event]
    holes: Mapping[int, Sequence[Run]]
    """Sequence numbers that are missing, by writer."""
    written: Mapping[int, int]
    """The last number that is there, by writer."""

    def ahead(self, last_commits: Iterable[LastCommit]) -> list[LastCommit]:
        """Return the commits that name an event which is not there: those behind the last one of its writer."""
        return [each for each in last_commits if each.last_seq > self.written.get(each.writer_id, -1)]

    def renumbered(self, messages: Iterable[Event]) -> list[Event]:
        """Return these events and those of `messages`, numbered anew: only the writer's own holes remain.

        The oracle takes every missing number for a lost event.
        """
        kept: dict[int, dict[int, Event]] = defaultdict(dict)
        for event in (*map(_without_message, self.events), *messages):
            writer, last = _named(event) or (0, -1)
            # What a commit names and is there, has another number now.
            is_there = 0 <= last <= self.written.get(writer, -1)
            kept[event["writer_id"]][event["seq"]] = {**event, "attrs": None} if is_there else event
        return [event for writer, events in kept.items() for event in _close_ranks(events, self.holes.get(writer, ()))]


class EventFiles:
    """The exported events below some roots. Each method reads the files anew, and needs memory for its result and a file or two.

    Times are microseconds. An unreadable file raises `OSError` or `pyarrow.ArrowInvalid`.
    """

    def __init__(self, files: Sequence[Path], disputed: Sequence[Disputed] = ()) -> None:
        """`disputed` events are left out."""
        self._files = _dataset([str(path) for path in files])
        self._undisputed: Any = field("seq").is_valid()
        self._has_disputed = bool(disputed)
        for each in disputed:
            numbers = (field("seq") >= each.first) & (field("seq") < each.after)
            self._undisputed &= ~((field("writer_id") == each.writer) & numbers)

    def at(self, places: Collection[Place]) -> list[Event]:
        """Return the events of the messages whose origin is at one of these places."""
        found: list[Event] = []
        for (topic, partition), offsets in _by_partition(places).items():
            # By the bounds whole row groups are passed over: the footer has the least and the largest offset.
            here = (field("offset") <= max(offsets)) & (field("partition") == partition) & (field("topic") == topic)
            wanted = _MESSAGES & here & (field("offset") >= min(offsets)) & field("offset").isin(offsets)
            reaching = here & (field("last_offset") >= min(offsets))
            found += self._in(self._files, wanted, reaching, partial(_with_one_of, offsets=sorted(offsets)))
        return found

    def copies_at(self, place: Place) -> list[Event]:
        """Return the events about a copy that was read at this place."""
        where = (field("phys_topic") == place.topic) & (field("phys_partition") == place.partition)
        return self._where(_MESSAGES & where & (field("phys_offset") == place.offset))

    def of_keys(self, hashes: Collection[int]) -> dict[Place, set[int]]:
        """Return the places of records whose events carry one of these dedup hashes, with the codes of these events."""
        found: dict[Place, set[int]] = defaultdict(set)
        if hashes:
            wanted = _MESSAGES & field("dedup_hash").isin(list(hashes))
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                runs = [rows for rows in pool.map(lambda file: _with_hash(file, hashes), self._files.get_fragments()) if len(rows)]
            events = self._in(self._files, wanted)
            if runs:
                events += _rows(exploded(pa.concat_tables(runs)).filter(self._undisputed & wanted))
            for event in events:
                found[Place(event["topic"], event["partition"], event["offset"])].add(event["event_type"])
        return found

    def sent_as(self, message_ids: Collection[str]) -> list[Event]:
        """Return the events of the producer side about these message ids."""
        return self._in(self._sending, _SENDING & field("dedup_key").isin(list(message_ids))) if message_ids else []

    def sent_to(self, places: Collection[Place]) -> list[Event]:
        """Return the events that say that a record at one of these places was acknowledged."""
        found: list[Event] = []
        for (topic, partition), offsets in _by_partition(places).items():
            here = (field("partition") == partition) & field("offset").isin(offsets) & (field("topic") == topic)
            found += self._in(self._sending, _SENDING & here & field("dedup_key").is_valid())
        return found

    def sessions(self) -> list[Event]:
        """Return SESSION_START of each writer."""
        return self._where(field("event_type") == int(E.SESSION_START))

    def handlers(self) -> set[tuple[str, str, str]]:
        """Return cluster, group and handler of all messages."""
        names = ["cluster", "group_id", "handler"]
        found: set[tuple[str, str, str]] = set()
        for batch in self._files.to_batches(columns=names, filter=self._undisputed & _MESSAGES):
            for row in pa.Table.from_batches([batch]).group_by(names).aggregate([]).to_pylist():
                found.add((row["cluster"] or "", row["group_id"] or "", row["handler"] or ""))
        return found

    def partitions(self) -> dict[tuple[str, int], Run]:
        """Return the least offset that messages have, and the one after the largest, by topic and partition."""
        found: dict[tuple[str, int], Run] = {}
        names = ["topic", "partition", "offset", "last_offset"]
        for batch in self._files.to_batches(columns=names, filter=self._undisputed & _MESSAGES):
            rows = pa.Table.from_batches([batch])
            rows = rows.append_column("last", call("coalesce", [rows["last_offset"], rows["offset"]]))
            for row in rows.group_by(["topic", "partition"]).aggregate([("offset", "min"), ("last", "max")]).to_pylist():
                first, after = found.get(where := (row["topic"], row["partition"]), (row["offset_min"], 0))
                found[where] = min(first, row["offset_min"]), max(after, row["last_max"] + 1)
        return found

    def nearest(self, place: Place) -> tuple[int | None, int | None]:
        """Return the next lower and the next higher offset with an event, in the same partition."""
        here = self._undisputed & _MESSAGES & (field("partition") == place.partition) & (field("topic") == place.topic)
        rows = self._files.to_table(columns=["offset", "last_offset"], filter=here)
        first, last = rows["offset"], call("coalesce", [rows["last_offset"], rows["offset"]])
        lower, higher = rows.filter(call("less", [last, place.offset])), rows.filter(call("greater", [first, place.offset]))
        within = self._in(self._files, here, here & (field("offset") < place.offset) & (field("last_offset") > place.offset), _only_runs)
        offsets = [event["offset"] for event in within]
        below = [
            call("max", [call("coalesce", [lower["last_offset"], lower["offset"]])]).as_py(),
            *(o for o in offsets if o < place.offset),
        ]
        above = [call("min", [higher["offset"]]).as_py(), *(o for o in offsets if o > place.offset)]
        return max((o for o in below if o is not None), default=None), min((o for o in above if o is not None), default=None)

    def around(self, places: Collection[Place], since: int | None) -> Excerpt:
        """Return the excerpt for messages at these places. `since`: delay and retry topics matter from this microsecond on, or never."""
        numbers: dict[int, list[Run]] = defaultdict(list)
        kept: list[Event] = []
        offsets = _by_partition(places)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for rows, written in pool.map(
                lambda file: _read(file, None if not self._has_disputed else self._undisputed, offsets, since), self._files.get_fragments()
            ):
                kept += rows
                for writer, spans in written.items():
                    numbers[writer] += spans
        last_there = {writer: max(after for _, after in spans) - 1 for writer, spans in numbers.items()}
        for writer, last in filter(None, map(_named, kept)):
            numbers[writer].append((last + 1, last + 1))
        holes = {writer: found for writer, spans in numbers.items() if (found := _holes(spans))}
        if holes:
            # What was read before and after a hole does not follow from the largest and the smallest.
            of_writers = field("writer_id").isin(list(holes))
            for topic, partition in offsets:
                theirs = of_writers & (field("partition") == partition) & (field("topic") == topic)
                kept += self._in(self._files, theirs, theirs)
        return Excerpt(kept, holes, last_there)

    def _where(self, condition: Any) -> list[Event]:
        return self._in(self._files, condition)

    def _in(
        self, files: dataset.Dataset, condition: Any, runs: Any = None, some: Callable[[pa.Table], pa.Table] = lambda rows: rows
    ) -> list[Event]:
        """Return the events that meet the condition: of `some` run rows that meet `runs`, and of single rows."""
        rows = condition if runs is None else (~_IS_RUN & condition) | (_IS_RUN & runs)
        return _rows(_events(some(_where(files, rows))).filter(self._undisputed & condition))

    @cached_property
    def _sending(self) -> dataset.Dataset:
        """The files with events of the producer side, most often none."""
        return _with_some(self._files, _SENDING)


def _where(files: dataset.Dataset, condition: Any) -> pa.Table:
    """Return the rows that meet the condition.

    Rows have many columns, and few files have any that meet it: of the others only the columns of the condition are read.
    """
    return _with_some(files, condition).to_table(filter=condition, use_threads=False)


def _events(rows: pa.Table) -> pa.Table:
    """The events of rows with all columns."""
    return rows.select(EVENTS.names) if rows["n"].null_count == len(rows) else exploded(rows)


def _only_runs(rows: pa.Table) -> pa.Table:
    return rows.filter(_IS_RUN)


def _with_one_of(rows: pa.Table, offsets: Sequence[int]) -> pa.Table:
    """The single rows, and the run rows that reach over one of these offsets, which are in order."""
    wanted = np.array(offsets)
    first, last = (rows[name].fill_null(-1).to_numpy() for name in ("offset", "last_offset"))
    place = np.searchsorted(wanted, first)
    reaches = (place < len(wanted)) & (wanted[np.minimum(place, len(wanted) - 1)] <= last)
    return rows.filter(pa.array(reaches | (rows["n"].is_null().to_numpy())))


def _with_hash(file: Any, hashes: Collection[int]) -> pa.Table:
    """The run rows of a file that have a message with one of these dedup hashes."""
    rows = file.to_table(schema=SCHEMA, columns=["seq", "hashes"], filter=_IS_RUN, use_threads=False)
    lists = rows["hashes"].combine_chunks()
    is_one = call("is_in", [call("list_flatten", [lists])], SetLookupOptions(pa.array(list(hashes), pa.int64())))
    places = call("unique", [call("list_parent_indices", [lists]).filter(is_one)])
    if not len(places):
        return SCHEMA.empty_table()
    return file.to_table(schema=SCHEMA, filter=_IS_RUN & field("seq").isin(rows["seq"].take(places).to_pylist()), use_threads=False)


def _with_some(files: dataset.Dataset, condition: Any) -> dataset.Dataset:
    """Return those of the files that have an event which meets the condition."""
    # One thread: many small files are read in less time than it takes to share them out.
    names = files.to_table(columns=["__filename"], filter=condition, use_threads=False)["__filename"]
    return _dataset(call("unique", [names]).to_pylist())


def _dataset(files: Sequence[str]) -> dataset.Dataset:
    return dataset.dataset(list(files), schema=SCHEMA, format=dataset.ParquetFileFormat(page_checksum_verification=True))


def _by_partition(places: Iterable[Place]) -> dict[tuple[str, int], list[int]]:
    offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
    for topic, partition, offset in places:
        offsets[topic, partition].append(offset)
    return offsets


def _read(
    file: Any, undisputed: Any, places: Mapping[tuple[str, int], Sequence[int]], since: int | None
) -> tuple[list[Event], Mapping[int, Sequence[Run]]]:
    """Return the kept events of one file, and its sequence numbers by writer."""
    table, all_numbers = _excerpt(file, undisputed)
    kept: list[pa.Table] = []
    numbers: dict[int, list[Run]] = {}
    writers = call("unique", [table["writer_id"]]).to_pylist()
    for writer in writers:
        mine = table if len(writers) == 1 else _only(table, "writer_id", writer)
        numbers[writer] = runs_in(mine["seq"]) if all_numbers is None else all_numbers
        kept += _of_writer(mine, since)
        for (topic, partition), offsets in places.items():
            here = _without(_with_offsets(_only(_only(mine, "partition", partition), "topic", topic)), *OUTGOING)
            if here.num_rows:
                kept += _of_partition(here.filter(call("or", [_is_from(here, 20), call("is_null", [here["phys_topic"]])])), offsets)
    return [event for part in kept for event in _rows(part)], numbers


def _excerpt(file: Any, undisputed: Any) -> tuple[pa.Table, list[Run] | None]:
    """Return the single events of a file, and those of run rows in which something begins or ends; and the numbers of all, if known.

    They are if there are as many as the name of the file says, and none is disputed. Otherwise the events of all run rows are returned.
    """
    rows = file.to_table(schema=SCHEMA, columns=[*_COLUMNS, *_OF_RUNS], use_threads=False)
    runs, named = rows.filter(_IS_RUN), events_of(Path(file.path))
    is_whole = undisputed is None and named is not None and counted(rows) == named.after - named.first
    wanted = _IS_RUN & field("seq").isin(_at_ends(runs)) if is_whole else _IS_RUN
    events = rows.filter(~_IS_RUN).select(_COLUMNS)
    if len(runs):
        some = exploded(file.to_table(schema=SCHEMA, filter=wanted, use_threads=False))
        events = pa.concat_tables([events, some.select(_COLUMNS)])
    numbers = [(named.first, named.after)] if is_whole and named is not None else None
    return events.filter(field("seq").is_valid() if undisputed is None else undisputed), numbers


def _at_ends(runs: pa.Table) -> list[int]:
    """Return the numbers of the run rows that have the least or largest offset of a partition, or the first or last time."""
    ends = set[int]()
    for _, part in _by(runs, "topic", "partition"):
        for column, which in (("offset", "min"), ("last_offset", "max"), ("event_ts", "min"), ("event_ts", "max"), ("ok_ts_max", "max")):
            found = call(which, [part[column]])
            ends.update(part.filter(call("equal", [part[column], found]))["seq"].to_pylist()[:1])
    return sorted(ends)


def _by(rows: pa.Table, *names: str) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    for key in rows.group_by(list(names)).aggregate([]).to_pylist():
        part = rows
        for name, value in key.items():
            part = part.filter(call("is_null", [part[name]])) if value is None else _only(part, name, value)
        yield key, part


def _of_writer(mine: pa.Table, since: int | None) -> Iterator[pa.Table]:
    yield _any(mine, *_OF_WRITERS)
    yield _extremes(mine, "event_ts")
    looks = _with_offsets(_any(mine, E.BROKER_OFFSETS))
    times = looks["event_ts"].cast(pa.int64()).to_pylist()
    which = zip(*(looks[name].to_pylist() for name in ("topic", "partition", "role")), strict=True)
    last = dict(zip(which, range(looks.num_rows), strict=True))  # a writer's events are in order: each place of a partition's last look
    wanted = set(last.values()) | {place for place, at in enumerate(times) if since is not None and at > since}
    yield looks.take(pa.array(sorted(wanted), pa.int64()))


def _of_partition(here: pa.Table, offsets: Sequence[int]) -> Iterator[pa.Table]:
    yield _any(here, *_JUMPS)
    yield _extremes(here.filter(call("invert", [_is_from(here, 20)])), "offset")
    received, marked = _any(here, E.RECEIVED_RANGE), _any(here, E.MARKED)
    yield from (_extremes(received, "offset"), _extremes(received, "range_end"))
    commits = _any(here, E.COMMITTED).sort_by([("event_ts", "ascending"), ("seq", "ascending")])
    went_back = call("any", [call("less", [commits["range_end"], call("cumulative_max", [commits["range_end"]])])]).as_py()
    yield commits if went_back else _extremes(commits, "range_end")
    for offset in offsets:
        yield from (ranges.filter(_reach(ranges, offset)) for ranges in (received, marked))
        yield commits.filter(call("greater", [commits["range_end"], offset])).slice(0, 1)


def _reach(ranges: pa.Table, offset: int) -> Any:
    """Whether each range has the offset."""
    return call("and", [call("less_equal", [ranges["offset"], offset]), call("greater", [ranges["range_end"], offset])])


def _rows(table: pa.Table) -> list[Event]:
    if table.num_rows == 0:
        return []
    return list(table.cast(pa.schema([_PLAIN.field(name) for name in table.column_names])).to_pylist())


def _only(table: pa.Table, column: str, value: object) -> pa.Table:
    return table.filter(call("equal", [table[column], pa.scalar(value, table[column].type)]))


def _any(table: pa.Table, *codes: E) -> pa.Table:
    return table.filter(call("is_in", [table["event_type"]], SetLookupOptions(pa.array(list(map(int, codes)), pa.int8()))))


def _without(table: pa.Table, *codes: E) -> pa.Table:
    is_one = call("is_in", [table["event_type"]], SetLookupOptions(pa.array(list(map(int, codes)), pa.int8())))
    return table.filter(call("invert", [is_one]))


def _with_offsets(table: pa.Table) -> pa.Table:
    """The rows without those about offsets that no log has."""
    for column in ("offset", "range_end"):
        is_one = call("and", [call("greater_equal", [table[column], 0]), call("less", [table[column], NO_OFFSET])])
        table = table.filter(call("coalesce", [is_one, pa.scalar(True)]))
    return table


def _is_from(table: pa.Table, code: int) -> Any:
    return call("greater_equal", [table["event_type"], pa.scalar(code, pa.int8())])


def _extremes(table: pa.Table, column: str) -> pa.Table:
    """The rows with the least and with the largest value."""
    ends = call("min_max", [table[column]])
    return table.filter(call("or", [call("equal", [table[column], ends["min"]]), call("equal", [table[column], ends["max"]])]))


def _holes(spans: Iterable[Run]) -> list[Run]:
    """Return the missing numbers from 0 to the largest."""
    there = joined(spans)
    return [(before, first) for (_, before), (first, _) in zip([(0, 0), *there], there, strict=False) if before < first]


def _named(event: Event) -> tuple[int, int] | None:
    """Return whom the commit names that an ASSIGNED event found, and the last number that was durable then."""
    if event["event_type"] != E.ASSIGNED or not event["attrs"]:
        return None
    said = attributes(event["attrs"])
    writer, last = whole_number(said.get("writer")), whole_number(said.get("seq"))
    return (writer, last) if writer is not None and last is not None and min(writer, last) >= 0 else None


def _without_message(event: Event) -> Event:
    """Return an event without its message, for what else it shows: its writer lived, and had read up to there."""
    if event["event_type"] >= E.COMMITTED or event["event_type"] in OUTGOING:
        return event
    is_message = event["event_type"] in _KNOWN and None not in (event["topic"], event["partition"], event["offset"])
    if not is_message or event["phys_topic"] is not None:
        return {**event, "event_type": int(E.HEARTBEAT), "topic": None}
    if event["event_type"] == E.RECEIVED:
        return {**event, "event_type": int(E.RECEIVED_RANGE), "range_end": event["offset"] + 1}
    # An outcome shows how far its writer had read, but not that it read on there.
    return {**event, "event_type": int(E.IN_FLIGHT_ELSEWHERE), "dedup_hash": None}


def _close_ranks(events: Mapping[int, Event], holes: Sequence[Run]) -> Iterator[Event]:
    for place, seq in enumerate(sorted(events)):
        yield {**events[seq], "seq": place + sum(first < seq for first, _ in holes)}
