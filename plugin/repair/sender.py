"""Sender of a repair: sends copies as a worker sends messages back, and records each for the next reconciliation."""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from ackwise.middleware.admission import Admission
from ackwise.middleware.disposition import Dead
from ackwise.middleware.errors import AckwiseError, CodecUnavailable, ConfigurationError, PublishRefused
from ackwise.middleware.events import EventCode, EventSink
from ackwise.middleware.policies import Dedup, Transactional
from ackwise.middleware.repairplan import Title
from ackwise.middleware.run import Stage
from ackwise.middleware.wire import Copy, retry_copy
from ackwise.middleware.worker import Worker
from ackwise.plugin.group.group import Group
from ackwise.plugin.group.leftovers import REPAIR
from ackwise.plugin.group.matching import ensure_topics_of
from ackwise.plugin.group.publisher import KafkaPublisher
from ackwise.plugin.repair.candidate import Candidate, RepairFate, open_ones
from ackwise.plugin.repair.guards import ClaimGuard, Guard, InboxGuard, NoGuard

__all__ = ["Sender"]

#: What is written of a message that was sent, or found to need no copy: the next reconciliation has nobody else to hear it from.
_SAID: Final = {RepairFate.SENT: EventCode.REDELIVERED, RepairFate.DONE: EventCode.DUP_SUPPRESSED, RepairFate.FOLLOWED: EventCode.STALE}


class Sender:
    """Finds the keys of messages as a worker does, and sends copies of those that may be sent."""

    def __init__(self, group: Group, title: Title, with_review: bool) -> None:
        """Raises `ConfigurationError` for a store that can't be used, and for an app that broadcasts."""
        if not group.names.all:
            raise ConfigurationError(
                f"{group.settings.group!r} broadcasts and has no retry topic, so nothing can be sent to this instance alone; bring it up "
                "to date in your own way, such as by a restart that loads everything anew"
            )
        self._group = group
        self._plan_id = title.plan_id
        self._with_review = with_review
        self._publisher = KafkaPublisher(group.settings)
        self._guard = _guard(group, title)
        # Of what was done since the plan was made the store knows until then, which may come while the plan is carried out.
        self._known_until = math.inf if group.dedup is None else title.as_of / 1e6 + float(group.dedup.retention)
        self._sink: EventSink | None = group.slots.open_sink(group.settings.group, group.sources)
        self._worker = Worker(
            group=group.settings.group,
            later=group.slots.later,
            publisher=self._publisher,
            retry_topic=group.names.retry,
            dead_letter_topic=group.names.dead_letter,
            delay_topic=group.names.delay,
            dedup=group.dedup,
            sink=self._sink,
        )
        self._admissions = {agent.name: Admission(agent, self._worker) for agent in group.agents}

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """With everything open that sending takes. Raises `AckwiseError`."""
        if self._sink is None:
            raise ConfigurationError(
                "the app uses no Events, so no reconciliation would learn what was sent again; give the app as its workers run it"
            )
        await ensure_topics_of(self._group)
        async with AsyncExitStack() as opened:
            for part in (self._sink, self._guard):
                opened.push_async_callback(part.close)
                await part.open()
            opened.push_async_callback(self._publisher.stop)
            await self._publisher.start()
            yield

    async def find_keys(self, candidates: Sequence[Candidate]) -> None:
        """Give each its key, or the fate of one that can't be sent. Raises what user code raises to stop a program."""
        suppresses = self._guard.suppresses and time.time() <= self._known_until
        for each in open_ones(candidates):
            if (stopping := await self._admissions[each.agent.name].prepare([each.run])) is not None:
                raise stopping
            if each.run.stage is Stage.WITHHELD:
                raise CodecUnavailable(
                    f"what the decoder of handler {each.agent.name!r} needs is not available; nothing of this portion is sent"
                )
            run, expected = each.run, each.step.dedup_hash
            is_guarded = suppresses and (run.key is not None or isinstance(run.disposition, Dead))
            if expected is not None and run.dedup_hash != expected:
                each.fate = RepairFate.OTHER_KEY
            elif not is_guarded and not self._with_review:
                each.fate = RepairFate.UNGUARDED

    async def send(self, candidates: Sequence[Candidate]) -> None:
        """Send copies of those without a fate, and write down what became of them. Raises `AckwiseError`."""
        failed: AckwiseError | None = None
        async with self._guard.asked(open_ones(candidates)):
            going = open_ones(candidates)
            answers = await self._publisher.publish([self._copy(each) for each in going])
            sent = [each for each, answer in zip(going, answers, strict=True) if answer is None]
            for each, answer in zip(going, answers, strict=True):
                if isinstance(answer, PublishRefused):
                    each.fate = RepairFate.REFUSED
                else:
                    failed = failed or answer
            for each in candidates:
                if (code := _SAID.get(RepairFate.SENT if each in sent else each.fate or RepairFate.READY)) is not None:
                    self._write_down(code, each)
            await self._worker.make_durable()
            for each in sent:  # only now: a copy that no event tells of would be taken for somebody else's
                each.fate = RepairFate.SENT
        if failed is not None:
            raise failed

    def _copy(self, each: Candidate) -> Copy:
        delivery, now = each.run.delivery, round(self._worker.wall() * 1000)
        return retry_copy(
            delivery, topic=self._worker.retry_topic, partition=delivery.partition, group=self._worker.group, handler=each.agent.name,
            due=now, now_ms=now, reason=f"{REPAIR}{each.step.verdict}",
        )  # fmt: skip

    def _write_down(self, code: EventCode, each: Candidate) -> None:
        """In the coordinates of the origin, and said to be elsewhere: the group has not read it there now."""
        told = {"plan": self._plan_id, "step": each.step.idempotency_key}
        if each.ran is not None:
            each.run.exec_ids = [each.ran.exec_id]
            told |= each.ran.attributes(str(each.run.origin))
        topic, partition = self._worker.retry_topic, each.run.delivery.partition
        self._worker.record(
            code, each.agent.name, each.run, with_exec_id=each.ran is not None, attrs=json.dumps(told), phys_topic=topic,
            phys_partition=partition,
        )  # fmt: skip


def _guard(group: Group, title: Title) -> Guard:
    """The store that knows what was done."""
    policy = group.dedup
    if isinstance(policy, Dedup) and (store := group.slots.open_store()) is not None and type(store).__module__ != "ackwise.stores.memory":
        return ClaimGuard(store, policy, title.plan_id)
    if isinstance(policy, Transactional) and (inbox := group.slots.open_inbox()) is not None:
        return InboxGuard(inbox, policy)
    return NoGuard()
