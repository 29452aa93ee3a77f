"""Repair plan: one step for each anomaly that a reconciliation found, as lines of JSON that writer and reader share.

The first line names the run, each following line is a step. Steps are written and read one by one, so a plan may exceed the memory.
"""

from __future__ import annotations

import enum
import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

from ackwise.middleware.errors import ConfigurationError

SCHEMA_VERSION: Final = 1
#: What the file is called, beside the tables of its run.
NAME: Final = "plan.jsonl"


class Action(enum.StrEnum):
    """What a step does with each of its offsets."""

    REDELIVER = "REDELIVER"
    """A copy of the origin record goes to the group's retry topic."""
    PROBE = "PROBE"
    """The same, if the broker has a record there: markers and compacted records leave none."""
    RELEASE = "RELEASE"
    """The same, and the claim that a dead worker left is taken and released for the copy; one that is held is let alone."""
    REPLAY = "REPLAY"
    """The same with a replay id, so that the claim which says "done", though it never ran, does not suppress the copy."""
    VERIFY = "VERIFY"
    """Events are missing, so the store is asked: what it does not know as done is redelivered."""
    REQUEUE = "REQUEUE"
    """Nothing here: rows of an outbox are parked, and its relay sends them once `ackwise outbox requeue` was called."""
    REVIEW = "REVIEW"
    """Nothing: what was done twice, or is nowhere any more, is for people to fix."""


class Risk(enum.StrEnum):
    """Whether a step may be carried out without a second thought."""

    SAFE = "safe"
    """If the verdict was wrong, the store suppresses the copy."""
    REVIEW = "review"
    """If it was wrong, a message may be done twice."""


SAFE: Final = frozenset({Action.REDELIVER, Action.PROBE, Action.RELEASE})

#: What the store must say of the claim before a copy is sent.
_CLAIMS: Final = {
    Action.REDELIVER: "not done, not held",
    Action.PROBE: "not done, not held",
    Action.RELEASE: "not done, not held",
    Action.REPLAY: "never done",
    Action.VERIFY: "not done, not held",
    Action.REQUEUE: "any",
    Action.REVIEW: "any",
}


@dataclass(frozen=True, slots=True)
class Title:
    """The first line of a plan."""

    plan_id: str
    """The id of the run that made it."""
    as_of: int
    """When the run judged, in microseconds: a record that was written later is another one."""


