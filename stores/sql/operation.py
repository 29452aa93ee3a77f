"""Operations on a database, as generators of statements: what is asked and decided, without I/O.

A generator yields a packet, which are statements that may share one trip, and gets an answer for each of them. A runner sends
packets through one driver, one statement at a time where the driver takes no more. So the same operation runs on asyncpg, asyncmy,
sqlite3 and a connection of SQLAlchemy, asynchronously or not.

An operation *owns* its connection, or borrows that of the caller. The runner of an owned one (`Runs`, in `schema.py`) takes a connection,
bounds the time, repeats it and closes the connection if it has to; the operation itself may start and commit. A borrowed one is steps
alone, which send their statements into the transaction that is open: they neither start nor commit, make no setting and are never repeated.

`Templates`: SQL that several databases share, rendered once for each with its words, the names of its tables and its placeholders.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")


class Statement(NamedTuple):
    """One statement as its dialect writes it, with the values of its placeholders."""

    text: str
    values: Sequence[Any] = ()


class Answer(NamedTuple):
    """The result of one statement."""

    rows: Sequence[Sequence[Any]] = ()
    changed: int = 0
    """Rows that it inserted, updated or deleted."""


Packet: TypeAlias = Sequence[Statement]
Steps: TypeAlias = Generator[Packet, Sequence[Answer], T]


class Problem(enum.Enum):
    """The meaning of a failure for the operation, in any database."""

    CONFLICT = "the server chose this transaction to give way, and asking again is all it takes"
    LOST = "the connection is lost or of no use any more, and a new one may help"
    BUSY = "another transaction held what was asked for until the timeout"
    ENDED = "the transaction that was open is gone, or takes nothing any more"
    MISSING = "there is no such table"
    DUPLICATE = "there is a row of this key already"
    FORBIDDEN = "this user has not the right"
    REFUSED = "anything else that the driver or the server says"


class Failure(Exception):
    """An error of the driver or the server, as it is thrown into an operation; `error` is the driver's own."""

    def __init__(self, problem: Problem, error: Exception) -> None:
        super().__init__(problem.value)
        self.problem = problem
        self.error = error


class Runner(Protocol):
    """Sends packets through one connection of a driver."""

    async def send(self, packet: Packet) -> Sequence[Answer]:
        """Return an answer for each statement, in their order. Raises `Failure`, and then nothing of the packet is repeated here."""
        ...


class SyncRunner(Protocol):
    """The same, through a driver that is not asynchronous."""

    def send(self, packet: Packet) -> Sequence[Answer]:
        """See `Runner.send`."""
        ...


async def run(steps: Steps[T], runner: Runner) -> T:
    """Return what `steps` return, with the answers of `runner`; what it raises comes back in them. Cancelled, they do nothing more."""
    try:
        packet = next(steps)
        while True:
            try:
                answers = await runner.send(packet)
            except Failure as failure:
                packet = steps.throw(failure)
            else:
                packet = steps.send(answers)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # of a generator's end, which has no type
    finally:
        steps.close()


def run_now(steps: Steps[T], runner: SyncRunner) -> T:
    try:
        packet = next(steps)
        while True:
            try:
                answers = runner.send(packet)
            except Failure as failure:
                packet = steps.throw(failure)
            else:
                packet = steps.send(answers)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # as above
    finally:
        steps.close()


_PARTS: Final = re.compile(r"\{(?P<word>\w+)(?: (?P<argument>[^{}]+))?\}|(?<![:\w]):(?P<value>[a-z]\w*)")


class Placeholders(NamedTuple):
    """How a driver takes values."""

    mark: Callable[[int], str]
    """The placeholder of a value, by its place from 1."""
    repeats: bool
    """Whether a value that is named twice is given twice."""
    adapt: Callable[[Any], Any] = lambda value: value
    """Return the driver's argument for a value."""
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
