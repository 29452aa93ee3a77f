"""Middleware: what it wraps, what it may rule, and where it is named."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, cast

import pytest
from tests.tables import each

from ackwise import App, Batch, CallNext, Message
from ackwise.errors import ConfigurationError
from ackwise.plugin.handlers.usermiddleware import inspect_middleware
from ackwise.testing import TestApp


async def of_a_message(work: Message[Any], call_next: CallNext) -> object:
    return await call_next(work)


async def of_a_batch(work: Batch[bytes], call_next: CallNext) -> object:
    return await call_next(work)


async def of_either(work: Batch[Any] | Message[Any], call_next: CallNext) -> object:
    return await call_next(work)


async def by_name(work, call_next):  # type: ignore[no-untyped-def]  # as a user may write it
    return await call_next(work)


async def of_a_text(work: Batch[Any] | str, call_next: CallNext) -> object: ...


async def unnamed(thing, call_next):  # type: ignore[no-untyped-def]  # as a user may write it
    ...


@each(
    ("function", "kinds"),
    [(of_a_message, {"message"}), (of_a_batch, {"batch"}), (of_either, {"batch", "message"}), (by_name, {"batch", "message"})],
)
def test_the_annotation_or_name_of_its_first_parameter_says_which_handlers_a_middleware_wraps(function: Any, kinds: set[str]) -> None:
    assert inspect_middleware(function).kinds == kinds


@each("function", [of_a_text, unnamed])
def test_a_middleware_that_does_not_say_what_it_wraps_is_refused(function: Any) -> None:
    with pytest.raises(ConfigurationError, match=re.escape("annotate its first parameter with Message, Batch or Batch | Message")):
        App("billing").use(function)


async def test_one_middleware_wraps_the_handlers_of_batches_and_of_messages() -> None:
    app, seen = App("billing", brokers="127.0.0.1:1"), list[str]()

    async def named(work: Batch[Any] | Message[Any], call_next: CallNext) -> object:
        seen.append(type(work).__name__)
        return await call_next(work)

    app.use(named)

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None: ...

    @app.agent("refunds")
    async def refund(batch: Batch[bytes]) -> None: ...

    async with TestApp(app) as worker:
        assert (await worker.deliver("orders", b"1")).kind == "done"
        assert (await worker.deliver("refunds", b"1")).kind == "done"
    assert seen == ["Message", "Batch"]


async def test_a_middleware_of_batches_rules_before_and_after_the_handler() -> None:
    app, seen = App("billing", brokers="127.0.0.1:1"), list[tuple[int, int]]()

    async def ruling(batch: Batch[Any], call_next: CallNext) -> object:
        batch.delay_level = 5
        batch.dead(batch[1], "never")
        said = await call_next(batch)
        seen.append((batch.ack_index, batch.delay_level))
        batch.ack_index = 2
        return said

    app.use(ruling)

    @app.agent("orders")
    async def bill(batch: Batch[bytes]) -> None:
        batch.ack_index = 3

    async with TestApp(app) as worker:
        fates = await worker.deliver_batch("orders", [b"0", b"1", b"2", b"3", b"4"])
        assert [fate.kind for fate in fates] == ["done", "dead", "done", "later", "later"]
        assert fates[3].due is not None
        assert round(fates[3].due - worker.clock()) == 60
    assert seen == [(3, 5)]


HOOKS = """
from typing import Any

from ackwise import Batch, CallNext, Message

seen: list[str] = []


async def timed(work: Batch[Any] | Message[Any], call_next: CallNext) -> object:
    seen.append("timed")
    return await call_next(work)


class Inner:
    @staticmethod
    async def checked(work: Batch[Any] | Message[Any], call_next: CallNext) -> object:
        seen.append("checked")
        return await call_next(work)
