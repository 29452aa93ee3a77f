"""Policies, keys and middleware of one agent, beside those of the app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.tables import each

from ackwise import DEFAULT_KEY, App, Batch, Breaker, Broadcasting, ConsumeLater, Dedup, Events, Message, RateLimit, Router, Transactional
from ackwise.errors import ConfigurationError
from ackwise.plugin.settings.config import Config, read_config
from ackwise.stores.memory import MemoryStore
from ackwise.testing import TestApp


def order_id(message: Message[Any]) -> str:
    return str(message.value["order"])


def refund_id(message: Message[Any]) -> str:
    return str(message.value["refund"])


async def bill(order: dict[str, str]) -> None: ...


async def refund(order: dict[str, str]) -> None: ...


async def through(message: Message[Any], call_next: Any) -> object:
    return await call_next(message)


def observe(event: object) -> None: ...


def app_with(*things: Any, use: Any = (), config: Config | None = None) -> App:
    """An app with `things` and two agents; `use` is of the second one."""
    app = App("shop", brokers="127.0.0.1:1", config=config or Config())
    app.use(*things)
    app.agent("orders")(bill)
    app.agent("refunds", use=use)(refund)
    return app


async def kinds_of(worker: TestApp, topic: str, *values: object) -> list[str]:
    return [(await worker.deliver(topic, value)).kind for value in values]


async def failing(order: dict[str, str]) -> None:
    raise ValueError


async def test_each_agent_retries_as_its_own_policy_says_and_the_others_as_the_app() -> None:
    app = App("shop", brokers="127.0.0.1:1", config=Config())
    app.use(ConsumeLater(2, levels="1s 2s"))
    app.agent("orders", name="bill")(failing)
    app.agent("refunds", name="refund", use=[ConsumeLater(1, levels="7s")])(failing)
    async with TestApp(app) as worker:
        billed, refunded = await worker.deliver("orders", b"{}"), await worker.deliver("refunds", b"{}")
        assert ((billed.kind, billed.level), (refunded.kind, refunded.level)) == (("later", 1), ("later", 1))
        assert refunded.due is not None
        assert billed.due is not None
        assert 5.0 < refunded.due - billed.due < 7.0
        billed, refunded = await worker.redeliver(billed), await worker.redeliver(refunded)
        assert ((billed.kind, billed.level), refunded.kind) == (("later", 2), "dead")
        assert (await worker.redeliver(billed)).kind == "dead"


async def test_an_agent_s_key_says_what_its_duplicates_are_and_another_agent_s_messages_are_known_as_the_app_says() -> None:
    ran: list[str] = []
    app = App("shop", brokers="127.0.0.1:1", config=Config())
    app.use(Dedup("memory://", key=order_id))

    @app.agent("orders")
    async def bill(order: dict[str, str]) -> None:
        ran.append(f"bill {order}")

    @app.agent("refunds", use=[Dedup(key=refund_id)])
    async def refund(order: dict[str, str]) -> None:
        ran.append(f"refund {order['refund']}")

    @app.agent("parcels", use=[Dedup(key=DEFAULT_KEY)])
    async def ship(parcel: dict[str, str]) -> None:
        ran.append("ship")

    first, second = {"order": "1", "refund": "a"}, {"order": "1", "refund": "b"}
    async with TestApp(app, store=MemoryStore()) as worker:
        kinds = [
            [(await worker.deliver(topic, value)).kind for value in (first, second, first)] for topic in ("orders", "refunds", "parcels")
        ]
    assert kinds == [["done", "duplicate", "duplicate"], ["done", "done", "duplicate"], ["done"] * 3]
    assert ran == [f"bill {first}", "refund a", "refund b", *["ship"] * 3]


async def test_each_topic_has_its_key_function_and_others_are_known_by_their_place() -> None:
    app = App("shop", brokers="127.0.0.1:1", config=Config())
    app.use(Dedup("memory://", key={"orders": order_id, "refunds": refund_id}, default=DEFAULT_KEY))
    app.agent("orders", "refunds", "parcels")(bill)
    first, second = {"order": "1", "refund": "a"}, {"order": "1", "refund": "b"}
    async with TestApp(app, store=MemoryStore()) as worker:
        kinds = [
            [(await worker.deliver(topic, value)).kind for value in (first, second, first)] for topic in ("orders", "refunds", "parcels")
        ]
    assert kinds == [["done", "duplicate", "duplicate"], ["done", "done", "duplicate"], ["done"] * 3]


async def test_a_copy_of_a_message_that_is_known_by_its_place_is_the_message_again() -> None:
    app = App("shop", brokers="127.0.0.1:1", config=Config())
    app.use(Dedup("memory://", key=lambda _: DEFAULT_KEY), ConsumeLater(1, levels="1s"))
    tries: list[int] = []

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        tries.append(message.attempt)
        if len(tries) == 1:
            raise ValueError

    async with TestApp(app, store=MemoryStore()) as worker:
        fate = await worker.deliver("orders", b"1")
        assert (await worker.redeliver(fate)).kind == "done"
    assert tries == [1, 2]


async def test_middleware_of_an_agent_runs_inside_of_the_app_s_and_around_no_other_handler() -> None:
    ran: list[str] = []

    def named(name: str) -> Any:
        async def noting(message: Message[Any], call_next: Any) -> object:
            ran.append(f"{name} {message.topic}")
            return await call_next(message)

        return noting

    app = app_with(named("app"), use=[named("first"), named("second")])
    async with TestApp(app) as worker:
        await worker.deliver("orders", {})
        await worker.deliver("refunds", {})
    assert ran == ["app orders", "app refunds", "first refunds", "second refunds"]


def test_each_agent_has_its_own_rate_and_breaker_or_the_app_s() -> None:
    flow = app_with(RateLimit("5/s"), use=[RateLimit("7/s"), Breaker(errors=(OSError,))])._slots.flow_control(["bill", "refund"])
    assert [flow.rate_limit_of(name) for name in ("bill", "refund")] == [RateLimit("5/s"), RateLimit("7/s")]
    assert [flow.breaker_of(name) for name in ("bill", "refund")] == [Breaker(), Breaker(errors=(OSError,))]


def test_entries_of_an_agent_change_its_policy_and_entries_of_the_app_no_policy_that_an_agent_has_by_itself() -> None:
    variables = {
        "ACKWISE_CONSUME_LATER__MAX_RECONSUME_TIMES": "3",
        "ACKWISE_AGENTS__REFUND__CONSUME_LATER__LEVELS": "4s 5s",
        "ACKWISE_AGENTS__BILL__RATE_LIMIT__RATE": "9/s",
        "ACKWISE_AGENTS__BILL__BREAKER__REST": "7s",
        "ACKWISE_AGENTS__REFUND__DEDUP__MESSAGE_ID_HEADER": "refund-id",
        "ACKWISE_AGENTS__REFUND__MAX_BATCH": "5",
        "ACKWISE_AGENTS__REFUND__MIDDLEWARE": f"{__name__}:through",
    }
    app = app_with(Dedup("memory://"), use=[ConsumeLater(5, levels="1s")], config=read_config(environ=variables))
    of_bill, of_refund = app.agents()
    slots = app._slots
    assert (slots.later.max_reconsume_times, of_bill.later) == (3, None)
    assert of_refund.later is not None
    assert of_refund.dedup is not None
    assert (of_refund.later.max_reconsume_times, of_refund.later.levels.seconds) == (5, (4.0, 5.0))
    assert (of_bill.dedup, of_refund.dedup.message_id_header, of_refund.max_batch) == (None, "refund-id", 5)
    flow = slots.flow_control(["bill", "refund"])
    assert (flow.rate_limit_of("bill"), flow.rate_limit_of("refund")) == (RateLimit("9/s"), None)
    breakers = [flow.breaker_of(name) for name in ("bill", "refund")]
    assert [None if breaker is None else breaker.rest for breaker in breakers] == [7.0, 60.0]
    assert [around.name for around in slots.own_arounds("refund")] == ["through"]
    told = {(setting.name, setting.value, setting.source) for setting in app.explain().settings}
    assert {
        ("agents.refund.consume_later.levels", "4s 5s", "ACKWISE_AGENTS__REFUND__CONSUME_LATER__LEVELS"),
        ("agents.refund.consume_later.max_reconsume_times", "5", "code"),
        ("agents.bill.rate_limit.rate", "9/s", "ACKWISE_AGENTS__BILL__RATE_LIMIT__RATE"),
        ("consume_later.max_reconsume_times", "3", "ACKWISE_CONSUME_LATER__MAX_RECONSUME_TIMES"),
        ("agents.bill.breaker.rest", "7s", "ACKWISE_AGENTS__BILL__BREAKER__REST"),
        ("agents.bill.breaker.first_wait", "10s", "the app"),
    } <= told


def test_explain_says_of_each_agent_what_it_has_by_itself_and_where_its_failures_lead() -> None:
    app = app_with(Dedup("memory://", key=order_id), use=[ConsumeLater(2, levels="1s 3s"), RateLimit("7/s"), Dedup(key=refund_id), through])
    explained = app.explain()
    chain = {(link.what, link.how) for link in explained.chain}
    assert ("dedup of refund", "key: refund_id") in chain
    assert ("rate of refund", "7/s for each handler, 7 at once; the rest waits") in chain
    assert ("through", "middleware of refund, inside of those of the app") in chain
    paths = {path.when: path for path in explained.failures}
    assert paths["refund raises"].delays == (1.0, 3.0)
    assert len(paths["bill raises"].delays) == 16
    assert not explained.refusals


def test_an_app_that_includes_a_router_has_the_policies_of_its_agents() -> None:
    router = Router()
    router.agent("refunds", use=[ConsumeLater(2)])(refund)
    for _ in range(2):
        app = App("shop", config=Config())
        app.include(router)
        (agent,) = app.agents()
        assert agent.later is not None
        assert agent.later.max_reconsume_times == 2


#: What an agent is given, and what the refusal says.
_REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a policy of the app": (lambda: app_with(use=[Events("events")]), r"agent 'refund' was given Events, .*write app.use\(Events\(…\)\)"),
    "an observer": (lambda: app_with(use=[observe]), "given the observer observe, which sees every event"),
    "a class": (lambda: app_with(use=[ConsumeLater]), r"write ConsumeLater\(…\); use= of an agent takes"),
    "a lone thing": (lambda: app_with(use=ConsumeLater(5)), r"give a list, such as use=\[ConsumeLater\(5\)\]"),
    "two of a kind": (lambda: app_with(use=[ConsumeLater(5), ConsumeLater(6)]), "used twice; agent 'refund' has one: leave one out"),
    "a store": (lambda: app_with(use=[Dedup("memory://", key=order_id)]), "a Dedup with store, and an app has one store for all"),
    "an epoch": (lambda: app_with(use=[Dedup(key=order_id, epoch=2)]), "a Dedup with epoch, and an app has one store for all"),
    "no key": (lambda: app_with(use=[Dedup()]), "a Dedup without key and message_id_header, which says nothing"),
    "keys without a store": (lambda: app_with(use=[Dedup(key=order_id)]).agents(), "has Dedup, and the app does not use Dedup"),
    "keys beside a transaction": (
        lambda: app_with(Transactional("sqlite:///shop.db"), use=[Dedup(key=order_id)]).agents(),
        r"its keys are those of Transactional\(key=",
    ),
    "a longer max_delay": (lambda: app_with(use=[ConsumeLater(max_delay="5d")]).agents(), "an app has one max_delay, here 72h"),
    "a level above max_delay": (
        lambda: app_with(ConsumeLater(levels="1s", max_delay="1m"), use=[ConsumeLater(levels="2m")]).agents(),
        "the longest delay level is 2m, and max_delay of ConsumeLater is 1m",
    ),
    "a burst without a rate": (
        lambda: app_with(config=read_config(environ={"ACKWISE_AGENTS__REFUND__RATE_LIMIT__BURST": "5"}))._slots.flow_control(["refund"]),
        r"agents.refund.rate_limit.burst is set by ACKWISE_\w+, and this agent does not use RateLimit",
    ),
}


@each("name", _REFUSED)
def test_what_is_not_for_one_agent_is_refused_with_the_remedy(name: str) -> None:
    make, sentence = _REFUSED[name]
    with pytest.raises(ConfigurationError, match=sentence):
        make()


class Unseen:
    """Raises when it is looked at."""

    def __repr__(self) -> str:
        raise RuntimeError("not to be seen")


def test_what_raises_when_it_is_shown_is_refused_all_the_same() -> None:
    for things, use in ([], [Unseen()]), ([], Unseen()), ([Unseen()], []):
        with pytest.raises(ConfigurationError):
            app_with(*things, use=use)
    with pytest.raises(ConfigurationError, match="key of Dedup"):
        Dedup("memory://", key=Unseen())  # type: ignore[arg-type]  # what a user may pass


#: What shows when all agents are known.
_REFUSALS: dict[str, tuple[Callable[[], App], str]] = {
    "a topic without a key": (
        lambda: app_with(Dedup("memory://", key={"orders": order_id})),
        "agent 'refund' reads topic 'refunds', and key of Dedup has no function for it; add one, or say default=DEFAULT_KEY",
    ),
    "a key without a topic": (
        lambda: app_with(Dedup("memory://", key={"orders": order_id, "refund": refund_id}, default=DEFAULT_KEY)),
        "key has a function for topic 'refund', which no agent of this app reads; did you mean 'refunds'?",
    ),
    "a short memory": (
        lambda: app_with(Dedup("memory://", retention="1h", lease="1s"), ConsumeLater(levels="1s"), use=[ConsumeLater(levels="2h")]),
        "retention of Dedup is 1h, and a message may be retried after 2h",
    ),
}


@each("name", _REFUSALS)
def test_explain_shows_what_the_start_refuses(name: str) -> None:
    make, sentence = _REFUSALS[name]
    assert any(sentence in refusal for refusal in make().explain().refusals), make().explain().refusals


@each("key", [5, {"orders": 5}, {5: order_id}, {"": order_id}])
def test_keys_by_topic_are_functions_by_name(key: Any) -> None:
    with pytest.raises(ConfigurationError, match="key of Dedup"):
        Dedup("memory://", key=key)


def test_a_default_is_for_a_mapping_only() -> None:
    with pytest.raises(ConfigurationError, match="Dedup was given default="):
        Dedup("memory://", key=order_id, default=DEFAULT_KEY)


def test_a_dedup_without_a_store_takes_that_of_the_configuration_or_is_refused() -> None:
    app = app_with(Dedup(key=order_id), config=read_config(environ={"ACKWISE_DEDUP__STORE": "memory://"}))
    assert app._slots.dedup is not None
    with pytest.raises(ConfigurationError, match="Dedup was used without a store"):
        app_with(Dedup(key=order_id)).explain()


def test_broadcasting_refuses_retries_of_an_agent() -> None:
    with pytest.raises(ConfigurationError, match="ConsumeLater of agent 'refund' would do nothing"):
        app_with(Broadcasting("a"), use=[ConsumeLater(5)]).agents()


def test_middleware_that_the_agent_can_not_have_is_among_the_refusals() -> None:
    app = App("shop", config=Config())

    @app.agent("orders", use=[through])
    async def bill(batch: Batch[bytes]) -> None: ...

    assert any("takes a message, and agent 'bill' takes a batch; it would never run" in text for text in app.explain().refusals)
