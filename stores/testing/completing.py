"""`Completing`: how a claim is completed, by whom, and how long that is remembered."""

from __future__ import annotations

import pytest

from ackwise.middleware.store import WHOEVER, Ack, Acquired, AlreadyDone, Outcome
from ackwise.stores.testing.scene import MINE, THIRD, YOURS, Scene

__all__ = ["Completing"]


class Completing:
    """Completed claims, and claims that may not be completed."""

    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_a_completed_key_is_already_done_and_says_how(self, scene: Scene, outcome: Outcome) -> None:
        key = scene.key()
        scene.claim(key)
        assert scene.complete(key, MINE, outcome) is Ack.OK
        assert scene.claim(key, YOURS) == AlreadyDone(outcome)
        assert scene.claim(key, MINE) == AlreadyDone(outcome)

    def test_a_completed_key_is_remembered_beyond_the_lease(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.complete(key)
        scene.wait(scene.retention - scene.lease)
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.OK)

    def test_a_completed_key_is_fresh_after_the_retention(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.complete(key)
        scene.wait(scene.retention)
        assert scene.claim(key, YOURS) == Acquired(1)

    def test_a_claim_of_a_later_attempt_leaves_a_completed_key_done(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.complete(key)
        assert scene.claim(key._replace(attempt=2), YOURS) == AlreadyDone(Outcome.OK)

    def test_complete_can_be_repeated(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        assert [scene.complete(key), scene.complete(key)] == [Ack.OK, Ack.OK]

    def test_an_expired_claim_can_be_completed_if_nobody_took_over(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.complete(key) is Ack.OK
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.OK)

    def test_a_stale_owner_completes_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        assert scene.complete(key, MINE) is Ack.LOST
        assert scene.is_busy(key)
        assert scene.complete(key, YOURS) is Ack.OK

    def test_a_released_claim_can_not_be_completed(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.release(key)
        assert scene.complete(key) is Ack.LOST
        assert scene.claim(key, YOURS) == Acquired(2)

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

    @pytest.mark.parametrize("ended", [False, True])
    def test_the_success_of_a_replay_counts_whoever_holds_the_key_and_a_death_that_comes_late_does_not(
        self, scene: Scene, ended: bool
    ) -> None:
        key = scene.key()
        scene.claim(key)
        if ended:
            scene.wait(scene.lease)
        assert [scene.complete(key, WHOEVER), scene.complete(key, WHOEVER)] == [Ack.OK, Ack.OK]
        assert scene.complete(key, MINE, Outcome.DEAD) is Ack.LOST_DONE
        assert (scene.renew(key, MINE), scene.release(key, MINE)) == (Ack.LOST, Ack.LOST)
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.OK)

    def test_the_success_of_a_replay_counts_where_a_copy_is_on_its_way(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.release(key, MINE, sent_back=2)
        assert scene.complete(key, WHOEVER) is Ack.OK
        assert scene.claim(key._replace(attempt=2), YOURS) == AlreadyDone(Outcome.OK)

    @pytest.mark.parametrize("outcome", [Outcome.SKIPPED, Outcome.DEAD])
    def test_nothing_but_a_success_counts_whoever_holds_the_key(self, scene: Scene, outcome: Outcome) -> None:
        key = scene.key()
        scene.claim(key)
        assert scene.complete(key, WHOEVER, outcome) is Ack.LOST
        assert scene.complete(key, MINE) is Ack.OK

    @pytest.mark.parametrize("outcome", [Outcome.SKIPPED, Outcome.DEAD])
    def test_nothing_but_a_success_takes_the_place_of_a_death(self, scene: Scene, outcome: Outcome) -> None:
        key = scene.key()
        scene.claim(key)
        scene.complete(key, MINE, Outcome.DEAD)
        assert scene.complete(key, YOURS, outcome) is Ack.LOST_DONE
        assert scene.claim(key, THIRD) == AlreadyDone(Outcome.DEAD)

    def test_completing_an_unknown_key_restores_it(self, scene: Scene) -> None:
        key = scene.key()
        assert scene.complete(key, MINE, Outcome.SKIPPED) is Ack.RESTORED
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.SKIPPED)
        assert scene.complete(key, MINE, Outcome.SKIPPED) is Ack.OK
        scene.wait(scene.retention - scene.lease)
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.SKIPPED)
