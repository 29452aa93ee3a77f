"""The metrics of a worker: name, unit, labels and meaning. Documentation, alerts and the dashboard are made from this table.

Names follow the OpenTelemetry conventions for messaging if there is one; the others start with `ackwise_`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

#: Labels, named by the conventions.
GROUP: Final = "messaging_consumer_group_name"
TOPIC: Final = "messaging_destination_name"
PARTITION: Final = "messaging_destination_partition_id"

_LANE: Final = (TOPIC, PARTITION, "agent")


@dataclass(frozen=True, slots=True)
class MetricEntry:
    """One metric. Every sample has the labels `GROUP` and `labels`; counters start with the worker."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    labels: tuple[str, ...]
    meaning: str


_ENTRIES: Final = (
    MetricEntry("ackwise_ready", "gauge", "", (), "1 if the worker is ready, as on `/ready`; not on Faust"),
    MetricEntry("ackwise_loop_turned_seconds", "gauge", "s", (), "time since the last turn of the event loop; not on Faust"),
    MetricEntry(
        "messaging_client_consumed_messages_total", "counter", "messages", ("agent",), "attempts: messages given to a handler, each time"
    ),
    MetricEntry(
        "messaging_process_duration_seconds", "histogram", "s", ("agent",), "time from the call of a handler until its outcome is recorded"
    ),
    MetricEntry(
        "ackwise_failed_attempts_total", "counter", "messages", ("agent",), "attempts that failed, or were sent back by their handler"
    ),
    MetricEntry(
        "ackwise_messages_total",
        "counter",
        "messages",
        ("agent", "outcome"),
        "messages by outcome: `done`, `duplicate`, `sent_back`, `dead`, `expired` (a dead letter too), `dropped`, `cancelled`",
    ),
    MetricEntry("ackwise_retries_total", "counter", "messages", ("agent", "level"), "messages sent back, by delay level"),
    MetricEntry(
        "ackwise_dead_letters_total",
        "counter",
        "messages",
        ("agent", "reason"),
        "dead letters by reason; `by its handler` replaces texts of handlers",
    ),
    MetricEntry("ackwise_commits_total", "counter", "commits", (), "offsets committed, one for each partition of a commit"),
    MetricEntry("ackwise_claims_lost_total", "counter", "messages", ("agent",), "messages whose claim was lost while they ran"),
    MetricEntry(
        "ackwise_assigned_partitions", "gauge", "partitions", ("role",), "partitions of this worker: of sources, and of the retry topic"
    ),
    MetricEntry("ackwise_lag_messages", "gauge", "offsets", _LANE, "distance of the next commit to the end of the log; asked every 10 s"),
    MetricEntry(
        "ackwise_lag_seconds",
        "gauge",
        "s",
        _LANE,
        "age of the oldest record that is not finished, by its timestamp; 0 if all are",
    ),
    MetricEntry(
        "ackwise_commit_age_seconds",
        "gauge",
        "s",
        _LANE,
        "time for which the next commit of a partition with messages in flight is stalled, to 10 s; 0 if none are in flight",
    ),
    MetricEntry(
        "ackwise_stalled",
        "gauge",
        "",
        _LANE,
        "1 if the partition is stalled until the operator acts: the next record is unreadable",
    ),
    MetricEntry("ackwise_in_hand", "gauge", "messages", ("agent",), "messages fetched and not yet settled"),
    MetricEntry("ackwise_running", "gauge", "messages", ("agent",), "messages that a handler is running now"),
    MetricEntry("ackwise_held", "gauge", "messages", ("agent", "reason"), "messages fetched and waiting, by reason"),
    MetricEntry("ackwise_undeduplicated_total", "counter", "messages", ("agent",), "messages that ran without a claim: empty key"),
    MetricEntry("ackwise_unprotected_total", "counter", "messages", ("agent",), "messages that ran without a claim: store down, by policy"),
    MetricEntry("ackwise_out_of_order_total", "counter", "messages", ("agent",), "copies delivered although their agent has an order"),
    MetricEntry(
        "ackwise_broker_throttle_seconds_total",
        "counter",
        "s",
        (),
        "time for which brokers delayed this process by a quota: the sum of `throttle_time_ms` of their answers",
    ),
    MetricEntry(
        "ackwise_one_way_messages_total",
        "counter",
        "messages",
        ("outcome",),
        "messages that this process sent with `send_one_way`: `sent`, written to a connection, or `failed`",
    ),
    MetricEntry("ackwise_paused", "gauge", "", ("what",), "1 for each handler and partition that is paused"),
    MetricEntry("ackwise_breaker_open", "gauge", "", ("agent",), "1 while a breaker has stopped the handler"),
    MetricEntry("ackwise_claims", "gauge", "claims", (), "claims held in the store; with `Dedup`"),
    MetricEntry("ackwise_store_down", "gauge", "", (), "1 if the store did not answer the last request; with `Dedup`"),
    MetricEntry(
        "ackwise_store_exchange_seconds", "histogram", "s", ("result",), "requests to the store, `answered` or `failed`; with `Dedup`"
    ),
    MetricEntry(
        "ackwise_event_log_outage", "gauge", "", (), "1 if the event log could not be made durable and no message starts; with `Events`"
    ),
    MetricEntry(
        "ackwise_event_flush_seconds", "histogram", "s", ("result",), "flushes of the event log, `done` or `failed`; with `Events`"
    ),
    MetricEntry(
        "ackwise_delayed_copies",
        "gauge",
        "messages",
        (TOPIC,),
        "waiting copies by delay topic, in the partitions of this worker's relay",
    ),
    MetricEntry("ackwise_relay_late_seconds", "gauge", "s", (), "time since the oldest due copy became due for this worker's relay"),
    MetricEntry("ackwise_delays_cut_total", "counter", "messages", (), "copies whose delay was above `max_delay` and was cut"),
    MetricEntry(
        "ackwise_copies_cancelled_total", "counter", "messages", (), "copies that the relay dropped because their message was cancelled"
    ),
    MetricEntry(
        "ackwise_outbox_waiting",
        "gauge",
        "rows",
        (),
        "waiting rows in the database, read every 10 s; with `Outbox`, like all metrics below",
    ),
    MetricEntry("ackwise_outbox_oldest_seconds", "gauge", "s", (), "age of the oldest waiting row"),
    MetricEntry("ackwise_outbox_prepared", "gauge", "rows", (), "half messages in the database"),
    MetricEntry("ackwise_outbox_parked_rows", "gauge", "rows", (), "parked rows in the database"),
    MetricEntry("ackwise_outbox_relays", "gauge", "relays", (), "relays that own shards, over all workers"),
    MetricEntry("ackwise_outbox_shards", "gauge", "shards", (), "shards that this worker owns"),
    MetricEntry("ackwise_outbox_lag_seconds", "gauge", "s", (), "age of the oldest row at this worker's last read; 0 if none waited"),
    MetricEntry("ackwise_outbox_brokers_away", "gauge", "", (), "1 while no broker takes the rows"),
    MetricEntry("ackwise_outbox_sent_total", "counter", "rows", (), "rows that this worker sent"),
    MetricEntry("ackwise_outbox_failed_total", "counter", "rows", (), "failures of rows that are tried again"),
    MetricEntry("ackwise_outbox_parked_total", "counter", "rows", (), "rows that this worker parked"),
    MetricEntry("ackwise_outbox_expired_total", "counter", "rows", (), "rows whose time was over before this worker sent them"),
    MetricEntry(
        "ackwise_outbox_checks_total",
        "counter",
        "checks",
        ("answer",),
        "check-backs: `committed`, `rolled_back`, `unknown`, `unanswered`, `waiting`, `parked`",
    ),
    MetricEntry("ackwise_cdc_sent_total", "counter", "messages", (), "messages sent from the log of a database; only with `ackwise cdc`"),
    MetricEntry(
        "ackwise_cdc_transactions_total",
        "counter",
        "transactions",
        (),
        "transactions of the log that were sent completely; only with `ackwise cdc`",
    ),
    MetricEntry("ackwise_cdc_parked_total", "counter", "rows", (), "rows parked because Kafka refuses them; only with `ackwise cdc`"),
    MetricEntry("ackwise_share_in_hand", "gauge", "messages", (), "messages locked for this worker; with `Share`, like all metrics below"),
    MetricEntry("ackwise_share_accepted_total", "counter", "messages", (), "messages whose acknowledgement the broker accepted"),
    MetricEntry("ackwise_share_refused_total", "counter", "messages", (), "messages whose lock had expired before the acknowledgement"),
    MetricEntry("ackwise_share_copied_total", "counter", "messages", (), "messages copied to the retry topic without counting an attempt"),
    MetricEntry("ackwise_share_released_total", "counter", "messages", (), "messages released when the worker stopped"),
)

METRICS: Final = {entry.name: entry for entry in _ENTRIES}


def table() -> str:
    """Return the published table in Markdown."""
    return "\n".join(["| name | kind | unit | labels | meaning |", "|---|---|---|---|---|", *map(_row, METRICS.values())])


def _row(entry: MetricEntry) -> str:
    labels = ", ".join(f"`{label}`" for label in entry.labels)
    return f"| `{entry.name}` | {entry.kind} | {entry.unit or '–'} | {labels or '–'} | {entry.meaning} |"


_BEGIN, _END = "<!-- metrics: written by python -m ackwise.plugin.web.metricnames -->", "<!-- end of metrics -->"


def _rewrite(page: Path) -> None:
    text = page.read_text("utf-8")
    before, _, rest = text.partition(_BEGIN)
    page.write_text(f"{before}{_BEGIN}\n\n{table()}\n\n{_END}{rest.partition(_END)[2]}", "utf-8")


if __name__ == "__main__":
    _rewrite(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/how-to/watch.md"))
