"""The reference algebra, slow and plain: one message at a time, in sets and dictionaries, without Spark.

It shares no code with the job but the names of verdicts and flags; tests compare the two. An event is a mapping with
the columns of the exported table; times are microseconds since 1970.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

from ackwise.middleware.events import OUTGOING
from ackwise.middleware.events import EventCode as E
from ackwise.middleware.message.disposition import Reason
from ackwise.middleware.policies.retry import DelayLevels
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.vocabulary import (
    ANOMALIES,
    DONE,
    ENDED,
    IN_DOUBT,
    LEFT_OPEN,
    MENDABLE,
    SUPPRESSED,
    Account,
    CopyFate,
    Flag,
    LogicalVerdict,
    ProducedVerdict,
    Verdict,
)

__all__ = ["Event", "Known", "Message", "Partition", "Ruling", "message_of", "rule"]

Event = Mapping[str, Any]
Partition = tuple[str, str, str, str, int]  # cluster, group, topic, topic id, partition
Message = tuple[Partition, str, int, int]  # partition, handler, dedup epoch, offset
Scope = tuple[str, str, str, int]  # cluster, group, handler, dedup epoch

_KNOWN: Final = frozenset(map(int, E))
_FOREVER: Final = 2**62
_FARTHEST: Final = 2**61
_FAR: Final = 86_400 * 10**6
_FIRST: Final = 1_293_840_000 * 10**6  # no Kafka before 2011
_LAST: Final = 4_102_444_800 * 10**6  # 2100
_BEGUN: Final = (E.RECEIVED, E.STARTED, E.CLAIMED)
_PROGRESS: Final = {
    E.RECEIVED: 1, E.STARTED: 1, E.IN_FLIGHT_ELSEWHERE: 2, E.CLAIMED: 3, E.FAILED: 4, E.SENT_BACK: 5, E.REDELIVERED: 6, E.CANCELLED: 7,
}  # fmt: skip
_SUCCESSES: Final = (E.SUCCEEDED, E.LATE_SUCCESS)
_DONE: Final = {*_SUCCESSES, E.DEAD_LETTERED, E.DROPPED, E.SKIPPED}
_OUTCOMES: Final = {*_DONE, E.FAILED, E.SENT_BACK, E.DUP_SUPPRESSED, E.STALE, E.CANCELLED}


@dataclass
class Ruling:
    """The verdicts of the reference on a set of events."""

    as_of: int = 0
    messages: dict[Message, tuple[Verdict, Flag]] = field(default_factory=dict)
    absent: dict[Partition, dict[int, str]] = field(default_factory=dict)
    """By partition and offset: the verdict on offsets without events, or GAP."""
    logical: dict[tuple[Scope, int], tuple[LogicalVerdict, Flag]] = field(default_factory=dict)
    domains: dict[Partition, tuple[int, int]] = field(default_factory=dict)
    fallen: set[Partition] = field(default_factory=set)
    """Partitions whose records get older as offsets grow, as in a topic that was made anew."""
    produced: dict[Partition, dict[int, Account]] = field(default_factory=dict)
    """The account of each produced record, and of those consumed without having been produced."""
    overtaken: dict[Message, int] = field(default_factory=dict)
    """Of the messages that a later one overtook, or may have: its offset."""
    copies: dict[tuple[Partition, str, int], dict[tuple[int, CopyFate], int]] = field(default_factory=dict)
    """By partition, handler and dedup epoch: what became of the copies, by the attempt that was sent back."""
    unpublished: dict[str, int] = field(default_factory=dict)
    """By topic, the records of the table that are late to get coordinates."""
    unsent: dict[tuple[str, str], ProducedVerdict | None] = field(default_factory=dict)
    """By cluster and message id, those that were to be sent and are not, by the events; None: under way."""


@dataclass(frozen=True, slots=True)
class Known:
    """The facts about writers, partitions and groups, for callers with the events of some messages only. Microseconds."""

    as_of: int
    live: Collection[int]
    began: Mapping[tuple[str, str], int]
    """The first event of each group."""
    commits: Mapping[Partition, int | None]
    resumed: Mapping[Partition, int | None]
    rewound: Mapping[Partition, Collection[tuple[int, int]]]
    unsettled: Mapping[Partition, Collection[tuple[int, int]]]
    drained: Mapping[tuple[str, str], int]
    blind: Collection[tuple[str, str]]
    mute: Mapping[int, Mapping[Partition, int]]
    """The writers that may have run messages without reporting it: how far each had committed each partition."""
    left: Mapping[Partition, Collection[tuple[int, str, int, int]]]
    """The offsets that they may have started beyond that: writer, handler (empty: each), start, end."""
    marked: Collection[int] = ()
    """Those of them whose log shows all that they had started."""


def rule(
    events: Iterable[Event],
    config: ReconcileConfig,
    unreadable: Collection[int] = (),
    *,
    still_written: Collection[int] = (),
    offsets: Collection[int] | None = None,
    produced: Iterable[Mapping[str, Any]] = (),
    last_commits: Iterable[tuple[str, int, int]] = (),
    rolled_on: Mapping[int, str] = MappingProxyType({}),
    known: Known | None = None,
    with_order: bool = True,
) -> Ruling:
    """Judge a set of events; the same event twice counts once, and not at all if it says something else then.

    `unreadable` are the writers whose log could not be read to its end, `still_written` those whose log is still written. Of offsets
    without events only `offsets` are looked at, or all. `produced` has rows in the columns of `produced.COLUMNS`. `last_commits` are
    those that the brokers keep: group, writer and last durable event. `rolled_on` is the boot id of the machine that rolled the last log
    of each writer.
    With `known` the events may be those of some messages, and the sessions of their groups; then only `messages` is valid. `with_order`:
    the events are those of all messages of their partitions, so that it shows who overtook whom.
    """
    each: dict[tuple[int, int], Event] = {}
    told = Counter[tuple[int, int]]()
    disputed = set[tuple[int, int]]()
    for event in events:
        key = event["writer_id"], event["seq"]
        told[key] += 1
        if each.setdefault(key, event) != event:
            disputed.add(key)  # nobody knows which of them was written
    each = {key: _as_told(event) for key, event in each.items() if key not in disputed}
    if not each:
        return Ruling()
    ordered = [each[key] for key in sorted(each)]
    court = _Court(
        ordered, config, unreadable, still_written, list(produced), list(last_commits), rolled_on, known, told, with_order=with_order
    )
    return court.rule(offsets)


class _Court:
    def __init__(
        self,
        events: list[Event],
        config: ReconcileConfig,
        unreadable: Collection[int],
        still_written: Collection[int],
        produced: list[Mapping[str, Any]],
        last_commits: list[tuple[str, int, int]],
        rolled_on: Mapping[int, str],
        known: Known | None,
        told: Mapping[tuple[int, int], int],
        *,
        with_order: bool,
    ) -> None:
        self.told = told
        self.events = events
        sent = [row for e in events if (row := _acknowledged(e)) is not None]
        listed = [{**row, "is_listed": True} for row in produced]
        self.produced = _grouped((row for row in listed + sent if _is_published(row)), lambda row: _place(row))
        self.unpublished = [row for row in produced if not _is_published(row) and not row.get("aborted")]
        self.still_written = still_written
        self.config = config
        self.grace = round(config.grace * 1e6)
        self.by_writer: dict[int, list[Event]] = _grouped(events, lambda e: e["writer_id"])
        self.by_partition: dict[Partition, list[Event]] = _grouped(filter(_is_read, events), _partition)
        self.by_group: dict[tuple[str, str], list[Event]] = _grouped(events, _group)
        group_of = {w: _group(of[0]) for w, of in self.by_writer.items()}
        absurd = {w for w, of in self.by_writer.items() if not all(_FIRST <= e["event_ts"] <= _LAST for e in of)}
        self.mates = {w: {other for other in self.by_writer if group_of[other] == group_of[w]} for w in self.by_writer}
        self.absurd = {w for w in absurd if not self.mates[w] <= absurd}
        self.began = {
            group: min([e["event_ts"] for e in of if e["writer_id"] not in self.absurd] or [e["event_ts"] for e in of])
            for group, of in self.by_group.items()
        }
        self.unread: dict[Partition, set[tuple[int, int]]] = defaultdict(set)
        self.unsettled: dict[Partition, set[tuple[int, int]]] = defaultdict(set)
        self.since = None if config.since is None else round(config.since * 1e6)
        self.mute: Mapping[int, Mapping[Partition, int]]
        self.left: Mapping[Partition, Collection[tuple[int, str, int, int]]]
        self.with_order = with_order and known is None
        if known is not None:
            self._take(known)
            return
        self._read_clocks()
        self.live = {w for w in self.by_writer if self._lives(w)}
        self.contested = {w for w in self.by_writer if w not in self.live and self._may_live(w)}
        living = self.live | self.contested
        last = [self._last_ts(w) for w in living - self.wrong] or [self._last_ts(w) for w in living - self.absurd]
        self.as_of = self.now if config.as_of is not None else min(last, default=self.now)
        self.named = _named(self.by_partition)
        for name, writer, seq in last_commits:
            for group in self.by_group:
                if group[1] == name and writer not in self.live:
                    self.named[writer] = group, max(seq, self.named.get(writer, (group, -1))[1])
        self.ahead = {w for w, (_, last) in self.named.items() if w in self.by_writer and last > max(e["seq"] for e in self.by_writer[w])}
        self.cut = self.ahead | {
            w
            for w in self.by_writer
            if w in unreadable
            or w in self.contested
            or (w not in self.live and not self._has_ended(w) and any(s.get("mode") == "async" for s in _sessions(self.by_writer[w])))
        }
        self.mute = {w: self._passed_by(w) for w in self.by_writer if self._is_mute(w)}
        self.marked = {w for w in self.mute if self._has_marks(w, rolled_on.get(w))}
        self.left = self._left()
        self.resumed = {p: self._resumed(p) for p in self.by_partition}
        self.commits = {p: _max(self._positions(p)) for p in self.by_partition}
        self.rewound = {p: self._rewound(p) for p in self.by_partition}
        for e in (e for e in events if e["event_type"] == E.TX_SETTLED):
            for spans in (self.unread, self.unsettled):
                spans[_partition(e)].add((e["offset"], e["range_end"]))
        self.drained = {group: self._drained_at(group) for group in self.by_group}
        absent = {group for w, (group, _) in self.named.items() if w not in self.by_writer}
        self.blind = absent | {_group(self.by_writer[w][0]) for w in self.by_writer if self._find_unknown(w)}
        holed = absent | {_group(self.by_writer[w][0]) for w in self.by_writer if w in self.ahead or self._has_holes(w)}
        for partition in self.by_partition:
            if partition[:2] in holed:
                self._note_unreported_commits(partition)

    def _take(self, known: Known) -> None:
        self.as_of, self.live, self.blind = known.as_of, set(known.live), set(known.blind)
        self.began, self.drained = dict(known.began), dict(known.drained)
        self.commits, self.resumed, self.rewound = dict(known.commits), dict(known.resumed), dict(known.rewound)
        self.unsettled |= {partition: set(spans) for partition, spans in known.unsettled.items()}
        self.mute, self.left, self.marked = known.mute, known.left, set(known.marked)

    def rule(self, offsets: Collection[int] | None) -> Ruling:
        about = _grouped((e for e in self.events if _is_message(e)), message_of)
        self.of_record = _grouped((e for of in about.values() for e in of), _record_of)
        self.overtaken = self._overtaken(about)
        first = {message: self._judge(message, group) for message, group in about.items()}
        concerned = {m for m in about if self._is_concerned(m, first[m][0], about[m])}
        epochs = _grouped(about, lambda m: m[:2])
        bumped = {each for each, of in epochs.items() if len({epoch for *_, epoch, _ in of}) > 1}
        known = {m: events for m, events in about.items() if m in concerned or m[:2] in bumped or self._is_remembered(events)}
        settled = {message: self._settle(message, known, first) for message in known}
        last = _last_epochs(known)
        followed = {m: _followed(m, last, settled, first[m][1]) for m in known}
        final = {m: (verdict, flags | self._provisional(verdict, flags, about[m])) for m, (verdict, flags) in followed.items()}
        ruling = Ruling(self.as_of, {m: final[m] for m in concerned}, logical=self._logical(known, settled, concerned))
        for partition in self.by_partition:
            if (domain := self._domain(partition)) is not None:
                ruling.domains[partition] = domain
                seen = {offset for (where, _, _, offset) in about if where == partition}
                asked = range(*domain) if offsets is None else sorted({o for o in offsets if o in range(*domain)})
                ruling.absent[partition] = {o: found for o in asked if o not in seen and (found := self._absent(partition, o))}
            if self._rows_of(partition) and self._is_source(partition):
                ruling.produced[partition] = self._accounts(partition, domain, {m[3] for m in about if m[0] == partition})
            if self._falls([e for m, events in about.items() if m[0] == partition for e in events]):
                ruling.fallen.add(partition)
        ruling.overtaken = {m: offset for m, (_, offset) in self.overtaken.items() if m in concerned}
        for message in concerned:
            for attempt, fate in _copies(about[message], final[message][0]):
                of_view = ruling.copies.setdefault(message[:3], {})
                of_view[attempt, fate] = of_view.get((attempt, fate), 0) + 1
        for row in self.unpublished:
            if row.get("timestamp") is None or row["timestamp"] < self.as_of - self.grace:
                topic = row.get("topic") or ""
                ruling.unpublished[topic] = ruling.unpublished.get(topic, 0) + 1
        ruling.unsent = self._unsent()
        return ruling

    def _unsent(self) -> dict[tuple[str, str], ProducedVerdict | None]:
        """Return what was to be sent and is not; None: under way."""
        found: dict[tuple[str, str], ProducedVerdict | None] = {}
        mine = (e for e in self.events if e["event_type"] in OUTGOING and e.get("dedup_key") is not None)
        sending = {_group(e) for e in self.events if e["event_type"] in OUTGOING}
        blind = {cluster for cluster, group in sending if (cluster, group) in self.blind}
        for (cluster, message_id), events in _grouped(mine, lambda e: (e.get("cluster") or "", e["dedup_key"])).items():
            of = _grouped(events, lambda e: e["event_type"])
            commits = [e["event_ts"] for e in of.get(E.OUTBOX_CHECKED, []) if _attributes(e).get("answer") == "commit"]
            stored = [e["event_ts"] for e in of.get(E.OUTBOX_STORED, [])] + commits
            requeued = [e["event_ts"] for e in of.get(E.OUTBOX_REQUEUED, [])]
            parked = [e["event_ts"] for e in of.get(E.OUTBOX_PARKED, [])]
            if E.PRODUCED in of or E.OUTBOX_SENT in of or E.OUTBOX_EXPIRED in of:
                continue
            if parked and max(parked) >= max(requeued, default=0):
                found[cluster, message_id] = ProducedVerdict.PARKED
            elif stored or requeued:
                due = max(max(requeued, default=0), min(stored, default=0))
                late = ProducedVerdict.PUBLISH_UNKNOWN if cluster in blind else ProducedVerdict.NOT_PUBLISHED
                found[cluster, message_id] = late if due < self.as_of - self.grace else None
            elif E.PRODUCE_FAILED in of:
                found[cluster, message_id] = ProducedVerdict.PRODUCE_FAILED
        return found

    def _rows_of(self, partition: Partition) -> list[Mapping[str, Any]]:
        """Return what was produced there: a table names no cluster."""
        rows: list[Mapping[str, Any]] = self.produced.get(partition[2:], [])
        return [row for row in rows if row.get("cluster") in (None, partition[0])]

    def _last_ts(self, writer: int) -> int:
        return max(int(e["event_ts"]) for e in self.by_writer[writer])

    def _read_clocks(self) -> None:
        """Find the clocks that are wrong, and what now is: by those that are right, and by all but absurd ones."""
        timeout, sane = round(self.config.writer_timeout * 1e6), [w for w in self.by_writer if w not in self.absurd]
        messages = {w: [e for e in self.by_writer[w] if _is_message(e)] for w in sane}
        timed = {w: self._timed(w, of) for w, of in messages.items()}
        lags = {w: [e["event_ts"] - e["record_ts"] for e in of] for w, of in timed.items()}
        least = {w: min(each) for w, each in lags.items() if each}
        usual = {w: [least[m] for m in self.mates[w] & least.keys() if least[m] - lag > self.grace] for w, lag in least.items()}
        slow = {w: min(0, *others) - least[w] for w, others in usual.items() if others}
        self.behind = {w: by for w, by in slow.items() if by > self.grace}
        moved = {w: [e["event_ts"] - e["mono_ns"] // 1000 for e in self.by_writer[w] if e.get("mono_ns") is not None] for w in sane}
        was_set = {w: max(each) - min(each) for w, each in moved.items() if each}
        fast = set[int]()
        ordered = sorted(sane, key=lambda w: -self._last_ts(w)) if self.config.as_of is None else []
        for place in range(1, len(ordered)):
            head, rest = ordered[:place], ordered[place:]
            least_of_rest = max(0, min((least[w] for w in rest if w in least), default=0))
            ahead = {w: self._last_ts(w) - self._last_ts(rest[0]) for w in head}
            late = {w for w in head if self._keeps_up(messages[w], timed[w]) and least.get(w, -_FOREVER) - least_of_rest >= ahead[w] // 2}
            if ahead[head[-1]] > timeout and all(w in late or was_set.get(w, 0) >= ahead[w] // 2 for w in head):
                fast = set(head)
        for w, by in was_set.items():
            if by > self.grace and w not in fast:
                self.behind[w] = self.behind.get(w, 0) + by
        self.wrong = fast | self.behind.keys() | self.absurd
        self.newest = max((self._last_ts(w) for w in sane), default=0)
        self.now = max((self._last_ts(w) for w in sane if w not in fast), default=0)
        if self.config.as_of is not None:
            self.now = self.newest = round(self.config.as_of * 1e6)

    def _timed(self, writer: int, messages: list[Event]) -> list[Event]:
        """Return those with a record's time that tells of the writer's clock: one that is far ahead does if most are, and others as far."""
        timed = [e for e in messages if e.get("record_ts") is not None]
        far = [e for e in timed if e["record_ts"] - _FAR > e["event_ts"]]
        often, all_times = (sum(self.told[e["writer_id"], e["seq"]] for e in each) for each in (far, timed))
        others = [self._last_ts(mate) for mate in self.mates[writer] - {writer}]
        if far and 2 * often > all_times and max(e["record_ts"] for e in far) <= max(others, default=0) + self.grace:
            return timed
        return [e for e in timed if e not in far]

    def _keeps_up(self, messages: list[Event], timed: list[Event]) -> bool:
        """Whether the records came at the pace at which they were written, for a while."""
        told, written = [e["event_ts"] for e in messages], [e["record_ts"] for e in timed]
        if not written or max(told) - min(told) < self.grace:
            return False
        span = int(max(told) - min(told))
        return bool(abs(max(written) - min(written) - span) <= max(self.grace, span // 4))

    def _may_live(self, writer: int) -> bool:
        """Whether it is taken for dead by a clock that is wrong, its own or another's."""
        if self._has_ended(writer) or self._is_replaced(writer):
            return False
        latest = self._last_ts(writer) + self.behind.get(writer, 0)
        return writer in self.absurd or latest >= self.now - round(self.config.writer_timeout * 1e6)

    def _has_ended(self, writer: int) -> bool:
        return any(e["event_type"] == E.SESSION_END for e in self.by_writer[writer])

    def _lives(self, writer: int) -> bool:
        is_silent = self._last_ts(writer) < self.newest - round(self.config.writer_timeout * 1e6)
        return not (self._has_ended(writer) or self._is_replaced(writer) or is_silent or writer in self.absurd)

    def _is_replaced(self, writer: int) -> bool:
        """Whether others have all its partitions."""
        last = self._last_ts(writer) + self.behind.get(writer, 0)
        owned: set[Partition] = set()
        for e in self.by_writer[writer]:
            if e["event_type"] == E.ASSIGNED:
                owned.add(_partition(e))
            elif e["event_type"] == E.REVOKED:
                owned.discard(_partition(e))
        return (
            writer not in self.still_written
            and bool(owned)
            and all(
                any(
                    e["event_type"] == E.ASSIGNED and e["writer_id"] not in {writer, *self.wrong} and e["event_ts"] > last
                    for e in self.by_partition[p]
                )
                for p in owned
            )
        )

    def _is_mute(self, writer: int) -> bool:
        """Whether it died without a transaction that undid its unreported work."""
        keyed = [s for s in _sessions(self.by_writer[writer]) if "namespace" in s]
        return writer not in self.live and not self._has_ended(writer) and not any("lease" not in s for s in keyed)

    def _has_marks(self, writer: int, rolled_on: str | None) -> bool:
        """Whether its log shows all that it had started: it is complete, and its machine had run since when it was rolled."""
        says = any(s.get("marks") is True and s.get("boot_id") == rolled_on for s in _sessions(self.by_writer[writer]))
        return says and rolled_on is not None and writer not in self.cut and not self._has_holes(writer)

    def _passed_by(self, writer: int) -> dict[Partition, int]:
        at_partition = _grouped(filter(_is_read, self.by_writer[writer]), _partition)
        return {p: _max(map(_position, events)) or 0 for p, events in at_partition.items()}

    def _left(self) -> dict[Partition, list[tuple[int, str, int, int]]]:
        """Return the offsets that the mute ones may have started and did not commit: received ones, if no marks say it better."""
        found: dict[Partition, list[tuple[int, str, int, int]]] = defaultdict(list)
        for writer, passed in self.mute.items():
            for e in self.by_writer[writer]:
                has_come = e["event_type"] == E.MARKED or (e["event_type"] == E.RECEIVED_RANGE and writer not in self.marked)
                if has_come and e.get("topic") and None not in (e.get("offset"), e.get("range_end")):
                    start = max(e["offset"], passed[_partition(e)])
                    which = [(start, e["range_end"])] if (masks := _masks(e)) is None else _marked(e, masks, start)
                    found[_partition(e)] += [(writer, e.get("handler") or "", begin, end) for begin, end in which]
        return found

    def _is_left_open(self, message: Message, events: list[Event]) -> bool:
        """Whether a mute writer may have started it, or a copy, reported no outcome in any epoch, and no other told of its run."""
        every = self.of_record[_record_of(events[0])]
        copies, told = {place for e in events if (place := _read_at(e)) is not None}, {_told_by(e) for e in every}
        return any(
            self._has_left(writer, passed, (message[0], message[3]), _by(writer, events), _by(writer, every), message[1])
            or any(self._has_left(writer, passed, at, _by(writer, events, at), _by(writer, every, at)) for at in copies)
            for writer, passed in self.mute.items()
            if writer not in told
        )

    def _may_have_gone_on(self, of: Mapping[int, list[Event]]) -> bool:
        """Whether a mute writer gave a run up as too long, and nobody says whether it succeeded after that."""
        given_up = {_attempt(e) for e in of.get(E.FAILED, []) if _is_too_long(e) and not _is_in_place(e) and e["writer_id"] in self.mute}
        return bool(given_up - {_attempt(e) for e in of.get(E.LATE_SUCCESS, [])})

    def _has_left(
        self,
        writer: int,
        passed: Mapping[Partition, int],
        place: tuple[Partition, int],
        mine: list[Event],
        every: list[Event],
        handler: str | None = None,
    ) -> bool:
        (partition, offset), codes = place, {e["event_type"] for e in mine if not _is_in_place(e)}
        begins = {*_BEGUN} - {E.RECEIVED} if writer in self.marked else {*_BEGUN}
        has_begun = bool(begins & codes) and offset >= passed.get(partition, 0)
        had = [(h, start, end) for w, h, start, end in self.left.get(partition, ()) if w == writer]
        has_come = any(start <= offset < end and (handler is None or h in ("", handler)) for h, start, end in had)
        return (has_begun or has_come) and not _OUTCOMES & {e["event_type"] for e in every if not _is_in_place(e)}

    def _find_unknown(self, writer: int) -> bool:
        """Note what the writer's missing events may have been about, and return whether any are missing."""
        mine = self.by_writer[writer]
        there = sorted({e["seq"] for e in mine if e["seq"] >= 0})
        holes = [(last + 1, seq) for last, seq in pairwise([-1, *there]) if seq > last + 1]
        for partition, events in _grouped(filter(_is_read, mine), _partition).items():
            read = [e for e in events if _reached(e) is not None or _position(e) is not None]
            for first, after in holes:
                before, later = [e for e in read if 0 <= e["seq"] < first], [e for e in read if e["seq"] >= after]
                if read:
                    reached = _max(map(_reached, before)) or 0
                    resumed = [at for e in later if (at := _received_from(e)) is not None and at >= reached]
                    self._note(partition, before, min(resumed, default=_FOREVER))
            if writer in self.cut and read:
                others = [e for e in self.by_partition[partition] if e["writer_id"] != writer]
                heirs = {e["writer_id"] for e in others if e["event_type"] == E.ASSIGNED and e["event_ts"] > self._last_ts(writer)}
                until = _max(e["offset"] for e in others if e["event_type"] == E.ASSIGNED and e["writer_id"] in heirs)
                self._note(partition, read, _FOREVER if until is None else until)
        return bool(holes) or writer in self.cut

    def _has_holes(self, writer: int) -> bool:
        there = {e["seq"] for e in self.by_writer[writer] if e["seq"] >= 0}
        return len(there) <= max(there, default=-1)

    def _note_unreported_commits(self, partition: Partition) -> None:
        """Note what the writer of a commit without an event may have settled before it."""
        events = self.by_partition[partition]
        known = {e.get("range_end") for e in events if e["event_type"] == E.COMMITTED}
        known |= {e["offset"] for e in events if e["event_type"] == E.ASSIGNED}
        for e in (e for e in events if e["event_type"] == E.ASSIGNED and e.get("from_commit")):
            position: int | None = e["offset"]
            if position is None:
                continue
            last = _max(at for at in known if at is not None and at < position)
            if last is not None and not any(_reports(commit, e) for commit in events if commit["event_type"] == E.COMMITTED):
                self.unread[partition].add((last, position))
                self.unsettled[partition].add((last, position))

    def _note(self, partition: Partition, before: list[Event], until: int) -> None:
        self.unread[partition].add((_max(map(_reached, before)) or 0, until))
        self.unsettled[partition].add((_max(map(_position, before)) or 0, until))

    def _positions(self, partition: Partition) -> list[int]:
        """Return the committed positions in order."""
        ordered = sorted(self.by_partition[partition], key=lambda e: (e["event_ts"], e["writer_id"], e["seq"]))
        return [at for e in ordered if e["event_ts"] <= self.as_of and (at := _position(e)) is not None]

    def _resumed(self, partition: Partition) -> int | None:
        """Return what the group had committed when the judged time began."""
        if self.since is None:
            return None
        return _max(_position(e) for e in self.by_partition[partition] if e["event_ts"] <= self.as_of and e["event_ts"] < self.since)

    def _is_concerned(self, message: Message, verdict: Verdict, events: list[Event]) -> bool:
        """Whether it is judged: it was not committed past before, is open, or has an event since."""
        resumed = self.resumed[message[0]]
        is_open = verdict not in ENDED and not any(e["event_type"] in _SUCCESSES for e in events)
        is_due = self.since is None or resumed is None or message[3] >= resumed or is_open
        return is_due or any(e["event_ts"] >= self.since for e in events if self.since is not None)

    def _is_remembered(self, events: list[Event]) -> bool:
        """Whether the store may have remembered it when a judged message was suppressed."""
        return self.since is not None and max(e["event_ts"] for e in events) >= self.since - self._reach(_group(events[0]))

    def _reach(self, group: tuple[str, str]) -> int:
        """Return how far before `since` a store may remember."""
        return self._setting(group, "retention", 86400.0) + self.grace

    def _rewound(self, partition: Partition) -> Collection[tuple[int, int]]:
        """Return the offsets that a commit went back over, each time that one did."""
        positions = self._positions(partition)
        return {(at, max(positions[:i])) for i, at in enumerate(positions) if i and at < max(positions[:i])}

    def _falls(self, events: list[Event]) -> bool:
        """Whether all records of 64 neighbours are older than all of 64 before them, by more than clocks differ."""
        known = _grouped((e for e in events if e.get("record_ts") is not None), lambda e: e["offset"] >> 6)
        spans = [(min(e["record_ts"] for e in known[w]), max(e["record_ts"] for e in known[w])) for w in sorted(known)]
        return any(last + self.grace < max(low for low, _ in spans[:i]) for i, (_, last) in enumerate(spans) if i)

    def _domain(self, partition: Partition) -> tuple[int, int] | None:
        events, end = self.by_partition[partition], self.commits[partition]
        starts = [at for e in events if (at := _read_from(e)) is not None and (e["event_type"] != E.ASSIGNED or _role(e) == "source")]
        starts += [e["offset"] for e in events if _is_retention(e) and e.get("offset") is not None]
        if not self._is_source(partition) or not starts or end is None:
            return None
        start = max(min(starts), self.resumed[partition] or min(starts))
        return start, max(end, start)

    def _is_source(self, partition: Partition) -> bool:
        looks = (e for e in self.by_partition[partition] if e["event_type"] in (E.ASSIGNED, E.BROKER_OFFSETS))
        roles = {e.get("role") for e in looks} & {"source", "retry", "delay"}
        return not roles or "source" in roles

    def _produced_at(self, partition: Partition) -> dict[int, list[int]]:
        """Return the times at which each offset was produced."""
        rows = [row for row in self._rows_of(partition) if not row.get("aborted")]
        return {
            offset: [row["timestamp"] for row in of if row.get("timestamp") is not None]
            for offset, of in _grouped(rows, lambda row: row["offset"]).items()
        }

    def _accounts(self, partition: Partition, domain: tuple[int, int] | None, seen: set[int]) -> dict[int, Account]:
        """Only a table says what was not produced."""
        produced_at, every = self._produced_at(partition), [row["offset"] for row in self._rows_of(partition) if row.get("is_listed")]
        accounts = {offset: self._account(partition, offset, times, domain, seen) for offset, times in produced_at.items()}
        orphans = (offset for offset in seen if every and min(every) <= offset <= max(every) and offset not in produced_at)
        return accounts | dict.fromkeys(orphans, Account.ORPHAN)

    def _account(self, partition: Partition, offset: int, times: list[int], domain: tuple[int, int] | None, seen: set[int]) -> Account:
        group = partition[:2]
        since = _FOREVER if group in self.blind else self.began[group]
        if offset in seen:
            return Account.HANDLED
        if domain is None or offset >= domain[1]:
            return Account.WAITING
        if offset >= domain[0]:
            is_lost = self._absent(partition, offset) == Verdict.LOST_PRODUCED.name
            return Account.LOST_PRODUCED if is_lost else Account.EXPLAINED
        is_claimed = self.resumed[partition] is None and any(at >= since for at in times) and not self._ranges(partition, offset, E.SEEK)
        return Account.LOST_BEFORE_START if is_claimed else Account.EARLIER

    def _ranges(self, partition: Partition, offset: int, *codes: E) -> list[Event]:
        return [
            e for e in self.by_partition[partition] if e.get("range_end") is not None and e.get("offset") is not None
            and e["event_type"] in codes and e["offset"] <= offset < e["range_end"]
        ]  # fmt: skip

    def _absent(self, partition: Partition, offset: int) -> str:
        ranges = self._ranges(partition, offset, E.SEEK, E.RECEIVED_RANGE)
        within, is_produced = {e["event_type"] for e in ranges}, offset in self._produced_at(partition)
        if self._is_gap(partition, offset):
            return Verdict.LOST_PRODUCED.name if is_produced else "GAP"
        if any(_is_retention(e) for e in ranges):
            return Verdict.RETENTION_LOSS.name
        if E.SEEK in within:
            return Verdict.SKIPPED_BY_SEEK.name
        received = E.RECEIVED_RANGE in within
        if _in(self.unsettled[partition] if received else self.unread[partition], offset):
            return Verdict.UNKNOWN_EXPORT_GAP.name
        if received:
            return Verdict.LOST.name
        return Verdict.LOST_PRODUCED.name if is_produced else Verdict.NEVER_SEEN.name

    def _is_gap(self, partition: Partition, offset: int) -> bool:
        """Return whether it is proved that the log is empty there.

        A fetch that began where the one before it ended proves it; so does one that returned both sides.
        """
        gaps = self._ranges(partition, offset, E.GAP)
        received = {e["writer_id"] for e in self._ranges(partition, offset, E.RECEIVED_RANGE)}
        return any(e.get("proved") or e["writer_id"] in received for e in gaps)

    def _setting(self, group: tuple[str, str], name: str, default: float) -> int:
        configured = getattr(self.config, name)
        told = [s[name] for s in _sessions(self.by_group[group]) if _is_seconds(s.get(name))]
        return round((max(told, default=default) if configured is None else configured) * 1e6)

    def _delay(self, group: tuple[str, str], level: int | None) -> int:
        tables = [s["levels"] for s in _sessions(self.by_group[group]) if _is_table(s.get("levels"))]
        levels = self.config.levels or (tables[-1] if tables else DelayLevels().seconds)
        return round(levels[-1 if level is None else max(1, min(level, len(levels))) - 1] * 1e6)

    def _drained_at(self, group: tuple[str, str]) -> int:
        """Return when all delay and, after them, all retry partitions of the group had been read to their ends."""
        looks = [e for e in self.by_group[group] if e["event_type"] in (E.BROKER_OFFSETS, E.ASSIGNED)]
        retries, delays = ({_partition(e) for e in looks if e.get("role") == role} for role in ("retry", "delay"))
        last = {p: _max(e["event_ts"] for e in looks if _partition(e) == p and _is_drained(e)) for p in retries}
        if not retries or not delays or None in last.values():
            return 0
        until = min(at for at in last.values() if at is not None)
        times = [
            _max(e["event_ts"] for e in looks if _partition(e) == p and _is_drained(e) and e["event_ts"] <= min(until, self.as_of))
            for p in delays
        ]
        return 0 if None in times else min(at for at in times if at is not None)

    def _judge(self, message: Message, events: list[Event]) -> tuple[Verdict, Flag]:
        (partition, _, _, offset), group = message, _group(events[0])
        of = _grouped(events, lambda e: e["event_type"])
        attempt, rank = max((_attempt(e), _PROGRESS.get(e["event_type"], 0)) for e in events)
        committed = self.commits[partition]
        past = committed is not None and offset < committed
        doubt = _in(self.unsettled[partition], offset)
        retry = Verdict.RETRY_LOST if self._is_overdue(group, of, events) else Verdict.RETRYING
        verdict = Verdict.LOST if past else Verdict.PENDING
        if _has_succeeded(of):
            several = len(_ids(of, *_SUCCESSES) & _claimed(of)) > 1
            verdict = Verdict.MULTI_EXECUTED if several else Verdict.EXACTLY_ONCE
        elif E.DEAD_LETTERED in of:
            verdict = Verdict.DEAD_LETTERED
        elif E.DROPPED in of:
            verdict = Verdict.DROPPED
        elif E.SKIPPED in of:
            verdict = Verdict.SKIPPED
        elif rank == _PROGRESS[E.CANCELLED]:
            verdict = Verdict.CANCELLED
        elif rank == _PROGRESS[E.REDELIVERED]:
            verdict = retry
        elif any(_attributes(e).get("outcome") == "dead" for e in of.get(E.DUP_SUPPRESSED, [])):
            verdict = Verdict.SUPPRESSED_BY_DEAD
        elif E.DUP_SUPPRESSED in of or (E.STALE in of and E.SENT_BACK not in of):
            verdict = Verdict.DUPLICATE_SUPPRESSED
        elif rank == _PROGRESS[E.SENT_BACK]:
            verdict = retry
        elif rank == _PROGRESS[E.CLAIMED] and not _is_given_back(of):
            claimed_at = max(e["event_ts"] for e in of[E.CLAIMED])
            lives = any(e["writer_id"] in self.live and e["event_ts"] == claimed_at for e in of[E.CLAIMED])
            expired = self.as_of > claimed_at + self._setting(group, "lease", 30.0) + self.grace
            verdict = Verdict.STUCK if expired and not lives else Verdict.IN_FLIGHT
        elif attempt > 1:
            verdict = retry
        is_hidden = (verdict in (Verdict.LOST, Verdict.STUCK) and doubt) or (
            verdict in (Verdict.STUCK, Verdict.RETRY_LOST) and group in self.blind
        )
        if is_hidden or (verdict in ANOMALIES and _is_recreated(events)):
            verdict = Verdict.UNKNOWN_EXPORT_GAP
        rewound = Flag.REWOUND if _in(self.rewound[partition], offset) else Flag(0)
        is_open = _has_succeeded(of) and (self._is_left_open(message, events) or self._may_have_gone_on(of))
        maybe = Flag.AMBIGUOUS_EXEC if is_open else Flag(0)
        flags = self._flags(verdict, of, events, attempt, past and not doubt) | rewound | maybe
        flags |= self._order_flag(message, flags)
        if verdict is Verdict.EXACTLY_ONCE and flags & IN_DOUBT:
            verdict = Verdict.MAYBE_TWICE
        return verdict, flags

    def _order_flag(self, message: Message, flags: Flag) -> Flag:
        """Whether a later message overtook it, unless it ran out of order anyway."""
        if message not in self.overtaken or Flag.OUT_OF_ORDER in flags:
            return Flag(0)
        is_proved = self.overtaken[message][0] and not flags & (Flag.REWOUND | Flag.RECREATED)
        return Flag.OVERTAKEN if is_proved else Flag.MAYBE_OVERTAKEN

    def _overtaken(self, about: Mapping[Message, list[Event]]) -> dict[Message, tuple[bool, int]]:
        """Return the messages that a later one of their key or partition overtook: whether that is proved, and its offset.

        Of several, one that proves it is named, and of those the one that began first.
        """
        if not self.with_order:
            return {}
        executions = {message: _execution(events) for message, events in about.items()}
        starts: dict[Any, list[tuple[int, _Run]]] = defaultdict(list)
        for message, execution in executions.items():
            for run in execution.runs:
                if (order := self._order(run.writer, message[1])) and (order == "partition" or run.key is not None):
                    starts[message[:3], order, run.key if order == "key" else None].append((message[3], run))
        found: dict[Message, tuple[bool, int]] = {}
        for message, execution in executions.items():
            done = execution.done
            if done is None or not (order := self._order(done.writer, message[1])) or (order == "key" and done.key is None):
                continue
            lane = starts[message[:3], order, done.key if order == "key" else None]
            late = [(offset, run) for offset, run in lane if offset > message[3] and _overtook(run, execution, by_key=order == "key")]
            by = done.writer
            overtakers = [
                (not self._is_sure(message, done, first), first.ts, offset)
                for writer, of in _grouped(late, lambda each: each[1].writer).items()
                for offset, first in [min(of, key=lambda each: (each[1].seq if writer == by else each[1].ts, each[0]))]
            ]
            if overtakers:
                unsure, _, offset = min(overtakers)
                found[message] = not unsure, offset
        return found

    def _is_sure(self, message: Message, done: _Done, first: _Run) -> bool:
        """Whether neither missing events nor clocks can explain it."""
        apart = done.ts - first.ts > self.grace and not {done.writer, first.writer} & self.wrong
        return message[0][:2] not in self.blind and (first.writer == done.writer or apart)

    def _order(self, writer: int, handler: str) -> str | None:
        """The order of a handler, if the sessions of the writer say one."""
        tables = [s["order"] for s in _sessions(self.by_writer[writer]) if isinstance(s.get("order"), dict)]
        said = [table[handler] for table in tables if handler in table]
        return said[0] if said and said[0] in ("key", "partition") and said.count(said[0]) == len(said) else None

    def _provisional(self, verdict: Verdict, flags: Flag, events: list[Event]) -> Flag:
        is_young = self.as_of < max(e["event_ts"] for e in events) + round(self.config.lateness * 1e6)
        return Flag.PROVISIONAL if is_young and (verdict in MENDABLE or Flag.COMMITTED_PAST in flags) else Flag(0)

    def _is_overdue(self, group: tuple[str, str], of: Mapping[int, list[Event]], events: list[Event]) -> bool:
        back = of.get(E.SENT_BACK, [])
        due = _max(e.get("due_ts") for e in back)
        if due is None and back:
            due = max(e["event_ts"] for e in back) + self._delay(group, _max(e.get("level") for e in back))
        return max(due or 0, *(int(e["event_ts"]) for e in events)) + self.grace < self.drained[group]

    def _flags(self, verdict: Verdict, of: Mapping[int, list[Event]], events: list[Event], attempt: int, past: bool) -> Flag:
        claims, runs = of.get(E.CLAIMED, []), [*_extremes(of, *_SUCCESSES, E.FAILED)]
        settled = {
            _attempt(e) for code in (*_SUCCESSES, E.FAILED, E.SENT_BACK, E.DEAD_LETTERED, E.DROPPED, E.RELEASED) for e in of.get(code, [])
        }
        tried = {_attempt(e) for e in claims}
        left_open = any(a not in settled and a < max(tried) for a in tried)
        redriven = [number for e in events if (number := _redriven(e)) is not None]
        between = {E.FAILED, E.SENT_BACK, E.RELEASED} | ({E.DEAD_LETTERED} if redriven else set())
        two = len(_claimed(of)) > 1 and (left_open or (len(tried) == 1 and not between & of.keys()))
        begun = [e["event_ts"] for code in _BEGUN for e in of.get(code, [])]
        ok = [e["event_ts"] for code in _SUCCESSES for e in of.get(code, [])]
        ran = _has_succeeded(of) or E.FAILED in of
        found = {
            Flag.COMMITTED_PAST: verdict in (Verdict.IN_FLIGHT, Verdict.STUCK) and attempt == 1 and past,
            Flag.AMBIGUOUS_EXEC: two
            or E.CLAIM_LOST in of
            or any(e.get("took_unreleased") for e in events)
            or any(e.get("error") == Reason.ABORTED_AND_COMMITTED for e in of.get(E.DEAD_LETTERED, [])),
            Flag.UNCLAIMED: ran and (not runs or not all(_was_claimed(of, x) for x in runs)),
            Flag.REPEATED: verdict is not Verdict.MULTI_EXECUTED and len(_ids(of, *_SUCCESSES)) > 1 and not _is_recreated(events),
            Flag.HAD_FAILURES: E.FAILED in of,
            Flag.RETRIED: E.SENT_BACK in of,
            Flag.RESCUED_FROM_DLQ: _has_succeeded(of) and E.DEAD_LETTERED in of,
            Flag.DUP_AND_OK: _has_succeeded(of) and E.DUP_SUPPRESSED in of,
            Flag.ATTEMPT_HOLE: len({_attempt(e) for e in events}) < attempt,
            Flag.NEG_LATENCY: bool(ok) and bool(begun) and min(ok) < min(begun),
            Flag.RECREATED: _is_recreated(events),
            Flag.RAN_CANCELLED: E.CANCELLED in of and (_has_succeeded(of) or E.DEAD_LETTERED in of),
            Flag.TIMED_OUT: E.LATE_SUCCESS in of or any(_is_too_long(e) for e in of.get(E.FAILED, [])),
            Flag.REDRIVEN: bool(redriven),
            Flag.DIED_AGAIN: bool(redriven) and max(redriven)[1],
            Flag.OUT_OF_ORDER: any(_attributes(e).get("out_of_order") is True for c in (E.SUCCEEDED, E.FAILED) for e in of.get(c, [])),
        }
        return Flag(sum(flag for flag, is_set in found.items() if is_set))

    def _settle(self, message: Message, about: Mapping[Message, list[Event]], first: Mapping[Message, tuple[Verdict, Flag]]) -> Verdict:
        """The verdict, unless it was suppressed wrongly."""
        verdict, events, group = first[message][0], about[message], _group(about[message][0])
        suppressed = min((e["event_ts"] for e in events if e["event_type"] in (E.DUP_SUPPRESSED, E.STALE)), default=0)
        if verdict not in SUPPRESSED:
            return verdict
        hashed = _hash(events)
        mates = [] if hashed is None else [m for m in about if _scope(m) == _scope(message) and _hash(about[m]) == hashed]
        if verdict is Verdict.SUPPRESSED_BY_DEAD and any(first[m][0] in DONE for m in mates):
            return Verdict.DUPLICATE_SUPPRESSED
        if suppressed > self.as_of:
            return verdict
        open_still = (Verdict.RETRYING, Verdict.IN_FLIGHT, Verdict.PENDING)
        if any(first[m][0] in open_still or any(e["event_type"] in _DONE or _is_of_a_run(e) for e in about[m]) for m in mates):
            return verdict
        since = self.began[group]
        if self.since is not None:
            since = max(since, self.since - self._reach(group))
        unknown = group in self.blind or not mates
        reaches_back = since <= suppressed - self._setting(group, "retention", 86400.0)
        return Verdict.UNKNOWN_EXPORT_GAP if unknown or not reaches_back else Verdict.PHANTOM_SUPPRESSED

    def _logical(
        self, about: Mapping[Message, list[Event]], settled: Mapping[Message, Verdict], concerned: Collection[Message]
    ) -> dict[tuple[Scope, int], tuple[LogicalVerdict, Flag]]:
        found: dict[tuple[Scope, int], tuple[LogicalVerdict, Flag]] = {}
        for (scope, hashed), mates in _grouped(about, lambda m: (_scope(m), _hash(about[m]))).items():
            ok = []
            if not any(mate in concerned for mate in mates):
                continue
            for mate in mates:
                of = _grouped(about[mate], lambda e: e["event_type"])
                ids, claims = _ids(of, *_SUCCESSES), _claimed(of)
                if ids and claims and min(ids) <= max(claims) and max(ids) >= min(claims):
                    ok.append(min(e["event_ts"] for code in _SUCCESSES for e in of.get(code, [])))
            if hashed is not None and len(ok) > 1:
                beyond = max(ok) - min(ok) > self._setting((scope[0], scope[1]), "retention", 86400.0)
                found[scope, hashed] = LogicalVerdict.LOGICAL_DUPLICATE, Flag.BEYOND_TTL if beyond else Flag(0)
            elif hashed is not None and any(settled[m] is Verdict.PHANTOM_SUPPRESSED for m in mates):
                found[scope, hashed] = LogicalVerdict.PHANTOM, Flag(0)
        return found


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of a message, by its start."""

    ts: int
    writer: int
    seq: int
    key: int | None
    """Hash of the order key."""
    end: tuple[int, int] | None
    """Number and time of the event that says how it ended."""
    is_void: bool
    """It failed, or was given back."""


@dataclass(frozen=True, slots=True)
class _Done:
    """That a message is done: by the first run that is not void, or by a dead letter."""

    writer: int
    seq: int
    """From this event of its writer on; the start of a run of which nothing else is told, since it may have ended at any time."""
    ts: int
    """By then, in this run or another."""
    key: int | None


@dataclass(frozen=True, slots=True)
class _Execution:
    """What a message ran until it was done."""

    runs: list[_Run]
    done: _Done | None


def _execution(events: list[Event]) -> _Execution:
    """Return the runs of a message until it was done, in order. Copies, and what ran out of order, do not count."""
    here, runs = [e for e in events if e.get("phys_topic") is None], list[_Run]()
    for run in _grouped(here, lambda e: (e["writer_id"], e.get("exec_id"))).values():
        begun = [e for e in run if e["event_type"] in (E.CLAIMED, E.STARTED)]
        ended = [e for e in run if e["event_type"] in (E.SUCCEEDED, E.FAILED, E.RELEASED)]
        if begun and not any(_attributes(e).get("out_of_order") is True for e in ended):
            start = min(begun, key=lambda e: int(e["seq"]))
            end = min(((e["seq"], e["event_ts"]) for e in ended), default=None)
            is_void = any(e["event_type"] != E.SUCCEEDED for e in ended)
            runs.append(_Run(start["event_ts"], start["writer_id"], start["seq"], start.get("order_hash"), end, is_void))
    runs.sort(key=lambda run: (run.ts, run.writer, run.seq))
    letters = [(e["event_ts"], e["writer_id"], e["seq"]) for e in here if e["event_type"] == E.DEAD_LETTERED]
    counted = next((place for place, run in enumerate(runs) if not run.is_void), None)
    ends = [run.ts if run.end is None else run.end[1] for run in runs if not run.is_void] + [ts for ts, *_ in letters]
    if letters and runs and (counted is None or min(letters)[0] < runs[counted].ts):
        ts, writer, seq = min(letters)
        return _Execution([run for run in runs if run.ts < ts], _Done(writer, seq, min(ends), runs[0].key))
    if counted is None:
        return _Execution(runs, None)
    first = runs[counted]
    return _Execution(runs[: counted + 1], _Done(first.writer, first.seq if first.end is None else first.end[0], min(ends), first.key))


def _overtook(later: _Run, execution: _Execution, *, by_key: bool) -> bool:
    """Whether the run of a later message began before an earlier one was done, and not together with it.

    What began in one call was given to the handler together. One worker reports what it ran of a partition in portions, so there another
    run is known to be too early only if it began while the earlier message did not run.
    """
    done = execution.done
    assert done is not None
    if not (later.seq < done.seq if later.writer == done.writer else later.ts < done.ts):
        return False
    for run in (run for run in execution.runs if run.writer == later.writer):
        end = 2**63 if run.end is None else run.end[0]
        is_portion = later.is_void or not run.is_void
        if run.ts == later.ts or (not by_key and is_portion and run.seq < later.seq < end):
            return False
    return True


def _last_epochs(messages: Iterable[Message]) -> dict[tuple[Partition, str, int], int]:
    """Return the last dedup epoch in which a handler took up each record."""
    found: dict[tuple[Partition, str, int], int] = {}
    for partition, handler, epoch, offset in messages:
        found[partition, handler, offset] = max(epoch, found.get((partition, handler, offset), epoch))
    return found


def _followed(
    message: Message, last: Mapping[tuple[Partition, str, int], int], settled: Mapping[Message, Verdict], flags: Flag
) -> tuple[Verdict, Flag]:
    """Return the verdict of the last dedup epoch in which the record was taken up, if it was left open in this one."""
    partition, handler, epoch, offset = message
    newest = last[partition, handler, offset]
    if newest == epoch or settled[message] not in LEFT_OPEN:
        return settled[message], flags
    return settled[partition, handler, newest, offset], flags & ~Flag.COMMITTED_PAST


def _grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return dict(found)


def _max(numbers: Iterable[int | None]) -> int | None:
    return max((number for number in numbers if number is not None), default=None)


def _in(spans: Collection[tuple[int, int]], offset: int) -> bool:
    return any(start <= offset < end for start, end in spans)


def _group(e: Event) -> tuple[str, str]:
    return e.get("cluster") or "", e.get("group_id") or ""


def _masks(e: Event) -> list[int] | None:
    """The masks of a mark, one for each word of 64 offsets; None: it is of all of its offsets."""
    found = _attributes(e).get("masks") if e["event_type"] == E.MARKED else None
    return found if isinstance(found, list) and all(isinstance(mask, int) for mask in found) else None


def _marked(e: Event, masks: list[int], start: int) -> list[tuple[int, int]]:
    """The offsets from `start` on that a mark names, each as a range."""
    first = e["offset"] >> 6
    each = (offset for offset in range(start, min(e["range_end"], (first + len(masks)) << 6)))
    return [(offset, offset + 1) for offset in each if masks[(offset >> 6) - first] >> (offset & 63) & 1]


def _partition(e: Event) -> Partition:
    return *_group(e), e["topic"], e.get("topic_id") or "", -1 if e.get("partition") is None else e["partition"]


def message_of(e: Event) -> Message:
    """Return the message that an event is about, by the coordinates of its origin."""
    return _partition(e), e.get("handler") or "", e.get("dedup_epoch") or 0, e["offset"]


def _record_of(e: Event) -> tuple[Partition, str, int]:
    """Return the record that an event is about, as a handler has it in all dedup epochs."""
    partition, handler, _, offset = message_of(e)
    return partition, handler, offset


def _by(writer: int, events: list[Event], place: tuple[Partition, int] | None = None) -> list[Event]:
    """Return what a writer says, or says of the copy that was read at a place."""
    return [e for e in events if e["writer_id"] == writer and (place is None or _read_at(e) == place)]


def _scope(message: Message) -> Scope:
    (cluster, group, *_), handler, epoch, _ = message
    return cluster, group, handler, epoch


def _is_message(e: Event) -> bool:
    is_known = e["event_type"] in _KNOWN and e["event_type"] < 20 and e["event_type"] not in OUTGOING
    return is_known and e.get("offset") is not None and e.get("partition") is not None


def _is_read(e: Event) -> bool:
    """Whether it is about a partition as its group reads it. Where a record is sent to need not be one."""
    return bool(e.get("topic")) and e["event_type"] not in OUTGOING


def _attempt(e: Event) -> int:
    return max(e.get("attempt") or 1, 1)


def _hash(events: list[Event]) -> int | None:
    return _max(e.get("dedup_hash") for e in events)


def _place(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["topic"], row.get("topic_id") or "", row["partition"]


def _acknowledged(e: Event) -> Mapping[str, Any] | None:
    """The row of a table that says the same."""
    if e["event_type"] not in (E.PRODUCED, E.OUTBOX_SENT):
        return None
    known = {"cluster": e.get("cluster") or "", "timestamp": e["event_ts"] if e.get("record_ts") is None else e["record_ts"]}
    return {name: e.get(name) for name in ("topic", "topic_id", "partition", "offset")} | known


def _is_published(row: Mapping[str, Any]) -> bool:
    """Whether it has coordinates."""
    partition, offset = row.get("partition"), row.get("offset")
    return bool(row.get("topic")) and partition is not None and partition >= 0 and offset is not None and 0 <= offset < _FOREVER


def _is_recreated(events: list[Event]) -> bool:
    return len({e["record_ts"] for e in events if e.get("record_ts") is not None}) > 1


def _has_succeeded(of: Mapping[int, list[Event]]) -> bool:
    return not of.keys().isdisjoint(_SUCCESSES)


def _is_given_back(of: Mapping[int, list[Event]]) -> bool:
    """Whether the last claim was given back without an outcome, by the clocks: who claims after that may be another worker."""
    released = max((e["event_ts"] for e in of.get(E.RELEASED, [])), default=None)
    return released is not None and released >= max(int(e["event_ts"]) for e in of[E.CLAIMED])


def _is_too_long(e: Event) -> bool:
    return e["event_type"] == E.FAILED and e.get("error") == "ConsumeTimeout"


def _is_in_place(e: Event) -> bool:
    """Whether its writer was to try again by itself."""
    return e["event_type"] == E.FAILED and _number(_attributes(e).get("in_place")) is not None


def _redriven(e: Event) -> tuple[int, bool] | None:
    """Return the number of the redrive that the event is about, and whether the message died of it."""
    if e["event_type"] not in (E.REDELIVERED, E.DEAD_LETTERED):
        return None
    found = re.fullmatch("redrive-([0-9]{1,9})", str(_attributes(e).get("redrive")))
    return None if found is None else (int(found[1]), e["event_type"] == E.DEAD_LETTERED)


def _role(e: Event) -> str:
    return e.get("role") or "source"


def _is_read_here(e: Event) -> bool:
    return _is_message(e) and e.get("phys_topic") is None


def _read_at(e: Event) -> tuple[Partition, int] | None:
    """Return the place at which the copy was read."""
    topic, partition, offset = e.get("phys_topic"), e.get("phys_partition"), e.get("phys_offset")
    return None if topic is None or partition is None or offset is None else ((*_group(e), topic, "", partition), offset)


def _read_from(e: Event) -> int | None:
    return e.get("offset") if _is_read_here(e) or e["event_type"] in (E.ASSIGNED, E.RECEIVED_RANGE) else None


def _received_from(e: Event) -> int | None:
    """Return where it was read on; an outcome does not show it: its message may have been read long before."""
    return _read_from(e) if e["event_type"] in (E.ASSIGNED, E.RECEIVED_RANGE, E.RECEIVED) else None


def _reached(e: Event) -> int | None:
    if _is_read_here(e):
        return int(e["offset"]) + 1
    return {E.RECEIVED_RANGE: e.get("range_end"), E.ASSIGNED: e.get("offset")}.get(e["event_type"])


def _position(e: Event) -> int | None:
    if e["event_type"] == E.COMMITTED:
        return e.get("range_end")
    return e.get("offset") if e["event_type"] == E.ASSIGNED and e.get("from_commit") else None


def _copies(events: list[Event], verdict: Verdict) -> list[tuple[int, CopyFate]]:
    sent = sorted({min(_attempt(e), 62) for e in events if e["event_type"] == E.SENT_BACK})
    last = max(min(_attempt(e), 62) for e in events)
    open_still = {
        Verdict.RETRYING: CopyFate.WAITING,
        Verdict.RETRY_LOST: CopyFate.LOST,
        Verdict.UNKNOWN_EXPORT_GAP: CopyFate.UNKNOWN,
    }
    return [(attempt, CopyFate.CAME if attempt < last else open_still.get(verdict, CopyFate.OVERTAKEN)) for attempt in sent]


def _is_retention(e: Event) -> bool:
    """Whether what was jumped over was deleted: the log began only later. Where it ended earlier, reading went back instead."""
    attributes = _attributes(e) if e["event_type"] == E.SEEK else {}
    return attributes.get("reason") == "out-of-range" and _number(attributes.get("goes_on_at")) in (None, e.get("range_end"))


def _is_drained(e: Event) -> bool:
    committed = _number(_attributes(e).get("committed"))
    return e["event_type"] == E.BROKER_OFFSETS and committed is not None and committed >= e["range_end"]


def _named(by_partition: Mapping[Partition, list[Event]]) -> dict[int, tuple[tuple[str, str], int]]:
    """Return the group and the last number of each writer that the metadata of a commit names, by those that went on from it."""
    found: dict[int, tuple[tuple[str, str], int]] = {}
    for partition, events in by_partition.items():
        for e in events:
            said = _attributes(e) if e["event_type"] == E.ASSIGNED else {}
            writer, last = _number(said.get("writer")), _number(said.get("seq"))
            if writer is not None and last is not None and min(writer, last) >= 0:
                found[writer] = partition[:2], max(last, found[writer][1] if writer in found else -1)
    return found


def _reports(commit: Event, found: Event) -> bool:
    """Whether a COMMITTED reports the commit that an ASSIGNED found: of the writer that it names or, without a name, not of its finder."""
    writer = _number(_attributes(found).get("writer"))
    is_again = commit["writer_id"] == found["writer_id"] and commit["seq"] > found["seq"]
    is_theirs = not is_again if writer is None or writer < 0 else commit["writer_id"] == writer
    return commit.get("range_end") == found["offset"] and is_theirs


def _sessions(events: list[Event]) -> list[dict[str, Any]]:
    return [_attributes(e) for e in sorted(events, key=lambda e: int(e["event_ts"])) if e["event_type"] == E.SESSION_START]


def _attributes(e: Event) -> dict[str, Any]:
    try:
        found = json.loads(e.get("attrs") or "null")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().lstrip("+-").isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_seconds, value))


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e11


def _ids(of: Mapping[int, list[Event]], *codes: E) -> set[int]:
    return {e["exec_id"] for code in codes for e in of.get(code, []) if e.get("exec_id") is not None}


def _claimed(of: Mapping[int, list[Event]]) -> set[int]:
    """The runs that had a claim, as their own events say or whoever told of them."""
    return _ids(of, E.CLAIMED) | {e["exec_id"] for e in of.get(E.SUCCEEDED, []) if _told_by(e) is not None and e.get("exec_id") is not None}


def _is_of_a_run(e: Event) -> bool:
    """Whether it was not run since its key had been, in a run that its worker could not record: a store told whoever claimed it next."""
    return e["event_type"] == E.DUP_SUPPRESSED and e.get("exec_id") is not None and _attributes(e).get("outcome") != "dead"


def _as_told(e: Event) -> Event:
    """The event, or that of the run that it tells of, if that was of the same record: one of another record is the leader.

    An event about an offset that no log has is one that nobody knows the meaning of. Of a time beyond all it has the farthest.
    """
    if e.get("partition") is not None and e["partition"] < 0 and e["event_type"] not in OUTGOING:
        e = {**e, "partition": None}
    e = {**e, **{name: max(-_FARTHEST, min(e[name], _FARTHEST)) for name in ("event_ts", "record_ts", "due_ts") if e.get(name) is not None}}
    if any(not 0 <= at < _FOREVER for at in (e.get("offset"), e.get("range_end")) if at is not None):
        return {**e, "event_type": 0} | ({"topic": None} if e["event_type"] in OUTGOING else {})
    return {**e, "event_type": int(E.SUCCEEDED)} if _is_of_a_run(e) and _attributes(e).get("leader") is None else e


def _told_by(e: Event) -> int | None:
    """The writer whose run another tells of."""
    return _number(_attributes(e).get("writer")) if e["event_type"] == E.SUCCEEDED else None


def _extremes(of: Mapping[int, list[Event]], *codes: E) -> list[int]:
    ids = _ids(of, *codes)
    return [min(ids), max(ids)] if ids else []


def _was_claimed(of: Mapping[int, list[Event]], exec_id: int) -> bool:
    claims = _claimed(of)
    return bool(claims) and min(claims) <= exec_id <= max(claims)
