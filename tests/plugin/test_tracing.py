"""`Tracing`: spans around handlers, with the SDK's exporter in memory; what they are tied to, what they say, and what they never hold."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from functools import partial
from typing import Any, cast

import faust
import pytest
from opentelemetry import propagate
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.tables import each

from ackwise import CONSUME_LATER, App, Batch, ConsumeLater, ConsumeStatus, Later, Message, Reject, Tracing
from ackwise.errors import ConfigurationError
from ackwise.middleware.log import LogThrottle
from ackwise.middleware.message.message import Delivery, Headers, Origin
from ackwise.middleware.message.outgoing import MESSAGE_ID, Outgoing, carrying
from ackwise.middleware.pipeline.publishing import Publication, identified
from ackwise.middleware.policies.delaytopic import send_later, to_send
from ackwise.plugin.faust import handler, use
from ackwise.plugin.handlers import tracing
from ackwise.plugin.loop import reliable
from ackwise.plugin.settings.config import Config
from ackwise.plugin.simpleconsumer import SimpleConsumer
from ackwise.stores.protocol.outbox import columns_of
from ackwise.testing import TestApp

TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
PARENT = [("traceparent", f"00-{TRACE:032x}-{SPAN:016x}-01".encode())]
SECRET = "4711-secret"


class Spans:
    """A provider, and what it has been given."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    @property
    def only(self) -> ReadableSpan:
        (span,) = self.all
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def app_of(spans: Spans | None, **settings: Any) -> App:
    app = App("billing", brokers="nowhere:1", config=Config(), **settings)
    app.use(Tracing() if spans is None else Tracing(spans.provider))
    return app


def linked(span: ReadableSpan) -> set[tuple[int, int]]:
    return {(link.context.trace_id, link.context.span_id) for link in span.links}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent(number: int) -> Headers:
    return (("traceparent", f"00-{TRACE:032x}-{number:016x}-01".encode()),)


async def test_the_span_of_a_message_continues_the_trace_of_its_headers(spans: Spans) -> None:
    app = app_of(spans)

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None: ...

    async with TestApp(app) as test:
        await test.deliver("orders", SECRET, key=SECRET, headers=PARENT)
    span = spans.only
    assert (span.name, span.kind, span.status.status_code) == ("process orders", SpanKind.CONSUMER, StatusCode.UNSET)
    assert span.context is not None
    assert span.parent is not None
    assert (span.context.trace_id, span.parent.span_id) == (TRACE, SPAN)
    assert linked(span) == {(TRACE, SPAN)}
    assert attributes(span) == {
        "messaging.system": "kafka", "messaging.operation.name": "process", "messaging.operation.type": "process",
        "messaging.consumer.group.name": "billing", "messaging.destination.name": "orders", "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0, "ackwise.handler": "bill", "ackwise.reconsume_times": 0, "ackwise.outcome": "done",
    }  # fmt: skip


async def test_a_batch_is_one_span_that_is_linked_to_the_context_of_each_message(spans: Spans) -> None:
    app = app_of(spans)
    seen: list[Batch[bytes]] = []

    @app.agent("orders")
    async def bill(batch: Batch[bytes]) -> None:
        seen.append(batch)
        batch.later(batch[1], delay="1h")
        batch.dead(batch[2], SECRET)

    async with TestApp(app) as test:
        await test.deliver_batch("orders", [b"a", b"b", b"c"], headers=PARENT)
    span = spans.only
    assert (span.parent, linked(span), len(span.links)) == (None, {(TRACE, SPAN)}, 1)
    found = attributes(span)
    assert (found["messaging.batch.message_count"], found["ackwise.done"], found["ackwise.later"], found["ackwise.dead"]) == (3, 1, 1, 1)
    assert (span.status.status_code, found["error.type"]) == (StatusCode.ERROR, "dead")
    assert SECRET not in span.to_json()


async def run(spans: Spans, result: object) -> ReadableSpan:
    """The span of a handler that returns or raises `result`."""

    async def handler(_: Any) -> object:
        if isinstance(result, BaseException):
            raise result
        return result

    traced = Tracing(spans.provider).around(handler, kind="message", handler="bill", group=lambda: "billing")
    if isinstance(result, BaseException):
        with pytest.raises(type(result)):
            await traced(message())
    else:
        assert await traced(message()) is result
    return spans.only


