"""Measures of a worker: every sample of its metrics as it is now. Nobody is asked for them; what others know was asked before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client import Histogram

from ackwise.middleware.run import Run
from ackwise.plugin.cdc.session import CdcCounts
from ackwise.plugin.group.member import Member
from ackwise.plugin.group.relaycounts import DelayCounts, RelayCounts
from ackwise.plugin.inspect.outboxstate import HasOutbox, OutboxState
from ackwise.plugin.watch.counts import Counts
from ackwise.plugin.watch.seen import Seen, key_of, lanes_of

__all__ = ["Sample", "measures", "measures_of_cdc", "measures_of_relays"]


class Sample(NamedTuple):
    """A metric by its name, the values of its labels but the group, and its value."""

    metric: str
    labels: tuple[str, ...]
    value: float | Histogram


def measures(member: Member, counts: Counts, seen: Seen, now: float) -> Iterator[Sample]:
    """All samples of `member`, which is open; `now` is monotonic."""
    yield from _of_counts(counts)
    yield from _of_lanes(member, seen, now)
    yield from _of_agents(member)
    yield from _of_flow(member)
    yield from _of_parts(member, counts)
    yield from _of_delays(member.delay_counts)
    if member.outbox is not None:
        yield from _of_outbox(member, seen.outbox)
    if member.share_counts is not None:
        yield from _of_share(member)


def measures_of_relays(counts: RelayCounts, seen: OutboxState | None) -> Iterator[Sample]:
    """All samples of the relays of a process without handlers."""
    if counts.delay_counts is not None:
        yield from _of_delays(counts.delay_counts)
    if counts.outbox is not None:
        yield from _of_outbox(counts, seen)


def measures_of_cdc(counts: CdcCounts) -> Iterator[Sample]:
    """All samples of change data capture."""
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
            held[_agent_of(run), _reason(run.why)] += len(run)
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
    for answer in ("committed", "rolled_back", "unknown", "unanswered", "parked"):
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
    """Of a copy in another version of the wire format nobody knows whose it is."""
    return "-" if run.pipeline is None else run.pipeline.agent.name


def _reason(why: str) -> str:
    """Why a run is held, without the number that some reasons begin with: it would make a series of each."""
    return why.lstrip("0123456789 ")
