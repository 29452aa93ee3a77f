"""Carrying out a repair plan over a Kafka in memory: what is sent, what is not and why, and what a kill leaves."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from tests.plugin.operate.repairing import Shop, values
from tests.servers import RawKafka
from tests.waiting import PATIENCE, until

from ackwise import Transactional
from ackwise.middleware.errors import AckwiseError, ConfigurationError, EventLogUnavailable, PublishRefused, PublishUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.disposition import Unrecorded
from ackwise.middleware.message.keys import Identity, business_id
from ackwise.middleware.message.wire import Copy
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.repairplan import Action, read_title
from ackwise.middleware.storage.claimstore import Claim, ClaimKey, Complete, Exchange, Outcome, Stale
from ackwise.plugin.kafka.topicreader import TopicReader, Unreadable
from ackwise.plugin.operate.resend import Fate, Origins, Resent
from ackwise.plugin.operate.resendplan import PlanProgress, carry_out
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicadmin import connected
from ackwise.stores.sqlite import SQLiteStore
from ackwise.testing import MemoryKafka


async def new_shop(folder: Path, raw: RawKafka) -> Shop:
    """Six records, and a group that has never started."""
    topic = await raw.new_topic(1)
    await raw.produce(topic, *values(range(6)), headers=[("trace", b"t")])
    return Shop(folder, raw, topic)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    async with MemoryKafka(longest_fetch=0.05) as kafka:
        raw = RawKafka(kafka.bootstrap)
        await raw.start()
        yield await new_shop(tmp_path, raw)
        await raw.close()


def fates(carried: Resent) -> Counter[Fate]:
    return carried.fates


async def occupy(shop: Shop, value: bytes, *, done: bool, attempt: int = 1, unrecorded: str = "") -> None:
    """Somebody claims the key of a record, and perhaps completes it."""
    identity = Identity("ackwise", shop.group_id, "bill", 0)
    key = ClaimKey(identity.of(business_id(value))[0], None, attempt)
    store = SQLiteStore(str(shop.folder / "claims.db"))
    await store.open()
    await store.exchange(Exchange(claims=[Claim(key, 7)]))
    if done:
        await store.exchange(Exchange(completes=[Complete(key, 7, Outcome.OK, unrecorded)]))
    await store.close()


async def test_a_log_that_has_shrunk_is_named_and_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.operate.resend._FRESH", 0.0)
    async with MemoryKafka() as kafka, asyncio.timeout(PATIENCE), connected(HostSettings(kafka.bootstrap, group="billing")) as admin:
        kafka.create_topic("orders")
        for number in range(4):
            kafka.produce("orders", b"%d" % number)
        origins, place = Origins(TopicReader(admin)), TopicPartition("orders", 0)
        assert (await origins.bounds(place)).end == 4
        kafka.log("orders").remove([2, 3])
        kafka.log("orders").end = 2
        assert [record.offset for record in (await origins.read(place, 0, 4, 10))[0]] == [0, 1]
        with pytest.raises(Unreadable, match="orders/0 ends at 2 now and had a record at 2; start again"):
            await origins.read(place, 2, 4, 10)


async def test_a_dry_run_says_what_would_be_sent_and_changes_nothing(shop: Shop) -> None:
    plan = shop.plan(shop.step(1, 4), shop.step(4, 9))
    before = await shop.topics()
    carried = await carry_out(plan, shop.group, execute=False)
    assert fates(carried) == {Fate.READY: 5, Fate.DELETED: 3}
    assert carried.places == {Fate.DELETED: [f"{shop.topic}/0/6–8"]}
    assert await shop.topics() == before
    assert sorted(path.name for path in shop.folder.iterdir()) == ["plan.jsonl"]


async def test_a_partition_that_is_gone_holds_up_no_other_step(shop: Shop) -> None:
    elsewhere = shop.step(0, 2, topic=f"{shop.topic}-gone", handler="bill")
    carried = await carry_out(shop.plan(shop.step(3, 9, partition=7), elsewhere, shop.step(1, 3)), shop.group, execute=True)
    assert fates(carried) == {Fate.DELETED: 8, Fate.SENT: 2}
    assert carried.places == {Fate.DELETED: [f"{shop.topic}/7/3–8", f"{shop.topic}-gone/0/0–1"]}


async def test_once_the_store_may_have_forgotten_what_was_done_nothing_more_is_sent_unasked(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.chain([0.0, 0.0], itertools.repeat(1e12))
    monkeypatch.setattr("ackwise.plugin.operate.resend._PORTION", 2)
    monkeypatch.setattr("ackwise.plugin.operate.resendplan.time", SimpleNamespace(time=lambda: next(ticks)))
    carried = await carry_out(shop.plan(shop.step(0, 6), as_of=time.time()), shop.group, execute=True)
    assert fates(carried) == {Fate.SENT: 4, Fate.UNGUARDED: 2}
    assert await shop.copies() == dict.fromkeys(range(4), 1)


async def test_a_copy_is_the_record_with_the_next_attempt_and_is_run_once(shop: Shop) -> None:
    plan = shop.plan(shop.step(1, 3), shop.step(4, 5, Action.REDELIVER, "LOST", handler="bill", attempt=3))
    assert fates(await carry_out(plan, shop.group, execute=True)) == {Fate.SENT: 3}
    copies = await shop.deliveries()
    assert [(copy.origin.offset, copy.attempt, copy.handler, copy.value, copy.headers) for copy in copies] == [
        (offset, attempt, "bill", b"order-%d" % offset, (("trace", b"t"),)) for offset, attempt in ((1, 2), (2, 2), (4, 4))
    ]
    await shop.work_until(dict.fromkeys(values(range(6)), 1))
    assert shop.handled == dict.fromkeys(values(range(6)), 1)
    sent = shop.events(EventCode.REDELIVERED)
    assert [(event["offset"], event["attempt"], event["phys_topic"]) for event in sent] == [
        (offset, attempt, f"{shop.group_id}.retry") for offset, attempt in ((1, 1), (2, 1), (4, 3))
    ]
    assert {json.loads(event["attrs"])["plan"] for event in sent} == {"run-1"}


async def test_a_second_run_sends_nothing_and_says_what_the_first_one_did(shop: Shop) -> None:
    plan = shop.plan(shop.step(0, 6))
    first = await carry_out(plan, shop.group, execute=True)
    second = await carry_out(plan, shop.group, execute=True)
    assert (fates(first), fates(second)) == ({Fate.SENT: 6}, {Fate.SENT: 6})
    assert await shop.copies() == dict.fromkeys(range(6), 1)


async def test_what_was_done_or_taken_up_meanwhile_is_left_alone_and_told_to_the_next_reconciliation(shop: Shop) -> None:
    await occupy(shop, b"order-1", done=True)
    await occupy(shop, b"order-2", done=False)
    await occupy(shop, b"order-3", done=False, attempt=2)
    carried = await carry_out(shop.plan(shop.step(0, 4)), shop.group, execute=True)
    assert fates(carried) == {Fate.SENT: 1, Fate.DONE: 1, Fate.HELD: 1, Fate.FOLLOWED: 1}
    assert carried.places == {Fate.HELD: [f"{shop.topic}/0/0–3"]}
    assert await shop.copies() == {0: 1}
    written = shop.events(EventCode.REDELIVERED, EventCode.DUP_SUPPRESSED, EventCode.STALE)
    assert [(event["offset"], event["event_type"]) for event in written] == [
        (0, EventCode.REDELIVERED), (1, EventCode.DUP_SUPPRESSED), (3, EventCode.STALE)
    ]  # fmt: skip
    again = await carry_out(shop.plan(shop.step(0, 4)), shop.group, execute=True)
    assert (fates(again)[Fate.HELD], await shop.copies()) == (1, {0: 1})


async def test_what_is_done_and_could_not_be_recorded_is_told_by_the_repair(shop: Shop) -> None:
    for offset, ran in ((1, 1), (2, 5)):
        await occupy(shop, b"order-%d" % offset, done=True, unrecorded=str(Unrecorded(9, 7, 0, ran, shop.topic)))
    assert fates(await carry_out(shop.plan(shop.step(1, 3)), shop.group, execute=True)) == {Fate.DONE: 2}
    of_itself, of_another = shop.events(EventCode.DUP_SUPPRESSED)
    assert [(event["exec_id"], json.loads(event["attrs"])["writer"]) for event in (of_itself, of_another)] == [(7, 9)] * 2
    assert [json.loads(event["attrs"]).get("leader") for event in (of_itself, of_another)] == [None, f"{shop.topic}/0/5"]


async def test_the_claim_of_a_dead_worker_is_taken_and_the_older_delivery_is_stale_then(shop: Shop) -> None:
    identity = Identity("ackwise", shop.group_id, "bill", 0)
    key = ClaimKey(identity.of(business_id(b"order-0"))[0], None, 1)
    store = SQLiteStore(str(shop.folder / "claims.db"))
    await store.open()
    await store.exchange(Exchange(claims=[Claim(key, 7)], lease=0.0))
    step = shop.step(0, 1, Action.RELEASE, "STUCK", handler="bill", attempt=1)
    assert fates(await carry_out(shop.plan(step), shop.group, execute=True)) == {Fate.SENT: 1}
    assert (await store.exchange(Exchange(claims=[Claim(key, 8)]))).claims == [Stale()]
    await store.close()
    await shop.work_until(dict.fromkeys(values(range(6)), 1))
    assert shop.handled[b"order-0"] == 1


async def test_a_key_that_nobody_did_is_replayed_past_the_store_once_and_only_on_request(shop: Shop) -> None:
    await occupy(shop, b"order-2", done=True)
    step = shop.step(2, 3, Action.REPLAY, "PHANTOM_SUPPRESSED", handler="bill", attempt=1)
    carried = await carry_out(shop.plan(step), shop.group, execute=True)
    assert (fates(carried), await shop.copies()) == ({Fate.REVIEWABLE: 1}, {})
    assert fates(await carry_out(shop.plan(step), shop.group, execute=True, with_review=True)) == {Fate.SENT: 1}
    assert fates(await carry_out(shop.plan(step, plan_id="run-2"), fresh(shop), execute=True, with_review=True)) == {Fate.FOLLOWED: 1}
    await shop.work_until({b"order-2": 1, b"order-5": 1})
    assert shop.handled[b"order-2"] == 1


def fresh(shop: Shop) -> Any:
    """The group, after what an earlier plan noted was put away."""
    (shop.folder / "plan.progress.jsonl").unlink()
    return shop.group


async def test_another_record_at_the_offset_is_not_sent(shop: Shop) -> None:
    judged_before = shop.plan(shop.step(0, 2), as_of=time.time() - 3600)
    carried = await carry_out(judged_before, shop.group, execute=True)
    assert (fates(carried), await shop.copies()) == ({Fate.REPLACED: 2}, {})
    other = shop.step(0, 1, Action.REDELIVER, "LOST", handler="bill", record_ts=(1_000_000, 2_000_000))
    carried = await carry_out(shop.plan(other, plan_id="run-2"), fresh(shop), execute=True)
    assert (fates(carried), await shop.copies()) == ({Fate.REPLACED: 1}, {})


async def test_nothing_is_sent_that_nothing_would_suppress_or_nobody_would_take(shop: Shop) -> None:
    bare = shop.app(dedup=None).group()
    assert fates(await carry_out(shop.plan(shop.step(0, 2)), bare, execute=True)) == {Fate.UNGUARDED: 2}
    steps = [
        shop.step(0, 1, Action.REDELIVER, "LOST", handler="gone"),
        shop.step(1, 2, Action.REDELIVER, "LOST", handler="bill", dedup_epoch=3),
        shop.step(2, 3, Action.REDELIVER, "LOST", handler="bill", dedup_hash=5),
        shop.step(3, 4, Action.REVIEW, "MULTI_EXECUTED", handler="bill"),
        shop.step(4, 5, Action.VERIFY, "UNKNOWN_EXPORT_GAP"),
    ]
    carried = await carry_out(shop.plan(*steps), shop.group, execute=True)
    assert fates(carried) == {
        Fate.HANDLERLESS: 1,
        Fate.OTHER_EPOCH: 1,
        Fate.OTHER_KEY: 1,
        Fate.MANUAL: 1,
        Fate.REVIEWABLE: 1,
    }
    assert await shop.copies() == {}
    assert not carried.is_done


async def test_what_a_transaction_left_behind_is_empty_and_no_offset_is_waited_for(shop: Shop) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=shop.raw.bootstrap, transactional_id=shop.group_id)
    await producer.start()
    for value in (b"kept", b"aborted"):
        await producer.begin_transaction()
        await producer.send_and_wait(shop.topic, value, partition=0)
        await (producer.abort_transaction() if value == b"aborted" else producer.commit_transaction())
    await producer.stop()
    carried = await carry_out(shop.plan(shop.step(4, 10)), shop.group, execute=True)
    assert fates(carried) == {Fate.SENT: 3, Fate.EMPTY: 3}
    assert (carried.is_done, await shop.copies()) == (True, dict.fromkeys((4, 5, 6), 1))


async def test_a_kill_before_the_event_sends_again_and_the_store_suppresses_the_second(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full_disk(_: Worker) -> None:
        raise EventLogUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "make_durable", full_disk)
        with pytest.raises(EventLogUnavailable):
            await carry_out(shop.plan(shop.step(0, 3)), shop.group, execute=True)
    assert fates(await carry_out(shop.folder / "plan.jsonl", shop.group, execute=True)) == {Fate.SENT: 3}
    assert await shop.copies() == dict.fromkeys(range(3), 2)
    await shop.work_until(dict.fromkeys(values(range(6)), 1))
    assert shop.handled == dict.fromkeys(values(range(6)), 1)


async def test_a_kill_after_the_store_knows_sends_nothing_twice(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(PlanProgress, "note", killed)
        with pytest.raises(OSError, match="killed"):
            await carry_out(shop.plan(shop.step(0, 3)), shop.group, execute=True)
    assert fates(await carry_out(shop.folder / "plan.jsonl", shop.group, execute=True)) == {Fate.FOLLOWED: 3}
    assert await shop.copies() == dict.fromkeys(range(3), 1)


async def test_a_copy_that_is_not_acknowledged_is_sent_by_the_next_run_and_the_others_are_not(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = KafkaPublisher.publish

    async def failing(self: KafkaPublisher, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        first, _, *rest = copies
        return [*await publish(self, [first]), PublishUnavailable("away"), *await publish(self, rest)]

    with monkeypatch.context() as patch:
        patch.setattr(KafkaPublisher, "publish", failing)
        with pytest.raises(PublishUnavailable):
            await carry_out(shop.plan(shop.step(0, 3)), shop.group, execute=True)
    assert await shop.copies() == {0: 1, 2: 1}
    assert fates(await carry_out(shop.folder / "plan.jsonl", shop.group, execute=True)) == {Fate.SENT: 1, Fate.FOLLOWED: 2}
    assert await shop.copies() == {0: 1, 1: 1, 2: 1}


async def test_a_copy_that_is_refused_for_good_is_left_and_its_claim_is_given_back(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refusing(_: KafkaPublisher, copies: Sequence[Copy]) -> list[PublishRefused]:
        return [PublishRefused("too large") for _ in copies]

    with monkeypatch.context() as patch:
        patch.setattr(KafkaPublisher, "publish", refusing)
        carried = await carry_out(shop.plan(shop.step(0, 1)), shop.group, execute=True)
    assert (fates(carried), carried.is_done) == ({Fate.REFUSED: 1}, False)
    await shop.work_until(dict.fromkeys(values(range(6)), 1))
    assert shop.handled == dict.fromkeys(values(range(6)), 1)


async def test_a_plan_that_is_older_than_the_memory_of_the_store_needs_a_second_look(shop: Shop) -> None:
    old = shop.plan(shop.step(0, 2, record_ts=(0, 2**60)), as_of=time.time() - 25 * 3600)
    assert fates(await carry_out(old, shop.group, execute=True)) == {Fate.UNGUARDED: 2}
    assert fates(await carry_out(old, shop.group, execute=True, with_review=True)) == {Fate.SENT: 2}


async def test_a_stop_ends_after_the_portion_in_hand_and_the_next_run_goes_on(shop: Shop) -> None:
    stop, plan = asyncio.Event(), shop.plan(shop.step(0, 6))
    carried = await carry_out(plan, shop.group, execute=True, rate=2, stop=stop, on_progress=lambda done: stop.set() if done else None)
    assert (carried.stopped, carried.earlier, await shop.copies()) == (True, 0, {0: 1, 1: 1})
    carried = await carry_out(plan, shop.group, execute=True)
    assert (fates(carried), carried.earlier) == ({Fate.SENT: 6}, 2)
    assert await shop.copies() == dict.fromkeys(range(6), 1)


async def test_two_cannot_carry_out_a_plan_at_once(shop: Shop) -> None:
    plan = shop.plan(shop.step(0, 1))
    with (
        PlanProgress(plan, read_title(plan), writing=True),
        pytest.raises(ConfigurationError, match="another process is carrying out this plan"),
    ):
        await carry_out(plan, shop.group, execute=True)
    assert await shop.copies() == {}


@pytest.mark.parametrize("mode", ["inbox", "offsets"])
async def test_a_database_that_is_written_in_transactions_lets_a_copy_run_once(shop: Shop, mode: Literal["inbox", "offsets"]) -> None:
    def policy() -> Transactional:
        return Transactional(f"sqlite:///{shop.folder}/shop.db", mode=mode, key=(lambda message: message.raw) if mode == "inbox" else None)

    await shop.work_until(dict.fromkeys(values(range(6)), 1), dedup=policy())
    shop.handled.clear()
    plan = shop.plan(shop.step(2, 4))
    group = shop.app(dedup=policy()).group()
    carried = await carry_out(plan, group, execute=True)
    if mode == "inbox":
        assert (fates(carried), await shop.copies()) == ({Fate.DONE: 2}, {})
        return
    assert (fates(carried), await shop.copies()) == ({Fate.UNGUARDED: 2}, {})
    assert fates(await carry_out(plan, shop.app(dedup=policy()).group(), execute=True, with_review=True)) == {Fate.SENT: 2}
    await shop.work_until(dict.fromkeys(values([2, 3]), 1), dedup=policy())
    assert shop.handled == dict.fromkeys(values([2, 3]), 1)


async def test_what_is_not_in_the_database_is_sent_once_and_an_older_delivery_of_it_is_stale(shop: Shop) -> None:
    def policy() -> Transactional:
        return Transactional(f"sqlite:///{shop.folder}/shop.db", key=lambda message: message.raw)

    assert fates(await carry_out(shop.plan(shop.step(1, 3)), shop.app(dedup=policy()).group(), execute=True)) == {Fate.SENT: 2}
    await shop.work_until(dict.fromkeys(values(range(6)), 1), dedup=policy())
    assert shop.handled == dict.fromkeys(values(range(6)), 1)


WORKER = """
from ackwise import App, Batch, ConsumeLater, Dedup, Events

