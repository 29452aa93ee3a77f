"""The answer to `ackwise why`, for a terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ackwise.plugin.cli.console import new_table
from ackwise.spark.instants import as_datetime
from ackwise.spark.vocabulary import FLAG_MEANINGS, ExitCode
from ackwise.spark.why.answer import Answer
from ackwise.spark.why.sent import SentMessage
from ackwise.spark.why.story import OtherRecord, Step, Story

__all__ = ["show", "to_json"]

_STYLES = {ExitCode.CLEAN: "green", ExitCode.ANOMALIES: "red", ExitCode.INCONCLUSIVE: "yellow"}


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
    console.print(Text(f"\nas of {_time(answer.as_of)} UTC; times are those of each worker's clock", style="dim"), soft_wrap=True)


def to_json(answer: Answer) -> str:
    """One JSON object. Times are ISO 8601 in UTC."""
    facts = {
        "schema_version": 1,
        "asked": answer.asked,
        "as_of": _iso(answer.as_of),
        "exit_code": int(answer.exit_code),
        "found": list(answer.found),
        "missing": list(answer.missing),
        "sent": [_sent(message) for message in answer.sent],
        "messages": [_facts(story) for story in answer.stories],
    }
    return json.dumps(facts, indent=2, ensure_ascii=False)


def _show_sent(message: SentMessage, console: Console) -> None:
    console.print(Text.assemble((message.state, _STYLES[message.exit_code]), f": {message.meaning}"), soft_wrap=True)
    for sentence in message.advice:
        console.print(Text(f"to do: {sentence}"), soft_wrap=True)
    console.print(_steps(message.steps))


def _show_story(story: Story, console: Console) -> None:
    verdict = "GAP" if story.verdict is None else story.verdict.name
    console.print(Text.assemble((verdict, _STYLES[story.exit_code]), f": {story.meaning}"), soft_wrap=True)
    console.print(Text(f"why: {story.rule}"), soft_wrap=True)
    for flag in story.flags:
        console.print(Text(f"flag: {flag.name}, {FLAG_MEANINGS[flag]}"), soft_wrap=True)
    for sentence in story.advice:
        console.print(Text(f"to do: {sentence}"), soft_wrap=True)
    if story.steps:
        console.print(_steps(story.steps))
    if story.others:
        console.print(Text("\nother records of its key"), soft_wrap=True)
        console.print(_others(story))


def _steps(steps: Sequence[Step]) -> Table:
    table = new_table("time (UTC)", "worker", "attempt", "what")
    for step in steps:
        table.add_row(*(Text(cell) for cell in (_time(step.at), step.worker, "" if step.attempt is None else str(step.attempt), step.what)))
    return table


def _others(story: Story) -> Table:
    table = new_table("record", "verdict", "flags", "last event", "at")
    for other in story.others:
        flags = " ".join(str(flag.name) for flag in other.flags)
        table.add_row(*(Text(cell) for cell in (str(other.place), other.verdict.name, flags, other.last_event, _time(other.last_at))))
    return table


def _title(story: Story) -> str:
    handler = f", handler {story.handler}" if story.handler else ""
    epoch = f", dedup epoch {story.epoch}" if story.epoch else ""
    return f"{story.place}: group {story.group}{handler}{epoch}"


def _facts(story: Story) -> dict[str, Any]:
    return {
        "cluster": story.cluster,
        "group": story.group,
        "handler": story.handler,
        "dedup_epoch": story.epoch,
        "topic": story.place.topic,
        "topic_id": story.topic_id,
        "partition": story.place.partition,
        "offset": story.place.offset,
        "dedup_hash": story.dedup_hash,
        "verdict": "GAP" if story.verdict is None else story.verdict.name,
        "logical_verdict": None if story.logical is None else story.logical.name,
        "flags": [flag.name for flag in story.flags],
        "meaning": story.meaning,
        "rule": story.rule,
        "to_do": story.advice,
        "steps": [_step(step) for step in story.steps],
        "others": [_other(other) for other in story.others],
    }


def _sent(message: SentMessage) -> dict[str, Any]:
    return {
        "cluster": message.cluster,
        "message_id": message.message_id,
        "topic": message.topic,
        "places": [place._asdict() for place in message.places],
        "state": message.state,
        "meaning": message.meaning,
        "to_do": message.advice,
        "steps": [_step(step) for step in message.steps],
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "at": _iso(step.at),
        "writer": f"{step.writer & (2**64 - 1):016x}",
        "worker": step.worker,
        "attempt": step.attempt,
        "event": step.event or None,
        "what": step.what,
    }


def _other(other: OtherRecord) -> dict[str, Any]:
    return {
        "topic": other.place.topic,
        "partition": other.place.partition,
        "offset": other.place.offset,
        "verdict": other.verdict.name,
        "flags": [flag.name for flag in other.flags],
        "last_event": other.last_event,
        "last_at": _iso(other.last_at),
    }


def _time(micros: int) -> str:
    return as_datetime(micros).isoformat(" ", "milliseconds").removesuffix("+00:00")


def _iso(micros: int) -> str:
    return as_datetime(micros).isoformat(timespec="microseconds").replace("+00:00", "Z")
