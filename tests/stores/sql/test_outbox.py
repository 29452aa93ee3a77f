"""The operations of an outbox without a database: what is asked again, and what an answer decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import pytest

from ackwise.middleware.errors import TransactionAborted
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import CheckAnswer, Failed, Sent, TransactionOutcome
from ackwise.stores.protocol.outbox import Keeping, LeaseClock, RowColumns, Wakes
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement, Steps, run
from ackwise.stores.sql.outbox import SQLOutbox
from ackwise.stores.sql.outboxwriting import Business, Writes
from ackwise.stores.sqlite.outbox import SQLite

T = TypeVar("T")

NOTHING = Answer()


class Behind(SQLite):
    """What is asked about rows behind others is named in a script by its template."""

    def say(self, template: str, **values: Any) -> Statement:
        return Statement(template) if template in ("{put_behind}", "{held}", "{freed}") else super().say(template, **values)


class Script:
    """Answers by what a statement starts with; a failure is raised, and anything else is nothing."""

    def __init__(self, answers: dict[str, Answer | Failure]) -> None:
        self.answers, self.asked = answers, list[str]()

    async def send(self, packet: Packet) -> Sequence[Answer]:
        return [self._answer(text.split()[0]) for text, _ in packet]

    def _answer(self, begins: str) -> Answer:
        self.asked.append(begins)
        answer = self.answers.get(begins, NOTHING)
        if begins == "{put_behind}":
            self.answers["WITH"] = self.answers["then"]
        if isinstance(answer, Failure):
            raise answer
        return answer


def _insert_nothing(rows: Sequence[RowColumns], before: Packet) -> Steps[None]:
    yield from ()


class Scripted(SQLOutbox):
    def __init__(self, sql: SQLite | None = None, **answers: Answer | Failure) -> None:
        super().__init__(sql or SQLite(lambda: 100.0), "there", 5.0, Keeping(), Wakes())
        self.script, self.repeats = Script(answers), list[bool]()

    async def _run(self, begin: Callable[[], Steps[T]], *, repeats: bool = True) -> T:
        self.repeats.append(repeats)
        return await run(begin(), self.script)

    def _through(self, connection: Any) -> Business:
        return Business(
            Writes(_insert_nothing),
            self.script,
            is_open=lambda: True,
            watched=lambda block: nullcontext(),
            close=lambda: None,
            as_error=lambda error: error,
            timeout=1.0,
        )


def failure(problem: Problem) -> Failure:
    return Failure(problem, OSError())


async def test_what_counts_or_inserts_is_not_repeated_and_all_else_is() -> None:
    outbox = Scripted()
    await outbox.failed([Failed(1, 0, "refused", None)], {0: 1})
    await outbox.answered([CheckAnswer(1, TransactionOutcome.UNKNOWN)])
    await outbox.prepare([Outgoing("orders", b"1")], "tx", producer_group="shop")
    assert outbox.repeats == [False, False, False]
    outbox.repeats.clear()
    await outbox.own("a", lease=1.0, share=64)
    await outbox.sent([Sent(1, 0)], {0: 1})
    await outbox.decide("tx", TransactionOutcome.COMMIT)
    await outbox.due_checks("shop", limit=1, lease=1.0)
    await outbox.probe("tx", wait=1.0)
    assert set(outbox.repeats) == {True}


async def test_without_a_token_of_ours_nothing_is_asked() -> None:
    outbox = Scripted()
    assert await outbox.sent([Sent(1, 7)], {0: 1}) == 0
    assert await outbox.failed([Failed(1, 7, "refused", None)], {0: 1}) == 0
    assert outbox.script.asked == []


async def test_tokens_grow_with_what_is_taken_and_shards_are_locked_until_they_are_divided() -> None:
    outbox = Scripted(SELECT=Answer([(0, 5, "a", True, 1e9), (1, 6, "b", True, 1e9), (2, 7, b"b", False, 1e9), (3, 8, "", False, 1e9)]))
    assert await outbox.own("a", lease=1.0, share=64) == {0: 5, 2: 8, 3: 9}
    assert outbox.script.asked == ["BEGIN", "DELETE", "UPDATE", "INSERT", "SELECT", "UPDATE", "COMMIT"]


async def test_a_clock_of_the_database_that_jumps_ahead_ends_no_lease_for_as_long_as_a_lease() -> None:
    here = [0.0]
    clock = LeaseClock(lambda: here[0])
    assert clock.is_trusted(1e9, lease=15.0), "nothing is known yet"
    here[0] = 5.0
    assert clock.is_trusted(1e9 + 6.0, lease=15.0), "clocks drift"
    here[0] = 6.0
    assert not clock.is_trusted(1e9 + 3600.0, lease=15.0)
    here[0] = 20.0
    assert not clock.is_trusted(1e9 + 3614.0, lease=15.0)
    here[0] = 21.0
    assert clock.is_trusted(1e9 + 3615.0, lease=15.0)


async def test_shards_whose_lease_a_jump_of_the_clock_has_ended_are_not_taken() -> None:
    outbox = Scripted(SELECT=Answer([(0, 5, "b", True, 1e9), (1, 6, "", False, 1e9)]))
    assert await outbox.own("a", lease=15.0, share=64) == {1: 7}
    outbox.script.answers["SELECT"] = Answer([(0, 5, "b", False, 1e9 + 60.0), (1, 7, "a", False, 1e9 + 60.0)])
    assert await outbox.own("a", lease=15.0, share=64) == {1: 7}


async def test_rows_that_are_blocked_are_put_behind_and_others_are_looked_for() -> None:
    columns, message = (0, 0, 10.0, 7), (False, False, "orders", b"x", b"k", None, None, b"id")
    first, then = Answer([(1, *columns, False, *message), (2, *columns, True, *message)]), Answer([(3, *columns, False, *message)])
    outbox = Scripted(Behind(lambda: 100.0), WITH=first, then=then)
    assert [row.id for row in await outbox.pending({0: 1}, limit=10)] == [1, 3]
    assert outbox.script.asked == ["WITH", "BEGIN", "{put_behind}", "COMMIT", "WITH"]
    assert outbox.waits_behind


async def test_one_look_for_rows_takes_a_bounded_time_however_many_are_blocked_and_the_next_one_is_at_once() -> None:
    blocked = Answer([(1, 0, 0, 10.0, 7, True, False, False, "orders", None, b"k", None, None, b"id")])
    outbox = Scripted(Behind(lambda: 100.0), WITH=blocked, then=blocked)
    assert await outbox.pending({0: 1}, limit=10) == []
    assert outbox.script.asked.count("WITH") == 6
    assert outbox.has_more
    async with asyncio.timeout(1.0):
        await outbox.wait_for_rows(3600.0)


async def test_rows_go_on_in_portions_and_the_next_call_goes_on_where_the_last_one_ended() -> None:
    keys = [(key, 1, 2 if key % 100 == 0 else None) for key in range(1, 1001)]
    outbox = Scripted(Behind(lambda: 100.0), **{"{held}": Answer(keys)})
    assert await outbox.free()
    assert outbox.script.asked == ["{held}", "BEGIN", *["{freed}"] * 10, "COMMIT"]
    outbox.script.answers["{held}"] = NOTHING
    assert not await outbox.free()
    assert outbox.waits_behind, "the first keys were looked at by the call before"
    assert not await outbox.free()
    assert not outbox.waits_behind


@pytest.mark.parametrize("problem", [Problem.BUSY, Problem.CONFLICT, Problem.DUPLICATE])
async def test_a_check_back_that_could_not_decide_looks_and_does_not_guess(problem: Problem) -> None:
    for rows, outcome in [
        ([], TransactionOutcome.UNKNOWN),
        ([("C",)], TransactionOutcome.COMMIT),
        ([("R",)], TransactionOutcome.ROLLBACK),
    ]:
        assert await Scripted(INSERT=failure(problem), SELECT=Answer(rows)).probe("tx", wait=1.0) is outcome
    with pytest.raises(Failure):
        await Scripted(INSERT=failure(Problem.LOST)).probe("tx", wait=1.0)


async def test_a_barrier_that_is_there_aborts_whether_the_database_says_so_by_an_error_or_a_count() -> None:
    for inserted in (NOTHING, failure(Problem.DUPLICATE)):
        for found, sentence in [("C", "committed before"), ("R", "check-back")]:
            with pytest.raises(TransactionAborted, match=sentence):
                await Scripted(INSERT=inserted, SELECT=Answer([(found,)])).barrier(None, "tx")
    await Scripted(INSERT=Answer(changed=1)).barrier(None, "tx")


async def test_relays_are_woken_by_what_may_be_sent_now_and_by_nothing_else() -> None:
    outbox = Scripted(UPDATE=Answer(changed=1))
    for outcome, woken in [(TransactionOutcome.ROLLBACK, 0), (TransactionOutcome.COMMIT, 1)]:
        await outbox.decide("tx", outcome)
        await outbox.answered([CheckAnswer(1, outcome)])
        assert outbox._wakes.count == 2 * woken
    await outbox.requeue([1])
    assert outbox._wakes.count == 3


async def test_one_call_lets_a_bounded_number_of_rows_go_on_and_the_next_one_takes_up_the_next_key() -> None:
    outbox = Scripted(Behind(lambda: 100.0), **{"{held}": Answer([(key, 1, 2) for key in range(1, 101)]), "{freed}": Answer(changed=1000)})
    assert await outbox.free()
    assert outbox.script.asked.count("{freed}") == 20
    assert outbox._free_after == 20
    assert outbox.waits_behind


async def test_rows_are_requeued_by_id_in_portions_up_to_the_last_that_was_parked_when_it_began() -> None:
    outbox = Scripted(SELECT=Answer([(3,)]), UPDATE=Answer(changed=1))
    outbox.script.answers["then"] = NOTHING
    assert await outbox.requeue(range(2500)) == 3
    assert outbox.script.asked == ["BEGIN", "UPDATE", "COMMIT"] * 3


async def test_a_row_that_is_parked_again_while_all_are_requeued_is_left_parked() -> None:
    outbox = Scripted(SELECT=Answer([(3,)]), UPDATE=Answer(changed=1))
    assert await outbox._parked_ids(0, 2) == []
    assert await outbox._parked_ids(0, 3) == [3]
