"""Facts that follow from the survey: live writers, the time of judgement, source partitions. Plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import permutations
from typing import Any, Final, NamedTuple

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.policies.retry import DelayLevels
from ackwise.middleware.progress.commitmetadata import LastCommit
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.attributes import attributes, is_duration
from ackwise.spark.events.logs import NO_LOGS, Logs
from ackwise.spark.fold.clocks import Clocks, Reading, compare

__all__ = [
    "ROLES",
    "CommitRow",
    "Committed",
    "Facts",
    "WriterFate",
    "Group",
    "KeyCollision",
    "Named",
    "Partition",
    "SurveyRow",
    "View",
    "Writer",
    "committed_by",
    "establish",
    "merged",
]

_LEASE = 30.0  # seconds; the pipeline's default, as is the next one
_RETENTION = 86400.0
_MICROS: Final = 1_000_000

GroupName = tuple[str, str]
"""Cluster and group."""


#: The roles that a partition can have for a group, each with its bit in `SurveyRow.roles`.
ROLES = {"source": 1, "retry": 2, "delay": 4}


class KeyCollision(AckwiseError):
    """Two partitions, or two handlers of one, got the same number, so their messages would be taken for each other's."""


class SurveyRow(NamedTuple):
    """A summary of one writer's events about one partition and handler. Times are microseconds; `None`: no such event."""

    writer_id: int
    client: str | None
    cluster: str
    group_id: str
    topic: str
    """Empty for events that are about no partition."""
    topic_id: str
    partition: int
    handler: str
    dedup_epoch: int
    session: str | None
    """The attributes of SESSION_START."""
    pk: int
    mk: int
    first_ts: int
    last_ts: int
    first_seq: int
    last_seq: int
    ended: int
    strange: int
    """Number of events with an unknown code or without the coordinates that they need; one that was exported twice counts twice."""
    message_events: int
    roles: int
    """Roles in which the partition was assigned, or that its broker offsets have."""
    assigned_seq: int | None
    revoked_seq: int | None
    assigned_ts: int | None
    assigned_to: int | None
    """The largest position that it was assigned at."""
    start: int | None
    """The smallest position at which a source was read."""
    reached: int | None
    """The position after the last record that came from the partition."""
    settled_to: int | None
    """The largest position that it committed, or found committed."""
    drained_ts: int | None
    """Time at which the group had last read the partition to its end."""
    outgoing: int = 0
    """Number of events of the producer side."""
    least_lag: int | None = None
    """The least time from a record to an event about it. Here and in the next two, records far ahead of their event are left out."""
    oldest_record: int | None = None
    newest_record: int | None = None
    """Times of the records of its events about messages."""
    clock_low: int | None = None
    clock_high: int | None = None
    """The least and the most that the writer's clock was ahead of one that nobody sets."""
    timed: int = 0
    """Number of events about messages whose record has a time; one that was exported twice counts twice."""
    far: int = 0
    """Number of those among them whose record is `FAR_AHEAD` of the event."""
    far_lag: int | None = None
    oldest_far: int | None = None
    newest_far: int | None = None
    """Of these events, what the columns without `far` are of the others."""


class Committed(NamedTuple):
    """The commits of a group to a partition."""

    pk: int
    highest: int | None
    drained_ts: int | None
    """Time at which a delay partition had last been read to its end, before its group's retry partitions were."""
    rewound: tuple[tuple[int, int], ...] = ()
    """The offsets that commits went back over, from the first to before the second; ordered and disjoint."""
    resumed: int | None = None
    """Position committed before the judged time begins; None: all is judged."""


class CommitRow(NamedTuple):
    """A part of `Committed`: the commits that went back from one position to another, or those that never went back."""

    pk: int
    back_to: int | None
    back_from: int | None
    highest: int | None
    drained_ts: int | None
    resumed: int | None


class Named(NamedTuple):
    """What a commit says of its writer, by the metadata beside it: all events up to `last_seq` were durable then."""

    writer_id: int
    last_seq: int
    pk: int
    """The partition that was committed."""


class WriterFate(StrEnum):
    """The state of a writer."""

    LIVE = "live"
    ENDED = "ended"
    """Closed its log."""
    DEAD = "dead"
    """Silent for too long, or replaced on all its partitions."""


