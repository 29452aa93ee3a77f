"""`ackwise store init`, `check` and `cleanup`: sets up and maintains a store; prints a table or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.cli.command import find_app, wait_for
from ackwise.plugin.cli.console import shown, to_stderr, to_stdout
from ackwise.plugin.operate.table import Table
from ackwise.plugin.registry import has_inbox, open_inbox, open_store

if TYPE_CHECKING:
    from ackwise.middleware.storage.claimstore import Maintained
    from ackwise.plugin.operate.explanation import Application


HELP: Final = "The tables of a store: set them up, check them, clean them."

#: The form of an app's name. Other texts may be broken URLs with passwords and are never repeated.
_APP: Final = re.compile(r"[\w.]+:\w+")

T = TypeVar("T")

_Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The store, such as [bold]postgresql://host/db[/bold], or the app that uses it, such as [bold]billing.worker:app[/bold].",
    ),
]
_Only = Annotated[
    Literal["claims", "inbox"] | None,
    typer.Option(help="Only the claims of Dedup, or only the inbox of Transactional. Default: both."),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def init(url: _Url, only: _Only = None, as_json: _AsJson = False) -> None:
    """Create the missing tables of a store, and upgrade old ones to this version. A second call changes nothing.

    Workers do this at their start, if their database user may create tables. If not, call it as a user who may.

    Exit code 0: workers can start. 2: the store can't be reached, does not allow it, or has another version of the tables.
    """
    parts = _parts(url, only)
    done = wait_for(_each(parts, lambda part: part.init()))
    _show(dict.fromkeys(done, "ready"), {name: {"ready": True} for name in done}, parts, as_json)


def check(url: _Url, only: _Only = None, as_json: _AsJson = False) -> None:
    """Print the faults and risks of a store, one sentence each with the remedy. Changes nothing.

    Exit code 0: none found. 1: some found. 2: the store can't be reached, or has another version of the tables.
    """
    parts = _parts(url, only)
    found = wait_for(_each(parts, lambda part: part.check()))
    said = {name: "\n".join(sentences) or "fine" for name, sentences in found.items()}
    _show(said, {name: {"findings": sentences} for name, sentences in found.items()}, parts, as_json)
    raise typer.Exit(int(any(found.values())))


def cleanup(url: _Url, only: _Only = None, as_json: _AsJson = False) -> None:
    """Delete expired records of a store, in small steps. Workers may keep running.

    Exit code 0: done. 2: the store can't be reached, does not allow it, was never set up, or has another version of the tables.
    """
    parts = _parts(url, only)
    with _working("deleting expired records"):
        deleted = wait_for(_each(parts, lambda part: part.cleanup()))
    said = {name: f"{count} records deleted" for name, count in deleted.items()}
    _show(said, {name: {"deleted": count} for name, count in deleted.items()}, parts, as_json)


def app_of(url: str) -> Application | None:
    """Return the app if `url` is the name of one, otherwise `None`. Raises `ConfigurationError`."""
    return find_app(url) if _APP.fullmatch(url) else None


def _parts(url: str, only: str | None) -> dict[str, Maintained]:
    """Return the parts to maintain, by name. Raises `ConfigurationError`."""
    if _APP.fullmatch(url):
        name, opened = _of_app(url)
        if only not in (None, name):
            raise ConfigurationError(f"the app {url} keeps no {only}, only its {name}; leave out --only")
        return {name: as_maintained(opened)}
    wanted = [only] if only else ["claims", "inbox"] if has_inbox(url) else ["claims"]
    return {name: as_maintained(_opened(name, url, alone=len(wanted) == 1)) for name in wanted}


def _of_app(target: str) -> tuple[str, object]:
    """Return the store that an app uses; so a command line needs no password."""
    from ackwise.middleware.policies.policies import Transactional

    policy = find_app(target).group().dedup
    if policy is None:
        raise ConfigurationError(f"the app {target} uses neither Dedup nor Transactional, so it keeps nothing in a store")
    name, from_url = ("inbox", open_inbox) if isinstance(policy, Transactional) else ("claims", open_store)
    return name, from_url(policy.store) if isinstance(policy.store, str) else policy.store


def _opened(name: str, url: str, *, alone: bool) -> object:
    try:
        return open_store(url) if name == "claims" else open_inbox(url)
    except ConfigurationError as error:
        if alone or name == "claims":
            raise
        raise ConfigurationError(f"{error}; --only claims leaves the inbox out") from None


def as_maintained(opened: object) -> Maintained:
    """Return `opened` if it can be maintained. Raises `ConfigurationError` otherwise."""
    from ackwise.middleware.storage.claimstore import Maintained

    if isinstance(opened, Maintained):
        return opened
    kind = type(opened).__name__
    raise ConfigurationError(f"the {kind} has no init, check and cleanup; see its own distribution")


async def _each(parts: Mapping[str, Maintained], do: Callable[[Maintained], Awaitable[T]]) -> dict[str, T]:
    """Call `do` one after the other: the parts may share a database with a single writer."""
    return {name: await do(part) for name, part in parts.items()}


@contextmanager
def _working(doing: str) -> Iterator[None]:
    """Show a spinner if stderr is a terminal."""
    with to_stderr().status(doing):
        yield


def _show(said: Mapping[str, str], facts: Mapping[str, Any], parts: Mapping[str, Maintained], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    # A user who tries it must not believe that a table was created.
    nothing = {name: "nothing to do: each worker keeps them in its memory" for name, part in parts.items() if _is_memory(part)}
    cells = [(name, type(part).__name__, nothing.get(name, said[name])) for name, part in parts.items()]
    to_stdout().print(shown(Table("", ("part", "kept by", ""), cells), 1_000))


def _is_memory(part: Maintained) -> bool:
    return type(part).__module__ == "ackwise.stores.memory"
