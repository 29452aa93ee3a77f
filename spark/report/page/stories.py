"""The stories of the worst messages, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from ackwise.spark.report.page.data import StepRow, StoryRow
from ackwise.spark.report.page.tone import Tone
from ackwise.spark.report.page.words import instant_with_millis
from ackwise.spark.vocabulary import ANOMALIES, Flag
from ackwise.spark.why.story import Step, Story

__all__ = ["stories_data"]


def stories_data(stories: Sequence[Story]) -> list[StoryRow]:
    """Return one row for each story, in their order."""
    return [_row(story) for story in stories]


def _row(story: Story) -> StoryRow:
    name = "GAP" if story.verdict is None else story.verdict.name
    tone: Tone = "bad" if story.verdict in ANOMALIES or Flag.COMMITTED_PAST in story.flags else "doubt"
    about = ", ".join(part for part in (story.group, story.handler, *(f"+{flag.name}" for flag in story.flags)) if part)
    return StoryRow(name, tone, str(story.place), about, story.rule, [_step(step) for step in story.steps])


def _step(step: Step) -> StepRow:
    return StepRow(instant_with_millis(step.at), step.worker, "" if step.attempt is None else str(step.attempt), step.what)
