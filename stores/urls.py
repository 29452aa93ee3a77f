"""Checks that the URLs of all stores share."""

from __future__ import annotations

import difflib
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ackwise.middleware.errors import ConfigurationError

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
        _ = parts.port if one_host else None  # is read only now, and may be no number
    except ValueError:
        raise unreadable from None
    # A password with a bare /, ? or # puts what follows it behind the address, where it would be shown.
    if "@" in parts.path or parts.fragment or ("@" in parts.query and not may_hold_an_at_sign(parts.query, parts.netloc, known, texts)):
        raise unreadable
    if parts.scheme not in schemes:
        raise ConfigurationError(f"the URL of the {store} store starts with {' or '.join(f'{scheme}://' for scheme in schemes)}")
    for name, _value in pairs:
        _refuse_unknown(name, known, store)
    return parts, pairs


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
