"""The page that tells what became of one message, as `ackwise why` has it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.operate.groupstatus import GROUP
from ackwise.plugin.operate.table import Cell, Table, Value, link
from ackwise.plugin.web.lastseen import SeenByName
from ackwise.plugin.web.pages import Leaf, Named, Page
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.vocabulary import FLAG_MEANINGS, ExitCode, Verdict

if TYPE_CHECKING:
    from ackwise.spark.why.answer import Answer
    from ackwise.spark.why.sent import SentMessage
    from ackwise.spark.why.story import OtherRecord, Step, Story

__all__ = ["NO_EVENTS", "story_link", "story_page"]

#: The sentence in the place of what only events can tell.
NO_EVENTS: Final = "no folder of events is known, so there is no story to show: give Events a folder, or --events DIR to ackwise ui"

_TONES: Final = {ExitCode.CLEAN: "good", ExitCode.ANOMALIES: "bad", ExitCode.INCONCLUSIVE: "doubt"}

_DEAD: Final = (Verdict.DEAD_LETTERED, Verdict.SUPPRESSED_BY_DEAD)


def story_page(events: Sequence[Path], config: ReconcileConfig, named: Named) -> Page:
    """The page at `/story?message=`."""
    seen = SeenByName(lambda message: asyncio.to_thread(_ask, message, events, config))

    async def answer(query: Mapping[str, str]) -> Leaf:
        message = query.get("message", "").strip()
        if not events:
            return Leaf("Stories", "sentence.html", {"sentence": NO_EVENTS, "tone": "doubt"})
        if not message:
            return Leaf("Stories", "story.html", {"message": ""})
        sight = await seen.now(message)
        values: dict[str, Any] = {"message": message, "problem": sight.problem, "answer": sight.value, "same": named.story(message)}
        if sight.value is not None:
            parts = [*map(_sent, sight.value.sent), *(_story(story, named) for story in sight.value.stories)]
            values |= {"parts": parts, "as_of": _time(sight.value.as_of)}
        return Leaf("Story", "story.html", values)

    return Page("/story", answer, "Stories")


def story_link(message: str) -> Cell:
    """A link to the story of `message`, a `topic/partition/offset`."""
    return link(f"/story?message={quote(message, safe='')}", message)


def _ask(message: str, events: Sequence[Path], config: ReconcileConfig) -> Answer:
    try:
        from ackwise.spark.why.asking import ask
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"stories need {error.name}, which is not installed: pip install 'ackwise[events]'") from error
    return ask(message, events, config)


def _sent(message: SentMessage) -> dict[str, Any]:
    return {
        "title": f"{message.message_id}: to {message.topic}",
        "tone": _TONES[message.exit_code],
        "verdict": message.state,
        "meaning": message.meaning,
        "sentences": [[f"to do: {sentence}" for sentence in message.advice]],
        "steps": _steps(message.steps),
        "others": _others(()),
        "letters": "",
    }


def _story(story: Story, named: Named) -> dict[str, Any]:
    words = ("dlq", "list", GROUP, "--letters", *(("--handler", story.handler) if story.handler else ()))
    return {
        "title": f"{story.place}: group {story.group}{f', handler {story.handler}' if story.handler else ''}",
        "tone": _TONES[story.exit_code],
        "verdict": story.name,
        "meaning": story.meaning,
        "sentences": [
            [f"why: {story.rule}"],
            [f"flag: {flag.name}, {FLAG_MEANINGS[flag]}" for flag in story.flags],
            [f"to do: {sentence}" for sentence in story.advice],
        ],
        "steps": _steps(story.steps),
        "others": _others(story.others),
        "letters": named.command(words) if story.verdict in _DEAD else "",
    }


def _steps(steps: Sequence[Step]) -> Table:
    rows = [(_time(step.at), step.worker, "" if step.attempt is None else step.attempt, Cell(step.what)) for step in steps]
    return Table("What happened", ("time (UTC)", "worker", "attempt", "what"), rows)


def _others(others: Sequence[OtherRecord]) -> Table:
    rows: list[tuple[Value, ...]] = [(story_link(str(each.place)), *_other(each)) for each in others]
    return Table("Other records of its key", ("record", "verdict", "flags", "last event", "at"), rows)


def _other(other: OtherRecord) -> tuple[str, ...]:
    flags = " ".join(str(flag.name) for flag in other.flags)
    return other.verdict.name, flags, other.last_event, _time(other.last_at)


def _time(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
