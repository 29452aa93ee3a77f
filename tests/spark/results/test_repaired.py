"""The whole circle on a real broker: messages that were lost in every way, a plan, what it sends, and accounts that are clean again."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from tests.eventfiles import plain_events_in
from tests.plugin.operate.repairing import Shop
from tests.servers import RawKafka

from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.message.keys import Identity, business_id
from ackwise.middleware.repairplan import NAME, Action, read_steps
from ackwise.middleware.storage.claimstore import Claim, ClaimKey, Complete, Exchange, Outcome, Release
from ackwise.plugin.operate.resend import Fate
from ackwise.plugin.operate.resendplan import carry_out
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.sources import gathered
from ackwise.spark.job import reconcile
from ackwise.spark.local.session import local_engine
from ackwise.spark.reference.oracle import rule
from ackwise.spark.report.report import RunReport
from ackwise.stores.journal import Journal
from ackwise.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.kafka

HOUR = 3600

#: The values of twelve records; the eighth is the seventh, sent again.
VALUES = [b"order-%d" % number for number in (0, 1, 2, 3, 4, 5, 6, 6, 8, 9, 10, 11)]


class Past:
    """What the workers did two hours ago, by their events and their store, before the group committed everything."""

    def __init__(self, shop: Shop, now: float) -> None:
        self.now = now
        self._shop = shop
        self._identity = Identity("ackwise", shop.group_id, "bill", 0)
        self._ago = 0.0
        self._journal = Journal(shop.folder / "events", group_id=shop.group_id, now_ns=self._clock, attrs={"levels": [1]})

    def _clock(self) -> int:
        return round((self.now - self._ago) * 1e9)

    def key(self, offset: int, attempt: int = 1) -> ClaimKey:
        return ClaimKey(self._identity.of(business_id(VALUES[offset]))[0], None, attempt)

    def say(self, offset: int, *codes: EventCode, **more: Any) -> None:
        hashed, written = self._identity.of(business_id(VALUES[offset]))[1], round((self.now - 3 * HOUR) * 1000)
        for code in codes:
            run = 1000 + offset if code in (EventCode.CLAIMED, EventCode.SUCCEEDED, EventCode.FAILED) else None
            self._journal.record(Event(code, self._shop.topic, 0, offset, "bill", 1, run, hashed, 0, written, **more))

    def tell(self, code: EventCode, topic: str, **more: Any) -> None:
        self._journal.record(Event(code, topic, 0, **more))

    async def happen(self) -> None:
        """Offsets 0, 6, 10 and 11 are well; each other one went wrong in a way of its own."""
        self._ago = 50 * HOUR
        await self._journal.open()
        self.tell(EventCode.HEARTBEAT, "")
        await self._journal.flush()
        self._ago = 2 * HOUR
        code, topic, group = EventCode, self._shop.topic, self._shop.group_id
        self.tell(code.ASSIGNED, topic, offset=0, role="source", from_commit=False)
        self.tell(code.RECEIVED_RANGE, topic, offset=0, range_end=8)
        self.tell(code.RECEIVED_RANGE, topic, offset=10, range_end=12)
        for offset in (0, 6, 10, 11):
            self.say(offset, code.CLAIMED, code.SUCCEEDED)
        self.say(1, code.CLAIMED, code.FAILED)
        self.say(3, code.DUP_SUPPRESSED)
        self.say(4, code.CLAIMED)
        self.say(5, code.CLAIMED, code.FAILED)
        self.say(5, code.SENT_BACK, due_ms=round((self.now - 1.9 * HOUR) * 1000))
        self.say(7, code.CLAIMED, code.FAILED)
        self.tell(code.COMMITTED, topic, range_end=12)
        await self._journal.flush()
        self._ago = HOUR
        for role, name in (("delay", f"{group}.delay"), ("retry", f"{group}.retry")):
            self.tell(code.BROKER_OFFSETS, name, offset=0, range_end=0, role=role, attrs=json.dumps({"committed": 0}))
            await self._journal.flush()
            self._ago -= 1
        await self._journal.close()
        await self._remember()

    async def _remember(self) -> None:
        store = SQLiteStore(str(self._shop.folder / "claims.db"))
        await store.open()
        await store.exchange(Exchange(claims=[Claim(self.key(offset), 7) for offset in (3, 4, 5, 6)], lease=0.0))
        done = [Complete(self.key(offset), 7, Outcome.OK) for offset in (3, 6)]
        await store.exchange(Exchange(completes=done, releases=[Release(self.key(5), 7, sent_back=2)]))
        await store.close()


async def produce(shop: Shop, written: float) -> None:
    """The records, written then, in seconds since 1970; and the group commits all of them."""
    partition = TopicPartition(shop.topic, 0)
    producer = AIOKafkaProducer(bootstrap_servers=shop.raw.bootstrap)
    await producer.start()
    for value in VALUES:
        await producer.send_and_wait(shop.topic, value, partition=0, timestamp_ms=round(written * 1000))
    await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=shop.raw.bootstrap, group_id=shop.group_id, enable_auto_commit=False)
    await consumer.start()
    consumer.assign([partition])
    await consumer.commit({partition: len(VALUES)})
    await consumer.stop()


def judged(shop: Shop, name: str) -> tuple[RunReport, Path]:
    out = shop.folder / name
    out.mkdir()
    with local_engine() as session, gathered([shop.folder / "events"], out / ".live") as evidence:
        return reconcile(session, evidence, out=out, run_id=name, config=ReconcileConfig()), out / NAME


def exported(shop: Shop) -> list[dict[str, Any]]:
    """The events as the oracle takes them: times as microseconds."""
    return plain_events_in(*sorted((shop.folder / "events").rglob("*.parquet")))


async def test_what_was_lost_is_planned_sent_and_run_once_and_all_is_clean(raw_kafka: RawKafka, tmp_path: Path) -> None:
    now = time.time()
    shop = Shop(tmp_path, raw_kafka, await raw_kafka.new_topic(1))
    await produce(shop, now - 3 * HOUR)
    await Past(shop, now).happen()

    first, plan = judged(shop, "first")
    assert first.exit_code == 1
    assert {(each.action, each.start, each.end) for each in read_steps(plan)} == {
        (Action.REDELIVER, 1, 2), (Action.REDELIVER, 2, 3), (Action.REPLAY, 3, 4), (Action.RELEASE, 4, 5), (Action.REDELIVER, 5, 6),
        (Action.REDELIVER, 7, 8), (Action.PROBE, 8, 10),
    }  # fmt: skip

    carried = await carry_out(plan, shop.group, execute=True, with_review=True)
    assert sum(carried.counts.values(), Counter()) == {Fate.SENT: 7, Fate.DONE: 1}
    assert carried.is_done

    between = rule(exported(shop), ReconcileConfig())
    found = Counter(verdict.name for verdict, _ in between.messages.values())
    assert found == {"RETRYING": 7, "DUPLICATE_SUPPRESSED": 1, "EXACTLY_ONCE": 4}
    assert [absent for absent in between.absent.values() if absent] == []

    sent = {VALUES[offset]: 1 for offset in (1, 2, 3, 4, 5, 8, 9)}
    await shop.work_until(sent)
    assert shop.handled == sent

    last, _ = judged(shop, "last")
    assert last.exit_code == 0
    # Whoever was claimed and never told how it ended may have run before it was sent again.
    assert {verdict.name: number for verdict, number in last.verdicts.items()} == {
        "DUPLICATE_SUPPRESSED": 1, "EXACTLY_ONCE": 10, "MAYBE_TWICE": 1,
    }  # fmt: skip
