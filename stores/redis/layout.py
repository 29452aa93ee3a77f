"""`Layout`: how records are laid out among the keys of a Redis; everybody who shares a namespace has to use the same."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ackwise.middleware.errors import ConfigurationError

_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_VERSION = 2
_PAGE_FILL = 90
"""Completed records of a page that is as full as expected; a chance surplus still fits into the 128 of a listpack."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`retention` (seconds) and `keys` count for `compact` only, `buckets` on a cluster only. Raises `ConfigurationError`.

    Plain: one key for each record. Compact: completed records are fields of shared hashes ("pages"), which Redis keeps in a
    seventh of the memory; a page is for one half of the retention and for the ids that begin alike.
    """

    namespace: str = "ackwise"  #: what all keys begin with
    compact: bool = False
    retention: float = 86400.0  #: the longest that an exchange may ask for
    keys: int = 1_000_000  #: how many completed records there are at a time
    buckets: int = 0  #: hash tags that the keys of a cluster are spread over; 0 on one server

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigurationError(
                f"the namespace of the Redis store is {self.namespace!r}; give 1 to 64 letters, digits, dots, hyphens or underscores"
            )
        if not 1.0 <= self.retention <= 10 * 365 * 86400.0:
            raise ConfigurationError(f"retention is {self.retention} for the Redis store; give seconds, from 1 to ten years of them")
        if self.keys < 1:
            raise ConfigurationError(f"keys is {self.keys} for the Redis store; give how many completed messages it remembers at a time")
        if not 0 <= self.buckets <= 256:
            raise ConfigurationError(f"buckets is {self.buckets} for the Redis store; a cluster takes 1 to 256, one server none")

    @property
    def period(self) -> int:
        """Milliseconds that a page is for; 0 if there are no pages."""
        return math.ceil(self.retention * 500) if self.compact else 0

    @property
    def page_bits(self) -> int:
        """How many bits of an id choose its page. Records of one retention end in two periods, hence half of the keys."""
        return min(24, max(0, math.ceil(math.log2(self.keys / 2 / _PAGE_FILL)))) if self.compact else 0

    def settings(self) -> tuple[bytes, int]:
        """What the script has to know of it: period and page bits."""
        return self.period.to_bytes(6, "big"), self.page_bits

    def key(self, place: bytes) -> bytes:
        """The key of the record at `place`, 16 bytes of a hash. A namespace has no colon and no brace, so none reaches into another."""
        if self.buckets:
            return b"{%b:%02x}:%b" % (self.namespace.encode(), place[-1] % self.buckets, place)
        return b"%b:%b" % (self.namespace.encode(), place)

    def keys_of(self, places: Iterable[bytes]) -> list[bytes]:
        """The keys of the records at `places`."""
        if self.buckets:
            return [self.key(place) for place in places]
        prefix = b"%b:" % self.namespace.encode()
        return [prefix + place for place in places]

    def groups(self, keys: Sequence[bytes]) -> list[Sequence[int]]:
        """The positions of the keys that are in one slot, for each slot."""
        if not self.buckets:
            return [range(len(keys))] if keys else []
        groups: dict[int, list[int]] = {}
        for position, key in enumerate(keys):
            groups.setdefault(key[-1] % self.buckets, []).append(position)
        return list(groups.values())

    @property
    def mark(self) -> bytes:
        """The key that says how the namespace is laid out; no record's key has its length."""
        return b"%b:layout" % self.namespace.encode()

    @property
    def memory(self) -> bytes:
        """The key that says since when the namespace remembers; no record's key has its length."""
        return (b"{%b:since}" if self.buckets else b"%b:since") % self.namespace.encode()

    def __str__(self) -> str:
        """What stands under the key `mark`."""
        words = [f"{_VERSION}", "layout=compact" if self.compact else "layout=plain"]
        words += [f"retention={self.retention:g}", f"pages={2**self.page_bits}"] if self.compact else []
        words += [f"buckets={self.buckets}"] if self.buckets else []
        return " ".join(words)

    def agree(self, found: str, where: str) -> None:
        """Raise `ConfigurationError` if the namespace was laid out otherwise than this says."""
        if found == str(self):
            return
        version = found.split(" ", 1)[0]
        if version.isdecimal() and int(version) != _VERSION:
            raise ConfigurationError(
                f"{where}: the namespace {self.namespace} has version {version}, and this Ackwise knows version {_VERSION} alone; "
                "start the Ackwise that made it, or use another namespace"
            )
        raise ConfigurationError(
            f"{where}: the namespace {self.namespace} is laid out as {found!r}, and this store wants {str(self)!r}; "
            "give the options that it was made with, or use another namespace"
        )
