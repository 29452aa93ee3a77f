"""Trace context: headers that tie a message which is sent to the work that sends it.

They are kept apart from the sender's own headers: the id of what a handler publishes is made of its content, and must be the same
whenever the handler runs, while the context is another one each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ackwise.middleware.message import Headers

__all__ = ["carrying", "trace_context"]

_current: ContextVar[Callable[[], Headers] | None] = ContextVar("ackwise_trace_context", default=None)


def trace_context() -> Headers:
    """The headers for a message that is made here; none where nothing is traced."""
    read = _current.get()
    return () if read is None else read()


@contextmanager
def carrying(read: Callable[[], Headers]) -> Iterator[None]:
    """While the block runs, messages that are made in this task or in those that it starts carry what `read` returns then."""
    token = _current.set(read)
    try:
        yield
    finally:
        _current.reset(token)
