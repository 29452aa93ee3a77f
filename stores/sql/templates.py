"""`Templates`: SQL that several databases share, rendered once for each with its words, the names of its tables and its placeholders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ackwise.stores.sql.operation import Statement

_PARTS: Final = re.compile(r"\{(?P<word>\w+)(?: (?P<argument>[^{}]+))?\}|(?<![:\w]):(?P<value>[a-z]\w*)")


class Placeholders(NamedTuple):
    """How a driver takes values."""

    mark: Callable[[int], str]
    """The placeholder of a value, by its place from 1."""
    repeats: bool
    """Whether a value that is named twice is given twice."""
    adapt: Callable[[Any], Any] = lambda value: value
    """What the driver is given for a value."""
    escape: Callable[[str], str] = str
    """How a name stands in a statement that has values."""


class _Rendered(NamedTuple):
    text: str
    values: tuple[str, ...]


class Templates:
    """Renders `{word}`, `{word argument}` and `:value`.

    `words` are templates themselves, in which `{it}` is the argument and `:it` the value of that name. `names` are put in as they are.
    What a value is called does not matter to a driver, so that a template is as cheap as a statement with places.
    """

    def __init__(self, words: Mapping[str, str], names: Mapping[str, str | int], placeholders: Placeholders) -> None:
        self._words, self._names, self._placeholders = words, names, placeholders
        self._rendered: dict[str, _Rendered] = {}

    def __call__(self, template: str, values: Mapping[str, Any]) -> Statement:
        """Return the statement with `values`, of which it takes those that it names."""
        rendered = self._rendered.get(template)
        if rendered is None:
            rendered = self._rendered[template] = self._render(template)
        adapt = self._placeholders.adapt
        return Statement(rendered.text, [adapt(values[name]) for name in rendered.values])

    def _render(self, template: str) -> _Rendered:
        plain = self._put_in(template, str)
        return self._put_in(template, self._placeholders.escape) if plain.values else plain

    def _put_in(self, template: str, escape: Callable[[str], str]) -> _Rendered:
        found: list[str] = []

        def inner(text: str, argument: str) -> str:
            def part(match: re.Match[str]) -> str:
                word, value = match["word"], match["value"]
                if value is not None:
                    return self._place(argument if value == "it" else value, found)
                if word == "it":
                    return inner(argument, "")
                if word in self._words:
                    return inner(self._words[word], match["argument"] or "")
                return escape(str(self._names[word]))

            return _PARTS.sub(part, text)

        return _Rendered(inner(template, ""), tuple(found))

    def _place(self, value: str, found: list[str]) -> str:
        if self._placeholders.repeats or value not in found:
            found.append(value)
            return self._placeholders.mark(len(found))
        return self._placeholders.mark(found.index(value) + 1)
