"""Rendering: a template and values become a document. Each value is cut, spelled out where it does not print, and escaped. Pure."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ackwise.middleware.plaintext import plain
from ackwise.plugin.pages.table import Cell

__all__ = ["HTML", "POLICY", "Answer", "document"]

HTML: Final = "text/html; charset=utf-8"

#: Characters of a value for which a template says no other number.
_TEXT: Final = 300

_STYLE: Final = files("ackwise.plugin.pages").joinpath("templates/page.css").read_text("utf-8")

#: Nothing is loaded from anywhere, no script runs, nobody frames a page, and the one style is ours, by its hash.
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class Answer(NamedTuple):
    """What a page answers."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    policy: str = POLICY
    challenge: str = ""
    """How a browser is asked for a password."""


def document(template: str, **values: Any) -> str:
    """Return the page that `template` makes of `values`."""
    return _environment().get_template(template).render(style=Markup(_STYLE), **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ackwise.plugin.pages", "templates"),
        autoescape=True,
        finalize=_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["upto"] = _text
    environment.tests["cell"] = lambda value: isinstance(value, Cell)
    environment.globals["draw"] = environment.get_template("macros.html").module
    return environment


def _text(value: object, limit: int = _TEXT) -> Markup:
    """What a page has for a value; `None` is unknown."""
    if isinstance(value, Markup):
        return value
    return escape("–" if value is None else plain(str(value), limit))
