"""`Standing`: how a whole group stands over all its workers, and what in it needs somebody. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

__all__ = [
    "APP", "FORGOTTEN_AFTER", "GROUP", "Finding", "LettersStanding", "LevelStanding", "PartitionStanding", "PausedByCommand", "Standing",
    "WorkerStanding", "findings",
]  # fmt: skip

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
    """Client, host and the end of the member's id; `None` if nobody has it."""
    committed: int | None
    """The watermark as of the last commit: the first message that is not done."""
    end: int
    lag: int
    """Offsets from the watermark to the end."""
    done_ahead: int
    """How many of these are done already, behind one that is not; as far as the commit could say."""
    age: float | None
    """Since the timestamp of the record at the watermark; `None` if nothing is left, or the record can't be read."""
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
    """Dead letters: how many are in the topic, how many nobody has redriven or dropped, and the seconds since the newest one."""

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
    """What waits where nobody reads it, a sentence for each topic."""

    @property
    def lag(self) -> int:
        """Of all partitions."""
        return sum(each.lag for each in self.partitions)


class Finding(NamedTuple):
    """Something that needs somebody."""

    sentence: str
    command: tuple[str, ...] = ()
    """The words of the command of Ackwise that acts on it, with `APP` or `GROUP` in the place of the app's name; empty without one."""


def findings(standing: Standing) -> list[Finding]:
    """What needs somebody; none if the group is healthy. A lag is none: only its owner knows how much is too much."""
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
        yield Finding(f"the group rebalances ({standing.state}), and nobody has a partition; look again in a moment", ("status", GROUP))
    elif orphans := [each for each in standing.partitions if each.owner is None]:
        first = orphans[0]
        yield Finding(f"nobody has {len(orphans)} of {len(standing.partitions)} partitions, such as {first.topic}/{first.partition}")


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
        yield Finding(f"{letters.open} dead letters are open; ackwise dlq list shows what they died of", ("dlq", "list", GROUP))


def _of_other_letters(others: Sequence[LettersStanding]) -> Iterator[Finding]:
    for each in others:
        if each.open:
            yield Finding(
                f"{each.open} dead letters are open in {each.topic}, where they went before; ackwise dlq list with --dlq shows them",
                ("dlq", "list", GROUP, "--dlq", each.topic),
            )
