"""`Granting`: who is granted a claim, for how long, and who is busy; `Keeping`: releases and renewals that change nothing."""

from __future__ import annotations

from ackwise.middleware.store import Ack, Acquired, AlreadyDone, Busy, Claim, Outcome
from ackwise.stores.testing.scene import MINE, YOURS, Scene


class Keeping:
    """Releases that come again, and what is unknown."""

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


class Granting:
    """Claims of one key by one worker and another."""

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
