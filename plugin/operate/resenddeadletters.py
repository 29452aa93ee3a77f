"""Dead letters as a source: they are chosen, judged, made whole and numbered; or marked as dropped, so that they are not sent."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.disposition import Reason
from ackwise.middleware.message.message import Delivery
from ackwise.middleware.message.outgoing import Publisher
from ackwise.middleware.runs.run import Run
from ackwise.plugin.operate.deadletter import Letter, LetterState, Selection, States
from ackwise.plugin.operate.deadlettertopics import Place, ensure_state_topic, reading_letters, write_states
from ackwise.plugin.operate.resend import Candidate, Fate, Origins, Piece, Resent, Sender, portioned, resend
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.topics.topicnames import TopicNames

#: The reason that the copies say.
_REASON: Final = "redrive"

#: Letters that are marked together.
_MARKED: Final = 500


class Replay(NamedTuple):
    """A letter, and the number of its next redrive."""

    letter: Letter
    number: int


async def redrive(
    place: Place,
    selection: Selection,
    *,
    execute: bool,
    expired: bool = False,
    source: Callable[[], AsyncIterator[Letter]] | None = None,
    rate: float = 100.0,
    stop: asyncio.Event | None = None,
    on_total: Callable[[int], None] = lambda letters: None,
    on_progress: Callable[[int], None] = lambda letters: None,
) -> Resent:
    """Send again the dead letters that `selection` takes, of the dead-letter topic or of `source`; see `resend`.

    Those that expired are left, unless `expired`: their handler said that it does not want them so late.
    `on_total` hears of how many offsets are read, `on_progress` of those that are done.
    """
    if (app := place.app) is None:
        raise ConfigurationError(
            f"{place.group!r} is a group, and only its app knows whether the handlers of its dead letters still exist; give MODULE:APP"
        )
    async with AsyncExitStack() as opened:
        reader = await opened.enter_async_context(reading_letters(place))
        states, sender = await reader.states(), Sender(app)
        if execute:
            await opened.enter_async_context(sender.opened())
            await ensure_state_topic(place)
        if source is None:
            on_total(reader.number)
        letters = selection.taken(reader.letters(on_progress) if source is None else source(), states)
        handlers = {agent.name for agent in app.agents}
        replays = _Replays(place, handlers, expired, letters, states, Origins(reader.copies), sender.worker.publisher)
        outcome = Resent(recorded=sender.sink is not None)
        return await resend(replays, sender, outcome, execute=execute, rate=rate, stop=stop)


async def drop(
    place: Place, selection: Selection, *, execute: bool, stop: asyncio.Event | None = None, clock: Callable[[], float] = time.time
) -> tuple[int, bool]:
    """Mark the dead letters that `selection` takes as dropped; without `execute` only count them. Nothing is deleted.

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
        async for portion in portioned(selection.taken(reader.letters(), states), _MARKED):
            if execute:
                now_ms = round(clock() * 1000)
                await write_states(publisher, place, [(letter.id, _dropped(letter, states, now_ms)) for letter in portion])
            number += len(portion)
            if stop is not None and stop.is_set():
                return number, True
    return number, False


def refusal(letter: Letter, names: TopicNames, handlers: Collection[str], *, expired: bool = False) -> Fate | None:
    """Why a letter may not be sent, by what is in it; `None` if it may. With `expired` one that expired may."""
    if letter.problem:
        return Fate.FOREIGN
    origin = letter.delivery.origin.topic
    if (of := names.template.of(origin)) is not None and of.group == names.group and of.kind in ("retry", "delay", "send"):
        return Fate.ORIGINLESS
    if letter.handler not in handlers:
        return Fate.HANDLERLESS
    if "ackwise-header-names" in letter.fields:
        return Fate.RENAMED
    return Fate.EXPIRED if letter.reason == Reason.EXPIRED and not expired else None


@dataclass
class _Replays:
    """See `Source`. What was sent is noted in the state topic, a portion at a time."""

    place: Place
    handlers: set[str]
    expired: bool
    letters: AsyncIterator[Letter]
    states: States
    origins: Origins
    publisher: Publisher
    charges = False  # the first attempt of a message that no store has seen

    async def pieces(self, most: int) -> AsyncIterator[Piece[Replay]]:
        """See `Source.pieces`."""
        async for letter in self.letters:
            yield await self._piece(letter)

    @asynccontextmanager
    async def guarded(self, portion: Sequence[Piece[Replay]]) -> AsyncIterator[None]:
        """See `Source.guarded`. The store guards: it knows a replay id."""
        now_ms = round(time.time() * 1000)
        yield
        sent = [piece.of for piece in portion if piece.fates[Fate.SENT]]
        said = [(letter.id, LetterState("redriven", number, now_ms, letter.message)) for letter, number in sent]
        await write_states(self.publisher, self.place, said)

    def note(self, portion: Sequence[Piece[Replay]]) -> None:
        """See `Source.note`. It is noted."""

    async def _piece(self, letter: Letter) -> Piece[Replay]:
        """A letter with its next number, whole, or with the fate of one that may not be sent."""
        number, replay_id = self.states.next_replay(letter)
        delivery, fate = letter.delivery, refusal(letter, self.place.names, self.handlers, expired=self.expired)
        if fate is None and letter.dropped:
            whole = await self._whole(letter)
            delivery, fate = whole or delivery, Fate.SHORTENED if whole is None else None
        origin = delivery.origin
        message = Delivery(*origin, delivery.key, delivery.value, delivery.headers, origin, replay_id=replay_id)
        attrs = {"redrive": replay_id.decode(), "letter": f"{self.place.names.dead_letter}/{letter.id}"}
        candidate = Candidate(letter.handler, Run.of(message), _REASON, attrs, fate)
        return Piece(Replay(letter, number), (letter.handler,), str(letter.id), [candidate])

    async def _whole(self, letter: Letter) -> Delivery | None:
        """The message with the key, value and headers of its origin; `None` if that is gone, or another record is there now."""
        found = await self.origins.record(letter.delivery.origin)
        if found is None or not _has_key(letter, found.key):
            return None
        return letter.delivery._replace(key=found.key, value=found.value, headers=tuple(found.headers))


def _has_key(letter: Letter, key: bytes | None) -> bool:
    """Whether `key` is that of the letter, which may have been cut."""
    if "key" not in letter.dropped:
        return key == letter.delivery.key
    return key is not None and hashlib.blake2b(key, digest_size=16).hexdigest() == letter.fields.get("ackwise-key-hash")


def _dropped(letter: Letter, states: States, now_ms: int) -> LetterState:
    before = states.of(letter)
    return LetterState("dropped", 0 if before is None else before.replays, now_ms, letter.message)
