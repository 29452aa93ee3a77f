"""`Keeping`: releases and renewals that change nothing."""

from __future__ import annotations

from ackwise.middleware.store import Ack, Acquired
from ackwise.stores.testing.scene import YOURS, Scene


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