def message(headers: Headers = (), offset: int = 0) -> Message[Any]:
    origin = Origin("orders", 0, offset, 1)
    return Message(Delivery(*origin, b"k", SECRET.encode(), headers, origin), SECRET)


@each(
    ("result", "outcome", "error"),
    [
        (None, "done", None),
        (CONSUME_LATER, "later", None),
        (Later("5m"), "later", None),
        (Reject(SECRET), "dead", "Reject"),
        (KeyError(SECRET), "later", "KeyError"),
        ("nonsense", "later", "InvalidHandlerResult"),
        (asyncio.CancelledError(), None, "CancelledError"),
        (SystemExit(1), None, "SystemExit"),
    ],
)
async def test_the_status_is_that_of_the_ruling_and_no_text_of_an_exception_is_told(
    result: object, outcome: str | None, error: str | None
) -> None:
    span = await run(Spans(), result)
    found = attributes(span)
    assert (found.get("ackwise.outcome"), found.get("error.type")) == (outcome, error)
    assert span.status.status_code is (StatusCode.UNSET if error is None else StatusCode.ERROR)
    assert SECRET not in span.to_json()


async def test_a_retry_and_a_dead_letter_keep_the_context_of_the_message(spans: Spans) -> None:
    app = app_of(spans)
    app.use(ConsumeLater(1))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> ConsumeStatus:
        return CONSUME_LATER

    async with TestApp(app) as test:
        fate = await test.redeliver(await test.deliver("orders", b"a", headers=PARENT))
        letters = test.dead_letters
    assert fate.kind == "dead"
    assert [attributes(span)["ackwise.reconsume_times"] for span in spans.all] == [0, 1]
    assert [linked(span) for span in spans.all] == [{(TRACE, SPAN)}] * 2
    assert [value for name, value in letters[0].headers if name == "traceparent"] == [PARENT[0][1]]


async def test_what_a_handler_publishes_carries_the_context_of_its_span(spans: Spans) -> None:
    app = app_of(spans)

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        await app.publish("paid", b"a", message_id="one")
        await app.publish("paid", b"b", headers={"traceparent": b"mine"})

    async with TestApp(app) as test:
        test.kafka.create_topic("paid")
        await test.deliver("orders", b"a", headers=PARENT)
        first, second = (dict(record.headers) for record in test.kafka.records("paid"))
    context = spans.only.context
    assert context is not None
    assert first["traceparent"] == f"00-{TRACE:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}".encode()
    assert second["traceparent"] == b"mine"


def test_the_id_of_what_a_handler_publishes_is_the_same_in_whatever_trace_it_runs() -> None:
    ids = set()
    for number in (1, 2):
        with carrying(partial(parent, number)):
            message = Outgoing("paid", b"a")
        assert dict(message.sent_headers)["traceparent"] == parent(number)[0][1]
        (made,) = identified([Publication(message, has_id=False)], Origin("orders", 0, 1, 1), group="billing", handler="bill", delayed=None)
        assert made.all_headers == parent(number)
        ids.add(made.message_id)
    assert len(ids) == 1


def test_rows_of_an_outbox_and_delayed_sends_keep_the_context() -> None:
    with carrying(lambda: parent(1)):
        message = Outgoing("paid", b"a")
    assert "traceparent" in (columns_of(message).headers or "")
    later = send_later(message, 60_000, now_ms=0, group="billing", topic="billing.delay", clock_skew=0.0)
    assert to_send(later.key, later.value, later.sent_headers, "billing").headers == parent(1)


async def test_without_a_provider_a_handler_is_called_and_nothing_is_read_or_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.handlers.tracing._context_of", None)
    seen: list[Headers] = []

    async def handler(_: Any) -> None:
        seen.append(Outgoing("paid", b"a").sent_headers)

    await Tracing().around(handler, kind="message", handler="bill", group=lambda: "billing")(message(parent(1)))
    assert [[name for name, _ in headers] for headers in seen] == [[MESSAGE_ID]]


