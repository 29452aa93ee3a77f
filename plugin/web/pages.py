"""Pages as values, and their rendering with templates: each value is cut, made printable, and escaped. Pure."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ackwise.middleware.log import plain
from ackwise.plugin.operate.groupstatus import APP, GROUP
from ackwise.plugin.operate.table import Cell

HTML: Final = "text/html; charset=utf-8"

#: Characters of a value, unless a template has another limit.
_TEXT: Final = 300

_STYLE: Final = files("ackwise.plugin.web").joinpath("templates/page.css").read_text("utf-8")

#: No external resource, no script, no frame; only our style, by its hash.
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class Answer(NamedTuple):
    """The answer of a page."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    policy: str = POLICY
    challenge: str = ""
    """The challenge for a password."""


def document(template: str, **values: Any) -> str:
    """Render `template` with `values`."""
    return _environment().get_template(template).render(style=Markup(_STYLE), **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ackwise.plugin.web", "templates"),
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
    """Render a value; `None` is unknown."""
    if isinstance(value, Markup):
        return value
    return escape("–" if value is None else plain(str(value), limit))


class Leaf(NamedTuple):
    """The content of a page: a template with its values."""

    title: str
    template: str
    values: Mapping[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True)
class Page:
    """A page at `path`. `answer` takes the query, each name once; its `AckwiseError` is shown as a sentence."""

    path: str
    answer: Callable[[Mapping[str, str]], Awaitable[Leaf | Answer]]
    name: str = ""
    """Name in the navigation; empty for a page that is only linked."""


class Named(NamedTuple):
    """The group as on the command line: an app, or the name of a group with its options."""

    whose: str
    brokers: str | None = None
    dlq: str | None = None
    events: tuple[str, ...] = ()
    """The folders of its events."""

    def command(self, words: Sequence[str]) -> str:
        """Return the shell command with these words, quoted; `APP` and `GROUP` are replaced by the name."""
        named = [self._word(word) for word in words]
        return shlex.join(["ackwise", *named, *(self._options(words[0]) if GROUP in words else ())])

    def story(self, message: str) -> str:
        """Return the command that shows the history of `message`, a `topic/partition/offset` or a key."""
        return shlex.join(["ackwise", "why", message, *(self.events or ("EVENTS",))])

    def _word(self, word: str) -> str:
        if word == GROUP or (word == APP and ":" in self.whose):
            return self.whose
        return word

    def _options(self, name: str) -> list[str]:
        given = {"--brokers": self.brokers, "--dlq": self.dlq}
        return [part for option, value in given.items() if value is not None for part in (option, value)]
