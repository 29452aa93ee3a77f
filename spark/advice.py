"""What to do about each verdict, flag and finding: in words, by the repair plan, and by a command.

Kinds are named, since members of different enumerations may be equal numbers. A text serves one message and many: `{s}`, `{it}`
and the like follow the number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ackwise.middleware.repairplan import Action
from ackwise.spark.vocabulary import Flag, Verdict

__all__ = ["ADVICE", "PLANNED", "STEP_MEANINGS", "UNREADABLE", "Advice", "advice_on", "said"]

#: The name of files that could not be read, among the kinds.
UNREADABLE: Final = "UNREADABLE"

_WHY: Final = "ackwise why {place} {events}"
_AGAIN: Final = "ackwise reconcile {events}"
_FOUND: Final = "ackwise reconcile {events} FOLDER-OF-THE-FOUND-FILES"
_SHOW: Final = "ackwise plan show {plan}"
_APPLY: Final = "ackwise plan apply {plan} {app}"
_REDRIVE: Final = "ackwise dlq redrive {app}"
_FIND: Final = "Find the missing files or logs that are named here, and run the same command again with their folder."

_ONE: Final = {"s": "", "it": "it", "its": "its", "is": "is", "this": "this"}
_MANY: Final = {"s": "s", "it": "them", "its": "their", "is": "are", "this": "these"}


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about one kind of finding."""

    text: str
    step: Action | None = None
    """What the repair plan does about it."""
    tells: str = _WHY
    """The command that tells more, with names in braces to be filled in; empty: none does."""
    mends: str = ""
    """The command that mends it; empty: none does."""


def _resent(text: str, step: Action) -> Advice:
    """Return the advice on what `ackwise plan apply` sends again."""
    return Advice(text, step, mends=_APPLY if step in (Action.REDELIVER, Action.PROBE, Action.RELEASE) else f"{_APPLY} --with-review")


