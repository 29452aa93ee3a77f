"""The metrics of a worker: counts since its start, samples of its state, and their families for `prometheus_client`.

Counts come from the worker's events and from the calls of its store; without `Watch` there are none. Broker and database are asked
every ten seconds (`Seen`), so that `measures` needs no request.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from aiokafka import TopicPartition
from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ackwise.middleware.events import Durable, Event, EventCode, EventSink, RunEvents, durable_of, explode, mark_sink, run_sink
from ackwise.middleware.log import Log
from ackwise.middleware.message.disposition import OUR_REASONS, Reason
from ackwise.middleware.runs.run import Run
from ackwise.middleware.storage.claimstore import ClaimStore, ColumnExchange, ColumnResult, Exchange, ExchangeResult, in_columns
from ackwise.middleware.usercode import where_raised
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.workerstate import DelayCounts, RelayCounts
from ackwise.plugin.kafka.throttling import THROTTLING
from ackwise.plugin.operate.state import HasOutbox, OutboxState, look_at_outbox
from ackwise.plugin.outbox.cdcrelay import CdcCounts
from ackwise.plugin.producer.oneway import ONE_WAY
from ackwise.plugin.web.metricnames import GROUP, METRICS

T = TypeVar("T")

_OUTCOMES: Final = {
    EventCode.SUCCEEDED: "done",
    EventCode.DUP_SUPPRESSED: "duplicate",
    EventCode.STALE: "duplicate",
    EventCode.SENT_BACK: "sent_back",
    EventCode.DEAD_LETTERED: "dead",
    EventCode.DROPPED: "dropped",
    EventCode.CANCELLED: "cancelled",
}

#: Replaces texts of handlers: they may contain payloads, and their number is unbounded.
_BY_HANDLER: Final = "by its handler"

#: Upper bounds of the buckets in seconds: those of the OpenTelemetry conventions for messaging, and two above.
_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 60.0, 900.0)


def _durations() -> Histogram:
    """Return a histogram of seconds; `families` names it."""
    return Histogram("durations", "", registry=None, buckets=_BOUNDS)


class Counts:
    """Counters by the labels of each metric."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, str]] = Counter()  #: by agent and outcome
        self.attempts: Counter[str] = Counter()  #: by agent, as all of these
        self.failed: Counter[str] = Counter()
        self.claims_lost: Counter[str] = Counter()
        self.retries: Counter[tuple[str, str]] = Counter()  #: by agent and delay level
        self.dead: Counter[tuple[str, str]] = Counter()  #: by agent and reason
        self.commits = 0
        self.processing: defaultdict[str, Histogram] = defaultdict(_durations)  #: by agent
        self.exchanges: defaultdict[str, Histogram] = defaultdict(_durations)  #: by result, as the next
        self.flushes: defaultdict[str, Histogram] = defaultdict(_durations)

    def count(self, event: Event | RunEvents, number: int, level: int | None = None) -> None:
        """Count `number` equal events."""
        code, agent = event.code, event.handler or "-"
        if (outcome := _OUTCOMES.get(code)) is not None:
            self.messages[agent, "expired" if outcome == "dead" and event.error == Reason.EXPIRED else outcome] += number
        match code:
            case EventCode.SUCCEEDED | EventCode.FAILED:
                self.attempts[agent] += number
                self.failed[agent] += number if code is EventCode.FAILED else 0
                if event.duration_us is not None:
                    self.processing[agent].observe(event.duration_us / 1e6)
            case EventCode.SENT_BACK:
                self.retries[agent, "-" if level is None else str(level)] += number
            case EventCode.DEAD_LETTERED:
                self.dead[agent, _reason(event.error)] += number
            case EventCode.CLAIM_LOST:
                self.claims_lost[agent] += number
            case EventCode.COMMITTED:
                self.commits += number
            case _:
                pass


def _reason(said: str | None) -> str:
    return said if said is not None and said in OUR_REASONS else _BY_HANDLER


