"""The excerpt of events that the verdicts on a few messages need, read with pyarrow in place of Spark.

A verdict needs all events of its message and of the records of the same key, and little else: who wrote, who had which
partition, what is missing, and what was fetched, committed or jumped over around the offset. Of these a writer's first, last,
largest and smallest are kept; the rest could not change the verdict. Of most files a few columns are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow.compute import call_function as call

from ackwise.middleware.events import OUTGOING
from ackwise.middleware.events import EventCode as E
from ackwise.middleware.progress.commitmetadata import LastCommit
from ackwise.spark.events.attributes import attributes, whole_number
from ackwise.spark.events.disputed import Disputed
from ackwise.spark.events.exploding import EVENTS, IDENTIFIED, exploded, numbers_of
from ackwise.spark.events.numbers import Run, joined, without
from ackwise.spark.events.reading import RowGroup, read, row_groups
from ackwise.spark.events.schema import MESSAGE_CODES, NO_OFFSET
from ackwise.spark.events.sources import events_of
from ackwise.spark.kernels.arrays import Flags, Numbers, arrow, is_there, no_rows
from ackwise.spark.reference.oracle import Event
from ackwise.spark.why.around import telling, telling_looks
from ackwise.spark.why.columns import COLUMNS, about_messages, alike, has_any, ints, is_at, is_one_of, keys_of
from ackwise.spark.why.lives import Life, Looks, Sign, look_at, looks_of, together
from ackwise.spark.why.place import Place
from ackwise.spark.why.scanning import Choice, chosen_rows, parts_of
from ackwise.stores.journal.parquet import SCHEMA

__all__ = ["EventFiles", "Excerpt"]

#: Times as the numbers that the oracle counts in.
_PLAIN: Final = pa.schema([pa.field(f.name, pa.int64() if pa.types.is_timestamp(f.type) else f.type) for f in EVENTS])
_OF_WRITERS: Final = (E.SESSION_START, E.SESSION_END, E.ASSIGNED, E.REVOKED)
#: Where nothing is. What is known of a writer's clock is said of messages there.
_NOWHERE: Final = {"topic": " ", "partition": -1, "offset": 0}

_HEADER: Final = ("writer_id", "cluster", "group_id", "client")
_NAMES: Final = ("cluster", "group_id", "handler", "topic")
_OF_OFFSETS: Final = ("event_type", "topic", "partition", "offset", "last_offset", "range_end")

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

    Times are microseconds. An unreadable file raises `OSError`.
    """

    def __init__(self, files: Sequence[Path], disputed: Sequence[Disputed] = ()) -> None:
        """`disputed` events are left out."""
        self._groups = row_groups(files)
        self._disputed = disputed

    def at(self, places: Collection[Place]) -> list[Event]:
        """Return the events of the messages whose origin is at one of these places."""
        found: list[Event] = []
        for (topic, partition), offsets in _by_partition(places).items():
            # By the statistics whole row groups are passed over.
            groups = [group for group in self._groups if group.may_have(partition, offsets)]
            rows = chosen_rows(groups, ("topic", "partition", "offset", "last_offset"), partial(_reach, topic, partition, offsets))
            found += self._events(rows, partial(_are_at, topic, partition, offsets))
        return found

    def copies_at(self, place: Place) -> list[Event]:
        """Return the events about a copy that was read at this place."""
        rows = chosen_rows(self._singles, ("phys_topic", "phys_partition", "phys_offset"), partial(_are_copies, place))
        return self._events(rows, lambda events: about_messages(events) & _are_copies(place, events))

    def of_keys(self, hashes: Collection[int]) -> dict[Place, set[int]]:
        """Return the places of records whose events carry one of these dedup hashes, with the codes of these events."""
        found: dict[Place, set[int]] = defaultdict(set)
        if hashes:
            rows = chosen_rows(self._groups, ("hashes", "dedup_hash"), lambda rows: _has_one(hashes, rows) | _have_one(hashes, rows))
            for event in self._events(rows, lambda events: about_messages(events) & _has_one(hashes, events)):
                found[Place(event["topic"], event["partition"], event["offset"])].add(event["event_type"])
        return found

    def begun_behind(self, place: Place, handler: str, before: int, numbers: Mapping[int, int]) -> list[Event]:
        """Return the starts of later messages of this partition by a handler, before a time, or before such an event of their worker."""

        def choose(rows: pa.Table) -> Flags:
            is_early = ints(rows["event_ts"]) < before
            for writer, seq in numbers.items():
                is_early |= (ints(rows["writer_id"]) == writer) & (ints(rows["seq"]) < seq)
            is_start = has_any(rows, [E.CLAIMED, E.STARTED]) & is_one_of(rows["handler"], [handler])
            return is_at(rows, place.topic, place.partition) & is_start & is_early

        names = ("event_type", "topic", "partition", "offset", "last_offset", "handler", "event_ts", "writer_id", "seq")
        groups = [group for group in self._groups if group.may_be_of(place.partition)]
        rows = chosen_rows(
            groups, names, lambda rows: choose(rows) & (np.maximum(ints(rows["offset"]), ints(rows["last_offset"])) > place.offset)
        )
        return self._events(rows, lambda events: about_messages(events) & choose(events) & (ints(events["offset"]) > place.offset))

    def sent_as(self, message_ids: Collection[str]) -> list[Event]:
        """Return the events of the producer side about these message ids."""
        return self._sent(self._sending, ("dedup_key",), lambda rows: is_one_of(rows["dedup_key"], message_ids)) if message_ids else []

    def sent_to(self, places: Collection[Place]) -> list[Event]:
        """Return the events that say that a record at one of these places was acknowledged."""
        found: list[Event] = []
        for (topic, partition), offsets in _by_partition(places).items():
            groups = [group for group in self._singles if group.may_have(partition, offsets)]
            names = ("topic", "partition", "offset", "dedup_key")
            found += self._sent(groups, names, lambda rows: _are_sent_to(topic, partition, offsets, rows))  # noqa: B023
        return found

    def sessions(self) -> list[Event]:
        """Return SESSION_START of each writer."""
        rows = chosen_rows(self._singles, ("event_type",), lambda rows: has_any(rows, [E.SESSION_START]), COLUMNS)
        return _plain(self._undisputed(rows))

    @cached_property
    def names(self) -> tuple[set[tuple[str, str, str]], set[str]]:
        """Cluster, group and handler of all messages, and their topics."""
        handlers, topics = set[tuple[str, str, str]](), set[str]()
        for part in parts_of(self._groups, ("event_type", *_NAMES)):
            rows = _distinct(part.rows, *_NAMES)
            handlers |= {(row["cluster"] or "", row["group_id"] or "", row["handler"] or "") for row in rows}
            topics |= {row["topic"] for row in rows if row["topic"] is not None}
        return handlers, topics

    def partitions(self) -> dict[tuple[str, int], Run]:
        """Return the least offset that messages have, and the one after the largest, by topic and partition."""
        found: dict[tuple[str, int], Run] = {}
        for part in parts_of(self._groups, _OF_OFFSETS):
            rows = part.rows.filter(arrow(about_messages(part.rows)))
            first, last = _offsets_of(rows)
            for same in alike(keys_of(rows, "topic", "partition")):
                where = rows["topic"][int(same[0])].as_py(), rows["partition"][int(same[0])].as_py()
                begin, after = int(first[same].min()), int(last[same].max()) + 1
                known = found.get(where, (begin, after))
                found[where] = min(begin, known[0]), max(after, known[1])
        return found

    def nearest(self, place: Place) -> tuple[int | None, int | None]:
        """Return the next lower and the next higher offset with an event, in the same partition."""
        groups = [group for group in self._groups if group.may_be_of(place.partition)]
        rows = chosen_rows(groups, ("topic", "partition"), lambda rows: is_at(rows, place.topic, place.partition), _OF_OFFSETS)
        first, last = _offsets_of(rows.filter(arrow(about_messages(rows))))
        ends = [*first.tolist(), *last.tolist()]
        over = chosen_rows(
            groups, ("topic", "partition", "offset", "last_offset"), partial(_reach, place.topic, place.partition, [place.offset])
        )
        within = self._events(over, lambda events: about_messages(events) & is_at(events, place.topic, place.partition))
        offsets = [*ends, *(event["offset"] for event in within)]
        return (
            max((offset for offset in offsets if offset < place.offset), default=None),
            min((offset for offset in offsets if offset > place.offset), default=None),
        )

    def around(self, places: Collection[Place], since: int | None) -> Excerpt:
        """Return the excerpt for messages at these places. `since`: delay and retry topics matter from this microsecond on, or never."""
        codes = _OF_WRITERS if since is None else (*_OF_WRITERS, E.BROKER_OFFSETS)
        found = self._look(codes)
        is_look = arrow(has_any(found.rows, [E.BROKER_OFFSETS]))
        kept = _plain(found.rows.filter(call("invert", [is_look])))
        if since is not None:
            kept += _plain(telling_looks(found.rows.filter(is_look), since))
        numbers = self._numbers(found.events)
        last_there = {writer: max(after for _, after in runs) - 1 for writer, runs in numbers.items() if runs}
        for writer, last in filter(None, map(_named, kept)):
            numbers.setdefault(writer, []).append((last + 1, last + 1))
        holes = {writer: missing for writer, runs in numbers.items() if (missing := _holes(runs))}
        for (topic, partition), offsets in _by_partition(places).items():
            kept += _plain(telling(self._here(topic, partition, holes), offsets, holes))
        return Excerpt([*self._signs(found.lives, kept, last_there), *kept], holes, last_there)

    @cached_property
    def _singles(self) -> list[RowGroup]:
        return [group for group in self._groups if group.has_singles]

    @cached_property
    def _sending(self) -> list[RowGroup]:
        """The row groups with events of the producer side, most often none."""
        parts = [(part.groups, part.group[has_any(part.rows, OUTGOING)]) for part in parts_of(self._singles, ("event_type",))]
        return [groups[number] for groups, group in parts for number in np.unique(group)]

    def _sent(self, groups: Sequence[RowGroup], names: Sequence[str], choose: Choice) -> list[Event]:
        rows = chosen_rows(groups, ("event_type", *names), lambda rows: has_any(rows, OUTGOING) & choose(rows))
        return self._events(rows, lambda events: has_any(events, OUTGOING) & choose(events))

    def _events(self, rows: pa.Table, choose: Choice) -> list[Event]:
        """Return those events of rows with all columns."""
        events = self._undisputed(exploded(rows))
        return _plain(events.filter(arrow(choose(events))))

    def _undisputed(self, events: pa.Table) -> pa.Table:
        writer, seq, kept = ints(events["writer_id"]), ints(events["seq"]), is_there(events["seq"])
        for each in self._disputed:
            kept &= ~((writer == each.writer) & (seq >= each.first) & (seq < each.after))
        return events.filter(arrow(kept))

    def _look(self, codes: Collection[E]) -> Looks:
        disputed = {path for path in {group.path for group in self._groups} if self._is_disputed(path)}
        found = look_at([group for group in self._groups if group.path not in disputed], codes)
        if not disputed:
            return found
        return together([found, looks_of((self._undisputed(exploded(read(path, SCHEMA.names))) for path in disputed), codes)])

    def _is_disputed(self, path: Path) -> bool:
        named = events_of(path)
        return bool(self._disputed) and (named is None or any(each.writer == named.writer_id for each in self._disputed))

    def _numbers(self, events: Mapping[Path, int]) -> dict[int, list[Run]]:
        """Return the numbers that are there, by writer: those that the name of a file says, if it has as many events."""
        found: dict[int, list[Run]] = defaultdict(list)
        for path in dict.fromkeys(group.path for group in self._groups):
            named = events_of(path)
            if named is not None and events.get(path) == named.after - named.first:
                found[named.writer_id].append((named.first, named.after))
            else:
                for writer, runs in numbers_of(read(path, IDENTIFIED)).items():
                    disputed = [(each.first, each.after) for each in self._disputed if each.writer == writer]
                    found[writer] += without([(first, after) for first, after in runs.tolist()], disputed)
        return found

    def _here(self, topic: str, partition: int, holes: Collection[int]) -> pa.Table:
        """Return the single events of a partition as groups read it, and of run rows those that may be its first or last ones."""
        groups, named = [group for group in self._groups if group.may_be_of(partition)], ("topic", "partition")
        singles = [group for group in groups if group.has_singles]
        rows = [chosen_rows(singles, ("n", *named), lambda rows: ~is_there(rows["n"]) & is_at(rows, topic, partition), COLUMNS)]
        runs = _runs_at_ends(topic, partition, [group for group in groups if group.has_runs], holes)
        here = self._undisputed(pa.concat_tables([*rows, exploded(runs).select(COLUMNS)]))
        is_read = ~has_any(here, OUTGOING) & (~has_any(here, MESSAGE_CODES) | ~is_there(here["phys_topic"]))
        return here.filter(arrow(is_read & _have_offsets(here)))

    def _signs(self, lives: Mapping[int, Life], kept: Sequence[Event], last_there: Mapping[int, int]) -> Iterator[Event]:
        """Yield what shows when each writer lived, and what its clock said, as events that are about nothing else."""
        names = {event["writer_id"]: event for event in sorted(kept, key=lambda event: -event["seq"])}
        names |= self._names_of(lives.keys() - names.keys())
        for writer, life in lives.items():
            of = dict.fromkeys(COLUMNS) | {name: names[writer][name] for name in _HEADER}
            # An event that is known by more takes the place of one with its number.
            for sign in (life.first, life.last._replace(seq=last_there.get(writer, life.last.seq))):
                yield of | _said(sign, E.HEARTBEAT)
            for sign in life.messages:
                yield of | _NOWHERE | _said(sign, E.IN_FLIGHT_ELSEWHERE)

    def _names_of(self, writers: Collection[int]) -> dict[int, Event]:
        """Return an event of each of these writers, by its names alone."""
        rows = (
            chosen_rows(self._groups, ("writer_id",), lambda rows: np.isin(ints(rows["writer_id"]), [*writers]), _HEADER)
            if writers
            else None
        )
        return {} if rows is None else {row["writer_id"]: row for row in reversed(rows.to_pylist())}


