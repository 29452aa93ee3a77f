"""The webhook: a POST of JSON, within a time, whatever the other side does."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ackwise.middleware.errors import AckwiseError, ConfigurationError

__all__ = ["Undelivered", "Webhook", "url_of"]

#: Seconds for each step of a request, and for all tries of an alarm.
_TIMEOUT: Final = 10.0
_LONGEST: Final = 30.0
#: Seconds before each further try.
_PAUSES: Final = (1.0, 3.0)


class Undelivered(AckwiseError):
    """A webhook did not take an alarm."""


def url_of(given: str) -> str:
    """Return the URL that `--webhook` gives, or the file that it names. Raises `ConfigurationError` without the URL, a secret."""
    where, text = "--webhook", given
    if not given.lower().startswith(("http://", "https://")):
        where = f"the file {given}, given to --webhook,"
        try:
            text = Path(given).read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise ConfigurationError(
                f"--webhook is neither a URL nor a readable file ({reason}); write https://… or the path of a file"
            ) from None
    try:
        parts = urlsplit(text)
        is_good = bool(parts.hostname) and parts.username is None and parts.port != 0  # urllib takes no user from a URL
    except ValueError:
        is_good = False
    if not is_good or not text.isascii() or any(character.isspace() for character in text):
        raise ConfigurationError(f"{where} holds no URL that can be asked; write it as https://host/path")
    return text


class Webhook:
    """One URL. What is shown of it is its host."""

    def __init__(self, url: str, wait: Callable[[float], object] = time.sleep) -> None:
        self._url = url
        self._wait = wait
        self.host = urlsplit(url).hostname or ""

    def post(self, payload: Mapping[str, Any]) -> None:
        """Send `payload`; it was taken when this returns. Raises `Undelivered` with a reason, after some tries, within half a minute."""
        answer: queue.Queue[str] = queue.Queue()
        # In a thread that nobody waits for longer: a server that sends a byte now and then would delay the audit.
        threading.Thread(target=lambda: answer.put(self._tries(json.dumps(payload).encode())), name="webhook", daemon=True).start()
        try:
            reason = answer.get(timeout=_LONGEST)
        except queue.Empty:
            reason = f"no answer within {_LONGEST:g} s"
        if reason:
            raise Undelivered(f"webhook at {self.host}: {reason}")

    def _tries(self, body: bytes) -> str:
        reason = _try(self._url, body)
        for pause in _PAUSES:
            if not reason:
                break
            self._wait(pause)
            reason = _try(self._url, body)
        return reason


class _NoRedirect(HTTPRedirectHandler):
    """A redirected POST would become a GET without the alarm, and its answer look like a success."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _try(url: str, body: bytes) -> str:
    """Return why the body was not taken, or an empty text."""
    headers = {"Content-Type": "application/json", "User-Agent": "ackwise"}
    try:
        with build_opener(_NoRedirect).open(Request(url, body, headers, method="POST"), timeout=_TIMEOUT):  # checked to be HTTP
            return ""
    except HTTPError as error:
        error.close()
        return f"status {error.code}"
    except (OSError, HTTPException, ValueError) as error:  # URLError is an OSError; its reason has no URL
        cause = getattr(error, "reason", error)
        return str(getattr(cause, "strerror", None) or type(cause).__name__)