@dataclass(frozen=True, slots=True)
class Writer:
    """One process that wrote events. Times are microseconds."""

    writer_id: int
    client: str
    group: GroupName
    first_ts: int
    last_ts: int
    last_seq: int
    mode: str
    fate: WriterFate
    tail_is_unknown: bool
    """Its last events are missing, or it is dead and they may not have been exported."""
    is_mute: bool = False
    """Dead, and no transaction has undone its unreported work."""
    has_marks: bool = False
    """Its log shows all that it had started: it marked it before, and what it wrote last was not lost with the machine."""
    named_to: int | None = None
    """The last number that a commit names; None: no commit names the writer."""
    is_contested: bool = False
    """Taken for dead, and by the clocks that are right it may live."""
    host: str = ""
    """Host and process; empty if its session does not name them."""

    @property
    def is_marked(self) -> bool:
        """Return whether it is mute and its log shows all that it had started, unless events of it are missing in between."""
        return self.is_mute and self.has_marks and not self.tail_is_unknown


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition as one group reads it."""

    pk: int
    group: GroupName
    topic: str
    topic_id: str
    partition: int
    roles: int
    start: int | None
    """The first offset that the group must account for."""

    @property
    def is_source(self) -> bool:
        """Whether its offsets are accounted for. A partition that was never assigned in these events is taken for a source."""
        return self.roles == 0 or bool(self.roles & ROLES["source"])


@dataclass(frozen=True, slots=True)
class View:
    """A partition as one handler sees it within one dedup epoch: what the messages of the fold belong to."""

    mk: int
    pk: int
    group: GroupName
    handler: str
    dedup_epoch: int


@dataclass(frozen=True, slots=True)
class Group:
    """The settings of a group, from the configuration or else from its sessions. Microseconds."""

    name: GroupName
    first_ts: int
    lease: int
    retention: int
    levels: tuple[int, ...]
    shares: bool = False
    """Whether its sources are consumed by a share group, which commits no offsets."""


@dataclass(frozen=True)
class Facts:
    """The conclusions from the survey. `as_of` is in microseconds; 0 without events."""

    rows: Sequence[SurveyRow]
    as_of: int
    writers: Sequence[Writer]
    partitions: Mapping[int, Partition]
    views: Sequence[View]
    groups: Mapping[GroupName, Group]
    clocks: Clocks = field(default_factory=Clocks)
    absent: Mapping[int, tuple[GroupName, int]] = field(default_factory=dict)
    """Group and last number of the writers that commits name, and of whom there is no event."""

    @cached_property
    def live_writers(self) -> frozenset[int]:
        """The ids of those who may still finish what they claimed."""
        return frozenset(writer.writer_id for writer in self.writers if writer.fate is WriterFate.LIVE)

    @cached_property
    def mute(self) -> Mapping[int, Mapping[int, int]]:
        """The positions that each mute writer had committed, by `pk`: all before them was settled."""
        found: dict[int, dict[int, int]] = {writer.writer_id: {} for writer in self.writers if writer.is_mute}
        for row in self.rows:
            if row.writer_id in found and row.topic:
                passed = found[row.writer_id]
                passed[row.pk] = max(passed.get(row.pk, 0), row.settled_to or 0)
        return found

    @cached_property
    def marked(self) -> frozenset[int]:
        """The mute writers whose log shows all that they had started, unless events of it are missing in between."""
        return frozenset(writer.writer_id for writer in self.writers if writer.is_marked)

    @cached_property
    def other_epochs(self) -> Sequence[tuple[int, int]]:
        """The views of one handler in several dedup epochs, by `mk`: each with each other one."""
        by_handler: dict[tuple[int, str], list[int]] = defaultdict(list)
        for view in self.views:
            by_handler[view.pk, view.handler].append(view.mk)
        return [pair for each in by_handler.values() for pair in permutations(each, 2)]

    @cached_property
    def orders(self) -> Sequence[tuple[int, int, bool]]:
        """The writers that say an order of a handler, each with `mk` of what it had of it, and whether the order is by key."""
        said: dict[tuple[int, str], set[str]] = defaultdict(set)
        for session in _sessions(self.rows):
            table = session.attrs.get("order")
            for handler, order in table.items() if isinstance(table, dict) else ():
                said[session.writer_id, handler].add(str(order))
        known = {name: next(iter(orders)) == "key" for name, orders in said.items() if orders in ({"key"}, {"partition"})}
        found = {
            (row.writer_id, row.mk, known[row.writer_id, row.handler])
            for row in self.rows
            if row.message_events and (row.writer_id, row.handler) in known
        }
        return sorted(found)

    @cached_property
    def sending(self) -> frozenset[GroupName]:
        """The groups that have events of the producer side."""
        return frozenset((row.cluster, row.group_id) for row in self.rows if row.outgoing)

    @cached_property
    def strange(self) -> int:
        """The number of events that are passed over as unknown; those that were exported twice count twice."""
        return sum(row.strange for row in self.rows)

    def drained(self, role: str) -> dict[int, int | None]:
        """Return the time at which each partition of this role was last read to its end, by `pk`."""
        found: dict[int, int | None] = {pk: None for pk, partition in self.partitions.items() if partition.roles & ROLES[role]}
        for row in self.rows:
            if row.pk in found and row.drained_ts is not None:
                found[row.pk] = max(found[row.pk] or 0, row.drained_ts)
        return found

    def retries_drained(self) -> dict[GroupName, int]:
        """Return the time at which all retry partitions of a group had been read to their ends; groups without proof are left out."""
        by_group: dict[GroupName, list[int | None]] = defaultdict(list)
        for pk, at in self.drained("retry").items():
            by_group[self.partitions[pk].group].append(at)
        return {group: min(at for at in times if at is not None) for group, times in by_group.items() if None not in times}


def establish(
    rows: Iterable[SurveyRow],
    config: ReconcileConfig,
    logs: Logs = NO_LOGS,
    named: Sequence[Named] = (),
    last_commits: Sequence[LastCommit] = (),
) -> Facts:
    """Decide what the survey means, and what commits name.

    A writer that lives may have committed what is not in these files yet, so `last_commits` say nothing of it.

    Raises `KeyCollision` if two partitions or two views got the same key.
    """
    rows = list(rows)
    timeout, grace = round(config.writer_timeout * _MICROS), round(config.grace * _MICROS)
    clocks = compare(_readings(rows, grace), timeout, grace, with_fast=config.as_of is None)
    given = None if config.as_of is None else round(config.as_of * _MICROS)
    sessions = _sessions(rows)
    writers = _writers(rows, given, timeout, clocks, sessions, logs, named, last_commits)
    as_of = _as_of(writers, clocks) if given is None else given
    partitions = {pk: _partition(pk, about) for pk, about in _by(rows, "pk").items() if about[0].topic}
    views = [_view(mk, about) for mk, about in _by(rows, "mk").items() if any(row.message_events for row in about)]
    groups = {name: _group(name, _began(about, clocks), sessions, config) for name, about in _by_group(rows).items()}
    return Facts(rows, as_of, writers, partitions, views, groups, clocks, _absent(writers, partitions, groups, named, last_commits))


def _readings(rows: Sequence[SurveyRow], grace: int) -> list[Reading]:
    return [_reading(writer_id, about, _is_far_behind(about, rows, grace)) for writer_id, about in _by(rows, "writer_id").items()]


def _reading(writer_id: int, about: Sequence[SurveyRow], with_far: bool) -> Reading:
    messages = [row for row in about if row.message_events]
    lags = [at for row in messages for at in (row.least_lag, row.far_lag if with_far else None) if at is not None]
    seen = [at for row in messages for at in (row.oldest_record, row.newest_record) if at is not None]
    far = [at for row in messages for at in (row.oldest_far, row.newest_far) if with_far and at is not None]
    clock = [at for row in about for at in (row.clock_low, row.clock_high) if at is not None]
    told = [at for row in messages for at in (row.first_ts, row.last_ts)]
    return Reading(
        writer_id,
        (about[0].cluster, about[0].group_id),
        min(row.first_ts for row in about),
        max(row.last_ts for row in about),
        min(lags, default=None),
        max(told) - min(told) if told else 0,
        max(seen + far) - min(seen + far) if seen + far else 0,
        max(clock) - min(clock) if clock else 0,
    )


def _is_far_behind(about: Sequence[SurveyRow], rows: Sequence[SurveyRow], grace: int) -> bool:
    """Whether records far ahead of a writer's events tell of its clock: most are, and others of its group are as far by now."""
    far = [row.newest_far for row in about if row.newest_far is not None]
    if not far or 2 * sum(row.far for row in about) <= sum(row.timed for row in about):
        return False
    first = about[0]
    others = [row.last_ts for row in rows if (row.cluster, row.group_id) == first[2:4] and row.writer_id != first.writer_id]
    return max(far) <= max(others, default=0) + grace


