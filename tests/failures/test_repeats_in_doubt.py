"""A worker is killed at each step from the fetch to the commit: what it had started and not reported is in doubt, and nothing else is.

What really ran is in the handler's own ledger. What the worker left behind is judged twice: as it is, and as if the machine had gone
down with it, so that the log ends where it was last on the disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import pytest
from tests.eventfiles import plain_events_in
from tests.failures.calls import Fault, When
from tests.failures.process import WorkerProcess
from tests.failures.world import NewWorld, Record, World, each, start_process

from ackwise.middleware.events import EventCode
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.sources import gathered
from ackwise.spark.reference.oracle import Ruling, rule
from ackwise.spark.vocabulary import Flag, Verdict
from ackwise.stores.journal import recovery
from ackwise.stores.journal.layout import log_files

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

MESSAGES = [
    Record.of(f"m{number}", number % 3, "later" if number in (4, 11, 27, 40) else "ok", times=1) for number in range(60)
]  # fmt: skip

Event = dict[str, Any]
Place = tuple[str, int, int]

DONE: Final = (Verdict.EXACTLY_ONCE, Verdict.MAYBE_TWICE, Verdict.MULTI_EXECUTED)
#: What an event of a writer says that became of a message; in place nothing does, and no handler of these tests has an order.
OUTCOMES: Final = {
    *(EventCode.SUCCEEDED, EventCode.FAILED, EventCode.SENT_BACK, EventCode.DEAD_LETTERED, EventCode.DUP_SUPPRESSED, EventCode.STALE),
}  # fmt: skip
STARTS: Final = {EventCode.CLAIMED, EventCode.STARTED}


class Kill(NamedTuple):
    """Where a worker is killed, and which handler it has."""

    fault: Fault
    dedup: bool = False
    kind: Literal["batch", "message"] = "batch"

    def __str__(self) -> str:
        return f"{self.fault} of call {self.fault.call}, {self.kind}{' with claims' if self.dedup else ''}"


def kill(site: str, when: When, call: int = 1, **handler: Any) -> Kill:
    return Kill(Fault(site, when, call, signal.SIGKILL), **handler)


#: The steps from the fetch to the commit.
KILLS = [kill("consumer.take", "after", 3), kill("sink.flush", "before", 3), kill("sink.flush", "after", 5)]
KILLS += [kill("sink.mark", "before", 3), kill("sink.mark", "after", 2), kill("handler", "before", 3), kill("handler", "after", 2)]
KILLS += [kill("consumer.commit", "before", 2), kill("publish.retry-copy", "after")]
KILLS += [kill("handler", "before", 7, kind="message"), kill("sink.mark", "after", 2, kind="message")]
KILLS += [kill("store.claim", "after", 3, dedup=True), kill("handler", "after", 3, dedup=True)]
FURTHER = [kill("sink.flush", when, call) for when in ("before", "after") for call in (2, 4, 6, 8, 11)]
FURTHER += [kill("consumer.commit", "before", 4), kill("publish.due-copy", "after"), kill("publish.retry-copy", "before")]
STEPS: Final = ("consumer.take", "sink.mark", "handler", "sink.flush", "consumer.commit")
for dedup, kind in ((False, "message"), (True, "message"), (True, "batch")):
    FURTHER += [kill(site, "before", 2, dedup=dedup, kind=kind) for site in STEPS]
    FURTHER += [kill(site, "after", 4, dedup=dedup, kind=kind) for site in STEPS]
for site in ("store.claim", "store.complete-ok"):
    FURTHER += [kill(site, "before", 2, dedup=True), kill(site, "after", 2, dedup=True)]


async def killed_once(world: World, fault: Fault) -> None:
    """Consume everything with a worker that is killed at `fault` and one that goes on."""
    await world.create()
    await world.send(MESSAGES)
    first = start_process(world, fault, dedup=world.dedup, kind=world.kind)
    try:
        await killed(first, world, fault)
    finally:
        await first.gone()
    second = start_process(world, dedup=world.dedup, kind=world.kind)
    try:
        await world.wait_until_finished(workers=2)
        second.send_signal(signal.SIGTERM)
        assert await second.wait() == 0
    finally:
        await second.gone()


async def killed(process: WorkerProcess, world: World, fault: Fault) -> None:
    """Wait until `process` is killed. A busy machine commits so seldom that everything may be done before: then it is killed at its end."""
    end, finished = asyncio.ensure_future(process.wait()), asyncio.ensure_future(world.wait_until_finished(workers=1))
    await asyncio.wait({end, finished}, return_when=asyncio.FIRST_COMPLETED)
    finished.cancel()
    await asyncio.gather(finished, return_exceptions=True)
    if not end.done():
        process.kill()
    assert await end == -signal.SIGKILL, f"nobody was killed at {fault}"


class Left(NamedTuple):
    """What the workers left, once it was rolled."""

    ruling: Ruling
    events: Sequence[dict[str, Any]]


def left_by(world: World, *, cache_was_lost: bool) -> Left:
    """Roll a copy of the event logs, by another program, since the workers of these tests can't, and judge it."""
    root = world.folder / f"{world.group}.{'lost' if cache_was_lost else 'kept'}"
    shutil.copytree(world.folder / f"{world.group}.events", root)
    with pytest.MonkeyPatch.context() as patch:
        if cache_was_lost:
            patch.setattr(recovery, "boot_id", lambda: "of a later start")
            synced = {fact["log"]: fact["size"] for fact in world.ledger.read() if fact["fact"] == "synced"}
            for path in log_files(root):
                os.truncate(path, synced.get(path.name, 0))
        with gathered([root], root / "live") as evidence:
            assert (evidence.unreadable, evidence.logs.still_written) == ((), frozenset())
            rows = plain_events_in(*evidence.files)
            return Left(rule(rows, ReconcileConfig(), rolled_on=evidence.logs.rolled_on), rows)