@dataclass(frozen=True, slots=True)
class RepairStep:
    """What to do with the offsets from `start` to before `end` of one partition. Times are microseconds.

    Of a REQUEUE these are ids of rows of `outbox`, and the partition is -1.
    """

    action: Action
    verdict: str
    cluster: str
    group: str
    handler: str | None
    """None: of these offsets there are no events, so every handler that reads the topic should have them."""
    dedup_epoch: int | None
    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    attempt: int
    """The highest that was seen; 0 if none was."""
    flags: tuple[str, ...] = ()
    dedup_hash: int | None = None
    """If all offsets have the same."""
    last_event: str | None = None
    first_ts: int | None = None
    last_ts: int | None = None
    record_ts: tuple[int, int] | None = None
    """Between which times the records were written, if events say so."""
    outbox: str | None = None
    """Of a REQUEUE: the URL of the outbox without user and password, as its events name it."""

    @property
    def command(self) -> str | None:
        """The command that carries out a REQUEUE; its URL lacks what only its user knows. `None` for other actions."""
        if self.action is not Action.REQUEUE:
            return None
        return shlex.join(["ackwise", "outbox", "requeue", self.outbox or "URL", *map(str, range(self.start, self.end))])

    @property
    def risk(self) -> Risk:
        """Return whether the operator should check it before it is carried out."""
        return Risk.SAFE if self.action in SAFE else Risk.REVIEW

    @property
    def offsets(self) -> int:
        """Return the number of offsets."""
        return self.end - self.start

    @property
    def idempotency_key(self) -> str:
        """The same for the same step of any run, in hexadecimal digits."""
        parts = [self.action, self.cluster, self.group, self.handler, self.dedup_epoch, self.topic, self.topic_id, self.partition]
        parts += [] if self.outbox is None else [self.outbox]
        text = json.dumps([*parts, self.start, self.end, self.verdict])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Planned:
    """How many steps and offsets of a plan have one action."""

    action: Action
    steps: int
    offsets: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run says of the plan that it wrote."""

    path: str
    planned: Sequence[Planned]
    """In the order of the actions; those without a step are left out."""
    provisional: int
    """How many messages were left out, since events that fix them may still come."""


def write_plan(path: Path, title: Title, steps: Iterable[RepairStep]) -> list[Planned]:
    """Write a plan, all of it or nothing; returns what is in it. Raises `OSError`."""
    number, offsets = Counter[Action](), Counter[Action]()
    unfinished = path.with_name(f".{path.name}")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"schema_version": SCHEMA_VERSION, "plan_id": title.plan_id, "as_of": title.as_of}) + "\n")
        for step in steps:
            file.write(json.dumps(_written(step), ensure_ascii=False) + "\n")
            number[step.action] += 1
            offsets[step.action] += step.offsets
    unfinished.replace(path)
    return [Planned(action, number[action], offsets[action]) for action in Action if number[action]]


def read_title(path: Path) -> Title:
    """The first line of a plan. Raises `ConfigurationError` for another kind of file, or an unknown version."""
    with _lines(path) as lines:
        try:
            found = json.loads(next(lines, "") or "null")
            version, title = found["schema_version"], Title(str(found["plan_id"]), int(found["as_of"]))
            datetime.fromtimestamp(title.as_of / 1e6, UTC)  # raises for what is no time
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise ConfigurationError(
                f"{path} is no repair plan: its first line has no schema_version, plan_id and as_of; give the {NAME} that reconcile wrote"
            ) from None
    if version != SCHEMA_VERSION:
        raise ConfigurationError(
            f"{path} is a plan of version {version}, and this Ackwise knows version {SCHEMA_VERSION}; run reconcile again"
        )
    return title


def read_steps(path: Path) -> Iterator[RepairStep]:
    """The steps of a plan, one by one. Raises `ConfigurationError` that names the line which can't be used."""
    with _lines(path) as lines:
        next(lines, None)
        for number, line in enumerate(lines, 2):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
                step = _read(found)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                said = f"{type(error).__name__}: {error}"
                raise ConfigurationError(f"line {number} of {path} is no step of a plan ({said}); run reconcile again") from None
            if found.get("idempotency_key") != step.idempotency_key:
                raise ConfigurationError(
                    f"line {number} of {path} was changed: its idempotency key is that of another step; take out whole lines, or run "
                    "reconcile again"
                )
            yield step


def _lines(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8", errors="surrogateescape")  # what is no text is no step, and its line is named
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read ({error.strerror}); give the {NAME} that reconcile wrote") from error


def _written(step: RepairStep) -> dict[str, Any]:
    requeue = {"outbox": step.outbox, "command": step.command} if step.action is Action.REQUEUE else {}
    return {
        **requeue,
        "action": step.action,
        "risk": step.risk,
        "verdict": step.verdict,
        "flags": list(step.flags),
        "cluster": step.cluster,
        "group": step.group,
        "handler": step.handler,
        "dedup_epoch": step.dedup_epoch,
        "topic": step.topic,
        "topic_id": step.topic_id,
        "partition": step.partition,
        "offset_start": step.start,
        "offset_end": step.end,
        "dedup_hash": step.dedup_hash,
        "evidence": {"attempt": step.attempt, "last_event": step.last_event, "first_ts": step.first_ts, "last_ts": step.last_ts},
        "preconditions": {"in_log": True, "record_ts": step.record_ts, "claim": _CLAIMS[step.action]},
        "idempotency_key": step.idempotency_key,
    }


def _read(found: Mapping[str, Any]) -> RepairStep:
    evidence, record_ts = found["evidence"], found["preconditions"]["record_ts"]
    step = RepairStep(
        action=Action(found["action"]),
        verdict=found["verdict"],
        cluster=found["cluster"],
        group=found["group"],
        handler=found["handler"],
        dedup_epoch=found["dedup_epoch"],
        topic=found["topic"],
        topic_id=found["topic_id"],
        partition=int(found["partition"]),
        start=int(found["offset_start"]),
        end=int(found["offset_end"]),
        attempt=int(evidence["attempt"]),
        flags=tuple(found["flags"]),
        dedup_hash=found["dedup_hash"],
        last_event=evidence["last_event"],
        first_ts=evidence["first_ts"],
        last_ts=evidence["last_ts"],
        record_ts=None if record_ts is None else (int(record_ts[0]), int(record_ts[1])),
        outbox=found.get("outbox"),
    )
    if not 0 <= step.start < step.end:
        raise ValueError(f"its offsets are from {step.start} to {step.end}")
    return step