class CountedEvents:
    """An event sink that counts events and passes them on to `sink`, if any; a run of events in one step."""

    def __init__(self, counts: Counts, sink: EventSink | None) -> None:
        self._counts = counts
        self._sink = sink

    @property
    def durable(self) -> Durable | None:
        """Return the sink's."""
        return durable_of(self._sink)

    def record(self, event: Event) -> None:
        """Give `event` to the sink, then count it."""
        if self._sink is not None:
            self._sink.record(event)
        self._counts.count(event, 1, event.level)

    def record_run(self, events: RunEvents) -> None:
        """Give the events of a run to the sink, then count them."""
        if (sink := run_sink(self._sink)) is not None:
            sink.record_run(events)
        elif self._sink is not None:
            for event in explode(events):
                self._sink.record(event)
        self._counts.count(events, len(events))

    async def flush(self) -> None:
        """Flush the sink, timed; without a sink do nothing."""
        if self._sink is not None:
            await _timed(self._sink.flush, self._counts.flushes, "done")

    def mark(self) -> None:
        """Let the sink write its marks."""
        if (sink := mark_sink(self._sink)) is not None:
            sink.mark()

    async def open(self) -> None:
        """Open the sink."""
        if self._sink is not None:
            await self._sink.open()

    async def close(self) -> None:
        """Close the sink."""
        if self._sink is not None:
            await self._sink.close()


