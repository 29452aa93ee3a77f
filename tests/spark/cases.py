"""The named cases: a history in a few letters, and what must be said of it.

One case is one group, so that all of them are judged by a single job. R C S F B X D E K L T A stand for received,
claimed, succeeded, failed, sent back, dead-lettered, dup-suppressed, in flight elsewhere, skipped, claim lost, stale, sent
again by a repair plan; I O Y for failed in place, failed as too long, succeeded late.
Leases and grace are 600 s here, and so is the silence after which a writer counts as dead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from tests.spark.histories import DAY, NOW, SECOND, TOPIC, History

from ackwise.middleware.events import EventCode
from ackwise.middleware.events import EventCode as E
from ackwise.middleware.message.disposition import Reason
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.vocabulary import Account, CopyFate, Flag, LogicalVerdict, ProducedVerdict, Verdict

__all__ = ["CASES", "CONFIG", "Case", "ordered", "ran"]

CONFIG: Final = ReconcileConfig(as_of=NOW / SECOND, grace=600.0, lateness=60.0, writer_timeout=600.0, lease=600.0)

ONCE, MULTI, DEAD, SKIPPED = Verdict.EXACTLY_ONCE, Verdict.MULTI_EXECUTED, Verdict.DEAD_LETTERED, Verdict.SKIPPED
CANCELLED, TWICE = Verdict.CANCELLED, Verdict.MAYBE_TWICE
LOST, NEVER, UNKNOWN, SEEK = Verdict.LOST, Verdict.NEVER_SEEN, Verdict.UNKNOWN_EXPORT_GAP, Verdict.SKIPPED_BY_SEEK
DUPLICATE, PHANTOM = Verdict.DUPLICATE_SUPPRESSED, Verdict.PHANTOM_SUPPRESSED
IN_FLIGHT, STUCK, PENDING = Verdict.IN_FLIGHT, Verdict.STUCK, Verdict.PENDING
RETRYING, RETRY_LOST = Verdict.RETRYING, Verdict.RETRY_LOST


@dataclass
class Case:
    """What happened, and the verdicts on messages of partition 0, on offsets without events, and on keys."""

    history: History
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    flags: dict[int, Flag] = field(default_factory=dict)
    """Flags that must be set, among others."""
    without: dict[int, Flag] = field(default_factory=dict)
    """Flags that must not be set."""
    apart: dict[tuple[str, str, int, int], Verdict] = field(default_factory=dict)
    """Where an offset alone does not say which message is meant: by topic id, handler, dedup epoch and offset."""
    absent: dict[int, str] = field(default_factory=dict)
    logical: dict[str, LogicalVerdict] = field(default_factory=dict)
    logical_flags: dict[str, Flag] = field(default_factory=dict)
    domain: tuple[int, int] | None = None
    """The first offset that is accounted for, and the one after the last."""
    falls: bool = False
    accounts: dict[int, Account] = field(default_factory=dict)
    """Of what was produced, by offset."""
    unpublished: int = 0
    unsent: dict[str, ProducedVerdict | None] = field(default_factory=dict)
    """By message id, those that were to be sent and are not."""
    copies: dict[tuple[int, CopyFate], int] = field(default_factory=dict)
    """Of copies that were sent back, by attempt; compared if given."""


OUT_OF_RANGE: Final = json.dumps({"reason": "out-of-range"})

CASES: Final[dict[str, Case]] = {}


def case(name: str, words: str = "", /, verdicts: dict[int, Verdict] | None = None, topic: str = TOPIC, **expected: Any) -> History:
    """A case whose first events are those of `words`, written by w1; more are told to the history that it answers."""
    history = History(name, topic=topic)
    if words:
        history.say("w1", words)
    CASES[name] = Case(history, verdicts or {}, **expected)
    return history


case("01 two messages, done and committed", "0:RCS 1:RCS W=2", {0: ONCE, 1: ONCE})
exported_twice = case("02 every event exported twice", "0:RCS 1:RCS W=2", {0: ONCE, 1: ONCE})
exported_twice.events += [dict(event) for event in exported_twice.events]

case("03 events in reverse order", "0:RCS 1:RCS W=2", {0: ONCE, 1: ONCE}).events.reverse()
case("04 a failure and a retry", "0:RCFB 0@2:RCS W=1", {0: ONCE}, flags={0: Flag.HAD_FAILURES | Flag.RETRIED})
case("05 redelivered after a rebalance, suppressed", "0:RCS", {0: ONCE}, flags={0: Flag.DUP_AND_OK}).say("w2", "0:RD W=1")
OPEN: Final = Flag.AMBIGUOUS_EXEC | Flag.UNCLAIMED | Flag.REPEATED
case("05b run by a worker that died and could not record it, which the next told", verdicts={0: ONCE}, without={0: OPEN}).say(
    "w1", "RECEIVED_RANGE[0,1)", ago=7200).tell("w2", "0:D W=1", of="w1")  # fmt: skip
case("05c recorded in the end, and told by two others", "0:RCS", {0: ONCE}, without={0: OPEN}).tell("w2", "0:RD", of="w1").tell(
    "w3", "0:D W=1", of="w1")  # fmt: skip
case("05d told, after somebody had it who died", verdicts={0: TWICE}, flags={0: Flag.AMBIGUOUS_EXEC}).say("w0", "0:RC", ago=7200).say(
    "w1", "RECEIVED_RANGE[0,1)", ago=7100).tell("w2", "0:D W=1", of="w1")  # fmt: skip
case("05e told, after somebody had received it who died", verdicts={0: TWICE}, flags={0: Flag.AMBIGUOUS_EXEC}).say(
    "w0", "RECEIVED_RANGE[0,1)", ago=7200).say("w1", "RECEIVED_RANGE[0,1)", ago=7100).tell("w2", "0:D W=1", of="w1")  # fmt: skip
case("05f told, and another had run it", "0:RCS", {0: MULTI}).tell("w3", "0:D W=1", of="w2")
case("05g told by another record of its key", verdicts={0: PENDING, 1: DUPLICATE}).say("w1", "0:R", key="k").tell(
    "w2", "1:D", of="w1", leader=0, key="k")  # fmt: skip
case("05h told by another record of its key, and nobody saw it", verdicts={1: DUPLICATE}).tell("w2", "1:D", of="w1", leader=0, key="k")
case("05i told by two records of its key", verdicts={0: ONCE, 1: DUPLICATE}, without={0: OPEN}).tell(
    "w2", "1:D", of="w1", leader=0, key="k").tell("w2", "0:D W=2", of="w1", key="k")  # fmt: skip
untold = case("05j a copy that was run by a worker that died and could not record it", "0:RCFB W=1", {0: ONCE}, without={0: OPEN})
untold.say("w2", "RECEIVED_RANGE[0,1)", topic=f"{untold.group}.retry", ago=7200).tell("w3", "0@2:D", of="w2")
case("05k told by nobody that names a run", "0:R", {0: PHANTOM}, logical={"0": LogicalVerdict.PHANTOM}).say(
    "w1", "0:D W=1", attrs='{"writer":7}')  # fmt: skip
case("05l the run of a writer that is not known", verdicts={0: ONCE}, flags={0: Flag.UNCLAIMED}).say(
    "w1", "0:D W=1", exec_id=7, attrs='{"writer":"me"}')  # fmt: skip
case("05m the death of a run that is told of", verdicts={0: PHANTOM}, logical={"0": LogicalVerdict.PHANTOM}).say(
    "w1", "0:D W=1", exec_id=7, attrs='{"writer":1,"outcome":"dead"}')  # fmt: skip

case("06 run twice, by two workers", "0:RCS", {0: MULTI}).say("w2", "0:RCS W=1")
case("07 one run, told twice", "0:RCSS W=1", {0: ONCE})
case("08 three runs", "0:RCS 0:CS", {0: MULTI}).say("w2", "0:RCS W=1")
case("09 failed, not sent back, committed past", "0:RCS 1:RCF 2:RCS W=3", {0: ONCE, 1: LOST, 2: ONCE})
case("10 received only, committed past", "0:R 1:RCS W=2", {0: LOST, 1: ONCE})
case("10b in a received range without an event", "RECEIVED_RANGE[0,2) 1:CS W=2", {1: ONCE}, absent={0: "LOST"})
case("11 not received, committed past", "0:RCS 2:RCS W=3", {0: ONCE, 2: ONCE}, absent={1: "NEVER_SEEN"})
case("12 a gap in the log", "0:RCS GAP[1,2) 2:RCS W=3", {0: ONCE, 2: ONCE}, absent={1: "GAP"})
case("12e a jump that could have been proved and was not", "0:RCS", {0: ONCE, 2: ONCE}, absent={1: "NEVER_SEEN"}).say(
    "w1", "GAP[1,2)", proved=False
).say("w1", "2:RCS W=3")
case("12f the same, within what one fetch returned", "RECEIVED_RANGE[0,3) 0:CS 2:CS", absent={1: "GAP"}).say(
    "w1", "GAP[1,2) W=3", proved=False
)
case("12g the same, and another worker got what is there", "0:CS", absent={1: "LOST"}).say("w1", "GAP[1,2) 2:CS", proved=False).say(
    "w2", "RECEIVED_RANGE[1,3) W=3"
)
case("12h a jump that was not proved at first, and then was", "0:CS", absent={1: "GAP"}).say("w1", "GAP[1,2)", proved=False).say(
    "w1", "GAP[1,2)", proved=True
).say("w1", "2:CS W=3")
case("13 compaction", "0:RCS GAP[1,500) 500:RCS W=501", {0: ONCE, 500: ONCE}, absent=dict.fromkeys(range(1, 500), "GAP"))
case("14 a marker at the tail", "0:RCS GAP[1,2) W=2", {0: ONCE}, absent={1: "GAP"})
case("15 claimed long ago by a dead writer", verdicts={0: STUCK}).say("w1", "0:RC", ago=7200)
case("15b claimed long ago by a writer that lives", verdicts={0: IN_FLIGHT}).say("w1", "0:RC", ago=7200).add("w1", EventCode.HEARTBEAT)
case("15c claimed long ago and given back, as by a worker that stopped", "0:RCJ", {0: PENDING}).add("w1", EventCode.SESSION_END)
case("15d the same, and committed past", "0:RCJ 1:RCS W=2", {0: LOST, 1: ONCE})
case("15e given back, and run by the next", "0:RCJ", {0: ONCE}, without={0: Flag.AMBIGUOUS_EXEC}).say("w2", "0:RCS W=1")
case("15f given back, and claimed by a worker that died", verdicts={0: STUCK}).say("w1", "0:RCJ", ago=7300).say("w2", "0:RC", ago=7200)
case("15g given back by a worker that died, which may have run it again", verdicts={0: TWICE},
     flags={0: Flag.AMBIGUOUS_EXEC}).say(
    "w1", "0:RCJC", ago=7200).say("w2", "0:RCS W=1")  # fmt: skip
case("15h a later attempt is given back", verdicts={0: RETRYING}).say("w1", "0:RCFB 0@2:RCJ W=1", ago=7200)
case("16 claimed just now", verdicts={0: IN_FLIGHT}).say("w1", "0:RC", ago=5)
case("17 claimed exactly lease and grace ago", verdicts={0: IN_FLIGHT}).say("w1", "0:C", ago=1200.001)
case("17b claimed a millisecond longer ago", verdicts={0: STUCK}).say("w1", "0:C", ago=1200.002)
case("18 stuck below the commit", verdicts={0: STUCK, 1: ONCE}, flags={0: Flag.COMMITTED_PAST}).say("w1", "0:RC", ago=7200).say(
    "w2", "1:RCS W=2"
)
case("19 a crash, and taken over", "0:RC", {0: TWICE}, flags={0: Flag.AMBIGUOUS_EXEC}).say("w2", "0:RCS W=1")
case("19b a take-over of a claim that nobody released", flags={0: Flag.AMBIGUOUS_EXEC}, verdicts={0: TWICE}).say(
    "w2", "0:CS W=1", took_unreleased=True
)
case("20 busy, sent back, suppressed", "0:RC", {0: ONCE}).say("w2", "0:REB").say("w1", "0:S").say("w2", "0@2:RD W=1")
case("21 sent back just now", verdicts={0: RETRYING}).say("w1", "0:RCFB W=1", ago=5, level=3)
case("22 sent back long ago, all topics drained since", verdicts={0: RETRY_LOST}).say("w1", "0:RCFB W=1", ago=7200, level=3).drain(60)
case("22b sent back long ago, nobody looked at the topics", verdicts={0: RETRYING}).say("w1", "0:RCFB W=1", ago=7200, level=3)
case("22c sent back long ago, the retry topic has a backlog", verdicts={0: RETRYING}).say("w1", "0:RCFB W=1", ago=7200, level=3).look(
    "w1", "delay", 9, 9, ago=60
).look("w1", "retry", 8, 9, ago=59)
case("22d the delay topic was drained only after the retry topic", verdicts={0: RETRYING}).say("w1", "0:RCFB W=1", ago=7200, level=3).look(
    "w1", "retry", 9, 9, ago=60
).look("w1", "delay", 9, 9, ago=59)
case("22e drained before it was due", verdicts={0: RETRYING}).say("w1", "0:RCFB W=1", ago=7200, level=3).drain(7000)
case("22f drained exactly when it was overdue", verdicts={0: RETRYING}).say("w1", "0:B W=1", ago=7200, due_ts=NOW - 7000 * SECOND).drain(
    6400
)
case("23 the longest level, within the grace", verdicts={0: RETRYING}).say("w1", "0:RCFB W=1", ago=7200, level=18).drain(1)
case("23b its own due time counts, not the level", verdicts={0: RETRY_LOST}).say(
    "w1", "0:CFB W=1", ago=7200, level=18, due_ts=NOW - 7000 * SECOND
).drain(1)
case("24 a dead letter", "0:RCFX W=1", {0: DEAD})
case("24a a message that expired, and one of its key that was in time", verdicts={0: DEAD, 1: ONCE},
     without={0: Flag.AMBIGUOUS_EXEC | Flag.HAD_FAILURES}).say("w1", "0:RX", key="k", error=Reason.EXPIRED
     ).say("w1", "1:RCS W=2", key="k")  # fmt: skip
case("24b a copy that expired while it waited", verdicts={0: DEAD}, flags={0: Flag.RETRIED | Flag.HAD_FAILURES}
     ).say("w1", "0:RCFB W=1").say("w1", "0@2:X", error=Reason.EXPIRED)  # fmt: skip
case("25 a dead letter, run after all", "0:RCX 0@2:RCS W=1", {0: ONCE}, flags={0: Flag.RESCUED_FROM_DLQ})
case("25b dropped by an instance that broadcasts", "0:RFG W=1", {0: Verdict.DROPPED}, flags={0: Flag.HAD_FAILURES | Flag.UNCLAIMED})
case("25c dropped, and run after a kill before the commit", "0:RFG 0:RS W=1", {0: ONCE}, flags={0: Flag.HAD_FAILURES | Flag.UNCLAIMED})
case("26 skipped", "0:RK W=1", {0: SKIPPED})
case("26b cancelled while it waited", "0:RCFB 0@2:Z W=1", {0: CANCELLED}, without={0: Flag.RAN_CANCELLED})
case("26c cancelled, and run all the same", "0:RCFB 0@2:Z 0@2:RCS W=1", {0: ONCE}, flags={0: Flag.RAN_CANCELLED})
case("26d cancelled, and its record was delivered again after a crash", "0:RCFB 0@2:Z 0:T W=1", {0: CANCELLED})
case("26e cancelled too late for a copy that is under way again", "0:RCFB 0@2:Z 0@3:RC W=1", {0: IN_FLIGHT})
case("26f cancelled long ago, all topics drained since", verdicts={0: CANCELLED}).say("w1", "0:RCFB 0@2:Z W=1", ago=7200, level=3).drain(60)
case("26g cancelled, and another record of its key was dropped as stale", verdicts={0: CANCELLED, 1: PHANTOM},
     logical={"k": LogicalVerdict.PHANTOM}).say("w1", "0:CFB 0@2:Z 1:T W=2", key="k")  # fmt: skip
case("26h a copy that ran although its handler has an order", "0:RCFB 1:RCS W=2", {0: ONCE, 1: ONCE}, flags={0: Flag.OUT_OF_ORDER},
     without={1: Flag.OUT_OF_ORDER}).say("w1", "0@2:CS", attrs='{"out_of_order":true}')  # fmt: skip
case("27 two records of one key", verdicts={0: ONCE, 1: DUPLICATE}).say("w1", "0:RCS 1:RD W=2", key="k")
case("27a a record with the key of a dead letter", verdicts={0: Verdict.DEAD_LETTERED, 1: Verdict.SUPPRESSED_BY_DEAD}
     ).say("w1", "0:RCFX 1:R", key="k").say("w1", "1:D W=2", key="k", attrs='{"outcome":"dead"}')  # fmt: skip
case("27b a dead letter that is delivered again", verdicts={0: Verdict.DEAD_LETTERED}
     ).say("w1", "0:RCFX").say("w1", "0:D W=1", attrs='{"outcome":"dead"}')  # fmt: skip
case("27c a dead letter whose handler had committed by itself", verdicts={0: DEAD, 1: DEAD}, flags={0: Flag.AMBIGUOUS_EXEC},
     without={1: Flag.AMBIGUOUS_EXEC}).say("w1", "0:RCX", error=Reason.ABORTED_AND_COMMITTED
     ).say("w1", "1:RCX W=2", error=Reason.REJECTED)  # fmt: skip

REDRIVEN = {number: json.dumps({"redrive": f"redrive-{number}", "letter": "g.dlq/0/7"}) for number in (1, 2)}

case("27d a dead letter that was sent again and has not come yet", "0:RCFX W=1", {0: DEAD}, flags={0: Flag.REDRIVEN},
     without={0: Flag.DIED_AGAIN | Flag.RESCUED_FROM_DLQ}).say("operator", "0:A", attrs=REDRIVEN[1])  # fmt: skip
case("27e a dead letter that was sent again and succeeded", "0:RCFX W=1", {0: ONCE}, flags={0: Flag.REDRIVEN | Flag.RESCUED_FROM_DLQ},
     without={0: Flag.DIED_AGAIN | Flag.AMBIGUOUS_EXEC}).say("w1", "0:RCS").say("operator", "0:A", attrs=REDRIVEN[1])  # fmt: skip
case("27k a dead letter of which no failure is told, that was sent again and succeeded", "0:RCX W=1", {0: ONCE},
     flags={0: Flag.REDRIVEN | Flag.RESCUED_FROM_DLQ}, without={0: Flag.AMBIGUOUS_EXEC}
     ).say("operator", "0:A", attrs=REDRIVEN[1]).say("w1", "0:RCS")  # fmt: skip
case("27f a dead letter that was sent again and died again, whose events say so before those of the redrive", "0:RCFX 0:RCF W=1", {0: DEAD},
     flags={0: Flag.REDRIVEN | Flag.DIED_AGAIN}).say("w1", "0:X", attrs=REDRIVEN[1]).say("operator", "0:A", attrs=REDRIVEN[1])  # fmt: skip
case("27g a dead letter that died again and was sent once more", "0:RCFX 0:RCF W=1", {0: DEAD}, flags={0: Flag.REDRIVEN},
     without={0: Flag.DIED_AGAIN}).say("w1", "0:X", attrs=REDRIVEN[1]).say("operator", "0:A", attrs=REDRIVEN[2])  # fmt: skip
case("27h a record with the key of a dead letter that was sent again and succeeded", verdicts={0: ONCE, 1: DUPLICATE}
     ).say("w1", "0:RCFX 1:R", key="k").say("w1", "1:D W=2", key="k", attrs='{"outcome":"dead"}').say(
     "operator", "0:A", key="k", attrs=REDRIVEN[1]).say("w1", "0:RCS", key="k")  # fmt: skip
case("27i a record with the key of a dead letter that died again", verdicts={0: DEAD, 1: Verdict.SUPPRESSED_BY_DEAD}
     ).say("w1", "0:RCFX 1:R", key="k").say("w1", "1:D W=2", key="k", attrs='{"outcome":"dead"}').say(
     "operator", "0:A", key="k", attrs=REDRIVEN[1]).say("w1", "0:RCF", key="k").say("w1", "0:X", key="k", attrs=REDRIVEN[1])  # fmt: skip
case("27j a repair copy of a dead letter is no redrive", "0:RCFX W=1", {0: DEAD}, without={0: Flag.REDRIVEN}
     ).say("operator", "0:A", attrs='{"plan":"p","step":"redrive-1"}')  # fmt: skip
case("27c a record with the key of what no event calls dead", verdicts={0: PHANTOM}, logical={"k": LogicalVerdict.PHANTOM}
     ).say("w1", "0:R", key="k").say("w1", "0:D W=1", key="k", attrs='{"outcome":"dead"}')  # fmt: skip
case("28 suppressed, and nobody did it", "0:RD W=1", {0: PHANTOM}, logical={"0": LogicalVerdict.PHANTOM})
case("28b suppressed, its mate is being retried", verdicts={0: RETRYING, 1: DUPLICATE}).say("w1", "0:CFB 1:D W=2", key="k")
case("28c suppressed, its mate is a dead letter", verdicts={0: DEAD, 1: DUPLICATE}).say("w1", "0:CFX 1:D W=2", key="k")
case("28d suppressed, its mate is lost", verdicts={0: LOST, 1: PHANTOM}, logical={"k": LogicalVerdict.PHANTOM}).say(
    "w1", "0:CF 1:D W=2", key="k"
)
young = case("28e suppressed by somebody before the first event", "0:D W=1", {0: UNKNOWN})
young.events = [event for event in young.events if event["client"] != "founder"]

case("28f stale, its mate was sent back", verdicts={0: RETRYING, 1: DUPLICATE}).say("w1", "0:CFB 1:T W=2", key="k")
case("28g stale, and its own copy is under way", "0:CFB 0:T W=1", {0: RETRYING})
case("28h stale, and no copy anywhere", "0:T W=1", {0: PHANTOM}, logical={"0": LogicalVerdict.PHANTOM})
case("29 received above the commit", "0:RCS 1:R W=1", {0: ONCE, 1: PENDING})
case("30 no commit at all", "0:R", {0: PENDING})
case("31 rewound, and suppressed", "0:RCS 1:RCS W=2 W=1 1:RD W=2", {0: ONCE, 1: ONCE}, flags={1: Flag.REWOUND}, without={0: Flag.REWOUND})
case("31b gone back to while nobody read", "0:CS 1:CS W=2", {0: ONCE, 1: ONCE}, flags={0: Flag.REWOUND, 1: Flag.REWOUND}).assign("w2", 0)
case("31c gone back to twice, and not over what is between", "0:CS 1:CS 2:CS 3:CS W=2 W=1 W=2 W=4 W=3 W=4",
     dict.fromkeys(range(4), ONCE), flags={1: Flag.REWOUND, 3: Flag.REWOUND}, without={0: Flag.REWOUND, 2: Flag.REWOUND})  # fmt: skip
case("32 jumped over", "0:RCS SEEK[1,4) 4:RCS W=5", {0: ONCE, 4: ONCE}, absent=dict.fromkeys((1, 2, 3), "SKIPPED_BY_SEEK"))
case(
    "32b what a database had passed",
    "0:RCS RECEIVED_RANGE[1,5) 1:CF 2:C TX_SETTLED[1,4) W=5",
    {0: ONCE, 1: UNKNOWN, 2: Verdict.IN_FLIGHT},
    absent={3: "UNKNOWN_EXPORT_GAP", 4: "LOST"},
)
case("33 events are missing", "0:RCS", {0: ONCE, 2: ONCE}, absent={1: "UNKNOWN_EXPORT_GAP"}).skip("w1", 4).say("w1", "2:RCS W=3")
case("33b open when events went missing", "0:RCS W=1 1:RCF 2:RCS", {0: ONCE, 1: UNKNOWN, 2: ONCE, 3: ONCE}).skip("w1", 2).say(
    "w1", "3:RCS W=4"
)
case("33c settled when events went missing", "0:RCS 1:RCF 2:RCS W=2", {0: ONCE, 1: LOST, 2: ONCE, 3: ONCE}).skip("w1", 2).say(
    "w1", "3:RCS W=4"
)
case("34 events are missing elsewhere", "0:RCS 2:RCS", {0: ONCE, 2: ONCE, 3: ONCE}, absent={1: "NEVER_SEEN"}).skip("w1", 4).say(
    "w1", "3:RCS W=4"
)
case("35 done before received, by the clocks", flags={0: Flag.NEG_LATENCY}, verdicts={0: ONCE}).say("w1", "0:RC").say(
    "w1", "0:S", ago=60
).say("w1", "W=1")
case("36 redelivered before the failure, by the clocks", verdicts={0: STUCK}).say("w1", "0:RCFB", ago=7000).say(
    "w1", "0@2:RC", ago=7200
).say("w1", "W=1", ago=6900).drain(1, "w2")
case("37 the first offset is 500", "500:RCS 501:RCS W=502", {500: ONCE, 501: ONCE})
case("38 missing across a border of words", "62:RCS 66:RCS W=67", {62: ONCE, 66: ONCE}, absent=dict.fromkeys((63, 64, 65), "NEVER_SEEN"))
case("39 whole words missing", "10:RCS 200:RCS W=201", {10: ONCE, 200: ONCE}, absent=dict.fromkeys(range(11, 200), "NEVER_SEEN"))
case("40 missing at the tail", "0:RCS W=3", {0: ONCE}, absent={1: "NEVER_SEEN", 2: "NEVER_SEEN"})
case("40b missing at the tail, in a word of its own", "0:RCS W=70", {0: ONCE}, absent=dict.fromkeys(range(1, 70), "NEVER_SEEN"))
case("41 two records of one key, both run", verdicts={0: ONCE, 1: ONCE}, logical={"k": LogicalVerdict.LOGICAL_DUPLICATE}).say(
    "w1", "0:RCS 1:RCS W=2", key="k"
)
case(
    "42 both run, days apart",
    verdicts={0: ONCE, 1: ONCE},
    logical={"k": LogicalVerdict.LOGICAL_DUPLICATE},
    logical_flags={"k": Flag.BEYOND_TTL},
).say("w1", "0:RCS", ago=3 * 86400, key="k").say("w1", "1:RCS W=2", key="k")
case("61 a later attempt committed past is retried, not lost", verdicts={0: RETRYING}).say("w1", "0:CFB 0@2:CF W=1")
case("62 a later attempt, and all topics drained since", verdicts={0: RETRY_LOST}).say("w1", "0:CFB 0@2:CF W=1", ago=7200, level=3).drain(
    60
)
case("63 run without a claim", "0:S W=1", {0: ONCE}, flags={0: Flag.UNCLAIMED})
case("63b started without a claim, and run", "0:US W=1", {0: ONCE}, flags={0: Flag.UNCLAIMED}, without={0: Flag.AMBIGUOUS_EXEC})
case("63c started without a claim just now", verdicts={0: PENDING}).say("w1", "0:U", ago=5)
case("64c run twice under claims, and once more before them without one", "0:CS", {0: MULTI}, flags={0: Flag.UNCLAIMED},
     without={0: Flag.REPEATED}).say("w2", "0:CS").say("w3", "0:S W=1", exec_id=1)  # fmt: skip
case("64d run under a claim, and between that and a claim that failed without one", verdicts={0: TWICE}, flags={0: Flag.REPEATED}).say(
    "w1", "0:CF", exec_id=5).say("w2", "0:S", exec_id=7).say("w3", "0:CS", exec_id=9).say("w1", "W=1")  # fmt: skip
case("64e run twice without claims between two claims that failed", verdicts={0: TWICE}, flags={0: Flag.REPEATED}).say(
    "w1", "0:CF", exec_id=5).say("w2", "0:S", exec_id=7).say("w2", "0:S", exec_id=8).say(
    "w3", "0:CF", exec_id=9).say("w1", "W=1")  # fmt: skip
case("64 run without a claim, twice", verdicts={0: TWICE}, flags={0: Flag.UNCLAIMED | Flag.REPEATED}).say("w1", "0:S").say("w2", "0:S W=1")
case("64b run under a claim, and again without", "0:CS", {0: TWICE}, flags={0: Flag.UNCLAIMED | Flag.REPEATED}).say("w2", "0:S W=1")

HANDLED, MISSED, EXPLAINED, WAITING, ORPHAN = Account.HANDLED, Account.LOST_PRODUCED, Account.EXPLAINED, Account.WAITING, Account.ORPHAN


def told(name: str, words: str, *offsets: int, accounts: dict[int, Account], **expected: Any) -> History:
    """A case with a topic of its own, to which `offsets` were produced: what is told of a topic is held against all groups that read it."""
    return case(name, words, topic=name, accounts=accounts, **expected).produce(*offsets)


told(
    "43 produced, and passed by",
    "0:CS 2:CS W=4", 0, 1, 2,
    verdicts={0: ONCE, 2: ONCE}, absent={1: "LOST_PRODUCED", 3: "NEVER_SEEN"}, accounts={0: HANDLED, 1: MISSED, 2: HANDLED},
)  # fmt: skip
told("43b produced, and a gap in the log", "0:CS GAP[1,3) W=3", 0, 1,
     verdicts={0: ONCE}, absent={1: "LOST_PRODUCED", 2: "GAP"}, accounts={0: HANDLED, 1: MISSED})  # fmt: skip
told("43c produced, and not come to", "0:CS W=1", 0, 1, 64, verdicts={0: ONCE}, accounts={0: HANDLED, 1: WAITING, 64: WAITING})
told("43d produced, and nothing was ever committed", "0:R", 0, 1, verdicts={0: PENDING}, accounts={0: HANDLED, 1: WAITING})
told("43e produced, and jumped over", "0:CS SEEK[1,3) 3:CS W=4", 1, 2,
     verdicts={0: ONCE, 3: ONCE}, absent=dict.fromkeys((1, 2), "SKIPPED_BY_SEEK"), accounts={1: EXPLAINED, 2: EXPLAINED})  # fmt: skip
told("43f produced and received, and nothing since", "RECEIVED_RANGE[0,2) 1:CS W=2", 0, 1,
     verdicts={1: ONCE}, absent={0: "LOST"}, accounts={0: EXPLAINED, 1: HANDLED})  # fmt: skip
told("43g produced, and events are missing", "0:CS", 1, verdicts={0: ONCE, 2: ONCE}, absent={1: "UNKNOWN_EXPORT_GAP"},
     accounts={1: EXPLAINED}).skip("w1", 4).say("w1", "2:CS W=3")  # fmt: skip
told("43h produced since the group began, and it began to read beyond", "5:CS W=6", 5, 3, verdicts={5: ONCE},
     accounts={5: HANDLED, 3: Account.LOST_BEFORE_START, 2: Account.EARLIER, 1: Account.EARLIER}
).produce(2, ago=11 * 86400).produce(1, ago=None)  # fmt: skip
told("43i jumped over before it began to read", "SEEK[0,5) 5:CS W=6", 5, 3, verdicts={5: ONCE}, accounts={5: HANDLED, 3: Account.EARLIER})
told("43j told twice", "0:CS W=2", 0, 0, 1, 1, verdicts={0: ONCE}, absent={1: "LOST_PRODUCED"}, accounts={0: HANDLED, 1: MISSED})
told("44 produced in a transaction that was aborted", "0:CS GAP[1,3) W=3", 0, verdicts={0: ONCE}, absent=dict.fromkeys((1, 2), "GAP"),
     accounts={0: HANDLED}).produce(1, aborted=True)  # fmt: skip
told("44b consumed, though its transaction was aborted", "0:CS 1:CS W=2", 0, verdicts={0: ONCE, 1: ONCE},
     accounts={0: HANDLED, 1: ORPHAN}).produce(1, aborted=True)  # fmt: skip

unpublished = told("45 a row of an outbox without coordinates", "0:CS W=1", 0, verdicts={0: ONCE}, accounts={0: HANDLED}, unpublished=3)
unpublished.produce(None, ago=601).produce(None, ago=None).produce(7, ago=601, partition=-1)
unpublished.produce(None, ago=600).produce(None, ago=601, aborted=True)
told("46 consumed without a row of the outbox", "0:CS 1:CS 2:CS 3:CS W=4", 0, 2, verdicts=dict.fromkeys(range(4), ONCE),
     accounts={0: HANDLED, 1: ORPHAN, 2: HANDLED})  # fmt: skip


def sending(name: str, words: str = "0:CS W=1", **expected: Any) -> History:
    """A case with a topic and a cluster of its own: what is sent in a cluster has its ids there."""
    history = case(name, words, topic=name, **expected)
    history.cluster = name
    for event in history.events:
        event["cluster"] = name
    return history


STORED, SENT, PARKED, REQUEUED = E.OUTBOX_STORED, E.OUTBOX_SENT, E.OUTBOX_PARKED, E.OUTBOX_REQUEUED
CHECKED, PRODUCED, NOT_SENT = E.OUTBOX_CHECKED, E.PRODUCED, E.PRODUCE_FAILED
LATE_ROW, PARKED_ROW, TOLD, BLIND_ROW = (
    ProducedVerdict.NOT_PUBLISHED, ProducedVerdict.PARKED, ProducedVerdict.PRODUCE_FAILED, ProducedVerdict.PUBLISH_UNKNOWN,
)  # fmt: skip

sending("46b sent, by events alone, and passed by", "0:CS 2:CS W=4", verdicts={0: ONCE, 2: ONCE},
     absent={1: "LOST_PRODUCED", 3: "NEVER_SEEN"}, accounts={0: HANDLED, 1: MISSED}
).send("p", PRODUCED, "a", 0, ago=100).send("p", SENT, "b", 1, ago=100)  # fmt: skip
sending("46c others may send as well: what no event says was sent is no orphan", "0:CS 1:CS 2:CS W=3",
     verdicts=dict.fromkeys(range(3), ONCE), accounts={0: HANDLED, 2: HANDLED}
).send("p", PRODUCED, "a", 0, ago=100).send("p", PRODUCED, "b", 2, ago=100)  # fmt: skip
sending("46d stored and sent", verdicts={0: ONCE}, accounts={0: HANDLED}).send("p", STORED, "a", ago=900).send("r", SENT, "a", 0, ago=800)
sending("46e stored, and never sent", verdicts={0: ONCE}, unsent={"a": LATE_ROW, "b": None}
).send("p", STORED, "a", ago=601).send("p", STORED, "b", ago=600)  # fmt: skip
sending("46f sent, and nobody knows where", verdicts={0: ONCE}).send("p", STORED, "a", ago=900).send("r", SENT, "a", ago=800)
sending("46g parked; parked and requeued", verdicts={0: ONCE}, unsent={"a": PARKED_ROW, "b": None, "c": LATE_ROW, "d": PARKED_ROW}
).send("p", STORED, "a", ago=5000).send("r", PARKED, "a", ago=4000).send("r", PARKED, "b", ago=4000).send("o", REQUEUED, "b", ago=500
).send("r", PARKED, "c", ago=4000).send("o", REQUEUED, "c", ago=3000).send("r", PARKED, "d", ago=4000).send("o", REQUEUED, "d", ago=3000
).send("r", PARKED, "d", ago=2000)  # fmt: skip
sending("46h parked once, and sent in the end", verdicts={0: ONCE}, accounts={0: HANDLED}
).send("r", PARKED, "a", ago=4000).send("r", SENT, "a", 0, ago=20)  # fmt: skip
sending("46i not sent, and told", verdicts={0: ONCE}, unsent={"a": TOLD, "b": LATE_ROW}
).send("p", NOT_SENT, "a", ago=4000).send("p", NOT_SENT, "b", ago=4000).send("p", STORED, "b", ago=4000)  # fmt: skip
sending("46j half messages", verdicts={0: ONCE}, unsent={"a": LATE_ROW}
).send("r", CHECKED, "a", ago=4000, answer="unknown").send("r", CHECKED, "a", ago=3900, answer="commit"
).send("r", CHECKED, "b", ago=3900, answer="rollback").send("r", CHECKED, "c", ago=3900, answer="unknown")  # fmt: skip
sending("46k stored, and events of a sender are missing", verdicts={0: ONCE}, unsent={"a": BLIND_ROW, "b": PARKED_ROW}
).send("p", STORED, "a", ago=5000).send("r", PARKED, "b", ago=4000).skip("r", 3).send("r", SENT, "c", ago=20)  # fmt: skip
sending("46m expired, which is not lost", verdicts={0: ONCE}
).send("p", STORED, "a", ago=5000).send("r", E.OUTBOX_EXPIRED, "a", ago=4000)  # fmt: skip
sending("46l sent to another cluster", "0:CS W=2", verdicts={0: ONCE}, absent={1: "NEVER_SEEN"}
).add("p", PRODUCED, at=NOW - SECOND, cluster="another", topic="46l sent to another cluster", partition=0, offset=1)  # fmt: skip
case("47 a topic made anew", apart={("a", "bill", 0, 0): ONCE, ("b", "bill", 0, 0): ONCE}).say("w1", "0:CS", key="x", topic_id="a").say(
    "w1", "0:CS W=1", topic_id="b"
)
case("47b a topic made anew, without an id, and two records of one offset", verdicts={0: UNKNOWN}, flags={0: Flag.RECREATED}).say(
    "w1", "0:CS W=1", ago=7200, record_ts=NOW - 7300 * SECOND
).say("w2", "0:CS W=1", record_ts=NOW - 100 * SECOND)
case(
    "47c a topic made anew, without an id, and newer records before older ones",
    verdicts={64: ONCE, 0: ONCE},
    falls=True,
    absent=dict.fromkeys(range(1, 64), "GAP"),
).say("w1", "64:CS W=65", ago=7200, record_ts=NOW - 7300 * SECOND).assign("w2", 64, at=NOW - 200 * SECOND).say(
    "w2", "0:CS", record_ts=NOW - 100 * SECOND
).say("w2", "GAP[1,64)")
case(
    "47d older records after newer ones, as clocks differ", "GAP[1,64)", {64: ONCE, 0: ONCE}, absent=dict.fromkeys(range(1, 64), "GAP")
).say("w1", "64:CS", record_ts=NOW - 700 * SECOND).say("w1", "0:CS W=65", record_ts=NOW - 100 * SECOND)
case("48 deleted before it was read", verdicts={0: ONCE, 3: ONCE}, absent=dict.fromkeys((1, 2), "RETENTION_LOSS")).say("w1", "0:CS").say(
    "w1", "SEEK[1,3)", attrs=OUT_OF_RANGE
).say("w1", "3:CS W=4")
case("48b deleted while nobody read", verdicts={3: ONCE}, absent=dict.fromkeys((1, 2), "RETENTION_LOSS")).say(
    "w1", "SEEK[1,3)", attrs=json.dumps({"reason": "out-of-range", "goes_on_at": 3})
).assign("w1", 3).say("w1", "3:CS W=4")
case("48c gone back, since the log ends before", "0:CS W=4", {0: ONCE}, absent=dict.fromkeys((1, 2, 3), "SKIPPED_BY_SEEK")).say(
    "w2", "SEEK[0,4)", attrs=json.dumps({"reason": "out-of-range", "goes_on_at": 0})
)
case("49 a commit that the broker refused is no commit", "0:RCS W=1 1:RCS", {0: ONCE, 1: ONCE}, domain=(0, 1))
late = case("51 done, and a file that came late says so", "0:E 1:CS W=2", {0: ONCE, 1: ONCE}, without={0: Flag.PROVISIONAL}).say(
    "w2", "0:RCS"
)
early = case("51b the same before that file came", verdicts={0: LOST, 1: ONCE}, flags={0: Flag.PROVISIONAL}, without={1: Flag.PROVISIONAL})
early.say("w1", "0:E 1:CS W=2")
case("51c so old that no file can be that late", verdicts={0: LOST}, without={0: Flag.PROVISIONAL}).say("w1", "0:E W=1", ago=61)
case("58 missing at the tail, beyond the first words", "0:CS W=200", {0: ONCE}, absent=dict.fromkeys(range(1, 200), "NEVER_SEEN"))
case("67 two handlers of one topic, one failed", apart={("", "bill", 0, 0): ONCE, ("", "other", 0, 0): LOST}).say("w1", "0:CS W=1").say(
    "w1", "0:CF", handler="other"
)
case("68 an intended replay", apart={("", "bill", 0, 0): ONCE, ("", "bill", 1, 0): ONCE}).say("w1", "0:CS W=1").say(
    "w1", "0:CS", dedup_epoch=1
)
case("69 the first position comes from the assignment", absent={0: "NEVER_SEEN", 1: "NEVER_SEEN"}, verdicts={2: ONCE}).assign(
    "w1", 0, from_commit=False
).say("w1", "2:CS W=3")
case("70 a commit that was only found at the next assignment", "0:CS 1:C", {0: ONCE, 1: IN_FLIGHT}, flags={1: Flag.COMMITTED_PAST}).assign(
    "w2", 2
)
case("71 a position that was reset is no commit", "0:CS", {0: ONCE}).assign("w2", 5, from_commit=False)
case("72 retry topics have no accounts", verdicts={0: ONCE}).say("w1", "0:CFB 0@2:CS W=1").assign("w1", 0, role="retry", topic="r").add(
    "w1", EventCode.COMMITTED, topic="r", partition=0, range_end=7
)
case("73 a copy whose origin is below the first position", verdicts={0: ONCE, 5: ONCE}).assign("w1", 5).say("w1", "0@2:CS 5:CS W=6")
case("56 a level beyond the table", verdicts={0: RETRYING}).say("w1", "0:CFB W=1", ago=5, level=99)
case("75 a claim was lost on the way", "0:CLS W=1", {0: TWICE}, flags={0: Flag.AMBIGUOUS_EXEC})
case("76 failed at the cut-off, and run by the next owner", "0:CF", {0: ONCE}, flags={0: Flag.HAD_FAILURES}).say("w2", "0:CS W=1")
case("59 an event of the future", "0:CS W=1", {0: ONCE}).add("w1", 33, topic=TOPIC, partition=0, offset=9).add("w1", 77)
beyond = case("59b offsets that no log has", "0:CS W=1 1:CF W=2", {0: ONCE, 1: LOST}, domain=(0, 2))
for wrong in (2**63 - 1, 2**62, -1, -(2**63)):
    beyond.add("w1", E.RECEIVED, topic=TOPIC, partition=0, offset=wrong, handler="bill")
    beyond.add("w1", E.SUCCEEDED, topic=TOPIC, partition=0, offset=wrong, handler="bill", exec_id=9, record_ts=NOW)
    beyond.add("w1", E.ASSIGNED, topic=TOPIC, partition=0, offset=wrong, role="source", from_commit=True)
    beyond.add("w1", E.COMMITTED, topic=TOPIC, partition=0, range_end=wrong)
    beyond.add("w1", E.PRODUCED, topic=TOPIC, partition=0, offset=wrong)
    for ranged in (E.RECEIVED_RANGE, E.GAP, E.SEEK, E.TX_SETTLED, E.BROKER_OFFSETS):
        beyond.add("w1", ranged, topic=TOPIC, partition=0, offset=min(wrong, 0), range_end=max(wrong, 1), proved=True)
case("59c the last offset that a log can have", f"{2**62 - 1}:CS", {2**62 - 1: ONCE})
case("78 busy elsewhere, committed past", "0:E 1:CS W=2", {0: LOST, 1: ONCE})
tail = case(
    "50 what an async writer took with it that died before it could end its session",
    verdicts={0: ONCE, 1: UNKNOWN},
    absent=dict.fromkeys((2, 3, 4), "UNKNOWN_EXPORT_GAP"),
)
tail.start("w1", at=NOW - 2 * DAY, mode="async").assign("w1", 0, at=NOW - 2 * DAY, from_commit=False)
tail.say("w1", "0:CS W=1 1:CF", ago=86400).assign("w2", 5)
settled = case("50b what a writer that fsyncs took with it", verdicts={0: ONCE, 1: LOST}, absent=dict.fromkeys((2, 3, 4), "NEVER_SEEN"))
settled.start("w1", at=NOW - 2 * DAY).assign("w1", 0, at=NOW - 2 * DAY, from_commit=False)
settled.say("w1", "0:CS W=1 1:CF", ago=86400).assign("w2", 5)
case("81 an attempt without events", "0:CFB 0@3:CS W=1", {0: ONCE}, flags={0: Flag.ATTEMPT_HOLE})
case("82 suppressed without a hash", verdicts={0: UNKNOWN}).say("w1", "0:D W=1", dedup_hash=None)
case("83 a suppression after the time of judgement", verdicts={0: DUPLICATE}).say("w1", "0:D", ago=-30)
case("84 a commit after the time of judgement", "0:CF", {0: PENDING}).say("w1", "W=1", ago=-30)
case(
    "85 the accounts of retries have every copy once",
    verdicts={0: ONCE, 1: RETRYING, 2: RETRY_LOST, 3: DEAD, 4: ONCE},
    copies={
        (1, CopyFate.CAME): 4, (2, CopyFate.CAME): 1, (2, CopyFate.WAITING): 1, (2, CopyFate.LOST): 1, (1, CopyFate.OVERTAKEN): 1,
    },
).say("w1", "0:CFB 0@2:CFB 0@3:CS 2:CFB 2@2:CFB 3:CFB 3@2:CFX 4:CFB 4:CS", ago=7200, due_ts=NOW - 7100 * SECOND).drain(60).say(
    "w1", "1:CFB 1@2:CFB W=5", due_ts=NOW + SECOND
)  # fmt: skip
case(
    "86 sent again by a repair plan, and not come yet",
    verdicts={0: RETRYING, 1: RETRYING, 2: RETRYING, 3: RETRYING, 4: RETRYING, 5: ONCE},
    absent={},
).say("w1", "0:RCF 2:D 3:CFB 4:C 5:CS W=6", ago=7200).say("repair", "0:A 1:A 2:A 3:A 4:A")
case(
    "87 sent again by a repair plan, and run",
    verdicts={0: ONCE, 1: ONCE, 2: ONCE, 3: ONCE, 4: TWICE, 5: DUPLICATE, 6: ONCE, 7: DUPLICATE},
    flags={2: Flag.DUP_AND_OK},
    without={0: Flag.ATTEMPT_HOLE, 1: Flag.ATTEMPT_HOLE},
).say("w1", "0:RCF 2:D 3:CFB 4:C 6:CS W=8", ago=7200).say("w1", "5:CF 7:CF", ago=7200, key="6").say(
    "repair", "0:A 1:A 2:A 3:A 4:A", ago=3600
).say("repair", "5:A 7:D", ago=3600, key="6").say("w2", "0@2:CS 1@2:CS 2@2:CS 3@2:CS 4@2:CS").say("w2", "5@2:D", key="6")  # fmt: skip
case("88 what a repair plan sent is lost, too", verdicts={0: RETRY_LOST, 1: DEAD}).say("w1", "0:RCF W=2", ago=9000).say(
    "repair", "0:A 1:A", ago=7200
).say("w1", "1@2:CFX", ago=7100).drain(60)  # fmt: skip
case(
    "89 a repair plan sends what lies before the first offset, which stays the first", verdicts={3: RETRYING, 9: ONCE}, domain=(9, 10)
).assign("w1", 9).say("w1", "9:RCS W=10").say("repair", "3:A")  # fmt: skip

MAYBE: Final = Flag.AMBIGUOUS_EXEC

case(
    "90 a worker that died had received them without a claim, and another ran them",
    verdicts={0: ONCE, 1: TWICE, 2: TWICE, 3: ONCE},
    flags={1: MAYBE, 2: MAYBE},
    without={0: MAYBE, 3: MAYBE},
).say("w1", "RECEIVED_RANGE[0,3) 0:S W=1", ago=7200).say("w2", "RECEIVED_RANGE[1,4) 1:S 2:S 3:S W=4")
case("90b the same of one that lives", verdicts={0: ONCE}, without={0: MAYBE}).say("w1", "RECEIVED_RANGE[0,1)").say("w2", "0:S W=1")
case("90c the same of one that ended", verdicts={0: ONCE}, without={0: MAYBE}).say("w1", "RECEIVED_RANGE[0,1)", ago=7200).add(
    "w1", EventCode.SESSION_END, at=NOW - 7000 * SECOND
).say("w2", "0:S W=1")
case("90d the same with a claim", verdicts={0: TWICE, 1: TWICE}, flags={0: MAYBE, 1: MAYBE}).say(
    "w1", "RECEIVED_RANGE[0,2) 0:C", ago=7200
).say("w2", "RECEIVED_RANGE[0,2) 0:CS 1:CS W=2")
case("90e it had said what became of them", without=dict.fromkeys(range(5), MAYBE)).say(
    "w1", "RECEIVED_RANGE[0,5) 0:F 1:D 2:T 3:K 4:S", ago=7200
).say("w2", "0:S 1:S 2:S 3:S 4:S W=5")
case("90f what it had received was not run by anybody since", verdicts={0: DEAD}, without={0: MAYBE}).say(
    "w1", "RECEIVED_RANGE[0,1)", ago=7200
).say("w2", "0:FX W=1")
copy = case("90g a copy that it had received", verdicts={0: TWICE, 1: ONCE, 2: ONCE}, flags={0: MAYBE}, without={1: MAYBE, 2: MAYBE})
copy.say("w1", "RECEIVED_RANGE[0,3) 0:FB 1:FB 2:FB W=3", ago=7200).say("w1", "RECEIVED_RANGE[0,2)", topic=f"{copy.group}.retry", ago=7150)
copy.say("w1", "1@2:S", ago=7100).say("w2", "0@2:S 2@2:S")
case("90h what a database would have undone", verdicts={0: ONCE}, without={0: MAYBE}).start(
    "w1", at=NOW - 7300 * SECOND, namespace="shop"
).say("w1", "RECEIVED_RANGE[0,1)", ago=7200).say("w2", "0:S W=1")
case("90i what it had committed", verdicts={5: ONCE}, without={5: MAYBE}).say("w1", "RECEIVED_RANGE[5,6) W=6", ago=7200).say(
    "w2", "5:S W=6"
)


def killed(name: str, **ended: Any) -> None:
    """What a worker had fetched that died, and another ran: it had marked the second and the third before they could start."""
    verdicts = ended.pop("verdicts", {0: ONCE, 1: ONCE, 2: TWICE, 3: ONCE})
    flags = {offset: MAYBE for offset, verdict in verdicts.items() if verdict is TWICE}
    without = {offset: MAYBE for offset in verdicts if offset not in flags}
    history = case(name, verdicts=verdicts, flags=flags, without=without).mark("w1", **ended)
    history.say("w1", "RECEIVED_RANGE[0,4) 0:CS MARKED[1,3) 1:S", ago=7200).say("w2", "RECEIVED_RANGE[0,4) 0:D 1:D 2:S 3:S W=4")


FETCHED: Final = {0: ONCE, 1: ONCE, 2: TWICE, 3: TWICE}
killed("95k killed, and the machine that rolled its log had run since")
killed("95l killed, and the machine was started anew before its log was rolled", rolled_on="boot 2", verdicts=FETCHED)
killed("95m killed, and nobody says where its log was rolled", rolled_on=None, verdicts=FETCHED)
killed("95n killed, and its session does not name the machine", died_on=None, verdicts=FETCHED)
unmarked = case("95o killed, and it marks nothing", verdicts={0: TWICE, 1: ONCE}, flags={0: MAYBE}).start(
    "w1", at=NOW - 9000 * SECOND, boot_id="boot 1")  # fmt: skip
unmarked.rolled_on[unmarked.number("w1")] = "boot 1"
unmarked.say("w1", "RECEIVED_RANGE[0,1)", ago=7200).say("w2", "0:S 1:S W=2")
case("95p killed after it had started three, one of them done", verdicts={0: ONCE, 1: TWICE, 2: TWICE, 3: ONCE}, flags={1: MAYBE, 2: MAYBE},
     without={0: MAYBE, 3: MAYBE}).mark("w1").say("w1", "RECEIVED_RANGE[0,4) 0:US 1:U 2:C", ago=7200).say(
    "w2", "RECEIVED_RANGE[0,4) 0:D 1:US 2:CS 3:US W=4")  # fmt: skip
case("95q killed, with single messages received and none started", verdicts={0: ONCE}, without={0: MAYBE}).mark("w1").say(
    "w1", "0:R", ago=7200).say("w2", "0:US W=1")  # fmt: skip
case("95r killed, and what it had marked was committed", verdicts={5: ONCE, 6: TWICE}, flags={6: MAYBE}, without={5: MAYBE}).mark("w1").say(
    "w1", "RECEIVED_RANGE[5,7) MARKED[5,7) W=6", ago=7200).say("w2", "5:S 6:S W=7")  # fmt: skip
case("95s killed, and events of it are missing, with marks among them", verdicts={0: TWICE}, flags={0: MAYBE}).mark("w1").say(
    "w1", "RECEIVED_RANGE[0,1)", ago=7200).skip("w1", 1).add("w1", EventCode.HEARTBEAT, at=NOW - 7100 * SECOND).say(
    "w2", "0:S W=1")  # fmt: skip
case("95t killed, and a commit names later events of it", verdicts={0: TWICE}, flags={0: MAYBE}).mark("w1").say(
    "w1", "RECEIVED_RANGE[0,1)", ago=7200).assign("w2", 0, named=("w1", 9), at=NOW - 7100 * SECOND).say("w2", "0:S W=1")  # fmt: skip
case("95u killed, with its events written only now and then", verdicts={0: TWICE}, flags={0: MAYBE}).start(
    "w1", at=NOW - 9000 * SECOND, mode="async", marks=True, boot_id="boot 1").say("w1", "RECEIVED_RANGE[0,1)", ago=7200).say(
    "w2", "0:S W=1").rolled_on[CASES["95u killed, with its events written only now and then"].history.number("w1")] = "boot 1"  # fmt: skip
copies = case("95v killed, with copies fetched of which it had started all but the first, and done the last",
              verdicts={0: ONCE, 1: TWICE, 2: TWICE, 3: ONCE}, flags={1: MAYBE, 2: MAYBE}, without={0: MAYBE, 3: MAYBE})  # fmt: skip
copies.mark("w1").say("w1", "RECEIVED_RANGE[0,4) 0:FB 1:FB 2:FB 3:FB W=4", ago=7200)
copies.say("w1", "RECEIVED_RANGE[0,4) MARKED[1,2) MARKED[3,4)", topic=f"{copies.group}.retry", ago=7150)
copies.say("w1", "0@2:R 2@2:C 3@2:S", ago=7148).say("w2", "0@2:S 1@2:S 2@2:S 3@2:D")
case("95x killed, with some of what it had fetched marked, for one of two handlers", apart={
     ("", "bill", 0, 62): ONCE, ("", "bill", 0, 63): TWICE, ("", "bill", 0, 64): ONCE, ("", "bill", 0, 65): TWICE,
     ("", "audit", 0, 63): ONCE}).mark("w1").say("w1", "RECEIVED_RANGE[62,66)", ago=7200).say(
    "w1", "MARKED[63,66)", ago=7150, handler="bill", attrs=json.dumps({"masks": [-(2**63), 2]})).say(
    "w2", "62:S 63:S 64:S 65:S").say("w2", "63:S W=66", handler="audit")  # fmt: skip
case("95y killed, with a mark whose masks nobody can read", verdicts={0: TWICE}, flags={0: MAYBE}).mark("w1").say(
    "w1", "MARKED[0,1)", ago=7200, attrs='{"masks":["x"]}').say("w2", "0:S W=1")  # fmt: skip
case("95w it lives, and had marked what another ran", verdicts={0: ONCE}, without={0: MAYBE}).mark("w1").say(
    "w1", "RECEIVED_RANGE[0,1) MARKED[0,1)").say("w2", "0:S W=1")  # fmt: skip

LATE: Final = Flag.TIMED_OUT
CLEAN: Final = MAYBE | Flag.REPEATED | Flag.UNCLAIMED | Flag.ATTEMPT_HOLE | Flag.NEG_LATENCY

case("91 a late success whose copy its process completed", "0:RCOBY 0@2:D W=1", {0: ONCE}, flags={0: LATE | Flag.DUP_AND_OK},
     without={0: CLEAN})  # fmt: skip
case("91b a late success, and its copy ran elsewhere", "0:RCOB", {0: MULTI}, flags={0: LATE}).say("w2", "0@2:CS").say("w1", "0:Y W=1")
case("91c the same without claims", "0:OBY", {0: TWICE}, flags={0: LATE | Flag.REPEATED | Flag.UNCLAIMED}).say("w2", "0@2:S W=1")
case("91d a late success, and its copy is under way", "0:RCOBY W=1", {0: ONCE}, flags={0: LATE | Flag.RETRIED}, without={0: CLEAN},
     copies={(1, CopyFate.OVERTAKEN): 1})  # fmt: skip
case("91e a late success, and its copy is lost", verdicts={0: ONCE}, flags={0: LATE}, without={0: CLEAN}).say(
    "w1", "0:RCOBY W=1", ago=7200, level=3
).drain(60)
case("91f a late success, and its copy was begun by a worker that died", verdicts={0: TWICE}, flags={0: LATE | MAYBE}).say(
    "w1", "0:RCOBY W=1", ago=3600
).say("w2", "0@2:C", ago=3500).add("w1", EventCode.HEARTBEAT)
case("91g a dead letter that succeeded late", "0:RCOXY W=1", {0: ONCE}, flags={0: LATE | Flag.RESCUED_FROM_DLQ}, without={0: CLEAN})
case("91h a late success in a batch, and its mate in another run was done again", verdicts={0: ONCE, 1: ONCE},
     logical={"k": LogicalVerdict.LOGICAL_DUPLICATE}).say("w1", "0:COBY 1:CS W=2", key="k")  # fmt: skip
case("91i suppressed by what succeeded late", verdicts={0: ONCE, 1: DUPLICATE}).say("w1", "0:COBY 1:D W=2", key="k")
case("91j a late success told before its copy was sent", "0:RCYOB 0@2:D W=1", {0: ONCE}, flags={0: LATE}, without={0: CLEAN})
case("92 too long, and its copy done", "0:RCOB 0@2:RCS W=1", {0: ONCE}, flags={0: LATE | Flag.HAD_FAILURES}, without={0: CLEAN})
case("92b the same, and then its worker was killed: the run that was given up may have succeeded", verdicts={0: TWICE, 1: ONCE},
     flags={0: LATE | MAYBE, 1: LATE}, without={1: MAYBE}).say("w1", "0:RCOB 1:RCOBY W=2", ago=7200).say("w2", "0@2:CS 1@2:D")  # fmt: skip
case("92c the same of one that ended", verdicts={0: ONCE}, flags={0: LATE}, without={0: MAYBE}).say("w1", "0:RCOB W=1", ago=7200).add(
    "w1", EventCode.SESSION_END, at=NOW - 7000 * SECOND
).say("w2", "0@2:CS")
case("92d two runs too long, and only the second is known to have succeeded", verdicts={0: TWICE}, flags={0: LATE | MAYBE}).say(
    "w1", "0:RCOB 0@2:RCOBY W=1", ago=7200
).say("w2", "0@3:D")
case("92e too long, and still to come", "0:RCOB W=1", {0: RETRYING}, flags={0: LATE}, without={0: MAYBE})
case("93 tried again in place until it succeeded", "0:RCICICICS W=1", {0: ONCE}, flags={0: Flag.HAD_FAILURES},
     without={0: CLEAN | Flag.RETRIED | LATE})  # fmt: skip
case(
    "93b the same without claims",
    "0:RIIIS W=1",
    {0: ONCE},
    flags={0: Flag.HAD_FAILURES | Flag.UNCLAIMED},
    without={0: MAYBE | Flag.REPEATED},
)
case("93c in place until it was a dead letter", "0:RCICICFX 1:IIFX W=2", {0: DEAD, 1: DEAD}, without={0: CLEAN, 1: CLEAN & ~Flag.UNCLAIMED})
case("93d it waits in place", "0:RCI 1:RI", {0: PENDING, 1: PENDING}, without={0: CLEAN})
case("93e in place, given up in order, and by the next owner to the end", "0:RCICI", {0: ONCE}, without={0: CLEAN}).add(
    "w1", EventCode.SESSION_END
).say("w2", "0:RCICS W=1")
case("93f in place, and its worker died: it may have run again", verdicts={0: TWICE, 1: TWICE}, flags={0: MAYBE, 1: MAYBE}).say(
    "w1", "RECEIVED_RANGE[0,2) 0:CICI 1:II", ago=7200
).say("w2", "RECEIVED_RANGE[0,2) 0:CIIS 1:S W=2")
case("93g in place, and its worker died in the middle of an attempt", verdicts={0: TWICE}, flags={0: Flag.AMBIGUOUS_EXEC}).say(
    "w1", "0:RCIC", ago=7200
).say("w2", "0:CS W=1", took_unreleased=True)
case("93h in place, failed at the cut-off, and its worker died later", verdicts={0: ONCE}, without={0: CLEAN}).say(
    "w1", "0:RCICF", ago=7200
).say("w2", "0:RCS W=1")
case("93i in place as too long is no run that went on", verdicts={0: ONCE}, flags={0: LATE}, without={0: CLEAN}).say(
    "w1", "0:RCI", ago=7200, error="ConsumeTimeout"
).say("w1", "0:CS W=1", ago=7100)
case("93j done in place twice, by two owners", "0:RCICS", {0: MULTI}).say("w2", "0:RCICS W=1")
case("93k committed past while it waited in place", "0:RCI 1:CS W=2", {0: LOST, 1: ONCE})
case("93l dead in place, and the dead letter's writer died before the commit", verdicts={0: DEAD}, without={0: CLEAN}).say(
    "w1", "0:RCICFX", ago=7200
).say("w2", "0:RD W=1")
case("91k dropped by an instance that broadcasts, and then a late success", "0:ROGY W=1", {0: ONCE}, flags={0: LATE}, without={0: MAYBE})
case("91l cancelled while its copy waited, and then a late success", "0:RCOB 0@2:Z 0:Y W=1", {0: ONCE},
     flags={0: LATE | Flag.RAN_CANCELLED}, without={0: CLEAN})  # fmt: skip
# w1 has the numbers 0 to 4 in the first of these, and 0 to 5 in those that have a commit, too.
case("94 the last file of a writer is missing, by the commit that another went on from", verdicts={0: ONCE, 1: UNKNOWN, 3: ONCE},
     absent={2: "UNKNOWN_EXPORT_GAP"}, without={1: Flag.COMMITTED_PAST}).say(
    "w1", "RECEIVED_RANGE[0,3) 0:CS 1:C", ago=7200
).assign("w2", 3, named=("w1", 9), at=NOW - 7100 * SECOND).say("w2", "3:CS W=4")  # fmt: skip
case("94b the same, and nothing is missing", verdicts={0: ONCE, 1: STUCK, 3: ONCE}, absent={2: "LOST"}, flags={1: Flag.COMMITTED_PAST}).say(
    "w1", "RECEIVED_RANGE[0,3) 0:CS 1:C", ago=7200
).assign("w2", 3, named=("w1", 3), at=NOW - 7100 * SECOND).say("w2", "3:CS W=4")
case("94c all files of a writer are missing, by the commit that another went on from", verdicts={0: LOST, 1: ONCE, 5: ONCE},
     absent=dict.fromkeys((2, 3, 4), "UNKNOWN_EXPORT_GAP")).say("w1", "0:RCF 1:RCS W=2", ago=7200).assign(
    "w3", 5, named=("w2", 9), at=NOW - 7000 * SECOND
).say("w3", "5:CS W=6")  # fmt: skip
case("94d the same, and nobody names it", verdicts={0: ONCE, 1: ONCE, 5: ONCE}, absent=dict.fromkeys((2, 3, 4), "NEVER_SEEN")).say(
    "w1", "0:CS 1:RCS W=2", ago=7200
).assign("w3", 5, at=NOW - 7000 * SECOND).say("w3", "5:CS W=6")
case("94e what was suppressed may have run in the events that are missing", verdicts={0: UNKNOWN}).assign("w2", 0, named=("w1", 9)).say(
    "w2", "0:RD W=1"
)
case("94f a commit that says nothing of numbers", "0:RD W=1", {0: PHANTOM}, logical={"0": LogicalVerdict.PHANTOM}).add(
    "w2", EventCode.ASSIGNED, topic=TOPIC, partition=0, offset=1, role="source", from_commit=True, attrs=json.dumps({"seq": 7})
).add(
    "w3",
    EventCode.ASSIGNED,
    topic=TOPIC,
    partition=0,
    offset=1,
    role="source",
    from_commit=True,
    attrs=json.dumps({"writer": -1, "seq": -1}),
)
case("94g a commit names an older number than there is", verdicts={0: ONCE, 1: ONCE}).say("w1", "0:CS W=1", ago=7200).assign(
    "w2", 1, named=("w1", 1), at=NOW - 7100 * SECOND
).say("w2", "1:CS W=2")

UNTOLD: Final = dict.fromkeys((2, 3, 4), "UNKNOWN_EXPORT_GAP")
case("94h all files of a writer are missing, and who went on from its commit commits the same again", verdicts={1: ONCE, 5: ONCE},
     absent=UNTOLD).say("w1", "1:RCS W=2", ago=7200).assign(
    "w3", 5, named=("w2", 9), at=NOW - 7000 * SECOND
).say("w3", "W=5 5:CS W=6")  # fmt: skip


def hidden(name: str, **expected: Any) -> History:
    """A case in a group with a hole elsewhere, in which a commit may have been made."""
    history = case(name, verdicts={1: ONCE, 5: ONCE}, **expected).say("w1", "1:RCS W=2", ago=7200)
    return history.assign("w0", 0, topic="elsewhere", at=NOW - 7100 * SECOND).skip("w0", 2).add("w0", EventCode.HEARTBEAT)


hidden("94i a commit of which the writer that it names tells", absent=dict.fromkeys((2, 3, 4), "NEVER_SEEN")).say(
    "w2", "W=5", ago=7100).assign("w3", 5, named=("w2", 0), at=NOW - 7000 * SECOND).say("w3", "5:CS W=6")  # fmt: skip
hidden("94j a commit that names nobody, which its finder makes again", absent=UNTOLD).assign("w3", 5, at=NOW - 7000 * SECOND).say(
    "w3", "W=5 5:CS W=6")  # fmt: skip
hidden("94k the same, and another tells of it", absent=dict.fromkeys((2, 3, 4), "NEVER_SEEN")).say("w2", "W=5", ago=7100).assign(
    "w3", 5, at=NOW - 7000 * SECOND).say("w3", "5:CS W=6")  # fmt: skip
hidden("94l the same, and its finder had made it itself before", absent=dict.fromkeys((2, 3, 4), "NEVER_SEEN")).say(
    "w3", "W=5", ago=7100).assign("w3", 5, at=NOW - 7000 * SECOND).say("w3", "5:CS W=6")  # fmt: skip
hidden("94m found by two, and only one of them could have it from the other", absent=UNTOLD).assign("w3", 5, at=NOW - 7000 * SECOND).say(
    "w3", "W=5", ago=6900).assign("w4", 5, at=NOW - 6800 * SECOND).say("w4", "5:CS W=6")  # fmt: skip

EPOCHS = {("", "bill", 0, 0): ONCE, ("", "bill", 1, 0): ONCE}
case("96 claimed by a worker that died, and run in a later dedup epoch", apart=EPOCHS).say("w1", "0:RC", ago=7200).say(
    "w2", "0:RCS W=1", dedup_epoch=1)  # fmt: skip
case("96b failed and committed past in one dedup epoch, and run in the next", "0:RCF W=1", apart=EPOCHS).say(
    "w2", "0:RCS", dedup_epoch=1)  # fmt: skip
case("96c sent back in one dedup epoch, and its copy came in the next", apart=EPOCHS).say("w1", "0:RCFB W=1", ago=7200, level=1).say(
    "w2", "0@2:RCS", dedup_epoch=1).drain(60)  # fmt: skip
case("96d failed in one dedup epoch, and claimed by a worker that died in the next", "0:RCF W=1",
     apart={("", "bill", 0, 0): STUCK, ("", "bill", 1, 0): STUCK}).say("w2", "0:RC", ago=7200, dedup_epoch=1)  # fmt: skip
case("96e done in one dedup epoch, and lost in the next", "0:RCS W=1", apart={("", "bill", 0, 0): ONCE, ("", "bill", 1, 0): LOST}).say(
    "w2", "0:RCF", dedup_epoch=1)  # fmt: skip
case("96f done in one dedup epoch by a worker that died before its commit, and run in the next", apart=EPOCHS).say(
    "w1", "RECEIVED_RANGE[0,1) 0:CS", ago=7200).say("w2", "0:CS W=1", dedup_epoch=1)  # fmt: skip
case("96g done in one dedup epoch, and in the next by a worker that died before its commit", apart=EPOCHS).say("w2", "0:CS").say(
    "w1", "RECEIVED_RANGE[0,1)", ago=7200).say("w1", "0:CS", ago=7100, dedup_epoch=1)  # fmt: skip
case("96h the same of another handler says nothing", apart={
    ("", "bill", 1, 0): TWICE, ("", "other", 0, 0): ONCE}).say("w1", "RECEIVED_RANGE[0,1)", ago=7200).say(
    "w1", "0:CS", ago=7100, handler="other").say("w2", "0:CS W=1", dedup_epoch=1)  # fmt: skip
bumped = case("96i a copy that was done in one dedup epoch by a worker that died, and run in the next", apart=EPOCHS)
bumped.say("w1", "0:CFB W=1", ago=7200).say("w1", "RECEIVED_RANGE[0,1)", topic=f"{bumped.group}.retry", ago=7150)
bumped.say("w1", "0@2:CS", ago=7100).say("w2", "0@2:CS", dedup_epoch=1)
case("96j told in one dedup epoch of a worker that died, and run in the next", apart=EPOCHS).say(
    "w1", "RECEIVED_RANGE[0,1)", ago=7200).tell("w2", "0:D", of="w1").say("w2", "0:CS W=1", dedup_epoch=1)  # fmt: skip


def ordered(name: str, verdicts: dict[int, Verdict], order: object, *writers: str, **expected: Any) -> History:
    """A case whose writers say which order the handler has."""
    history = case(name, verdicts=verdicts, **expected)
    for writer in writers or ("w1",):
        history.start(writer, at=NOW - 9000 * SECOND, order={"bill": order})
    return history


def ran(history: History, writer: str, words: str, *, ago: float | None = None, order_hash: int | None = None, run: int = 0) -> History:
    """Steps of runs that overlap: each offset has a run of its own, `run` tells several of one apart. Three seconds between steps."""
    for place, word in enumerate(words.split()):
        exec_id = (history.number(writer) << 20) + 1000 + 100 * run + int(word.split(":")[0])
        history.say(writer, word, ago=None if ago is None else ago - 3 * place, exec_id=exec_id, order_hash=order_hash)
    return history


BOTH, ALL_THREE = {0: ONCE, 1: ONCE}, {0: ONCE, 1: ONCE, 2: ONCE}
OVERTAKEN, OVERLAP, IN_TURN = Flag.OVERTAKEN | Flag.MAYBE_OVERTAKEN, "0:C 1:C 1:S 0:S", "0:CS 1:CS"
PROVED: Final[dict[str, Any]] = {"flags": {0: Flag.OVERTAKEN}, "without": {0: Flag.MAYBE_OVERTAKEN, 1: OVERTAKEN}}
PERHAPS: Final[dict[str, Any]] = {"flags": {0: Flag.MAYBE_OVERTAKEN}, "without": {0: Flag.OVERTAKEN, 1: OVERTAKEN}}
NOBODY: Final[dict[str, Any]] = {"without": {0: OVERTAKEN, 1: OVERTAKEN}}

ran(ordered("97 two of a key at once", BOTH, "key", **PROVED), "w1", OVERLAP, order_hash=7)
ran(ordered("97b the later one of a key at first", BOTH, "key", **PROVED), "w1", "1:CS 0:CS", order_hash=7)
ran(ordered("97c two of a key, one after the other", BOTH, "key", **NOBODY), "w1", IN_TURN, order_hash=7)
keys = ordered("97d two of different keys at once", BOTH, "key", **NOBODY)
ran(ran(ran(keys, "w1", "0:C", order_hash=7), "w1", "1:CS", order_hash=8), "w1", "0:S")
ran(ordered("97e two without a key at once", BOTH, "key", **NOBODY), "w1", OVERLAP)
for number, no_order in enumerate(("none", None, "all", {"by": "key"})):
    ran(ordered(f"97f a handler without an order, {number}", BOTH, no_order, **NOBODY), "w1", OVERLAP, order_hash=7)
ran(case("97g a worker that says no order", verdicts=BOTH, **NOBODY), "w1", OVERLAP, order_hash=7)
ran(ordered("97h a worker that says two orders", BOTH, "key", **NOBODY).start("w1", order={"bill": "none"}), "w1", OVERLAP, order_hash=7)
ran(case("97i an order of another handler", verdicts=BOTH, **NOBODY).start("w1", order={"ship": "key"}), "w1", OVERLAP, order_hash=7)
ran(ordered("97j the later one of a partition at first", BOTH, "partition", **PROVED), "w1", "1:CS 0:CS")
ran(ordered("97k two of a partition in one portion", BOTH, "partition", **NOBODY), "w1", "0:C 1:C 0:S 1:S")
ran(ordered("97l an attempt in place before, and the later one after it", BOTH, "key", **NOBODY), "w1", "0:CI 0:CS 1:CS", order_hash=7)
again = ordered("97m the later one between two attempts in place", BOTH, "key", **PROVED)
ran(ran(ran(again, "w1", "0:CI", order_hash=7), "w1", "1:CS", order_hash=7), "w1", "0:CS", order_hash=7, run=1)
again = ordered("97n the same, by partition", BOTH, "partition", **PROVED)
ran(ran(ran(again, "w1", "0:CI"), "w1", "1:CS"), "w1", "0:CS", run=1)
again = ordered("97o both failed together, and ran again in turn", BOTH, "partition", **NOBODY)
ran(ran(again, "w1", "0:C 1:C 0:I 1:I"), "w1", IN_TURN, run=1)
crash = ordered("97p both again after a crash", {0: MULTI, 1: MULTI}, "key", "w1", "w2", **NOBODY)
ran(ran(crash, "w1", IN_TURN, ago=8000, order_hash=7), "w2", IN_TURN, ago=7000, order_hash=7)
crash = ordered(
    "97q both again after a crash in which nothing of a portion was told", {0: TWICE, 1: TWICE}, "partition", "w1", "w2", **NOBODY
)
ran(ran(crash, "w1", "0:C 1:C", ago=8000), "w2", IN_TURN, ago=6500)
crash = ordered("97r both again after a crash in which the later one was told", {0: TWICE, 1: MULTI}, "partition", "w1", "w2", **NOBODY)
ran(ran(crash, "w1", "0:C 1:CS", ago=8000), "w2", IN_TURN, ago=6500)
for name, order, by in (("97s", "key", 7), ("97t", "partition", None)):
    two = ordered(f"{name} two workers at once, for longer than clocks differ, by {order}", BOTH, order, "w1", "w2", **PROVED)
    ran(ran(two, "w1", "0:C", ago=8000, order_hash=by), "w2", "1:CS", ago=7990, order_hash=by)
    ran(two, "w1", "0:S", ago=7000)
    two = ordered(f"{name} two workers at once, as clocks may differ, by {order}", BOTH, order, "w1", "w2", **PERHAPS)
    ran(ran(two, "w1", "0:C", ago=8000, order_hash=by), "w2", "1:CS", ago=7990, order_hash=by)
    ran(two, "w1", "0:S", ago=7500)
    two = ordered(f"{name} two workers in turn, by {order}", BOTH, order, "w1", "w2", **NOBODY)
    ran(ran(two, "w1", "0:CS", ago=8000, order_hash=by), "w2", "1:CS", ago=7900, order_hash=by)
two = ordered("97u two workers at once, one of which says no order", BOTH, "key", "w1", **NOBODY)
ran(ran(two, "w1", "0:C", ago=8000, order_hash=7), "w2", "1:CS", ago=7990, order_hash=7)
ran(two, "w1", "0:S", ago=7000)
two = ordered("97v two workers at once, and the other ran it first", {0: MULTI, 1: ONCE}, "partition", "w1", "w2", **NOBODY)
ran(ran(two, "w1", "0:C", ago=8000), "w2", IN_TURN, ago=7990)
ran(two, "w1", "0:S", ago=7000)
hole = ordered("97w events are missing that could say that it was done before", BOTH, "key", **PERHAPS)
ran(hole.skip("w1", 2), "w1", "1:CS 0:CS", order_hash=7)
dead = ordered("97x the later one began before the dead letter", {0: DEAD, 1: ONCE}, "key", **PROVED)
ran(dead, "w1", "0:CF 1:C 0:X 1:S", order_hash=7)
dead = ordered("97y the later one began after the dead letter, which was sent again", {0: ONCE, 1: ONCE}, "key", **NOBODY)
ran(ran(dead, "w1", "0:CFX 1:CS", order_hash=7), "w1", "0:CS", order_hash=7, run=1)
ran(ordered("97z what never started is overtaken by nobody", {0: DEAD, 1: ONCE}, "partition", **NOBODY), "w1", "1:C 0:X 1:S")
late = ordered("98 a copy under an order", BOTH, "partition", without={0: OVERTAKEN, 1: OVERTAKEN}, flags={0: Flag.OUT_OF_ORDER})
late.say("w1", "0:CFB 1:CS").say("w1", "0@2:CS", attrs='{"out_of_order":true}')
late = ordered("98b what ran out of order overtakes nobody", BOTH, "key", **NOBODY, flags={1: Flag.OUT_OF_ORDER})
ran(late, "w1", "0:C", order_hash=7).say("w1", "1:CS", order_hash=7, attrs='{"out_of_order":true}')
ran(late, "w1", "0:S")
back = ordered("98c the group went back over it", BOTH, "key", **PERHAPS)
ran(back, "w1", "1:CS", order_hash=7).say("w1", "W=2 W=0")
ran(back, "w1", "0:CS", order_hash=7)
ran(
    ordered("98d the first one by two", ALL_THREE, "key", flags={0: Flag.OVERTAKEN}, without={1: OVERTAKEN, 2: OVERTAKEN}),
    "w1",
    "0:C 1:CS 2:CS 0:S",
    order_hash=7,
)
ran(
    ordered("98e two by the last one", ALL_THREE, "key", flags={0: Flag.OVERTAKEN, 1: Flag.OVERTAKEN}), "w1", "2:CS 0:CS 1:CS", order_hash=7
)
epochs = ordered("98f two dedup epochs are two lanes", {}, "partition", apart={("", "bill", 1, 0): ONCE, ("", "bill", 0, 1): ONCE})
epochs.say("w1", "1:CS").say("w1", "0:CS", dedup_epoch=1)
at_once = ordered(
    "98g a run of many in one call", dict.fromkeys(range(200), ONCE), "partition", without=dict.fromkeys(range(200), OVERTAKEN)
)
for step in "CS":
    ran(at_once, "w1", " ".join(f"{offset}:{step}" for offset in range(200)))

# What began too early counts although it failed, or was given up for good.
ran(ordered("98h the later one of a key failed at first, and began too early", BOTH, "key", **PROVED), "w1", "0:C 1:CI 0:S", order_hash=7)
ran(CASES["98h the later one of a key failed at first, and began too early"].history, "w1", "1:CS", order_hash=7, run=1)
ran(
    ordered("98i the later one of a key is a dead letter, and began too early", {0: ONCE, 1: DEAD}, "key", **PROVED),
    "w1",
    "0:C 1:CFX 0:S",
    order_hash=7,
)
again = ordered("98j the later one of a partition failed while the earlier one waited", BOTH, "partition", **PROVED)
ran(ran(again, "w1", "0:CI 1:CI"), "w1", IN_TURN, run=1)
dead = ordered("98k the later one of a partition began before the dead letter", {0: DEAD, 1: ONCE}, "partition", **PROVED)
ran(dead, "w1", "0:CF 1:C 0:X 1:S")
# What was together in one call did not overtake each other.
dead = ordered("98l of a call with two of a partition one is a dead letter", {0: DEAD, 1: ONCE}, "partition", **NOBODY)
for offset in (0, 1):
    dead.say("w1", f"{offset}:C", ago=30, exec_id=(dead.number("w1") << 20) + 1000 + offset)
ran(dead, "w1", "1:S 0:F 0:X")
again = ordered("98m of a call with two of a partition one failed, and the other was given back", BOTH, "partition", **NOBODY)
ran(ran(again, "w1", "0:C 1:C 0:I 1:J"), "w1", IN_TURN, run=1)
again = ordered("98n one that was given back is overtaken", BOTH, "key", **PROVED)
ran(ran(again, "w1", "0:CJ 1:CS", order_hash=7), "w1", "0:CS", order_hash=7, run=1)
for order, by in (("key", 7), ("partition", None)):
    at_once = ordered(f"98o two of one hash in one call, by {order}", BOTH, order, **NOBODY)
    for offset in (0, 1):
        exec_id = (at_once.number("w1") << 20) + 1000 + offset
        at_once.say("w1", f"{offset}:C", ago=30, exec_id=exec_id, order_hash=by)
    ran(at_once, "w1", "0:S 1:S")
    two = ordered(
        f"98p both failed in one call, and ran in turn in another worker, by {order}", {0: TWICE, 1: TWICE}, order, "w1", "w2", **NOBODY
    )
    for offset in (0, 1):
        two.say("w1", f"{offset}:C", ago=8000, exec_id=(two.number("w1") << 20) + 1000 + offset, order_hash=by)
    ran(ran(two, "w1", "0:I 1:I", ago=7990), "w2", IN_TURN, ago=6000, order_hash=by)
torn = ordered("98q of a call that failed one worker could tell of one message", {0: TWICE, 1: TWICE}, "partition", "w1", "w2", **NOBODY)
for offset in (0, 1):
    torn.say("w1", f"{offset}:C", ago=8000, exec_id=(torn.number("w1") << 20) + 1000 + offset)
ran(ran(torn, "w1", "0:I", ago=7990), "w2", IN_TURN, ago=6000)
two = ordered("98r another worker began too early, and the earlier one had failed before", BOTH, "partition", "w1", "w2", **PROVED)
ran(ran(ran(two, "w1", "0:CI", ago=8000), "w2", "1:CS", ago=7900), "w1", "0:CS", ago=6000, run=1)
ran(
    ordered("98s one was left out, and ran last", ALL_THREE, "partition", flags={1: Flag.OVERTAKEN}, without={0: OVERTAKEN, 2: OVERTAKEN}),
    "w1",
    "0:CS 2:CS 1:CS",
)
