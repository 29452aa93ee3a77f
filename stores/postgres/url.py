"""The URL of a PostgreSQL claim store or inbox: our options, the driver's, and the text that may be shown."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from ackwise.stores.protocol.options import numbered, split

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

_FORM = "postgresql://user:password@host:5432/database, with every special character of the password as %XX"


class Options(NamedTuple):
    """The parsed URL."""

    schema: str | None = None
    prefix: str = "ackwise_"
    timeout: float = 5.0
    max_size: int = 2
    statement_cache_size: int = 100
    synchronous_commit: str | None = None


def parse(url: str, defaults: Options | None = None) -> tuple[str, Options]:
    """The URL for the driver, and the options that are ours, otherwise `defaults`. Raises `ConfigurationError`, which repeats no secret."""
    known = (*Options._fields, *_DRIVERS)
    parts, pairs = split(url, "PostgreSQL", _FORM, ("postgresql", "postgres"), known, _TEXTS, one_host=False)
    ours = {name: text for name, text in pairs if name in Options._fields}
    drivers = [(name, text) for name, text in pairs if name not in Options._fields]
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
