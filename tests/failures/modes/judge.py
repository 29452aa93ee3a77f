"""The judgement of a trial: from what the producer was told, what the handlers wrote, and what the group had committed. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ackwise.middleware.policies.retry import Order
from ackwise.middleware.progress.commitmetadata import decode

Place = tuple[int, int]


class Sent(NamedTuple):
    """A message as its delivery report tells it."""

    partition: int
    offset: int
    key: str


class Verdict(NamedTuple):
    """What went wrong, each in words; and how many executions were repeats."""

    lost: list[str]
    violations: list[str]
    """Of the order: a message started or succeeded before an earlier one of its key, or partition, was finished."""
    broken: list[str]
    """Promises of acknowledged commits: what they said to be finished started again, or an attempt in place started again."""
    repeats: int

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.violations or self.broken)


def judge(sent: Sequence[Sent], facts: Iterable[Mapping[str, Any]], order: Order) -> Verdict:
    """Judge the facts of a trial, in the order in which they were written.

    `starts` and `succeeds` have `partition`, `offset` and `worker`, and the former `attempt`, from 0. `promised` has what a commit said
    that the broker had: `finished` and `attempts` of a `partition`, and `except` the workers that may not have heard of it.
    """
    ahead = _ahead(sent, order)
    finished: Counter[Place] = Counter()
    promised: dict[Place, set[int]] = {}
    attempts: dict[Place, tuple[int, set[int]]] = {}
    violations, broken = [], []
    for fact in facts:
        if fact["fact"] == "promised":
            excepted = set(fact["except"])
            promised.update({(fact["partition"], offset): excepted for offset in fact["finished"]})
            attempts.update({(fact["partition"], offset): (number, excepted) for offset, number in fact["attempts"]})
        if fact["fact"] not in ("begins", "succeeds"):
            continue
        place, worker = (fact["partition"], fact["offset"]), fact["worker"]
        waits = [offset for offset in ahead.get(place, ()) if not finished[place[0], offset]]
        if waits:
            violations.append(f"{place} {fact['fact']} in {worker}, and {waits} are not finished")
        if fact["fact"] == "succeeds":
            finished[place] += 1
            continue
        is_copy = order is None and fact["attempt"] > 0  # the message itself is finished: it is parked
        if place in promised and worker not in promised[place] and not is_copy:
            broken.append(f"{place} starts again in {worker}, which an acknowledged commit said to be finished")
        number, excepted = attempts.get(place, (0, set()))
        if fact["attempt"] < number and worker not in excepted and not finished[place]:
            broken.append(f"{place} has had {number} attempts, and is told {fact['attempt']} in {worker}")
    lost = [f"{message} was acknowledged, and never succeeded" for message in sent if not finished[message[:2]]]
    return Verdict(lost, violations, broken, sum(times - 1 for times in finished.values()))


def _ahead(sent: Sequence[Sent], order: Order) -> dict[Place, list[int]]:
    """Of each message, the offsets that must be finished before it starts."""
    ahead: dict[Place, list[int]] = {}
    before: defaultdict[object, list[int]] = defaultdict(list)
    if order is not None:
        for message in sorted(sent):
            group = before[message.partition if order == "partition" else (message.partition, message.key)]
            ahead[message.partition, message.offset] = [*group]
            group.append(message.offset)
    return ahead


def promised_by(offset: int, metadata: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The offsets that a commit says to be finished, and the attempts that it tells of others."""
    found = decode(metadata)
    if found is None or found.finished is None:
        return [*range(offset)], []
    bits = found.finished.bits
    above = [offset + place for place in range(bits.bit_length()) if bits >> place & 1]
    return [*range(offset), *above], [(entry.offset, entry.attempts) for entry in found.in_place]
