"""`ackwise dlq …`: dead letters listed by their causes, looked at, sent again, and marked."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.cli import letteroptions as options
from ackwise.plugin.cli import letterview as view
from ackwise.plugin.cli.console import new_table, to_stderr, to_stdout
from ackwise.plugin.cli.waiting import wait_for

if TYPE_CHECKING:
    from ackwise.plugin.deadletters.causes import Causes
    from ackwise.plugin.deadletters.letter import Letter
    from ackwise.plugin.deadletters.letterstate import LetterState
    from ackwise.plugin.deadletters.place import Place
    from ackwise.plugin.deadletters.selection import Selection

__all__ = ["HELP", "show", "show_list"]

HELP: Final = "Dead letters: list them by their causes, look at one, send them again, or mark them."


def show_list(
    whose: options.Whose,
    ids: options.Ids = None,
    letters: Annotated[bool, typer.Option("--letters", help="List letters one by one, the newest first, instead of causes.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="With --letters or --json: letters at most.")] = 100,
    cause: options.CauseOption = None,
    handler: options.HandlerOption = None,
    topic: options.TopicOption = None,
    key: options.KeyOption = None,
    since: options.Since = None,
    until: options.Until = None,
    brokers: options.Brokers = None,
    dlq: options.Dlq = None,
    as_json: options.AsJson = False,
) -> None:
    """List dead letters by what they died of: reason, exception, its place, handler and topic, with counts, ages and the newest letter.

    Open letters wait for somebody; redriven and dropped ones are counted apart. The whole topic is read, in no group; values
    are not shown.

    Exit code 0: no letter is open. 1: some are. 2: there is no such topic, or the brokers do not answer.
    """
    selection = options.selection_of(
        cause=cause, handler=handler, topic=topic, key=key, since=since, until=until, ids=ids or (), again=True
    )
    place = options.place_of(whose, brokers, dlq)
    found, unreadable = wait_for(_list(place, selection, limit if letters or as_json else 0))
    opened, foreign = found.count("open"), found.count("foreign")
    if as_json:
        each = [view.letter_facts(*letter) for letter in found.newest]
        typer.echo(
            json.dumps(
                {"topic": place.names.dead_letter, "open": opened, "foreign": foreign, "causes": view.cause_facts(found), "letters": each}
            )
        )
    elif not found.kinds:
        to_stdout().print("no dead letters")
    else:
        to_stdout().print(view.letters_table(found) if letters else view.causes_table(found))
    if foreign:
        to_stderr().print(f"{foreign} records were not written by this group, or can't be read; they do not count as open", soft_wrap=True)
    if unreadable:
        to_stderr().print(f"{unreadable} records of {place.state_topic} can't be read, so some states may be missing", soft_wrap=True)
    raise typer.Exit(int(bool(opened)))


def show(
    whose: options.Whose,
    letter: Annotated[str, typer.Argument(metavar="LETTER", help="PARTITION/OFFSET of the letter, such as [bold]0/17[/bold].")],
    traceback: Annotated[bool, typer.Option("--full-traceback", help="Show the traceback, too.")] = False,
    brokers: options.Brokers = None,
    dlq: options.Dlq = None,
    as_json: options.AsJson = False,
) -> None:
    """Show one dead letter: why it is dead, its headers and its value, and the command that tells its story.

    With an app the value is shown as its handler would get it; otherwise as a text, or in hex digits. Long values are cut.

    Exit code 0: here it is. 2: there is no such letter, or the brokers do not answer.
    """
    partition, offset = options.id_of(letter)
    place = options.place_of(whose, brokers, dlq)
    found = wait_for(_letter(place, partition, offset))
    if found is None:
        raise ConfigurationError(f"there is no letter {letter} in {place.names.dead_letter!r}; ackwise dlq list --letters shows them")
    facts = view.letter_facts(*found) | _contents(place, found[0], with_traceback=traceback or as_json)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    table = new_table("", "")
    for name, given in facts.items():
        if given not in (None, "", [], {}):
            text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            lines = text.splitlines() if name == "traceback" else [text]
            table.add_row(name.replace("_", " "), "\n".join(view.shown(line, 10_000) for line in lines))
    to_stdout().print(table)


async def _list(place: Place, selection: Selection, most: int) -> tuple[Causes, int]:
    """What was found, and how many states can't be read."""
    from ackwise.plugin.deadletters.causes import Causes
    from ackwise.plugin.deadletters.reading import reading_letters

    causes = Causes(most)
    async with reading_letters(place) as reader:
        states = await reader.states()
        with _progress("letters", reader.number) as on_progress:
            async for letter in reader.letters(on_progress):
                if selection.takes(letter, states.of(letter)):
                    causes.add(letter, states)
    return causes, states.unreadable


async def _letter(place: Place, partition: int, offset: int) -> tuple[Letter, LetterState | None] | None:
    from ackwise.plugin.deadletters.reading import reading_letters

    async with reading_letters(place) as reader:
        states, letter = await reader.states(), await reader.letter(partition, offset)
    return None if letter is None else (letter, states.of(letter))


def _contents(place: Place, letter: Letter, *, with_traceback: bool) -> dict[str, Any]:
    """What else is in a letter, and what to call next."""
    delivery, fields = letter.delivery, letter.fields
    return {
        "message_text": fields.get("ackwise-error-message", ""),
        "line": letter.line,
        "traceback": fields.get("ackwise-error-traceback", "") if with_traceback else "",
        "headers": [[name, view.bytes_text(value)] for name, value in delivery.headers],
        "value_bytes": None if delivery.value is None else len(delivery.value),
        "value": view.bytes_text(delivery.value),
        "decoded": _decoded(place, letter),
        "story": f"ackwise why {shlex.quote(str(delivery.origin))} {_events(place)}",
    }


def _events(place: Place) -> str:
    """The folder of the app's events, or what stands for it."""
    policy = None if place.app is None else place.app.events
    return shlex.quote(policy.sink) if policy is not None and isinstance(policy.sink, str) else "EVENTS"


def _decoded(place: Place, letter: Letter) -> str | None:
    """The value as its handler gets it, or why it can't be decoded; nothing where nobody knows how."""
    agents = () if place.app is None else place.app.agents
    agent = next((agent for agent in agents if agent.name == letter.handler), None)
    if agent is None or "value" in letter.dropped:
        return None
    try:
        text = repr(agent.decode(letter.delivery.value))
    except Exception as error:  # noqa: BLE001  # a decoder is the user's code, and this letter may be dead of it
        return f"{type(error).__name__}: {error}"
    return text if len(text) <= _DECODED else f"{text[:_DECODED]} … {len(text) - _DECODED} more"


#: Characters of a decoded value that are shown.
_DECODED: Final = 4000


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, where somebody looks on."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = to_stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)
