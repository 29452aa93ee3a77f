"""What a lane records of attempts in place and of late successes, judged by the plain algebra."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.plugin.consumer.ordered import Shop, failing, stubborn

from ackwise.middleware.message.message import Message
from ackwise.middleware.policies.retry import RetryInPlace
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.reference.oracle import rule
from ackwise.spark.vocabulary import Flag, Verdict

SECOND = 1_000_000
FAILED = Flag.HAD_FAILURES


SHOP = {"kind": "message"}


def judged(*workers: Shop, offset: int = 100) -> tuple[Verdict, Flag]:
    """The verdict on the message by the events of these workers, all of which live."""
    rows = []
    for writer, here in enumerate(workers, start=1):
        for seq, event in enumerate(here.sink.events):
            found = event._asdict() | {"event_type": int(event.code), "writer_id": writer, "seq": seq, "group_id": "billing"}
            found |= {"event_ts": (1000 + seq) * SECOND, "record_ts": None, "due_ts": None}
            rows.append(found)
    ruling = rule(rows, ReconcileConfig(grace=600.0, writer_timeout=100_000.0))
    (verdict,) = {found for (_, _, _, at), found in ruling.messages.items() if at == offset}
    return verdict


async def test_what_succeeded_at_its_third_attempt_in_place_was_run_once_and_what_failed_to_the_end_is_a_dead_letter(shop: Any) -> None:
    for order in ("key", "partition"):
        for dedup, also in ((True, Flag(0)), (False, Flag.UNCLAIMED)):
            here = shop(failing(2, 100), order=order, dedup=dedup, in_place=RetryInPlace(3, delay=0.01))
            here.offer(1)
            await here.settled(1)
            assert here.seen == [[100]] * 3
            assert judged(here) == (Verdict.EXACTLY_ONCE, FAILED | also), (order, dedup)
            here = shop(failing(99, 100), order=order, dedup=dedup, in_place=RetryInPlace(2, delay=0.01))
            here.offer(1)
            await here.settled(1)
            assert judged(here) == (Verdict.DEAD_LETTERED, FAILED | also), (order, dedup)


async def test_a_late_success_is_one_until_its_copy_is_run_elsewhere(shop: Any) -> None:
    end = asyncio.Event()

    async def handle(message: Message[Any]) -> None:
        await stubborn(end)

    here, elsewhere = (shop(handle, order=None, dedup=True, consume_timeout=0.05) for _ in range(2))
    here.offer(1)
    await here.settled(1)
    (copy,) = here.publisher.sent
    late = FAILED | Flag.RETRIED | Flag.TIMED_OUT
    assert judged(here) == (Verdict.RETRYING, late)
    end.set()
    await here.until_idle()
    assert judged(here) == (Verdict.EXACTLY_ONCE, late)
    await elsewhere.pipeline([elsewhere.returned(copy)], elsewhere.lane)
    assert judged(here, elsewhere) == (Verdict.MULTI_EXECUTED, late)
    await here.pipeline([here.returned(copy)], here.lane)
    assert judged(here) == (Verdict.EXACTLY_ONCE, late | Flag.DUP_AND_OK)
