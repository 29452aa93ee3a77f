"""Failures of an instance that broadcasts: what it misses, and what it runs again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ackwise.plugin.inspect.failures import FailurePath
from ackwise.plugin.settings.entries import spelled
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.slots import Slots

__all__ = ["failures_of_instance"]

_BACK: Final = "once it is back"


def failures_of_instance(settings: HostSettings, slots: Slots) -> Iterator[FailurePath]:
    """Those that only an instance that broadcasts has; none for any other app."""
    if (policy := slots.broadcasting) is None:
        return
    begins = "end" if settings.start == "latest" else "start"
    yield _path("the instance is killed", "what it had not committed is run again by itself", _BACK)
    yield _path(f"a batch still runs {spelled(settings.drain_timeout)} after the stop", "cancelled; run again by this instance", _BACK)
    yield _path(
        "the instance is away for longer than a topic keeps its records", "what was deleted is missed, with an event", "at its start"
    )
    yield _path("an instance of a new name starts", f"begins at the {begins} of the topics", "at its start")
    yield _path("an instance of the same name is running", "the second does not start, or stops", "not by that one")
    if policy.offsets_file is not None:
        yield _path(
            "the offsets file can't be written, as on a full disk", "goes on; the next commit makes it good", "with the next commit"
        )
        yield _path("the offsets file is damaged, or another's", "the instance does not start", "not before it is mended")


def _path(when: str, then: str, offset: str) -> FailurePath:
    return FailurePath(when, then, "", (), None, "", offset)