def _last_of(rows: pa.Table) -> Numbers:
    """The last offset that each row is about."""
    found: Numbers = np.maximum(ints(rows["offset"]), ints(rows["last_offset"]))
    return found


def _reach(topic: str, partition: int, offsets: Sequence[int], rows: pa.Table) -> Flags:
    """Which rows are about one of these offsets, which are in order, or are of a run that may have it."""
    wanted, first, last = np.array(offsets), ints(rows["offset"]), _last_of(rows)
    place = np.searchsorted(wanted, first)
    return is_at(rows, topic, partition) & (place < len(wanted)) & (wanted[np.minimum(place, len(wanted) - 1)] <= last)


def _are_at(topic: str, partition: int, offsets: Sequence[int], events: pa.Table) -> Flags:
    return about_messages(events) & is_at(events, topic, partition) & is_one_of(events["offset"], offsets)


def _are_copies(place: Place, rows: pa.Table) -> Flags:
    found: Flags = (ints(rows["phys_partition"]) == place.partition) & (ints(rows["phys_offset"]) == place.offset)
    return found & is_one_of(rows["phys_topic"], [place.topic])


def _are_sent_to(topic: str, partition: int, offsets: Sequence[int], rows: pa.Table) -> Flags:
    return is_at(rows, topic, partition) & is_one_of(rows["offset"], offsets) & is_there(rows["dedup_key"])


