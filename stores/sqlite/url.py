"""The URL of a SQLite claim store or inbox: the path of its file, and its options."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from ackwise.middleware.errors import ConfigurationError


def parse(url: str, what: str, *known: str) -> tuple[str, dict[str, str]]:
    """Return the path, and the options that are given of those `known`. Raise `ConfigurationError`; `what` is the URL's."""
    try:
        parts = urlsplit(url)
    except ValueError:  # such as sqlite://[x
        parts = urlsplit("")
    if parts.scheme != "sqlite" or parts.netloc or len(parts.path) < 2:
        raise ConfigurationError(f"the URL of the {what} names no file; write sqlite:///relative/path or sqlite:////absolute/path")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(options.keys() - known):
        raise ConfigurationError(f"the {what} has no option {', '.join(unknown)}; it has {' and '.join(known)}")
    return unquote(parts.path[1:]), options


def seconds(timeout: str, what: str) -> float:
    """Return the option `timeout`. Raise `ConfigurationError`."""
    try:
        return float(timeout)
    except ValueError:
        raise ConfigurationError(f"timeout is {timeout!r} in the URL of the {what}; give seconds, such as timeout=2.5") from None
