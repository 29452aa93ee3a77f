"""The plan that a run writes: which step each anomaly gets, and that it is the same for the same events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.cases import CONFIG
from tests.spark.fuzz import universe
from tests.spark.histories import NOW, SECOND, History, write_parquet
from tests.spark.running import evidence_of

from ackwise.middleware.events import EventCode
from ackwise.middleware.repairplan import NAME, Action, Planned, RepairStep, Risk, Title, read_steps, read_title, write_plan
from ackwise.spark.advice import PLANNED
from ackwise.spark.events.bitmap import stretches
from ackwise.spark.judge.offsets import absent as masks_of_absent
from ackwise.spark.judging import weigh
from ackwise.spark.reference.oracle import message_of, rule
from ackwise.spark.results.plan import of_keys, of_messages, of_offsets, steps
from ackwise.spark.results.tables import MISSING, missing_rows, names
from ackwise.spark.vocabulary import ANOMALIES as VERDICTS
from ackwise.spark.vocabulary import Flag, Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Made-up histories beside the named ones.
UNIVERSES = 60


def broken() -> list[History]:
    """Groups in which something went wrong that a plan can be made for."""
    at = NOW - 9000 * SECOND
    lost = History("lost").say("w1", "0:CS 1:CF 2:CF 3:CS 4:CS W=5", ago=2000, record_ts=at)
    lost.say("w1", "5:CS 6:CF 7:CS W=8", ago=1900, record_ts=at + SECOND)
    never = History("never").say("w1", "0:CS 3:CS W=4", ago=2000)
    stuck = History("stuck").say("w0", "0:C 1:CFB 1@2:C", ago=5000).say("w2", "2:CS W=3", ago=2000)
    gone = History("gone").say("w1", "0:CFB 1:CS W=2", ago=5000, due_ts=NOW - 4000 * SECOND).drain(10)
    phantom = History("phantom").say("w1", "0:D 1:CS W=2", ago=2000)
    twice = History("twice").say("w1", "0:CS", ago=2000).say("w2", "0:CS 1:CS W=2", ago=1900)
    keys = History("keys").say("w1", "0:CS 1:CS 2:CS W=3", ago=2000, key="k")
    young = History("young").say("w1", "0:CF 1:CS W=2", ago=30)
    unknown = History("unknown").say("w1", "0:CS").skip("w1", 4).say("w1", "2:CS W=3")
    apart = History("apart").say("w1", "0:CF", ago=2000).say("w1", "1:CF W=2", ago=2000, handler="mail")
    return [lost, never, stuck, gone, phantom, twice, keys, young, unknown, apart]


def everything() -> list[History]:
    return [*broken(), *map(universe, range(UNIVERSES))]


@pytest.fixture(scope="module")
def plans(judging: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[RepairStep], list[RepairStep]]:
    """The steps of one run, without what is provisional; and with it, from each frame by itself."""
    path = write_parquet(tmp_path_factory.mktemp("plans") / "events.parquet", [event for each in everything() for event in each.events])
    found = weigh(judging, evidence_of(path), CONFIG)
    named = names(judging, found.facts)
    listed = {name: mask for name, mask in masks_of_absent().items() if name in MISSING}
    rest = [of_keys(found.settled, found.failed, named), of_offsets(missing_rows(stretches(found.words, listed), named))]
    try:
        final, each = ([of_messages(found.settled, named, provisional=wanted), *rest] for wanted in (False, True))
        return list(steps(final)), [step for frame in each for step in steps([frame])]
    finally:
        found.release()


def planned(steps: Sequence[RepairStep], group: str) -> list[tuple[Action, str, int, int, int]]:
    return [(each.action, each.verdict, each.start, each.end, each.attempt) for each in steps if each.group == group]


def test_each_anomaly_has_the_step_that_mends_it_and_neighbours_are_one_range(plans: tuple[list[RepairStep], list[RepairStep]]) -> None:
    steps = plans[0]
    assert planned(steps, "lost") == [(Action.REDELIVER, "LOST", 1, 3, 1), (Action.REDELIVER, "LOST", 6, 7, 1)]
    assert planned(steps, "never") == [(Action.PROBE, "NEVER_SEEN", 1, 3, 0)]
    assert planned(steps, "stuck") == [(Action.RELEASE, "STUCK", 0, 1, 1), (Action.RELEASE, "STUCK", 1, 2, 2)]
    assert planned(steps, "gone") == [(Action.REDELIVER, "RETRY_LOST", 0, 1, 1)]
    assert planned(steps, "phantom") == [(Action.REPLAY, "PHANTOM_SUPPRESSED", 0, 1, 1)]
    assert planned(steps, "twice") == [(Action.REVIEW, "MULTI_EXECUTED", 0, 1, 1)]
    assert planned(steps, "keys") == [(Action.REVIEW, "LOGICAL_DUPLICATE", 0, 3, 0)]
    assert planned(steps, "unknown") == [(Action.VERIFY, "UNKNOWN_EXPORT_GAP", 1, 2, 0)]
    assert {(step.handler, step.start, step.end) for step in steps if step.group == "apart"} == {("bill", 0, 1), ("mail", 1, 2)}
    assert planned(steps, "young") == []


def needed(history: History) -> dict[tuple[object, ...], int]:
    """What the oracle says of a history that a plan must have: what each offset is, with the highest attempt that was seen."""
    events = list({(event["writer_id"], event["seq"]): event for event in history.events}.values())
    ruling, found = rule(events, CONFIG), dict[tuple[object, ...], int]()
    for (partition, handler, epoch, offset), (verdict, flags) in ruling.messages.items():
        if verdict in {*VERDICTS, Verdict.UNKNOWN_EXPORT_GAP} or Flag.COMMITTED_PAST in flags:
            about = [e for e in events if is_message(e) and message_of(e) == (partition, handler, epoch, offset)]
            found[(*partition, handler, epoch, offset, verdict.name)] = max(max(e.get("attempt") or 1, 1) for e in about)
    for partition, absent in ruling.absent.items():
        found |= {(*partition, None, None, offset, name): 0 for offset, name in absent.items() if name in PLANNED}
    return found


def is_message(event: Mapping[str, Any]) -> bool:
    return event["event_type"] in set(EventCode) and event["event_type"] < 20 and None not in (event.get("offset"), event.get("partition"))


def place(step: RepairStep) -> tuple[object, ...]:
    return step.cluster, step.group, step.topic, step.topic_id, step.partition, step.handler, step.dedup_epoch


def test_the_plan_has_of_every_universe_what_the_oracle_says_and_nothing_else(plans: tuple[list[RepairStep], list[RepairStep]]) -> None:
    steps = [step for step in plans[1] if step.verdict != "LOGICAL_DUPLICATE"]
    planned = [((*place(step), offset, step.verdict), step.attempt) for step in steps for offset in range(step.start, step.end)]
    assert dict(planned) == {key: attempt for history in everything() for key, attempt in needed(history).items()}
    assert len(dict(planned)) == len(planned)
    assert len({step.verdict for step in steps}) > 6
    ends, starts = ({(*place(s), s.verdict, s.attempt, at(s)) for s in plans[1]} for at in (attrgetter("end"), attrgetter("start")))
    assert ends & starts == set(), "no two steps could be one"


def test_what_is_provisional_is_only_planned_if_asked_for(plans: tuple[list[RepairStep], list[RepairStep]]) -> None:
    final, all_of_them = plans
    of_messages = [step for step in final if step.verdict != "LOGICAL_DUPLICATE"]  # that a key ran twice is final, whatever else is not
    assert [step for step in of_messages if "PROVISIONAL" in step.flags] == []
    more = set(all_of_them) - set(final)
    assert {step.group for step in more} >= {"young"}
    assert {step.group for step in more if "PROVISIONAL" not in step.flags} == set()
    assert planned(all_of_them, "young") == [(Action.REDELIVER, "LOST", 0, 1, 1)]


def test_a_step_says_by_what_it_was_judged_and_between_which_times_its_records_were_written(
    plans: tuple[list[RepairStep], list[RepairStep]],
) -> None:
    steps = [step for step in plans[0] if step.group == "lost"]
    at = NOW - 9000 * SECOND
    assert [(step.record_ts, step.last_event, step.flags) for step in steps] == [
        ((at, at), "FAILED", ("HAD_FAILURES",)), ((at + SECOND, at + SECOND), "FAILED", ("HAD_FAILURES",))
    ]  # fmt: skip
    assert [step.dedup_hash is None for step in steps] == [True, False]


def test_a_plan_that_is_written_and_read_is_the_same_and_says_how_much_is_in_it(
    plans: tuple[list[RepairStep], list[RepairStep]], tmp_path: Path
) -> None:
    steps = plans[0]
    counts = write_plan(tmp_path / NAME, Title("run", 7), steps)
    assert (list(read_steps(tmp_path / NAME)), read_title(tmp_path / NAME)) == (steps, Title("run", 7))
    of = {action: [step for step in steps if step.action is action] for action in Action if action is not Action.REQUEUE}
    assert counts == [Planned(action, len(found), sum(step.offsets for step in found)) for action, found in of.items()]
    assert {step.action for step in steps if step.risk is Risk.SAFE} == {Action.REDELIVER, Action.PROBE, Action.RELEASE}


def test_the_same_step_has_the_same_key_in_every_run_and_no_other_has_it(plans: tuple[list[RepairStep], list[RepairStep]]) -> None:
    first, second = ([step.idempotency_key for step in steps] for steps in plans)
    assert len(set(second)) == len(second)
    assert set(first) & set(second)
    assert replace(plans[0][0], attempt=99, last_ts=1).idempotency_key == first[0]
