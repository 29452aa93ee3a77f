"""`Standing`: the state of a group over all its workers, what needs attention, and its rendering as tables and JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ackwise.middleware.log import plain
from ackwise.plugin.operate.table import Table

#: Seconds within which a worker speaks again, with time to spare, and after which one that is silent is left out: it died.
FRESH_WITHIN: Final = 45.0
FORGOTTEN_AFTER: Final = 600.0

#: What stands in a command for the app, and for the app or its group.
APP: Final = "MODULE:APP"
GROUP: Final = "APP-or-GROUP"


class PartitionStanding(NamedTuple):
    """One partition that the group reads. Ages and times are seconds; offsets are `None` where nothing was committed."""

    topic: str
    partition: int
    owner: str | None
    """Client, host and the end of the member's id; `None` if no member has it."""
    committed: int | None
    """The watermark as of the last commit: the first message that is not done."""
    end: int
    lag: int
    """Offsets from the watermark to the end."""
    done_ahead: int
    """How many of these are done already, behind one that is not; as far as the commit could say."""
    lag_seconds: float | None
    """Since the timestamp of the record at the watermark, the oldest one that is not done; 0 if all are, `None` if it can't be read."""
    waiting: int
    """Messages that failed and wait in place for their next attempt."""
    waiting_attempts: int
    """The most attempts that one of these has had."""
    due_in: float | None
    """Until the first of these is tried again."""
    paused: tuple[str, ...]
    """What paused it by command: a handler, or the partition."""
    worker: str | None = None
    """Host and process of the worker that said last that it has it."""


class LevelStanding(NamedTuple):
    """What waits in the delay topic on the rungs of one wait, such as `10s`."""

    topic: str
    level: str
    pending: int


class LettersStanding(NamedTuple):
    """Dead letters: how many are in the topic, how many are open (neither redriven nor dropped), and the seconds since the newest one."""

    topic: str
    letters: int
    open: int
    newest_age: float | None


class PausedByCommand(NamedTuple):
    """What `ackwise pause` has paused, and since when, epoch milliseconds."""

    what: str
    at_ms: int


class WorkerStanding(NamedTuple):
    """What one worker said of itself last."""

    host: str
    pid: int
    version: str
    """Of its Ackwise."""
    client: str
    heard: float
    """Seconds since it said so."""
    partitions: tuple[str, ...]
    in_hand: int
    """Messages that it has fetched and not settled."""
    running: int
    waiting: tuple[tuple[str, int], ...]
    """Messages that it holds, by the reason."""
    paused: tuple[str, ...]
    """Handlers and partitions, each with who said so: `command`, or `code` of the app."""
    troubles: tuple[str, ...]
    """What keeps it from its work, a sentence each."""
    expired: int = 0
    """Messages that expired since it started."""

    @property
    def name(self) -> str:
        """Host and process."""
        return f"{self.host}:{self.pid}"

    @property
    def is_fresh(self) -> bool:
        """Whether it spoke a moment ago."""
        return self.heard <= FRESH_WITHIN


class Standing(NamedTuple):
    """One group. `state` is the coordinator's word: `Stable`, `Empty` and so on."""

    group: str
    state: str
    members: tuple[str, ...]
    relays: int
    """Members of the relay's own group."""
    partitions: tuple[PartitionStanding, ...]
    levels: tuple[LevelStanding, ...]
    letters: LettersStanding | None
    """`None` without a topic for them."""
    paused: tuple[PausedByCommand, ...]
    workers: tuple[WorkerStanding, ...] = ()
    """Those that said how they are, the newest word first. One that died is among them for a while."""
    other_letters: tuple[LettersStanding, ...] = ()
    """Dead letters in topics that the app had for them before."""
    elsewhere: tuple[str, ...] = ()
    """Copies in topics that are not read, a sentence for each topic."""

    @property
    def lag_seconds(self) -> float:
        """Of the oldest record that is not done, as far as it can be read."""
        return max((each.lag_seconds or 0.0 for each in self.partitions), default=0.0)

    @property
    def lag(self) -> int:
        """Of all partitions."""
        return sum(each.lag for each in self.partitions)

    @property
    def expired(self) -> int:
        """Messages that expired since the workers started, a dead letter each."""
        return sum(worker.expired for worker in self.workers)


class Finding(NamedTuple):
    """Something that needs attention."""

    sentence: str
    command: tuple[str, ...] = ()
    """The words of the command of Ackwise that acts on it, with `APP` or `GROUP` in the place of the app's name; empty without one."""


def findings(standing: Standing) -> list[Finding]:
    """What needs attention; none if the group is healthy. A lag is none: only its owner knows how much is too much."""
    return [
        *_of_members(standing),
        *_of_workers(standing.workers),
        *_of_pauses(standing.paused),
        *_of_relay(standing),
        *_of_letters(standing.letters),
        *_of_other_letters(standing.other_letters),
        *map(Finding, standing.elsewhere),
    ]


def _of_members(standing: Standing) -> Iterator[Finding]:
    if not standing.members:
        yield Finding(f"no worker is in the group, which is {standing.state}; start one", ("run", APP))
    elif standing.state != "Stable":
        yield Finding(f"the group rebalances ({standing.state}), and no member has a partition; look again in a moment", ("status", GROUP))
    elif orphans := [each for each in standing.partitions if each.owner is None]:
        first = orphans[0]
        yield Finding(f"no member has {len(orphans)} of {len(standing.partitions)} partitions, such as {first.topic}/{first.partition}")


