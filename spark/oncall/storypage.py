"""The page that tells what became of one message, as `ackwise why` has it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.status.standing import GROUP
from ackwise.plugin.ui.html import Html, alert, box, command, link, listed, table, tag, told
from ackwise.plugin.ui.named import Named
from ackwise.plugin.ui.page import Leaf, Page
from ackwise.plugin.ui.seen import SeenByName, Sight
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.vocabulary import FLAG_MEANINGS, ExitCode, Verdict

if TYPE_CHECKING:
    from ackwise.spark.why.answer import Answer
    from ackwise.spark.why.sent import SentMessage
    from ackwise.spark.why.story import OtherRecord, Step, Story

__all__ = ["NO_EVENTS", "story_link", "story_page"]

#: The sentence in the place of what only events can tell.
NO_EVENTS: Final = "no folder of events is known, so no story can be told: give Events a folder, or --events DIR to ackwise ui"

_TONES: Final = {ExitCode.CLEAN: "good", ExitCode.ANOMALIES: "bad", ExitCode.INCONCLUSIVE: "doubt"}

_DEAD: Final = (Verdict.DEAD_LETTERED, Verdict.SUPPRESSED_BY_DEAD)


def story_page(events: Sequence[Path], config: ReconcileConfig, named: Named) -> Page:
    """The page at `/story?message=`."""
    seen = SeenByName(lambda message: asyncio.to_thread(_ask, message, events, config))

    async def answer(query: Mapping[str, str]) -> Leaf:
        message = query.get("message", "").strip()
        if not events:
            return Leaf("Stories", [alert(NO_EVENTS, "doubt")])
        if not message:
            return Leaf("Stories", [_form("")])
        return Leaf("Story", [_form(message), *_parts(await seen.now(message), message, named)])

    return Page("/story", answer, "Stories")


def story_link(message: str) -> Html:
    """A link to the story of `message`, a `topic/partition/offset`."""
    return link(f"/story?message={quote(message, safe='')}", message)


def _ask(message: str, events: Sequence[Path], config: ReconcileConfig) -> Answer:
    try:
        from ackwise.spark.why.asking import ask
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"stories need {error.name}, which is not installed: pip install 'ackwise[events]'") from error
    return ask(message, events, config)


def _form(message: str) -> Html:
    label = tag("label", "Its key or message id, or topic/partition/offset", for_="message", class_="muted")
    field = Html(tag("input", id="message", name="message", value=message, required="required").removesuffix("</input>"))
    return tag("form", label, field, tag("button", "Tell"), action="/story", method="get")


def _parts(sight: Sight[Answer], message: str, named: Named) -> Iterator[Html]:
    if sight.problem:
        yield alert(sight.problem, "doubt")
    if (answer := sight.value) is not None:
        yield listed(list(answer.found))
        for each in answer.sent:
            yield box(f"{each.message_id}: to {each.topic}", *_sent(each))
        for story in answer.stories:
            yield box(_title(story), *_story(story), *_letters(story, named))
        for sentence in answer.missing:
            yield alert(sentence, "doubt")
        yield tag("p", f"as of {_time(answer.as_of)} UTC; times are those of each worker's clock", class_="muted")
    yield tag("p", "The same on a terminal: ", command(named.story(message)), class_="muted")


def _sent(message: SentMessage) -> Iterator[Html]:
    yield tag("p", tag("strong", message.state, class_=_TONES[message.exit_code]), told(f": {message.meaning}", 1000))
    yield listed([f"to do: {sentence}" for sentence in message.advice])
    yield _steps(message.steps)


def _story(story: Story) -> Iterator[Html]:
    verdict = "GAP" if story.verdict is None else story.verdict.name
    yield tag("p", tag("strong", verdict, class_=_TONES[story.exit_code]), told(f": {story.meaning}", 1000))
    yield tag("p", told(f"why: {story.rule}", 1000))
    yield listed([f"flag: {flag.name}, {FLAG_MEANINGS[flag]}" for flag in story.flags])
    yield listed([told(f"to do: {sentence}", 1000) for sentence in story.advice])
    yield _steps(story.steps)
    if story.others:
        rows = [(story_link(str(each.place)), *_other(each)) for each in story.others]
        yield table("Other records of its key", ("record", "verdict", "flags", "last event", "at"), rows)


def _letters(story: Story, named: Named) -> Iterator[Html]:
    """The command that lists the dead letters among which its own is, or that of its key."""
    if story.verdict in _DEAD:
        words = ("dlq", "list", GROUP, "--letters", *(("--handler", story.handler) if story.handler else ()))
        yield tag("p", "the dead letters of its handler: ", command(named.command(words)))


def _steps(steps: Sequence[Step]) -> Html:
    rows = [(_time(step.at), step.worker, "" if step.attempt is None else str(step.attempt), told(step.what, 1000)) for step in steps]
    return table("What happened", ("time (UTC)", "worker", "attempt", "what"), rows)


def _other(other: OtherRecord) -> tuple[str, ...]:
    flags = " ".join(str(flag.name) for flag in other.flags)
    return other.verdict.name, flags, other.last_event, _time(other.last_at)


def _title(story: Story) -> str:
    return f"{story.place}: group {story.group}{f', handler {story.handler}' if story.handler else ''}"


def _time(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
