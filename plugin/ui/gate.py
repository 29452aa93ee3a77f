"""`Gate`: who may see the pages. Pure, but for the file of the token."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.settings.config import UI_TOKEN

__all__ = ["Gate", "Refusal", "is_own_address", "token_of"]

#: What a token is made of, and how much of it there is at least: nobody guesses so many characters.
_FORM: Final = re.compile(r"[!-~]{16,1024}")

#: The names of this machine by which a browser on it asks; a page from elsewhere that had its name resolved to us has another one.
_LOCAL: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.ASCII | re.IGNORECASE)


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Gate:
    """Lets in whoever has `token`; without one, whoever asks this machine by a name of its own."""

    token: str | None = None

    def refusal(self, host: str, authorization: str) -> Refusal | None:
        """Return why a request with these headers is refused; `None` if it is let in."""
        if self.token is None:
            if _LOCAL.fullmatch(host) is None:
                return Refusal(403, "without a token this page is for localhost alone: ask for it as http://localhost or http://127.0.0.1")
            return None
        if not hmac.compare_digest(_given(authorization), self.token.encode()):
            return Refusal(401, "this page needs its token: as the password, or as Authorization: Bearer TOKEN")
        return None


def _given(authorization: str) -> bytes:
    """The token of a request: after `Bearer`, or the password of `Basic`, whose user may be anything."""
    scheme, _, given = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            return given.strip().encode("utf-8", "surrogateescape")
        case "basic":
            try:
                return base64.b64decode(given.strip(), validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                return b""
        case _:
            return b""


def is_own_address(address: str) -> bool:
    """Whether only this machine reaches `address`, an IP address."""
    return ip_address(address.partition("%")[0]).is_loopback


def token_of(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """Return the token in `file`, or that of the environment; `None` without either. Raises `ConfigurationError`, which never shows it."""
    if file is None:
        given, where = environment.get(UI_TOKEN), UI_TOKEN
        if given is None:
            return None
    else:
        where = str(file)
        try:
            given = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigurationError(f"the token can't be read from {where}: {reason}; give --token-file a file with one line") from None
    if _FORM.fullmatch(given.strip()) is None:
        raise ConfigurationError(
            f"the token in {where} can't be used: it must have 16 to 1024 printable ASCII characters and no spaces; "
            "make one with: openssl rand -hex 32"
        )
    return given.strip()
