"""The answer about a record: found by its coordinates, by those of a copy, or by its key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.keys import Identity, business_id, message_id
from ackwise.middleware.progress.commitmetadata import LastCommit
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.attributes import attributes
from ackwise.spark.events.sources import Evidence
from ackwise.spark.instants import as_datetime
from ackwise.spark.reference.oracle import Event, Message, message_of, rule
from ackwise.spark.vocabulary import ExitCode
from ackwise.spark.why.events import EventFiles, Excerpt
from ackwise.spark.why.place import Place, place_of
from ackwise.spark.why.sent import SentMessage, acknowledged_at, sent_messages
from ackwise.spark.why.story import Story, Workers, stories, stories_of_offset

__all__ = ["Answer", "NoSuchRecord", "inquire"]

#: The default of `Dedup`.
_NAMESPACE: Final = "ackwise"
#: A key that very many records share is no key; more of them are not looked at.
_MOST_RECORDS: Final = 200
#: Later messages of its partition that are looked at, the first to begin.
_MOST_LATER: Final = 1000
_STARTS: Final = (EventCode.CLAIMED, EventCode.STARTED)
#: Stories in one answer; the rest is among the other records of the key.
_MOST_STORIES: Final = 10
_NAMED: Final = 5  # topics, groups, missing stretches in a sentence
_DONE: Final = frozenset({EventCode.SUCCEEDED, EventCode.LATE_SUCCESS, EventCode.DEAD_LETTERED, EventCode.DROPPED, EventCode.SKIPPED})

Progress = Callable[[str], None]


class NoSuchRecord(AckwiseError):
    """No event is about the record that was asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer about one record."""

    asked: str
    as_of: int
    """Microseconds."""
    stories: Sequence[Story]
    found: Sequence[str]
    """The path from the question to these records, and the assumptions: a sentence each."""
    missing: Sequence[str]
    """The missing events, a sentence each."""
    sent: Sequence[SentMessage] = ()
    """What the producer side says of it."""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the worst story: an anomaly comes before an unknown."""
        codes = {story.exit_code for story in self.stories} | {message.exit_code for message in self.sent}
        return next((code for code in (ExitCode.ANOMALIES, ExitCode.INCONCLUSIVE) if code in codes), ExitCode.CLEAN)


def inquire(
    asked: str,
    evidence: Evidence,
    config: ReconcileConfig,
    *,
    namespace: str | None = None,
    last_commits: Sequence[LastCommit] = (),
    progress: Progress = lambda step: None,
) -> Answer:
    """Answer for `asked`: `topic/partition/offset`, a key, or the message id of a producer.

    `namespace` is that of `Dedup`; without it that of the sessions. `last_commits` are those that the brokers keep. Raises
    `NoSuchRecord`, whose message names what there is instead, and what pyarrow raises for an unreadable file.
    """
    files = EventFiles(evidence.files, evidence.disputed)
    place, found = place_of(asked), list[str]()
    origins = [] if place is None else _of_place(files, place, found, progress)
    sent = [] if place is None else files.sent_to([place, *_places(origins)])
    if not (origins or sent):
        progress("looking for it as a key")
        origins, tried = _of_key(files, asked, namespace, found)
        if sent := files.sent_as([asked]):
            found.append(_as_message_id(asked, sent))
            origins += files.at(acknowledged_at(sent))
        if not (origins or sent) and place is not None:
            progress("reading what is around that offset")
            return _of_nothing(files, place, evidence, config, last_commits)
        if not (origins or sent):
            raise NoSuchRecord(tried)
    sent = files.sent_as({event["dedup_key"] for event in (*sent, *files.sent_to(_places(origins)))})
    wanted = {message_of(event) for event in origins}
    progress("looking for other records of its key")
    messages = _with_mates(files, origins, wanted, found)
    progress("reading who had its partition, and what was committed")
    read_at = {
        Place(e["phys_topic"], e["phys_partition"], e["phys_offset"])
        for e in messages
        if message_of(e) in wanted and e["phys_offset"] is not None
    }
    asked_at = _places(origins) | acknowledged_at(sent)
    around = files.around(_places(messages) | read_at | asked_at, _open_since(messages))
    later = _begun_before_it_was_done(files, messages, wanted, around, found)
    ruling = rule(
        around.renumbered([*messages, *later, *sent]),
        config,
        evidence.logs.unreadable,
        still_written=evidence.logs.still_written,
        offsets={each.offset for each in asked_at},
        last_commits=around.ahead(last_commits),
        rolled_on=evidence.logs.rolled_on,
    )
    workers = _workers(around, [*messages, *sent], evidence, config)
    found_stories = stories(_first(wanted, messages, found), messages, around.events, ruling, workers)
    if place is not None or sent:
        found_stories += (
            story for origin in sorted(asked_at) for story in stories_of_offset(origin, wanted, around.events, ruling, workers)
        )
    return Answer(asked, ruling.as_of, found_stories, found, _missing(around, evidence, last_commits), sent_messages(sent, ruling, workers))


