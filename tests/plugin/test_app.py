from __future__ import annotations

import asyncio
import dataclasses
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.tables import each

from ackwise import (
    CONSUME_LATER,
    CONSUME_SUCCESS,
    App,
    Batch,
    ConsumeLater,
    ConsumeStatus,
    DeadLetter,
    Dedup,
    Events,
    Fixed,
    Later,
    Message,
)
from ackwise.errors import ConfigurationError, InvalidHandlerResult
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.settings.config import read_config


def message(value: object = b"") -> Message[Any]:
    return Message(Delivery("orders", 0, 0, 0, None, b"", (), Origin("orders", 0, 0, 0)), value)


async def bill(value: bytes) -> None: ...
async def ship(batch: Batch[bytes]) -> None: ...


async def through(message: Message[Any], call_next: Any) -> object:
    return await call_next(message)


def app_of(handler: Any, *things: Any) -> App:
    app = App("billing")
    app.agent("orders")(handler)
    app.use(*things)
    return app


async def outcome_of(handler: Any, *things: object) -> object:
    call: Any = app_of(handler, *things).agents()[0].call
    return await call(message())


@pytest.fixture
def host_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: dict[str, Any] = {}

    class Stopped:
        def __init__(self, settings: object, agents: list[Agent], parts: Parts, **options: object) -> None:
            made.update({each.name: getattr(parts, each.name) for each in dataclasses.fields(parts)}, **options)
            made.update(settings=settings, agents=agents)

        async def run(self, stop: asyncio.Event) -> None:
            made["stop"] = stop

        left_running: tuple[str, ...] = ()
        has_joined = asyncio.Event()

    async def serve(app: App) -> dict[str, Any]:
        await app.serve(asyncio.Event())
        return made

    monkeypatch.setattr("ackwise.plugin.aiokafkahost.AiokafkaHost", Stopped)
    return serve


def test_the_handler_itself_is_returned() -> None:
    assert App("billing").agent("orders")(bill) is bill


def test_an_agent_is_called_like_its_function_unless_named() -> None:
    app = App("billing")
    app.agent("orders")(bill)
    app.agent("parcels", name="dispatch", max_batch=7, max_wait="500ms", keep_ack_index_on_error=True)(ship)
    first, second = app.agents()
    assert (first.name, first.topics, first.kind, first.max_batch, first.max_wait) == ("bill", ("orders",), "message", 200, 0.0)
    assert (second.name, second.kind, second.max_batch, second.max_wait) == ("dispatch", "batch", 7, 0.5)
    assert second.keep_ack_index_on_error


async def test_without_use_retries_and_dead_letters_are_on_and_the_rest_is_off(host_of: Any) -> None:
    made = await host_of(app_of(bill))
    assert made["later"].max_reconsume_times == 16
    assert made["dead_letter"] == DeadLetter()
    assert made["dedup"] is made["store"] is made["sink"] is None


async def test_policies_reach_the_host_in_any_order(host_of: Any, tmp_path: Any) -> None:
    later, dead, dedup = ConsumeLater(3, levels="1s 2s"), DeadLetter("graves"), Dedup(f"sqlite:///{tmp_path}/claims.db")
    made = await host_of(app_of(bill, Events(str(tmp_path), mode="async"), dedup, dead, later))
    assert (made["later"], made["dead_letter"], made["dedup"]) == (later, dead, dedup)
    assert type(made["store"]).__name__ == "SQLiteStore"
    assert (type(made["sink"]).__name__, made["sink"].root) == ("Journal", tmp_path)


async def test_a_store_and_a_sink_that_are_objects_are_taken_as_they_are(host_of: Any) -> None:
    store: Any = object()
    sink: Any = object()
    made = await host_of(app_of(bill, Dedup(store), Events(sink)))
    assert (made["store"], made["sink"]) == (store, sink)


