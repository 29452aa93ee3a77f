"""Keeps accounts, each in the order of its entries: run it with `ackwise run in_order:app` in this folder.

An entry that fails runs again in place. Those of its account wait behind it, other accounts go on. It reads the topic `entries` at
`localhost:9092`, whose records have the account as their key; ACKWISE_BROKERS names other brokers.
"""

from collections import Counter

from pydantic import BaseModel

from ackwise import App, Message, Reject, RetryInPlace


class Entry(BaseModel):
    """What a producer writes to `entries`, as JSON: what comes in, or below 0 what goes out."""

    account: str
    amount: int


class CheckAway(Exception):
    """Large amounts are checked by another service, which does not answer."""


balances: Counter[str] = Counter()  # stands for a database

app = App("ledger")


@app.agent("entries", order="key", in_place=RetryInPlace(5, delay="1s"))
async def book(message: Message[Entry]) -> None:
    """Book an entry. Had a withdrawal overtaken the deposit in front of it, it would be refused."""
    entry = message.value
    if entry.amount >= 1000 and message.attempt == 1:
        raise CheckAway(entry.account)
    if balances[entry.account] + entry.amount < 0:
        raise Reject("not covered")  # a dead letter; the next one of the account goes on
    balances[entry.account] += entry.amount
    print("booked", entry.account, entry.amount, "balance", balances[entry.account], flush=True)
