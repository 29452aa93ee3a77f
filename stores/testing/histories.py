"""`Histories`: random exchanges, answered as the transition table says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ackwise.middleware.store import Claim, ClaimKey, Complete, Exchange, Outcome, Release, Renew
from ackwise.stores.protocol.transitions import Place, Record, decide
from ackwise.stores.testing.scene import ONE, OTHER, Scene, same_claims


@dataclass(frozen=True, slots=True)
class _Request:
    """One thing that a random exchange asks for one of three keys."""

    key: int
    kind: type[Claim] | type[Complete] | type[Release] | type[Renew]
    token: int
    attempt: int
    sent_back: int | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _Step:
    """A random exchange and how long before it nothing happened, in leases; a retention is as long as three of them."""

    leases: float
    requests: list[_Request]
    owner: str
    gone: tuple[str, ...]

    def exchange(self, keys: Sequence[ClaimKey], lease: float, *, owners: bool) -> Exchange:
        claims: list[Claim] = []
        completes: list[Complete] = []
        releases: list[Release] = []
        renews: list[Renew] = []
        for request in self.requests:
            key = keys[request.key]._replace(attempt=request.attempt)
            if request.kind is Claim:
                claims.append(Claim(key, request.token))
            elif request.kind is Complete:
                completes.append(Complete(key, request.token, request.outcome))
            elif request.kind is Release:
                releases.append(Release(key, request.token, request.sent_back))
            else:
                renews.append(Renew(key, request.token))
        named = (self.owner, self.gone) if owners else ("", ())
        return Exchange(claims, completes, releases, renews, lease, 3 * lease, *named)


_requests = st.builds(
    _Request,
    key=st.integers(0, 2),
    kind=st.sampled_from([Claim, Complete, Release, Renew]),
    token=st.integers(1, 3),
    attempt=st.integers(1, 3),
    sent_back=st.sampled_from([None, 2, 3]),
    outcome=st.sampled_from(Outcome),
)
_steps = st.builds(
    _Step,
    leases=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]),
    requests=st.lists(_requests, max_size=3, unique_by=lambda request: request.key),
    owner=st.sampled_from(["", ONE, OTHER]),
    gone=st.sampled_from([(), (ONE,), (OTHER,), (ONE, OTHER)]),
)


class Histories:
    """Random histories of three keys, on a store and in `decide`."""

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors])
    @given(steps=st.lists(_steps, max_size=20))
    def test_any_history_is_answered_as_the_transition_table_says(self, scene: Scene, steps: list[_Step]) -> None:
        lease = 64.0  # exact in floating point, and longer than a history takes on a store with its own clock
        keys = [scene.key(), key := scene.key(), key._replace(day=19_000)]
        records: dict[Place, Record] = {}
        for step in steps:
            if scene.features.injected_clock:
                scene.clock.now += step.leases * lease
            exchange = step.exchange(keys, lease, owners=scene.features.owners)
            expected, written = decide(records.get, exchange, scene.clock.now)
            records.update(written)
            answered = scene.run(scene.ask(exchange))
            tolerance = scene.features.tolerance if scene.features.injected_clock else lease / 2
            assert same_claims(answered.claims, expected.claims, tolerance)
            assert (answered.completes, answered.releases, answered.renews) == (expected.completes, expected.releases, expected.renews)
