"""The answer to `ackwise why`, for a terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ackwise.plugin.cli.console import new_table
from ackwise.spark.vocabulary import FLAG_MEANINGS, ExitCode, Flag
from ackwise.spark.why.answer import Answer
from ackwise.spark.why.sent import SentMessage
from ackwise.spark.why.story import Step, Story
from ackwise.spark.why.telling import iso, moment, rows, step_as_json, story_as_json

__all__ = ["show", "to_json"]

_STYLES = {ExitCode.CLEAN: "green", ExitCode.ANOMALIES: "red", ExitCode.INCONCLUSIVE: "yellow"}


#: The flags that another message is named beside.
_OF_ORDER: Final = Flag.OVERTAKEN | Flag.MAYBE_OVERTAKEN


def show(answer: Answer, console: Console) -> None:
    """Print the answer: of each message the verdict, the reason and what to do first, then its steps."""
    for sentence in answer.found:
        console.print(Text(sentence, style="dim"), soft_wrap=True)
    for message in answer.sent:
        console.print(Text(f"\n{message.message_id}: to {message.topic}", style="bold"), soft_wrap=True)
        _show_sent(message, console)
    for story in answer.stories:
        console.print(Text(f"\n{_title(story)}", style="bold"), soft_wrap=True)
        _show_story(story, console)
    for sentence in answer.missing:
        console.print(Text.assemble("\n", ("! ", "yellow"), sentence), soft_wrap=True)
    console.print(Text(f"\nas of {moment(answer.as_of)} UTC; times are those of each worker's clock", style="dim"), soft_wrap=True)


def to_json(answer: Answer) -> str:
    """One JSON object. Times are ISO 8601 in UTC."""
    facts = {
        "schema_version": 1,
        "asked": answer.asked,
        "as_of": iso(answer.as_of),
        "exit_code": int(answer.exit_code),
        "found": list(answer.found),
        "missing": list(answer.missing),
        "sent": [_sent(message) for message in answer.sent],
        "messages": [story_as_json(story) for story in answer.stories],
    }
    return json.dumps(facts, indent=2, ensure_ascii=False)


def _show_sent(message: SentMessage, console: Console) -> None:
    console.print(Text.assemble((message.state, _STYLES[message.exit_code]), f": {message.meaning}"), soft_wrap=True)
    for sentence in message.advice:
        console.print(Text(f"to do: {sentence}"), soft_wrap=True)
    console.print(_steps(message.steps))


def _show_story(story: Story, console: Console) -> None:
    console.print(Text.assemble((story.name, _STYLES[story.exit_code]), f": {story.meaning}"), soft_wrap=True)
    console.print(Text(f"why: {story.rule}"), soft_wrap=True)
    for flag in story.flags:
        by = f", by {story.place._replace(offset=story.overtaken_by)}" if flag in _OF_ORDER and story.overtaken_by is not None else ""
        console.print(Text(f"flag: {flag.name}, {FLAG_MEANINGS[flag]}{by}"), soft_wrap=True)
    for sentence in story.advice:
        console.print(Text(f"to do: {sentence}"), soft_wrap=True)
    if story.steps:
        console.print(_steps(story.steps))
    if story.others:
        console.print(Text("\nother records of its key"), soft_wrap=True)
        console.print(_others(story))


def _steps(steps: Sequence[Step]) -> Table:
    table = new_table("time (UTC)", "worker", "attempt", "what")
    for row in rows(steps):
        table.add_row(*map(Text, row))
    return table


def _others(story: Story) -> Table:
    table = new_table("record", "verdict", "flags", "last event", "at")
    for other in story.others:
        flags = " ".join(str(flag.name) for flag in other.flags)
        table.add_row(*(Text(cell) for cell in (str(other.place), other.verdict.name, flags, other.last_event, moment(other.last_at))))
    return table


def _title(story: Story) -> str:
    handler = f", handler {story.handler}" if story.handler else ""
    epoch = f", dedup epoch {story.epoch}" if story.epoch else ""
    return f"{story.place}: group {story.group}{handler}{epoch}"


def _sent(message: SentMessage) -> dict[str, Any]:
    return {
        "cluster": message.cluster,
        "message_id": message.message_id,
        "topic": message.topic,
        "places": [place._asdict() for place in message.places],
        "state": message.state,
        "meaning": message.meaning,
        "to_do": message.advice,
        "steps": [step_as_json(step) for step in message.steps],
    }
