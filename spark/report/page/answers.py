"""The first screen of the page: lost messages, repeated messages, and the actions to take."""

from __future__ import annotations

from ackwise.spark.claims.findings import CLAIM_ACTIONS, CLAIM_ANOMALIES, CLAIM_MEANINGS, ClaimVerdict
from ackwise.spark.report.in_doubt import ambiguous
from ackwise.spark.report.page.data import Action, Answer
from ackwise.spark.report.page.tone import Tone, tone_of
from ackwise.spark.report.page.words import are, counted, listed, messages, were
from ackwise.spark.report.report import RunReport
from ackwise.spark.vocabulary import (
    ACTIONS,
    FLAG_ACTIONS,
    FLAG_MEANINGS,
    INCONCLUSIVE,
    LOGICAL_ACTIONS,
    LOSSES,
    MEANINGS,
    PRODUCED_ACTIONS,
    PRODUCED_MEANINGS,
    UNDER_WAY,
    ExitCode,
    Flag,
    LogicalVerdict,
    ProducedVerdict,
    Verdict,
)

__all__ = ["actions", "headline", "loss", "repeat", "waiting"]


def loss(report: RunReport) -> Answer:
    """Return whether a message failed to have its effect."""
    verdicts, question = report.verdicts, "Was anything lost?"
    lost = {verdict: number for verdict, number in verdicts.items() if verdict in LOSSES and number}
    risky, unknown = report.flags.get(Flag.COMMITTED_PAST, 0), sum(verdicts.get(verdict, 0) for verdict in INCONCLUSIVE)
    late = _late(report)
    if lost or late:
        losses = [f"{messages(sum(lost.values()))}: {listed(lost)}."] if lost else []
        losses += [f"{counted(late, 'record')} {were(late)} to be produced and never published."] if late else []
        return Answer(question, "Yes", "bad", [*losses, *_dead(report)])
    if risky:
        return Answer(question, "Maybe", "doubt", [f"{messages(risky)} are open, and the group has committed past them.", *_dead(report)])
    if unknown or report.unreadable:
        because = f"Events are missing: what became of {messages(unknown)} can’t be said." if unknown else "Not all logs could be read."
        return Answer(question, "Not known", "doubt", [because, *_dead(report)])
    if not verdicts:
        return Answer(question, "Nothing to judge", "doubt", ["These events are about no message at all."])
    because = (
        "Every offset up to the last commit is accounted for." if report.books else "Nothing was committed, so nothing was passed over."
    )
    return Answer(question, "No", "good", [because, *_dead(report)])


def repeat(report: RunReport) -> Answer:
    """Return whether a message or a key was run with success more than once."""
    question = "Was anything done twice?"
    run = report.verdicts.get(Verdict.MULTI_EXECUTED, 0)
    keys = _keys(report)
    unclaimed = report.repeated
    maybe = [_sentence(ambiguous(report))] if report.ambiguous else []
    if run or keys or unclaimed:
        because = [f"{messages(run)} with more than one successful run."] if run else []
        because += [f"{counted(keys, 'key')} of which more than one record was run."] if keys else []
        because += [f"{messages(unclaimed)} where at least one of the runs had no claim."] if unclaimed else []
        return Answer(question, "Yes", "bad" if run or keys else "doubt", because + maybe)
    if maybe:
        return Answer(question, "Maybe", "doubt", maybe)
    if report.missing_events or report.unreadable:
        return Answer(question, "None seen", "doubt", ["Events are missing, and a second run could hide there."])
    if not report.verdicts:
        return Answer(question, "Nothing to judge", "doubt", ["These events are about no message at all."])
    return Answer(question, "No", "good", ["No message and no key has more than one successful run."])


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}.".replace("'", "’")


def _dead(report: RunReport) -> list[str]:
    dead = report.verdicts.get(Verdict.DEAD_LETTERED, 0)
    dropped = report.verdicts.get(Verdict.DROPPED, 0)
    found = [f"{messages(dead)} in the dead-letter topic: not lost, and not done."] if dead else []
    return found + ([f"{messages(dropped)} dropped by an instance that broadcasts: not done there."] if dropped else [])


def _late(report: RunReport) -> int:
    return 0 if report.produced is None else report.produced.not_published


