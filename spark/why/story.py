"""The story of one message: each step with its time and worker, the verdict and the action to take. Plain Python."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ackwise.middleware.events import EventCode as E
from ackwise.spark.advice import advice_on, said
from ackwise.spark.events.attributes import attributes, whole_number
from ackwise.spark.reference.oracle import Event, Message, Partition, Ruling, message_of
from ackwise.spark.vocabulary import ANOMALIES, INCONCLUSIVE, MEANINGS, RED, ExitCode, Flag, LogicalVerdict, Verdict
from ackwise.spark.why.place import Place
from ackwise.spark.why.reasons import GAP_RULE, LOGICAL_RULES, rule_of

__all__ = ["OtherRecord", "Step", "Story", "Workers", "stories", "stories_of_offset"]

_SECOND: Final = 1_000_000
_OWNERSHIP: Final = (E.ASSIGNED.name, E.REVOKED.name)
_OPEN: Final = (E.RECEIVED, E.STARTED, E.CLAIMED, E.FAILED, E.IN_FLIGHT_ELSEWHERE, E.CLAIM_LOST, E.RELEASED)


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One thing that happened."""

    at: int
    """Microseconds, by the clock of the worker."""
    writer: int
    seq: int
    worker: str
    attempt: int | None
    event: str
    what: str


@dataclass(frozen=True, slots=True)
class OtherRecord:
    """Another record of the same key, and what became of it."""

    place: Place
    verdict: Verdict
    flags: Flag
    last_at: int
    last_event: str


@dataclass(frozen=True, slots=True)
class Story:
    """The story of one message: a record as one handler of one group sees it, in one dedup epoch."""

    cluster: str
    group: str
    handler: str
    epoch: int
    topic_id: str
    place: Place
    verdict: Verdict | None
    """`None`: the log is empty there."""
    flags: Flag
    logical: LogicalVerdict | None
    steps: Sequence[Step]
    others: Sequence[OtherRecord] = field(default=())
    dedup_hash: int | None = None
    overtaken_by: int | None = None
    """The offset of the later message of its key or partition that overtook it, or may have."""

    @property
    def name(self) -> str:
        """The name of the verdict."""
        return "GAP" if self.verdict is None else self.verdict.name

    @property
    def meaning(self) -> str:
        """The meaning of the verdict, in a few words."""
        return "no message" if self.verdict is None else MEANINGS[self.verdict]

    @property
    def rule(self) -> str:
        """The reason for the verdict."""
        if self.verdict is None:
            return GAP_RULE
        both = [rule_of(self.verdict), *([LOGICAL_RULES[self.logical]] if self.logical is LogicalVerdict.LOGICAL_DUPLICATE else [])]
        return "; and ".join(both)

    @property
    def advice(self) -> list[str]:
        """The actions to take, a sentence each."""
        found = [] if self.verdict is None else advice_on(self.verdict, self.flags)
        if self.logical is LogicalVerdict.LOGICAL_DUPLICATE:
            found.append(said("MULTI_EXECUTED", 1))
        return found

    @property
    def exit_code(self) -> ExitCode:
        """The exit code, as `reconcile` would give it."""
        if self.verdict in ANOMALIES or self.flags & RED or self.logical is LogicalVerdict.LOGICAL_DUPLICATE:
            return ExitCode.ANOMALIES
        return ExitCode.INCONCLUSIVE if self.verdict in INCONCLUSIVE else ExitCode.CLEAN


class Workers:
    """The names of the writers, and which of them vanished."""

    def __init__(self, events: Iterable[Event], still_written: Collection[int], silence: int) -> None:
        self._still_written = still_written
        self._silence = silence
        self._names: dict[int, str] = {}
        self._last: dict[int, Event] = {}
        self._ended: set[int] = set()
        for event in events:
            writer = event["writer_id"]
            self._names.setdefault(writer, event.get("client") or "")
            if event["event_type"] == E.SESSION_START:
                self._names[writer] = _named(event)
            if event["event_type"] == E.SESSION_END:
                self._ended.add(writer)
            if writer not in self._last or self._last[writer]["seq"] < event["seq"]:
                self._last[writer] = event
        self._now = max((event["event_ts"] for event in self._last.values()), default=0)

    def name(self, writer: int) -> str:
        """Return host and process, if the session has them, and enough of the writer's number to find its files."""
        return f"{self._names.get(writer, '')} {writer & (2**64 - 1):016x}"[:-8].strip()

    def vanished(self, writer: int, successors: Iterable[Event]) -> Event | None:
        """Return its last event if it vanished: it closed no log, and is silent for too long or `successors` have its partition."""
        last = self._last.get(writer)
        if last is None or writer in self._ended:
            return None
        is_silent = last["event_ts"] < self._now - self._silence
        is_replaced = writer not in self._still_written and any(
            event["writer_id"] != writer and event["event_ts"] > last["event_ts"] for event in successors
        )
        return last if is_silent or is_replaced else None


