"""What to do now: each kind of finding with its number, the advice, and the commands that tell more and mend it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ackwise.spark.advice import ADVICE, UNREADABLE, said
from ackwise.spark.report.report import RunReport
from ackwise.spark.report.tone import Tone, tone_of
from ackwise.spark.storeclaims.findings import CLAIM_MEANINGS
from ackwise.spark.vocabulary import (
    DOUBTFUL,
    FLAG_MEANINGS,
    INCONCLUSIVE,
    PRODUCED_MEANINGS,
    UNDER_WAY,
    Flag,
    LogicalVerdict,
    ProducedVerdict,
)

__all__ = ["ToDo", "keys_done_twice", "todo"]

#: The order of the page. What leaves a question comes before what is known and harmless.
_TONES: Final = ("bad", "doubt", "good", "plain")
_OPEN_QUESTIONS: Final = {verdict.name for verdict in INCONCLUSIVE} | {ProducedVerdict.PUBLISH_UNKNOWN.name, UNREADABLE}
_DOUBTS: Final = {flag.name for flag in DOUBTFUL}
#: Stands for the app where none was named.
_APP: Final = "MODULE:APP"


@dataclass(frozen=True, slots=True)
class ToDo:
    """The action for all findings of one kind."""

    name: str
    number: int
    of: str
    """The counted things: messages, offsets, keys."""
    tone: Tone
    meaning: str
    action: str
    tells: str
    """The command that tells more of the first of them; empty: none does."""
    mends: str
    """The command that mends them; empty: none does."""


def todo(report: RunReport) -> list[ToDo]:
    """Return the actions to take: anomalies first, then what is unknown, then what is in doubt, the harmless last."""
    found = [_todo(report, *kind) for kind in _kinds(report) if kind[1] and kind[0] in ADVICE]
    return sorted(found, key=lambda each: (_TONES.index(each.tone), each.name not in _OPEN_QUESTIONS, each.name not in _DOUBTS))


def keys_done_twice(report: RunReport) -> int:
    """Return the number of keys of which more than one record was run with success."""
    return sum(finding.hashes for finding in report.logical if finding.verdict is LogicalVerdict.LOGICAL_DUPLICATE)


def _kinds(report: RunReport) -> Iterator[tuple[str, int, str, Tone, str]]:
    """Yield name, number, noun, tone and meaning of each kind."""
    without_events = {verdict for account in report.accounts for verdict in account.absent}
    for verdict, number in report.verdicts.items():
        if verdict not in UNDER_WAY:
            yield verdict.name, number, "offset" if verdict in without_events else "message", tone_of(verdict), report.meaning(verdict)
    for flag, number in report.flags.items():
        # Of the others that are ambiguous it is known that they ran twice.
        of_it = report.ambiguous if flag is Flag.AMBIGUOUS_EXEC else number
        yield str(flag.name), of_it, "message", tone_of(flag), FLAG_MEANINGS[flag]
    twice = LogicalVerdict.LOGICAL_DUPLICATE
    yield twice.name, keys_done_twice(report), "key", tone_of(twice), "more than one record of the key ran successfully"
    for kind, number in ({} if report.produced is None else report.produced.numbers).items():
        yield kind.name, number, "record", tone_of(kind), PRODUCED_MEANINGS[kind]
    for claim, number in ({} if report.claims is None else report.claims.counts).items():
        yield claim.name, number, "key", tone_of(claim), CLAIM_MEANINGS[claim]
    yield UNREADABLE, len(report.unreadable), "file", "doubt", "could not be read to the end"


def _todo(report: RunReport, name: str, number: int, noun: str, tone: Tone, meaning: str) -> ToDo:
    advice, plan = ADVICE[name], report.plan
    is_planned = plan is not None and any(advice.step in (None, each.action) for each in plan.planned)
    tells, mends = (
        "" if "{plan}" in command and not is_planned else _filled(report, command, name) for command in (advice.tells, advice.mends)
    )
    return ToDo(name, number, noun if number == 1 else f"{noun}s", tone, meaning, said(name, number), tells, mends)


def _filled(report: RunReport, command: str, name: str) -> str:
    place = next(_places(report, name), "")
    if "{place}" in command and not place:
        return ""
    letters = max(report.dead_letters, key=lambda each: each.messages, default=None)
    app = report.app or _APP
    return command.format(
        place=f"-- {shlex.quote(place)}" if place.startswith("-") else shlex.quote(place),
        events=shlex.join(report.roots),
        plan=shlex.quote(report.plan.path if report.plan is not None else ""),
        app=app,
        letters=report.app or (_APP if letters is None else shlex.quote(letters.group)),
    )


def _places(report: RunReport, name: str) -> Iterator[str]:
    """Yield the listed places of a kind."""
    for found in (*report.doubtful, *report.findings):
        if found.verdict.name == name or name in {flag.name for flag in found.flags}:
            yield f"{found.topic}/{found.partition}/{found.offset}"
    for missing in report.missing:
        if missing.verdict.name == name:
            yield f"{missing.topic}/{missing.partition}/{missing.start}"
    for orphans in () if report.produced is None or name != ProducedVerdict.ORPHAN_CONSUMED.name else report.produced.orphans:
        yield f"{orphans.topic}/{orphans.partition}/{orphans.start}"
    for claim in () if report.claims is None else report.claims.findings:
        if claim.finding.name == name:
            yield f"{claim.topic}/{claim.partition}/{claim.offset}"
