"""The metrics of Ackwise on the page that Faust makes for Prometheus, and nothing where its user made none."""

from __future__ import annotations

import itertools
from typing import Any

import faust
from faust.sensors.prometheus import setup_prometheus_sensors
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.policies.policies import DeadLetter, Dedup
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.storage.claimstore import ClaimStore
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.faust.prometheus import Numbers, numbers_of
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.web.metricnames import GROUP, METRICS
from ackwise.stores.memory import MemoryStore
from ackwise.stores.memoryoutbox import MemoryOutbox

_names = itertools.count(1)


async def handle(batch: Any) -> None: ...


def make_app() -> Any:
    return faust.App(f"counted-{next(_names)}")


def make_member(store: ClaimStore | None = None, group: str = "billing") -> Member:
    member = Member(
        HostSettings(brokers="nowhere:1", group=group),
        [Agent("bill", ("orders",), "batch", handle, lambda value: value)],
        Parts(ConsumeLater(), DeadLetter(), dedup=None if store is None else Dedup(store), store=store),
    )
    member._build_pipelines(None)  # type: ignore[arg-type]  # nothing is published
    return member


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """What a page of `registry` shows of Ackwise, by name and the last label's value; that of the group where there is no other."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if sample.name in METRICS or sample.name.removesuffix("_count") in METRICS:
                own = [value for label, value in sample.labels.items() if label != GROUP]
                found[sample.name, own[-1] if own else sample.labels[GROUP]] = sample.value
    return found


def test_without_a_page_nothing_is_counted_and_without_a_store_there_is_nothing_to_time() -> None:
    assert numbers_of(make_app()) is None
    assert Numbers(CollectorRegistry()).timed(None) is None


def test_what_is_counted_is_shown_under_the_names_that_every_worker_has() -> None:
    registry = CollectorRegistry()
    numbers, member = Numbers(registry), make_member(MemoryStore())
    sink = numbers.counted(None)
    with numbers.shown(member):
        for _ in range(3):
            sink.record(Event(EventCode.SUCCEEDED, "orders", 0, 7, handler="bill", duration_us=5))
        sink.record(Event(EventCode.COMMITTED, "orders", 0, range_end=8))
        shown = samples(registry)
    assert {name: shown[name] for name in (
        ("ackwise_messages_total", "done"), ("messaging_process_duration_seconds_count", "bill"), ("ackwise_commits_total", "billing"),
        ("ackwise_claims", "billing"), ("ackwise_in_hand", "bill"),
    )} == {
        ("ackwise_messages_total", "done"): 3, ("messaging_process_duration_seconds_count", "bill"): 3,
        ("ackwise_commits_total", "billing"): 1, ("ackwise_claims", "billing"): 0, ("ackwise_in_hand", "bill"): 0,
    }  # fmt: skip


def test_the_relay_of_an_outbox_is_shown_where_there_is_one() -> None:
    registry = CollectorRegistry()
    numbers, member = Numbers(registry), make_member()
    with numbers.shown(member):
        assert not [name for name, _ in samples(registry) if "outbox" in name]
        member.outbox = MemoryOutbox()
        member.outbox_counts.sent, member.outbox_counts.lag, member.outbox_counts.brokers_away = 7, 2.5, True
        member.check_counts.unknown = 3
        shown = samples(registry)
    assert (shown["ackwise_outbox_sent_total", "billing"], shown["ackwise_outbox_lag_seconds", "billing"]) == (7, 2.5)
    assert (shown["ackwise_outbox_brokers_away", "billing"], shown["ackwise_outbox_checks_total", "unknown"]) == (1, 3)


def test_the_metrics_are_on_the_page_of_the_registry_that_its_user_chose_and_leave_it_with_the_worker() -> None:
    app, registry = make_app(), CollectorRegistry()
    setup_prometheus_sensors(app, pattern="/numbers", registry=registry, name_prefix="my-shop")
    numbers = numbers_of(app)
    assert numbers is not None
    with numbers.shown(make_member()):
        assert ("ackwise_commits_total", "billing") in samples(registry)
        assert samples(REGISTRY) == {}
    assert samples(registry) == {}


def test_two_apps_may_share_the_page_of_the_process_and_each_names_its_group() -> None:
    apps = make_app(), make_app()
    for app in apps:
        setup_prometheus_sensors(app)
    first, second = map(numbers_of, apps)
    assert first is not None
    assert second is not None
    with first.shown(make_member(group="billing")):
        with second.shown(make_member(group="shipping")):
            assert {group for name, group in samples(REGISTRY) if name == "ackwise_commits_total"} == {"billing", "shipping"}
        assert {group for name, group in samples(REGISTRY) if name == "ackwise_commits_total"} == {"billing"}
    assert samples(REGISTRY) == {}
