"""The table of states of the outbox is what the code has."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import fields
from pathlib import Path

from tests.docs.pages import text

from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import CheckAnswer, Failed, OutboxStatus, RowState, Sent, TransactionOutcome
from ackwise.middleware.storage.rowtime import AT_ONCE, Timing
from ackwise.stores.sql.schema import STATES
from ackwise.stores.sqlite.outbox import SQLiteOutbox

PAGE = text("docs/how-to/transactional-messages.md")


def rows() -> list[list[str]]:
    """The cells of the table."""
    table = PAGE.partition("| number | local message table |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_each_state_has_its_number_and_its_names() -> None:
    table = {int(number): name.strip("`") for number, name, *_ in rows()}
    assert table == {int(state): state.name for state in RowState}
    assert table == {number: name for name, number in STATES.items()}, "which the statements of every database have"
    for number, name, _, here, _ in rows():
        (ours,) = re.findall(r"`((?:RowState|TransactionOutcome)\.\w+)`", here)
        assert ours == f"RowState.{name.strip('`')}" or (int(number), ours) == (0, f"TransactionOutcome.{TransactionOutcome.UNKNOWN.name}")


def test_the_words_of_the_status_are_those_of_the_table() -> None:
    said = {word for *_, here, _ in rows() for word in re.findall(r"`(\w+)` in `ackwise outbox status`", here)}
    assert said == {"prepared", "waiting", "parked", "expired"}
    assert said <= {field.name for field in fields(OutboxStatus)}


async def test_the_numbers_are_in_the_table_of_the_database(tmp_path: Path) -> None:
    """Each state by the way that leads to it."""
    outbox = SQLiteOutbox(tmp_path / "shop.db", keep_sent=60.0)
    await outbox.open()
    for name in ("PREPARED", "LOCAL_COMMIT", "LOCAL_ROLLBACK", "GLOBAL_COMMIT", "MESSAGE_ERROR", "UNKNOWN", "EXPIRED"):
        timing = Timing(expires=1.0) if name == "EXPIRED" else AT_ONCE
        await outbox.prepare([Outgoing("orders", None, message_id=name)], name, producer_group="shop", first_check=0.0, timing=timing)
    for name in ("LOCAL_COMMIT", "GLOBAL_COMMIT", "MESSAGE_ERROR", "EXPIRED"):
        await outbox.decide(name, TransactionOutcome.COMMIT)
    await outbox.decide("LOCAL_ROLLBACK", TransactionOutcome.ROLLBACK)
    shards = await outbox.own("relay", lease=60.0, share=64)
    found = {row.message.message_id: row for row in await outbox.pending(shards, limit=10)}
    await outbox.sent([Sent(found["GLOBAL_COMMIT"].id, found["GLOBAL_COMMIT"].shard)], shards)
    await outbox.failed([Failed(found["MESSAGE_ERROR"].id, found["MESSAGE_ERROR"].shard, "refused", None)], shards)
    await outbox.expire([Sent(found["EXPIRED"].id, found["EXPIRED"].shard)], shards)
    checked = {half.tx_id: half.id for half in await outbox.due_checks("shop", limit=10, lease=60.0)}
    await outbox.answered([CheckAnswer(checked["UNKNOWN"], TransactionOutcome.UNKNOWN)])
    await outbox.close()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        stored = dict(connection.execute("SELECT tx_id, state FROM ackwise_outbox"))
    numbers = {name.strip("`"): int(number) for number, name, *_ in rows()}
    assert stored == {**numbers, "UNKNOWN": numbers["PREPARED"]}
