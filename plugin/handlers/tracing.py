"""`Tracing`: spans of OpenTelemetry around handlers, tied to the messages that they handle and to those that they send."""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.log import Log, LogThrottle
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import Dead, Delayed, Disposition, Done
from ackwise.middleware.message.message import Headers, Message
from ackwise.middleware.message.outgoing import carrying
from ackwise.middleware.pipeline.rulings import dispositions_of
from ackwise.middleware.usercode import Raised, Returned, class_name, is_a, stops, where_raised

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanContext, Tracer, TracerProvider


#: Its spans are those of this instrumentation.
_NAME: Final = "ackwise"

Call = Callable[[Any], Awaitable[object]]

log = Log()
_throttle: Final = LogThrottle()
_T = TypeVar("_T")


@dataclass(frozen=True)
class Tracing:
    """Trace handlers with OpenTelemetry: `app.use(Tracing())`.

    A call of a handler is one span, `process TOPIC`. That of a handler of messages continues the trace of its message; that of a
    handler of batches is linked to those of its messages. Contexts are read from the headers with the propagator of the process (by
    default W3C's `traceparent`), and stay in copies. What is sent in a handler carries the context of its span. What tracing raises
    is logged, and fails no message.

    `provider` is what makes the spans; by default the one of the process. Nothing of a payload, a key or an exception's text is in a
    span. Raises `ConfigurationError` without the extra `otel`. Source: OpenTelemetry's conventions for messaging spans.
    """

    provider: TracerProvider | None = None

    def __post_init__(self) -> None:
        try:
            importlib.import_module("opentelemetry.trace")
        except ImportError:
            raise ConfigurationError(
                "Tracing needs the API of OpenTelemetry, which is not installed: pip install 'ackwise[otel]'"
            ) from None

    def headers(self, own: Iterable[tuple[str, bytes | None]] = ()) -> Headers:
        """`own` headers with the context of the current span, for a message that is sent outside of a handler."""
        own = tuple(own)
        names = {name for name, _ in own}
        return (*own, *(header for header in _injected() if header[0] not in names))

    def around(
        self,
        call: Call,
        *,
        kind: Literal["batch", "message", "stream"],
        handler: str,
        group: Callable[[], str],
        keep_ack_index_on_error: bool = False,
    ) -> Call:
        """`call` with a span around it."""
        find = _Tracers(self.provider)

        def start(tracer: Tracer, messages: Sequence[Message[Any]]) -> AbstractContextManager[Span]:
            from opentelemetry import trace

            contexts = [found for message in messages if (found := _quietly(partial(_context_of, message))) is not None]
            return tracer.start_as_current_span(
                f"process {messages[0].topic}",
                context=_parent(contexts[0]) if kind == "message" and contexts else None,
                kind=trace.SpanKind.CONSUMER,
                attributes=_attributes(messages, kind, handler, group()),
                links=_links(contexts),
                record_exception=False,  # its text may hold a payload
                set_status_on_exception=False,
            )

        async def traced(work: Any) -> object:
            messages: Sequence[Message[Any]] = work if isinstance(work, Batch) else (work,)
            if (tracer := _quietly(find)) is None or not messages:
                return await call(work)
            with _current(partial(start, tracer, messages)) as span, carrying(_injected):
                try:
                    result: object = await call(work)
                except BaseException as error:
                    if is_a(error, asyncio.CancelledError) or stops(error):
                        _quietly(partial(_mark, span, class_name(error)))  # nothing is ruled
                    else:
                        _quietly(partial(_tell, span, work, Raised(error), handler, keep_ack_index_on_error))
                    raise
                _quietly(partial(_tell, span, work, Returned(result), handler, keep_ack_index_on_error))
                return result

        return traced


def _quietly(step: Callable[[], _T]) -> _T | None:
    """What a step of tracing returns; `None` if it raises, since no message may fail of it. Samplers and propagators are the user's."""
    try:
        return step()
    except BaseException as error:  # noqa: BLE001  # as said; it runs in the context of the handler, whose span is the current one
        if _throttle.is_due():
            log.warning("tracing raised", error=class_name(error), at=where_raised(error))
        return None


