"""Failures in a share group: what goes to the retry topic uncharged, what is delivered again, and what the broker gives up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ackwise.middleware.share import Share
from ackwise.plugin.inspect.failures import FailurePath
from ackwise.plugin.settings.entries import spelled
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["failures_of_share"]

_COPIED: Final = "copied to the retry topic, no attempt is charged"
_COPY_IS_THERE: Final = "once the copy is acknowledged"


def failures_of_share(settings: HostSettings, share: Share) -> Iterator[FailurePath]:
    """Those that only a worker in a share group has."""
    lock, timeout = spelled(float(share.lock)), spelled(share.seconds)
    yield _path("the broker delivers a message again", f"{_COPIED}, and run from there", _COPY_IS_THERE)
    yield _path(f"a message has not begun {timeout} after it was locked", _COPIED, _COPY_IS_THERE)
    yield _path(
        f"a handler still runs {timeout} after its message was locked", "cancelled, and comes back as if it had raised", _COPY_IS_THERE
    )
    yield _path("the lock has ended when a message is accepted", "refused, with an event; delivered again", "once it is copied")
    yield _path("the worker is killed", "delivered again", "by another worker", lock)
    yield _path(
        "a worker is killed in each of the broker's deliveries (5 unless set) before it has copied the message",
        "lost: the broker gives it up",
        "by the broker",
    )
    yield _path(f"a handler still runs {spelled(settings.drain_timeout)} after the stop", "cancelled; delivered again", "by another worker")


def _path(when: str, then: str, offset: str, after: str = "") -> FailurePath:
    return FailurePath(when, then, after, (), None, "", offset)
