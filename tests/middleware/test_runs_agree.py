"""A run of many messages meets the same fate as its messages one by one: random histories, each played both ways."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import pytest

from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.errors import EventLogUnavailable, PublishRefused, PublishUnavailable, StoreUnavailable
from ackwise.middleware.events import Event, RunEvents, explode
from ackwise.middleware.message import keys
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER
from ackwise.middleware.message.message import Message, TopicPartition
from ackwise.middleware.message.raising import Later, Reject
from ackwise.middleware.message.wire import Copy
from ackwise.middleware.pipeline.pipeline import HandlerStopped, Pipeline
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.policies import Dedup
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.progress.watermark import Watermark
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Run, Stage
from ackwise.middleware.storage.claimstore import Claim, ClaimKey, Complete, Exchange, ExchangeResult, Outcome, Release, Renew
from ackwise.stores.memory import MemoryStore

STAMP: Final = 1_700_000_000_000
DAY: Final = 86_400_000
PLACE: Final = TopicPartition("orders", 0)

#: Days of a claim before this worker asked for it.
BEFORE: Final = ["", "", "", "", "", "", "", "done", "busy", "stale", "released", "lost1", "lost4", "lost11", "dead"]
ENDS: Final = ["ok"] * 6 + ["raise", "raise", "ack", "ack+raise", "later", "reject", "exit", "consume later", "dead"]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Sink:
    """Keeps events; some of its flushes fail."""

    def __init__(self, fails: set[int]) -> None:
        self.events: list[Event] = []
        self.flushes, self.fails = 0, fails

    def record(self, event: Event) -> None:
        self.events.append(event)

    def record_run(self, events: RunEvents) -> None:
        self.events += explode(events)

    async def flush(self) -> None:
        self.flushes += 1
        if self.flushes in self.fails:
            raise EventLogUnavailable("the disk is full")

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class Publisher:
    """Acknowledges copies, but for those whose verdict is another one."""

    def __init__(self, verdicts: dict[tuple[str, bytes], str]) -> None:
        self.sent: list[Copy] = []
        self.verdicts = verdicts

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        return [self._answer(copy) for copy in copies]

    def _answer(self, copy: Copy) -> PublishUnavailable | PublishRefused | None:
        place = copy.topic, bytes(copy.value or b"")
        if (verdict := self.verdicts.get(place)) == "refused" and copy.value is not None:
            return PublishRefused("too large")
        if verdict == "away":
            del self.verdicts[place]
            return PublishUnavailable("no broker")
        self.sent.append(copy)
        return None


class Store:
    """A memory store of which some exchanges fail, before or after they were applied."""

    def __init__(self, clock: Clock, fails: dict[int, str]) -> None:
        self.inner = MemoryStore(clock=clock)
        self.is_asked, self.exchanges, self.fails = False, 0, fails

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        self.exchanges += self.is_asked
        how = self.fails.get(self.exchanges) if self.is_asked else None
        if how == "before":
            raise StoreUnavailable("out of reach")
        result = await self.inner.exchange(exchange)
        if how == "after":
            raise StoreUnavailable("the answer was lost")
        return result


class Partition:
    def __init__(self) -> None:
        self.cut_off = self.is_stopping = False
        self.watermark = Watermark(0)

    def pass_settled(self, runs: Sequence[Run]) -> None:
        for run in runs:
            if run.stage is Stage.SETTLED:
                for first, end in run.ranges():
                    self.watermark.finish(first, end)


class History:
    """What befalls some messages, drawn from `seed`; `play` tells what became of them."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.size = draw.choice([1, 2, 5, 20, 40])
        is_compacted, has_two_days = draw.random() < 0.2, draw.random() < 0.3
        self.offsets = [0]
        for _ in range(self.size - 1):
            self.offsets.append(self.offsets[-1] + 1 + (is_compacted and draw.random() < 0.2))
        self.identified = draw.choice(["key", "key", "coordinates", "coordinates", "header", "nothing"])

        def of_each(choose: Any) -> dict[int, Any]:
            return {offset: choose(offset) for offset in self.offsets}

        def some(share: float) -> set[int]:
            return {offset for offset in self.offsets if draw.random() < share}

        self.stamps = of_each(lambda offset: STAMP + offset + (DAY if has_two_days and draw.random() < 0.3 else 0))
        self.keys = of_each(lambda offset: f"k{draw.randrange(self.size * 3)}" if draw.random() < 0.9 else "")
        self.values = of_each(lambda offset: (b"bad%d" if draw.random() < 0.08 else b"v%d") % offset)
        ids = of_each(lambda offset: b"m%d" % draw.randrange(self.size * 3))
        self.headers = of_each(lambda offset: (("mid", ids[offset]),) if self.identified == "header" and draw.random() < 0.6 else ())
        self.wishes = of_each(lambda offset: draw.choice(["done", "later", "later", "dead"]) if draw.random() < 0.25 else "")
        self.before = of_each(lambda offset: draw.choice(BEFORE))
        self.raising_keys, self.poison, self.stolen = some(0.04), some(0.05), some(0.05)
        self.end, self.ack_index, self.keeps_prefix = draw.choice(ENDS), draw.randrange(-1, self.size), draw.random() < 0.5
        self.kind: Any = "message" if draw.random() < 0.2 else "batch"
        self.in_the_middle = draw.choice(["", "", "", "beat", "cut off", "stop", "call off"])
        self.later = ConsumeLater(draw.choice([16, 16, 0, 1]), no_retry=(RuntimeError,) if draw.random() < 0.1 else ())
        self.epoch = draw.choice([0, 0, 0, 3])
        self.on_store_down: Any = draw.choice(["block", "block", "fail_open", "fail_closed"])
        self.verdicts = {
            (draw.choice(["g.retry", "g.dlq", "g.delay"]), self.values[offset]): draw.choice(["away", "away", "refused"])
            for offset in some(0.08)
        }
        self.store_fails = {number: draw.choice(["before", "after"]) for number in range(1, 8) if draw.random() < 0.1}
        self.flush_fails = {number for number in range(1, 6) if draw.random() < 0.1}
        self.rounds = draw.choice([1, 3, 6])

    def _key_of(self, message: Message[bytes]) -> str:
        offset = int(message.value[1:])
        if offset in self.raising_keys:
            raise KeyError(offset)
        return str(self.keys[offset])

    def claim_keys(self) -> dict[int, ClaimKey]:
        """Of each message that has one."""
        ids = keys.Identity("", "g", "h", self.epoch)
        found = {}
        for offset in self.offsets:
            day: int | None = self.stamps[offset] // DAY
            if self.identified == "key":
                if not self.keys[offset] or self.values[offset].startswith(b"bad") or offset in self.raising_keys:
                    continue
                dedup_id, day = keys.business_id(self.keys[offset]), None
            elif self.headers[offset]:
                dedup_id = keys.message_id("orders", self.headers[offset][0][1])
            else:
                dedup_id = keys.coordinates_id("orders", 0, offset, self.stamps[offset])
            found[offset] = ClaimKey(ids.of(dedup_id)[0], day, 1)
        return found if self.identified != "nothing" else {}

    async def play(self, *, together: bool) -> dict[str, Any]:
        return await _Play(self, together).run()