@contextmanager
def _current(start: Callable[[], AbstractContextManager[Span]]) -> Iterator[Span]:
    """With what `start` starts as the current span, or one that takes nothing."""
    from opentelemetry import trace

    stack = ExitStack()
    try:
        span = _quietly(lambda: stack.enter_context(start()))
        yield trace.INVALID_SPAN if span is None else span
    finally:
        _quietly(stack.close)


class _Tracers:
    """The tracer of the provider that there is now: that of a process may be set once the app is made."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._given = provider
        self._known: tuple[TracerProvider, Tracer] | None = None

    def __call__(self) -> Tracer | None:
        """`None` where spans are not collected: then a handler is called as if there were no tracing."""
        from opentelemetry import trace

        provider = self._given or trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            return None
        if self._known is None or self._known[0] is not provider:
            self._known = provider, provider.get_tracer(_NAME)
        return self._known[1]


def _attributes(messages: Sequence[Message[Any]], kind: str, handler: str, group: str) -> dict[str, Any]:
    first = messages[0]
    found: dict[str, Any] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": group,
        "messaging.destination.name": first.topic,
        "messaging.destination.partition.id": str(first.partition),
        "ackwise.handler": handler,
    }
    if kind == "batch":
        return {**found, "messaging.batch.message_count": len(messages)}
    return {**found, "messaging.kafka.offset": first.offset, "ackwise.reconsume_times": first.reconsume_times}


def _tell(span: Span, work: Any, result: Returned[Any] | Raised, handler: str, keep_ack_index_on_error: bool) -> None:
    """Say how the messages were ruled on; what has failed, or is dead, makes the span an error."""
    if not span.is_recording():
        return
    batch = work if isinstance(work, Batch) else Batch((work,))
    rulings = dispositions_of(batch, result, handler=handler, keep_ack_index_on_error=keep_ack_index_on_error)
    counts = Counter(map(_word, rulings))
    if isinstance(work, Batch):
        span.set_attributes({f"ackwise.{word}": counts[word] for word in ("done", "later", "dead")})
    else:
        span.set_attribute("ackwise.outcome", _word(rulings[0]))
    if (error := next(filter(None, map(_error, rulings)), None)) is not None:
        _mark(span, error)


def _word(ruling: Disposition) -> str:
    match ruling:
        case Done():
            return "done"
        case Dead():
            return "dead"
        case _:
            return "later"


def _error(ruling: Disposition) -> str | None:
    """The class of what was raised; a message that comes later because its handler asked for that is no error."""
    match ruling:
        case Dead(failure=failure):
            return "dead" if failure is None else failure.error
        case Delayed(failure=failure) if failure is not None and failure.error != "Later":
            return failure.error
        case _:
            return None


def _mark(span: Span, error: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR, error))


def _context_of(message: Message[Any]) -> SpanContext | None:
    """The context of the sender, if the message has it."""
    headers = message.headers
    if not headers:
        return None
    from opentelemetry import propagate, trace

    carrier = {name: value.decode("utf-8", "replace") for name, value in headers if value is not None}  # the last of a name counts
    found = trace.get_current_span(propagate.extract(carrier, context=_empty())).get_span_context()
    return found if found.is_valid else None


def _parent(context: SpanContext) -> Any:
    from opentelemetry import trace

    return trace.set_span_in_context(trace.NonRecordingSpan(context))


def _links(contexts: Iterable[SpanContext]) -> list[Link]:
    """One for each context, however many messages have it."""
    from opentelemetry.trace import Link

    return [Link(context) for context in {(each.trace_id, each.span_id): each for each in contexts}.values()]


def _empty() -> Any:
    from opentelemetry.context import Context

    return Context()


def _injected() -> Headers:
    """The headers of the current span's context; none if they can't be made."""
    return _quietly(_inject) or ()


def _inject() -> Headers:
    from opentelemetry import propagate

    found: dict[str, str] = {}
    propagate.inject(found)
    return tuple((name, text.encode()) for name, text in found.items())