def _as_message_id(asked: str, sent: Iterable[Event]) -> str:
    """Return a sentence on where the message with this id was sent."""
    where = _some(sorted(acknowledged_at(sent)))
    return f"{asked!r} is a message id of the producer side, {f'sent to {where}' if where else 'and no event says where it was sent'}"


def _of_place(files: EventFiles, place: Place, found: list[str], progress: Progress) -> list[Event]:
    """Return the events of the record at this place, or of the origin of a copy there."""
    progress("looking for it by its coordinates")
    if events := files.at([place]):
        return events
    copies = files.copies_at(place)
    origins = sorted({_origin(event) for event in copies})
    if origins:
        attempts = ", ".join(str(attempt) for attempt in sorted({max(event["attempt"] or 1, 1) for event in copies}))
        found.append(f"{place} is where a copy of {', '.join(map(str, origins))} was read, as attempt {attempts}")
    return files.at(origins)


def _of_key(files: EventFiles, key: str, namespace: str | None, found: list[str]) -> tuple[list[Event], str]:
    """Return the events of all records of this key, and a sentence on where it was looked for."""
    namespaces: dict[tuple[str, str], set[str]] = defaultdict(set)
    for session in files.sessions():
        if name := attributes(session["attrs"]).get("namespace"):
            namespaces[session["cluster"] or "", session["group_id"] or ""].add(str(name))
    handlers, topics = files.names
    kinds = _meanings(key, topics)
    meant: dict[int, str] = {}
    for cluster, group, handler in sorted(handlers):
        known = {namespace} if namespace is not None else namespaces[cluster, group]
        for name in known or {_NAMESPACE}:
            how = f"in the namespace {name}" + ("" if known else ", which is assumed, since no session names one; else give --namespace")
            for kind, dedup_id in kinds.items():
                hashed = Identity(name, group, handler).of(dedup_id)[1]
                meant[hashed] = f"{key!r} is {kind} of records of handler {handler!r} in group {group!r}, {how}"
    events = [event for event in files.at(files.of_keys(meant)) if event["dedup_hash"] in meant]
    found += sorted({meant[event["dedup_hash"]] for event in events})
    looked = _some(f"{handler} in {group}" for _, group, handler in sorted(handlers)) or "no handler at all"
    names = (
        _some({name for each in namespaces.values() for name in each} if namespace is None else {namespace}) or f"{_NAMESPACE} (assumed)"
    )
    return events, (
        f"no event is about a record with the key {key!r}, as handlers would make it ({looked}; namespace {names}); "
        "give topic/partition/offset, or --namespace as Dedup has it"
    )


def _meanings(key: str, topics: Collection[str]) -> dict[str, bytes]:
    """Return the possible meanings of a key, each with its dedup id."""
    header = key.encode("utf-8", "surrogatepass")
    on_topics = {f"the message id on topic {topic}": message_id(topic, header) for topic in sorted(topics)}
    return {"the business key": business_id(key), **_plain_keys(key), **on_topics}


def _plain_keys(key: str) -> dict[str, bytes]:
    """The keys of other types that a text may stand for."""
    found: dict[str, bytes] = {}
    for name, read in (("number", int), ("UUID", UUID)):
        with suppress(ValueError):
            found[f"the business key, as a {name},"] = business_id(read(key))
    return found


def _with_mates(files: EventFiles, origins: Sequence[Event], wanted: Collection[Message], found: list[str]) -> list[Event]:
    """Return all events of these messages, and of the records of the same keys."""
    mates = files.of_keys({event["dedup_hash"] for event in origins if event["dedup_hash"] is not None})
    places = _places(origins)
    others = mates.keys() - places
    if len(others) > _MOST_RECORDS:
        # What was done decides about the others, so it comes first.
        others = set(sorted(others, key=lambda place: (not mates[place] & _DONE, place))[:_MOST_RECORDS])
        found.append(f"the key has {len(mates):,} records, and only {_MOST_RECORDS} others were looked at")
    return files.at(places | others)


def _of_nothing(files: EventFiles, place: Place, evidence: Evidence, config: ReconcileConfig, last_commits: Sequence[LastCommit]) -> Answer:
    """The answer for an offset that no message event is about."""
    around = files.around([place], None)
    ruling = rule(
        around.renumbered(()),
        config,
        evidence.logs.unreadable,
        still_written=evidence.logs.still_written,
        offsets=[place.offset],
        last_commits=around.ahead(last_commits),
        rolled_on=evidence.logs.rolled_on,
    )
    found_stories = stories_of_offset(place, (), around.events, ruling, _workers(around, (), evidence, config))
    if not found_stories:
        raise NoSuchRecord(_nothing(files, place, around, evidence))
    return Answer(
        str(place), ruling.as_of, found_stories, ["no event is about a message at this offset"], _missing(around, evidence, last_commits)
    )