class _Play:
    def __init__(self, history: History, together: bool) -> None:
        self.history, self.clock, self.partition = history, Clock(), Partition()
        self.store, self.sink = Store(self.clock, history.store_fails), Sink(history.flush_fails)
        self.publisher = Publisher(dict(history.verdicts))
        dedup = self._dedup()
        self.leases = None if dedup is None else Leases(self.store, clock=self.clock)
        self.keys = history.claim_keys()
        self.handled: Counter[int] = Counter()
        self.batches: list[list[int]] = []
        self.raised: list[str] = []
        self.is_first_call = True
        agent = Agent(
            "h", ("orders",), history.kind, self._batch if history.kind == "batch" else self._message, _decode, max_batch=100,
            keep_ack_index_on_error=history.keeps_prefix,
        )  # fmt: skip
        worker = Worker(
            "g", history.later, self.publisher, "g.retry", "g.dlq", "g.delay", dedup=dedup,
            leases=self.leases, sink=self.sink, monotonic=self.clock, wall=self.clock,
        )  # fmt: skip
        self.pipeline = Pipeline(agent, worker)
        records = [
            SimpleNamespace(
                offset=offset, timestamp=history.stamps[offset], key=None, value=history.values[offset], headers=history.headers[offset]
            )
            for offset in history.offsets
        ]
        self.runs = [Run(PLACE, records)] if together else [Run(PLACE, [record]) for record in records]
        for run in self.runs:
            for first, end in run.ranges():
                self.partition.watermark.track(first, end)

    def _dedup(self) -> Dedup | None:
        history = self.history
        if history.identified == "nothing":
            return None
        key = history._key_of if history.identified == "key" else None
        header = "mid" if history.identified == "header" else None
        return Dedup("memory://", key=key, message_id_header=header, epoch=history.epoch, on_store_down=history.on_store_down, namespace="")

    async def run(self) -> dict[str, Any]:
        await self._make_the_past()
        self.store.is_asked = True
        for _ in range(self.history.rounds):
            await self._pass()
            if self.raised and self.raised[-1] != "HandlerStopped":
                break
            if self.partition.cut_off:
                break
            self.partition.is_stopping = False
            self.clock.now += 6
        return await self._found()

    async def _make_the_past(self) -> None:
        for offset, key in self.keys.items():
            ask, past = self.store.inner.exchange, self.history.before[offset]
            if past in ("done", "dead", "busy", "stale", "released"):
                await ask(Exchange(claims=[Claim(key, 7)]))
            if past in ("done", "dead"):
                await ask(Exchange(completes=[Complete(key, 7, Outcome.OK if past == "done" else Outcome.DEAD)]))
            elif past in ("stale", "released"):
                await ask(Exchange(releases=[Release(key, 7, 5 if past == "stale" else None)]))
            elif past.startswith("lost"):
                for token in range(int(past.removeprefix("lost"))):
                    await ask(Exchange(claims=[Claim(key, 100 + token)]))
                    self.clock.now += 31

    async def _pass(self) -> None:
        due = [run for run in self.runs if run.stage is not Stage.SETTLED and run.not_before <= self.clock.now]
        due.sort(key=lambda run: run.first)
        batch = [run for run in due if run.alone and run.stage is Stage.FETCHED][:1] or due
        others = [run for run in self.runs if run not in batch]
        self.runs = [*others, *batch]
        try:
            if batch:
                self.at_work = batch
                await self.pipeline(batch, self.partition)
        except (HandlerStopped, StoreUnavailable) as error:
            self.raised.append(type(error).__name__)
        self.partition.pass_settled(batch)
        self.runs = [*others, *batch]

    async def _middle(self, offsets: Sequence[int]) -> None:
        """What befalls a call while it runs."""
        for offset in self.history.stolen.intersection(offsets, self.keys):
            await self._steal(self.keys[offset])
        if not self.is_first_call:
            return
        self.is_first_call = False
        match self.history.in_the_middle:
            case "beat" if self.leases is not None:
                self.clock.now += 11
                await self.leases.beat()
                await asyncio.sleep(0)
            case "cut off":
                self.partition.cut_off = True
            case "stop":
                self.partition.is_stopping = True
            case "call off":
                next(run.call for run in self.at_work if run.call is not None).call_off()
                await asyncio.sleep(0)
            case _:
                pass

    async def _steal(self, key: ClaimKey) -> None:
        """Another worker has it: as after the lease ran out, on a clock that is apart from ours."""
        before, self.clock.now = self.clock.now, self.clock.now + 1000
        await self.store.inner.exchange(Exchange(claims=[Claim(key, 99)]))
        self.clock.now = before
        await self.store.inner.exchange(Exchange(renews=[Renew(key, 99)]))

    async def _batch(self, batch: Batch[bytes]) -> Any:
        offsets, history = [message.offset for message in batch], self.history
        self.batches.append(offsets)
        self.handled.update(offsets)
        for message in batch:
            match history.wishes[message.offset]:
                case "later":
                    batch.later(message, delay=5)
                case "dead":
                    batch.dead(message)
                case "done":
                    batch.done(message)
        await self._middle(offsets)
        if history.poison.intersection(offsets):
            raise RuntimeError("poison")
        match history.end:
            case "ack" | "ack+raise":
                batch.ack_index = history.ack_index
            case "later" | "dead":
                batch.delay_level = 3 if history.end == "later" else -1
                return CONSUME_LATER
            case "exit" if len(batch) == 3:
                raise SystemExit
            case _:
                pass
        return self._raise_what_it_ends_with()

    async def _message(self, message: Message[bytes]) -> Any:
        offset = message.offset
        self.batches.append([offset])
        self.handled[offset] += 1
        await self._middle([offset])
        if offset in self.history.poison:
            raise RuntimeError("poison")
        match self.history.wishes[offset]:
            case "later":
                raise Later(7)
            case "dead":
                raise Reject("no")
            case _:
                return self._raise_what_it_ends_with()

    def _raise_what_it_ends_with(self) -> None:
        match self.history.end:
            case "raise" | "ack+raise":
                raise ValueError("it failed")
            case "reject":
                raise Reject("no")
            case "consume later":
                raise Later(7)
            case _:
                return

    async def _found(self) -> dict[str, Any]:
        """What became of everything, in an order that does not depend on how it was grouped."""
        fates = {
            offset: (run.stage.name, _said(run.disposition), run.succeeded, run.alone, run.error)
            + (() if run.stage is Stage.SETTLED else (run.why, run.not_before))
            for run in self.runs
            for offset in run.offsets
        }
        events = sorted(repr(event._replace(exec_id=event.exec_id is not None, duration_us=None)) for event in self.sink.events)
        self.store.is_asked = False
        held = 0 if self.leases is None else len(self.leases)
        records = {}
        for offset, key in self.keys.items():
            self.clock.now += 0.0
            records[offset] = (await self.store.inner.exchange(Exchange(claims=[Claim(key, 10**6 + offset)]))).claims
        return {
            "fates": dict(sorted(fates.items())),
            "handled": dict(sorted(self.handled.items())),
            "batches": self.batches,
            "sent": sorted((copy.topic, bytes(copy.value or b""), _plain(copy.headers)) for copy in self.publisher.sent),
            "events": events,
            "commit": self.partition.watermark.commit,
            "held": held,
            "records": records,
            "raised": self.raised,
        }


def _plain(headers: Any) -> tuple[Any, ...]:
    """Without the traceback, which says how deep it was called."""
    return tuple((name, value) for name, value in headers if name != "ackwise-error-traceback")


def _said(disposition: object) -> str:
    text = repr(disposition)
    return text.partition("traceback=")[0]


def _decode(value: bytes | None) -> bytes:
    if value is None or value.startswith(b"bad"):
        raise ValueError("it can't be decoded")
    return value


def check(seeds: range) -> None:
    for seed in seeds:
        together = asyncio.run(History(seed).play(together=True))
        one_by_one = asyncio.run(History(seed).play(together=False))
        assert together == one_by_one, f"seed {seed}"


def test_messages_meet_the_same_fate_in_a_run_and_one_by_one() -> None:
    check(range(100))


@pytest.mark.slow  # judges three times as many histories
def test_messages_meet_the_same_fate_in_a_run_and_one_by_one_in_further_histories() -> None:
    check(range(100, 400))


@pytest.mark.nightly
@pytest.mark.slow  # judges many histories
def test_messages_meet_the_same_fate_in_a_run_and_one_by_one_in_many_histories() -> None:
    check(range(400, 4000))