app = App({group!r}, brokers={brokers!r})
app.use(ConsumeLater(levels="1s"), Dedup({store!r}, key=lambda message: message.raw), Events("events"))

@app.agent({topic!r})
async def bill(batch: Batch[bytes]) -> None: ...
"""


@pytest.mark.kafka
@pytest.mark.parametrize(("number", "code", "undecided"), [(signal.SIGKILL, -signal.SIGKILL, 10), (signal.SIGINT, 130, 0)])
async def test_a_command_that_is_killed_or_interrupted_goes_on_where_it_was(
    tmp_path: Path, raw_kafka: RawKafka, number: int, code: int, undecided: int
) -> None:
    shop = await new_shop(tmp_path, raw_kafka)
    await shop.raw.produce(shop.topic, *values(range(6, 60)))
    source = WORKER.format(group=shop.group_id, brokers=shop.raw.bootstrap, store=shop.store, topic=shop.topic)
    (shop.folder / "worker.py").write_text(source)
    plan = shop.plan(shop.step(0, 60))
    command = [sys.executable, "-m", "ackwise.plugin.cli", "plan", "apply", str(plan), "worker:app", "--yes", "--json"]
    process = await asyncio.create_subprocess_exec(*command, "--rate", "10", cwd=shop.folder)
    await until(lambda: any('"sent"' in line for line in _lines(shop.folder / "plan.progress.jsonl")))
    process.send_signal(number)
    assert await process.wait() == code
    assert 0 < sum((await shop.copies()).values()) < 60
    done = await asyncio.to_thread(subprocess.run, command, cwd=shop.folder, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(kind["messages"] for kind in json.loads(done.stdout)["actions"]) == 60
    copies = await shop.copies()
    assert sorted(copies) == list(range(60))
    assert sum(copies.values()) - 60 <= undecided  # at most a portion


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def test_a_plan_that_is_damaged_or_for_other_groups_is_refused_before_anything_is_sent(shop: Shop) -> None:
    plan = shop.plan(shop.step(0, 2))
    whole = plan.read_text()
    for text, said in (
        ("", "is no repair plan: its first line"),
        (whole.replace('"schema_version": 1', '"schema_version": 9'), "is a plan of version 9"),
        (whole[:-40], "line 2 of .* is no step of a plan"),
        ("[" * 100_000, "is no repair plan: its first line"),
        (whole.splitlines()[0] + "\n" + "[" * 100_000, "line 2 of .* is no step of a plan"),
        (whole.replace('"offset_end": 2', '"offset_end": 6'), "line 2 of .* was changed"),
        (whole.replace("group-", "others-"), "line 2 of .* was changed"),
    ):
        plan.write_text(text)
        with pytest.raises(ConfigurationError, match=said):
            await carry_out(plan, shop.group, execute=True)
    with pytest.raises(AckwiseError, match="it is about others"):
        await carry_out(shop.plan(shop.step(0, 2, group="others")), shop.group, execute=True)
    assert await shop.copies() == {}