def _nothing(files: EventFiles, place: Place, around: Excerpt, evidence: Evidence) -> str:
    """Return a sentence on what is near `place`, where no record is."""
    times = [event["event_ts"] for event in around.events]
    covered = f"the events reach from {_time(min(times))} to {_time(max(times))}"
    partitions = files.partitions()
    here = partitions.get(place[:2])
    if here is not None:
        lower, higher = files.nearest(place)
        near = " and ".join(str(offset) for offset in (lower, higher) if offset is not None)
        instead = f"the nearest offsets of {place.topic}/{place.partition} are {near}, of {here[0]} to {here[1] - 1}"
    elif numbers := sorted(number for topic, number in partitions if topic == place.topic):
        instead = f"of {place.topic} they have partitions {_some(numbers)}"
    else:
        instead = f"they have the topics {_some(sorted({topic for topic, _ in partitions})) or 'of no message at all'}"
    gone = _missing(around, evidence, ())
    return f"no event is about {place}, and it is no key: {covered}, and {instead}" + (f"; besides, {gone[0]}" if gone else "")


def _first(wanted: Collection[Message], messages: Sequence[Event], found: list[str]) -> list[Message]:
    """Return the messages whose stories are shown."""
    if len(wanted) > _MOST_STORIES:
        found.append(f"{len(wanted):,} messages were found; the last {_MOST_STORIES} are shown in full")
    last = _last(messages)
    return sorted(wanted, key=lambda message: last[message])[-_MOST_STORIES:]


def _begun_before_it_was_done(
    files: EventFiles, messages: Sequence[Event], wanted: Collection[Message], around: Excerpt, found: list[str]
) -> list[Event]:
    """Return the events of later messages that may have overtaken one of `wanted`, whose handler has an order."""
    said = [attributes(event["attrs"]).get("order") for event in around.events if event["event_type"] == EventCode.SESSION_START]
    ordered = {name for table in said if isinstance(table, dict) for name, order in table.items() if order in ("key", "partition")}
    starts: dict[Place, int] = {}
    for message in wanted:
        mine = [event for event in messages if message_of(event) == message]
        if message[1] not in ordered or not any(event["event_type"] in _STARTS for event in mine):
            continue
        last: dict[int, int] = {}
        for event in mine:
            last[event["writer_id"]] = max(event["seq"], last.get(event["writer_id"], 0))
        until = max(event["event_ts"] for event in mine)
        for event in files.begun_behind(Place(message[0][2], message[0][4], message[3]), message[1], until, last):
            place = _origin(event)
            starts[place] = min(event["event_ts"], starts.get(place, event["event_ts"]))
    first = sorted(starts.keys() - _places(messages), key=lambda place: (starts[place], place))
    if len(first) > _MOST_LATER:
        found.append(f"{len(first):,} later messages started before it was done; only the first {_MOST_LATER:,} were compared with it")
    return files.at(first[:_MOST_LATER]) if first else []


def _missing(around: Excerpt, evidence: Evidence, last_commits: Sequence[LastCommit]) -> list[str]:
    stretches = [
        f"{first} to {after - 1} of worker {writer & (2**64 - 1):016x}"
        for writer, holes in sorted(around.holes.items())
        for first, after in holes
    ]
    sentences = list(evidence.unreadable)
    for group, writer, last in around.ahead(last_commits):
        there = f"the last one here is {around.written[writer]}" if writer in around.written else "none of its events is here"
        sentences.append(f"a commit of {group} names event {last} of worker {writer & (2**64 - 1):016x}, and {there}")
    if stretches:
        sentences.append(f"events are missing: {_some(stretches)}")
    if evidence.foreign:
        sentences.append(
            f"{len(evidence.foreign)} Parquet files, such as {evidence.foreign[0]}, are not named as events are and were not read"
        )
    return sentences


def _workers(around: Excerpt, messages: Iterable[Event], evidence: Evidence, config: ReconcileConfig) -> Workers:
    return Workers((*around.events, *messages), evidence.logs.still_written, round(config.writer_timeout * 1e6))


def _places(events: Iterable[Event]) -> set[Place]:
    return {_origin(event) for event in events}


def _origin(event: Event) -> Place:
    return Place(event["topic"], event["partition"], event["offset"])


def _open_since(messages: Iterable[Event]) -> int | None:
    """Return the first of the last events of open messages: what delay and retry topics show later may prove them lost."""
    messages = list(messages)
    settled = {message_of(event) for event in messages if event["event_type"] in _DONE}
    return min((at for message, at in _last(messages).items() if message not in settled), default=None)


def _last(messages: Iterable[Event]) -> dict[Message, int]:
    last: dict[Message, int] = {}
    for event in messages:
        message = message_of(event)
        last[message] = max(last.get(message, event["event_ts"]), event["event_ts"])
    return last


def _some(names: Iterable[object]) -> str:
    each = [str(name) for name in names]
    more = [f"{len(each) - _NAMED:,} more"] if len(each) > _NAMED else []
    return ", ".join([*each[:_NAMED], *more])


def _time(micros: int) -> str:
    return f"{as_datetime(micros):%Y-%m-%d %H:%M:%S} UTC"
