"""Options of the commands about dead letters: the group, and the selection of dead letters."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.cli.command import find_app

if TYPE_CHECKING:
    from ackwise.plugin.operate.deadletter import Selection
    from ackwise.plugin.operate.deadlettertopics import Place


Whose = Annotated[
    str, typer.Argument(metavar="APP-or-GROUP", help="The app, such as [bold]billing.worker:app[/bold], or the name of a consumer group.")
]
WhoseApp = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app, such as [bold]billing.worker:app[/bold].")]
NewFile = Annotated[Path, typer.Argument(metavar="FILE", help="A new file, such as [bold]letters.jsonl[/bold].", show_default=False)]
OldFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A file that [bold]dlq export[/bold] wrote.", show_default=False, readable=False)
]
Again = Annotated[bool, typer.Option("--again", help="Include dead letters that were redriven or dropped before.")]
Expired = Annotated[
    bool, typer.Option("--expired", help="Include messages that expired before they ran. They run now, however old they are.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@dataclass(frozen=True)
class Letters:
    """The selected dead letters. Default: all."""

    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LETTER]...", help="PARTITION/OFFSET of dead letters, such as [bold]0/17[/bold]. Default: all."),
    ] = None
    cause: Annotated[
        str | None, typer.Option(metavar="CAUSE", help="Only this cause, as [bold]dlq list[/bold] shows it, or its first digits.")
    ] = None
    handler: Annotated[str | None, typer.Option(metavar="NAME", help="Only messages of this handler.")] = None
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only messages of this origin topic.")] = None
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Only this key of the record; 0x and hex digits for bytes.")] = None
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only dead letters from this time on: ISO 8601, or a duration back from now.")
    ] = None
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only dead letters before this time: ISO 8601, or a duration back from now.")
    ] = None

    def selection(self, *, again: bool) -> Selection:
        """Return the selection; `again` includes dead letters that were redriven or dropped. Raises `ConfigurationError`."""
        from ackwise.plugin.operate.deadletter import Selection

        if self.cause is not None and re.fullmatch(r"[0-9a-f]{2,8}", self.cause) is None:
            raise ConfigurationError(f"--cause is {self.cause!r}; write 2 to 8 of its hex digits, as ackwise dlq list shows them")
        since_ms, until_ms = _time(self.since, "--since"), _time(self.until, "--until")
        ids = frozenset(map(id_of, self.ids or ()))
        return Selection(self.cause, self.handler, self.topic, _key(self.key), since_ms, until_ms, ids, again)


@dataclass(frozen=True)
class Where:
    """The brokers and topic of a group's dead letters; an app has its own."""

    brokers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="With a GROUP: its brokers. Default: the configured brokers.")
    ] = None
    dlq: Annotated[str | None, typer.Option(metavar="TOPIC", help="With a GROUP: the topic of its dead letters. Default: GROUP.dlq.")] = (
        None
    )

    def place(self, whose: str) -> Place:
        """Return the place of the dead letters of this app or group. Raises `ConfigurationError`."""
        from ackwise.plugin.operate.deadlettertopics import place_of_group

        if ":" in whose or whose.endswith(".py"):
            if self.brokers is not None or self.dlq is not None:
                raise ConfigurationError(f"{whose} is an app with its own brokers and topics; leave --brokers and --dlq out")
            return app_place(whose)
        return place_of_group(_settings(whose, self.brokers), self.dlq)


_ID: Final = re.compile(r"(\d{1,10})/(\d{1,19})")


def app_place(target: str) -> Place:
    """Return the place of an app's dead letters. Raises `ConfigurationError`."""
    from ackwise.plugin.operate.deadlettertopics import place_of_app

    return place_of_app(find_app(target).group())


def _settings(group: str, brokers: str | None) -> Any:
    from ackwise.plugin.settings.config import read_config
    from ackwise.plugin.settings.hostsettings import HostSettings

    config = read_config()
    like = {name: given.value for name, given in config.of().items() if name in ("create_topics", "topic_names")}
    return config.without_app(HostSettings, brokers, group=group, **like)


def id_of(text: str) -> tuple[int, int]:
    """Return partition and offset of a dead letter. Raises `ConfigurationError`."""
    if (found := _ID.fullmatch(text)) is None:
        raise ConfigurationError(f"{text!r} is not a dead letter; write PARTITION/OFFSET in the dead-letter topic, such as 0/17")
    return int(found[1]), int(found[2])


def _key(text: str | None) -> bytes | None:
    if text is None or not text.startswith("0x"):
        return None if text is None else text.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(text[2:])
    except ValueError:
        raise ConfigurationError(f"--key is {text!r}; after 0x only hex digits are allowed") from None


def _time(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    with suppress(ConfigurationError):
        return round((time.time() - parse_duration(text)) * 1000)
    try:
        found = datetime.fromisoformat(text)
        return round((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"{option} is {text!r}, which is neither a time nor a duration; write 2026-01-31T12:00:00Z or 1d"
        ) from None
