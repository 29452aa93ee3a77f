"""The claim protocol keeps every invariant in every interleaving, and each thing that could be left out of it breaks one."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.stores.cases import case
from tests.stores.claim_model import (
    DEATH,
    EFFECTS,
    FENCING,
    INVARIANTS,
    LOSS,
    OVERLAP,
    RUN_AFTER_DONE,
    SECOND_RUN,
    STALE_OWNER,
    STUCK,
    Faults,
    Model,
    Rules,
    explore,
)

from ackwise.middleware.storage.claimstore import Ack, Acquired, AlreadyDone, Busy, ClaimAnswer, Outcome, Stale
from ackwise.stores.protocol import transitions
from ackwise.stores.protocol.transitions import Record

PLAIN = Model(Faults(crashes=1, stalls=1, failures=1))
#: Workers that name themselves, and one that can't beside one that does.
NAMED = Model(Faults(crashes=1, stalls=1, lost_replies=1, failures=1), names=(True, True))
MIXED = Model(Faults(crashes=1), names=(True, False))
#: A worker dies between the copy and the store; its successor has both attempts, and does not hear that the first one was granted.
UNHEARD = Model(Faults(crashes=1, lost_replies=1, failures=1), owners=(0,), retry_owner=0)
#: An order: what fails runs again in place, under the same attempt.
IN_PLACE = Model(Faults(crashes=1, stalls=1, lost_replies=1, failures=2), owners=(0,), in_place=True)
#: The replay of a dead letter succeeds, whatever became of the worker that had published the letter.
REPLAYED = Model(Faults(crashes=1, stalls=1, failures=2, replays=1), owners=(0,))
SMALL = {
    "one record that fails in place": IN_PLACE,
    "one record that fails in place and moves": Model(Faults(crashes=1, stalls=1, failures=2, moves=1), owners=(0,), in_place=True),
    "two records of one key that fail in place": Model(Faults(crashes=1, stalls=1, failures=2), in_place=True),
    "two records of one key in one batch that fail in place": Model(Faults(crashes=1, stalls=1, failures=1), owners=(0, 0), in_place=True),
    "one record that moves": Model(Faults(crashes=1, stalls=1, lost_replies=1, failures=1, moves=1), owners=(0,)),
    "one record that dies": Model(Faults(crashes=1, stalls=1, lost_replies=1, failures=2), owners=(0,)),
    "one record that dies, and its replay that succeeds": REPLAYED,
    "two records of one key at two workers": Model(Faults(crashes=1, stalls=1, lost_replies=1, failures=1)),
    "two records of one key in a store that forgets": Model(Faults(crashes=1, stalls=1, failures=1, evictions=1)),
    "two records of one key in one batch, and a relay that repeats itself": Model(
        Faults(crashes=1, stalls=1, failures=1, duplicates=1), owners=(0, 0), retry_owner=0
    ),
    "two attempts in one batch, and a claim whose answer is lost": UNHEARD,
    "two records of one key at two workers that name themselves": NAMED,
    "two records of one key at a worker that names itself and one that can't": Model(
        Faults(crashes=1, stalls=1, lost_replies=1, failures=1), names=(True, False)
    ),
    "one record that moves between workers that name themselves, of which any may die": Model(
        Faults(crashes=2, stalls=1, lost_replies=1, moves=1), owners=(0,), names=(True, True)
    ),
}
LARGE = {
    "two records of one key at two workers that name themselves, and two crashes": Model(
        Faults(crashes=2, stalls=1, failures=1), names=(True, True)
    ),
    "two records of one key at a worker that can't name itself and one that does, and two crashes": Model(
        Faults(crashes=2, stalls=1, failures=1), names=(False, True)
    ),
    "two records of one key at workers that name themselves, in a store that forgets": Model(
        Faults(crashes=1, stalls=1, lost_replies=1, failures=1, evictions=1), names=(True, True)
    ),
    "one record that moves and dies, and a relay that repeats itself": Model(
        Faults(crashes=1, stalls=1, failures=2, moves=1, duplicates=1), owners=(0,)
    ),
    "two records of one key, one of which moves": Model(Faults(crashes=1, stalls=1, lost_replies=1, failures=1, moves=1)),
    "two records of one key in one batch, one of which moves": Model(Faults(crashes=1, stalls=1, failures=1, moves=1), owners=(0, 0)),
    "two records of one key that die between two crashes": Model(Faults(crashes=2, stalls=1, failures=2)),
    "two records of one key in one batch, and claims whose answers are lost": Model(
        Faults(crashes=1, stalls=1, lost_replies=2, failures=1), owners=(0, 0), retry_owner=0
    ),
    "two records of one key in a store that forgets and is not heard": Model(
        Faults(crashes=1, stalls=1, lost_replies=1, failures=1, evictions=1)
    ),
}


@pytest.mark.slow  # explores every state of the model
def test_no_interleaving_breaks_an_invariant() -> None:
    for name in SMALL:
        with case(name):
            assert_clean(name, SMALL[name])


@pytest.mark.nightly
@pytest.mark.slow  # a million states
@pytest.mark.parametrize("name", LARGE)
def test_no_interleaving_of_a_larger_world_breaks_an_invariant(name: str) -> None:
    assert_clean(name, LARGE[name])


def assert_clean(name: str, model: Model) -> None:
    verdict = explore(model)
    sys.stdout.write(f"{name}: {verdict.states} states\n")
    assert verdict.broken == {}


Named = Any  # the owner that asks, and those that are gone
Claimed = tuple[Record | None, ClaimAnswer]
Changed = tuple[Record | None, Ack]


def claim_unfenced(record: Record | None, token: int, attempt: int, now: float, lease: float, retention: float, *named: Named) -> Claimed:
    """SET if not exists, with a time to live."""
    if record is not None and record.outcome:
        return record, AlreadyDone(record.outcome)
    if record is not None and now < record.leased_until:
        return record, Busy(lease)
    epoch = 1 if record is None else record.epoch + 1
    return Record(token, epoch, attempt, 0, False, None, now + lease, retention), Acquired(epoch)


def complete_unfenced(record: Record | None, token: int, attempt: int, outcome: Outcome, now: float, retention: float) -> Changed:
    """SET."""
    return Record(token, 1, attempt, 0, False, outcome, now, retention), Ack.OK


def release_unfenced(record: Record | None, token: int, sent_back: int | None, *times: float) -> Changed:
    """DEL."""
    return None, Ack.OK


def renew_unfenced(record: Record | None, token: int, now: float, lease: float, retention: float, owner: str) -> Changed:
    """EXPIRE."""
    return (record and record._replace(leased_until=now + lease)), Ack.OK


def whose(record: Record | None, token: int) -> int:
    """The token of whoever holds the record, so that every token fits."""
    return record.token if record and not record.outcome and record.token else token


def complete_by_anybody(record: Record | None, token: int, attempt: int, outcome: Outcome, now: float, retention: float) -> Changed:
    return transitions.complete(record, whose(record, token), attempt, outcome, now, retention)


def release_by_anybody(record: Record | None, token: int, sent_back: int | None, now: float, retention: float) -> Changed:
    return transitions.release(record, whose(record, token), sent_back, now, retention)


def renew_by_anybody(record: Record | None, token: int, now: float, lease: float, retention: float, owner: str) -> Changed:
    return transitions.renew(record, whose(record, token), now, lease, retention, owner)


def claim_stale_at_equal(
    record: Record | None, token: int, attempt: int, now: float, lease: float, retention: float, *named: Named
) -> Claimed:
    if record and not record.outcome and record.token != token and attempt <= record.next_attempt:
        return record, Stale()
    return transitions.claim(record, token, attempt, now, lease, retention, *named)


def claim_without_busy(
    record: Record | None, token: int, attempt: int, now: float, lease: float, retention: float, *named: Named
) -> Claimed:
    expired = record and record._replace(leased_until=now)
    return transitions.claim(expired, token, attempt, now, lease, retention, *named)


def claim_without_end(
    record: Record | None, token: int, attempt: int, now: float, lease: float, retention: float, *named: Named
) -> Claimed:
    if record and not record.outcome and record.token not in (0, token):
        return record, Busy(lease)
    return transitions.claim(record, token, attempt, now, lease, retention, *named)


def claim_without_memory(
    record: Record | None, token: int, attempt: int, now: float, lease: float, retention: float, *named: Named
) -> Claimed:
    unfinished = None if record and record.outcome else record
    return transitions.claim(unfinished, token, attempt, now, lease, retention, *named)


def claim_without_epoch(
    record: Record | None, token: int, attempt: int, now: float, lease: float, retention: float, *named: Named
) -> Claimed:
    after, answer = transitions.claim(record, token, attempt, now, lease, retention, *named)
    return after and after._replace(epoch=1), answer


def claim_in_the_name_of_the_dead(
    record: Record | None, token: int, attempt: int, now: float, lease: float, retention: float, owner: str, gone: Sequence[str]
) -> Claimed:
    after, answer = transitions.claim(record, token, attempt, now, lease, retention, owner, gone)
    keeps = after is not record and after is not None and record is not None and record.owner
    return (after.held_by(record.owner) if after and record and keeps else after), answer


def claim_until_a_death(
    record: Record | None, token: int, attempt: int, now: float, lease: float, retention: float, owner: str, gone: Sequence[str]
) -> Claimed:
    if record and not record.outcome and record.token not in (0, token) and record.owner not in gone:
        return record, Busy(lease)
    return transitions.claim(record, token, attempt, now, lease, retention, owner, gone)


def complete_without_writing(record: Record | None, token: int, attempt: int, outcome: Outcome, now: float, retention: float) -> Changed:
    after, _ = transitions.release(record, token, None, now, retention)
    return after, Ack.LOST_DONE


def complete_beside_a_death(record: Record | None, token: int, attempt: int, outcome: Outcome, now: float, retention: float) -> Changed:
    if record and record.outcome:
        return record, Ack.OK if record.token == token else Ack.LOST_DONE
    return transitions.complete(record, token, attempt, outcome, now, retention)


def complete_beside_a_holder(record: Record | None, token: int, attempt: int, outcome: Outcome, now: float, retention: float) -> Changed:
    if token == 0 and record and not record.outcome:
        return record, Ack.LOST
    return transitions.complete(record, token, attempt, outcome, now, retention)


def complete_over_a_success(record: Record | None, token: int, attempt: int, outcome: Outcome, now: float, retention: float) -> Changed:
    if outcome is Outcome.DEAD and record and record.outcome is Outcome.OK:
        return record._replace(token=token, outcome=outcome), Ack.OK
    return transitions.complete(record, token, attempt, outcome, now, retention)


@dataclass(frozen=True)
class Sabotage:
    """The protocol with one thing wrong, and what has to notice."""

    rules: Rules
    breaks: str
    world: Model = PLAIN


SABOTAGES = {
    "SETNX, SET and DEL": Sabotage(Rules(claim_unfenced, complete_unfenced, release_unfenced, renew_unfenced), STALE_OWNER),
    "no token compare": Sabotage(Rules(complete=complete_by_anybody, release=release_by_anybody, renew=renew_by_anybody), STALE_OWNER),
    "stale at <=": Sabotage(Rules(claim=claim_stale_at_equal), LOSS),
    "send-back before the acknowledgement": Sabotage(Rules(publishes_first=False), LOSS),
    "send-back without a copy": Sabotage(Rules(publishes=False), LOSS),
    "commit before settle": Sabotage(Rules(commits_last=False), LOSS),
    "running again on LOST": Sabotage(Rules(remembers=False), SECOND_RUN),
    "the first record of a batch leads": Sabotage(Rules(highest_leads=False), LOSS),
    "a stale copy that keeps the claim which it was granted unheard": Sabotage(Rules(gives_back=False), LOSS, UNHEARD),
    "an attempt in place that is told to be sent back": Sabotage(Rules(suspends_plainly=False), LOSS, IN_PLACE),
    "a lease that is not respected": Sabotage(Rules(claim=claim_without_busy), OVERLAP),
    "a lease that never ends": Sabotage(Rules(claim=claim_without_end), STUCK),
    "a completed key that is granted": Sabotage(Rules(claim=claim_without_memory), RUN_AFTER_DONE),
    "an epoch that does not grow": Sabotage(Rules(claim=claim_without_epoch), FENCING),
    "a death that is guessed": Sabotage(Rules(proves=False), OVERLAP, NAMED),
    "a take-over in the name of the dead": Sabotage(Rules(claim=claim_in_the_name_of_the_dead), OVERLAP, NAMED),
    "a lease that ends by a death alone, and a death of a worker without a name": Sabotage(Rules(claim=claim_until_a_death), STUCK, MIXED),
    "the success of a replay that waits for whoever holds the key": Sabotage(Rules(complete=complete_beside_a_holder), DEATH, REPLAYED),
    "a death that takes the place of a success": Sabotage(Rules(complete=complete_over_a_success), DEATH, REPLAYED),
    "a success that leaves a death": Sabotage(Rules(complete=complete_beside_a_death), DEATH, REPLAYED),
    "a mark that is not written": Sabotage(Rules(complete=complete_without_writing), EFFECTS),
}


def test_a_sabotage_is_caught() -> None:
    for name in SABOTAGES:
        with case(name):
            sabotage = SABOTAGES[name]
            verdict = explore(replace(sabotage.world, rules=sabotage.rules), until=sabotage.breaks)
            sys.stdout.write(
                f"{name}: {verdict.states} states, {sabotage.breaks} after: {'; '.join(verdict.broken.get(sabotage.breaks, ()))}\n"
            )
            assert sabotage.breaks in verdict.broken


def test_where_every_worker_names_itself_its_death_frees_a_claim_whose_lease_never_ends() -> None:
    verdict = explore(replace(MIXED, names=(True, True), rules=Rules(claim=claim_until_a_death)))
    assert verdict.broken == {}


def test_every_invariant_is_broken_by_a_sabotage() -> None:
    assert {sabotage.breaks for sabotage in SABOTAGES.values()} == set(INVARIANTS)
