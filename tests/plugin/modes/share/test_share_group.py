"""A share group of a real Kafka: more workers than partitions, and whatever ends a worker loses nothing."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from aiokafka import AIOKafkaProducer
from tests.fakes import Clock, Store
from tests.plugin.modes.share.conftest import Scenario
from tests.waiting import PATIENCE

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.message import Message
from ackwise.middleware.policies.policies import Share
from ackwise.plugin.modes.shareclient import ensure_share_group, read_share_group
from ackwise.plugin.settings.hostsettings import HostSettings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]


async def test_three_workers_consume_one_partition_at_the_same_time(scenario: Scenario) -> None:
    together, done = asyncio.Barrier(3), asyncio.Event()

    async def meet(message: Message[bytes]) -> None:
        if not done.is_set():
            await together.wait()
            done.set()

    for _ in range(3):
        await scenario.join(handler=meet)
    while not done.is_set():  # each is its own batch, which one worker gets
        await scenario.raw.produce(scenario.topic, b"v")
        await asyncio.sleep(0.1)
    async with asyncio.timeout(PATIENCE):  # one may have put its message aside, and accepts the next
        while len({id(worker) for worker in scenario.workers if worker.counts.accepted}) < 3:
            await scenario.raw.produce(scenario.topic, b"v")
            await asyncio.sleep(0.1)


async def test_everything_runs_once_and_what_fails_comes_back_later(scenario: Scenario) -> None:
    async def fail(message: Message[bytes]) -> None:
        if message.value == b"v3" and message.reconsume_times == 0:
            raise ValueError

    values = [b"v%d" % number for number in range(20)]
    await scenario.raw.produce(scenario.topic, *values)
    workers = [await scenario.join(handler=fail) for _ in range(2)]
    await scenario.wait(lambda: len(scenario.ran()) == 20, "the run of all")
    assert sorted(scenario.ran()) == sorted((value.decode(), 2 if value == b"v3" else 1) for value in values)
    await scenario.wait(lambda: sum(worker.counts.accepted for worker in workers) == 20, "the acknowledgement of all")
    assert not any(worker.counts.refused for worker in workers)


async def test_what_has_expired_does_not_run_and_is_accepted_once_its_dead_letter_is_there(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACKWISE_AGENTS__BILL__EXPIRES", "true")
    worker = await scenario.join()
    await scenario.raw.produce(scenario.topic, b"old", headers=[("expires", b"1600000000000")])
    await scenario.raw.produce(scenario.topic, b"new", headers=[("expires", b"4000000000000")])
    await scenario.wait(lambda: worker.counts.accepted == 2, "the acknowledgement of both")
    assert scenario.ran() == [("new", 1)]
    (letter,) = await scenario.raw.records(f"{scenario.group}.dlq")
    assert (letter.value, dict(letter.headers)["ackwise-reason"]) == (b"old", b"expired")


async def test_what_a_killed_worker_had_is_copied_uncharged_and_runs_at_another(scenario: Scenario) -> None:
    values = [b"v%d" % number for number in range(5)]
    await scenario.raw.produce(scenario.topic, *values)
    killed = await scenario.process(hangs=True)
    assert killed.stdout is not None
    assert await killed.stdout.readline() == b"began v0\n"
    killed.send_signal(signal.SIGKILL)
    await killed.wait()
    await scenario.join()
    await scenario.wait(lambda: len(scenario.ran()) == 5, "the run of all")
    assert sorted(scenario.ran()) == [(value.decode(), 1) for value in values], "no attempt was charged"
    copies = await scenario.retried()
    assert [(copy["ackwise-attempt"], copy["ackwise-version"], copy["ackwise-reason"]) for copy in copies] == [
        (b"1", b"2", b"DeliveredAgain")
    ] * 5


async def test_what_a_worker_can_not_finish_when_it_stops_runs_at_another(scenario: Scenario) -> None:
    began = asyncio.Event()

    async def hang(message: Message[bytes]) -> None:
        began.set()
        await asyncio.Event().wait()

    await scenario.raw.produce(scenario.topic, b"v0", b"v1")
    leaving = await scenario.join(handler=hang, share={"lock": 30.0}, app={"drain_timeout": 0.2})
    await began.wait()
    await leaving.leave()
    assert leaving.counts.released == 2
    await scenario.join()
    await scenario.wait(lambda: len(scenario.ran()) == 2, "the run of both")  # no lock of 30 s is waited for
    assert sorted(scenario.ran()) == [("v0", 1), ("v1", 1)]


async def test_an_acknowledgement_after_the_lock_is_refused_and_the_redelivery_is_a_duplicate(scenario: Scenario) -> None:
    store = Store(Clock())
    store.fail = lambda exchange: bool(exchange.completes)
    worker = await scenario.join(store=store)
    await scenario.raw.produce(scenario.topic, b"v0")
    await scenario.wait(scenario.ran, "the run")
    lock_has_ended = time.monotonic() + 2.5
    await scenario.wait(lambda: time.monotonic() > lock_has_ended, "the end of the lock")
    store.fail = lambda exchange: False
    await scenario.wait(lambda: worker.counts.refused, "the refusal")
    await scenario.wait(lambda: worker.counts.copied, "the redelivery")
    await scenario.raw.produce(scenario.topic, b"v1")
    await scenario.wait(lambda: len(scenario.ran()) == 2, "the run of the next")
    assert sorted(scenario.ran()) == [("v0", 1), ("v1", 1)], "the copy was not run"


async def test_what_an_aborted_transaction_wrote_is_not_consumed(scenario: Scenario) -> None:
    async with AIOKafkaProducer(bootstrap_servers=scenario.brokers, transactional_id=scenario.group) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(scenario.topic, b"aborted", partition=0)
        await producer.abort_transaction()
    await scenario.raw.produce(scenario.topic, b"v0")
    await scenario.join()
    await scenario.wait(scenario.ran, "the run")
    assert scenario.ran() == [("v0", 1)]


async def test_a_start_configures_the_share_group_and_a_second_one_changes_nothing(
    scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    settings, share = HostSettings(scenario.brokers, scenario.group, start="latest"), Share(lock=3.0)
    caplog.set_level("INFO", "ackwise")
    await ensure_share_group(settings, share)
    assert await read_share_group(settings, share) == {
        "share.isolation.level": "read_committed", "share.auto.offset.reset": "latest", "share.record.lock.duration.ms": "3000"
    }  # fmt: skip
    assert caplog.text.count("the share group is configured") == 1
    await ensure_share_group(settings, share)
    assert caplog.text.count("the share group is configured") == 1


async def test_a_lock_that_the_brokers_do_not_allow_is_refused_with_a_sentence(scenario: Scenario) -> None:
    worker = await scenario.join(share={"lock": 500.0})
    with pytest.raises(
        ConfigurationError,
        match=r"the brokers refuse share\.isolation.*share\.record\.lock\.duration\.ms=500000.*give Share what they allow",
    ):
        await worker.task
