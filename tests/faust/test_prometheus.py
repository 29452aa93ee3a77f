"""The numbers of Ackwise on the page that Faust makes for Prometheus, and nothing where its user made none."""

from __future__ import annotations

import itertools
import re
from typing import Any

import faust
import pytest
from faust.sensors.prometheus import setup_prometheus_sensors
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from ackwise.middleware.agent import Agent
from ackwise.middleware.columns import ColumnExchange, ColumnResult, ColumnStore
from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.policies import DeadLetter, Dedup
from ackwise.middleware.retry import ConsumeLater
from ackwise.middleware.store import ClaimStore, Exchange, ExchangeResult
from ackwise.plugin.faust.prometheus import Numbers, numbers_of
from ackwise.plugin.group.member import Member
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.stores.memory import MemoryStore
from ackwise.stores.memory_outbox import MemoryOutbox

_names = itertools.count(1)


class AwayStore(MemoryStore):
    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        raise StoreUnavailable("it is away")

    async def exchange_columns(self, exchange: ColumnExchange) -> ColumnResult:
        raise StoreUnavailable("it is away")


async def handle(batch: Any) -> None: ...


def make_app() -> Any:
    return faust.App(f"counted-{next(_names)}")


def make_member(store: ClaimStore | None = None) -> Member:
    member = Member(
        HostSettings(brokers="nowhere:1", group="billing"),
        [Agent("bill", ("orders",), "batch", handle, lambda value: value)],
        later=ConsumeLater(),
        dead_letter=DeadLetter(),
        dedup=None if store is None else Dedup(store),
        store=store,
    )
    member._build_pipelines(None)  # type: ignore[arg-type]  # nothing is published
    return member


def samples(registry: CollectorRegistry, prefix: str) -> dict[str, float]:
    """The numbers that a page of `registry` shows under `prefix`."""
    found = re.findall(rf"^{prefix}_ackwise_(\S+) (\S+)$", generate_latest(registry).decode(), re.MULTILINE)
    return {name: float(value) for name, value in found if "_created" not in name}


def test_without_a_page_nothing_is_counted() -> None:
    assert numbers_of(make_app()) is None


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (EventCode.SUCCEEDED, "done"),
        (EventCode.DUP_SUPPRESSED, "duplicate"),
        (EventCode.STALE, "duplicate"),
        (EventCode.SENT_BACK, "sent_back"),
        (EventCode.DEAD_LETTERED, "dead"),
    ],
)
def test_each_outcome_is_counted_for_its_agent(code: EventCode, outcome: str) -> None:
    registry = CollectorRegistry()
    numbers = Numbers("shop_ackwise", registry)
    sink = numbers.counted(None)
    with numbers.shown(make_member()):
        for _ in range(3):
            sink.record(Event(code, "orders", 0, 7, handler="bill"))
        assert samples(registry, "shop")[f'messages_total{{agent="bill",outcome="{outcome}"}}'] == 3


def test_an_execution_that_fails_is_no_outcome() -> None:
    registry = CollectorRegistry()
    numbers = Numbers("shop_ackwise", registry)
    with numbers.shown(make_member()):
        numbers.counted(None).record(Event(EventCode.FAILED, "orders", 0, 7, handler="bill"))
        assert not [name for name in samples(registry, "shop") if name.startswith("messages_total")]


def test_commits_are_counted_and_what_is_in_hand_is_shown_for_agents_that_have_nothing() -> None:
    registry = CollectorRegistry()
    numbers = Numbers("shop_ackwise", registry)
    with numbers.shown(make_member(MemoryStore())):
        numbers.counted(None).record(Event(EventCode.COMMITTED, "orders", 0, range_end=8))
        shown = samples(registry, "shop")
    assert {name: shown[name] for name in ("commits_total", "claims", 'in_hand{agent="bill"}', 'held{agent="bill"}')} == {
        "commits_total": 1, "claims": 0, 'in_hand{agent="bill"}': 0, 'held{agent="bill"}': 0,
    }  # fmt: skip


def test_the_relay_of_an_outbox_is_shown_where_there_is_one() -> None:
    app, registry = make_app(), CollectorRegistry()
    setup_prometheus_sensors(app, registry=registry, name_prefix="counted")
    numbers, member = numbers_of(app), make_member()
    assert numbers is not None
    with numbers.shown(member):
        assert not [name for name in samples(registry, "counted") if name.startswith("outbox")]
        member.outbox = MemoryOutbox()
        member.outbox_counts.sent, member.outbox_counts.lag, member.outbox_counts.brokers_away = 7, 2.5, True
        member.check_counts.unknown = 3
        shown = samples(registry, "counted")
    assert (shown["outbox_sent_total"], shown["outbox_lag_seconds"], shown["outbox_brokers_away"]) == (7, 2.5, 1)
    assert shown['outbox_checks_total{answer="unknown"}'] == 3


def test_events_still_go_to_the_sink_that_is_used() -> None:
    class Kept:
        def __init__(self) -> None:
            self.events: list[Event] = []

        def record(self, event: Event) -> None:
            self.events.append(event)

        async def flush(self) -> None: ...

        async def open(self) -> None: ...

        async def close(self) -> None: ...

    kept, event = Kept(), Event(EventCode.COMMITTED, "orders", 0, range_end=8)
    Numbers("shop_ackwise", CollectorRegistry()).counted(kept).record(event)
    assert kept.events == [event]


@pytest.mark.parametrize("in_which_shape", ["keys", "columns"])
@pytest.mark.parametrize("store", [MemoryStore(), AwayStore()])
async def test_an_exchange_is_timed_whether_it_is_answered_or_not(store: ClaimStore, in_which_shape: str) -> None:
    registry = CollectorRegistry()
    numbers = Numbers("shop_ackwise", registry)
    timed = numbers.timed(store)
    assert timed is not None
    await timed.open()
    try:
        if in_which_shape == "keys":
            await timed.exchange(Exchange())
        else:
            assert isinstance(timed, ColumnStore)
            await timed.exchange_columns(ColumnExchange())
    except StoreUnavailable:
        assert isinstance(store, AwayStore)
    await timed.close()
    with numbers.shown(make_member()):
        assert samples(registry, "shop")["store_exchange_seconds_count"] == 1


def test_without_a_store_there_is_nothing_to_time() -> None:
    assert Numbers("shop_ackwise", CollectorRegistry()).timed(None) is None


def test_the_numbers_are_on_the_page_of_the_registry_that_its_user_chose_and_leave_it_with_the_worker() -> None:
    app, registry = make_app(), CollectorRegistry()
    setup_prometheus_sensors(app, pattern="/numbers", registry=registry, name_prefix="my-shop")
    numbers = numbers_of(app)
    assert numbers is not None
    with numbers.shown(make_member()):
        assert "commits_total" in samples(registry, "my_shop")
        assert samples(REGISTRY, "my_shop") == {}
    assert samples(registry, "my_shop") == {}


def test_the_numbers_are_called_after_the_app_and_two_apps_may_share_the_page_of_the_process() -> None:
    apps = make_app(), make_app()
    for app in apps:
        setup_prometheus_sensors(app)
    first, second = map(numbers_of, apps)
    assert first is not None
    assert second is not None
    with first.shown(make_member()), second.shown(make_member()):
        for app in apps:
            assert "commits_total" in samples(REGISTRY, app.conf.name.replace("-", "_"))
