"""What may become of a message in a made-up set: its events, and the verdict that follows from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.reconciling.shape import SECOND

from ackwise.middleware.events import EventCode
from ackwise.spark.vocabulary import Flag, Verdict

#: Seconds of the delay levels, as the sessions say.
LEVELS: Final = (10, 30, 60)

_LETTERS: Final = {
    "R": EventCode.RECEIVED,
    "C": EventCode.CLAIMED,
    "S": EventCode.SUCCEEDED,
    "F": EventCode.FAILED,
    "B": EventCode.SENT_BACK,
    "X": EventCode.DEAD_LETTERED,
    "A": EventCode.REDELIVERED,
    "D": EventCode.DUP_SUPPRESSED,
    "E": EventCode.IN_FLIGHT_ELSEWHERE,
    "K": EventCode.SKIPPED,
    "L": EventCode.CLAIM_LOST,
    "T": EventCode.STALE,
    "G": EventCode.DROPPED,
    "Z": EventCode.CANCELLED,
    "Y": EventCode.LATE_SUCCESS,
}
_STEP = re.compile(
    r"(?P<who>[~!]?)(?P<letter>[A-Z])(?:@(?P<attempt>\d))?(?:#(?P<run>\d))?(?:\+(?P<after>-?\d+))?(?P<older><?)(?P<marked>\*?)$"
)
_RUNS: Final = {EventCode.CLAIMED, EventCode.SUCCEEDED, EventCode.FAILED, EventCode.CLAIM_LOST, EventCode.LATE_SUCCESS}


class Who:
    """Which worker writes an event."""

    OWN = 0
    STANDBY = 1
    """One of the group that takes over from others."""
    VICTIM = 2
    """One of the group that dies each day without a word."""


class Hash:
    """Whose dedup hash a message has."""

    OWN = 0
    NEIGHBOUR = 1
    """That of a message nearby which was run."""
    OLD = 2
    """That of a message which was run longer ago than the store remembers."""
    DEAD = 3
    """That of a dead letter nearby."""


#: Verdicts and flags of messages that need no claim to be judged.
_ENDS: Final = (Verdict.EXACTLY_ONCE, Verdict.DEAD_LETTERED, Verdict.SKIPPED)
_PLAIN: Final = Flag.HAD_FAILURES | Flag.RETRIED


class Step(NamedTuple):
    """One event of a message."""

    code: EventCode
    who: int
    attempt: int
    run: int
    """Which execution of the message; -1: it is about none."""
    at: int
    """Microseconds since the message was fetched."""
    is_older: bool
    """The record that was read has another time than that of the other steps."""
    is_marked: bool
    """It ran as a copy, although its handler has an order; it was not run, for its key is that of a dead letter; or it is of a redrive."""


@dataclass(frozen=True, slots=True)
class WriterFate:
    """One course of things. `share` is how many messages of 100,000 take it."""

    name: str
    steps: tuple[Step, ...]
    verdict: Verdict
    flags: Flag
    share: int
    hash: int = Hash.OWN

    @property
    def needs_claims(self) -> bool:
        """Whether only an app that deduplicates has it."""
        known = {EventCode.CLAIMED, EventCode.SUCCEEDED, EventCode.FAILED, EventCode.SENT_BACK, EventCode.DEAD_LETTERED, EventCode.SKIPPED}
        is_plain = all(step.code in known and step.who == Who.OWN and not step.is_marked for step in self.steps)
        return not is_plain or self.hash != Hash.OWN or bool(self.flags & ~_PLAIN) or not (self.steps and self.verdict in _ENDS)


def _fate(name: str, words: str, verdict: Verdict, flags: int = 0, share: int = 10, hash: int = Hash.OWN) -> WriterFate:
    """`words` are events: who (own, `~` standby, `!` victim), a letter, `@` attempt, `#` execution, `+` seconds after the one before,
    `<` another record, `*` out of order, for `D` by a dead letter, for `A` and `X` of a redrive.
    """
    steps, at = [], 0
    for word in words.split():
        found = _STEP.match(word)
        if found is None:
            raise ValueError(f"{word!r} is no step of a fate")
        code = _LETTERS[found["letter"]]
        at += int(found["after"]) * SECOND if found["after"] else 3000
        run = int(found["run"] or 0) if code in _RUNS else -1
        steps.append(
            Step(
                code,
                " ~!".index(found["who"] or " "),
                int(found["attempt"] or 1),
                run,
                at,
                bool(found["older"]),
                bool(found["marked"]),
            )
        )
    return WriterFate(name, tuple(steps), verdict, Flag(flags), share, hash)


_V, _F = Verdict, Flag
_ONCE, _RETRIED = Verdict.EXACTLY_ONCE, Flag.HAD_FAILURES | Flag.RETRIED

#: The first one is that of all who have no other. A fate without events leaves an offset that nobody speaks of.
FATES: Final = (
    _fate("once", "C S", _ONCE),
    _fate("retried", "C F B C@2#1+30 S@2#1", _ONCE, _RETRIED, 2000),
    _fate("retried twice", "C F B C@2#1+15 F@2#1 B@2 C@3#2+40 S@3#2", _ONCE, _RETRIED, 300),
    _fate("dead letter", "C F X", _V.DEAD_LETTERED, _F.HAD_FAILURES, 100),
    _fate("dead letter at last", "C F B C@2#1+15 F@2#1 X@2", _V.DEAD_LETTERED, _RETRIED, 50),
    _fate("skipped", "K", _V.SKIPPED, share=50),
    _fate("rescued", "C F X C@2#1+40 S@2#1", _ONCE, _F.HAD_FAILURES | _F.RESCUED_FROM_DLQ),
    _fate("duplicate", "D", _V.DUPLICATE_SUPPRESSED, share=500, hash=Hash.NEIGHBOUR),
    _fate("key of the dead", "D*", _V.SUPPRESSED_BY_DEAD, share=50, hash=Hash.DEAD),
    _fate("key of the dead that succeeded since", "D*", _V.DUPLICATE_SUPPRESSED, share=50, hash=Hash.NEIGHBOUR),
    _fate("redriven", "C F X ~A+20* C#1+5 S#1", _ONCE, _F.HAD_FAILURES | _F.RESCUED_FROM_DLQ | _F.REDRIVEN, 20),
    _fate("redriven, and dead again", "C F X ~A+20* C#1+5 F#1 X*", _V.DEAD_LETTERED, _F.HAD_FAILURES | _F.REDRIVEN | _F.DIED_AGAIN, 20),
    _fate("redriven, and waiting", "C F X ~A+20*", _V.DEAD_LETTERED, _F.HAD_FAILURES | _F.REDRIVEN, 20),
    _fate("stale copy", "T", _V.DUPLICATE_SUPPRESSED, share=50, hash=Hash.NEIGHBOUR),
    _fate("delivered again", "C S ~D+40", _ONCE, _F.DUP_AND_OK, 200),
    _fate("held elsewhere", "~E C S", _ONCE, share=50),
    _fate("taken over", "!C C#1+40 S#1", _V.MAYBE_TWICE, _F.AMBIGUOUS_EXEC, 50),
    _fate("claim lost", "C L+31 C#1 S#1", _V.MAYBE_TWICE, _F.AMBIGUOUS_EXEC, 20),
    _fate("without a claim", "S", _ONCE, _F.UNCLAIMED, 20),
    _fate("twice without a claim", "S ~S#1+3", _V.MAYBE_TWICE, _F.UNCLAIMED | _F.REPEATED),
    _fate("events of an attempt missing", "C F B C@3#1+50 S@3#1", _ONCE, _RETRIED | _F.ATTEMPT_HOLE),
    _fate("clock set back", "C S+-1", _ONCE, _F.NEG_LATENCY, 30),
    _fate("another key's twin", "C S", _ONCE, share=20, hash=Hash.NEIGHBOUR),
    _fate("forgotten key's twin", "C S", _ONCE, hash=Hash.OLD),
    _fate("two records", "C S C#1+5< S#1<", _V.UNKNOWN_EXPORT_GAP, _F.AMBIGUOUS_EXEC | _F.RECREATED),
    _fate("twice", "C S ~C#1+40 ~S#1", _V.MULTI_EXECUTED, _F.AMBIGUOUS_EXEC),
    _fate("dropped", "C F G", _V.DROPPED, _F.HAD_FAILURES),
    _fate("cancelled", "C F B Z@2+15", _V.CANCELLED, _RETRIED),
    _fate("cancelled too late", "C F B Z@2+15 C@2#1 S@2#1", _ONCE, _RETRIED | _F.RAN_CANCELLED),
    _fate("too late a success", "C F B Y+20 D@2+5", _ONCE, _RETRIED | _F.TIMED_OUT | _F.DUP_AND_OK),
    _fate("a copy out of order", "C F B C@2#1+30 S@2#1*", _ONCE, _RETRIED | _F.OUT_OF_ORDER),
    _fate("failed and forgotten", "C F", _V.LOST, _F.HAD_FAILURES),
    _fate("received and forgotten", "R", _V.LOST),
    _fate("fetched and forgotten", "", _V.LOST),
    _fate("never fetched", "", _V.NEVER_SEEN),
    _fate("copy gone", "C F B", _V.RETRY_LOST, _RETRIED),
    _fate("copy received and gone", "C F B R@2+15", _V.RETRY_LOST, _RETRIED),
    _fate("suppressed wrongly", "D", _V.PHANTOM_SUPPRESSED),
    _fate("claimed by the dead", "!C", _V.STUCK, _F.COMMITTED_PAST),
    _fate("copy claimed by the dead", "C F B !C@2#1+15", _V.STUCK, _RETRIED),
    _fate("waiting", "R", _V.PENDING, share=0),
    _fate("in flight", "C", _V.IN_FLIGHT, share=0),
    _fate("deleted", "", _V.RETENTION_LOSS, share=0),
    _fate("jumped over", "", _V.SKIPPED_BY_SEEK, share=0),
    _fate("marker", "", _V.NEVER_SEEN, share=0),
)
