"""The metrics of a worker: what each shows, and that table, page, alerts and dashboard are about the same ones."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types
from aiokafka import TopicPartition
from prometheus_client import Histogram
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes import FULL_DISK, Sink
from tests.plugin.operate.test_state import ORDERS, RETRY, AwayStore, agent, end, give, make_member
from tests.plugin.web.worker.pages import an_app, named, running
from tests.tables import each
from tests.waiting import PATIENCE, until

from ackwise import Breaker, ConsumeLater, Dedup, Message, Watch, reliable
from ackwise.middleware.errors import EventLogUnavailable, StoreUnavailable
from ackwise.middleware.events import Event, EventCode, RunEvents
from ackwise.middleware.flow.breaker import Circuit, Position
from ackwise.middleware.flow.pausing import Target
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.workerstate import CheckCounts, DelayStanding, ShareCounts
from ackwise.plugin.operate.state import OutboxState, look
from ackwise.plugin.web.metricnames import GROUP, METRICS, PARTITION, TOPIC, table
from ackwise.plugin.web.workermeasures import CountedEvents, Counts, Seen, TimedStore, families, measures
from ackwise.stores.memory import MemoryStore
from ackwise.stores.memoryoutbox import MemoryOutbox
from ackwise.testing.kafka.broker import MemoryKafka

DOCS = Path(__file__).parents[4] / "docs"

#: What only the pages themselves know, and what only change data capture does.
OF_THE_LOOP = {"ackwise_ready", "ackwise_loop_turned_seconds"}
OF_CDC = {"ackwise_cdc_sent_total", "ackwise_cdc_transactions_total", "ackwise_cdc_parked_total"}

OUTBOX = OutboxState(7, 12.0, 1, 2, 3, True, 4, 5, 6, 8, 0, 0, False, 0.0, CheckCounts())


def found(
    member: Member, counts: Counts | None = None, seen: Seen | None = None, now: float = 0.0
) -> dict[tuple[str, tuple[str, ...]], Any]:
    return {(sample.metric, sample.labels): sample.value for sample in measures(member, counts or Counts(), seen or Seen(), now)}


async def everything() -> tuple[Member, Counts, Seen]:
    """A member of which each metric has something to show."""
    member, counts = make_member(agent("bill", "orders"), store=AwayStore()), Counts()
    lane = give(member, ORDERS, 3, agent="bill")
    lane.start()
    await until(lambda: lane.held)
    await end(lane)
    sink = CountedEvents(counts, None)
    for code in (EventCode.SUCCEEDED, EventCode.FAILED, EventCode.DEAD_LETTERED, EventCode.CLAIM_LOST, EventCode.COMMITTED):
        sink.record(Event(code, "orders", 0, 7, handler="bill", duration_us=1000, error="rejected"))
    sink.record(Event(EventCode.SENT_BACK, "orders", 0, 7, handler="bill", level=3))
    counts.exchanges["answered"].observe(0.1)
    counts.flushes["done"].observe(0.1)
    member.flow.pausing.pause(Target("bill"), "code")
    member.share_counts, member.outbox = ShareCounts(), MemoryOutbox()
    member.delay_counts.standing = lambda: [DelayStanding("billing.delay.1s", 2, 1.5), DelayStanding("billing.delay.1s", 3, 0.5)]
    return member, counts, Seen({ORDERS: 110}, OUTBOX)


async def test_every_metric_of_the_table_is_exported_and_no_other_with_its_labels() -> None:
    member, counts, seen = await everything()
    samples = [*measures(member, counts, seen, 0.0)]
    assert {sample.metric for sample in samples} | OF_THE_LOOP | OF_CDC == METRICS.keys()
    for sample in samples:
        assert len(sample.labels) == len(METRICS[sample.metric].labels), sample
        assert isinstance(sample.value, Histogram) == (METRICS[sample.metric].kind == "histogram")


async def test_the_page_is_read_by_prometheus_and_each_sample_names_the_group() -> None:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    member, counts, seen = await everything()

    class Page(Collector):
        def collect(self) -> Any:
            return families([("billing", measures(member, counts, seen, 0.0))])

    registry = CollectorRegistry(auto_describe=True)
    registry.register(Page())
    read = [*text_string_to_metric_families(generate_latest(registry).decode())]
    assert {family.name for family in read} == {name.removesuffix("_total") for name in METRICS.keys() - OF_THE_LOOP - OF_CDC}
    assert {sample.labels[GROUP] for family in read for sample in family.samples} == {"billing"}
    (timed,) = (family for family in read if family.name == "ackwise_store_exchange_seconds")
    buckets = {sample.labels["le"]: sample.value for sample in timed.samples if sample.name.endswith("_bucket")}
    assert (buckets["0.075"], buckets["0.1"], buckets["+Inf"]) == (0, 1, 1)


def test_the_page_of_the_docs_has_the_table() -> None:
    assert table() in (DOCS / "how-to" / "watch.md").read_text("utf-8")


def test_names_and_units_keep_to_the_habits_of_prometheus() -> None:
    for entry in METRICS.values():
        assert entry.name.startswith(("ackwise_", "messaging_"))
        assert entry.name.endswith("_total") == (entry.kind == "counter"), entry.name
        assert entry.name.removesuffix("_total").endswith("_seconds") == (entry.unit == "s"), entry.name


def names_in(expression: str) -> set[str]:
    """The metrics that a PromQL expression is about, as the table calls them."""
    names = (
        set(re.findall(r"\b(?:ackwise|messaging)_\w+", expression))
        - {label for entry in METRICS.values() for label in entry.labels}
        - {GROUP}
    )
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DOCS / "watch" / "alerts.yml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_each_alert_is_about_metrics_that_exist_and_says_what_to_do() -> None:
    assert len(rules()) >= 10
    for rule in rules():
        assert names_in(rule["expr"])
        assert names_in(rule["expr"]) <= METRICS.keys(), rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
    page = (DOCS / "how-to" / "watch.md").read_text("utf-8")
    assert [rule["alert"] for rule in rules() if f"`{rule['alert']}`" not in page] == []


def test_each_panel_of_the_dashboard_is_about_metrics_that_exist_and_no_two_overlap() -> None:
    board = json.loads((DOCS / "watch" / "dashboard.json").read_text("utf-8"))
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        mine = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & mine, panel["title"]
        cells |= mine
    for panel in panels:
        for target in panel["targets"]:
            assert names_in(target["expr"]), panel["title"]
            assert names_in(target["expr"]) <= METRICS.keys(), panel["title"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


# What each shows.


async def test_lag_is_the_distance_of_the_next_commit_to_the_end_and_absent_while_nobody_knows_that() -> None:
    member = make_member(agent("bill", "orders"))
    give(member, ORDERS, 3)
    at = ("orders", "0", "bill")
    assert found(member, seen=Seen({ORDERS: 110}))["ackwise_lag_messages", at] == 10
    assert ("ackwise_lag_messages", at) not in found(member)


async def test_lag_in_seconds_is_shown_for_each_partition_of_an_agent_and_in_its_state() -> None:
    member = make_member(agent("bill", "orders"))
    lane, at = give(member, ORDERS, 0), ("orders", "0", "bill")
    assert ("ackwise_lag_seconds", at) not in found(member)
    assert found(member, seen=Seen({ORDERS: 100}))["ackwise_lag_seconds", at] == 0
    ms = round((time.time() - 3600) * 1000)
    lane.offer([Delivery(*ORDERS, 100, ms, b"k", b"v", (), Origin(*ORDERS, 100, ms))])
    assert found(member)["ackwise_lag_seconds", at] == pytest.approx(3600, abs=60)
    (state,) = look(member, {ORDERS: 101}).lanes
    assert state.lag_seconds == pytest.approx(3600, abs=60)


async def test_a_look_at_the_ends_of_logs_tells_the_lanes_that_nothing_more_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    member = make_member(agent("bill", "orders"))
    lane = give(member, ORDERS, 0)

    async def ends(partitions: object) -> dict[TopicPartition, int]:
        return {ORDERS: 100}

    monkeypatch.setattr(member, "_ends", ends)
    monkeypatch.setattr(lane.lag, "_begun", -1e9)
    assert (lane.lag_seconds(101) or 0) > 1e9
    await member.ends()
    assert (lane.lag_seconds(101) or 1e9) < 60


async def test_a_commit_that_stands_still_over_messages_in_hand_grows_old_and_one_over_nothing_does_not() -> None:
    member, seen = make_member(agent("bill", "orders")), Seen()
    lane = give(member, ORDERS, 3)
    idle = give(member, RETRY, 0)
    seen.note(member, 1000.0)
    seen.note(member, 1010.0)
    shown = found(member, seen=seen, now=1900.0)
    assert shown["ackwise_commit_age_seconds", ("orders", "0", "bill")] == 900
    assert shown["ackwise_commit_age_seconds", ("billing.retry", "0", "")] == 0
    lane.watermark.finish(100)
    assert found(member, seen=seen, now=1900.0)["ackwise_commit_age_seconds", ("orders", "0", "bill")] == 0
    seen.note(member, 2000.0)
    assert found(member, seen=seen, now=2001.0)["ackwise_commit_age_seconds", ("orders", "0", "bill")] == 1
    assert idle.in_hand == 0


async def test_a_lane_that_cannot_be_read_on_is_stalled() -> None:
    member = make_member(agent("bill", "orders"))
    lane = give(member, ORDERS, 1)
    assert found(member)["ackwise_stalled", ("orders", "0", "bill")] == 0
    lane.unreadable = "a checksum"
    assert found(member)["ackwise_stalled", ("orders", "0", "bill")] == 1


async def test_what_waits_is_shown_by_its_reason() -> None:
    member, counts, seen = await everything()
    shown = found(member, counts, seen)
    assert shown["ackwise_held", ("bill", "the store is not available")] == 3
    assert shown["ackwise_in_hand", ("bill",)] == 3
    assert shown["ackwise_store_down", ()] == 1


async def test_the_relay_shows_what_waits_by_topic_and_the_longest_delay() -> None:
    member, counts, seen = await everything()
    shown = found(member, counts, seen)
    assert shown["ackwise_delayed_copies", ("billing.delay.1s",)] == 5
    assert shown["ackwise_relay_late_seconds", ()] == 1.5


def test_a_handler_that_a_breaker_stopped_is_shown() -> None:
    member = make_member(agent("bill", "orders"), agent("ship", "parcels"))
    circuit = member.flow._undecodable["bill"] = Circuit(Breaker(), withholds=True)
    circuit.position = Position.OPEN
    shown = found(member)
    assert (shown["ackwise_breaker_open", ("bill",)], shown["ackwise_breaker_open", ("ship",)]) == (1, 0)


class Runs(Sink):
    def __init__(self) -> None:
        super().__init__()
        self.runs: list[RunEvents] = []

    def record_run(self, events: RunEvents) -> None:
        self.runs.append(events)


def value_of(histogram: Histogram, what: str) -> float:
    """The `_sum` of what was observed, or its `_count`."""
    return next(sample.value for metric in histogram.collect() for sample in metric.samples if sample.name.endswith(what))


RUN = RunEvents(EventCode.SUCCEEDED, "orders", 0, range(3), "bill", 1, [0, 0, 0], duration_us=2_000_000)


def test_a_run_is_counted_as_one_and_goes_on_as_one_where_the_sink_takes_runs() -> None:
    counts, runs, kept = Counts(), Runs(), Sink()
    CountedEvents(counts, runs).record_run(RUN)
    CountedEvents(counts, kept).record_run(RUN)
    CountedEvents(counts, None).record_run(RUN)
    assert (runs.runs, runs.events, len(kept.events)) == ([RUN], [], 3)
    assert (counts.messages["bill", "done"], counts.attempts["bill"], value_of(counts.processing["bill"], "_sum")) == (9, 9, 6.0)


@each(
    ("code", "outcome"),
    [
        (EventCode.SUCCEEDED, "done"),
        (EventCode.DUP_SUPPRESSED, "duplicate"),
        (EventCode.STALE, "duplicate"),
        (EventCode.SENT_BACK, "sent_back"),
        (EventCode.DEAD_LETTERED, "dead"),
        (EventCode.DROPPED, "dropped"),
        (EventCode.CANCELLED, "cancelled"),
    ],
)
def test_each_outcome_is_counted_for_its_agent(code: EventCode, outcome: str) -> None:
    counts = Counts()
    CountedEvents(counts, None).record(Event(code, "orders", 0, 7, handler="bill"))
    assert counts.messages == {("bill", outcome): 1}


def test_an_attempt_that_fails_is_no_outcome() -> None:
    counts = Counts()
    CountedEvents(counts, None).record(Event(EventCode.FAILED, "orders", 0, 7, handler="bill"))
    assert (dict(counts.messages), counts.attempts["bill"], counts.failed["bill"]) == ({}, 1, 1)


def test_a_reason_that_a_handler_gave_in_words_of_its_own_is_not_shown() -> None:
    counts = Counts()
    for reason in ("rejected", "account 4711 is closed", None):
        CountedEvents(counts, None).record(Event(EventCode.DEAD_LETTERED, "orders", 0, 7, handler="bill", error=reason))
    assert counts.dead == {("bill", "rejected"): 1, ("bill", "by its handler"): 2}


async def test_a_flush_is_timed_whether_it_is_done_or_fails_and_its_error_goes_on() -> None:
    counts, sink = Counts(), Sink()
    await CountedEvents(counts, sink).flush()
    sink.error = FULL_DISK
    with pytest.raises(EventLogUnavailable):
        await CountedEvents(counts, sink).flush()
    await CountedEvents(counts, None).flush()
    assert {result: int(value_of(each, "_count")) for result, each in counts.flushes.items()} == {"done": 1, "failed": 1}


@each(("store", "result"), [(MemoryStore(), "answered"), (AwayStore(), "failed")])
async def test_a_trip_to_the_store_is_timed_whether_it_is_answered_or_not(store: Any, result: str) -> None:
    from ackwise.middleware.storage.claimstore import ColumnExchange, Exchange

    counts = Counts()
    timed = TimedStore(counts, store)
    await timed.open()
    try:
        await timed.exchange_columns(ColumnExchange())
        await timed.exchange(Exchange())
    except StoreUnavailable:
        assert result == "failed"
    await timed.close()
    assert [*counts.exchanges] == [result]


# A whole worker.


async def test_the_metrics_of_a_worker_follow_what_becomes_of_its_messages(
    kafka: MemoryKafka, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.plugin.web.workermeasures._LOOK_EVERY", 0.05)

    async def bill(message: Message[bytes]) -> None:
        if message.value == b"bad":
            raise ValueError("no")

    async with running(an_app(kafka, bill, ConsumeLater(1, levels="1h"), Dedup("memory://")), caplog) as pages:
        kafka.produce("orders", b"good", b"bad", b"good")
        lag = named("ackwise_lag_messages", {"agent": "bill", TOPIC: "orders", PARTITION: "0"})
        shown = await pages.until(lambda found: found.get('ackwise_retries_total{agent="bill",level="1"}') == 1 and found.get(lag) == 0)
    assert shown['messaging_client_consumed_messages_total{agent="bill"}'] == 3
    assert shown['ackwise_failed_attempts_total{agent="bill"}'] == 1
    assert shown['ackwise_messages_total{agent="bill",outcome="done"}'] == 2
    assert shown['ackwise_messages_total{agent="bill",outcome="sent_back"}'] == 1
    assert shown['ackwise_retries_total{agent="bill",level="1"}'] == 1
    assert shown['ackwise_store_exchange_seconds_count{result="answered"}'] > 0
    assert shown['ackwise_in_hand{agent="bill"}'] == 0
    assert shown['messaging_process_duration_seconds_count{agent="bill"}'] > 0


async def test_a_loop_of_the_users_own_is_watched_too(kafka: MemoryKafka, caplog: Any) -> None:
    from aiokafka import AIOKafkaConsumer
    from tests.plugin.web.worker.pages import Pages, port_of

    caplog.set_level("INFO", "ackwise")
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id="billing", enable_auto_commit=False, auto_offset_reset="none")
    async with consumer, asyncio.timeout(PATIENCE), reliable(consumer, "orders", Watch(0), commit_interval=0.1) as batches:
        kafka.produce("orders", b"one")
        async for batch in batches:
            async with batch:
                pass
            break
        shown = await Pages(port_of(caplog)).until(lambda found: found.get('ackwise_messages_total{agent="loop",outcome="done"}') == 1)
    assert shown["ackwise_ready"] == 1
