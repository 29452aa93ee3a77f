"""`ackwise store init`, `check` and `cleanup`: what a store keeps, set up and looked after, as a table or as JSON."""

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


HELP: Final = "What a store keeps: set it up, examine it, clean it."

#: Nothing else is taken for an app: what is no URL after all may hold a password, and is not repeated.
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
    typer.Option(help="The claims of Dedup alone, or the inbox of Transactional alone. Default: what the store has of them."),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def init(url: _Url, only: _Only = None, as_json: _AsJson = False) -> None:
    """Create what is missing in a store, and bring what is old to this version. A second call changes nothing.

    Workers do it too, if they may. Call it where they may not, as a user of the database who may create tables.

    Exit code 0: workers can start. 2: the store can't be reached, does not allow it, or has another version of the tables.
    """
    parts = _parts(url, only)
    done = wait_for(_each(parts, lambda part: part.init()))
    _show(dict.fromkeys(done, "ready"), {name: {"ready": True} for name in done}, parts, as_json)


def check(url: _Url, only: _Only = None, as_json: _AsJson = False) -> None:
    """Say what is wrong or unwise about a store, a sentence each with what to do. Changes nothing.

    Exit code 0: all is well. 1: something is not. 2: the store can't be reached, or has another version of the tables.
    """
    parts = _parts(url, only)
    found = wait_for(_each(parts, lambda part: part.check()))
    said = {name: "\n".join(sentences) or "fine" for name, sentences in found.items()}
    _show(said, {name: {"findings": sentences} for name, sentences in found.items()}, parts, as_json)
    raise typer.Exit(int(any(found.values())))


def cleanup(url: _Url, only: _Only = None, as_json: _AsJson = False) -> None:
    """Delete what a store has to remember no longer, in small steps beside running workers.

    Exit code 0: done. 2: the store can't be reached, does not allow it, was never set up, or has another version of the tables.
    """
    parts = _parts(url, only)
    with _working("deleting what is forgotten"):
        deleted = wait_for(_each(parts, lambda part: part.cleanup()))
    said = {name: f"{count} records deleted" for name, count in deleted.items()}
    _show(said, {name: {"deleted": count} for name, count in deleted.items()}, parts, as_json)


def app_of(url: str) -> Application | None:
    """The app that is named where a URL may stand too; `None` for anything else. Raises `ConfigurationError`."""
    return find_app(url) if _APP.fullmatch(url) else None


def _parts(url: str, only: str | None) -> dict[str, Maintained]:
    """What is to be looked after, by name. Raises `ConfigurationError`."""
    if _APP.fullmatch(url):
        name, opened = _of_app(url)
        if only not in (None, name):
            raise ConfigurationError(f"the app {url} keeps no {only}, only its {name}; leave out --only")
        return {name: as_maintained(opened)}
    wanted = [only] if only else ["claims", "inbox"] if has_inbox(url) else ["claims"]
    return {name: as_maintained(_opened(name, url, alone=len(wanted) == 1)) for name in wanted}


def _of_app(target: str) -> tuple[str, object]:
    """The one store that an app uses, so that no password has to be on a command line."""
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
    """What can be set up and kept tidy. Raises `ConfigurationError` for anything else."""
    from ackwise.middleware.storage.claimstore import Maintained

    if isinstance(opened, Maintained):
        return opened
    kind = type(opened).__name__
    raise ConfigurationError(f"the {kind} has no init, check and cleanup to call; see what its own distribution offers")


async def _each(parts: Mapping[str, Maintained], do: Callable[[Maintained], Awaitable[T]]) -> dict[str, T]:
    """One after the other, since they may share a database that has one writer."""
    return {name: await do(part) for name, part in parts.items()}


@contextmanager
def _working(doing: str) -> Iterator[None]:
    """A sign of life on stderr while it takes, where stderr is a terminal."""
    with to_stderr().status(doing):
        yield


def _show(said: Mapping[str, str], facts: Mapping[str, Any], parts: Mapping[str, Maintained], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    # A user who tries it out must not believe that something was made.
    nothing = {name: "nothing to do: each worker keeps them in its memory" for name, part in parts.items() if _is_memory(part)}
    cells = [(name, type(part).__name__, nothing.get(name, said[name])) for name, part in parts.items()]
    to_stdout().print(shown(Table("", ("part", "kept by", ""), cells), 1_000))


def _is_memory(part: Maintained) -> bool:
    return type(part).__module__ == "ackwise.stores.memory"
