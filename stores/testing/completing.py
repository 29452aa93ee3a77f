"""`Completing`: how a claim is completed, by whom, and how long that is remembered."""

from __future__ import annotations

from ackwise.middleware.store import WHOEVER, Ack, Acquired, AlreadyDone, Claim, Complete, Outcome, Release
from ackwise.stores.testing.scene import MINE, THIRD, YOURS, Scene


class Completing:
    """Completed claims, and claims that may not be completed."""

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

    def test_completing_an_unknown_key_restores_it(self, scene: Scene) -> None:
        key = scene.key()
        assert scene.complete(key, MINE, Outcome.SKIPPED) is Ack.RESTORED
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.SKIPPED)
        assert scene.complete(key, MINE, Outcome.SKIPPED) is Ack.OK
        scene.wait(scene.retention - scene.lease)
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.SKIPPED)
