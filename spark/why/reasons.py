"""The reason for one verdict. Plain Python."""

from __future__ import annotations

from typing import Final

from ackwise.spark.vocabulary import MEANINGS, LogicalVerdict, Verdict

__all__ = ["GAP_RULE", "LOGICAL_RULES", "rule_of"]

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
    Verdict.SKIPPED_BY_SEEK: "the group committed past it, no worker fetched it, and one jumped over it",
    Verdict.DEAD_LETTERED: "its dead letter was acknowledged, and no run of it succeeded",
    Verdict.DROPPED: "it failed, and its instance broadcasts, where nothing is sent back; no run of it succeeded",
    Verdict.SKIPPED: "it was passed over on purpose, and no run of it succeeded",
    Verdict.CANCELLED: "it was cancelled while it waited, its copy was dropped when it was due, and no later attempt was seen",
    Verdict.DUPLICATE_SUPPRESSED: "it was not run, since another record of its key was done, or is on its way",
    Verdict.SUPPRESSED_BY_DEAD: "it was not run, since the store knew its key as that of a dead letter",
    Verdict.MAYBE_TWICE: "a run of it succeeded, and by its flags another did so, or may have",
    Verdict.EXACTLY_ONCE: "a run of it succeeded, and by the events no other did under a claim",
}

GAP_RULE: Final = "the broker has nothing at this offset: a transaction's marker, an aborted or a compacted record"
LOGICAL_RULES: Final = {
    LogicalVerdict.LOGICAL_DUPLICATE: "more than one record of this key ran successfully under a claim",
    LogicalVerdict.PHANTOM: "a record of this key was suppressed, and none was ever done",
}


def rule_of(verdict: Verdict) -> str:
    """Return the rule that gives the verdict, as the end of a sentence."""
    return _RULES.get(verdict, MEANINGS[verdict])
