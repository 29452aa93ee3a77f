"""The relay of an outbox beside the handlers of a worker, and the command that relays all that an app has."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.plugin.outbox.desk import Desk, Store, fields
from tests.waiting import PATIENCE, until

from ackwise import App, ConsumeLater, DeadLetter, Message
from ackwise.errors import ConfigurationError
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.message.outgoing import message_id
from ackwise.middleware.policies.policies import Outbox
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.kafka.clients import brokers_answer
from ackwise.plugin.operate.state import look_at_outbox
from ackwise.plugin.outbox.outboxrelay import relay_group
from ackwise.plugin.settings.config import Config, Given, read_config
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.stores.memoryoutbox import MemoryOutbox
from ackwise.testing import MemoryKafka, TestApp


def shop(outbox: MemoryOutbox, **policy: Any) -> tuple[App, list[str | None], list[Event]]:
    """An app that reads what its own outbox sends."""
    app, seen, events = App("shop"), list[str | None](), list[Event]()

    def observe(event: Event) -> None:
        events.append(event)

    app.use(Outbox(outbox, **{"poll": 0.05, **policy}), ConsumeLater(3), observe)

    @app.agent("orders")
    async def take(message: Message[bytes]) -> None:
        seen.append(message_id(message))

    return app, seen, events


async def test_a_worker_sends_the_rows_of_its_outbox_and_records_each() -> None:
    outbox = MemoryOutbox()
    app, seen, events = shop(outbox)
    async with TestApp(app):
        async with outbox.transaction(None) as transaction:
            ids = [transaction.send("orders", b"%d" % number, key=b"k") for number in range(5)]
        await until(lambda: len(seen) == 5)
        await until(lambda: sum(event.code is EventCode.OUTBOX_SENT for event in events) == 5)
    assert seen == ids
    sent = [event for event in events if event.code is EventCode.OUTBOX_SENT]
    assert [event.dedup_key for event in sent] == ids
    assert [(event.topic, event.partition, event.offset) for event in sent] == [("orders", 0, offset) for offset in range(5)]
    assert json.loads(sent[0].attrs or "") == {"row": 1, "outbox": "MemoryOutbox"}
    await outbox.open()
    assert (await outbox.status()).waiting == 0


async def test_the_state_of_an_outbox_has_the_numbers_of_the_database_and_of_the_relay() -> None:
    outbox = MemoryOutbox()
    await outbox.open()
    async with outbox.transaction(None) as transaction:
        transaction.send("orders", b"1")
    member = Member(HostSettings("nowhere:1", "shop"), [], Parts(ConsumeLater(), DeadLetter(), outbox=outbox))
    member.outbox_counts.parked = 4
    state = await look_at_outbox(member)
    assert state is not None
    assert (state.waiting, state.parked, state.parked_here, state.relays) == (1, 0, 4, 0)
    await outbox.close()
    away = await look_at_outbox(member)
    assert away is not None
    assert (away.waiting, away.parked_here) == (None, 4)
    without = Member(HostSettings("nowhere:1", "shop"), [], Parts(ConsumeLater(), DeadLetter()))
    assert await look_at_outbox(without) is None


async def test_with_relay_apart_a_worker_sends_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ackwise")
    outbox = MemoryOutbox()
    app, seen, _ = shop(outbox, relay="apart")
    async with TestApp(app) as worker:
        async with outbox.transaction(None) as transaction:
            transaction.send("orders", b"1", key=b"k")
        await worker.deliver("orders", b"2")
    assert len(seen) == 1
    await outbox.open()
    assert (await outbox.status()).waiting == 1
    assert fields(caplog, "outbox relay runs apart from this worker")


@pytest.mark.slow  # waits for relays to join and to stop
@pytest.mark.parametrize("relay", ["worker", "apart"])
async def test_the_command_relays_the_outbox_of_an_app_and_its_delays(relay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = MemoryOutbox()
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        app, _, _ = shop(outbox, relay=relay)
        app.settings = App("shop", brokers=kafka.bootstrap).settings
        stop = asyncio.Event()
        relaying = asyncio.create_task(relay_group(app.group(), stop))
        async with outbox.transaction(None) as transaction:
            transaction.send("orders", b"1", key=b"k")
        await until(lambda: kafka.records("orders"))
        await until(lambda: kafka.group("shop.relay").offsets or kafka.group("shop.relay").described()["members"])
        stop.set()
        async with asyncio.timeout(PATIENCE):
            await relaying


async def test_one_of_two_relays_that_ends_by_an_error_ends_the_command() -> None:
    desk = Desk()
    store: Any = Store(desk.table)

    def harm(call: str, when: str) -> None:
        if call == "claim_relay":
            raise ConfigurationError("relays of kind cdc send these rows")

    async def nothing() -> None: ...

    store.harm, store.open, store.close = harm, nothing, nothing
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        app, _, _ = shop(store)
        app.settings = App("shop", brokers=kafka.bootstrap).settings
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ConfigurationError, match="kind cdc"):
                await relay_group(app.group(), asyncio.Event())


async def test_brokers_answer_while_there_is_one() -> None:
    async with MemoryKafka() as kafka:
        assert await brokers_answer(kafka.bootstrap, "ackwise", {})
        await kafka.stop()
        assert not await brokers_answer(kafka.bootstrap, "ackwise", {})


async def test_an_outbox_of_the_configuration_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ackwise.toml").write_text('[outbox]\nstore = "sqlite:///shop.db"\nmax_attempts = 3\nlease = "30s"\n')
    app = App("shop", config=read_config(tmp_path, {}))

    @app.agent("orders")
    async def take(message: Message[bytes]) -> None: ...

    policy = app.group().slots.outbox
    assert policy is not None
    assert (policy.max_attempts, policy.lease, policy.on_error) == (3, 30.0, "block")
    settings = {setting.name: (setting.value, setting.source) for setting in app.explain().settings}
    assert settings["outbox.lease"] == ("30s", "ackwise.toml")
    assert settings["outbox.on_error"] == ("block", "default")


def test_a_policy_that_can_not_work_is_refused_and_none_shows_the_password_of_its_store() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"relay": "inside"}, "relay of Outbox is 'inside'; it is 'worker' or 'apart'"),
        ({"on_error": "drop"}, "on_error of Outbox is 'drop'; it is 'block' or 'skip'"),
        ({"max_attempts": 0}, "max_attempts of Outbox is 0; it must be a whole number from 1 to 10000"),
        ({"batch": True}, "batch of Outbox is True; it must be a whole number from 1 to 10000"),
        ({"lease": "100ms"}, "lease of Outbox is 0.1 s; it must be from 1 s to 3600 s"),
        ({"poll": 0}, "poll of Outbox is 0 s; it must be from 0.01 s to 60 s"),
    ]
    for wrong, sentence in refused:
        with pytest.raises(ConfigurationError) as raised:
            Outbox("sqlite:///shop.db", **wrong)
        assert str(raised.value) == sentence
    assert "secret" not in repr(Outbox("postgresql://shop:secret@localhost/shop"))


def test_settings_of_an_outbox_without_one_are_refused() -> None:
    app = App("shop", config=Config({("outbox", "batch"): Given(5, "ackwise.toml")}))

    @app.agent("orders")
    async def take(message: Message[bytes]) -> None: ...

    with pytest.raises(ConfigurationError, match="does not use Outbox"):
        _ = app.group().slots.outbox
