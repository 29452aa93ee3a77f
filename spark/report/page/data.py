"""The data of the page in reading order: numbers and sentences, without markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ackwise.spark.report.page.drawings import DelaysData, ExportsData, LatencyData, StripsData, TimelineData
from ackwise.spark.report.page.tone import Tone

__all__ = [
    "Action",
    "Answer",
    "AttemptRow",
    "BookRow",
    "BooksData",
    "Cell",
    "MatrixData",
    "MatrixRow",
    "Number",
    "PlanData",
    "PlanRow",
    "ProducedData",
    "ProducedRow",
    "ReasonRow",
    "ReportData",
    "RetryRow",
    "RunRow",
    "StepRow",
    "StoryRow",
    "StuckData",
    "StuckRow",
    "FindingRow",
    "VerdictRow",
    "WriterRow",
]


@dataclass(frozen=True, slots=True)
class Answer:
    """One of the two questions that everybody asks first."""

    question: str
    answer: str
    tone: Tone
    because: Sequence[str]


@dataclass(frozen=True, slots=True)
class Action:
    """The action for all messages with one verdict."""

    name: str
    number: int
    of: str
    """The counted things: messages, offsets, keys."""
    tone: Tone
    meaning: str
    action: str


@dataclass(frozen=True, slots=True)
class Number:
    """A count in a table, and how it is meant."""

    value: int
    tone: Tone


@dataclass(frozen=True, slots=True)
class BookRow:
    """One partition; `first` and `end` are the offsets from which and before which it is booked."""

    group: str
    partition: str
    first: int
    end: int
    offsets: int
    verdicts: Sequence[Number]
    gaps: int
    balance: int
    rewound: bool


@dataclass(frozen=True, slots=True)
class BooksData:
    """The books; the numbers in `verdicts` of a row are those of `columns`."""

    sentence: str
    tone: Tone
    columns: Sequence[str]
    rows: Sequence[BookRow]
    total: BookRow
    hidden: int


@dataclass(frozen=True, slots=True)
class ProducedRow:
    """The accounts of the records produced to one partition, as one group reads it; `orphans` were not produced."""

    group: str
    partition: str
    produced: int
    handled: int
    lost: int
    explained: int
    waiting: int
    earlier: int
    orphans: int


@dataclass(frozen=True, slots=True)
class ProducedData:
    """Produced records compared with consumed ones."""

    sentences: Sequence[str]
    tone: Tone
    rows: Sequence[ProducedRow]
    hidden: int


@dataclass(frozen=True, slots=True)
class RetryRow:
    """The fates of one handler's copies that were sent back at one attempt."""

    group: str
    handler: str
    topic: str
    attempt: int
    sent: int
    came: int
    waiting: int
    lost: int
    unknown: int
    overtaken: int


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """A verdict or a flag; `share` of all messages, 0 to 1."""

    name: str
    number: int
    share: float
    tone: Tone
    meaning: str


@dataclass(frozen=True, slots=True)
class FindingRow:
    """Offsets of one partition, all with one verdict on the same evidence."""

    verdict: str
    tone: Tone
    group: str
    partition: str
    offsets: str
    handler: str
    evidence: str


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """The number of one handler's dead letters with one reason; `share` of all, 0 to 1."""

    group: str
    handler: str
    reason: str
    number: int
    share: float


@dataclass(frozen=True, slots=True)
class WriterRow:
    """One process that wrote events."""

    writer: str
    client: str
    group: str
    mode: str
    fate: str
    tone: Tone
    first: str
    last: str
    events: int
    note: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A number in a matrix; `shade` from 0 to 4 grows with its logarithm."""

    value: int
    tone: Tone
    shade: int


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One row of a matrix; the numbers in `cells` are those of its columns."""

    group: str
    name: str
    cells: Sequence[Cell]


@dataclass(frozen=True, slots=True)
class MatrixData:
    """The number of each kind by topic."""

    columns: Sequence[str]
    rows: Sequence[MatrixRow]
    hidden: int


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """The endings of all messages that reached one attempt; `share` of all messages."""

    attempt: int
    reached: int
    share: float
    ended: int
    done: int
    again: int
    in_place: int
    dead: int
    open: int
    anomaly: int
    other: int


@dataclass(frozen=True, slots=True)
class StuckRow:
    """The stuck claims of one writer, by age."""

    writer: str
    client: str
    total: int
    ages: Sequence[int]


@dataclass(frozen=True, slots=True)
class StuckData:
    """Stuck claims by age and client."""

    columns: Sequence[str]
    rows: Sequence[StuckRow]
    hidden: int


@dataclass(frozen=True, slots=True)
class StepRow:
    """One thing that happened to a message."""

    at: str
    worker: str
    attempt: str
    what: str


@dataclass(frozen=True, slots=True)
class StoryRow:
    """One message or offset, and what happened to it; `why` it has its verdict."""

    name: str
    tone: Tone
    place: str
    about: str
    why: str
    steps: Sequence[StepRow]


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run on these folders, this one last."""

    run: str
    as_of: str
    outcome: str
    tone: Tone
    messages: int
    anomalies: int
    doubtful: int
    lost: int
    repeated: int
    is_this: bool


@dataclass(frozen=True, slots=True)
class PlanRow:
    """The steps of a plan that are of one kind."""

    action: str
    steps: int
    offsets: int
    meaning: str


@dataclass(frozen=True, slots=True)
class PlanData:
    """The repair plan in short."""

    sentence: str
    rows: Sequence[PlanRow]


@dataclass(frozen=True, slots=True)
class ReportData:
    """The whole page, from top to bottom."""

    title: str
    headline: str
    with_group: bool
    """Whether there are several groups, so that tables name them."""
    outcome: str
    tone: Tone
    exit_code: int
    subject: str
    """The groups and the time."""
    answers: Sequence[Answer]
    actions: Sequence[Action]
    waiting: str
    """A sentence on what is still under way; empty if nothing is."""
    plan: PlanData | None
    books: BooksData | None
    produced: ProducedData | None
    verdicts: Sequence[VerdictRow]
    flags: Sequence[VerdictRow]
    matrix: MatrixData | None
    """Verdicts by topic; None where one topic is all there is."""
    findings: Sequence[FindingRow]
    findings_sentence: str
    strips: StripsData | None
    stories: Sequence[StoryRow]
    latency: LatencyData | None
    attempts: Sequence[AttemptRow]
    retries: Sequence[RetryRow]
    delays: DelaysData | None
    dead_letters: Sequence[ReasonRow]
    redriven: Sequence[str]
    """What became of those that were sent again, a sentence for each handler."""
    failures: MatrixData | None
    stuck: StuckData | None
    timeline: TimelineData | None
    evidence: Sequence[str]
    evidence_tone: Tone
    exports: ExportsData | None
    writers: Sequence[WriterRow]
    hidden_writers: int
    runs: Sequence[RunRow]
    """Empty if this is the first."""
    read: Sequence[tuple[str, str]]
