"""What befalls a scene: kills, and every anomaly that there is; and which verdicts each of its orders may then have."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from tests.spark.injected.hostile import Faults
from tests.spark.injected.orderly import PARTITIONS, Order, Place, Scene, mixed
from tests.spark.reconciling import every_message

__all__ = ["GRACE", "Found", "Truth", "do_mischief"]

#: Seconds for `--grace`: a copy that is later than this, and that nobody has, is lost.
GRACE: Final = 0.5

_RED: Final = {"LOST", "LOST_PRODUCED", "NEVER_SEEN", "RETENTION_LOSS", "RETRY_LOST", "PHANTOM_SUPPRESSED", "STUCK"}
#: What a run that was not the only one may be called.
_AGAIN: Final = {"MULTI_EXECUTED", "MAYBE_TWICE", "LOGICAL_DUPLICATE"}

_NEVER_RECEIVED: Final = {"LOST_PRODUCED"}


@dataclass(frozen=True)
class Found:
    """What a run of reconcile says: by place, verdicts, flags and what is wrong with the key."""

    words: Mapping[Place, frozenset[str]]

    @classmethod
    def read(cls, out: Path) -> Found:
        """From the tables in its folder."""
        words: dict[Place, set[str]] = {}
        for row in every_message(out):
            words.setdefault((row["partition"], row["offset"]), set()).update({row["verdict"], *row["flags"]})
        for row in pq.read_table(out / "missing").to_pylist():
            for offset in range(row["start"], row["end"]):
                words.setdefault((row["partition"], offset), set()).add(row["verdict"])
        for row in pq.read_table(out / "logical").to_pylist():
            words[row["partition"], row["offset"]].add(row["logical_verdict"])
        return cls({place: frozenset(said) for place, said in words.items()})

    def of(self, place: Place) -> frozenset[str]:
        return self.words.get(place, frozenset())

    def accused(self) -> set[Place]:
        """Of whom it says what makes the exit code 1."""
        return {place for place, said in self.words.items() if said & {*_RED, "MULTI_EXECUTED", "LOGICAL_DUPLICATE", "COMMITTED_PAST"}}


@dataclass(frozen=True)
class Truth:
    """What the producer, the handler and the broker know, none of it read through Ackwise."""

    sent: Mapping[Place, Order]
    runs: Mapping[str, list[Place]]
    dead: Collection[Place]
    committed: Mapping[int, int]
    injected: Mapping[str, set[str]]
    """By id, the words of which one at least must be said."""
    excused: Collection[Place]
    """What was committed while it was open: rightly accused, though another record of its key may have been done."""

    def contradictions(self, found: Found, *, may_be_unknown: bool = False) -> list[str]:
        """What is said wrongly, and what should have been said. `may_be_unknown`: events were taken away."""
        places: dict[str, list[Place]] = {}
        for place, order in self.sent.items():
            places.setdefault(order.id, []).append(place)
        wrong = [each for id, of_key in places.items() for each in self._of_key(id, of_key, found, may_be_unknown)]
        foreign = sorted(place for place in found.accused() if place not in self.sent)
        return wrong + [f"{place} is accused, and nobody sent it" for place in foreign]

    def _of_key(self, id: str, places: list[Place], found: Found, may_be_unknown: bool) -> list[str]:
        said = {place: found.of(place) for place in places}
        every = frozenset().union(*said.values())
        times, is_dead = len(self.runs.get(id, ())), any(place in self.dead for place in places)
        wrong = []
        red = {place for place, words in said.items() if words & {*_RED, "COMMITTED_PAST"}}
        if (times or is_dead) and red - set(self.excused):
            wrong.append("was done, and is accused")
        if times < 2 and every & {"MULTI_EXECUTED", "LOGICAL_DUPLICATE"}:
            wrong.append(f"ran {times} times, and is said to have run again")
        if not may_be_unknown:
            wrong += self._unsaid(id, said, every, is_dead=is_dead)
        words_of_each = ", ".join(f"{place}: {' '.join(sorted(words)) or 'nothing'}" for place, words in said.items())
        return [f"{id} {each}; {words_of_each}; it ran at {self.runs.get(id)}" for each in wrong]

    def _unsaid(self, id: str, said: Mapping[Place, frozenset[str]], every: frozenset[str], *, is_dead: bool) -> list[str]:
        times = len(self.runs.get(id, ()))
        is_open = not times and not is_dead and any(map(self._was_passed, said))
        if is_open and not every & {*_RED, "COMMITTED_PAST"}:
            return ["was lost, and nobody says so"]
        if not set(self.excused).isdisjoint(said):  # its worker died early, with whatever it had done and not said
            return []
        unsaid = {
            "ran": times == 1 and not every & {"EXACTLY_ONCE", "MAYBE_TWICE"},
            "ran again": times > 1 and not every & _AGAIN,
            "is a dead letter": is_dead and not times and "DEAD_LETTERED" not in every,
            f"should be {' or '.join(sorted(self.injected.get(id, ())))}": id in self.injected and not every & self.injected[id],
            "is passed by": any(not words and self._was_passed(place) for place, words in said.items()),
        }
        unknown = ["is unknown, though no event is missing"] * ("UNKNOWN_EXPORT_GAP" in every)
        return unknown + [f"{what}, and nobody says so" for what, is_so in unsaid.items() if is_so]

    def _was_passed(self, place: Place) -> bool:
        return place[1] < self.committed.get(place[0], 0)


async def do_mischief(scene: Scene, count: int = 60) -> Truth:
    """Every anomaly once or more, amid orders that fare well and workers that are killed."""
    draw = scene.draw
    await scene.create()
    await scene.send(mixed(draw, "a", count))
    await scene.work(kills=[draw.randrange(1, count // 3)], ended_by=draw.choice((signal.SIGTERM, signal.SIGKILL)))

    injected: dict[str, set[str]] = {}
    again, forgotten = _run_once_and_alone(scene, 4)
    injected |= {id: {"MULTI_EXECUTED"} for id in again} | {id: {"LOGICAL_DUPLICATE"} for id in forgotten}
    scene.forget([*again, *forgotten])
    places = {order.id: place for place, order in scene.sent.items()}
    back = {place[0]: place[1] for place in sorted((places[id] for id in again), reverse=True)}
    await scene.move_group(back)

    fetch, route, early, unsent = (_some(draw, name, n, at) for name, n, at in (("f", 2, 1), ("r", 2, 1), ("e", 1, 1), ("u", 2, 1)))
    ill = [*fetch, *route, *early, *(Order(order.id, order.partition, times=1) for order in unsent)]
    repeated = [Order(id, draw.randrange(PARTITIONS)) for id in forgotten]
    batch = mixed(draw, "b", count)
    for order in (*ill, *repeated):
        batch.insert(draw.randrange(len(batch)), order)
    await scene.send([*batch, *(Order(f"end-{partition}", partition) for partition in range(PARTITIONS))])
    injected |= {order.id: _NEVER_RECEIVED for order in fetch} | {order.id: {"LOST", "LOST_PRODUCED"} for order in route}
    injected |= {order.id: {"RETRY_LOST"} for order in unsent}
    injected |= {order.id: {"LOST", "LOST_PRODUCED", "STUCK", "COMMITTED_PAST"} for order in early}
    faults = Faults(*([order.id for order in ids] for ids in (fetch, route, early, unsent)))
    await scene.work(kills=[draw.randrange(1, count // 3)], ended_by=draw.choice((signal.SIGTERM, signal.SIGKILL)), faults=faults)

    due = time.time() + 2.0  # no copy was sent later than now
    passed = _some(draw, "j", 3, 0)
    partition = draw.randrange(PARTITIONS)
    await scene.send([Order(order.id, partition) for order in passed])
    await scene.move_group({partition: max(offset for where, offset in scene.sent if where == partition) + 1})
    injected |= {order.id: _NEVER_RECEIVED for order in passed}
    await scene.send([Order(f"last-{number}", number) for number in range(PARTITIONS)])

    async def retries_are_over() -> None:
        await scene.wait_until_committed()
        await scene.wait_for(
            lambda: scene.were_drained_since(due + GRACE), "a look at all delay and retry topics after the copies were due"
        )

    await scene.work(until=retries_are_over)
    hanging = Order("h-0", draw.randrange(PARTITIONS))
    await scene.send([hanging])
    injected[hanging.id] = {"STUCK"}

    async def it_hangs() -> None:
        await scene.wait_for(scene.hung, "a handler that hangs")
        await asyncio.sleep(0.7)  # two heartbeats: its claim is in the log

    await scene.work(until=it_hangs, ended_by=signal.SIGKILL, faults=Faults(hangs=[hanging.id]))
    truth = Truth(dict(scene.sent), scene.runs(), await scene.dead(), await scene.committed(), injected, scene.settled_early())
    ran = {id: len(places) for id, places in truth.runs.items()}
    # What was to be lost, and was saved by a kill, is no anomaly.
    fits = {id for id, words in injected.items() if (ran.get(id, 0) > 1 if words & _AGAIN else id not in ran)}
    return replace(truth, injected={id: injected[id] for id in fits})


def _some(draw: random.Random, name: str, count: int, most: int) -> list[Order]:
    return [Order(f"{name}-{number}", draw.randrange(PARTITIONS)) for number in range(count + draw.randint(0, most))]


def _run_once_and_alone(scene: Scene, count: int) -> tuple[list[str], list[str]]:
    """Orders that were sent once and ran once, at the first attempt: some of the later ones, and some of the earlier ones."""
    ids = [order.id for order in scene.sent.values()]
    alone = [
        order.id
        for _, order in sorted(scene.sent.items(), key=lambda sent: sent[0][1])
        if ids.count(order.id) == 1 and order.kind == "ok" and order.times == 0 and len(scene.runs().get(order.id, ())) == 1
    ]
    return scene.draw.sample(alone[len(alone) // 2 :], count), scene.draw.sample(alone[: len(alone) // 3], count)
