"""The first screen of the page: lost messages, repeated messages, and what is still under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ackwise.spark.report.in_doubt import ambiguous
from ackwise.spark.report.report import RunReport
from ackwise.spark.report.todo import keys_done_twice
from ackwise.spark.report.tone import Tone
from ackwise.spark.report.words import are, counted, listed, messages, were
from ackwise.spark.vocabulary import INCONCLUSIVE, LOSSES, UNDER_WAY, Flag, ProducedVerdict, Verdict

__all__ = ["Answer", "headline", "loss", "repeat", "waiting"]

_NOTHING: Final = "These events are about no message at all."


class Answer(NamedTuple):
    """One of the two questions that everybody asks first."""

    question: str
    answer: str
    tone: Tone
    because: Sequence[str]


def loss(report: RunReport) -> Answer:
    """Return whether a message failed to have its effect. What is unknown is counted beside what is lost."""
    question, rest = "Was anything lost?", [*_unknown(report), *_dead(report)]
    lost = {verdict: number for verdict, number in report.verdicts.items() if verdict in LOSSES and number}
    risky, late = report.flags.get(Flag.COMMITTED_PAST, 0), _late(report)
    they = "it" if risky == 1 else "them"
    open_still = [f"{messages(risky)} {are(risky)} open, and the group has committed past {they}."] if risky else []
    if lost or late:
        losses = [f"{messages(sum(lost.values()))}: {listed(lost)}."] if lost else []
        losses += [f"{counted(late, 'record')} {were(late)} to be produced and never published."] if late else []
        return Answer(question, "Yes", "bad", [*losses, *open_still, *rest])
    if risky:
        return Answer(question, "Maybe", "doubt", [*open_still, *rest])
    if _unknown(report):
        return Answer(question, "Not known", "doubt", rest)
    if not report.verdicts:
        return Answer(question, "Nothing to judge", "doubt", [_NOTHING])
    all_there = "Every offset up to the last commit is accounted for."
    return Answer(question, "No", "good", [all_there if report.accounts else "Nothing was committed, so nothing was passed over.", *rest])


def repeat(report: RunReport) -> Answer:
    """Return whether a message or a key was ran successfully more than once."""
    question, run, keys = "Was anything done twice?", report.verdicts.get(Verdict.MULTI_EXECUTED, 0), keys_done_twice(report)
    maybe = [_sentence(ambiguous(report))] if report.ambiguous else []
    hidden = ["Events are missing, and a second run could hide there."] if report.missing_events or report.unreadable else []
    if run or keys or report.repeated:
        because = [f"{messages(run)} with more than one successful run."] if run else []
        because += [f"{counted(keys, 'key')} of which more than one record was run."] if keys else []
        because += [f"{messages(report.repeated)} where at least one of the runs had no claim."] if report.repeated else []
        return Answer(question, "Yes", "bad" if run or keys else "doubt", [*because, *maybe, *hidden])
    if maybe:
        return Answer(question, "Maybe", "doubt", [*maybe, *hidden])
    if hidden:
        return Answer(question, "None seen", "doubt", hidden)
    if not report.verdicts:
        return Answer(question, "Nothing to judge", "doubt", [_NOTHING])
    return Answer(question, "No", "good", ["No message and no key has more than one successful run."])


def headline(report: RunReport) -> str:
    """Return both answers in one line."""
    late, stuck, unknown = _late(report), report.verdicts.get(Verdict.STUCK, 0), _number_unknown(report)
    if not report.verdicts and not report.unreadable and not late:
        return "There is nothing to judge"
    lost = sum(number for verdict, number in report.verdicts.items() if verdict in LOSSES) + late
    more_unknown = f", of {unknown:,} more it is not known" if unknown else ""
    not_known = f"of {messages(unknown)} it is not known" if unknown else "not all is known"
    first = {
        "Yes": f"{messages(lost)} {were(lost)} lost{more_unknown}",
        "Maybe": f"Something may be lost{more_unknown}",
        "No": "Nothing was lost",
    }.get(loss(report).answer, f"No loss was found, but {not_known}")
    twice = report.verdicts.get(Verdict.MULTI_EXECUTED, 0) + report.repeated
    repeated = messages(twice) if twice else counted(keys_done_twice(report), "key")
    more = f" and {report.ambiguous:,} may have been" if report.ambiguous else ""
    second = {
        "Yes": f"{repeated} {were(twice or keys_done_twice(report))} done twice{more}",
        "Maybe": f"{messages(report.ambiguous)} may have been done twice",
        "No": "nothing was done twice",
    }.get(repeat(report).answer, "nothing seems to be done twice")
    return f"{first}, {second}" + (f", {stuck:,} {are(stuck)} stuck" if stuck else "")


def waiting(report: RunReport) -> str:
    """Return a sentence on what is still under way, or an empty text."""
    open_still = {verdict: number for verdict, number in report.verdicts.items() if verdict in UNDER_WAY and number}
    if not open_still:
        return ""
    number = sum(open_still.values())
    return f"{messages(number)} {are(number)} still under way ({listed(open_still)}): a later run will tell the rest."


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}.".replace("'", "’")


def _number_unknown(report: RunReport) -> int:
    unsent = 0 if report.produced is None else report.produced.number_of(ProducedVerdict.PUBLISH_UNKNOWN)
    return sum(report.verdicts.get(verdict, 0) for verdict in INCONCLUSIVE) + unsent


def _unknown(report: RunReport) -> list[str]:
    """Return what can't be said, a sentence each."""
    unknown = _number_unknown(report)
    if unknown:
        return [f"Of {messages(unknown)} it is not known whether {'it was' if unknown == 1 else 'they were'} lost: events are missing."]
    if report.unreadable:
        return ["Not all logs could be read."]
    if report.unbounded:
        return ["Of records that no worker received nothing is known: the group commits no offsets."]
    return ["No event is as late as the time from which on it was to be judged."] if report.is_past_events else []


def _dead(report: RunReport) -> list[str]:
    dead, dropped = report.verdicts.get(Verdict.DEAD_LETTERED, 0), report.verdicts.get(Verdict.DROPPED, 0)
    found = [f"{messages(dead)} in the dead-letter topic: not lost, and not done."] if dead else []
    return found + ([f"{messages(dropped)} dropped by an instance that broadcasts: not done there."] if dropped else [])


def _late(report: RunReport) -> int:
    return 0 if report.produced is None else report.produced.not_published
