"""`Owners`: claims of a process that is gone, where a store keeps owners; and what a second store and a restarted worker find."""

from __future__ import annotations

import pytest

from ackwise.middleware.store import Ack, Acquired, AlreadyDone, Busy, Claim, Complete, Outcome, Release, Stale
from ackwise.stores.testing.scene import MINE, ONE, OTHER, THIRD, UNRECORDED, YOURS, Scene


class Owners:
    """Several stores on one place, and claims of named processes; a store without owners makes everybody wait for the lease."""

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
