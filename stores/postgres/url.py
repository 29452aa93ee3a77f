"""The URL of a PostgreSQL claim store or inbox: our options, those of the driver, and the part that may be shown."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.urls import may_hold_an_at_sign, numbered, refuse_unknown

_DRIVERS = (
    "application_name",
    "host",
    "passfile",
    "port",
    "ssl_min_protocol_version",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "target_session_attrs",
)
"""Options that asyncpg reads, with libpq's meaning. It would take any other one for a setting of the server."""

_TEXTS = ("application_name", "passfile", "prefix", "schema", "sslcert", "sslcrl", "sslkey", "sslrootcert")
"""Options that may hold any text, an @ too."""

_UNREADABLE = (
    "the URL of the PostgreSQL store can't be read; write postgresql://user:password@host:5432/database, "
    "with every special character of the password as %XX, and an @ in an option behind the question mark as %40"
)


class Options(NamedTuple):
    """What the URL says to us."""

    schema: str | None = None
    prefix: str = "ackwise_"
    timeout: float = 5.0
    max_size: int = 2
    statement_cache_size: int = 100
    synchronous_commit: str | None = None


def parse(url: str, defaults: Options | None = None) -> tuple[str, Options]:
    """The URL for the driver, and the options that are ours, else `defaults`. Raises `ConfigurationError`, which repeats no secret."""
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        raise ConfigurationError(_UNREADABLE) from None
    # A password with a bare /, ? or # puts what follows it behind the address, where it would be shown.
    known = (*Options._fields, *_DRIVERS)
    if "@" in parts.path or parts.fragment or ("@" in parts.query and not may_hold_an_at_sign(parts.query, parts.netloc, known, _TEXTS)):
        raise ConfigurationError(_UNREADABLE)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigurationError("the URL of the PostgreSQL store starts with postgresql:// or postgres://")
    ours = {name: text for name, text in pairs if name in Options._fields}
    drivers = [(name, text) for name, text in pairs if name not in Options._fields]
    for name, _ in drivers:
        refuse_unknown(name, known, "PostgreSQL")
    return parts._replace(query=urlencode(drivers)).geturl(), (defaults or Options())._replace(**numbered(ours, "PostgreSQL"))


def address_of(url: str) -> str:
    """Where the server is, without user, password and options."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "postgresql"
    if "@" in parts.path + parts.query + parts.fragment:  # a password that was not encoded goes beyond its place
        return "postgresql"
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