def _as_of(writers: Sequence[Writer], clocks: Clocks) -> int:
    """Return the newest event of the slowest writer that lives, by clocks that are right; without one the newest event."""
    living = [writer for writer in writers if writer.fate is WriterFate.LIVE or writer.is_contested]
    right = [writer.last_ts for writer in living if writer.writer_id not in clocks.wrong]
    return min(right or [writer.last_ts for writer in living if writer.writer_id not in clocks.absurd], default=clocks.now)


def _began(about: Sequence[SurveyRow], clocks: Clocks) -> int:
    sane = [row.first_ts for row in about if row.writer_id not in clocks.absurd]
    return min(sane or [row.first_ts for row in about])


def committed_by(rows: Iterable[CommitRow]) -> dict[int, Committed]:
    """Return the commits of each partition, by `pk`."""
    found: dict[int, list[CommitRow]] = defaultdict(list)
    for row in rows:
        found[row.pk].append(row)
    return {pk: _commits(pk, about) for pk, about in found.items()}


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same numbers as ordered and disjoint ranges."""
    apart: list[tuple[int, int]] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if apart and start <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], end))
        else:
            apart.append((start, end))
    return apart


def _commits(pk: int, about: Sequence[CommitRow]) -> Committed:
    fell = [(row.back_to, row.back_from) for row in about if row.back_to is not None and row.back_from is not None]
    highest, drained_ts, resumed = (
        max((number for row in about if (number := getattr(row, name)) is not None), default=None)
        for name in ("highest", "drained_ts", "resumed")
    )
    return Committed(pk, highest, drained_ts, tuple(merged(fell)), resumed)


def _absent(
    writers: Sequence[Writer],
    partitions: Mapping[int, Partition],
    groups: Mapping[GroupName, Group],
    named: Sequence[Named],
    last_commits: Sequence[LastCommit],
) -> dict[int, tuple[GroupName, int]]:
    known = {writer.writer_id for writer in writers}
    found = {each.writer_id: (partitions[each.pk].group, each.last_seq) for each in sorted(named) if each.pk in partitions}
    for each in sorted(last_commits):
        for name in groups:
            if name[1] == each.group:
                found[each.writer_id] = name, max(each.last_seq, found.get(each.writer_id, (name, 0))[1])
    return {writer_id: about for writer_id, about in found.items() if writer_id not in known}


def _by(rows: Sequence[SurveyRow], key: str) -> dict[Any, list[SurveyRow]]:
    found: dict[Any, list[SurveyRow]] = defaultdict(list)
    for row in rows:
        found[getattr(row, key)].append(row)
    return found


def _by_group(rows: Sequence[SurveyRow]) -> dict[GroupName, list[SurveyRow]]:
    found: dict[GroupName, list[SurveyRow]] = defaultdict(list)
    for row in rows:
        found[row.cluster, row.group_id].append(row)
    return found


class _Session(NamedTuple):
    writer_id: int
    group: GroupName
    attrs: Mapping[str, Any]


def _sessions(rows: Sequence[SurveyRow]) -> list[_Session]:
    """Return the attributes of the sessions, oldest first."""
    ordered = sorted(rows, key=lambda row: row.first_ts)
    return [_Session(row.writer_id, (row.cluster, row.group_id), attrs) for row in ordered if (attrs := attributes(row.session))]


def _writers(
    rows: Sequence[SurveyRow],
    given: int | None,
    timeout: int,
    clocks: Clocks,
    sessions: Sequence[_Session],
    logs: Logs,
    named: Sequence[Named],
    last_commits: Sequence[LastCommit],
) -> list[Writer]:
    # A lease is that of `Dedup`; keys without one are those of `Transactional`.
    transactional = {session.writer_id for session in sessions if "namespace" in session.attrs and "lease" not in session.attrs}
    asynchronous = {session.writer_id for session in sessions if session.attrs.get("mode") == "async"}
    marking = {session.writer_id for session in sessions if _has_marks(session, logs)}
    assigned: dict[int, list[SurveyRow]] = defaultdict(list)
    for row in rows:
        if row.assigned_ts is not None and row.writer_id not in clocks.wrong:
            assigned[row.pk].append(row)
    hosts = {
        session.writer_id: f"{session.attrs['host']}:{session.attrs.get('pid', '')}" for session in sessions if "host" in session.attrs
    }
    newest = max((row.last_ts for row in rows if row.writer_id not in clocks.absurd), default=0) if given is None else given
    now = clocks.now if given is None else given
    writers = []
    for writer_id, about in _by(rows, "writer_id").items():
        last_ts, last_seq = max(row.last_ts for row in about), max(row.last_seq for row in about)
        # A writer whose log is still written lives, even if our copy of it ends before others got its partitions.
        latest = last_ts + clocks.late(writer_id)
        is_gone = writer_id not in logs.still_written and _lost_everything(about, latest, assigned)
        is_dead = is_gone or last_ts < newest - timeout or writer_id in clocks.absurd
        has_ended = any(row.ended for row in about)
        is_contested = not (is_gone or has_ended) and is_dead and (latest >= now - timeout or writer_id in clocks.absurd)
        fate = WriterFate.ENDED if has_ended else WriterFate.DEAD if is_dead else WriterFate.LIVE
        told = [each.last_seq for each in named if each.writer_id == writer_id]
        told += [each.last_seq for each in last_commits if each.writer_id == writer_id and fate is not WriterFate.LIVE]
        named_to = max(told, default=None)
        writers.append(
            Writer(
                writer_id=writer_id,
                client=about[0].client or "",
                group=(about[0].cluster, about[0].group_id),
                first_ts=min(row.first_ts for row in about),
                last_ts=last_ts,
                last_seq=last_seq,
                mode="async" if writer_id in asynchronous else "before_settle",
                fate=fate,
                tail_is_unknown=writer_id in logs.unreadable
                or (fate is WriterFate.DEAD and writer_id in asynchronous)
                or is_contested
                or (named_to is not None and named_to > last_seq),
                is_mute=fate is WriterFate.DEAD and writer_id not in transactional,
                has_marks=writer_id in marking,
                named_to=named_to,
                is_contested=is_contested,
                host=hosts.get(writer_id, ""),
            )
        )
    return sorted(writers, key=lambda writer: (writer.group, writer.first_ts, writer.writer_id))


def _has_marks(session: _Session, logs: Logs) -> bool:
    """Return whether the writer marked what it started, and its last log was rolled by the machine that it died on, since when it ran.

    After another start of the machine, what was written last may be lost.
    """
    rolled_on = logs.rolled_on.get(session.writer_id)
    return session.attrs.get("marks") is True and rolled_on is not None and session.attrs.get("boot_id") == rolled_on


def _lost_everything(about: Sequence[SurveyRow], last_ts: int, assigned: Mapping[int, Sequence[SurveyRow]]) -> bool:
    """Whether others were assigned all of a writer's partitions after its last event."""
    owned = [row for row in about if row.assigned_seq is not None and (row.revoked_seq is None or row.assigned_seq > row.revoked_seq)]
    return bool(owned) and all(
        any(other.writer_id != row.writer_id and (other.assigned_ts or 0) > last_ts for other in assigned[row.pk]) for row in owned
    )


