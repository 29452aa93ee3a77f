"""A repair plan as a source of messages to resend, and its progress in a file next to it, from which a second run continues."""

from __future__ import annotations

import asyncio
import fcntl
import json
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple, TextIO

from aiokafka import TopicPartition

from ackwise.middleware.errors import CodecUnavailable, ConfigurationError
from ackwise.middleware.message.disposition import Dead
from ackwise.middleware.message.message import Delivery, delivery_of
from ackwise.middleware.pipeline.admission import Admission
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.repairplan import Action, RepairStep, Risk, Title, read_steps, read_title
from ackwise.middleware.runs.agent import Agent, readers_of
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.kafka.topicreader import TopicReader
from ackwise.plugin.operate.resend import (
    AGAIN,
    Candidate,
    ClaimGuard,
    Fate,
    InboxGuard,
    Origins,
    Piece,
    Resent,
    Sender,
    guard_of,
    open_ones,
    resend,
)
from ackwise.plugin.topics.group import Group
from ackwise.plugin.topics.leftovers import REPAIR
from ackwise.plugin.topics.topicadmin import connected

_VERSION: Final = 1


def progress_path(plan: Path) -> Path:
    """The file that says how far `plan` was carried out."""
    return plan.with_name(f"{plan.stem}.progress.jsonl")


class PlanProgress:
    """A line for each portion that is done, fsynced. While it is open for writing, no other process carries out the plan.

    Raises `ConfigurationError` for a file of another plan, and for one that another process has open.
    """

    def __init__(self, plan: Path, title: Title, *, writing: bool) -> None:
        self._path = progress_path(plan)
        self._through: dict[str, int] = {}
        self._fates: dict[str, Counter[Fate]] = {}
        self._unfinished = ""
        self._file: TextIO | None = _locked(self._path) if writing else None
        try:
            self._read(title)
            if self._file is not None and not self._path.stat().st_size:
                self._write({"schema_version": _VERSION, "plan_id": title.plan_id})
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> PlanProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._close()

    def through(self, step: RepairStep) -> int:
        """The offset that the step goes on with."""
        return self._through.get(step.idempotency_key, step.start)

    def fates(self, step: RepairStep) -> Counter[Fate]:
        """How many of the step's messages had each fate so far."""
        return self._fates.get(step.idempotency_key, Counter())

    def note(self, done: Sequence[tuple[RepairStep, int, Mapping[Fate, int]]]) -> None:
        """Everything of these steps below the offset beside them has these fates; the next run will know. Raises `OSError`.

        From the first on that another run may still send, nothing of a step is noted: there the store alone keeps what was sent
        from being sent again.
        """
        lines = []
        for step, through, fates in done:
            key = step.idempotency_key
            self._unfinished = key if any(fate in AGAIN for fate in fates) else self._unfinished
            if key != self._unfinished:
                lines.append({"step": key, "through": through, "fates": fates})
        self._write(*lines)

    def _take(self, key: str, through: int, fates: Mapping[Fate, int]) -> None:
        self._through[key] = max(through, self._through.get(key, through))
        self._fates.setdefault(key, Counter()).update(fates)

    def _read(self, title: Title) -> None:
        text = _text(self._path)
        if "\n" not in text:  # a kill tore the first line, before anything was done
            if self._file is not None:
                self._file.truncate(0)
            return
        for number, line in enumerate(text.splitlines(), 1):
            found: Any = _parsed(line)
            if not found and number > 1:
                continue  # torn by a kill: that portion is not done
            try:
                if number == 1:
                    self._require_plan(str(found["plan_id"]), title)
                elif "step" in found:
                    self._take(str(found["step"]), int(found["through"]), {Fate(fate): int(many) for fate, many in found["fates"].items()})
            except (ValueError, TypeError, KeyError, AttributeError):
                raise ConfigurationError(
                    f"line {number} of {self._path}, which says how far the plan came, is not what Ackwise wrote there; move the file "
                    "away, and the store alone keeps what was sent from being sent again"
                ) from None
        if self._file is not None and not text.endswith("\n"):
            self._file.write("\n")

    def _require_plan(self, found: str, title: Title) -> None:
        if found != title.plan_id:
            raise ConfigurationError(f"{self._path} says how far plan {found!r} came, and this is {title.plan_id!r}; move it away")

    def _write(self, *lines: Mapping[str, object]) -> None:
        if self._file is not None and lines:
            self._file.writelines(json.dumps(line) + "\n" for line in lines)
            self._file.flush()
            os.fsync(self._file.fileno())

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigurationError(f"{path}, which says how far the plan came, can't be read ({error.strerror})") from error


