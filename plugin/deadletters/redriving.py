"""Redriving: letters are chosen, judged, made whole and sent again, in portions that can be repeated; or marked, or copied to a file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.deadletters.letter import Letter
from ackwise.plugin.deadletters.letterfile import LetterFile
from ackwise.plugin.deadletters.letterstate import LetterState, States
from ackwise.plugin.deadletters.originals import Originals
from ackwise.plugin.deadletters.place import Place
from ackwise.plugin.deadletters.reading import reading_letters
from ackwise.plugin.deadletters.redrive import RedriveFate, Redriven, Replay, refusal
from ackwise.plugin.deadletters.selection import Selection
from ackwise.plugin.deadletters.sender import Sender
from ackwise.plugin.deadletters.statetopic import ensure_state_topic, write_states
from ackwise.plugin.group.publisher import KafkaPublisher
from ackwise.plugin.group.topicnames import TopicNames
from ackwise.plugin.repair.pace import Pace

__all__ = ["drop", "export", "redrive"]

#: Letters that are marked together.
_MARKED: Final = 500


async def redrive(
    place: Place,
    selection: Selection,
    *,
    execute: bool,
    source: Callable[[], AsyncIterator[Letter]] | None = None,
    rate: float = 100.0,
    stop: asyncio.Event | None = None,
    on_total: Callable[[int], None] = lambda letters: None,
    on_progress: Callable[[int], None] = lambda letters: None,
) -> Redriven:
    """Send again the letters that `selection` takes, at most `rate` per second; without `execute` only look what would be sent.

    They are those of the dead-letter topic, or of `source`. After `stop` the portion at hand is finished. `on_total` hears of
    how many offsets are read, `on_progress` of those that are done. Raises `AckwiseError`: what was noted is done, and calling
    it again goes on.
    """
    if (app := place.app) is None:
        raise ConfigurationError(
            f"{place.group!r} is a group, and only its app says whether the handlers of its letters are still there; give MODULE:APP"
        )
    handlers, result, pace = {agent.name for agent in app.agents}, Redriven(), Pace(rate)
    async with AsyncExitStack() as opened:
        reader = await opened.enter_async_context(reading_letters(place))
        originals, states = reader.originals(), await reader.states()
        sender = Sender(place, app)
        result.recorded = sender.records
        if execute:
            await opened.enter_async_context(sender.opened())
        if source is None:
            on_total(reader.number)
        letters = reader.letters(on_progress) if source is None else source()
        async for portion in _portions(letters, selection, states, pace.portion):
            replays = [await _judged(letter, place.names, handlers, originals, states) for letter in portion]
            if execute:
                await sender.send(replays)
            result.add(replays)
            if stop is not None and stop.is_set():
                result.stopped = True
                break
            await pace.wait(sum(each.fate is RedriveFate.SENT for each in replays), stop)
    return result


async def drop(
    place: Place, selection: Selection, *, execute: bool, stop: asyncio.Event | None = None, clock: Callable[[], float] = time.time
) -> tuple[int, bool]:
    """Mark the letters that `selection` takes as dropped; without `execute` only count them. Nothing is deleted.

    Returns how many, and whether `stop` ended it before the end. `clock`: epoch seconds. Raises `AckwiseError`.
    """
    publisher, number = KafkaPublisher(place.settings), 0
    async with AsyncExitStack() as opened:
        reader = await opened.enter_async_context(reading_letters(place))
        states = await reader.states()
        if execute:
            await ensure_state_topic(place)
            opened.push_async_callback(publisher.stop)
            await publisher.start()
        async for portion in _portions(reader.letters(), selection, states, _MARKED):
            if execute:
                now_ms = round(clock() * 1000)
                await write_states(publisher, place, [(letter.id, _dropped(letter, states, now_ms)) for letter in portion])
            number += len(portion)
            if stop is not None and stop.is_set():
                return number, True
    return number, False


async def export(
    place: Place, selection: Selection, path: Path, *, on_total: Callable[[int], None], on_progress: Callable[[int], None]
) -> int:
    """Write the letters that `selection` takes to a new file. Returns how many. Raises `AckwiseError`, and leaves no file then."""
    async with reading_letters(place) as reader:
        states = await reader.states()
        on_total(reader.number)
        with LetterFile(path) as file:
            async for letter in reader.letters(on_progress):
                if selection.takes(letter, states.of(letter)):
                    file.write(letter)
        return file.number


def _dropped(letter: Letter, states: States, now_ms: int) -> LetterState:
    before = states.of(letter)
    return LetterState("dropped", 0 if before is None else before.replays, now_ms, letter.message)


async def _portions(letters: AsyncIterator[Letter], selection: Selection, states: States, most: int) -> AsyncIterator[list[Letter]]:
    """Those that are taken, `most` at a time."""
    portion: list[Letter] = []
    async for letter in letters:
        if selection.takes(letter, states.of(letter)):
            portion.append(letter)
        if len(portion) >= most:
            yield portion
            portion = []
    if portion:
        yield portion


async def _judged(letter: Letter, names: TopicNames, handlers: set[str], originals: Originals, states: States) -> Replay:
    """The letter with its next number, whole, or with the fate of one that may not be sent."""
    replay = Replay(letter, letter.delivery, states.next_replay(letter)[0], refusal(letter, names, handlers))
    if replay.fate is None and letter.dropped:
        whole = await originals.whole(letter)
        if whole is None:
            replay.fate = RedriveFate.SHORTENED
        else:
            replay.delivery = whole
    return replay
