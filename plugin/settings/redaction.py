"""Redaction: a text that may hold a password, without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["shown_options", "shown_store", "shown_url"]

_HIDDEN: Final = "***"

#: Options of the Kafka clients that say how a client proves itself, and not with what.
_SHOWN_OPTIONS: Final = frozenset(
    {
        "connections_max_idle_ms",
        "metadata_max_age_ms",
        "retry_backoff_ms",
        "sasl_mechanism",
        "sasl_plain_password_file",
        "security_protocol",
        "ssl_cafile",
        "ssl_certfile",
        "ssl_keyfile",
    }
)


def shown_url(text: str) -> str:
    """`text` with `***` for the user, the password and the query of a URL, or for all where they can't be told apart. A path stays."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    userinfo, at, rest = rest.rpartition("@")  # the last one: a password may hold anything, also what it should not
    if "=" in userinfo.replace("#", "?").partition("?")[2]:
        return f"{scheme}://{_HIDDEN}"  # an option with an @ in it, or a password that looks like one: nobody can tell where which ends
    address, query, _ = rest.replace("#", "?").partition("?")
    return f"{scheme}://{_HIDDEN + at if at else ''}{address}{query + _HIDDEN if query else ''}"


def shown_store(store: object) -> str:
    """What events and the log call a store: its URL as `shown_url` shows it, or the class of the object."""
    return shown_url(store) if isinstance(store, str) else type(store).__name__


def shown_options(options: Mapping[str, object]) -> dict[str, str]:
    """`client_options` with `***` for every value but those that are known to hold no secret; without those that are `None`."""
    return {name: str(value) if name in _SHOWN_OPTIONS else _HIDDEN for name, value in options.items() if value is not None}
