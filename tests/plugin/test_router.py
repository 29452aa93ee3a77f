"""Routers: handlers apart from an app, which includes them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from tests.tables import each

from ackwise import App, Message, Router
from ackwise.errors import ConfigurationError
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


def test_an_option_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    unknown: Any = {"max_batches": 3}
    with pytest.raises(ConfigurationError, match=r"^agent\(\) has no option 'max_batches'; its options are name, max_batch, "):
        Router().agent("orders", **unknown)
