"""`Columns`: many keys in one column, of which some are answered otherwise than the rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ackwise.middleware.columns import Answered, Column, ColumnExchange, ColumnResult
from ackwise.middleware.store import Ack, Acquired, AlreadyDone, Busy, ClaimKey, Outcome, Stale
from ackwise.stores.testing.scene import ONE, OTHER, THIRD, UNRECORDED, YOURS, Scene


class Columns:
    """What a store that is asked in columns answers; the table itself is tested by all the other cases."""

    def test_an_exchange_without_columns_or_keys_is_answered_about_none(self, columnar: Scene) -> None:
        result = columnar.exchange_columns(ColumnExchange())
        assert [len(answers) for answers in (result.claims, result.completes, result.releases, result.renews)] == [0] * 4
        nothing = [Column([], 19_000, 1, range(0))]
        result = columnar.exchange_columns(ColumnExchange(nothing, nothing, nothing, nothing))
        assert _plain(result) == [[(0, {})]] * 4

    def test_a_column_is_claimed_and_completed_without_exceptions(self, columnar: Scene) -> None:
        column = _column(columnar.keys(100), range(1000, 1100))
        assert columnar.exchange_columns(ColumnExchange([column])).claims == [Answered(100, {})]
        assert columnar.exchange_columns(ColumnExchange(completes=[column])).completes == [Answered(100, {})]
        assert columnar.exchange_columns(ColumnExchange(completes=[column])).completes == [Answered(100, {})]
        answered = columnar.exchange_columns(ColumnExchange([column])).claims
        assert answered == [Answered(100, dict.fromkeys(range(100), AlreadyDone(Outcome.OK)))]

    def test_what_is_not_recorded_is_that_of_every_key_of_its_column(self, columnar: Scene) -> None:
        scene = columnar
        column = _column(scene.keys(7), range(1000, 1007))
        scene.exchange_columns(ColumnExchange([column]))
        told = [_part(column, [0, 1, 2])._replace(unrecorded=UNRECORDED), _part(column, [4])._replace(unrecorded="7")]
        scene.exchange_columns(ColumnExchange(completes=[*told, _part(column, [3, 5, 6])]))
        (answered,) = scene.exchange_columns(ColumnExchange([column])).claims
        if not scene.features.owners:
            pytest.skip("the store keeps no owners")
        texts = [UNRECORDED, UNRECORDED, UNRECORDED, "", "7", "", ""]
        assert answered.exceptions == {place: AlreadyDone(Outcome.OK, text) for place, text in enumerate(texts)}

    def test_each_claim_of_a_column_is_answered_by_its_own_record(self, columnar: Scene) -> None:
        keys = columnar.keys(12)
        _, busy, done, _, stale, lost, released, copied, mine, _, dead, _ = keys
        columnar.claim(lost, YOURS)
        columnar.claim(copied, YOURS)
        columnar.wait(columnar.lease)
        for key in (busy, done, stale, released, dead):
            columnar.claim(key, YOURS)
        columnar.claim(mine, 1008)
        columnar.complete(done, YOURS)
        columnar.complete(dead, YOURS, Outcome.DEAD)
        columnar.release(stale, YOURS, sent_back=3)
        columnar.release(released, YOURS)
        columnar.claim(copied, THIRD)
        columnar.release(copied, THIRD)
        (answered,) = columnar.exchange_columns(ColumnExchange([_column(keys, range(1000, 1012))])).claims
        exceptions = dict(answered.exceptions)
        assert isinstance(exceptions.pop(1), Busy)
        assert answered.keys == 12
        assert exceptions == {
            2: AlreadyDone(Outcome.OK),
            4: Stale(),
            5: Acquired(2, lost=1, took_unreleased=True),
            6: Acquired(2, lost=0, took_unreleased=False),
            7: Acquired(3, lost=1, took_unreleased=False),
            10: AlreadyDone(Outcome.DEAD),
        }
        # And each record is what its answer says.
        (acks,) = columnar.exchange_columns(ColumnExchange(completes=[_column(keys, range(1000, 1012))])).completes
        assert acks == Answered(12, {1: Ack.LOST, 2: Ack.LOST_DONE, 4: Ack.LOST})

    def test_each_complete_of_a_column_is_answered_by_its_own_record(self, columnar: Scene) -> None:
        keys = columnar.keys(8)
        mine, unknown, taken, done, again, last = keys[0], keys[1], keys[3], keys[4], keys[6], keys[7]
        column = _column(keys, range(2000, 2008))
        known = [place for place, key in enumerate(keys) if key != unknown]
        assert columnar.exchange_columns(ColumnExchange([_part(column, known)])).claims == [Answered(7, {})]
        columnar.wait(columnar.lease)
        columnar.claim(taken, YOURS)
        columnar.claim(done, YOURS)
        columnar.complete(done, YOURS)
        columnar.complete(again, 2006)
        assert columnar.exchange_columns(ColumnExchange(completes=[column])).completes == [
            Answered(8, {1: Ack.RESTORED, 3: Ack.LOST, 4: Ack.LOST_DONE})
        ]
        for key in (mine, unknown, again, last):
            assert columnar.claim(key, THIRD) == AlreadyDone(Outcome.OK)
        assert columnar.renew(taken, YOURS) is Ack.OK

    def test_each_release_and_renewal_of_a_column_is_answered_by_its_own_record(self, columnar: Scene) -> None:
        keys = columnar.keys(6)
        column = _column(keys, range(3000, 3006))
        columnar.exchange_columns(ColumnExchange([_part(column, [0, 1, 2, 4])]))
        columnar.complete(keys[2], 3002)
        columnar.claim(keys[3], YOURS)
        lost = {2: Ack.LOST, 3: Ack.LOST, 5: Ack.LOST}
        assert columnar.exchange_columns(ColumnExchange(renews=[column])).renews == [Answered(6, lost)]
        assert columnar.exchange_columns(ColumnExchange(releases=[column])).releases == [Answered(6, lost)]
        assert columnar.exchange_columns(ColumnExchange(releases=[column])).releases == [Answered(6, dict.fromkeys(range(6), Ack.LOST))]
        assert columnar.claim(keys[4], THIRD) == Acquired(2)

    def test_a_column_that_is_asked_again_after_a_lost_answer_is_answered_the_same(self, columnar: Scene) -> None:
        keys = columnar.keys(20)
        columnar.claim(keys[3], YOURS)
        columnar.wait(columnar.lease)
        columnar.claim(keys[5], YOURS)
        columnar.release(keys[5], YOURS, sent_back=2)
        column = _column(keys, range(4000, 4020))
        exceptions = {3: Acquired(2, lost=1, took_unreleased=True), 5: Stale()}
        for _ in range(3):
            assert columnar.exchange_columns(ColumnExchange([column])).claims == [Answered(20, exceptions)]
        for _ in range(3):
            assert columnar.exchange_columns(ColumnExchange(renews=[column])).renews == [Answered(20, {5: Ack.LOST})]
        for _ in range(3):
            assert columnar.exchange_columns(ColumnExchange(completes=[column])).completes == [Answered(20, {5: Ack.LOST})]

    def test_the_tokens_of_a_column_need_not_follow_each_other_and_may_cross_any_border(self, columnar: Scene) -> None:
        keys = columnar.keys(6)
        tokens: Sequence[int] = [7, 2**63 - 1, 2**32 - 1, 2**32, 1, 8]
        assert columnar.exchange_columns(ColumnExchange([_column(keys, tokens)])).claims == [Answered(6, {})]
        assert columnar.exchange_columns(ColumnExchange(renews=[_column(keys, sorted(tokens))])).renews == [
            Answered(6, {place: Ack.LOST for place in range(6) if sorted(tokens)[place] != tokens[place]})
        ]
        assert columnar.exchange_columns(ColumnExchange(completes=[_column(keys, tokens)])).completes == [Answered(6, {})]
        for begin in (2**32 - 3, 2**40 - 2, 2**53 - 2, 2**63 - 6):
            keys, tokens = columnar.keys(6), range(begin, begin + 6)
            assert columnar.exchange_columns(ColumnExchange([_column(keys, tokens)])).claims == [Answered(6, {})]
            assert [columnar.renew(key, token) for key, token in zip(keys, tokens, strict=True)] == [Ack.OK] * 6
            assert columnar.exchange_columns(ColumnExchange(completes=[_column(keys, list(tokens))])).completes == [Answered(6, {})]

    def test_parts_of_a_column_go_different_ways(self, columnar: Scene) -> None:
        keys = columnar.keys(12)
        column = _column(keys, range(5000, 5012))
        columnar.exchange_columns(ColumnExchange([column]))
        result = columnar.exchange_columns(
            ColumnExchange(
                completes=[_part(column, [0, 1, 2]), _part(column, [4, 3])._replace(outcome=Outcome.SKIPPED)],
                releases=[_part(column, [5, 6]), _part(column, [7])._replace(sent_back=2)],
                renews=[_part(column, [8, 10])],
            )
        )
        assert _plain(result) == [[], [(3, {}), (2, {})], [(2, {}), (1, {})], [(2, {})]]
        (answered,) = columnar.exchange_columns(ColumnExchange([_column(keys, range(6000, 6012))])).claims
        assert [type(answered.exceptions[place]) for place in (8, 9, 10, 11)] == [Busy] * 4
        assert {place: answer for place, answer in answered.exceptions.items() if place < 8} == {
            **dict.fromkeys([0, 1, 2], AlreadyDone(Outcome.OK)),
            **dict.fromkeys([3, 4], AlreadyDone(Outcome.SKIPPED)),
            **dict.fromkeys([5, 6], Acquired(2)),
            7: Stale(),
        }
        (acks,) = columnar.exchange_columns(ColumnExchange(renews=[column])).renews
        assert acks == Answered(12, dict.fromkeys(range(8), Ack.LOST))

    def test_columns_of_one_exchange_differ_in_day_and_attempt(self, columnar: Scene) -> None:
        ids = [key.id for key in columnar.keys(3)]
        days = [Column(ids, day, attempt, range(10 * attempt, 10 * attempt + 3)) for attempt, day in enumerate((None, -1, 0, 19_000), 1)]
        assert columnar.exchange_columns(ColumnExchange(days)).claims == [Answered(3, {})] * 4
        older = [column._replace(attempt=column.attempt - 1, tokens=[90, 91, 92]) for column in days[1:]]
        assert columnar.exchange_columns(ColumnExchange(older)).claims == [Answered(3, dict.fromkeys(range(3), Stale()))] * 3
        assert columnar.exchange_columns(ColumnExchange(completes=days)).completes == [Answered(3, {})] * 4

    def test_a_column_is_taken_over_from_an_owner_that_is_gone(self, columnar: Scene) -> None:
        keys = columnar.keys(5)
        columnar.exchange_columns(ColumnExchange([_column(keys[:4], range(1, 5))], owner=ONE))
        columnar.exchange_columns(ColumnExchange(renews=[_column(keys[1:2], range(2, 3))], owner=OTHER))
        columnar.exchange_columns(ColumnExchange(completes=[_column(keys[3:4], range(4, 5))], owner=ONE))
        asked = ColumnExchange([_column(keys, range(11, 16))], owner=OTHER, gone=[ONE])
        (answered,) = columnar.exchange_columns(asked).claims
        assert answered.keys == 5
        if not columnar.features.owners:
            pytest.skip("the store keeps no owners")
        busy = answered.exceptions[1]
        assert isinstance(busy, Busy)
        assert busy.owner == OTHER
        taken = Acquired(2, lost=1, took_unreleased=True)
        assert {place: answer for place, answer in answered.exceptions.items() if place != 1} == {
            0: taken,
            2: taken,
            3: AlreadyDone(Outcome.OK),
        }

    def test_the_leases_of_a_column_end_and_are_renewed_and_it_is_forgotten_after_the_retention(self, columnar: Scene) -> None:
        keys = columnar.keys(4)
        column = _column(keys, range(1, 5))
        columnar.exchange_columns(ColumnExchange([column]))
        columnar.wait(columnar.lease * 0.6)
        assert columnar.exchange_columns(ColumnExchange(renews=[_part(column, [0, 1])])).renews == [Answered(2, {})]
        columnar.wait(columnar.lease * 0.6)
        (answered,) = columnar.exchange_columns(ColumnExchange([column._replace(tokens=range(11, 15))])).claims
        assert [type(answered.exceptions[place]) for place in (0, 1)] == [Busy] * 2
        assert [answered.exceptions[place] for place in (2, 3)] == [Acquired(2, lost=1, took_unreleased=True)] * 2
        columnar.exchange_columns(ColumnExchange(completes=[_part(column, [0, 1])]))
        columnar.wait(columnar.retention + columnar.lease)
        assert columnar.exchange_columns(ColumnExchange([column._replace(tokens=range(21, 25))])).claims == [Answered(4, {})]


def _column(keys: Sequence[ClaimKey], tokens: Sequence[int]) -> Column:
    return Column([key.id for key in keys], keys[0].day, 1, tokens)


def _part(column: Column, places: Sequence[int]) -> Column:
    """What is left of a column after the others fell out."""
    return column._replace(ids=[column.ids[place] for place in places], tokens=[column.tokens[place] for place in places])


def _plain(result: ColumnResult) -> list[list[tuple[int, dict[int, object]]]]:
    answered = (result.claims, result.completes, result.releases, result.renews)
    return [[(answer.keys, dict(answer.exceptions)) for answer in answers] for answers in answered]
