"""Names of topics are changed while copies wait under those before, on a Kafka in memory."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.waiting import PATIENCE, until
from typer.testing import CliRunner

from ackwise import App, ConsumeLater, ConsumeStatus, Message
from ackwise.errors import ConfigurationError
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.settings.config import Config
from ackwise.testing import MemoryKafka

NAMES = "acme-{group}-{kind:-}"


def an_app(kafka: MemoryKafka, ran: list[int], **settings: Any) -> App:
    app = App("billing", brokers=kafka.bootstrap, config=Config(), commit_interval=0.1, session_timeout=6.0, drain_timeout=5.0, **settings)
    app.use(ConsumeLater(max_reconsume_times=1, levels=("1h",)))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> ConsumeStatus:
        ran.append(message.offset)
        return ConsumeStatus.CONSUME_LATER

    return app


async def run_until_copied(app: App, kafka: MemoryKafka, topic: str) -> None:
    async with app.running() as worker, asyncio.timeout(PATIENCE):
        await worker.ready()
        await until(lambda: kafka.has_topic(topic) and kafka.records(topic))
        await until(lambda: any(committed == topic for committed, _ in kafka.committed("billing.relay")))


async def test_copies_go_where_the_template_says_and_commands_find_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        kafka.produce("orders", b"1")
        await run_until_copied(an_app(kafka, [], topic_names=NAMES), kafka, "acme-billing-delay")
        assert not kafka.has_topic("billing.retry")
        monkeypatch.setenv("ACKWISE_TOPIC_NAMES", NAMES)
        arguments = ["status", "billing", "--brokers", kafka.bootstrap, "--json"]
        done = await asyncio.to_thread(CliRunner().invoke, new_app(), arguments, prog_name="ackwise")
        standing = json.loads(done.stdout)
        assert {tuple(each.values()) for each in standing["levels"] if each["pending"]} == {("acme-billing-delay", "1h", 1)}


@pytest.mark.slow  # waits for a worker to copy, and for the next one to be refused
@pytest.mark.parametrize("before", [{}, {"topic_names": "old_{kind:_}_{group}"}], ids=["default", "template"])
async def test_other_names_are_refused_while_copies_wait_under_those_before(before: dict[str, str]) -> None:
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        kafka.produce("orders", b"1")
        delay = "old_delay_billing" if before else "billing.delay"
        await run_until_copied(an_app(kafka, [], **before), kafka, delay)
        with pytest.raises(ConfigurationError, match=rf"topic '{delay}' has something .* that waits .*partition 5, offset 0"):
            await an_app(kafka, [], topic_names=NAMES).serve(asyncio.Event())


async def test_other_names_are_taken_up_once_nothing_waits_under_those_before() -> None:
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        async with an_app(kafka, []).running() as worker:
            await worker.ready()
        ran = list[int]()
        kafka.produce("orders", b"1")
        await run_until_copied(an_app(kafka, ran, topic_names=NAMES), kafka, "acme-billing-delay")
        assert ran == [0]
