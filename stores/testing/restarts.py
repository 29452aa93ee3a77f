"""`Restarts`: what a closed store, a second one and a restarted worker find."""

from __future__ import annotations

import pytest

from ackwise.middleware.store import Acquired, AlreadyDone, Claim, Complete, Outcome, Release, Stale
from ackwise.stores.testing.scene import MINE, YOURS, Scene


class Restarts:
    """Several stores on one place, at once and one after another."""

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
        scene.exchange(completes=[Complete(done, MINE, Outcome.DEAD)], releases=[Release(back, MINE, 2)])
        scene.reopen()
        assert scene.is_busy(held)
        assert scene.claim(done, YOURS) == AlreadyDone(Outcome.DEAD)
        assert scene.claim(back, YOURS) == Stale()
        scene.wait(scene.lease)
        scene.reopen()
        assert scene.claim(held, YOURS) == Acquired(2, lost=1, took_unreleased=True)