def _keys(report: RunReport) -> int:
    return sum(finding.hashes for finding in report.logical if finding.verdict is LogicalVerdict.LOGICAL_DUPLICATE)


def headline(report: RunReport) -> str:
    """Return both answers in one line."""
    if not report.verdicts and not report.unreadable and not _late(report):
        return "There is nothing to judge"
    if report.exit_code is ExitCode.INCONCLUSIVE and repeat(report).answer != "Yes":
        maybe = f", and {messages(report.ambiguous)} may have been done twice" if report.ambiguous else ""
        return f"No anomaly was found, but events are missing{maybe}"
    lost = sum(number for verdict, number in report.verdicts.items() if verdict in LOSSES) + _late(report)
    first = {
        "Yes": f"{messages(lost)} {were(lost)} lost",
        "Maybe": "Something may be lost",
        "No": "Nothing was lost",
    }.get(loss(report).answer, "Whether anything was lost can’t be told")
    twice = report.verdicts.get(Verdict.MULTI_EXECUTED, 0) + report.repeated
    repeated = messages(twice) if twice else counted(_keys(report), "key")
    more = f" and {report.ambiguous:,} may have been" if report.ambiguous else ""
    second = {
        "Yes": f"{repeated} {were(twice or _keys(report))} done twice{more}",
        "Maybe": f"{messages(report.ambiguous)} may have been done twice",
        "No": "nothing was done twice",
    }.get(repeat(report).answer, "nothing seems to be done twice")
    stuck = report.verdicts.get(Verdict.STUCK, 0)
    return f"{first}, {second}" + (f", {stuck:,} {are(stuck)} stuck" if stuck else "")


def actions(report: RunReport) -> list[Action]:
    """Return the actions to take, worst first."""
    without_events = {verdict for book in report.books for verdict in book.absent}
    found = [
        _action(verdict, report.verdicts.get(verdict, 0), "offset" if verdict in without_events else "message", MEANINGS[verdict], action)
        for verdict, action in ACTIONS.items()
    ]
    flags = {**report.flags, Flag.AMBIGUOUS_EXEC: report.ambiguous}  # of the others it is known that they ran twice
    found += [_action(flag, flags.get(flag, 0), "message", FLAG_MEANINGS[flag], action) for flag, action in FLAG_ACTIONS.items()]
    meaning = "more than one record of the key was run with success"
    found += [_action(verdict, _keys(report), "key", meaning, action) for verdict, action in LOGICAL_ACTIONS.items()]
    beside = {} if report.produced is None else report.produced.numbers
    found += [_action(kind, number, "record", PRODUCED_MEANINGS[kind], PRODUCED_ACTIONS[kind]) for kind, number in beside.items()]
    if report.claims is not None:
        found += [_of_claims(kind, number) for kind, number in report.claims.counts.items()]
    if report.unreadable:
        mend = "Mend or restore the files that are named under “Evidence”, and run reconcile again."
        found.append(Action("UNREADABLE", *_number(len(report.unreadable), "file"), "doubt", "could not be read to the end", mend))
    return sorted((each for each in found if each.number), key=lambda each: ("bad", "doubt", "good", "plain").index(each.tone))


def waiting(report: RunReport) -> str:
    """Return a sentence on what is still under way, or an empty text."""
    open_still = {verdict: number for verdict, number in report.verdicts.items() if verdict in UNDER_WAY and number}
    if not open_still:
        return ""
    number = sum(open_still.values())
    return f"{messages(number)} {are(number)} still under way ({listed(open_still)}): a later run will tell the rest."


def _action(kind: Verdict | Flag | LogicalVerdict | ProducedVerdict, number: int, of: str, meaning: str, action: str) -> Action:
    return Action(kind.name or "", *_number(number, of), tone_of(kind), meaning, action)


def _of_claims(kind: ClaimVerdict, number: int) -> Action:
    tone: Tone = "bad" if kind in CLAIM_ANOMALIES else "plain"
    return Action(kind.name, *_number(number, "key"), tone, CLAIM_MEANINGS[kind], CLAIM_ACTIONS[kind])


def _number(number: int, noun: str) -> tuple[int, str]:
    return number, noun if number == 1 else f"{noun}s"
