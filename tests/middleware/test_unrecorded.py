"""What succeeded and could not be recorded when its partition left: whoever has its key next runs nothing, and records it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes import FULL_DISK
from tests.tables import each

from ackwise.middleware.events import Durable, EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import Unrecorded
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.run import Run, Stage
from ackwise.middleware.storage.claimstore import Acquired, AlreadyDone, Claim, ClaimAnswer, ClaimKey, Exchange, Outcome
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.reference.oracle import Ruling, rule
from ackwise.spark.vocabulary import Verdict

SECOND, DAY = 1_000_000, 86_400_000_000
BEGIN = 1_767_225_600 * SECOND

BY_KEY = {"key": lambda message: "one"}


async def succeed(batch: Batch[Any]) -> None: ...


def worker_of(make_spine: Any, before: Any = None, *, number: int = 0, full: bool = False, handler: Any = succeed, **options: Any) -> Any:
    """The worker that has the partition after another, as the writer of this number; its disk may be full."""
    known = {} if before is None else {"store": before.store, "clock": before.clock}
    spine = make_spine(handler, **{"dedup": True, **known, **options})
    spine.leases._sink = SimpleNamespace(durable=Durable(number, -1)) if number else None
    spine.sink.error = FULL_DISK if full else None
    return spine


async def leave(spine: Any, runs: Sequence[Run]) -> None:
    """Its partition leaves, as after a rebalance."""
    for run in runs:
        if run.stage is not Stage.SETTLED:
            spine.leases.give_back(run)
    await spine.leases.flush()


async def asked(spine: Any, key: ClaimKey, token: int = 99) -> ClaimAnswer:
    answer: ClaimAnswer
    (answer,) = (await spine.store.inner.exchange(Exchange([Claim(key, token)]))).claims
    return answer


def told(spine: Any) -> list[Any]:
    return [event for event in spine.sink.durable if event.code is EventCode.DUP_SUPPRESSED]


@dataclass
class Worker:
    """One that had the partition."""

    spine: Any
    number: int
    received: Sequence[int]
    """Offsets of which it is durable that they were fetched."""


def judged(workers: Sequence[Worker]) -> Ruling:
    """By what is durable, long after all but the last of them were heard of; nothing started within the retention."""
    group = {"cluster": "c", "group_id": "billing"}
    founder = {"writer_id": 1, "event_ts": BEGIN - 10 * DAY, **group}
    rows: list[dict[str, Any]] = [founder | {"seq": seq, "event_type": code} for seq, code in ((0, 30), (1, 32))]
    for place, worker in enumerate(workers):
        about = {"writer_id": worker.number, **group}
        ranges = [
            {"event_type": 26, "topic": "orders", "partition": 3, "offset": offset, "range_end": offset + 1} for offset in worker.received
        ]
        events = [
            event._asdict() | {"event_type": int(event.code), "record_ts": None, "due_ts": None} for event in worker.spine.sink.durable
        ]
        for seq, event in enumerate([*ranges, *events] if ranges else []):
            rows.append(event | about | {"seq": seq, "event_ts": BEGIN + place * 3600 * SECOND + seq * SECOND})
    return rule(rows, ReconcileConfig(grace=600.0, writer_timeout=600.0))


def verdicts(ruling: Ruling) -> dict[int, Verdict]:
    return {offset: verdict for (_, _, _, offset), (verdict, _) in ruling.messages.items()}


def test_a_run_is_read_as_it_was_told_and_other_texts_are_none() -> None:
    for ran in (Unrecorded(2**63 - 1, 2**63 - 1, 2**31 - 1, 2**63 - 1, "t" * 249), Unrecorded(0, 1, 0, 0, "orders.of-a_shop")):
        assert Unrecorded.read(str(ran)) == ran
        assert len(str(ran)) <= 400
    for text in ("", "1 2 3 4", "x 2 3 4 orders", "1 2 3 four orders", "8d5f3c1a-0123456789abcdef"):
        assert Unrecorded.read(text) is None


async def test_each_message_of_a_batch_is_told_with_its_own_run(make_spine: Any) -> None:
    first = worker_of(make_spine, number=7, full=True)
    runs = [first.together(3)]
    assert await first.run(runs) == [Stage.PUBLISHED]
    claimed = {event.offset: event.exec_id for event in first.sink.events if event.code is EventCode.CLAIMED}
    await leave(first, runs)
    second = worker_of(make_spine, first)
    await second.run([second.together(3)])
    assert {event.offset: event.exec_id for event in told(second)} == claimed
    assert {event.attrs for event in told(second)} == {'{"writer": 7}'}
    assert not [event for event in second.sink.events if event.code is EventCode.CLAIMED]


async def test_an_owner_whose_log_is_full_too_leaves_it_to_the_next(make_spine: Any) -> None:
    first = worker_of(make_spine, number=7, full=True)
    runs = first.entries(1)
    await first.run(runs)
    await leave(first, runs)
    second = worker_of(make_spine, first, full=True)
    runs = second.entries(1)
    assert await second.run(runs) == [Stage.PUBLISHED]
    await leave(second, runs)
    third = worker_of(make_spine, first)
    assert await third.run(third.entries(1)) == [Stage.SETTLED]
    assert [event.attrs for event in told(third)] == ['{"writer": 7}']


async def test_a_record_of_the_same_key_names_the_one_that_ran(make_spine: Any) -> None:
    first = worker_of(make_spine, dedup=BY_KEY, full=True)
    runs = first.entries(1)
    await first.run(runs)
    await leave(first, runs)
    second = worker_of(make_spine, first, dedup=BY_KEY)
    assert await second.run(second.entries(1, start=200)) == [Stage.SETTLED]
    assert [event.attrs for event in told(second)] == ['{"leader": "orders/3/100", "writer": 0}']


async def test_the_success_of_a_replay_is_that_of_its_message_too(make_spine: Any) -> None:
    first = worker_of(make_spine, dedup=BY_KEY, full=True)
    (run,) = runs = first.entries(1, replay_id=b"redrive-1")
    await first.run(runs)
    await leave(first, runs)
    assert await asked(first, ClaimKey(run.claims.base_id, run.claims.day, 1)) == AlreadyDone(Outcome.OK)


async def test_another_record_of_what_succeeded_here_is_not_given_back_to_be_run(make_spine: Any) -> None:
    """As the copy of what succeeded late: the run that succeeded has been told of by its own event."""
    first = worker_of(make_spine, dedup=BY_KEY, full=True)
    (run,) = runs = first.entries(1)
    first.pipeline.admission.decode(runs)  # its key is known then
    first.leases.remember_successes(run)
    assert await first.run(runs) == [Stage.PUBLISHED]
    await leave(first, runs)
    assert await asked(first, run.key) == AlreadyDone(Outcome.OK)


@each("later", [None, ConsumeLater(0)])
async def test_what_failed_and_could_not_be_recorded_is_given_back(make_spine: Any, later: ConsumeLater | None) -> None:
    async def fail(batch: Batch[Any]) -> None:
        raise ConnectionError

    first = worker_of(make_spine, full=True, handler=fail, later=later)
    (run,) = runs = first.entries(1)
    assert await first.run(runs) == [Stage.PUBLISHED]
    await leave(first, runs)
    assert isinstance(await asked(first, run.key), Acquired)


@dataclass(frozen=True)
class Stay:
    """What one worker of a history has, and how it ends."""

    offsets: tuple[int, ...]
    is_full: bool
    """Its log can't be written."""
    is_received: bool
    """That it fetched them was durable before."""
    dies: bool
    recovers: bool
    """Its log is written in the end, if it did not die."""


