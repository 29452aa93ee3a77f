"""Random batches of a few keys, in several attempts, over a store whose answers are lost: each key gets its fate, and only once here."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.tables import each

from ackwise.middleware.message.disposition import DONE, Dead, Delayed, Disposition, Duplicate
from ackwise.middleware.message.message import Message
from ackwise.middleware.message.raising import Reject
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.streaming import InFlight, Streaming, Where
from ackwise.middleware.runs.redelivery import outcome_of
from ackwise.middleware.runs.run import Run, Stage
from ackwise.middleware.storage.claimstore import Exchange, Outcome

Answer = Literal["heard", "refused", "unheard"]
DECISIONS: dict[str, Disposition] = {"done": DONE, "later": Delayed(), "dead": Dead("rejected")}


class Step(NamedTuple):
    """One batch: which of the open messages are in it, what the store does with each trip, and what happens before."""

    chosen: int
    answers: list[Answer]
    wait: float
    dies: bool


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from([1, 63]) | st.integers(1, 63),
        st.sampled_from([[], ["unheard"], ["heard", "unheard"], ["unheard", "unheard"], ["refused"], ["heard", "heard", "unheard"]]),
        st.sampled_from([2.0, 2.0, 31.0]),
        st.sampled_from([False, False, False, False, False, True]),
    ),
    min_size=2,
    max_size=8,
)
RECORDS = st.lists(st.tuples(st.sampled_from([b"a", b"a", b"b"]), st.integers(1, 3)), min_size=2, max_size=4)
OUTCOMES = st.lists(st.sampled_from(["done", "later", "later", "dead"]), max_size=6)


class Stretch:
    """A partition, reduced to what the pipelines ask of it."""

    def __init__(self) -> None:
        self.cut_off = self.is_stopping = False
        self.turn = asyncio.Lock()

    def pass_settled(self, runs: Sequence[Run]) -> None: ...


@dataclass
class World:
    """Workers that come one after the other, their store, and the messages that are not settled."""

    make_spine: Any
    streaming: bool
    outcomes: Iterator[str]
    spine: Any = None
    clock: Any = None
    store: Any = None
    open: dict[int, Run] = field(default_factory=dict)
    keys: set[bytes] = field(default_factory=set)
    succeeded: Counter[bytes] = field(default_factory=Counter)
    succeeded_here: set[bytes] = field(default_factory=set)
    dead: set[bytes] = field(default_factory=set)

    def begin(self) -> None:
        """A new worker: it knows nothing of the one before."""
        self.succeeded_here.clear()
        self.spine = self.make_spine(
            self.handle, kind="message", dedup={"key": lambda message: message.value}, store=self.store, clock=self.clock
        )
        self.clock, self.store = self.spine.clock, self.spine.store
        self.pipeline = self.spine.pipeline
        if self.streaming:
            self.pipeline = Pipeline(self.spine.agent, self.spine.worker, partial(Streaming, hand_over=self.hand_over, flush=self.flush))
        self.open = {offset: Run.of(entry.delivery) for offset, entry in self.open.items()}

    async def flush(self) -> None: ...

    def run(self, key: bytes) -> Disposition:
        assert key not in self.succeeded_here, "it succeeded in this process and runs again"
        disposition = DECISIONS[next(self.outcomes, "done")]
        if disposition is DONE:
            self.succeeded[key] += 1
            self.succeeded_here.add(key)
        return disposition

    async def handle(self, message: Message[bytes]) -> None:
        match self.run(message.value):
            case Delayed():
                raise ConnectionError
            case Dead():
                raise Reject("no")
            case _:
                return

    def hand_over(self, members: Sequence[InFlight]) -> None:
        for member in members:
            member.take(self.clock())
            if member.where is not Where.BACK:
                member.decide(self.run(member.message.value))  # type: ignore[arg-type]  # bytes here

    def fetch(self, key: bytes, attempt: int) -> None:
        offset = 100 + len(self.keys) + len(self.open) + 1000 * len(self.spine.publisher.sent)
        while offset in self.open:
            offset += 1
        self.keys.add(key)
        self.open[offset] = self.spine.entry(offset, value=key, attempt=attempt)

    async def batch(self, entries: list[Run], answers: Sequence[Answer] = ()) -> None:
        rest = list(answers)
        now: list[Answer] = ["heard"]

        def refuses(exchange: Exchange) -> bool:
            now[0] = rest.pop(0) if rest else "heard"
            return now[0] == "refused"

        self.store.fail, self.store.swallow = refuses, lambda exchange: now[0] == "unheard"
        before = len(self.spine.publisher.sent)
        await self.pipeline(entries, Stretch())
        for copy in self.spine.publisher.sent[before:]:
            if copy.topic == "billing.dlq":
                self.dead.add(copy.value)
            else:
                self.fetch(copy.value, int(dict(copy.headers)["ackwise-attempt"]))
        self.open = {offset: entry for offset, entry in self.open.items() if entry.stage is not Stage.SETTLED}


async def play(
    make_spine: Any, streaming: bool, records: Sequence[tuple[bytes, int]], outcomes: Sequence[str], steps: Sequence[Step]
) -> None:
    world = World(make_spine, streaming, iter(outcomes))
    world.begin()
    for key, attempt in records:
        world.fetch(key, attempt)
    for step in steps:
        if step.dies:
            world.begin()
        world.clock.now += step.wait
        entries = [world.open[offset] for index, offset in enumerate(sorted(world.open)) if step.chosen >> index & 1]
        await world.batch([entry for entry in entries if entry.not_before <= world.clock.now], step.answers)
    for _ in range(20):
        world.clock.now += 31
        await world.batch([world.open[offset] for offset in sorted(world.open)])
    assert world.open == {}, "never settled"
    for key in world.keys:
        assert world.succeeded[key] or key in world.dead, f"{key!r} is settled, never succeeded and no dead letter"


@each("streaming", [False, True], ids=["pipeline", "streaming"])
def test_each_key_gets_its_fate_whatever_answers_are_lost(make_spine: Any, streaming: bool) -> None:
    check(make_spine, streaming, worlds=80)


@pytest.mark.nightly
@each("streaming", [False, True], ids=["pipeline", "streaming"])
@pytest.mark.slow  # tries many worlds
def test_each_key_gets_its_fate_in_many_worlds(make_spine: Any, streaming: bool) -> None:
    check(make_spine, streaming)


@pytest.mark.nightly
@each("streaming", [False, True], ids=["pipeline", "streaming"])
def test_a_stale_copy_that_keeps_its_claim_and_completes_it_is_found(
    make_spine: Any, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_if_done(entry: Run) -> Outcome | None:
        return Outcome.OK if isinstance(entry.disposition, Duplicate) else outcome_of(entry)

    monkeypatch.setattr("ackwise.middleware.pipeline.settlement.outcome_of", as_if_done)
    monkeypatch.setattr("ackwise.middleware.claims.leases.Leases.give_back", lambda leases, entry: None)
    with pytest.raises(AssertionError, match="never succeeded and no dead letter"):
        check(make_spine, streaming)


def check(make_spine: Any, streaming: bool, *, worlds: int = 500) -> None:
    """Play many worlds, the same ones each time."""

    @settings(
        max_examples=worlds,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(RECORDS, OUTCOMES, STEPS)
    def holds(records: list[tuple[bytes, int]], outcomes: list[str], steps: list[Step]) -> None:
        asyncio.run(play(make_spine, streaming, records, outcomes, steps))

    holds()


@each("streaming", [False, True], ids=["pipeline", "streaming"])
async def test_a_stale_copy_whose_claim_was_granted_unheard_completes_nothing(make_spine: Any, streaming: bool) -> None:
    world = World(make_spine, streaming, iter(()))
    world.begin()
    world.fetch(b"a", 1)
    (first,) = world.open.values()
    await world.batch([first], ["unheard"])
    world.fetch(b"a", 2)
    await world.batch(list(world.open.values()))
    assert (first.stage, first.disposition) == (Stage.SETTLED, Duplicate(stale=True, leader="orders/3/102"))
    assert world.succeeded == {b"a": 1}
    released, claimed = world.store.trips[1:3]
    assert (len(released.releases), len(released.claims), len(claimed.claims)) == (1, 0, 1)
