"""Looking at the dead letters of a group: all of them by their causes, one, or those that are exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ackwise.plugin.deadletters.causes import Causes
from ackwise.plugin.deadletters.letter import Letter
from ackwise.plugin.deadletters.letterfile import LetterFile
from ackwise.plugin.deadletters.letterstate import LetterState
from ackwise.plugin.deadletters.place import Place
from ackwise.plugin.deadletters.reading import reading_letters
from ackwise.plugin.deadletters.selection import Selection

__all__ = ["export", "list_letters", "look_up"]


async def list_letters(
    place: Place,
    selection: Selection,
    most: int,
    *,
    on_total: Callable[[int], None] = lambda letters: None,
    on_progress: Callable[[int], None] = lambda letters: None,
) -> tuple[Causes, int]:
    """Return what `selection` means by its causes, the newest `most` letters one by one, and how many states can't be read.

    The whole topic is read, in no group. Raises `ConfigurationError` without a dead-letter topic, and `Unavailable`.
    """
    causes = Causes(most)
    async with reading_letters(place) as reader:
        states = await reader.states()
        on_total(reader.number)
        async for letter in selection.taken(reader.letters(on_progress), states):
            causes.add(letter, states)
    return causes, states.unreadable


async def look_up(place: Place, partition: int, offset: int) -> tuple[Letter, LetterState | None] | None:
    """Return one letter and its state; `None` if it is not there. Raises as `list_letters`."""
    async with reading_letters(place) as reader:
        states, letter = await reader.states(), await reader.letter(partition, offset)
    return None if letter is None else (letter, states.of(letter))


async def export(
    place: Place, selection: Selection, path: Path, *, on_total: Callable[[int], None], on_progress: Callable[[int], None]
) -> int:
    """Write the letters that `selection` takes to a new file. Returns how many. Raises `AckwiseError`, and leaves no file then."""
    async with reading_letters(place) as reader:
        states = await reader.states()
        on_total(reader.number)
        with LetterFile(path) as file:
            async for letter in selection.taken(reader.letters(on_progress), states):
                file.write(letter)
        return file.number
