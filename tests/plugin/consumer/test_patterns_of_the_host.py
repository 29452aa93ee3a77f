"""Topics that patterns find, in a whole worker on a Kafka in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from tests.waiting import until

from ackwise import App, ConsumeLater, ConsumeStatus, Message
from ackwise.errors import ConfigurationError
from ackwise.middleware.events import Event, EventCode
from ackwise.plugin.settings.config import Config
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.reference.oracle import rule
from ackwise.spark.vocabulary import Flag, Verdict
from ackwise.testing import Place, TestApp

ORDERS = r"orders\..+"


@pytest.mark.slow  # waits for a worker to find a new topic
async def test_a_topic_that_is_made_while_the_worker_runs_is_read_from_its_first_record(caplog: pytest.LogCaptureFixture) -> None:
    app, ran = App("billing", config=Config(), start="latest"), list[tuple[str, bytes]]()

    @app.agent("orders", pattern=ORDERS)
    async def bill(message: Message[bytes]) -> None:
        ran.append((message.topic, message.value))

    async with TestApp(app) as worker:
        await until(lambda: any(event.code is EventCode.ASSIGNED and event.topic == "orders" for event in worker.events))
        assert (await worker.deliver("orders", b"0", max_wait=60)).kind == "done"
        worker.kafka.create_topic("orders.fr", 3)  # wider than the group's own topics are by now
        worker.kafka.produce("orders.fr", b"1", b"2", partition=2)
        for offset in (0, 1):
            assert (await worker.fate(Place("orders.fr", 2, offset), max_wait=60)).kind == "done"
        assert worker.kafka.log("billing.retry", 2).end == 0
    assert "commit refused" not in caplog.text  # of what was drained while the group joined again
    assert [each for each in ran if each[0] == "orders.fr"] == [("orders.fr", b"1"), ("orders.fr", b"2")]


@pytest.mark.slow  # waits until the client has asked for the topics again
async def test_a_topic_that_is_deleted_stops_no_other_and_is_read_anew_if_it_is_made_anew() -> None:
    app, ran = App("billing", config=Config()), list[tuple[str, bytes]]()

    @app.agent(pattern=ORDERS)
    async def bill(message: Message[bytes]) -> None:
        ran.append((message.topic, message.value))

    async with TestApp(app) as worker:  # there is no topic yet
        for topic in ("orders.de", "orders.fr"):
            await worker.deliver(topic, b"1", max_wait=60)
        with pytest.raises(ConfigurationError, match=r"no agent of the app reads topic 'stock'; they read orders"):
            await worker.deliver("stock", b"2")
        worker.kafka.delete_topic("orders.de")
        await worker.deliver("orders.fr", b"2", max_wait=60)
        await until_gone("orders.de", worker)
        assert (await worker.deliver("orders.fr", b"3", max_wait=60)).kind == "done"
        worker.kafka.create_topic("orders.de")
        worker.kafka.produce("orders.de", b"new")
        while ("orders.de", b"new") not in ran:
            await worker.deliver("orders.fr", b"on", max_wait=60)
    assert {(topic, value) for topic, value in ran if value != b"on"} == {
        *((topic, b"1") for topic in ("orders.de", "orders.fr")),
        *(("orders.fr", value) for value in (b"2", b"3")),
        ("orders.de", b"new"),
    }
    verdicts = Counter(verdict for verdict, _ in judged(worker.events))
    assert verdicts.keys() == {Verdict.EXACTLY_ONCE, Verdict.MAYBE_TWICE}
    assert verdicts[Verdict.MAYBE_TWICE] == 1  # the first record of orders.de, which has the place of another one


def judged(events: Sequence[Event]) -> list[tuple[Verdict, Flag]]:
    """The verdicts by the plain algebra, while the worker lives."""
    rows = []
    for seq, event in enumerate(events):
        found = event._asdict() | {"event_type": int(event.code), "writer_id": 1, "seq": seq, "group_id": "billing"}
        rows.append(found | {"event_ts": (1000 + seq) * 1_000_000, "record_ts": None, "due_ts": None})
    return list(rule(rows, ReconcileConfig(grace=600.0, writer_timeout=100_000.0)).messages.values())


async def until_gone(topic: str, worker: TestApp) -> None:
    """Until the worker has let go of it."""
    while not has_gone(topic, worker):
        await worker.deliver("orders.fr", b"on", max_wait=60)


def has_gone(topic: str, worker: TestApp) -> bool:
    """Whether the last that is told of its assignment is that it was taken away."""
    told = [event.code for event in worker.events if event.topic == topic and event.code in (EventCode.ASSIGNED, EventCode.REVOKED)]
    return told[-1] is EventCode.REVOKED


async def test_a_copy_of_a_topic_that_no_pattern_matches_any_more_finds_its_handler() -> None:
    kafka_app, ran = App("billing", config=Config()), list[tuple[str, int]]()
    kafka_app.use(ConsumeLater(max_reconsume_times=3))

    @kafka_app.agent(pattern=ORDERS)
    async def bill(message: Message[bytes]) -> ConsumeStatus | None:
        ran.append((message.topic, message.reconsume_times))
        return None if message.reconsume_times else ConsumeStatus.CONSUME_LATER

    async with TestApp(kafka_app) as worker:
        later = await worker.deliver("orders.de", b"1", max_wait=60)
        await worker.deliver("orders.fr", b"1", max_wait=60)
        worker.kafka.delete_topic("orders.de")
        await until_gone("orders.de", worker)
        assert (await worker.redeliver(later, max_wait=60)).kind == "done"
    assert ran.count(("orders.de", 1)) == 1
