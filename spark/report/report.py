"""`RunReport`: the findings of a run as one value, and as JSON. Plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ackwise.middleware.repairplan import Summary
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.fold.facts import Writer
from ackwise.spark.fold.gaps import Hole
from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.judge.production import Production
from ackwise.spark.report.copies import RetryAccount
from ackwise.spark.report.delays import Delays
from ackwise.spark.report.details import NO_DETAILS, Details
from ackwise.spark.report.redriven import Redriven, redriven_of
from ackwise.spark.report.timeline import Timeline
from ackwise.spark.storeclaims.findings import ClaimReport
from ackwise.spark.vocabulary import (
    ANOMALIES,
    DOUBTFUL,
    INCONCLUSIVE,
    MEANINGS,
    RED,
    ExitCode,
    Flag,
    LogicalVerdict,
    ProducedVerdict,
    Verdict,
)

__all__ = ["OWN_REASON", "PAGE", "UNDONE", "DeadLetters", "Finding", "LogicalFinding", "Missing", "RunReport", "Tally"]

#: The name of the page for people, beside `summary.json`.
PAGE: Final = "report.html"
#: Shown in place of reasons that handlers give themselves: they may be any text, and contain data.
OWN_REASON: Final = "given by the handler"
#: Verdicts that are anomalies with `--strict` alone: nothing was lost without a word, and something was not done.
UNDONE: Final = (Verdict.DROPPED, Verdict.SUPPRESSED_BY_DEAD)


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of messages of one handler and topic with one verdict and one set of flags."""

    group: str
    handler: str
    topic: str
    verdict: Verdict
    flags: Flag
    messages: int

    @property
    def is_anomaly(self) -> bool:
        """Whether somebody should look at them."""
        return self.verdict in ANOMALIES or bool(self.flags & RED)

    @property
    def is_doubtful(self) -> bool:
        """Whether they were run again or overtaken, or may have been, and are no anomaly."""
        return not self.is_anomaly and bool(self.flags & DOUBTFUL)

    @property
    def is_ambiguous(self) -> bool:
        """Whether it is unknown how often they were run."""
        return Flag.AMBIGUOUS_EXEC in self.flags and Flag.REPEATED not in self.flags and self.verdict is not Verdict.MULTI_EXECUTED


