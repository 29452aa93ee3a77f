"""A repair plan for an app of Faust: its messages have the keys that its workers give them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import faust
import pytest
from tests.plugin.operate.repairing import values
from tests.servers import RawKafka

from ackwise.middleware.message.keys import Identity, business_id
from ackwise.middleware.message.message import delivery_of
from ackwise.middleware.message.wire import parse_copy
from ackwise.middleware.repairplan import Action, RepairStep, Title, write_plan
from ackwise.middleware.storage.claimstore import Claim, ClaimKey, Complete, Exchange, Outcome
from ackwise.plugin.faust import App
from ackwise.plugin.operate.resend import Fate
from ackwise.plugin.operate.resendplan import carry_out
from ackwise.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.kafka


class Order(faust.Record):
    id: str


async def test_what_a_faust_worker_did_is_not_sent_and_the_rest_names_its_agent(raw_kafka: RawKafka, tmp_path: Path) -> None:
    from ackwise import Dedup, Events

    topic, name = await raw_kafka.new_topic(1), raw_kafka.new_group()
    await raw_kafka.produce(topic, *(b'{"id": "%s"}' % value for value in values(range(3))))
    app = App(name, broker=f"kafka://{raw_kafka.bootstrap}")
    app.use(Events(str(tmp_path / "events")), Dedup(f"sqlite:///{tmp_path}/claims.db", key=lambda message: message.value.id))

    @app.agent(app.topic(topic, value_type=Order))
    async def bill(orders: faust.StreamT[Order]) -> None:
        async for _ in orders:
            pass

    agent = app.ackwise.group().agents[0].name
    key = ClaimKey(Identity("ackwise", name, agent, 0).of(business_id("order-1"))[0], None, 1)
    store = SQLiteStore(str(tmp_path / "claims.db"))
    await store.open()
    await store.exchange(Exchange(claims=[Claim(key, 7)]))
    await store.exchange(Exchange(completes=[Complete(key, 7, Outcome.OK)]))
    await store.close()

    step = RepairStep(Action.PROBE, "NEVER_SEEN", "", name, None, None, topic, "", 0, 0, 3, 0)
    write_plan(tmp_path / "plan.jsonl", Title("run", round(time.time() * 1e6)), [step])
    carried = await carry_out(tmp_path / "plan.jsonl", app.ackwise.group(), execute=True)
    assert sum(carried.counts.values(), Counter()) == {Fate.SENT: 2, Fate.DONE: 1}
    copies = [
        parse_copy(delivery_of((record.topic, record.partition), record), name) for record in await raw_kafka.records(f"{name}.retry")
    ]
    assert [(copy.origin.offset, copy.handler) for copy in copies] == [(0, agent), (2, agent)]