def stories(
    asked: Collection[Message], messages: Sequence[Event], around: Sequence[Event], ruling: Ruling, workers: Workers
) -> list[Story]:
    """Return the stories of the `asked` messages, by their first events. `messages` has their events and those of their keys."""
    about: dict[Message, list[Event]] = {}
    for event in {(event["writer_id"], event["seq"]): event for event in messages}.values():
        about.setdefault(message_of(event), []).append(event)
    first = {message: min(event["event_ts"] for event in events) for message, events in about.items()}
    return [_story(message, about, around, ruling, workers) for message in sorted(asked, key=lambda m: first[m])]


def stories_of_offset(place: Place, shown: Collection[Message], around: Sequence[Event], ruling: Ruling, workers: Workers) -> list[Story]:
    """Return the stories of an offset for groups that read its partition but have no event about a message there."""
    found: list[Story] = []
    here = [event for event in around if (event.get("topic"), event.get("partition")) == place[:2] and event["event_type"] >= E.COMMITTED]
    for partition in sorted({_partition_of(event) for event in here} - {partition for partition, *_ in shown}):
        cluster, group, _, topic_id, _ = partition
        name = ruling.absent.get(partition, {}).get(place.offset)
        mine = [event for event in here if _partition_of(event) == partition]
        if name is None and any(event["event_type"] == E.RECEIVED_RANGE and _covers(event, place.offset) for event in mine):
            name = Verdict.PENDING.name
        if name is not None:
            steps = _while_it_lasted({*_steps_of_partition(place, mine, workers, None)})
            verdict = None if name == "GAP" else Verdict[name]
            found.append(Story(cluster, group, "", 0, topic_id, place, verdict, Flag(0), None, steps))
    return found


def _story(message: Message, about: Mapping[Message, list[Event]], around: Sequence[Event], ruling: Ruling, workers: Workers) -> Story:
    partition, handler, epoch, offset = message
    cluster, group, topic, topic_id, number = partition
    mine, place = about[message], Place(topic, number, offset)
    dedup_hash = _hash(mine)
    logical = ruling.logical.get(((cluster, group, handler, epoch), dedup_hash)) if dedup_hash is not None else None
    verdict, flags = ruling.messages[message]
    mates = [
        m for m in about if m != message and m[0][:2] == partition[:2] and m[1] == handler and _hash(about[m]) == dedup_hash is not None
    ]
    others = sorted((_record(mate, about[mate], ruling) for mate in mates), key=lambda record: (record.last_at, record.place))
    steps = _while_it_lasted({*_steps_of_message(mine, workers), *_steps_around(place, mine, around, workers)})
    return Story(
        *(cluster, group, handler, epoch, topic_id, place, verdict, flags),
        logical and logical[0], steps, others, dedup_hash, ruling.overtaken.get(message),
    )  # fmt: skip


def _record(message: Message, events: Sequence[Event], ruling: Ruling) -> OtherRecord:
    (_, _, topic, _, number), _, _, offset = message
    last = max(events, key=lambda event: (event["event_ts"], event["writer_id"], event["seq"]))
    return OtherRecord(Place(topic, number, offset), *ruling.messages[message], last["event_ts"], E(last["event_type"]).name)


def _steps_of_message(mine: Sequence[Event], workers: Workers) -> Iterator[Step]:
    in_order = sorted(mine, key=lambda event: (event["event_ts"], event["writer_id"], event["seq"]))
    runs = {
        exec_id: f"run {n}" for n, exec_id in enumerate(dict.fromkeys(e["exec_id"] for e in in_order if e.get("exec_id") is not None), 1)
    }
    for event in in_order:
        run = runs.get(event.get("exec_id"), "a run")
        yield _step(event, workers, _in_words(event, run), max(event.get("attempt") or 1, 1))


