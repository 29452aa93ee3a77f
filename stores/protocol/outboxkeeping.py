"""`Keeping`: how long rows of an outbox stay once nobody has to send them, and what of them. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_plus

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.outgoing import Outgoing

#: What of a row may be blanked, and the column that it is in.
PAYLOAD: Final = {"value": "value", "key": "message_key", "headers": "headers"}

_OPTIONS: Final = ("keep_sent", "keep_parked", "blank")


@dataclass(frozen=True, slots=True)
class Keeping:
    """Times are seconds. Raises `ConfigurationError`."""

    retention: float = 86400.0
    """`cleanup` deletes what was rolled back and is older."""
    sent: float = 0.0
    """A row that was sent stays for so long, in state GLOBAL_COMMIT; 0: it is deleted at once."""
    parked: float | None = None
    """`cleanup` deletes parked rows that are older, unsent; `None`: they stay until they are requeued."""
    blank: Collection[str] = tuple(PAYLOAD)
    """What is removed from a row that was sent and stays."""

    def __post_init__(self) -> None:
        _require_seconds("retention", self.retention, "that what was rolled back is kept")
        _require_seconds("keep_sent", self.sent, "that sent rows are kept")
        if self.parked is not None:
            _require_seconds("keep_parked", self.parked, "that parked rows are kept")
        if isinstance(self.blank, str) or (set(self.blank) - set(PAYLOAD)):
            raise ConfigurationError(f"blank is {self.blank!r}; name what of a sent row is removed, some of {', '.join(PAYLOAD)}")

    @property
    def blanked(self) -> list[str]:
        """The columns that become NULL."""
        return [column for what, column in PAYLOAD.items() if what in self.blank]

    def without(self, message: Outgoing) -> Outgoing:
        """Return `message` as a row that was sent keeps it."""
        return dataclasses.replace(
            message,
            value=None if "value" in self.blank else message.value,
            key=None if "key" in self.blank else message.key,
            headers=() if "headers" in self.blank else message.headers,
        )

    @property
    def given(self) -> dict[str, Any]:
        """What an outbox is constructed with; its retention is no option of a URL."""
        return {"keep_sent": self.sent, "keep_parked": self.parked, "blank": self.blank}

    def __str__(self) -> str:
        return f"{self._sent}, {self._parked}"

    @property
    def _sent(self) -> str:
        if not self.sent:
            return "sent rows are deleted"
        without = " and ".join(what for what in PAYLOAD if what in self.blank)
        return f"sent rows stay for {self.sent:g} s" + (f" without {without}" if without else " with all that they say")

    @property
    def _parked(self) -> str:
        if self.parked is None:
            return "parked rows stay until they are requeued"
        return f"cleanup deletes parked rows of {self.parked:g} s unsent"


def keeping_of(url: str) -> tuple[str, Keeping]:
    """Return `url` without the options that are about keeping rows, and what they say. Raises `ConfigurationError`."""
    before, mark, query = url.rpartition("?")
    if not mark:
        return url, Keeping()
    options = [part.partition("=") for part in query.split("&")]
    ours = {name: unquote_plus(text) for name, _, text in options if name in _OPTIONS}
    rest = "&".join(name + equals + text for name, equals, text in options if name not in _OPTIONS)
    return before + (mark + rest if rest else ""), Keeping(
        sent=_seconds("keep_sent", ours.get("keep_sent", "0")),
        parked=_seconds("keep_parked", ours["keep_parked"]) if "keep_parked" in ours else None,
        blank=tuple(filter(None, ours["blank"].split(","))) if "blank" in ours else tuple(PAYLOAD),
    )


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{name} is {text!r} in the URL of the outbox; give seconds, such as {name}=604800") from None


def _require_seconds(name: str, seconds: float, meaning: str) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ConfigurationError(f"{name} is {seconds!r}; give the seconds {meaning}, 0 or more")