"""


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shophooks.py").write_text(HOOKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shophooks", raising=False)
    return tmp_path


@each("by", ["file", "variable"])
async def test_the_configuration_names_middleware_outside_of_what_the_code_uses(
    by: str, hooks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "file":
        monkeypatch.delenv("ACKWISE_MIDDLEWARE", raising=False)
        (hooks / "ackwise.toml").write_text('middleware = ["shophooks:timed", "shophooks:Inner.checked"]')
    else:
        (hooks / "ackwise.toml").write_text("")
        monkeypatch.setenv("ACKWISE_MIDDLEWARE", "shophooks:timed, shophooks:Inner.checked")
    app = App("billing", brokers="127.0.0.1:1")
    assert "shophooks" not in sys.modules or by == "variable", "it is imported when the handlers are wrapped"

    async def used(work: Batch[Any] | Message[Any], call_next: CallNext) -> object:
        seen().append("used")
        return await call_next(work)

    def seen() -> list[str]:
        found: list[str] = sys.modules["shophooks"].seen
        return found

    app.use(used)

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None: ...

    async with TestApp(app) as worker:
        assert (await worker.deliver("orders", b"1")).kind == "done"
    assert seen()[-3:] == ["timed", "checked", "used"]
    assert [link.what for link in app.explain().chain if "middleware" in link.how] == ["timed", "checked", "used"]


async def test_a_configured_middleware_of_batches_wraps_handlers_of_messages(hooks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hooks / "shophooks.py").write_text(HOOKS.replace("Batch[Any] | Message[Any]", "Batch[Any]"))
    monkeypatch.setenv("ACKWISE_MIDDLEWARE", "shophooks:timed, shophooks:Inner.checked")
    app = of_one_handler()
    async with TestApp(app) as worker:
        assert (await worker.deliver("orders", b"1")).kind == "done"
    assert sys.modules["shophooks"].seen == ["timed", "checked"]
    assert [link.how for link in app.explain().chain if link.what == "timed"] == ["middleware 1, around every batch"]


@each(
    ("given", "sentence"),
    [
        (
            '["shophooks:tmied"]',
            "middleware 'shophooks:tmied', set by ackwise.toml, can't be imported: module 'shophooks' has no attribute",
        ),
        ('["nohooks:timed"]', "middleware 'nohooks:timed', set by ackwise.toml, can't be imported: No module named 'nohooks'"),
        ('["shophooks"]', 'write each as "module:function", such as ["shop.hooks:timed"]'),
        ('"shophooks:timed"', 'write each as "module:function"'),
        ('["shophooks:seen"]', "is not an `async def`"),
    ],
)
def test_a_name_that_is_no_middleware_is_refused_with_its_source(given: str, sentence: str, hooks: Path) -> None:
    (hooks / "ackwise.toml").write_text(f"middleware = {given}")

    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        of_one_handler().agents()


def of_one_handler() -> App:
    app = App("billing", brokers="127.0.0.1:1")

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None: ...

    return app


async def test_an_installed_distribution_wraps_the_handlers_of_every_app_that_it_fits(hooks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("shophooks:timed", f"{__name__}:of_a_batch")
    installed = [EntryPoint(name, name, "ackwise.middleware") for name in names]
    monkeypatch.setattr("ackwise.plugin.registry.announced", lambda group: installed if group == "ackwise.middleware" else [])
    (agent,) = of_one_handler().agents()
    assert await agent.call(Message(None, b"v")) is None  # type: ignore[arg-type]  # of this kind
    assert sys.modules["shophooks"].seen == ["timed"]
    assert agent.around is not None, "and the other is around their batch"


async def test_the_classic_listener_is_a_middleware_that_stops_at_the_first_failure(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples" / "classic_listener.py"
    example = importlib.util.module_from_spec(spec := cast(Any, importlib.util.spec_from_file_location("classic_listener", path)))
    spec.loader.exec_module(example)
    async with TestApp(example.app) as worker:
        fates = await worker.deliver_batch("bookings", [{"amount": amount} for amount in (1, 2, -3, 4)])
        assert [fate.kind for fate in fates] == ["done", "done", "later", "later"]
        assert (await worker.redeliver(fates[2])).kind == "done"
    assert capsys.readouterr().out.splitlines()[:3] == ["booked 1", "booked 2", "entry 2 failed: ValueError('the account is closed today')"]


def test_an_installed_middleware_that_fits_no_handler_stops_no_app(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = [EntryPoint("messages", f"{__name__}:of_a_message", "ackwise.middleware")]
    monkeypatch.setattr("ackwise.plugin.registry.announced", lambda group: installed if group == "ackwise.middleware" else [])
    app = App("billing", brokers="127.0.0.1:1")

    @app.agent("orders")
    async def bill(batch: Batch[bytes]) -> None: ...

    (agent,) = app.agents()
    assert agent.around is None
