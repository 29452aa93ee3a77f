"""`Granting`: who is granted a claim, for how long, and who is busy."""

from __future__ import annotations

from ackwise.middleware.store import Ack, Acquired, AlreadyDone, Busy, Outcome
from ackwise.stores.testing.scene import YOURS, Scene

__all__ = ["Granting"]


class Granting:
    """Claims of one key by one worker and another."""

    def test_a_fresh_claim_is_acquired_with_epoch_1(self, scene: Scene) -> None:
        assert scene.claim(scene.key()) == Acquired(1, lost=0, took_unreleased=False)

    def test_a_repeated_claim_is_answered_as_the_first_time(self, scene: Scene) -> None:
        key = scene.key()
        assert scene.claim(key) == scene.claim(key) == Acquired(1)

    def test_a_repeated_claim_starts_the_lease_again(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease * 0.6)
        scene.claim(key)
        scene.wait(scene.lease * 0.6)
        assert scene.is_busy(key)

    def test_a_repeated_take_over_is_answered_as_the_first_time(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.claim(key, YOURS) == scene.claim(key, YOURS) == Acquired(2, lost=1, took_unreleased=True)

    def test_an_expired_claim_is_still_its_owners_if_nobody_took_over(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.claim(key) == Acquired(1)
        assert scene.is_busy(key)

    def test_a_held_key_is_busy_for_at_most_the_rest_of_the_lease(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        answer = scene.claim(key, YOURS)
        assert isinstance(answer, Busy)
        assert 0 < answer.retry_after <= scene.lease

    def test_a_busy_answer_changes_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.claim(key, YOURS)
        assert scene.complete(key) is Ack.OK

    def test_an_expired_claim_is_taken_over_with_the_next_epoch(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.claim(key, YOURS) == Acquired(2, lost=1, took_unreleased=True)

    def test_an_expired_claim_keeps_its_epoch_long_after_the_lease(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease + scene.retention / 2)
        assert scene.claim(key, YOURS) == Acquired(2, lost=1, took_unreleased=True)

    def test_an_abandoned_claim_is_forgotten_a_retention_after_its_lease(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease + scene.retention)
        assert scene.claim(key, YOURS) == Acquired(1)

    def test_a_released_claim_is_taken_at_once_with_the_next_epoch(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        assert scene.release(key) is Ack.OK
        assert scene.claim(key, YOURS) == Acquired(2, lost=0, took_unreleased=False)

    def test_the_attempt_is_no_part_of_a_keys_identity(self, scene: Scene) -> None:
        key = scene.key(attempt=1)
        scene.claim(key)
        assert scene.is_busy(key._replace(attempt=2))

    def test_the_day_is_a_part_of_a_keys_identity(self, scene: Scene) -> None:
        key = scene.key()
        days = [key._replace(day=day) for day in (None, -1, 0, 19_000, 19_001)]
        assert [scene.claim(day) for day in days] == [Acquired(1)] * len(days)
        for day in days:
            assert scene.complete(day) is Ack.OK
            assert scene.claim(day, YOURS) == AlreadyDone(Outcome.OK)
