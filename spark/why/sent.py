"""The life of a message before it is consumed: stored in an outbox, sent, parked. Plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ackwise.middleware.events import EventCode as E
from ackwise.spark.advice import said
from ackwise.spark.events.attributes import attributes
from ackwise.spark.reference.oracle import Event, Ruling
from ackwise.spark.vocabulary import PRODUCED_MEANINGS, ExitCode, ProducedVerdict
from ackwise.spark.why.place import Place
from ackwise.spark.why.story import Step, Workers

__all__ = ["SentMessage", "acknowledged_at", "sent_messages"]


@dataclass(frozen=True, slots=True)
class SentMessage:
    """What the producer side says of one message id."""

    cluster: str
    message_id: str
    topic: str
    places: Sequence[Place]
    """The records that the broker acknowledged; more than one if it was sent again."""
    verdict: ProducedVerdict | None
    """None: it is sent, or under way."""
    is_sent: bool
    steps: Sequence[Step]

    @property
    def state(self) -> str:
        """The verdict, or where it is without one."""
        return self.verdict.name if self.verdict is not None else "SENT" if self.is_sent else "UNDER_WAY"

    @property
    def meaning(self) -> str:
        """The meaning of the state, in a few words."""
        if self.verdict is not None:
            return PRODUCED_MEANINGS[self.verdict]
        if not self.is_sent:
            return "not sent, and nothing is late"
        again = f", {len(self.places)} times under one id" if len(self.places) > 1 else ""
        return f"acknowledged by the broker{again}"

    @property
    def advice(self) -> list[str]:
        """The actions to take, a sentence each."""
        return [] if self.verdict is None else [said(self.verdict.name, 1)]

    @property
    def exit_code(self) -> ExitCode:
        """The exit code, as `reconcile` would give it."""
        if self.verdict is ProducedVerdict.NOT_PUBLISHED:
            return ExitCode.ANOMALIES
        return ExitCode.INCONCLUSIVE if self.verdict is ProducedVerdict.PUBLISH_UNKNOWN else ExitCode.CLEAN


def acknowledged_at(sent: Iterable[Event]) -> set[Place]:
    """Return the places of the records that the broker acknowledged."""
    return {place for event in sent if (place := _place(event)) is not None}


def sent_messages(sent: Iterable[Event], ruling: Ruling, workers: Workers) -> list[SentMessage]:
    """Return what the events of the producer side say, by cluster and message id, in the order of their first events."""
    about: dict[tuple[str, str], list[Event]] = {}
    each = {(event["writer_id"], event["seq"]): event for event in sent}.values()
    for event in sorted(each, key=lambda event: (event["event_ts"], event["writer_id"], event["seq"])):
        about.setdefault((event.get("cluster") or "", event["dedup_key"]), []).append(event)
    return [
        SentMessage(
            *name,
            topic=next((event["topic"] for event in events if event.get("topic")), ""),
            places=sorted(acknowledged_at(events)),
            verdict=ruling.unsent.get(name),
            is_sent=any(event["event_type"] in (E.PRODUCED, E.OUTBOX_SENT) for event in events),
            steps=[
                Step(e["event_ts"], e["writer_id"], e["seq"], workers.name(e["writer_id"]), None, E(e["event_type"]).name, _in_words(e))
                for e in events
            ],
        )
        for name, events in about.items()
    ]


def _place(event: Event) -> Place | None:
    if event["event_type"] not in (E.PRODUCED, E.OUTBOX_SENT):
        return None
    topic, partition, offset = event.get("topic"), event.get("partition"), event.get("offset")
    if not topic or partition is None or offset is None or min(partition, offset) < 0:
        return None
    return Place(topic, partition, offset)


def _in_words(event: Event) -> str:
    attrs = attributes(event.get("attrs"))
    error = event.get("error") or attrs.get("cause")
    row = f"row {attrs['row']} of {attrs.get('outbox') or 'the outbox'}" if "row" in attrs else attrs.get("outbox") or "the outbox"
    place, because = _place(event), f": {error}" if error else ""
    match E(event["event_type"]):
        case E.PRODUCED:
            by = f" by handler {event['handler']}" if event.get("handler") else ""
            origin = f", published{by} for {attrs['origin']}" if "origin" in attrs else ""
            return f"sent, acknowledged at {place or 'an offset that the broker did not say'}{origin}"
        case E.PRODUCE_FAILED:
            return f"not sent, and its sender had an error{because}"
        case E.OUTBOX_STORED:
            return f"stored: {row}{because}"
        case E.OUTBOX_SENT:
            return f"sent: {row}, acknowledged at {place or 'an offset that the broker did not say'}"
        case E.OUTBOX_PARKED:
            return f"parked: {row}{because}"
        case E.OUTBOX_EXPIRED:
            return f"expired: {row}, never sent"
        case E.OUTBOX_REQUEUED:
            return f"requeued: {row}"
        case E.OUTBOX_CHECKED:
            return f"check-back answered {attrs.get('answer', 'nothing')}: {row}"
        case other:
            return other.name