def of_the_first(world: World, events: Iterable[Event]) -> list[Event]:
    """Those of the worker that was killed: the first to have its log on the disk."""
    log = next(fact["log"] for fact in world.ledger.read() if fact["fact"] == "synced")
    return [event for event in events if event["writer_id"] == int(log.split("-")[0], 16)]


def saw(world: World) -> set[tuple[str, int, int, int]]:
    """What the handler of the first worker had: origin and attempt."""
    facts = world.ledger.read()
    second = [place for place, fact in enumerate(facts) if fact["fact"] == "started"][1]
    return {tuple(message) for fact in facts[:second] if fact["fact"] == "saw" for message in fact["messages"]}


def reported(events: Iterable[Event]) -> set[tuple[str, int, int, int]]:
    """The attempts of which an event says what became of them."""
    return {(*origin(event), event["attempt"]) for event in events if event["event_type"] in OUTCOMES}


def started(events: Sequence[Event]) -> set[Place]:
    """The messages that could have been started, by origin."""
    copies = {
        (event["phys_topic"], event["phys_partition"], event["phys_offset"]): origin(event) for event in events if is_of_a_copy(event)
    }
    marks = (place for event in events if event["event_type"] == EventCode.MARKED for place in marked(event))
    return {origin(event) for event in events if event["event_type"] in STARTS} | {copies.get(place, place) for place in marks}


def is_of_a_copy(event: Event) -> bool:
    return event.get("phys_offset") is not None and event["event_type"] < EventCode.COMMITTED


def origin(event: Event) -> Place:
    return event["topic"], event["partition"], event["offset"]


def marked(event: Event) -> Iterator[Place]:
    masks = json.loads(event["attrs"])["masks"] if event.get("attrs") else None
    for offset in range(event["offset"], event["range_end"]):
        if masks is None or masks[(offset >> 6) - (event["offset"] >> 6)] >> (offset & 63) & 1:
            yield event["topic"], event["partition"], offset


async def repeats(world: World, fault: Fault) -> int:
    """How many messages ran twice, once what is said of all of them was checked."""
    await killed_once(world, fault)
    ids = {(record.topic, record.partition, record.offset): json.loads(record.value)["id"] for record in await world.read(world.topic)}
    runs, had = world.ledger.runs(), saw(world)
    repeated = {place for place, id in ids.items() if runs[id] > 1}
    for cache_was_lost in (False, True):
        ruling, events = left_by(world, cache_was_lost=cache_was_lost)
        mine = of_the_first(world, events)
        judged = {(where[2], where[4], offset): found for (where, _, _, offset), found in ruling.messages.items()}
        assert judged.keys() == ids.keys()
        assert all(verdict in DONE for verdict, _ in judged.values())
        doubt = {place for place, (_, flags) in judged.items() if flags & Flag.AMBIGUOUS_EXEC}
        once = {place for place, (verdict, _) in judged.items() if verdict is Verdict.EXACTLY_ONCE}
        assert not repeated & once, f"said to have run once, page cache lost {cache_was_lost}: {repeated & once}"
        open_still = {message[:3] for message in had - reported(mine)}
        assert open_still <= doubt, f"the handler had them, and nothing says so, page cache lost {cache_was_lost}: {open_still - doubt}"
        if not cache_was_lost:
            taken = {origin(event) for event in events if event.get("took_unreleased")}
            assert doubt <= started(mine) | taken, f"nothing had started them: {doubt - started(mine) - taken}"
    return len(repeated)


@pytest.mark.slow  # kills workers one after the other and reconciles what they left
@pytest.mark.parametrize("kills", [KILLS, pytest.param(FURTHER, marks=pytest.mark.nightly)], ids=["kills", "further"])
async def test_what_a_killed_worker_had_started_is_in_doubt_and_what_it_had_fetched_only_is_not(
    new_world: NewWorld, kills: Sequence[Kill]
) -> None:
    repeated = list[int]()

    async def attempt(kill: Kill) -> None:
        repeated.append(await repeats(new_world(dedup=kill.dedup, kind=kill.kind), kill.fault))

    await each(kills, attempt)
    assert sum(map(bool, repeated)) >= 2, "these kills are to repeat something"
