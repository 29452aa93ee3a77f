"""The check of a sample: the reference algebra judges some messages again and must agree with the job.

The messages are drawn by a hash, so they are the same each time: half of them from all, half from those that did not simply run
once. Facts about whole partitions and writers are taken from the run; the messages' events are read anew and found by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.events import EventCode
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.attributes import attributes
from ackwise.spark.events.schema import EVENT_TYPES
from ackwise.spark.fold.facts import Committed, Facts
from ackwise.spark.fold.gaps import Blindness
from ackwise.spark.frames import Column, DataFrame, F, Row, SparkSession
from ackwise.spark.judge.context import drained
from ackwise.spark.judge.unreported import Left
from ackwise.spark.reference.oracle import Known, Message, Partition, rule
from ackwise.spark.session.rows import rows_of
from ackwise.spark.vocabulary import Flag, Verdict

__all__ = ["Disagreement", "Sampled", "check_sample"]

#: The columns of an event that identify a message, each with its value for null.
_NAMES: Final = {"cluster": "", "group_id": "", "topic": "", "topic_id": "", "partition": -1, "handler": "", "dedup_epoch": 0}
_WANTED: Final = (
    "cluster string, group_id string, topic string, topic_id string, partition int, handler string, dedup_epoch int, offset long"
)
#: Flags that depend on other messages of the partition, which a sample does not have.
_OF_ORDER: Final = int(Flag.OVERTAKEN | Flag.MAYBE_OVERTAKEN)


class Disagreement(AckwiseError):
    """The job and the plain algebra judge a message differently: a fault in one of them."""


@dataclass(frozen=True)
class Sampled:
    """The judgement to check, see `judging.Judgement`; `events` are in `EVENT_SCHEMA`."""

    facts: Facts
    commits: Mapping[int, Committed]
    blind: Blindness
    taken: Sequence[Left]
    marked: Collection[int]
    judged: DataFrame
    settled: DataFrame
    events: DataFrame


def check_sample(spark: SparkSession, found: Sampled, config: ReconcileConfig) -> int:
    """Judge `config.verify_sample` messages once more, or as many as there are, and return their number. Raises `Disagreement`."""
    messages = _messages(found.facts)
    drawn = {(*messages[row["mk"]], row["offset"]): row for row in _draw(found.settled, config.verify_sample)}
    mates = _mates(spark, found.judged, list(drawn.values()))
    wanted = {*drawn, *((*messages[row["mk"]], row["offset"]) for row in mates)}
    events = [*_sessions(found.facts), *_events_of(spark, found.events, wanted)]
    ruled = rule(events, config, offsets=(), known=_known(found)).messages if drawn else {}
    for message, row in drawn.items():
        once, again = (Verdict(row["verdict"]), Flag(row["flags"] & ~_OF_ORDER)), ruled.get(message)
        if once != again:
            wrong = sum(ruled.get(each) != (row["verdict"], row["flags"] & ~_OF_ORDER) for each, row in drawn.items())
            raise Disagreement(
                f"{_named(message)}: the job says {_in_words(once)}, and the plain algebra {_in_words(again)}, as for {wrong} of "
                f"{len(drawn)} messages that were checked; do not rely on this run, and please report it with the events"
            )
    return len(drawn)


def _draw(settled: DataFrame, number: int) -> list[Row]:
    order = F.xxhash64("mk", "offset")
    columns = ("mk", "offset", "verdict", "flags", "scope", "dedup_hash", F.col("state.suppressed_ts").alias("suppressed_ts"))
    rows = settled.select(*columns).orderBy(order, "mk", "offset").limit(number - number // 2).collect()
    odd = settled.where("state IS NOT NULL").select(*columns).orderBy(order, "mk", "offset").limit(number // 2).collect()
    return [*rows, *odd]


def _mates(spark: SparkSession, judged: DataFrame, drawn: Sequence[Row]) -> list[Row]:
    """Return two messages of each suppressed key, one of which accounts for it if there is one: a key may have millions."""
    keys = {(row["scope"], row["dedup_hash"]) for row in drawn if row["suppressed_ts"] is not None and row["dedup_hash"] is not None}
    if not keys:
        return []
    open_still = F.col("verdict").isin(*map(int, (Verdict.RETRYING, Verdict.IN_FLIGHT, Verdict.PENDING)))
    message = F.struct("mk", "offset")
    suppressed = rows_of(spark, sorted(keys), "scope long, dedup_hash long")
    found = (
        judged.join(F.broadcast(suppressed), ["scope", "dedup_hash"], "left_semi")
        .groupBy("scope", "dedup_hash")
        .agg(F.min(message).alias("any"), F.min(F.when(F.col("is_done") | open_still, message)).alias("done"))
    )
    return [mate for row in found.collect() for mate in (row["any"], row["done"]) if mate is not None]


def _events_of(spark: SparkSession, events: DataFrame, messages: set[Message]) -> list[dict[str, Any]]:
    """Return the events about these messages, found by names and not by the job's numbers."""
    rows = [(*partition, handler, epoch, offset) for partition, handler, epoch, offset in sorted(messages)]
    wanted = F.broadcast(rows_of(spark, rows, _WANTED))
    same = [F.coalesce(events[name], F.lit(nothing)) == wanted[name] for name, nothing in _NAMES.items()]
    about = events.where((F.col("event_type") < int(EventCode.COMMITTED)) & F.col("writer_id").isNotNull() & F.col("seq").isNotNull())
    found = about.join(wanted, [*same, events["offset"] == wanted["offset"]], "left_semi")
    return [row.asDict() for row in found.select(*map(_plain, EVENT_TYPES)).distinct().collect()]


