"""A batch in its own process, one step at a time, so that it can be killed between any two.

Arguments: URL of the database, keys in hexadecimal. It says each step that it has done, and goes on when it is told to. The
handler writes a row in `effects` for each key, which would hold duplicates, and adds them to the only row of `balance`.
"""

from __future__ import annotations

import asyncio
import sys

from tests.failures.transacting import execute

from ackwise.middleware.storage.claimstore import ClaimKey, Outcome
from ackwise.middleware.storage.transaction import Finish, Taken
from ackwise.plugin.registry import open_inbox

STEPS = ("opened", "began", "claimed", "wrote", "added", "finished", "committed")


def reach(step: str) -> None:
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()
    sys.stdin.readline()


async def work(url: str, keys: list[ClaimKey]) -> None:
    inbox = open_inbox(url)
    await inbox.open()
    reach("opened")
    async with inbox.begin(retention=3600.0) as transaction:
        reach("began")
        answers = await transaction.claim(keys)
        taken = [key for key, answer in zip(keys, answers, strict=True) if answer == Taken()]
        reach("claimed")
        await execute(transaction.connection, "INSERT INTO effects VALUES ({0})", [(key.id.hex(),) for key in taken])
        reach("wrote")
        await execute(transaction.connection, "UPDATE balance SET total = total + {0}", [(len(taken),)])
        reach("added")
        await transaction.finish([Finish(key, ("orders", 0, number), number, Outcome.OK, 1) for number, key in enumerate(taken)])
        reach("finished")
    reach("committed")
    await inbox.close()


if __name__ == "__main__":
    url, *ids = sys.argv[1:]
    asyncio.run(work(url, [ClaimKey(bytes.fromhex(id), None, 1) for id in ids]))