STAYS = st.lists(
    st.builds(
        Stay,
        offsets=st.sampled_from([(100,), (200,), (100, 200)]),
        is_full=st.booleans(),
        is_received=st.booleans(),
        dies=st.booleans(),
        recovers=st.booleans(),
    ),
    max_size=4,
)


@pytest.mark.parametrize("by_key", [False, True])
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stays=STAYS)
async def test_no_history_of_full_logs_runs_a_success_again_or_lets_the_audit_miss_it(
    make_spine: Any, by_key: bool, stays: list[Stay]
) -> None:
    dedup = BY_KEY if by_key else True
    ran: list[int] = []
    workers: list[Worker] = []
    settled: set[int] = set()
    doubt: set[int] = set()  #: of which nothing says that a worker which had them, and is gone, did not run them
    deaths = 0

    async def handler(batch: Batch[Any]) -> None:
        ran.extend(message.offset for message in batch)

    for stay in [*stays, Stay((100, 200), is_full=False, is_received=True, dies=False, recovers=False)]:
        before = workers[-1].spine if workers else None
        spine = worker_of(make_spine, before, number=len(workers) + 2, full=stay.is_full, handler=handler, dedup=dedup)
        runs = [spine.entry(offset) for offset in stay.offsets if offset not in settled]
        workers.append(Worker(spine, len(workers) + 2, [run.first for run in runs] if stay.is_received or not stay.is_full else ()))
        if not runs:
            continue
        had = len(ran)
        await spine.run(runs)
        if len(workers) > len(stays):  # after three deaths it runs alone, which the next pass does
            await spine.run(runs)
        settled |= {run.first for run in runs if run.stage is Stage.SETTLED}
        if stay.dies:
            deaths += len(ran) > had and stay.is_full
            spine.clock.now += 31
        else:
            await leave(spine, runs)
        if stay.recovers and not stay.dies:
            spine.sink.error = None
            await spine.sink.flush()
        elif stay.is_full:
            doubt |= {*workers[-1].received} - {*ran[had:]}
    keys = 1 if by_key else 2
    assert settled == {100, 200}
    assert len(ran) <= keys * (1 + deaths)
    ruling = judged(workers)
    found = verdicts(ruling)
    assert set(found) == {100, 200}
    if not deaths:
        assert len(ran) == keys
        of_ran = {offset: Verdict.MAYBE_TWICE if offset in doubt else Verdict.EXACTLY_ONCE for offset in ran}
        assert found == dict.fromkeys((100, 200), Verdict.DUPLICATE_SUPPRESSED) | of_ran
        assert not ruling.logical
    assert not {Verdict.LOST, Verdict.PHANTOM_SUPPRESSED, Verdict.STUCK, Verdict.UNKNOWN_EXPORT_GAP} & set(found.values())