def _partition(pk: int, about: Sequence[SurveyRow]) -> Partition:
    first = about[0]
    if len({(row.cluster, row.group_id, row.topic, row.topic_id, row.partition) for row in about}) > 1:
        raise KeyCollision(
            f"two partitions have the key {pk}, one of them is {first.topic}/{first.partition} of {first.group_id}; nothing was concluded: "
            "give fewer folders at once"
        )
    roles = 0
    for row in about:
        roles |= row.roles
    start = min((row.start for row in about if row.start is not None), default=None)
    return Partition(pk, (first.cluster, first.group_id), first.topic, first.topic_id, first.partition, roles, start)


def _view(mk: int, about: Sequence[SurveyRow]) -> View:
    first = about[0]
    if len({(row.pk, row.handler, row.dedup_epoch) for row in about}) > 1:
        raise KeyCollision(
            f"two handlers have the key {mk}, one of them is {first.handler!r} of {first.group_id}; nothing was concluded: "
            "give fewer folders at once"
        )
    return View(mk, first.pk, (first.cluster, first.group_id), first.handler, first.dedup_epoch)


def _group(name: GroupName, first_ts: int, sessions: Sequence[_Session], config: ReconcileConfig) -> Group:
    settings = [session.attrs for session in sessions if session.group == name]
    lease = max((each["lease"] for each in settings if is_duration(each.get("lease"))), default=_LEASE)
    retention = max((each["retention"] for each in settings if is_duration(each.get("retention"))), default=_RETENTION)
    tables = [each["levels"] for each in settings if _is_table(each.get("levels"))]
    levels = config.levels or (tables[-1] if tables else DelayLevels().seconds)
    return Group(
        name,
        first_ts,
        round((lease if config.lease is None else config.lease) * _MICROS),
        round((retention if config.retention is None else config.retention) * _MICROS),
        tuple(round(seconds * _MICROS) for seconds in levels),
        shares=any(each.get("share") is True for each in settings),
    )


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_duration, value))
