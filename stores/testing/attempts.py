"""`Attempts`: which attempts of a key are stale, and how many workers were lost at one."""

from __future__ import annotations

from ackwise.middleware.store import Ack, Acquired, AlreadyDone, Outcome, Stale
from ackwise.stores.testing.scene import MINE, THIRD, YOURS, Scene

__all__ = ["Attempts"]


class Attempts:
    """Keys that were sent back as copies, and lost workers."""

    def test_a_sent_back_key_is_stale_for_its_original(self, scene: Scene) -> None:
        key = scene.key(attempt=1)
        scene.claim(key)
        assert scene.release(key, sent_back=2) is Ack.OK
        assert scene.claim(key, YOURS) == Stale()

    def test_a_sent_back_key_is_acquired_by_its_copy(self, scene: Scene) -> None:
        key = scene.key(attempt=1)
        scene.claim(key)
        scene.release(key, sent_back=2)
        assert scene.claim(key._replace(attempt=2), YOURS) == Acquired(2, lost=0, took_unreleased=False)

    def test_stale_comes_before_busy(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(copy)
        assert scene.claim(key, YOURS) == Stale()

    def test_stale_comes_before_take_over(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(copy)
        scene.wait(scene.lease)
        assert scene.claim(key, YOURS) == Stale()

    def test_done_comes_before_stale(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(copy)
        scene.complete(copy)
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.OK)

    def test_a_stale_answer_changes_nothing(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        taken = scene.claim(copy)
        scene.claim(key, YOURS)
        assert scene.claim(copy) == taken
        assert scene.complete(copy) is Ack.OK

    def test_an_equal_attempt_is_not_stale(self, scene: Scene) -> None:
        key = scene.key(attempt=2)
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.claim(key, YOURS) == Acquired(2, lost=1, took_unreleased=True)

    def test_an_original_stays_stale_after_its_copy_was_claimed_and_released(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(key)
        scene.release(key, sent_back=2)
        scene.claim(copy, YOURS)
        scene.release(copy, YOURS)
        assert scene.claim(key, THIRD) == Stale()

    def test_an_original_stays_stale_after_the_worker_of_its_copy_was_killed(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(key)
        scene.release(key, sent_back=2)
        scene.claim(copy, YOURS)
        scene.wait(scene.lease)
        assert scene.claim(key, THIRD) == Stale()

    def test_a_copy_claimed_before_the_release_makes_the_original_stale_too(self, scene: Scene) -> None:
        key, copy = scene.original_and_copy()
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.claim(copy, YOURS) == Acquired(2, lost=0, took_unreleased=True)
        assert scene.release(key, MINE, sent_back=2) is Ack.LOST
        assert scene.claim(key, THIRD) == Stale()

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

    def test_a_plain_release_keeps_the_count_and_adds_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key, MINE)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        scene.release(key, YOURS)
        assert scene.claim(key, THIRD) == Acquired(3, lost=1, took_unreleased=False)

    def test_a_send_back_starts_the_count_anew(self, scene: Scene) -> None:
        key = scene.key(attempt=1)
        scene.claim(key, MINE)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        scene.release(key, YOURS, sent_back=2)
        assert scene.claim(key._replace(attempt=2), THIRD) == Acquired(3, lost=0, took_unreleased=False)

    def test_a_later_attempt_starts_the_count_anew(self, scene: Scene) -> None:
        key = scene.key(attempt=1)
        scene.claim(key, MINE)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        scene.wait(scene.lease)
        assert scene.claim(key._replace(attempt=3), THIRD) == Acquired(3, lost=0, took_unreleased=True)