def _steps_around(place: Place, mine: Sequence[Event], around: Sequence[Event], workers: Workers) -> Iterator[Step]:
    """Yield the steps of the partitions that it and its copies were read from, and of the workers that had it."""
    group = _group_of(mine[0])
    same = [event for event in around if _group_of(event) == group and event["event_type"] >= E.COMMITTED]
    read_at = dict.fromkeys([(place, 1)] + [(_read_at(event), max(event.get("attempt") or 1, 1)) for event in mine if _is_copy(event)])
    for where, attempt in read_at:
        yield from _steps_of_partition(where, [event for event in same if _is_at(event, where)], workers, attempt)
    owned = [event for event in same if event["event_type"] == E.ASSIGNED and any(_is_at(event, where) for where, _ in read_at)]
    for writer in _left_open(mine):
        if (last := workers.vanished(writer, owned)) is not None:
            yield Step(
                last["event_ts"],
                writer,
                last["seq"] + 1,
                workers.name(writer),
                None,
                "",
                "its last event: it vanished without closing its log",
            )


def _while_it_lasted(steps: Collection[Step]) -> list[Step]:
    """Return the steps in order; of assignments only those from the last one before it began until it ended."""
    others = [step for step in steps if step.event not in _OWNERSHIP]
    first, last = min((step.at for step in others), default=0), max((step.at for step in others), default=0)
    begin = max((step.at for step in steps if step.event == E.ASSIGNED.name and step.at <= first), default=first)
    return sorted(step for step in steps if step.event not in _OWNERSHIP or begin <= step.at <= last)


def _left_open(mine: Sequence[Event]) -> set[int]:
    """Return the writers whose last event about the message is not an outcome."""
    last: dict[int, Event] = {}
    for event in sorted(mine, key=lambda event: int(event["seq"])):
        last[event["writer_id"]] = event
    return {writer for writer, event in last.items() if event["event_type"] in _OPEN}


def _steps_of_partition(where: Place, here: Sequence[Event], workers: Workers, attempt: int | None) -> Iterator[Step]:
    passed = [event for event in here if event["event_type"] == E.COMMITTED and (event.get("range_end") or 0) > where.offset]
    for event in sorted(passed, key=lambda event: (event["event_ts"], event["writer_id"], event["seq"]))[:1]:
        yield _step(event, workers, f"committed {_named_partition(where)} to {event['range_end']}, which passes {where.offset}")
    for event in here:
        match event["event_type"]:
            case E.RECEIVED_RANGE if _covers(event, where.offset):
                yield _step(event, workers, f"fetched from {_named_partition(where)}, among offsets {_offsets(event)}", attempt)
            case E.MARKED if _covers(event, where.offset):
                yield _step(
                    event, workers, f"was about to start what it had fetched of {_named_partition(where)}, offsets {_offsets(event)}"
                )
            case E.GAP if _covers(event, where.offset):
                yield _step(event, workers, f"found nothing in {_named_partition(where)} at offsets {_offsets(event)}")
            case E.SEEK if _covers(event, where.offset):
                reason = _attributes(event).get("reason")
                yield _step(event, workers, f"jumped over offsets {_offsets(event)}{f': {reason}' if reason else ''}")
            case E.TX_SETTLED if _covers(event, where.offset):
                yield _step(event, workers, f"found offsets {_offsets(event)} settled by the database")
            case E.ACCEPT_REFUSED if _covers(event, where.offset):
                yield _step(event, workers, f"accepted offsets {_offsets(event)} too late, the share group delivers them again")
            case E.ASSIGNED:
                begun = "" if event.get("offset") is None else f", starts at {event['offset']}"
                yield _step(event, workers, f"was assigned {_named_partition(where)}{begun}")
            case E.REVOKED:
                yield _step(event, workers, f"gave up {_named_partition(where)}")
            case _:
                pass


def _step(event: Event, workers: Workers, what: str, attempt: int | None = None) -> Step:
    writer = event["writer_id"]
    return Step(event["event_ts"], writer, event["seq"], workers.name(writer), attempt, E(event["event_type"]).name, what)


