"""A process that claims keys in a store and says what it was told, one JSON line per answered exchange.

Arguments: the URL of the store, a number that makes this process's tokens its own, and how many batches to claim.
The keys are the same for every process, 100 to a batch; what is acquired is completed with the next batch.
"""

import asyncio
import json
import sys

from ackwise.middleware.storage.claimstore import Acquired, Claim, ClaimKey, Complete, Exchange, Outcome
from ackwise.plugin.registry import open_store

BATCH = 100


def key_of(number: int) -> ClaimKey:
    return ClaimKey(number.to_bytes(16, "big"), None, 1)


async def claim_batches(url: str, process: int, batches: int) -> None:
    store = open_store(url)
    await store.open()
    acquired: list[int] = []
    for batch in range(batches + 1):
        numbers = list(range(batch * BATCH, (batch + 1) * BATCH)) if batch < batches else []
        completes = [Complete(key_of(number), process * 10**9 + number + 1, Outcome.OK) for number in acquired]
        claims = [Claim(key_of(number), process * 10**9 + number + 1) for number in numbers]
        result = await store.exchange(Exchange(claims, completes))
        done = acquired
        acquired = [number for number, answer in zip(numbers, result.claims, strict=True) if isinstance(answer, Acquired)]
        sys.stdout.write(json.dumps({"acquired": acquired, "done": done, "acks": sorted({ack.value for ack in result.completes})}) + "\n")
        sys.stdout.flush()
    await store.close()


if __name__ == "__main__":
    asyncio.run(claim_batches(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