def _plain(name: str) -> Column:
    return F.unix_micros(name).alias(name) if name in ("event_ts", "record_ts", "due_ts") else F.col(name)


def _sessions(facts: Facts) -> list[dict[str, Any]]:
    """Return the sessions as events."""
    same = {"seq": -1, "event_type": int(EventCode.SESSION_START)}
    with_session = [row for row in facts.rows if attributes(row.session)]
    return [
        {
            **same,
            "writer_id": row.writer_id,
            "event_ts": row.first_ts,
            "cluster": row.cluster,
            "group_id": row.group_id,
            "attrs": row.session,
        }
        for row in with_session
    ]


def _messages(facts: Facts) -> dict[int, tuple[Partition, str, int]]:
    places = _places(facts)
    return {view.mk: (places[view.pk], view.handler, view.dedup_epoch) for view in facts.views}


def _places(facts: Facts) -> dict[int, Partition]:
    return {pk: (*each.group, each.topic, each.topic_id, each.partition) for pk, each in facts.partitions.items()}


def _known(found: Sampled) -> Known:
    facts, places = found.facts, _places(found.facts)
    commits = {place: found.commits.get(pk) for pk, place in places.items()}
    return Known(
        as_of=facts.as_of,
        live=facts.live_writers,
        began={name: group.first_ts for name, group in facts.groups.items()},
        commits={place: commit and commit.highest for place, commit in commits.items()},
        resumed={place: commit and commit.resumed for place, commit in commits.items()},
        rewound={place: commit.rewound if commit else () for place, commit in commits.items()},
        unsettled={places[pk]: spans for pk, spans in found.blind.unsettled.items()},
        drained=dict.fromkeys(facts.groups, 0) | drained(facts, found.commits),
        blind=found.blind.groups,
        mute={writer: {places[pk]: offset for pk, offset in passed.items()} for writer, passed in facts.mute.items()},
        left=_left(found, places),
        marked=found.marked,
    )


def _left(found: Sampled, places: Mapping[int, Partition]) -> dict[Partition, list[tuple[int, str, int, int]]]:
    left: dict[Partition, list[tuple[int, str, int, int]]] = defaultdict(list)
    for writer, pk, handler, start, end in found.taken:
        left[places[pk]].append((writer, handler, start, end))
    return left


def _named(message: Message) -> str:
    (_, group, topic, _, partition), handler, _, offset = message
    return f"{topic}/{partition}/{offset} of group {group}" + (f", agent {handler}" if handler else "")


def _in_words(ruling: tuple[Verdict, Flag] | None) -> str:
    if ruling is None:
        return "nothing"
    verdict, flags = ruling
    return " + ".join([verdict.name, *(flag.name or "" for flag in flags)])
