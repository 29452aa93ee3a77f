"""`Attempts`: which attempts of a key are stale, and how many workers were lost at one."""

from __future__ import annotations

from ackwise.middleware.store import Ack, Acquired, AlreadyDone, Claim, Outcome, Release, Stale
from ackwise.stores.testing.scene import MINE, THIRD, YOURS, Scene


class Attempts:
    """Keys that were sent back as copies, and lost workers."""

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
