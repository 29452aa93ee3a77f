"""`StoreConformance`: the test suite that every claim store passes, for the stores here and for yours.

`Granting` tests who is granted a claim, and how it is completed, released and renewed. `Owners` tests the claims of a process that is gone.
These lines test your own store (with pytest and hypothesis installed):

    from ackwise.stores.conformance import Features, StoreConformance

    class TestEtcdStore(StoreConformance):
        features = Features(shared=True, persistent=True, injected_clock=False, lease=0.5, retention=1.5)

        def make(self, place, clock):
            return EtcdStore("http://localhost:2379")

Every test asks single keys, and asks the same in columns (`ackwise.middleware.storage.claimstore`).
Put `pytest.register_assert_rewrite("ackwise.stores.conformance")` into your `conftest.py` to see both sides of a failed comparison.
Keys are random, so runs may share a server. The rules behind the tests are in `docs/store-protocol.md`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from ackwise.middleware.storage.claimstore import (
    WHOEVER,
    Ack,
    Acquired,
    AlreadyDone,
    Busy,
    Claim,
    ClaimStore,
    Complete,
    Outcome,
    Release,
    Stale,
)
from ackwise.stores.conformance.exchanges import Columns, Exchanges, Histories
from ackwise.stores.conformance.scene import MINE, ONE, OTHER, THIRD, UNRECORDED, YOURS, Clock, Features, Scene

__all__ = ["Clock", "Features", "Scene", "StoreConformance"]


class Granting:
    """Claims of one key by one worker and another, and how they end."""

    def test_a_completed_key_is_already_done_and_says_how_to_whoever_asks(self, scene: Scene) -> None:
        for outcome in Outcome:
            key = scene.key()
            scene.claim(key)
            assert [scene.complete(key, MINE, outcome), scene.complete(key, MINE, outcome)] == [Ack.OK, Ack.OK], outcome
            for asked, token in ((key, YOURS), (key, MINE), (key._replace(attempt=2), YOURS)):
                assert scene.claim(asked, token) == AlreadyDone(outcome)

    def test_a_completed_key_is_remembered_for_the_retention(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.complete(key)
        scene.wait(scene.retention - scene.lease)
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.OK)
        scene.wait(scene.lease)
        assert scene.claim(key, YOURS) == Acquired(1)

    def test_a_stale_owner_completes_releases_and_renews_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        assert scene.complete(key, MINE) is Ack.LOST
        assert scene.renew(key, MINE) is Ack.LOST
        assert scene.release(key, MINE, sent_back=2) is Ack.LOST
        assert scene.is_busy(key)
        assert scene.renew(key, YOURS) is Ack.OK
        assert scene.complete(key, YOURS) is Ack.OK

    def test_a_released_claim_can_not_be_completed_or_renewed_nor_a_completed_one_released_or_renewed(self, scene: Scene) -> None:
        released, completed = scene.keys(2)
        scene.exchange(claims=[Claim(released, MINE), Claim(completed, MINE)])
        scene.exchange(completes=[Complete(completed, MINE, Outcome.OK)], releases=[Release(released, MINE)])
        assert [scene.complete(released), scene.renew(released)] == [Ack.LOST, Ack.LOST]
        assert [scene.release(completed), scene.renew(completed)] == [Ack.LOST, Ack.LOST]
        assert scene.claim(released, YOURS) == Acquired(2)
        assert scene.claim(completed, YOURS) == AlreadyDone(Outcome.OK)

    def test_completing_what_somebody_else_completed_says_so(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        scene.complete(key, YOURS)
        assert scene.complete(key, MINE, Outcome.DEAD) is Ack.LOST_DONE
        assert scene.claim(key, THIRD) == AlreadyDone(Outcome.OK)

    def test_a_success_takes_the_place_of_a_death(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.complete(key, MINE, Outcome.DEAD)
        scene.wait(scene.retention - scene.lease)
        assert [scene.complete(key, YOURS), scene.complete(key, YOURS)] == [Ack.OK, Ack.OK]
        assert scene.complete(key, MINE, Outcome.DEAD) is Ack.LOST_DONE
        scene.wait(scene.retention - scene.lease)
        assert scene.claim(key, THIRD) == AlreadyDone(Outcome.OK)
        scene.wait(scene.lease)
        assert scene.claim(key, THIRD) == Acquired(1)

    def test_the_success_of_a_replay_counts_whoever_holds_the_key_and_a_death_that_comes_late_does_not(self, scene: Scene) -> None:
        ended, held, copied = scene.keys(3)
        scene.claim(ended)
        scene.wait(scene.lease)
        scene.exchange(claims=[Claim(held, MINE), Claim(copied, MINE)])
        scene.release(copied, MINE, sent_back=2)
        for key in (ended, held, copied):
            assert [scene.complete(key, WHOEVER), scene.complete(key, WHOEVER)] == [Ack.OK, Ack.OK]
            assert scene.complete(key, MINE, Outcome.DEAD) is Ack.LOST_DONE
            assert (scene.renew(key, MINE), scene.release(key, MINE)) == (Ack.LOST, Ack.LOST)
            assert scene.claim(key._replace(attempt=2), YOURS) == AlreadyDone(Outcome.OK)

    def test_nothing_but_a_success_counts_whoever_holds_the_key_or_takes_the_place_of_a_death(self, scene: Scene) -> None:
        for outcome in (Outcome.SKIPPED, Outcome.DEAD):
            held, dead = scene.keys(2)
            scene.exchange(claims=[Claim(held, MINE), Claim(dead, MINE)])
            scene.complete(dead, MINE, Outcome.DEAD)
            assert scene.complete(held, WHOEVER, outcome) is Ack.LOST
            assert scene.complete(held, MINE) is Ack.OK
            assert scene.complete(dead, YOURS, outcome) is Ack.LOST_DONE
            assert scene.claim(dead, THIRD) == AlreadyDone(Outcome.DEAD)

    def test_what_is_not_recorded_of_a_completed_key_is_said_to_whoever_asks_and_stays(self, scene: Scene) -> None:
        held, unknown, dead, plain = scene.keys(4)
        scene.exchange(claims=[Claim(held, MINE), Claim(dead, MINE), Claim(plain, MINE)])
        scene.complete(dead, MINE, Outcome.DEAD)
        acks = scene.exchange(
            completes=[
                Complete(plain, MINE, Outcome.OK),
                Complete(held, MINE, Outcome.OK, UNRECORDED),
                Complete(unknown, MINE, Outcome.OK, "1 2"),
                Complete(dead, YOURS, Outcome.OK, UNRECORDED),
            ]
        ).completes
        assert acks == [Ack.OK, Ack.OK, Ack.RESTORED, Ack.OK]
        if not scene.features.owners:
            pytest.skip("the store keeps no owners")
        unrecorded = AlreadyDone(Outcome.OK, UNRECORDED)
        for token in (YOURS, MINE):
            answers = scene.exchange(claims=[Claim(key, token) for key in (held, unknown, dead, plain)]).claims
            assert answers == [unrecorded, AlreadyDone(Outcome.OK, "1 2"), unrecorded, AlreadyDone(Outcome.OK)]
        assert [scene.complete(held), scene.complete(plain, MINE, unrecorded=UNRECORDED)] == [Ack.OK, Ack.OK]
        assert scene.complete(held, YOURS) is Ack.LOST_DONE
        assert [scene.claim(held, THIRD), scene.claim(plain, THIRD)] == [unrecorded, AlreadyDone(Outcome.OK)]
        scene.wait(scene.retention)
        assert [scene.claim(key, THIRD) for key in (held, plain)] == [Acquired(1), Acquired(1)]

    def test_a_success_that_is_recorded_takes_the_place_of_a_death_of_which_something_is_not(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.complete(key, MINE, Outcome.DEAD, UNRECORDED)
        assert scene.complete(key, YOURS) is Ack.OK
        assert scene.claim(key, THIRD) == AlreadyDone(Outcome.OK)

    def test_completing_an_unknown_key_restores_it(self, scene: Scene) -> None:
        key = scene.key()
        assert scene.complete(key, MINE, Outcome.SKIPPED) is Ack.RESTORED
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.SKIPPED)
        assert scene.complete(key, MINE, Outcome.SKIPPED) is Ack.OK
        scene.wait(scene.retention - scene.lease)
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.SKIPPED)

    def test_a_sent_back_key_is_stale_for_its_original_and_acquired_by_its_copy(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(key)
        assert scene.release(key, sent_back=2) is Ack.OK
        assert scene.claim(key, YOURS) == Stale()
        assert scene.claim(copy, YOURS) == Acquired(2, lost=0, took_unreleased=False)

    def test_stale_comes_before_busy_and_a_take_over_and_changes_nothing(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        taken = scene.claim(copy)
        assert scene.claim(key, YOURS) == Stale()
        assert scene.claim(copy) == taken
        scene.wait(scene.lease)
        assert scene.claim(key, YOURS) == Stale()
        assert scene.complete(copy) is Ack.OK

    def test_done_comes_before_stale(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(copy)
        scene.complete(copy)
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.OK)

    def test_an_equal_attempt_is_not_stale(self, scene: Scene) -> None:
        key = scene.key(attempt=2)
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.claim(key, YOURS) == Acquired(2, lost=1, took_unreleased=True)

    def test_an_original_stays_stale_after_its_copy_was_released_or_the_worker_of_its_copy_was_killed(self, scene: Scene) -> None:
        released, killed, before = (scene.original_and_copy() for _ in range(3))
        scene.exchange(claims=[Claim(key, MINE) for key, _ in (released, killed, before)])
        scene.exchange(releases=[Release(released[0], MINE, 2), Release(killed[0], MINE, 2)])
        scene.exchange(claims=[Claim(released[1], YOURS), Claim(killed[1], YOURS)])
        scene.release(released[1], YOURS)
        scene.wait(scene.lease)
        assert scene.claim(before[1], YOURS) == Acquired(2, lost=0, took_unreleased=True), "claimed before the original was sent back"
        assert scene.release(before[0], MINE, sent_back=2) is Ack.LOST
        assert [scene.claim(key, THIRD) for key, _ in (released, killed, before)] == [Stale()] * 3

    def test_a_sent_back_key_is_remembered_for_the_retention_counted_from_the_release(self, scene: Scene) -> None:
        key = scene.key(attempt=1)
        scene.claim(key)
        scene.wait(scene.lease / 2)
        scene.release(key, sent_back=2)
        scene.wait(scene.retention - scene.lease / 2)
        assert scene.claim(key, YOURS) == Stale()
        scene.wait(scene.lease / 2)
        assert scene.claim(key, YOURS) == Acquired(1)

    def test_every_killed_worker_is_counted(self, scene: Scene) -> None:
        key = scene.key()
        answers = []
        for token in range(1, 5):
            answers.append(scene.claim(key, token))
            scene.wait(scene.lease)
        assert answers == [Acquired(1), Acquired(2, 1, True), Acquired(3, 2, True), Acquired(4, 3, True)]

    def test_a_send_back_and_a_later_attempt_start_the_count_anew_and_a_plain_release_keeps_it(self, scene: Scene) -> None:
        released, sent_back, later = keys = scene.keys(3)
        scene.exchange(claims=[Claim(key, MINE) for key in keys])
        scene.wait(scene.lease)
        scene.exchange(claims=[Claim(key, YOURS) for key in keys])
        scene.exchange(releases=[Release(released, YOURS), Release(sent_back, YOURS, 2)])
        assert scene.claim(released, THIRD) == Acquired(3, lost=1, took_unreleased=False)
        assert scene.claim(sent_back._replace(attempt=2), THIRD) == Acquired(3, lost=0, took_unreleased=False)
        scene.wait(scene.lease)
        assert scene.claim(later._replace(attempt=3), THIRD) == Acquired(3, lost=0, took_unreleased=True)

    def test_a_release_repeated_changes_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.release(key, sent_back=2)
        assert scene.release(key, sent_back=2) is Ack.LOST
        assert scene.claim(key._replace(attempt=2), YOURS) == Acquired(2)
        assert scene.release(key, sent_back=2) is Ack.LOST
        assert scene.is_busy(key._replace(attempt=2))

    def test_releasing_or_renewing_an_unknown_key_changes_nothing(self, scene: Scene) -> None:
        key = scene.key()
        assert scene.release(key, sent_back=2) is Ack.LOST
        assert scene.renew(key) is Ack.LOST
        assert scene.claim(key) == Acquired(1)

    def test_a_fresh_claim_is_acquired_with_epoch_1_and_answered_again_as_the_first_time(self, scene: Scene) -> None:
        key = scene.key()
        assert scene.claim(key) == scene.claim(key) == Acquired(1, lost=0, took_unreleased=False)

    def test_a_repeated_claim_and_a_renewal_start_the_lease_again(self, scene: Scene) -> None:
        claimed, renewed = scene.keys(2)
        scene.exchange(claims=[Claim(claimed, MINE), Claim(renewed, MINE)])
        for _ in range(2):
            scene.wait(scene.lease * 0.6)
            scene.claim(claimed)
            assert scene.renew(renewed) is Ack.OK
        assert scene.is_busy(claimed)
        assert scene.is_busy(renewed)

    def test_an_expired_claim_is_still_its_owners_if_nobody_took_over(self, scene: Scene) -> None:
        claimed, completed, renewed = scene.keys(3)
        scene.exchange(claims=[Claim(key, MINE) for key in (claimed, completed, renewed)])
        scene.wait(scene.lease)
        assert scene.claim(claimed) == Acquired(1)
        assert scene.renew(renewed) is Ack.OK
        assert scene.is_busy(claimed)
        assert scene.is_busy(renewed)
        assert scene.complete(completed) is Ack.OK
        assert scene.claim(completed, YOURS) == AlreadyDone(Outcome.OK)

    def test_a_held_key_is_busy_for_at_most_the_rest_of_the_lease_and_stays_its_owners(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        answer = scene.claim(key, YOURS)
        assert isinstance(answer, Busy)
        assert 0 < answer.retry_after <= scene.lease
        assert scene.complete(key) is Ack.OK

    def test_an_expired_claim_is_taken_over_with_the_next_epoch_and_answered_again_as_the_first_time(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        taken = Acquired(2, lost=1, took_unreleased=True)
        assert scene.claim(key, YOURS) == scene.claim(key, YOURS) == taken
        scene.renew(key, YOURS)
        assert scene.claim(key, YOURS) == taken

    def test_an_abandoned_claim_keeps_its_epoch_until_a_retention_after_its_lease(self, scene: Scene) -> None:
        kept, forgotten = scene.keys(2)
        scene.exchange(claims=[Claim(kept, MINE), Claim(forgotten, MINE)])
        scene.wait(scene.lease + scene.retention / 2)
        assert scene.claim(kept, YOURS) == Acquired(2, lost=1, took_unreleased=True)
        scene.wait(scene.retention / 2)
        assert scene.claim(forgotten, YOURS) == Acquired(1)

    def test_a_released_claim_is_taken_at_once_with_the_next_epoch(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        assert scene.release(key) is Ack.OK
        assert scene.claim(key, YOURS) == Acquired(2, lost=0, took_unreleased=False)

    def test_the_day_is_a_part_of_a_keys_identity_and_the_attempt_is_not(self, scene: Scene) -> None:
        key = scene.key(attempt=1)
        days = [key._replace(day=day) for day in (None, -1, 0, 19_000, 19_001)]
        assert [scene.claim(day) for day in days] == [Acquired(1)] * len(days)
        for day in days:
            assert scene.is_busy(day._replace(attempt=2))
            assert scene.complete(day) is Ack.OK
            assert scene.claim(day, YOURS) == AlreadyDone(Outcome.OK)


class Owners:
    """Several stores on one place, and claims of named processes; with a store without owners every worker waits for the lease."""

    def test_closing_twice_does_nothing(self, scene: Scene) -> None:
        scene.run(scene.store.close())
        scene.run(scene.store.close())

    def test_another_store_on_the_same_place_sees_every_record_at_once(self, scene: Scene) -> None:
        if not scene.features.shared:
            pytest.skip("only one store at a time can be open on a place")
        held, done = scene.keys(2)
        scene.exchange(claims=[Claim(held, MINE), Claim(done, MINE)])
        scene.complete(done)
        scene.store = scene.open_store()
        assert scene.is_busy(held)
        assert scene.claim(done, YOURS) == AlreadyDone(Outcome.OK)

    def test_a_restarted_worker_finds_every_record_again(self, scene: Scene) -> None:
        if not scene.features.persistent:
            pytest.skip("the records end with the store")
        held, done, back = scene.keys(3)
        scene.exchange(claims=[Claim(key, MINE) for key in (held, done, back)])
        told = scene.key()
        scene.exchange(completes=[Complete(done, MINE, Outcome.DEAD)], releases=[Release(back, MINE, 2)])
        scene.complete(told, unrecorded=UNRECORDED)
        scene.reopen()
        assert not scene.features.owners or scene.claim(told, YOURS) == AlreadyDone(Outcome.OK, UNRECORDED)
        assert scene.is_busy(held)
        assert scene.claim(done, YOURS) == AlreadyDone(Outcome.DEAD)
        assert scene.claim(back, YOURS) == Stale()
        scene.wait(scene.lease)
        scene.reopen()
        assert scene.claim(held, YOURS) == Acquired(2, lost=1, took_unreleased=True)

    def test_a_claim_of_an_owner_that_is_gone_is_taken_over_before_its_lease_ends(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim_as(ONE, key, MINE)
        answer = scene.claim_as(OTHER, key, YOURS)
        assert isinstance(answer, Busy)
        if not scene.features.owners:
            pytest.skip("the store keeps no owners")
        assert answer.owner == ONE
        assert scene.claim_as(OTHER, key, YOURS, gone=[ONE]) == Acquired(2, lost=1, took_unreleased=True)
        assert (scene.complete(key, MINE), scene.renew(key, MINE)) == (Ack.LOST, Ack.LOST)
        busy = scene.claim_as(ONE, key, THIRD, gone=[ONE])
        assert isinstance(busy, Busy)
        assert busy.owner == OTHER
        assert scene.complete(key, YOURS) is Ack.OK
        assert scene.claim_as(ONE, key, THIRD, gone=[OTHER]) == AlreadyDone(Outcome.OK)

    def test_only_the_owner_that_is_gone_loses_its_claims(self, scene: Scene) -> None:
        unnamed, renewed, released, back = scene.keys(4)
        scene.claim(unnamed)
        for key in (renewed, released, back):
            scene.claim_as(ONE, key, MINE)
        scene.exchange(releases=[Release(released, MINE), Release(back, MINE, 2)])
        scene.renew_as(ONE, renewed, MINE)
        for key in (unnamed, renewed):
            assert isinstance(scene.claim_as(OTHER, key, YOURS, gone=[OTHER, "", "9d5f3c1a-0123456789abcdef"]), Busy)
        assert isinstance(scene.claim_as(OTHER, unnamed, YOURS, gone=[ONE]), Busy)
        assert scene.claim_as(OTHER, released, YOURS, gone=[ONE]) == Acquired(2)
        assert scene.claim_as(OTHER, back, YOURS, gone=[ONE]) == Stale()
        if scene.features.owners:
            assert scene.claim_as(OTHER, renewed, YOURS, gone=[ONE]) == Acquired(2, lost=1, took_unreleased=True)

    def test_a_renewal_says_anew_who_holds_the_claim(self, scene: Scene) -> None:
        renamed, unnamed = scene.keys(2)
        for key, owner in ((renamed, OTHER), (unnamed, "")):
            scene.claim_as(ONE, key, MINE)
            assert scene.renew_as(owner, key, MINE) is Ack.OK
        for key, owner in ((renamed, OTHER), (unnamed, "")):
            answer = scene.claim_as(OTHER, key, YOURS, gone=[ONE])
            assert isinstance(answer, Busy), "the one that is gone does not hold it any more"
            assert not scene.features.owners or answer.owner == owner
        assert scene.renew(unnamed) is Ack.OK
        if scene.features.owners:
            assert scene.claim_as(ONE, renamed, YOURS, gone=[OTHER]) == Acquired(2, lost=1, took_unreleased=True)


class StoreConformance(Granting, Exchanges, Columns, Owners, Histories, abc.ABC):
    """Derive a class whose name starts with `Test`, say what `make` makes and which `features` it has."""

    features = Features()
    scenes: ClassVar[type[Scene]] = Scene

    @abc.abstractmethod
    def make(self, place: Path, clock: Callable[[], float]) -> ClaimStore:
        """A store that is not open yet. `place` is a folder of this test alone; each call names the same state in it."""

    @pytest.fixture
    def scene(self, tmp_path: Path) -> Iterator[Scene]:
        scene = self.scenes(self.make, self.features, tmp_path)
        yield scene
        scene.end()

    @pytest.fixture
    def columnar(self, tmp_path: Path) -> Iterator[Scene]:
        scene = self.scenes(self.make, self.features, tmp_path, shape="columns")
        yield scene
        scene.end()