def _of_workers(workers: Sequence[WorkerStanding]) -> Iterator[Finding]:
    for worker in workers:
        for trouble in worker.troubles if worker.is_fresh else ():
            yield Finding(f"worker {worker.name}: {trouble}")


def _of_pauses(paused: Sequence[PausedByCommand]) -> Iterator[Finding]:
    for each in paused:
        yield Finding(f"{each.what} is paused by command; ackwise resume lets it go on", ("resume", APP, each.what))


def _of_relay(standing: Standing) -> Iterator[Finding]:
    pending = sum(level.pending for level in standing.levels)
    if pending and not standing.relays:
        yield Finding(f"no relay runs, and {pending} copies wait to come back; start a worker, or ackwise relay", ("relay", APP))


def _of_letters(letters: LettersStanding | None) -> Iterator[Finding]:
    if letters is not None and letters.open:
        yield Finding(f"{letters.open} dead letters are open; run ackwise dlq list to see why", ("dlq", "list", GROUP))


def _of_other_letters(others: Sequence[LettersStanding]) -> Iterator[Finding]:
    for each in others:
        if each.open:
            yield Finding(
                f"{each.open} dead letters are open in {each.topic}, where they went before; ackwise dlq list with --dlq shows them",
                ("dlq", "list", GROUP, "--dlq", each.topic),
            )


#: Characters of a name that Ackwise did not choose.
_NAME: Final = 250

_UNKNOWN: Final = "as of the last commits; what only workers know, such as messages in flight and open breakers, is not shown"
_TOLD: Final = "as of the last commits, and of what each worker said last"


class ShownStatus(NamedTuple):
    """One group, in the order in which it is read."""

    headline: str
    tables: tuple[Table, ...]
    letters: str
    """A sentence; empty without a topic for dead letters."""
    findings: tuple[Finding, ...]
    unknown: str
    """A sentence on what is not shown."""


def shown(standing: Standing) -> ShownStatus:
    """For people."""
    return ShownStatus(
        _headline(standing),
        tuple(_tables(standing)),
        _letters(standing),
        tuple(findings(standing)),
        _TOLD if standing.workers else _UNKNOWN,
    )


def facts(standing: Standing) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "group": standing.group,
        "as_of": "last commit",
        "state": standing.state,
        "members": list(standing.members),
        "relays": standing.relays,
        "lag": standing.lag,
        "lag_seconds": standing.lag_seconds,
        "partitions": [each._asdict() for each in standing.partitions],
        "levels": [each._asdict() for each in standing.levels],
        "expired": standing.expired,
        "dead_letters": None if standing.letters is None else standing.letters._asdict(),
        "paused": [each._asdict() for each in standing.paused],
        "workers": [worker._asdict() for worker in standing.workers],
        "findings": [finding.sentence for finding in findings(standing)],
    }


def _headline(standing: Standing) -> str:
    workers, relays = _several(len(standing.members), "worker"), _several(standing.relays, "relay")
    return f"group {standing.group}: {standing.state}, {workers}, {relays}, lag {standing.lag}{_oldest(standing)}"


def _oldest(standing: Standing) -> str:
    return f", the oldest {_duration(standing.lag_seconds)} old" if standing.lag_seconds else ""


def _tables(standing: Standing) -> Iterator[Table]:
    columns = "partition", "owner", "watermark", "lag", "done ahead", "oldest", "waiting"
    yield Table("Partitions", columns, [_row(each) for each in standing.partitions])
    if standing.workers:
        of_workers = "worker", "Ackwise", "partitions", "in hand", "running", "waiting", "paused", "heard"
        yield Table("Worker", of_workers, [_worker_row(each) for each in standing.workers])
    if pending := tuple((each.level, str(each.pending)) for each in standing.levels if each.pending):
        yield Table("Delay level", ("delay level", "pending"), pending)


def _letters(standing: Standing) -> str:
    if (letters := standing.letters) is None:
        return ""
    newest = "" if letters.newest_age is None else f", the newest {_duration(letters.newest_age)} old"
    expired = f"; {_several(standing.expired, 'message')} expired since the workers started" if standing.expired else ""
    return f"dead letters: {letters.letters}, of which {letters.open} are open{newest}{expired}"


def _row(each: PartitionStanding) -> tuple[str, ...]:
    return (
        f"{each.topic}/{each.partition}",
        "nobody" if each.owner is None else plain(each.owner if each.worker is None else f"{each.owner} = {each.worker}", _NAME),
        "-" if each.committed is None else str(each.committed),
        str(each.lag),
        str(each.done_ahead),
        "-" if each.lag_seconds is None or not each.lag else _duration(each.lag_seconds),
        "; ".join(_why(each)),
    )


def _worker_row(each: WorkerStanding) -> tuple[str, ...]:
    return (
        plain(f"{each.name} {each.client}", _NAME),
        plain(each.version, _NAME),
        str(len(each.partitions)),
        str(each.in_hand),
        str(each.running),
        plain("; ".join(f"{messages}: {why}" for why, messages in each.waiting), 1_000),
        plain(", ".join(each.paused), _NAME),
        f"{_duration(each.heard)} ago",
    )


def _why(each: PartitionStanding) -> Iterator[str]:
    for what in each.paused:
        yield f"{what} is paused by command"
    if each.due_in is not None:
        attempts = _several(each.waiting_attempts, "attempt")
        yield f"{_several(each.waiting, 'message')} in place, tried again in {_duration(each.due_in)} after {attempts}"


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    """In the largest unit of which there is one."""
    unit, size = next((each for each in (("d", 86400), ("h", 3600), ("m", 60)) if seconds >= each[1]), ("s", 1))
    return f"{round(seconds) // size} {unit}"
