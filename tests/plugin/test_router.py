"""Routers: handlers apart from an app, which includes them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from tests.tables import each

import ackwise
from ackwise import App, Message, Router
from ackwise.errors import ConfigurationError
from ackwise.plugin.router import _ELSEWHERE
from ackwise.testing import TestApp


class Pool:
    """What a lifespan yields."""


def router_of(ran: list[object]) -> Router:
    router = Router()

    @router.agent("orders", max_batch=7)
    async def bill(message: Message[bytes], pool: Pool) -> None:
        ran.append((message.value, type(pool)))

    return router


def app_of(*routers: Router) -> App:
    app = App("billing", brokers="127.0.0.1:1")

    @app.lifespan
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()

    for router in routers:
        app.include(router)
    return app


async def test_the_handlers_of_a_router_run_as_the_app_s_own_with_its_lifespans_and_policies() -> None:
    ran: list[object] = []
    app = app_of(router_of(ran))
    (agent,) = app.agents()
    assert (agent.name, agent.topics, agent.max_batch) == ("bill", ("orders",), 7)
    async with TestApp(app) as worker:
        assert (await worker.deliver("orders", b"1")).kind == "done"
    assert ran == [(b"1", Pool)]


async def test_several_apps_include_one_router() -> None:
    ran: list[object] = []
    router = router_of(ran)
    for app in (app_of(router), app_of(router)):
        async with TestApp(app) as worker:
            assert (await worker.deliver("orders", b"1")).kind == "done"
    assert len(ran) == 2


def included_twice() -> None:
    router = router_of([])
    app_of(router, router)


def added_afterwards() -> None:
    router = router_of([])
    app_of(router)
    router.agent("parcels")(ship)


async def ship(message: Message[bytes]) -> None: ...


@each(
    ("act", "sentence"),
    [
        (included_twice, "topic 'orders' has two agents; one app delivers it to one"),
        (added_afterwards, "agent 'ship' was added to a router that an app has included already; include it afterwards"),
        (lambda: app_of(app_of()), "include() was given <App 'billing' with no agents>; give it a Router"),
        (lambda: Router().agent("a", max_batch=0)(ship), "max_batch of agent 'ship' is 0"),
        (lambda: Router().agent(cast(Any, ship)), "@app.agent on 'ship' names no topic"),
    ],
)
def test_what_can_not_be_included_is_refused_with_a_sentence(act: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        act()


@each(
    ("option", "remedy"),
    [
        ("max_batches", "did you mean max_batch="),
        ("MaxWait", "did you mean max_wait="),
        ("decoded", "did you mean decode="),
        ("models", "did you mean model="),
        ("group", 'the group is the app\'s: App("billing")'),
        ("topic", 'topics come first, without a name: @app.agent("orders", "refunds")'),
        ("retries", "a policy limits retries: use=[ConsumeLater(5)], and with an order in_place=RetryInPlace(5)"),
        ("max_retry", "a policy limits retries: use=[ConsumeLater(5)], and with an order in_place=RetryInPlace(5)"),
        ("dedup", 'a policy deduplicates: app.use(Dedup("sqlite:///claims.db", key=…))'),
        ("dead_letters", 'a policy names the topic of dead letters: app.use(DeadLetter(topic="graveyard"))'),
        ("batch_size", "write max_batch=200"),
        ("timeout", 'write consume_timeout="15m"'),
        ("workers", "write concurrency=8"),
        ("colour", "its options are name, max_batch, "),
    ],
)
def test_an_option_that_there_is_not_is_refused_with_what_to_write_instead(option: str, remedy: str) -> None:
    unknown: Any = {option: 3}
    with pytest.raises(ConfigurationError, match=re.escape(f"agent() has no option {option!r}; {remedy}")):
        Router().agent("orders", **unknown)


def test_what_an_error_says_to_write_instead_of_an_option_is_accepted() -> None:
    """The remedies are code: each is taken as it stands, but for what a reader puts in place of `…`."""
    public = {name: getattr(ackwise, name) for name in ackwise.__all__} | {"KeyError": KeyError}
    unsaid = {
        "Dedup(…": "Dedup('memory://'",
        "no_retry=…, retry_by_error=…": "no_retry=KeyError, retry_by_error={}",
        "model=…": "model=bytes",
        "=…": "=print",
    }
    for remedy in {*_ELSEWHERE.values()}:
        code = remedy
        for said, value in unsaid.items():
            code = code.replace(said, value)
        for policy in re.findall(r"app\.use\((.+\))\)", code):
            App("billing", brokers="127.0.0.1:1").use(eval(policy, public))
        own = re.sub(r"app\.use\(.*|App\(.*", "", code)
        for option, said in re.findall(r"\b(use|\w+)=(\[.+?\](?:$|(?=,))|[^ ,;()]+(?:\(\w+\))?)", own):
            options: Any = {option: eval(said, public | {"print": print})}
            if option in ("order_by", "in_place"):
                options |= {"order": "key", "in_place": ackwise.RetryInPlace(5)}
            elif option == "order":
                options |= {"in_place": ackwise.RetryInPlace(5)}
            Router().agent("orders", **options)(ship)
