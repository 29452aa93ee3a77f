"""`Page`: one page of the site, and the document that it becomes. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final, NamedTuple

from ackwise.plugin.ui.html import Html, joined, link, tag, told

__all__ = ["POLICY", "Answer", "File", "Leaf", "Page", "document"]

_STYLE: Final = files("ackwise.plugin.ui").joinpath("page.css").read_text("utf-8")

#: Nothing is loaded from anywhere, no script runs, nobody frames a page, and the one style is ours, by its hash.
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class Leaf(NamedTuple):
    """What is on a page, below its heading."""

    title: str
    content: Sequence[Html]
    status: int = 200


class File(NamedTuple):
    """A page that was written before, as it is, and the policy that holds for what is in it."""

    body: bytes
    policy: str


Answer = Leaf | File


@dataclass(frozen=True, slots=True)
class Page:
    """A page at `path`. `answer` is given the query, each name once; what it raises of ours is shown as a sentence."""

    path: str
    answer: Callable[[Mapping[str, str]], Awaitable[Answer]]
    name: str = ""
    """As the navigation has it; empty for a page that only others lead to."""


def document(group: str, leaf: Leaf, pages: Sequence[Page], current: str) -> str:
    """The whole document."""
    links = [tag("a", page.name, href=page.path, aria_current="page") if page.path == current else link(page.path, page.name) for page in pages if page.name]  # fmt: skip  # noqa: E501
    title = tag("title", told(f"{leaf.title} · {group}"))
    head = joined(
        [
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            title,
            Html(f"<style>{_STYLE}</style>"),
        ]
    )
    body = joined([tag("nav", *links, aria_label="Pages"), tag("main", tag("h1", leaf.title), Html("\n"), joined(leaf.content))])
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'