class TimedStore:
    """A claim store that times its exchanges, including failed ones."""

    def __init__(self, counts: Counts, store: ClaimStore) -> None:
        self._store, self._columns = store, in_columns(store)
        self._exchanges = counts.exchanges
        self.open, self.close = store.open, store.close

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Call the store, timed."""
        return await _timed(lambda: self._store.exchange(exchange), self._exchanges, "answered")

    async def exchange_columns(self, exchange: ColumnExchange) -> ColumnResult:
        """Call the store, timed."""
        return await _timed(lambda: self._columns.exchange_columns(exchange), self._exchanges, "answered")


async def _timed(call: Callable[[], Awaitable[T]], durations: defaultdict[str, Histogram], result: str) -> T:
    begun = time.perf_counter()
    try:
        answered = await call()
    except BaseException:
        durations["failed"].observe(time.perf_counter() - begun)
        raise
    durations[result].observe(time.perf_counter() - begun)
    return answered


log = Log()

#: Seconds between two looks.
_LOOK_EVERY: Final = 10.0

LaneKey = tuple[str, int, str]
"""Topic, partition and agent."""


@dataclass(slots=True)
class Seen:
    """The last answers of broker and database, and since when each commit is stalled (monotonic seconds)."""

    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    outbox: OutboxState | None = None
    standing: dict[LaneKey, tuple[int | None, float]] = field(default_factory=dict)

    def note(self, member: Member, now: float) -> None:
        """Note the next commit of each lane."""
        self.standing = {key_of(lane): self._standing(lane, now) for lane in lanes_of(member)}

    def _standing(self, lane: Lane, now: float) -> tuple[int | None, float]:
        """Return the next commit of `lane`, and since when it is unchanged. Without messages in flight nothing is stalled."""
        commit = lane.watermark.commit
        before = self.standing.get(key_of(lane))
        return before if before is not None and lane.in_hand and before[0] == commit else (commit, now)


async def keep_looking(member: Member, seen: Seen) -> None:
    """Ask broker and database now and every ten seconds, and update `seen`; missing answers are unknown."""
    while True:
        seen.note(member, time.monotonic())
        try:
            seen.ends, seen.outbox = await asyncio.gather(member.ends(), look_at_outbox(member))
        except Exception as error:  # noqa: BLE001  # the worker continues without these metrics
            seen.ends, seen.outbox = {}, None
            log.warning(
                "worker measures failed",
                group=member.settings.group,
                error=type(error).__name__,
                at=where_raised(error),
            )
        await asyncio.sleep(_LOOK_EVERY)


def lanes_of(member: Member) -> Iterator[Lane]:
    """Return all lanes of `member`. Thread-safe."""
    return (lane for lanes in member.lanes.copy().values() for lane in lanes)


def key_of(lane: Lane) -> LaneKey:
    """Return the labels of a lane; the agent is empty if it has several."""
    return lane.topic, lane.partition, lane.agent or lane.handler or ""


class Sample(NamedTuple):
    """Name of a metric, values of its labels except the group, and its value."""

    metric: str
    labels: tuple[str, ...]
    value: float | Histogram


def measures(member: Member, counts: Counts, seen: Seen, now: float) -> Iterator[Sample]:
    """Return all samples of the open `member`; `now` is in monotonic seconds."""
    yield from _of_counts(counts)
    yield from _of_lanes(member, seen, now)
    yield from _of_agents(member)
    yield from _of_flow(member)
    yield from _of_process()
    yield from (Sample("ackwise_one_way_messages_total", (outcome,), ONE_WAY[outcome]) for outcome in ("sent", "failed"))
    yield from _of_parts(member, counts)
    yield from _of_delays(member.delay_counts)
    if member.outbox is not None:
        yield from _of_outbox(member, seen.outbox)
    if member.share_counts is not None:
        yield from _of_share(member)


def measures_of_relays(counts: RelayCounts, seen: OutboxState | None) -> Iterator[Sample]:
    """Return all samples of the relays of a process without handlers."""
    yield from _of_process()
    if counts.delay_counts is not None:
        yield from _of_delays(counts.delay_counts)
    if counts.outbox is not None:
        yield from _of_outbox(counts, seen)


def measures_of_cdc(counts: CdcCounts) -> Iterator[Sample]:
    """Return all samples of change data capture."""
    yield from _of_process()
    yield Sample("ackwise_cdc_sent_total", (), counts.sent)
    yield Sample("ackwise_cdc_transactions_total", (), counts.transactions)
    yield Sample("ackwise_cdc_parked_total", (), counts.parked)


def _of_counts(counts: Counts) -> Iterator[Sample]:
    for metric, by_agent in (
        ("messaging_client_consumed_messages_total", counts.attempts),
        ("ackwise_failed_attempts_total", counts.failed),
        ("ackwise_claims_lost_total", counts.claims_lost),
    ):
        yield from (Sample(metric, (agent,), number) for agent, number in by_agent.copy().items())
    for metric, by_two in (
        ("ackwise_messages_total", counts.messages),
        ("ackwise_retries_total", counts.retries),
        ("ackwise_dead_letters_total", counts.dead),
    ):
        yield from (Sample(metric, labels, number) for labels, number in by_two.copy().items())
    yield from (Sample("messaging_process_duration_seconds", (agent,), each) for agent, each in counts.processing.copy().items())
    yield Sample("ackwise_commits_total", (), counts.commits)


def _of_lanes(member: Member, seen: Seen, now: float) -> Iterator[Sample]:
    roles = Counter({"source": 0, "retry": 0})
    for partition, lanes in member.lanes.copy().items():
        roles[lanes[0].role] += 1
        for lane in lanes:
            topic, number, agent = key_of(lane)
            labels = topic, str(number), agent
            end, commit = seen.ends.get(partition), lane.watermark.commit
            if end is not None and commit is not None:
                yield Sample("ackwise_lag_messages", labels, max(0, end - commit))
            if (seconds := lane.lag_seconds(end)) is not None:
                yield Sample("ackwise_lag_seconds", labels, seconds)
            at, since = seen.standing.get(key_of(lane), (commit, now))
            yield Sample("ackwise_commit_age_seconds", labels, now - since if lane.in_hand and at == commit else 0.0)
            yield Sample("ackwise_stalled", labels, lane.unreadable is not None)
    yield from (Sample("ackwise_assigned_partitions", (role,), number) for role, number in roles.items())


def _of_agents(member: Member) -> Iterator[Sample]:
    none = dict.fromkeys(member.pipelines.copy(), 0)
    in_hand, running, held = Counter(none), Counter(none), Counter[tuple[str, str]]()
    for lane in lanes_of(member):
        at_work, waiting = lane.running, lane.held
        _count(in_hand, (*lane.queued, *at_work, *waiting))
        _count(running, at_work)
        for run in waiting:
            held[_agent_of(run), _without_number(run.why)] += len(run)
    yield from (Sample("ackwise_in_hand", (agent,), number) for agent, number in in_hand.items())
    yield from (Sample("ackwise_running", (agent,), number) for agent, number in running.items())
    yield from (Sample("ackwise_held", labels, number) for labels, number in held.items())
    for agent, pipeline in member.pipelines.copy().items():
        yield Sample("ackwise_undeduplicated_total", (agent,), pipeline.undeduplicated)
        yield Sample("ackwise_unprotected_total", (agent,), pipeline.unprotected)
        yield Sample("ackwise_out_of_order_total", (agent,), member.routes.out_of_order[agent])


def _of_flow(member: Member) -> Iterator[Sample]:
    yield from (Sample("ackwise_paused", (str(target),), 1) for target in [*member.flow.pausing.paused])
    stopped = member.flow.stopped
    yield from (Sample("ackwise_breaker_open", (agent,), agent in stopped) for agent in member.pipelines.copy())


def _of_process() -> Iterator[Sample]:
    yield Sample("ackwise_broker_throttle_seconds_total", (), THROTTLING.seconds)


def _of_parts(member: Member, counts: Counts) -> Iterator[Sample]:
    yield Sample("ackwise_event_log_outage", (), member.worker.outage.is_on)
    if (leases := member.leases) is not None:
        yield Sample("ackwise_claims", (), len(leases))
        yield Sample("ackwise_store_down", (), leases.has_failed)
    for metric, by_result in (("ackwise_store_exchange_seconds", counts.exchanges), ("ackwise_event_flush_seconds", counts.flushes)):
        yield from (Sample(metric, (result,), durations) for result, durations in by_result.copy().items())


def _of_delays(counts: DelayCounts) -> Iterator[Sample]:
    waiting, late = counts.waiting(), counts.late()
    yield from (Sample("ackwise_delayed_copies", (topic,), number) for topic, number in waiting.items())
    yield Sample("ackwise_relay_late_seconds", (), late)
    yield Sample("ackwise_delays_cut_total", (), counts.cut)
    yield Sample("ackwise_copies_cancelled_total", (), counts.cancelled)


def _of_outbox(member: HasOutbox, state: OutboxState | None) -> Iterator[Sample]:
    counts, checks = member.outbox_counts, member.check_counts
    if state is not None:
        for metric, known in (
            ("ackwise_outbox_waiting", state.waiting),
            ("ackwise_outbox_oldest_seconds", state.oldest),
            ("ackwise_outbox_prepared", state.prepared),
            ("ackwise_outbox_parked_rows", state.parked),
            ("ackwise_outbox_relays", state.relays),
        ):
            if known is not None:
                yield Sample(metric, (), known)
    yield Sample("ackwise_outbox_shards", (), counts.shards)
    yield Sample("ackwise_outbox_lag_seconds", (), counts.lag)
    yield Sample("ackwise_outbox_brokers_away", (), counts.brokers_away)
    yield Sample("ackwise_outbox_sent_total", (), counts.sent)
    yield Sample("ackwise_outbox_failed_total", (), counts.failed)
    yield Sample("ackwise_outbox_parked_total", (), counts.parked)
    yield Sample("ackwise_outbox_expired_total", (), counts.expired)
    for answer in ("committed", "rolled_back", "unknown", "unanswered", "waiting", "parked"):
        yield Sample("ackwise_outbox_checks_total", (answer,), getattr(checks, answer))


def _of_share(member: Member) -> Iterator[Sample]:
    counts = member.share_counts
    assert counts is not None
    yield Sample("ackwise_share_in_hand", (), counts.in_hand)
    for name in ("accepted", "refused", "copied", "released"):
        yield Sample(f"ackwise_share_{name}_total", (), getattr(counts, name))


def _count(counter: Counter[str], runs: Iterable[Run]) -> None:
    for run in runs:
        counter[_agent_of(run)] += len(run)


def _agent_of(run: Run) -> str:
    """Return the handler; "-" for a copy in another version of the wire format."""
    return "-" if run.pipeline is None else run.pipeline.agent.name


def _without_number(why: str) -> str:
    """Return the reason without a leading number, which would create a series for each value."""
    return why.lstrip("0123456789 ")


def families(groups: Iterable[tuple[str, Iterable[Sample]]]) -> Iterator[Metric]:
    """Return the metrics of workers, given as group name and samples each, in the order of the table, without empty ones."""
    found: defaultdict[str, list[tuple[str, Sample]]] = defaultdict(list)
    for group, samples in groups:
        for sample in samples:
            found[sample.metric].append((group, sample))
    return (_family(name, found[name]) for name in METRICS if name in found)


def _family(name: str, found: list[tuple[str, Sample]]) -> Metric:
    entry = METRICS[name]
    labels, about = (GROUP, *entry.labels), entry.meaning.replace("`", "")
    if entry.kind == "histogram":
        histogram = HistogramMetricFamily(name, about, labels=labels)
        for group, sample in found:
            histogram.add_metric((group, *sample.labels), *_buckets(sample.value))
        return histogram
    family = (CounterMetricFamily if entry.kind == "counter" else GaugeMetricFamily)(name, about, labels=labels)
    for group, sample in found:
        assert not isinstance(sample.value, Histogram)
        family.add_metric((group, *sample.labels), float(sample.value))
    return family


def _buckets(histogram: float | Histogram) -> tuple[list[tuple[str, float]], float]:
    """Return the cumulative count of each bound, and the sum."""
    assert isinstance(histogram, Histogram)
    (metric,) = histogram.collect()
    (total,) = (sample.value for sample in metric.samples if sample.name.endswith("_sum"))
    return [(sample.labels["le"], sample.value) for sample in metric.samples if sample.name.endswith("_bucket")], total
