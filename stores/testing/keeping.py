"""`Keeping`: how a claim is renewed, released, and lost."""

from __future__ import annotations

from ackwise.middleware.store import Ack, Acquired, AlreadyDone, Outcome
from ackwise.stores.testing.scene import MINE, YOURS, Scene

__all__ = ["Keeping"]


class Keeping:
    """Renewals and releases, by the holder and by others."""

    def test_a_stale_owner_releases_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        assert scene.release(key, MINE, sent_back=2) is Ack.LOST
        assert scene.is_busy(key)
        assert scene.renew(key, YOURS) is Ack.OK

    def test_a_release_repeated_changes_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.release(key, sent_back=2)
        assert scene.release(key, sent_back=2) is Ack.LOST
        assert scene.claim(key._replace(attempt=2), YOURS) == Acquired(2)
        assert scene.release(key, sent_back=2) is Ack.LOST
        assert scene.is_busy(key._replace(attempt=2))

    def test_releasing_a_completed_key_changes_nothing(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.complete(key)
        assert scene.release(key) is Ack.LOST
        assert scene.claim(key, YOURS) == AlreadyDone(Outcome.OK)

    def test_releasing_or_renewing_an_unknown_key_changes_nothing(self, scene: Scene) -> None:
        key = scene.key()
        assert scene.release(key, sent_back=2) is Ack.LOST
        assert scene.renew(key) is Ack.LOST
        assert scene.claim(key) == Acquired(1)

    def test_renew_starts_the_lease_again(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        for _ in range(2):
            scene.wait(scene.lease * 0.6)
            assert scene.renew(key) is Ack.OK
        assert scene.is_busy(key)

    def test_renew_revives_an_expired_claim_if_nobody_took_over(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        assert scene.renew(key) is Ack.OK
        assert scene.is_busy(key)

    def test_renew_tells_a_stale_owner_that_it_lost(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        scene.claim(key, YOURS)
        assert scene.renew(key, MINE) is Ack.LOST
        assert scene.renew(key, YOURS) is Ack.OK

    def test_a_released_or_completed_claim_can_not_be_renewed(self, scene: Scene) -> None:
        released, completed = scene.keys(2)
        scene.claim(released)
        scene.release(released)
        scene.claim(completed)
        scene.complete(completed)
        assert [scene.renew(released), scene.renew(completed)] == [Ack.LOST, Ack.LOST]
        assert scene.claim(released, YOURS) == Acquired(2)

    def test_a_renewed_claim_answers_a_repeated_claim_as_the_first_time(self, scene: Scene) -> None:
        key = scene.key()
        scene.claim(key)
        scene.wait(scene.lease)
        taken = scene.claim(key, YOURS)
        scene.renew(key, YOURS)
        assert scene.claim(key, YOURS) == taken