async def test_what_the_environment_overrides_is_logged_at_the_start_by_name(
    host_of: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACKWISE_DEAD_LETTER__TOPIC", "secret")
    monkeypatch.setenv("ACKWISE_COMMIT_INTERVAL", "1s")
    with caplog.at_level("INFO", "ackwise"):
        await host_of(app_of(bill))
    (line,) = [record.getMessage() for record in caplog.records if "environment variables" in record.getMessage()]
    assert line.endswith('group=billing variables="ACKWISE_COMMIT_INTERVAL, ACKWISE_DEAD_LETTER__TOPIC"')


async def test_claims_in_memory_are_warned_about(host_of: Any, caplog: pytest.LogCaptureFixture) -> None:
    await host_of(app_of(bill, Dedup("memory://")))
    assert [record.levelname for record in caplog.records if "claims are kept in memory" in record.message] == ["WARNING"]


async def test_an_app_that_was_started_takes_nothing_more_and_may_be_started_again(host_of: Any) -> None:
    app = app_of(bill)
    await host_of(app)
    for late in (lambda: app.use(DeadLetter()), lambda: app.agent("more")(ship), lambda: app.lifespan(nothing)):
        with pytest.raises(ConfigurationError, match="after the app was started"):
            late()
    assert (await host_of(app))["before"] is not None


async def nothing() -> AsyncIterator[None]:
    yield


def test_a_policy_used_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Dedup was used twice"):
        App("billing").use(Dedup("memory://"), Dedup("memory://"))


def test_what_a_handler_raises_is_no_policy() -> None:
    with pytest.raises(ConfigurationError, match="can't be used; use takes a policy"):
        App("billing").use(Later("5s"))  # type: ignore[arg-type]  # what a user may give all the same


@each(
    ("thing", "sentence"),
    [
        (7, "7 can't be used; use takes a policy"),
        (Dedup, r"write Dedup\(…\)"),
        (lambda message, call_next: None, "is not an `async def`"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_can(thing: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        App("billing").use(thing)


def test_a_middleware_must_say_what_it_wraps() -> None:
    async def odd(thing, call_next): ...  # type: ignore[no-untyped-def]
    async def short(message): ...  # type: ignore[no-untyped-def]

    with pytest.raises(ConfigurationError, match="does not say what it wraps"):
        App("billing").use(odd)
    with pytest.raises(ConfigurationError, match="A middleware takes two arguments"):
        App("billing").use(short)  # type: ignore[arg-type]  # what is refused to a type checker too


def test_a_middleware_that_would_never_run_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'through' takes a message, and no agent of this app does"):
        app_of(ship, through).agents()


async def test_the_first_middleware_is_the_outermost() -> None:
    seen: list[str] = []

    def noting(name: str) -> Any:
        async def around(message: Message[Any], call_next: Any) -> object:
            seen.append(f"{name} in")
            result = await call_next(message)
            seen.append(f"{name} out")
            return result

        return around

    async def note(value: bytes) -> None:
        seen.append("handler")

    await outcome_of(note, noting("a"), noting("b"))
    assert seen == ["a in", "b in", "handler", "b out", "a out"]


async def test_a_middleware_that_forgets_to_return_does_not_swallow_the_status() -> None:
    async def later(value: bytes) -> ConsumeStatus:
        return CONSUME_LATER

    async def forgetful(message, call_next) -> None:  # type: ignore[no-untyped-def]
        await call_next(message)

    assert await outcome_of(later, forgetful, through) is CONSUME_LATER


async def fails(value: bytes) -> None:
    raise KeyError("order")


async def test_a_middleware_that_swallows_an_error_and_says_nothing_does_not_make_it_a_success() -> None:
    async def silent(message: Message[Any], call_next: Any) -> None:
        try:
            await call_next(message)
        except KeyError:
            return

    with pytest.raises(KeyError):
        await outcome_of(fails, silent)


async def test_a_middleware_may_turn_an_error_into_a_status() -> None:
    async def forgiving(message: Message[Any], call_next: Any) -> ConsumeStatus:
        try:
            await call_next(message)
        except KeyError:
            return CONSUME_SUCCESS
        return CONSUME_LATER

    assert await outcome_of(fails, forgiving) is CONSUME_SUCCESS


async def test_a_middleware_may_call_the_handler_again() -> None:
    tries: list[int] = []

    async def second_time_lucky(value: bytes) -> None:
        tries.append(len(tries))
        if len(tries) == 1:
            raise KeyError

    async def again(message: Message[Any], call_next: Any) -> None:
        try:
            await call_next(message)
        except KeyError:
            await call_next(message)

    assert await outcome_of(second_time_lucky, again) is None
    assert tries == [0, 1]


async def test_a_middleware_that_neither_calls_nor_says_anything_decides_nothing() -> None:
    async def absent(message: Message[Any], call_next: Any) -> None: ...

    with pytest.raises(InvalidHandlerResult, match="return CONSUME_SUCCESS to leave out the handler"):
        await outcome_of(bill, absent)


@each(
    ("register", "sentence"),
    [
        (lambda app: (app.agent("orders")(bill), app.agent("orders")(ship)), "topic 'orders' has two agents"),
        (lambda app: app.agent("orders", "orders")(bill), "agent 'bill' names topic 'orders' twice"),
        (lambda app: (app.agent("a")(bill), app.agent("b")(bill)), "two agents are called 'bill'"),
        (lambda app: app.agent()(bill), "has no topic"),
        (lambda app: app.agent(bill), "@app.agent on 'bill' names no topic; write @app.agent"),
        (lambda app: app.agent("a", max_batch=0)(bill), "max_batch of agent 'bill' is 0"),
        (lambda app: app.agent("a", max_wait="soon")(bill), "max_wait is 'soon'"),
        (lambda app: app.agent("orders", name="x" * 1001)(bill), "a name of 1001 bytes, and copies carry at most 1000"),
        (lambda app: app.agent("a", name="")(bill), "name of an agent is ''"),
        (lambda app: (app.agent("billing.retry")(bill), app.agents()), "a topic that group 'billing' writes itself"),
        (lambda app: (app.agent("billing.delay")(bill), app.agents()), "a topic that group 'billing' writes itself"),
        (lambda app: (app.agent("billing.dlq")(bill), app.agents()), "a topic that group 'billing' writes itself"),
        (lambda app: (app.use(DeadLetter("graves")), app.agent("graves")(bill), app.agents()), "a topic that group 'billing'"),
        (lambda app: app.agents(), "has no agents"),
    ],
)
def test_agents_that_cannot_work_are_refused_with_a_sentence(register: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        register(App("billing"))


def test_an_unknown_setting_is_refused_with_the_nearest_or_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"App has no setting 'comit_interval'; did you mean commit_interval\?"):
        App("billing", comit_interval=1)  # type: ignore[call-arg]  # what is refused to a type checker too
    with pytest.raises(ConfigurationError, match=r"App has no setting 'colour'; it has brokers, client_id, .*start"):
        App("billing", colour="blue")  # type: ignore[call-arg]  # what is refused to a type checker too


@each("later", [ConsumeLater(1), ConsumeLater(1, levels="1s", retry_by_error={KeyError: Fixed("2h")})])
async def test_a_store_that_forgets_before_a_copy_is_back_is_refused(host_of: Any, later: ConsumeLater) -> None:
    with pytest.raises(ConfigurationError, match="retention of Dedup is 1h, and a message may be retried after 2h"):
        await host_of(app_of(bill, Dedup("memory://", retention="1h"), later))


async def test_a_store_that_forgets_just_after_the_last_copy_is_back_is_taken(host_of: Any) -> None:
    assert (await host_of(app_of(bill, Dedup("memory://", retention="2h"))))["store"] is not None


async def test_a_store_that_there_is_not_is_refused_with_where_it_was_set(host_of: Any, tmp_path: Any) -> None:
    app = App("billing", config=read_config(tmp_path, {"ACKWISE_DEDUP__STORE": "claims.db"}))
    app.agent("orders")(bill)
    with pytest.raises(ConfigurationError, match=r"has no scheme.*\(dedup.store is set by ACKWISE_DEDUP__STORE\)"):
        await host_of(app)


@pytest.fixture
def threshold() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("threshold")
@each(("young", "then"), [(700, 20_000), (50_000, 50_000), (0, 0)], ids=["python's-own", "rarer-still", "switched-off"])
def test_a_process_that_is_the_apps_own_searches_for_garbage_rarely(young: int, then: int) -> None:
    gc.set_threshold(young, 10, 10)
    with pytest.raises(ConfigurationError, match="has no agents"):
        App("billing").run()
    assert gc.get_threshold() == (then, 10, 10)
