"""The reason for one verdict, and the action to take. Plain Python."""

from __future__ import annotations

from typing import Final

from ackwise.spark.vocabulary import ACTIONS, FLAG_ACTIONS, MEANINGS, Flag, LogicalVerdict, Verdict

__all__ = ["GAP_RULE", "LOGICAL_RULES", "advice", "rule_of"]

_RULES: Final = {
    Verdict.LOST: "the group committed past it, and no event says that it was done, sent back, dead-lettered, skipped or suppressed",
    Verdict.NEVER_SEEN: "the group committed past it, and no worker reported that it fetched it or that the broker has nothing there",
    Verdict.RETENTION_LOSS: "the broker had deleted it before anybody fetched it, and a worker had to jump over it",
    Verdict.RETRY_LOST: "it was sent back, it is due for longer than the grace, all delay and retry topics were read to their ends "
    "since then, and no later attempt has an outcome",
    Verdict.PHANTOM_SUPPRESSED: "it was suppressed as done, no record of its key was done or is still open, and the events reach back as "
    "far as the store remembers",
    Verdict.STUCK: "its last claim has no outcome, the worker that had it is dead, and lease and grace are over",
    Verdict.MULTI_EXECUTED: "more than one run of it succeeded, each under a claim",
    Verdict.UNKNOWN_EXPORT_GAP: "it would be called lost, never seen, stuck or a phantom, but events are missing that may say otherwise",
    Verdict.IN_FLIGHT: "its last claim has no outcome, and the worker that has it lives, or its lease and the grace are not over",
    Verdict.RETRYING: "it was sent back, or a later attempt has no outcome yet, and its copy may still come",
    Verdict.PENDING: "it was fetched, it has no outcome yet, and the group has not committed past it",
    Verdict.SKIPPED_BY_SEEK: "the group committed past it, nobody fetched it, and a worker jumped over it",
    Verdict.DEAD_LETTERED: "its dead letter was acknowledged, and no run of it succeeded",
    Verdict.DROPPED: "it failed, and its instance broadcasts, where nothing is sent back; no run of it succeeded",
    Verdict.SKIPPED: "it was passed over on purpose, and no run of it succeeded",
    Verdict.CANCELLED: "it was cancelled while it waited, its copy was dropped when it was due, and no later attempt was seen",
    Verdict.DUPLICATE_SUPPRESSED: "it was not run, since another record of its key was done, or is on its way",
    Verdict.SUPPRESSED_BY_DEAD: "it was not run, since the store knew its key as that of a dead letter",
    Verdict.MAYBE_TWICE: "a run of it succeeded, and by its flags another did so, or may have",
    Verdict.EXACTLY_ONCE: "a run of it succeeded, and by the events no other did under a claim",
}
_ADVICE: Final = {
    Verdict.LOST: "Send the origin record again.",
    Verdict.NEVER_SEEN: "Fetch this offset. If the broker has nothing there, some other worker of the group read the topic; else send the "
    "record again.",
    Verdict.RETENTION_LOSS: "The topic has it no longer: produce it again from where it came, and let the topic keep its records for "
    "longer than the group may be away.",
    Verdict.RETRY_LOST: "Send the origin record again.",
    Verdict.PHANTOM_SUPPRESSED: "The store remembers what nobody did: remove this key from it, then send the record again.",
    Verdict.STUCK: "See whether its partition is consumed at all; the next delivery runs it.",
    Verdict.UNKNOWN_EXPORT_GAP: "Find the missing files or logs that are named below, and ask again.",
    Verdict.IN_FLIGHT: "Wait; look at the worker if it takes long.",
    Verdict.RETRYING: "Wait until it is due.",
    Verdict.PENDING: "Wait; if the partition has no worker, start one.",
    Verdict.DEAD_LETTERED: (
        "Look at the dead letter, mend the cause, and send it again with ackwise dlq redrive, if it should still be done; a new record "
        "with the same dedup key is dropped as a duplicate until the store's retention is over."
    ),
    Verdict.SUPPRESSED_BY_DEAD: (
        "Redrive the dead letter of its key with ackwise dlq redrive; a record that comes after that succeeded is a duplicate of a "
        "success. This one is not run any more."
    ),
    Verdict.DROPPED: "Mend the cause, and bring this instance up to date in your own way; the other instances have outcomes of their own.",
}
_FLAG_ADVICE: Final = {
    Flag.COMMITTED_PAST: "Nobody will deliver it again: unless it is found done when you ask again, send the origin record again.",
    Flag.AMBIGUOUS_EXEC: "It may have run more than once: look up its effect in your own system, by its key.",
    Flag.REPEATED: "It ran without a claim, so nothing could prevent it: turn deduplication on and give it a key.",
    Flag.RAN_CANCELLED: "It was cancelled, and ran all the same: undo its effect, if it should not be.",
}

GAP_RULE: Final = "the broker has nothing at this offset: a transaction's marker, an aborted or a compacted record"
LOGICAL_RULES: Final = {
    LogicalVerdict.LOGICAL_DUPLICATE: "more than one record of this key was run with success under a claim",
    LogicalVerdict.PHANTOM: "a record of this key was suppressed, and none was ever done",
}


def rule_of(verdict: Verdict) -> str:
    """Return the rule that gives the verdict, as the end of a sentence."""
    return _RULES.get(verdict, MEANINGS[verdict])


def advice(verdict: Verdict, flags: Flag) -> list[str]:
    """Return the actions to take, a sentence each."""
    if verdict is Verdict.DEAD_LETTERED and flags & (Flag.REDRIVEN | Flag.DIED_AGAIN) == Flag.REDRIVEN:
        return ["Wait: its dead letter was sent again, and that copy has not ended yet."]
    found = [_ADVICE.get(verdict) or ACTIONS.get(verdict, "")]
    found += [_FLAG_ADVICE.get(flag, FLAG_ACTIONS[flag]) for flag in FLAG_ACTIONS if flag in flags and not _is_implied(verdict, flag)]
    return [sentence for sentence in found if sentence]


def _is_implied(verdict: Verdict, flag: Flag) -> bool:
    return flag is Flag.AMBIGUOUS_EXEC and verdict is Verdict.MULTI_EXECUTED