def _parsed(line: str) -> Any:
    """Empty for what is no JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return {}


def _locked(path: Path) -> TextIO:
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}, which says how far the plan came, can't be written ({error.strerror})") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigurationError(f"another process is carrying out this plan: {path} is locked; wait until it is done") from error
    return file


#: Microseconds by which the clock of a producer may be ahead of those that judged.
_SKEW: Final = 60_000_000

#: The same for every plan, so that what was replayed once is suppressed the second time.
_REPLAY_ID: Final = b"repair"

#: The verdict on messages whose copy was lost: that the store waits for the copy is no news.
_COPY_IS_LOST: Final = "RETRY_LOST"


def steps_for(plan: Path, group: str) -> tuple[Title, int, int]:
    """The title of a plan, and how many of its steps and offsets are for `group`; every line is looked at.

    Raises `ConfigurationError` for a plan that can't be used, or has only steps for others.
    """
    title, steps, offsets, others = read_title(plan), 0, 0, set[str]()
    for step in read_steps(plan):
        if step.action is Action.REQUEUE:  # of no group: an outbox is anybody's
            continue
        if step.group == group:
            steps, offsets = steps + 1, offsets + step.offsets
        else:
            others.add(step.group)
    if others and not steps:
        raise ConfigurationError(
            f"{plan} has no step for group {group!r}, it is about {', '.join(sorted(others))}; name the app of that group"
        )
    return title, steps, offsets


def place_of(step: RepairStep, start: int, end: int) -> str:
    """The offsets, or rows of an outbox, from `start` to before `end`, as they are printed."""
    more = f"–{end - 1}" if end - start > 1 else ""
    return f"{step.topic}/{step.partition}/{start}{more}" if step.outbox is None else f"row {start}{more} of {step.outbox or 'an outbox'}"


async def carry_out(
    plan: Path,
    group: Group,
    *,
    execute: bool,
    with_review: bool = False,
    rate: float = 100.0,
    stop: asyncio.Event | None = None,
    on_progress: Callable[[int], None] = lambda offsets: None,
) -> Resent:
    """Do what the steps of `plan` for `group` say; see `resend`. With `with_review` steps of risk `review` are done, too.

    `on_progress` hears of offsets that are done.
    """
    title, outcome = steps_for(plan, group.settings.group)[0], Resent()
    if not group.names.all:
        raise ConfigurationError(
            f"{group.settings.group!r} broadcasts and has no retry topic, so nothing can be sent to this instance alone; bring it up "
            "to date in your own way, such as by a restart that loads everything again"
        )
    async with AsyncExitStack() as opened:
        progress = opened.enter_context(PlanProgress(plan, title, writing=execute))
        origins = Origins(TopicReader(await opened.enter_async_context(connected(group.settings))))
        sender, guard = Sender(group), guard_of(group, title.plan_id)
        if execute:
            if sender.sink is None:
                raise ConfigurationError(
                    "the app uses no Events, so no reconciliation would learn what was sent again; give the app as its workers run it"
                )
            await opened.enter_async_context(sender.opened())
            if guard is not None:
                opened.push_async_callback(guard.store.close)
                await guard.store.open()
        for step in _steps(plan, group):
            through, fates = progress.through(step), progress.fates(step)
            outcome.add(_kind(step), fates, place_of(step, step.start, through))
            outcome.earlier += fates.total()
            on_progress(through - step.start)
        source = _Steps(plan, title, group, sender.worker, guard, origins, progress, on_progress, with_review)
        return await resend(source, sender, outcome, execute=execute, rate=rate, stop=stop)


class Offsets(NamedTuple):
    """The offsets of a step from `start` to before `end`."""

    step: RepairStep
    start: int
    end: int


@dataclass
class _Steps:
    """See `Source`. What is done is noted in the plan's progress, and in the store."""

    plan: Path
    title: Title
    group: Group
    worker: Worker
    guard: ClaimGuard | InboxGuard | None
    origins: Origins
    progress: PlanProgress
    on_progress: Callable[[int], None]
    with_review: bool
    charges = True

    def __post_init__(self) -> None:
        self._admissions = {agent.name: Admission(agent, self.worker) for agent in self.group.agents}
        # Of what was done since the plan was made the store knows until then, which may come while the plan is carried out.
        retention = math.inf if self.group.dedup is None else float(self.group.dedup.retention)
        self._known_until = self.title.as_of / 1e6 + retention

    async def pieces(self, most: int) -> AsyncIterator[Piece[Offsets]]:
        """See `Source.pieces`."""
        for step in _steps(self.plan, self.group):
            async for piece in self._of(step, self.progress.through(step), most):
                await self._find_keys(piece)
                yield piece

    def guarded(self, portion: Sequence[Piece[Offsets]]) -> AbstractAsyncContextManager[None]:
        """See `Source.guarded`."""
        candidates = open_ones(each for piece in portion for each in piece.candidates)
        return nullcontext() if self.guard is None else self.guard.asked(candidates)

    def note(self, portion: Sequence[Piece[Offsets]]) -> None:
        """See `Source.note`."""
        self.progress.note([(piece.of.step, piece.of.end, piece.fates) for piece in portion])
        for piece in portion:
            self.on_progress(piece.of.end - piece.of.start)

    async def _of(self, step: RepairStep, start: int, most: int) -> AsyncIterator[Piece[Offsets]]:
        """A step from the offset `start` on. Raises `Unavailable`."""
        if start >= step.end:
            return
        readers = readers_of(self.group.agents, step.topic)
        agents = [agent for agent in self.group.agents if agent.name == step.handler] if step.handler else readers
        if (fate := self._refusal(step, agents)) is not None:
            yield _piece(step, start, step.end, others={fate: step.end - start})
            return
        partition = TopicPartition(step.topic, step.partition)
        log = await self.origins.bounds(partition)
        while start < step.end:
            if start < log.start or start >= log.end:
                end = min(step.end, log.start) if start < log.start < log.end else step.end
                yield _piece(step, start, end, others={Fate.DELETED: end - start})
            else:
                records, end = await self.origins.read(partition, start, min(step.end, log.end), most)
                found = [self._candidate(step, agent, delivery_of(partition, record)) for record in records for agent in agents]
                yield _piece(step, start, end, found, {Fate.EMPTY: end - start - len(records)})
            start = end

    def _refusal(self, step: RepairStep, agents: Sequence[Agent]) -> Fate | None:
        """Why nothing of a step is done, if so."""
        if step.action in (Action.REVIEW, Action.REQUEUE):
            return Fate.MANUAL
        if step.risk is Risk.REVIEW and not self.with_review:
            return Fate.REVIEWABLE
        if not agents:
            return Fate.HANDLERLESS
        epoch = 0 if self.group.dedup is None else self.group.dedup.epoch
        return Fate.OTHER_EPOCH if step.handler and (step.dedup_epoch or 0) != epoch else None

    def _candidate(self, step: RepairStep, agent: Agent, delivery: Delivery) -> Candidate:
        """The attempt that counts as ended; the copy carries the next one."""
        written = delivery.timestamp_ms * 1000
        first, last = step.record_ts or (written, self.title.as_of + _SKEW)
        read = delivery._replace(attempt=max(step.attempt, 1), replay_id=_REPLAY_ID if step.action is Action.REPLAY else None)
        attrs = {"plan": self.title.plan_id, "step": step.idempotency_key}
        fate = None if first <= written <= last else Fate.REPLACED
        return Candidate(agent.name, Run.of(read), f"{REPAIR}{step.verdict}", attrs, fate, step.verdict == _COPY_IS_LOST)

    async def _find_keys(self, piece: Piece[Offsets]) -> None:
        """Give each its key, or the fate of one that can't be sent. Raises what user code raises to stop a program."""
        suppresses = self.guard is not None and self.guard.suppresses and time.time() <= self._known_until
        expected = piece.of.step.dedup_hash
        for each in open_ones(piece.candidates):
            if (stopping := await self._admissions[each.handler].prepare([each.run])) is not None:
                raise stopping
            if each.run.stage is Stage.WITHHELD:
                raise CodecUnavailable(
                    f"what the decoder of handler {each.handler!r} needs is not available; nothing of this portion is sent"
                )
            is_guarded = suppresses and (each.run.key is not None or isinstance(each.run.disposition, Dead))
            if expected is not None and each.run.dedup_hash != expected:
                each.fate = Fate.OTHER_KEY
            elif not is_guarded and not self.with_review:
                each.fate = Fate.UNGUARDED


def _steps(plan: Path, group: Group) -> Iterator[RepairStep]:
    return (step for step in read_steps(plan) if step.group == group.settings.group)


def _kind(step: RepairStep) -> tuple[str, str]:
    return step.action.value, step.verdict


def _piece(
    step: RepairStep, start: int, end: int, candidates: Sequence[Candidate] = (), others: Mapping[Fate, int] = MappingProxyType({})
) -> Piece[Offsets]:
    return Piece(Offsets(step, start, end), _kind(step), place_of(step, start, end), candidates, others)
