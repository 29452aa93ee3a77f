"""The tables of the page, each from the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from ackwise.spark.advice import STEP_MEANINGS
from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.report.attempts import Ending, together
from ackwise.spark.report.delays import Delays
from ackwise.spark.report.details import AGES
from ackwise.spark.report.earlier import EarlierRun
from ackwise.spark.report.latency import Latency
from ackwise.spark.report.missingranges import missing_ranges
from ackwise.spark.report.page.charts import Lanes, late_classes
from ackwise.spark.report.page.latency import ordered
from ackwise.spark.report.page.matrices import Matrix
from ackwise.spark.report.page.sentences import OUTCOMES, note
from ackwise.spark.report.page.table import Cell, Table, code, counts, head, number, percent, shaded, share, text
from ackwise.spark.report.ranges import alike_offsets
from ackwise.spark.report.report import RunReport
from ackwise.spark.report.tone import Tone, tone_of, tone_of_finding
from ackwise.spark.report.words import duration, hexadecimal, instant, late
from ackwise.spark.storeclaims.findings import CLAIM_MEANINGS
from ackwise.spark.vocabulary import FLAG_MEANINGS, Account, CopyFate, Flag, Verdict
from ackwise.spark.why.story import Story
from ackwise.spark.why.telling import rows

__all__ = [
    "attempts_table", "accounts_table", "claims_table", "dead_letters_table", "delays_table", "findings_table", "flags_table",
    "lanes_table", "late_table", "latency_table", "matrix_table", "missing_table", "plan_table", "produced_table", "retries_table",
    "runs_table", "steps_table", "stuck_table", "verdicts_table", "writers_table",
]  # fmt: skip


def plan_table(report: RunReport) -> Table:
    """Return the steps of the repair plan by action."""
    planned = () if report.plan is None else report.plan.planned
    found = [
        [head(each.action, is_code=True), number(each.steps), number(each.offsets), text(STEP_MEANINGS[each.action])] for each in planned
    ]
    caption = "The repair plan; nothing of it is done before it is applied"
    return Table("Repair plan", caption, ("action", "steps", "offsets", "it means"), found)


def accounts_table(report: RunReport) -> Table:
    """Return the accounts: of each partition its offsets, and the number of each verdict."""
    columns = ("partition", "from", "before", "offsets", "difference", "exactly once", "other verdicts", "gaps")
    caption = (
        "Every offset of a source, from the first that the group answers for to its last commit, by verdict; the difference is what has "
        "none, or more than one"
    )
    every = Counter[Verdict]()
    for account in report.accounts:
        every.update(account.verdicts)
    offsets, balance, gaps = (sum(getattr(account, name) for account in report.accounts) for name in ("expected", "balance", "gaps"))
    foot = [head("all"), Cell(""), Cell(""), number(offsets), number(balance, "bad"), *_verdicts(every), number(gaps)]
    found = [_of(report, account.partition.group[1], _account(account)) for account in report.accounts]
    return Table("Accounts", caption, _columns(report, columns), found, _of(report, "", foot), "partitions")


def _account(account: PartitionAccount) -> list[Cell]:
    name = f"{account.partition.topic}/{account.partition.partition}{' (rewound)' if account.rewound else ''}"
    begin, end = Cell(f"{account.start:,}", "n"), Cell(f"{account.committed:,}", "n")
    return [
        head(name),
        begin,
        end,
        number(account.expected),
        number(account.balance, "bad"),
        *_verdicts(account.verdicts),
        number(account.gaps),
    ]


def _verdicts(found: Mapping[Verdict, int]) -> list[Cell]:
    once = found.get(Verdict.EXACTLY_ONCE, 0)
    return [number(once), counts({verdict: found[verdict] for verdict in sorted(found) if verdict is not Verdict.EXACTLY_ONCE})]


def produced_table(report: RunReport) -> Table:
    """Return the accounts of the produced records."""
    accounts = () if report.produced is None else report.produced.accounts
    columns = ("partition", "produced", "received", "lost", "otherwise accounted for", "not come to", "before the group", "orphans")
    found = [
        _of(
            report,
            account.partition.group[1],
            [
                *(
                    head(f"{account.partition.topic}/{account.partition.partition}"),
                    number(account.produced),
                    number(account.counts[Account.HANDLED]),
                ),
                *(number(account.lost, "bad"), number(account.counts[Account.EXPLAINED]), number(account.counts[Account.WAITING])),
                *(number(account.counts[Account.EARLIER]), number(account.orphans, "doubt")),
            ],
        )
        for account in accounts
    ]
    caption = "Records that were produced, by what became of them; orphans were consumed and are not among them"
    return Table("Produced", caption, _columns(report, columns), found, noun="partitions")


def verdicts_table(report: RunReport) -> Table:
    """Return the verdicts, worst first."""
    total, found = sum(report.verdicts.values()), []
    for verdict, value in report.verdicts.items():
        if value:
            tone = tone_of(verdict)
            meaning = text(report.meaning(verdict))
            found.append([head(verdict.name, tone, is_code=True), number(value, tone), share(value, total, tone), meaning])
    caption = "Messages, and offsets without any event, each with one verdict; worst first"
    return Table("Verdicts", caption, ("verdict", "number", "share", "it means"), found)


def flags_table(report: RunReport) -> Table:
    """Return the flags; those that need nobody come last."""
    total, found = sum(report.verdicts.values()), []
    for flag, value in sorted(report.flags.items(), key=lambda item: (("bad", "doubt", "good", "plain").index(tone_of(item[0])), item[0])):
        tone, name = tone_of(flag), str(flag.name)
        found.append([head(name, tone, is_code=True), number(value, tone), share(value, total, tone), text(FLAG_MEANINGS[flag])])
    caption = "What is worth knowing beside the verdict; a message may be in several rows"
    return Table("Flags", caption, ("flag", "number", "share", "it means"), found)


def matrix_table(report: RunReport, matrix: Matrix, name: str, caption: str, first: str, *, with_group: bool) -> Table:
    """Return a matrix; the darker a cell, the more, by the logarithm."""
    found = [
        [head(each), *(shaded(value, tone, matrix.most) for value, tone in zip(numbers, matrix.tones, strict=True))]
        for _, each, numbers in matrix.rows
    ]
    columns = (first, *matrix.columns)
    if with_group:
        found = [_of(report, group, cells) for (group, _, _), cells in zip(matrix.rows, found, strict=True)]
        columns = _columns(report, (first, *(column.replace("_", " ").lower() for column in matrix.columns)))
    return Table(name, f"{caption}; the darker, the more, by the logarithm", columns, found, is_matrix=True)


def findings_table(report: RunReport) -> Table:
    """Return the listed messages and offsets, alike ones in one row, worst first."""
    found = []
    for each in alike_offsets(report):
        verdict = head(each.verdict.name, tone_of_finding(each.verdict, Flag(0)), is_code=True)
        about = [text(each.offsets), text(each.handler), text(each.evidence)]
        found.append(_of(report, each.group, [verdict, text(each.partition), *about]))
    columns = _columns(report, ("verdict", "partition", "offsets", "handler", "evidence"))
    return Table("Where to look", "Coordinates of the origin records", columns, found)


def steps_table(story: Story) -> Table:
    """Return what happened to one message."""
    found = [[head(at), text(worker), Cell(attempt, "n"), text(what)] for at, worker, attempt, what in rows(story.steps)]
    name = f"What happened to {story.place}"
    return Table(name, name, ("time", "worker", "attempt", "what"), found)


def claims_table(report: RunReport) -> Table:
    """Return the listed keys about which store and events disagree."""
    found = []
    for each in () if report.claims is None else report.claims.findings:
        name = head(each.finding.name, tone_of(each.finding), is_code=True)
        place = text(f"{each.topic}/{each.partition}/{each.offset}")
        about = [place, text(each.handler), code(each.verdict.name), code(each.key or ""), text(CLAIM_MEANINGS[each.finding])]
        found.append(_of(report, each.group, [name, *about]))
    columns = _columns(report, ("finding", "message", "handler", "by the events", "row in the store", "it means"))
    return Table("Claims", "The first messages whose key the store and the events disagree about", columns, found)


def stuck_table(report: RunReport) -> Table:
    """Return the stuck claims by worker and age; empty classes of age are left out."""
    stuck = report.details.stuck
    ages = [duration(seconds * 1_000_000) for seconds in AGES]
    labels = [f"up to {ages[0]}", *(f"{low} – {high}" for low, high in pairwise(ages)), f"over {ages[-1]}"]
    used = [place for place in range(len(labels)) if any(each.ages[place] for each in stuck)]
    found = [
        [head(hexadecimal(each.writer_id), is_code=True), text(each.client), number(sum(each.ages), "bad")]
        + [number(each.ages[place]) for place in used]
        for each in stuck
    ]
    caption = "Claims of messages that no worker has taken up since, by the worker that made them and by age"
    return Table("Stuck claims", caption, ("worker", "client", "all", *(labels[place] for place in used)), found, noun="workers")


def latency_table(report: RunReport) -> Table:
    """Return the latencies by topic."""
    found = [_of(report, each.group, _latency(each)) for each in ordered(report.details.latencies)]
    columns = _columns(report, ("topic", "messages", "50 %", "95 %", "99 %", "below 0", "share"))
    caption = "From the record’s timestamp until its success was reported, by topic: a share took so long or less, to within 5 %"
    return Table("Latency by topic", caption, columns, found, noun="topics")


def _latency(each: Latency) -> list[Cell]:
    # What was done before it was written took no time that anybody knows.
    known = each.negative < each.messages
    times = [Cell(duration(each.percentile(part)) if known else "–", "n") for part in (0.5, 0.95, 0.99)]
    below = Cell(percent(each.negative, each.messages), "n")
    return [head(each.topic), number(each.messages), *times, number(each.negative, "doubt"), below]


def attempts_table(report: RunReport) -> Table:
    """Return the attempts of all messages together; without rows if no message took more than one."""
    funnel, found = together(report.details.attempts), []
    for row in funnel:
        of = row.endings
        found.append([
            head(row.attempt), number(row.messages), share(row.messages, funnel[0].messages), number(of[Ending.IN_PLACE]),
            number(row.ended),
            number(of[Ending.DONE]), number(of[Ending.DEAD], "doubt"), number(of[Ending.OPEN]), number(of[Ending.ANOMALY], "bad"),
            number(of[Ending.OTHER]),
        ])  # fmt: skip
    columns = ("attempt", "reached it", "share", "again in place", "ended here", "done", "dead letter", "under way", "anomaly", "otherwise")
    caption = "Messages that reached each attempt, and how it went on there; what was sent back, or ran again in place, is in the next row"
    return Table("Attempts", caption, columns, found)


def retries_table(report: RunReport) -> Table:
    """Return the retry accounts."""
    tones: dict[CopyFate, Tone] = {CopyFate.LOST: "bad", CopyFate.UNKNOWN: "doubt"}
    found = [
        _of(
            report,
            account.group,
            [head(account.handler), text(account.topic), Cell(str(account.attempt), "n"), number(account.sent)]
            + [number(account.fates[fate], tones.get(fate, "plain")) for fate in CopyFate],
        )
        for account in report.retry_accounts
    ]
    caption = (
        "Copies that were sent back, by the attempt that failed: those that came again, and what became of the others; overtaken means "
        "that the message got an end without the copy"
    )
    return Table("Retries", caption, _columns(report, ("handler", "topic", "attempt", "sent back", *CopyFate)), found)


def late_table(report: RunReport) -> Table:
    """Return how many retries came how late."""
    classes = late_classes(report.delays)
    most = max(value for _, value in classes)
    found = [
        [head(label), number(value, tone), share(value, most, tone, is_said=False)]
        for label, value in classes
        for tone in ("doubt" if label == "early" else "plain",)
    ]
    caption = (
        "The last retry of each message, from its due time to the claim of its run, or to the run’s end where it had no claim; rounded "
        "down to two digits"
    )
    return Table("How late retries came", caption, ("late by", "messages", "beside the fullest class"), found)


def delays_table(report: RunReport) -> Table:
    """Return how late retries came, by handler."""
    found = [_of(report, each.group, _delays(each)) for each in report.delays]
    columns = _columns(report, ("handler", "messages", "early", "50 %", "90 %", "99 %", "all"))
    caption = "The same by handler: a share of its messages was late by so much or less"
    return Table("How late retries came, by handler", caption, columns, found)


def _delays(each: Delays) -> list[Cell]:
    times = [Cell(late(each.percentile(part)), "n") for part in (0.5, 0.9, 0.99, 1.0)]
    return [head(each.handler), number(each.messages), number(each.early, "doubt"), *times]


def dead_letters_table(report: RunReport) -> Table:
    """Return the dead letters by reason, the most frequent first."""
    total = sum(letters.messages for letters in report.dead_letters)
    by_number = sorted(report.dead_letters, key=lambda each: (-each.messages, each.group, each.handler, each.reason))
    found = [
        _of(report, each.group, [head(each.reason), number(each.messages), share(each.messages, total, "doubt"), text(each.handler)])
        for each in by_number
    ]
    caption = "Messages in the dead-letter topics, by reason; the record’s headers say more"
    return Table("Dead letters", caption, _columns(report, ("reason", "messages", "share", "handler")), found)


def lanes_table(lanes: Lanes, name: str, caption: str) -> Table:
    """Return the numbers of lanes, a row for each bucket."""
    found = [[head(time), *(number(lane.numbers[place], lane.tone) for lane in lanes.lanes)] for place, time in enumerate(lanes.times)]
    return Table(name, caption, ("from", *(lane.name.replace("_", " ").lower() for lane in lanes.lanes)), found)


def missing_table(report: RunReport) -> Table:
    """Return the ranges of events that are missing, with their writer and their time."""
    found = [
        _of(report, each.group, [
            head(hexadecimal(each.writer_id), is_code=True), text(each.host or each.client), text(f"{each.first:,} – {each.last:,}"),
            number(each.last - each.first + 1, "doubt"), text("" if each.since is None else instant(each.since)),
            text("" if each.until is None else instant(each.until)),
        ])
        for each in missing_ranges(report)
    ]  # fmt: skip
    columns = _columns(report, ("writer", "host", "numbers", "events", "not before", "not after"))
    caption = "Events that are missing, by the writer that numbered them, and when it wrote them; – where no event tells"
    return Table("Missing events", caption, columns, found, noun="ranges")


def writers_table(report: RunReport) -> Table:
    """Return the processes that wrote events."""
    found = []
    for each in report.writers:
        became = text(note(each), "doubt" if each.tail_is_unknown else "plain")
        about = [text(each.client), text(each.host), became, number(each.last_seq + 1)]
        times = [text(instant(each.first_ts)), text(instant(each.last_ts)), text(each.mode)]
        found.append(_of(report, each.group[1], [head(hexadecimal(each.writer_id), is_code=True), *about, *times]))
    columns = _columns(report, ("writer", "client", "host", "became", "events", "first", "last", "mode"))
    return Table("Writers", "The processes that wrote the events; times in UTC", columns, found)


def runs_table(runs: Sequence[EarlierRun]) -> Table:
    """Return the runs, the last of which is this one."""
    columns = ("judged as of", "outcome", "messages", "anomalies", "lost", "unknown", "done twice", "in doubt", "run")
    caption = "What runs on the same folders found, from their summaries; the last row is this run"
    return Table("Runs", caption, columns, [_run(run, is_this=run is runs[-1]) for run in runs])


def _run(run: EarlierRun, *, is_this: bool) -> list[Cell]:
    outcome, tone = OUTCOMES[run.exit_code]
    numbers = [number(run.messages), number(run.anomalies, "bad"), number(run.lost, "bad"), number(run.unknown, "doubt")]
    numbers += [number(run.repeated, "bad"), number(run.ambiguous, "doubt")]
    as_of = instant(run.as_of) if run.as_of else "no event"
    return [head(as_of, tone), text(outcome), *numbers, text(f"{run.run_id}, this one" if is_this else run.run_id)]


def _several_groups(report: RunReport) -> bool:
    return len({writer.group for writer in report.writers}) > 1


def _columns(report: RunReport, columns: Iterable[str]) -> tuple[str, ...]:
    return (*columns, "group") if _several_groups(report) else tuple(columns)


def _of(report: RunReport, group: str, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with the group, where there are several."""
    return [*cells, Cell(group)] if _several_groups(report) else list(cells)