@each("value", [b"", b"00-xyz", b"\xff\xfe", None])
async def test_a_context_that_can_not_be_read_is_none(value: bytes | None) -> None:
    spans = Spans()

    async def handler(_: Any) -> None: ...

    traced = Tracing(spans.provider).around(handler, kind="message", handler="bill", group=lambda: "billing")
    await traced(message((("traceparent", value),)))
    assert (spans.only.parent, len(spans.only.links)) == (None, 0)


class Broken(TextMapPropagator):
    """Raises whatever it is asked."""

    @property
    def fields(self) -> set[str]:
        return set()

    def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Any:
        raise LookupError(SECRET)

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        raise LookupError(SECRET)


class BrokenProcessor(SpanProcessor):
    def __init__(self, *, at_start: bool) -> None:
        self.at_start = at_start

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.at_start:
            raise LookupError(SECRET)

    def on_end(self, span: Any) -> None:
        raise LookupError(SECRET)


@pytest.mark.parametrize("broken", ["propagator", "on_start", "on_end", "provider"])
async def test_whatever_tracing_raises_fails_no_message(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "_throttle", LogThrottle())
    provider = TracerProvider(shutdown_on_exit=False)
    if broken == "propagator":
        monkeypatch.setattr(propagate, "get_global_textmap", Broken)
    elif broken == "provider":
        monkeypatch.setattr(provider, "get_tracer", lambda name: 1 / 0)
    else:
        provider.add_span_processor(BrokenProcessor(at_start=broken == "on_start"))
    app = App("billing", brokers="nowhere:1", config=Config())
    seen: list[bytes] = []
    app.use(Tracing(provider), ConsumeLater(0))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        await app.publish("paid", message.value)
        if message.value == b"bad":
            raise ValueError(SECRET)
        seen.append(message.value)

    async with TestApp(app) as worker:
        worker.kafka.create_topic("paid")
        good = await worker.deliver("orders", b"good", headers=PARENT)
        bad = await worker.deliver("orders", b"bad", headers=PARENT)
        assert [record.value for record in worker.kafka.records("paid")] == [b"good"]
    assert (good.kind, bad.kind, seen) == ("done", "dead", [b"good"])
    lines = [record for record in caplog.records if "tracing raised" in record.getMessage()]
    assert len(lines) == 1, "once a minute"
    assert SECRET not in caplog.text


def test_headers_for_a_message_that_is_sent_outside_of_a_handler_are_those_of_the_current_span(spans: Spans) -> None:
    with spans.provider.get_tracer("web").start_as_current_span("request"):
        found = Tracing(spans.provider).headers([("tenant", b"7")])
    context = spans.only.context
    assert context is not None
    assert found == (
        ("tenant", b"7"),
        ("traceparent", f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}".encode()),
    )
    assert Tracing(spans.provider).headers(PARENT) == tuple(PARENT)


async def test_a_handler_function_of_faust_is_traced(spans: Spans) -> None:
    app = faust.App("billing", broker="kafka://nowhere:1")
    use(app, Tracing(spans.provider))

    @handler(app, "orders")
    async def bill(message: Message[bytes]) -> None: ...

    declared: Any = app.agents["bill"]
    await declared.handler.call(message(parent(7)))
    assert (spans.only.name, attributes(spans.only)["messaging.consumer.group.name"]) == ("process orders", "billing")
    assert linked(spans.only) == {(TRACE, 7)}


def test_where_no_handler_is_called_tracing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="your own loop has none; start a span in the loop"):
        reliable(cast("Any", None), "orders", Tracing())
    with pytest.raises(ConfigurationError, match="a SimpleConsumer has none; leave it out"):
        SimpleConsumer("billing", "orders", Tracing(), store="memory://")


def test_explain_shows_that_handlers_are_traced() -> None:
    app = app_of(None)

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None: ...

    assert "tracing" in [link.what for link in app.explain().chain]


@pytest.mark.slow  # starts a process to see what it imports
def test_opentelemetry_is_imported_by_those_who_trace_alone() -> None:
    code = "import sys, ackwise; ackwise.App('a', brokers='nowhere:1'); print(json.dumps([m for m in sys.modules if 'opentelemetry' in m]))"
    done = subprocess.run([sys.executable, "-c", f"import json; {code}"], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigurationError, match=r"Tracing needs .* not installed: pip install 'ackwise\[otel\]'"):
        Tracing()