#: By the name of a verdict, a flag or a finding. What is not here needs nothing to be done.
ADVICE: Final = {
    "LOST": _resent("Send the origin record{s} again.", Action.REDELIVER),
    "LOST_PRODUCED": _resent("Produced, and never received by the group: send the origin record{s} again.", Action.REDELIVER),
    "NEVER_SEEN": _resent(
        "Fetch {this} offset{s}. If the broker has nothing there, another worker of the group read the topic; otherwise send the "
        "record{s} again.",
        Action.PROBE,
    ),
    "RETENTION_LOSS": Advice(
        "The topic no longer has {it}: produce {it} again from the source, and let the topic keep its records for longer than the group "
        "may be stopped.",
        Action.REVIEW,
    ),
    "RETRY_LOST": _resent("Send the origin record{s} again.", Action.REDELIVER),
    "PHANTOM_SUPPRESSED": _resent(
        "The store says “done”, and no run did {it}: remove {its} key{s} from it, then send the record{s} again.", Action.REPLAY
    ),
    "STUCK": _resent("See whether {its} partition{s} {is} consumed at all; the next delivery runs {it}.", Action.RELEASE),
    "MULTI_EXECUTED": Advice(
        "Undo what was done a second time, if it had an effect. After a kill this is a run whose effect was done and not yet marked.",
        Action.REVIEW,
    ),
    "UNKNOWN_EXPORT_GAP": Advice(_FIND, Action.VERIFY, mends=_FOUND),
    "IN_FLIGHT": Advice("Wait; look at the worker if it takes long.", Action.REDELIVER),  # planned where it is COMMITTED_PAST
    "RETRYING": Advice("Wait until it is due."),
    "PENDING": Advice("Wait; if the partition has no worker, start one."),
    "DEAD_LETTERED": Advice(
        "Look at the cause{s} with ackwise dlq list, fix {it}, and send again what should still be done with ackwise dlq redrive; a new "
        "record with the same dedup key is dropped as a duplicate until the store's retention is over.",
        tells="ackwise dlq list {letters}",
        mends=_REDRIVE,
    ),
    "SUPPRESSED_BY_DEAD": Advice(
        "Redrive the dead letter{s} of {its} key{s} with ackwise dlq redrive: what has the key after that succeeded is a duplicate of a "
        "success. {This} record{s} {is} not run any more.",
        mends=_REDRIVE,
    ),
    "DROPPED": Advice(
        "Fix the cause, and bring this instance up to date in your own way, such as by a restart that loads everything again; the other "
        "instances have their own outcomes."
    ),
    "COMMITTED_PAST": Advice(
        "Kafka will not deliver {it} again: unless the next audit finds {it} done, send the origin record{s} again.", mends=_APPLY
    ),
    "OVERTAKEN": Advice(
        "A later message of {its} key or partition started first; the flag names it. Check in your own system whether the older "
        "effect{s} replaced the newer one. The order of the handler was broken: please report it with the events."
    ),
    "MAYBE_OVERTAKEN": Advice(
        "A later message, which the flag names, may have started first: check whether the clocks of the workers differ or events are "
        "missing, and look at the effect{s} in your own system."
    ),
    "AMBIGUOUS_EXEC": Advice(
        "Perhaps run more than once: look up the effect{s} in your own system, by {its} key{s}, and undo what is there twice."
    ),
    "REPEATED": Advice("Run without a claim, so nothing could prevent it: turn deduplication on and give {it} a key."),
    "RAN_CANCELLED": Advice(
        "Cancelled, and run all the same: undo the effect{s} if there should be none. What was answered “too late” may run."
    ),
    "LOGICAL_DUPLICATE": Advice(
        "Undo the effects that were done again, if there are any. The table “logical” has the records.", Action.REVIEW, tells=_SHOW
    ),
    "NOT_PUBLISHED": Advice(
        "See whether the relay of the outbox runs, and whether its events are among these. The table “produced” has the record{s}.",
        tells="",
    ),
    "ORPHAN_CONSUMED": Advice(
        "The transaction{s} may have been rolled back, or another producer writes to the topic: undo the effect{s}, if there should be "
        "none. The table “produced” has the offset{s}."
    ),
    "PARKED": Advice(
        "Fix the cause that “ackwise outbox show” names, then requeue {it} with the command{s} of the plan.", Action.REQUEUE, tells=_SHOW
    ),
    "PRODUCE_FAILED": Advice("The sender had an error and decided what to do. The table “produced” has the id{s}.", tells=""),
    "PUBLISH_UNKNOWN": Advice(_FIND, tells="", mends=_FOUND),
    "DONE_UNSEEN": Advice(
        "See in your own system whether it was done. If not, delete the row{s} in the store, and send the record{s} again."
    ),
    "FORGOTTEN": Advice("Find out what empties the table, or who restored an older one."),
    "UNMARKED": Advice("Nothing, if the worker was killed; the flags of a message say whether it may have been run twice."),
    "UNRECORDED": Advice("Nothing: the next delivery of {it} is not run, and records that the first was."),
    "LEFT_OPEN": Advice("Nothing: the next delivery takes {it} over. The verdict says whether there will be one."),
    UNREADABLE: Advice("Repair or restore the file{s} named under “Evidence”, and run reconcile again.", tells="", mends=_AGAIN),
}
#: The step of the repair plan for each kind; the others need none.
PLANNED: Final = {name: advice.step for name, advice in ADVICE.items() if advice.step is not None}
#: What a step of the repair plan does.
STEP_MEANINGS: Final = {
    Action.REDELIVER: "copies of the origin records go to the group’s retry topic",
    Action.PROBE: "copies of what the broker has there go to the group’s retry topic; where it has nothing, all is well",
    Action.RELEASE: "a copy goes to the retry topic, once the dead worker’s claim is taken from it; one whose lease runs is left alone",
    Action.REPLAY: "a copy goes to the retry topic with a replay id, past a claim that says “done” though no run did it",
    Action.VERIFY: "the store is asked, and what it does not know as done is sent again",
    Action.REQUEUE: "the command in the step lets the relay send parked rows of an outbox; “plan apply” does nothing with them",
    Action.REVIEW: "nothing by itself: people decide",
}


def said(name: str, number: int) -> str:
    """Return what to do about `number` findings of a kind."""
    words = _ONE if number == 1 else _MANY
    return ADVICE[name].text.format(**words, This=words["this"].capitalize())


def advice_on(verdict: Verdict, flags: Flag) -> list[str]:
    """Return what to do about one message, a sentence each."""
    if verdict is Verdict.DEAD_LETTERED and flags & (Flag.REDRIVEN | Flag.DIED_AGAIN) == Flag.REDRIVEN:
        return ["Wait: its dead letter was sent again, and that copy has not ended yet."]
    names = [verdict.name, *(str(flag.name) for flag in flags if not _is_implied(verdict, flag))]
    return [said(name, 1) for name in names if name in ADVICE]


def _is_implied(verdict: Verdict, flag: Flag) -> bool:
    return flag is Flag.AMBIGUOUS_EXEC and verdict is Verdict.MULTI_EXECUTED