@dataclass(frozen=True, slots=True)
class Finding:
    """One message that somebody should look at."""

    group: str
    handler: str
    topic: str
    partition: int
    offset: int
    verdict: Verdict
    flags: Flag
    attempt: int
    last_event: str
    last_ts: int
    """Microseconds."""
    overtaken_by: int | None = None
    """The offset of a later message of its key or partition that overtook it, or may have."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Offsets without any event: `start` to before `end`."""

    group: str
    topic: str
    partition: int
    start: int
    end: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class LogicalFinding:
    """The number of dedup hashes of one handler with one logical verdict."""

    group: str
    handler: str
    verdict: LogicalVerdict
    flags: Flag
    hashes: int


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The number of dead letters of one handler with one reason."""

    group: str
    handler: str
    reason: str
    messages: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """The findings of a run."""

    run_id: str
    as_of: int
    """Microseconds; 0 without events."""
    roots: Sequence[str]
    files: int
    bytes: int
    writers: Sequence[Writer]
    missing_events: int
    """Sequence numbers that are not there."""
    accounts: Sequence[PartitionAccount]
    tallies: Sequence[Tally]
    findings: Sequence[Finding]
    """The worst, at most `listed`."""
    doubtful: Sequence[Finding]
    """Messages that were run again or overtaken, or may have been, and are no anomaly: the first, at most `listed`."""
    missing: Sequence[Missing]
    """The first, at most `listed`."""
    listed: int
    logical: Sequence[LogicalFinding]
    dead_letters: Sequence[DeadLetters]
    delays: Sequence[Delays]
    timeline: Timeline | None
    """None without messages."""
    unreadable: Sequence[str]
    warnings: Sequence[str]
    output: str
    config: ReconcileConfig
    produced: Production | None = None
    """None if neither a table nor an event says what was produced."""
    retry_accounts: Sequence[RetryAccount] = ()
    plan: Summary | None = None
    """The summary of the repair plan; None in reports without a plan."""
    details: Details = NO_DETAILS
    claims: ClaimReport | None = None
    """None if no store was compared."""
    unbounded: Sequence[str] = ()
    """Groups that consume in a share group, which commits no offsets, if nothing is known of what was produced for them."""
    holes: Sequence[Hole] = ()
    """The ranges of those sequence numbers."""
    absent: Mapping[int, str] = field(default_factory=dict)
    """The groups of the writers of which there is no event, and that commits name."""
    app: str = ""
    """The app, `MODULE:APP`, if the command named one."""
    engine: str = "spark"
    """The name of what judged: `spark` or `local`."""

    @property
    def page(self) -> str:
        """The path of the page for people."""
        return str(Path(self.output) / PAGE)

    @property
    def verdicts(self) -> Mapping[Verdict, int]:
        """The number of each verdict, worst first: messages, and offsets without events."""
        found: Counter[Verdict] = Counter()
        for tally in self.tallies:
            found[tally.verdict] += tally.messages
        for account in self.accounts:
            found.update(account.absent)
        if self.produced is not None and self.produced.lost_before_start:
            found[Verdict.LOST_PRODUCED] += self.produced.lost_before_start
        return {verdict: found[verdict] for verdict in sorted(found)}

    @property
    def flags(self) -> Mapping[Flag, int]:
        """The number of messages with each flag."""
        found: Counter[Flag] = Counter()
        for tally in self.tallies:
            found.update(dict.fromkeys(tally.flags, tally.messages))
        return {flag: found[flag] for flag in sorted(found)}

    @property
    def retries(self) -> Mapping[Verdict, int]:
        """The verdicts on messages that were sent back at least once."""
        found: Counter[Verdict] = Counter()
        for tally in self.tallies:
            if Flag.RETRIED in tally.flags:
                found[tally.verdict] += tally.messages
        return {verdict: found[verdict] for verdict in sorted(found)}

    @property
    def redriven(self) -> Sequence[Redriven]:
        """What became of the dead letters that were sent again, by handler."""
        return redriven_of(self.tallies)

    @property
    def ambiguous(self) -> int:
        """The number of messages that ran once or twice, unknown which."""
        return sum(tally.messages for tally in self.tallies if tally.is_ambiguous)

    @property
    def repeated(self) -> int:
        """The number of messages that succeeded again without a claim, beyond any verdict."""
        return self.flags.get(Flag.REPEATED, 0)

    @property
    def perhaps_overtaken(self) -> int:
        """The number of messages that a later one of their key or partition overtook, perhaps."""
        return self.flags.get(Flag.MAYBE_OVERTAKEN, 0)

    @property
    def orphaned(self) -> int:
        """The number of consumed records that are in no table of produced ones."""
        return 0 if self.produced is None else self.produced.orphaned

    @property
    def parked(self) -> int:
        """The number of messages that are parked in an outbox."""
        return 0 if self.produced is None else self.produced.number_of(ProducedVerdict.PARKED)

    @property
    def unlisted(self) -> int:
        """The number of further messages like those in `doubtful`."""
        return sum(tally.messages for tally in self.tallies if tally.is_doubtful) - len(self.doubtful)

    def meaning(self, verdict: Verdict) -> str:
        """Return the meaning of `verdict` in a few words, with the number of messages that are in doubt."""
        of_it = [tally for tally in self.tallies if tally.verdict is verdict and tally.is_doubtful]
        if verdict is not Verdict.MAYBE_TWICE or not of_it:
            return MEANINGS[verdict]
        repeated = sum(tally.messages for tally in of_it if Flag.REPEATED in tally.flags)
        ambiguous = sum(tally.messages for tally in of_it if tally.is_ambiguous)
        parts = [*([f"{ambiguous:,} in doubt"] if ambiguous else []), *([f"{repeated:,} run again"] if repeated else [])]
        return f"ran successfully, and perhaps more than once: {' and '.join(parts)}"

    @property
    def anomalies(self) -> int:
        """The number of messages, offsets, dedup hashes and unpublished records that need a look."""
        messages = sum(tally.messages for tally in self.tallies if tally.is_anomaly)
        offsets = sum(number for account in self.accounts for verdict, number in account.absent.items() if verdict in ANOMALIES)
        produced = 0 if self.produced is None else self.produced.lost_before_start + self.produced.not_published
        claims = 0 if self.claims is None else self.claims.anomalies
        # A phantom hash is there already, by its suppressed messages.
        return (
            messages
            + offsets
            + produced
            + claims
            + sum(finding.hashes for finding in self.logical if finding.verdict is LogicalVerdict.LOGICAL_DUPLICATE)
        )

    @property
    def is_in_doubt(self) -> bool:
        """Whether messages that may have been run twice or overtaken, or were without a claim, are the worst that was found."""
        return (
            bool(self.ambiguous or self.repeated or self.perhaps_overtaken or self.orphaned) and not self.anomalies and not self._is_unknown
        )

    @property
    def is_past_events(self) -> bool:
        """Whether the judged time begins after the last event: an empty result is then not a clean one."""
        return self.config.since is not None and self.config.since * 1e6 > self.as_of

    @property
    def _is_unknown(self) -> bool:
        if self.unreadable or self.unbounded or self.is_past_events or (self.claims is not None and self.claims.without_claims):
            return True
        if self.produced is not None and self.produced.number_of(ProducedVerdict.PUBLISH_UNKNOWN):
            return True
        return any(number for verdict, number in self.verdicts.items() if verdict in INCONCLUSIVE)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code: anomalies come before missing events; with `strict`, doubts are too, and what was dropped, parked or not run."""
        if self.anomalies or (
            self.config.strict
            and (
                self.ambiguous
                or self.repeated
                or self.perhaps_overtaken
                or self.orphaned
                or self.parked
                or any(map(self.verdicts.get, UNDONE))
            )
        ):
            return ExitCode.ANOMALIES
        return ExitCode.INCONCLUSIVE if self._is_unknown else ExitCode.CLEAN