def _has_one(hashes: Collection[int], rows: pa.Table) -> Flags:
    return is_one_of(rows["dedup_hash"], hashes)


def _have_one(hashes: Collection[int], rows: pa.Table) -> Flags:
    """Which run rows have a message with one of these dedup hashes."""
    found = np.zeros(len(rows), np.bool_)
    begin = 0
    for lists in rows["hashes"].chunks:
        if len(values := lists.flatten()) and (is_one := is_one_of(values, hashes)).any():
            found[begin + ints(call("list_parent_indices", [lists]))[is_one]] = True
        begin += len(lists)
    return found


def _have_offsets(rows: pa.Table) -> Flags:
    """Which rows are not about offsets that no log has."""
    found = np.ones(len(rows), np.bool_)
    for name in ("offset", "range_end"):
        found &= ~is_there(rows[name]) | ((ints(rows[name]) >= 0) & (ints(rows[name]) < NO_OFFSET))
    return found


def _runs_at_ends(topic: str, partition: int, groups: Sequence[RowGroup], holes: Collection[int]) -> pa.Table:
    """Return the run rows of a partition with the least and with the largest offset of each writer, and all of writers with holes."""
    found = [no_rows(SCHEMA)]
    for part in parts_of(groups, ("n", "writer_id", "topic", "partition", "offset", "last_offset")):
        places = np.flatnonzero(is_there(part.rows["n"]) & is_at(part.rows, topic, partition))
        writer, first, last = (ints(part.rows[name])[places] for name in ("writer_id", "offset", "last_offset"))
        chosen = np.isin(writer, [*holes])
        for mine in alike(writer):
            chosen[[mine[np.argmin(first[mine])], mine[np.argmax(last[mine])]]] = True
        found += part.take(places[chosen], SCHEMA.names)
    return pa.concat_tables(found)


def _distinct(rows: pa.Table, *names: str) -> list[dict[str, Any]]:
    """The values of these columns of rows about messages, each once."""
    rows = rows.filter(arrow(has_any(rows, MESSAGE_CODES)))
    first = np.unique(keys_of(rows, *names), return_index=True)[1]
    return list(rows.select(names).take(arrow(first)).to_pylist())


def _offsets_of(rows: pa.Table) -> tuple[Any, Any]:
    """The first and the last offset of each row."""
    first = ints(rows["offset"])
    return first, np.maximum(first, ints(rows["last_offset"]))


def _said(sign: Sign, code: E) -> dict[str, Any]:
    return {"event_type": int(code), "event_ts": sign.at, "seq": sign.seq, "record_ts": sign.record}


def _plain(table: pa.Table) -> list[Event]:
    if table.num_rows == 0:
        return []
    return list(table.cast(pa.schema([_PLAIN.field(name) for name in table.column_names])).to_pylist())


def _by_partition(places: Iterable[Place]) -> dict[tuple[str, int], list[int]]:
    """The offsets of each partition, in order."""
    offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
    for topic, partition, offset in sorted(places):
        offsets[topic, partition].append(offset)
    return offsets


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
