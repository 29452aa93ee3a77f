"""The pages that people read, and the snippets in them."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).parents[2]

_FENCE = re.compile(
    r'^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<language>\w*)(?: title="(?P<file>[^"\n]+)")?\n(?P<code>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)


class Snippet(NamedTuple):
    """A fenced block. `line` is that of its first line of code; `reason` says why it is not run, where it is not."""

    page: str
    line: int
    language: str
    file: str | None
    reason: str | None
    code: str


def pages() -> list[str]:
    """README.md and every page of the site, as paths in the checkout."""
    return ["README.md", *sorted(str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "docs").rglob("*.md"))]


def text(page: str) -> str:
    """A page as it is written."""
    return (CHECKOUT / page).read_text("utf-8")


def snippets(page: str) -> list[Snippet]:
    """The fenced blocks of a page, from top to bottom."""
    written = text(page)
    return [
        Snippet(page, written.count("\n", 0, fence.start("code")) + 1, *fence.group("language", "file", "reason", "code"))
        for fence in _FENCE.finditer(written)
    ]


def run(page: str, module: types.ModuleType) -> None:
    """Run the Python blocks of a page from top to bottom; they share the namespace of `module`."""
    for snippet in snippets(page):
        if snippet.language == "python" and snippet.reason is None:
            code = "\n" * (snippet.line - 1) + snippet.code  # so that a traceback shows the line of the page
            exec(compile(code, CHECKOUT / page, "exec"), vars(module))