def _in_words(event: Event, run: str) -> str:
    error, took = event.get("error"), _took(event)
    copy = f" (copy {_read_at(event)})" if _is_copy(event) else ""
    match E(event["event_type"]):
        case E.RECEIVED:
            what = "fetched"
        case E.STARTED:
            what = f"{run} started without a claim"
        case E.CLAIMED:
            lost = f", after {event['lost']} lost {'claim' if event['lost'] == 1 else 'claims'}" if event.get("lost") else ""
            what = f"claimed for {run}{', taken over from a worker that never gave it back' if event.get('took_unreleased') else ''}{lost}"
        case E.SUCCEEDED:
            what = f"{run} succeeded{took}"
        case E.FAILED:
            what = f"{run} failed{took}{f': {error}' if error else ''}{_in_place(event)}"
        case E.SENT_BACK:
            what = f"sent back{_due(event)}"
        case E.DEAD_LETTERED:
            what = f"dead letter{_again(_attributes(event))}{f': {error}' if error else ''}"
        case E.DROPPED:
            what = f"dropped{f': {error}' if error else ''}"
        case E.DUP_SUPPRESSED:
            what = _suppressed(_attributes(event))
        case E.IN_FLIGHT_ELSEWHERE:
            what = "not run: another worker has its key claimed"
        case E.SKIPPED:
            what = "skipped on purpose"
        case E.CLAIM_LOST:
            what = f"{run} lost its claim to another worker"
        case E.RELEASED:
            what = f"{run} was called off, or decided nothing; its claim was given back"
        case E.REDELIVERED:
            what = _sent_again(_attributes(event))
        case E.CANCELLED:
            what = "dropped when it was due: it was cancelled"
        case E.STALE:
            what = "dropped: a later copy of it is on its way"
        case E.LATE_SUCCESS:
            what = f"{run} succeeded, after its consume timeout"
        case other:
            what = other.name
    return what + copy


def _suppressed(attrs: dict[str, Any]) -> str:
    if attrs.get("outcome") == "dead":
        return "not run: its key is that of a dead letter; ackwise dlq redrive sends that letter again"
    if "writer" in attrs:
        whose = f"was done with {attrs['leader']}, whose worker" if attrs.get("leader") is not None else "was done, and that its worker"
        return f"not run: the store says that its key {whose} could not record it"
    return "not run: the store says that its key was done"


def _sent_again(attrs: dict[str, Any]) -> str:
    if "redrive" not in attrs:
        return "sent again by a repair plan"
    return f"sent again as {attrs['redrive']} by ackwise dlq redrive, from its letter {attrs.get('letter', '')}"


def _again(attrs: dict[str, Any]) -> str:
    return f" again, of {attrs['redrive']}" if "redrive" in attrs else ""


def _took(event: Event) -> str:
    micros = event.get("duration_us")
    return "" if micros is None else f" after {micros / _SECOND:.3f} s"


def _in_place(event: Event) -> str:
    """The attempt that it waits for, if it stays where it is instead of being sent back."""
    said = _attributes(event)
    times, due = whole_number(said.get("in_place")), whole_number(said.get("due"))
    if times is None:
        return ""
    return f"; attempt {max(event.get('attempt') or 1, 1) + times} in place{'' if due is None else _until(event, due * 1000)}"


def _until(event: Event, due: int) -> str:
    return f", due {max(0, due - event['event_ts']) / _SECOND:.1f} s later at {_clock(due)}"


def _due(event: Event) -> str:
    level = f" with level {event['level']}" if event.get("level") is not None else ""
    if event.get("due_ts") is None:
        return level
    return f"{level}{_until(event, event['due_ts'])}"


def _clock(micros: int) -> str:
    seconds, rest = divmod(micros, _SECOND)
    return f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest // 1000:03}"


def _named(session: Event) -> str:
    facts = _attributes(session)
    host, pid = facts.get("host"), facts.get("pid")
    return f"{host}:{pid}" if host else session.get("client") or ""


def _is_copy(event: Event) -> bool:
    """Whether it was read elsewhere than at its origin; the offset of a copy that was only sent is unknown."""
    return event.get("phys_offset") is not None


def _read_at(event: Event) -> Place:
    return Place(event["phys_topic"], event["phys_partition"], event["phys_offset"])


def _is_at(event: Event, where: Place) -> bool:
    return (event.get("topic"), event.get("partition")) == where[:2]


def _covers(event: Event, offset: int) -> bool:
    first, after = event.get("offset"), event.get("range_end")
    return first is not None and after is not None and first <= offset < after


def _offsets(event: Event) -> str:
    first, last = event["offset"], event["range_end"] - 1
    return str(first) if first == last else f"{first}–{last}"


def _named_partition(where: Place) -> str:
    return f"{where.topic}/{where.partition}"


def _partition_of(event: Event) -> Partition:
    return *_group_of(event), event["topic"], event.get("topic_id") or "", event["partition"]


def _group_of(event: Event) -> tuple[str, str]:
    return event.get("cluster") or "", event.get("group_id") or ""


def _hash(events: Iterable[Event]) -> int | None:
    return max((event["dedup_hash"] for event in events if event.get("dedup_hash") is not None), default=None)


def _attributes(event: Event) -> dict[str, Any]:
    return attributes(event.get("attrs"))
