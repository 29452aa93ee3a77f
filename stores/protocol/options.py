"""Options of store URLs and their checks; `Purpose` holds the words that differ between claim store, inbox and outbox."""

from __future__ import annotations

import difflib
import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ackwise.middleware.errors import ConfigurationError


class Purpose(NamedTuple):
    """The words that differ between claim store, inbox and outbox of one database."""

    name: str
    """The name of the object that the user constructs."""
    tables: str
    """The owner of the tables."""
    unit: str
    """The operation that a worker repeats."""
    timed: str
    """The operation that `timeout` bounds."""
    part: str
    """The schema's name in the table of versions."""
    missing: str
    """The sentence for a database that is not set up."""
    has: str
    """The start of the sentence about a version."""
    init: str = "ackwise store init URL"
    """The command that sets it up."""
    version: int = 1
    """The tables' names, in every database."""

    def require_sense(self, database: str, example: str, url: str | None, pool: object | None, timeout: float, max_size: int) -> None:
        """Raise `ConfigurationError` for settings that can't work; `example` is a URL of `database`."""
        if (url is None) == (pool is None):
            raise ConfigurationError(f"a {database} {self.name} needs a URL, such as {example}, or a pool, and not both")
        if not 0 < timeout < math.inf:
            raise ConfigurationError(f"timeout is {timeout}; give the seconds that {self.timed} may take, more than 0")
        if max_size < 1:
            raise ConfigurationError(f"max_size is {max_size}; the {database} {self.name} needs at least one connection")

    def not_open(self, address: str) -> str:
        """The text for a call before `open` or after `close`."""
        return f"{address}: the {self.name} is not open; open it before the first {self.unit}"

    def not_there(self, address: str) -> str:
        """The text for tables that are missing."""
        return f"{address}: {self.missing}; run `{self.init}`"

    def require_version(self, found: int, address: str, otherwise: str = "choose another prefix") -> None:
        """Raise `ConfigurationError` for another version than ours."""
        if found != self.version:
            raise ConfigurationError(
                f"{address}: its {self.has} version {found}, and this Ackwise knows version {self.version} alone; "
                f"start the Ackwise that made them, or {otherwise}"
            )


CLAIMS: Final = Purpose(
    name="store",
    tables="claim store",
    unit="exchange",
    timed="an exchange",
    part="claims",
    missing="the tables of the claim store are missing",
    has="claims have",
    version=3,
)
INBOX: Final = Purpose(
    name="inbox",
    tables="inbox",
    unit="batch",
    timed="a statement of the inbox",
    part="inbox",
    missing="the table of the inbox is missing",
    has="inbox has",
    version=4,
)
OUTBOX: Final = Purpose(
    name="outbox",
    tables="outbox",
    unit="call",
    timed="a call of the outbox",
    part="outbox",
    missing="the tables of the outbox are missing",
    has="outbox has",
    init="ackwise outbox init URL",
    version=5,
)
CDC: Final = Purpose(
    name="change data capture",
    tables="change data capture",
    unit="read",
    timed="a statement of change data capture",
    part="cdc",
    missing="the table of change data capture is missing",
    has="change data capture has",
    init="ackwise cdc URL --create-slot",
)

_NUMBERS: Final[Mapping[str, tuple[type, str]]] = {"timeout": (float, "2.5"), "max_size": (int, "2"), "statement_cache_size": (int, "0")}
"""Options that are numbers, each with an example."""


def may_hold_an_at_sign(query: str, netloc: str, options: Container[str], texts: Container[str]) -> bool:
    """Return whether each `@` in `query` stands in the value of an option that takes any text, one of `texts`.

    Else it is the rest of a password with a bare question mark: what stands before that would be taken for host and port, and shown.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    return "@" in netloc and all(name in options and ("@" not in value or name in texts) for name, value in pairs)


def split(
    url: str, store: str, form: str, schemes: Sequence[str], known: Sequence[str], texts: Sequence[str], *, one_host: bool
) -> tuple[SplitResult, list[tuple[str, str]]]:
    """Return the parts of the URL of a server, and its options. Raise `ConfigurationError`, which repeats no secret.

    `form` is how to write it, `texts` are those of the `known` options that take any text.
    """
    unreadable = ConfigurationError(f"the URL of the {store} store can't be read; write {form}, and an @ in an option as %40")
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        raise unreadable from None
    # A password with a bare /, ? or # puts what follows it behind the address, where it would be shown.
    if "@" in parts.path or parts.fragment or ("@" in parts.query and not may_hold_an_at_sign(parts.query, parts.netloc, known, texts)):
        raise unreadable
    if parts.scheme not in schemes:
        raise ConfigurationError(f"the URL of the {store} store starts with {' or '.join(f'{scheme}://' for scheme in schemes)}")
    for name, _value in pairs:
        _refuse_unknown(name, known, store)
    _require_ports(parts.netloc.rpartition("@")[2], [value for name, value in pairs if name == "port"], store, one_host=one_host)
    return parts, pairs


def _require_ports(hosts: str, ports: Sequence[str], store: str, *, one_host: bool) -> None:
    """Raise `ConfigurationError` for a port that none can be; several hosts are the driver's to read.

    It is not repeated: it may be a part of a password.
    """
    written = [host.rpartition("]")[2].partition(":")[2] for host in ([hosts] if one_host else hosts.split(","))]
    for port in (*written, *",".join(ports).split(",")):
        is_number = port.removeprefix("-").isdecimal()
        if (is_number and not (len(port) < 6 and 0 < int(port) < 65536)) or (port and one_host and not is_number):
            raise ConfigurationError(
                f"the URL of the {store} store can't be read: a port in it is no number from 1 to 65535; correct it, or leave it out"
            )


def numbered(texts: Mapping[str, str], store: str) -> dict[str, Any]:
    """Return our options, numbers as such. Raise `ConfigurationError` for one that is none."""
    values: dict[str, Any] = dict(texts)
    for name in texts.keys() & _NUMBERS.keys():
        kind, example = _NUMBERS[name]
        try:
            values[name] = kind(texts[name])
        except ValueError:
            raise ConfigurationError(
                f"{name} is {texts[name]!r} in the URL of the {store} store; give a number, such as {name}={example}"
            ) from None
    return values


def _refuse_unknown(name: str, known: Sequence[str], store: str) -> None:
    """Raise `ConfigurationError` for an option that is none of `known`; its value is not repeated."""
    if name in known:
        return
    if name in ("password", "user"):
        raise ConfigurationError(
            f"{name} is an option in the URL of the {store} store; write it in front of the host: //user:password@host"
        )
    near = difflib.get_close_matches(name, known, n=1)
    advice = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
    raise ConfigurationError(f"the {store} store has no option {name!r}; {advice}")
