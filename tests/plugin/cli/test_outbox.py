"""`ackwise outbox` on an outbox in a file, as a user calls it."""

from __future__ import annotations

import asyncio
import json
import shlex
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.tables import each
from typer.testing import CliRunner

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import CheckAnswer, Failed, Sent, TransactionOutcome
from ackwise.middleware.storage.rowtime import Timing
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.registry import open_outbox

URL = "sqlite:///shop.db"


def ackwise(arguments: str, *, of: str = "outbox") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `ackwise outbox …`."""
    done = CliRunner().invoke(new_app(), [*shlex.split(of), *shlex.split(arguments)], prog_name="ackwise")
    return done.exit_code, done.stdout, done.stderr


def facts(arguments: str) -> tuple[int, Any]:
    code, said, errors = ackwise(f"{arguments} --json")
    assert errors == ""
    return code, json.loads(said)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "shop.db"


async def fill(waiting: int = 0, failed: Sequence[str] = (), undecided: int = 0) -> None:
    """An outbox with so many rows that wait, a parked row for each cause, and rows that check-backs have parked."""
    store = open_outbox(URL)
    await store.open()
    try:
        with closing(sqlite3.connect("shop.db", isolation_level=None)) as connection:
            async with store.transaction(connection) as transaction:
                for number in range(len(failed)):
                    transaction.send("orders", b"secret", key=b"k-%d" % number, headers=(("trace", b"\xff"),), message_id=f"id-{number}")
        shards = await store.own("relay", lease=60.0, share=64)
        rows = await store.pending(shards, limit=100)
        await store.failed([Failed(row.id, row.shard, cause, None) for row, cause in zip(rows, failed, strict=True)], shards)
        await store.leave("relay")
        for number in range(undecided):
            await store.prepare([Outgoing("orders", b"1")], f"tx-{number}", producer_group="shop", first_check=0.0)
        checks = await store.due_checks("shop", limit=100, lease=1.0) if undecided else []
        await store.answered([CheckAnswer(row.id, TransactionOutcome.UNKNOWN, None, "nobody knows") for row in checks])
        with closing(sqlite3.connect("shop.db", isolation_level=None)) as connection:
            async with store.transaction(connection) as transaction:
                for number in range(waiting):
                    transaction.send("orders", b"%d" % number)
    finally:
        await store.close()


def test_init_makes_the_tables_and_check_finds_nothing_wrong_then(path: Path) -> None:
    assert facts(f"init {URL}") == (0, {"ready": True})
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM ackwise_outbox").fetchone() == (0,)
    assert facts(f"init {URL}") == (0, {"ready": True})
    code, found = facts(f"check {URL}")
    assert code == int(bool(found["findings"]))
    assert facts(f"cleanup {URL}") == (0, {"deleted": 0})


def test_status_shows_what_waits_and_what_is_parked(path: Path) -> None:
    asyncio.run(fill(waiting=3, failed=["too large"], undecided=1))
    code, found = facts(f"status {URL}")
    assert code == 1
    assert (found["waiting"], found["prepared"], found["parked"], found["relays"]) == (3, 0, 2, {})
    assert found["oldest"] >= 0
    _, said, _ = ackwise(f"status {URL}")
    assert "rows wait and no relay runs" in said
    assert "parked rows are not sent" in said


def test_half_messages_are_listed_and_decided_by_whoever_knows_the_outcome(path: Path) -> None:
    async def prepare() -> None:
        store = open_outbox(URL)
        await store.open()
        await store.prepare([Outgoing("orders", b"secret", message_id="id-1")], "tx-1", producer_group="shop")
        await store.prepare([Outgoing("orders", b"secret", message_id="id-2")], "tx-2", producer_group="shop")
        await store.close()

    assert facts(f"init {URL}")[0] == 0
    assert ackwise(f"list {URL} --prepared")[1] == "no row is prepared\n"
    asyncio.run(prepare())
    code, found = facts(f"list {URL} --prepared")
    assert (code, [(row["row"], row["message_id"], row["tx_id"]) for row in found["prepared"]]) == (
        0,
        [(1, "id-1", "tx-1"), (2, "id-2", "tx-2")],
    )
    said = ackwise(f"list {URL} --prepared")[1]
    assert ("tx-2" in said, "secret" in said) == (True, False)
    assert facts(f"decide {URL} tx-1 commit") == (0, {"tx_id": "tx-1", "decided": 1})
    assert ackwise(f"decide {URL} tx-2 rollback")[:2] == (0, "1 messages decided: rollback\n")
    code, _, errors = ackwise(f"decide {URL} tx-2 commit")
    assert (code, "no message of the transaction tx-2 is prepared" in errors) == (2, True)
    assert facts(f"status {URL}")[1]["waiting"] == 1


def test_rows_that_expired_are_listed_apart_from_parked_ones(path: Path) -> None:
    async def expire() -> None:
        store = open_outbox(URL)
        await store.open()
        await store.prepare([Outgoing("offers", b"secret", message_id="id-1")], "tx-1", producer_group="shop", timing=Timing(expires=1.0))
        await store.decide("tx-1", TransactionOutcome.COMMIT)
        (row,) = await store.pending(shards := await store.own("relay", lease=60.0, share=64), limit=10)
        assert await store.expire([Sent(row.id, row.shard)], shards) == 1
        await store.close()

    assert facts(f"init {URL}")[0] == 0
    assert ackwise(f"list {URL} --expired")[:2] == (0, "no row is expired\n")
    asyncio.run(expire())
    code, found = facts(f"list {URL} --expired")
    assert (code, [(row["message_id"], row["cause"]) for row in found["expired"]]) == (0, [("id-1", "expired")])
    assert ackwise(f"list {URL}")[:2] == (0, "no row is parked\n")
    assert (facts(f"status {URL}")[1]["expired"], "expired unsent" in ackwise(f"status {URL}")[1]) == (1, True)
    code, _, errors = ackwise(f"list {URL} --expired --prepared")
    assert (code, "both --prepared and --expired" in errors) == (2, True)


def test_release_lets_the_other_kind_of_relay_begin_once_no_relay_is_there(path: Path) -> None:
    asyncio.run(fill(waiting=1))
    asyncio.run(as_relay("table"))
    code, _, errors = ackwise(f"release {URL}")
    assert (code, "1 relays have a lease; stop them" in errors) == (2, True)
    asyncio.run(as_relay("table", leaves=True))
    with pytest.raises(ConfigurationError, match="stop all of those first, then call ackwise outbox release"):
        asyncio.run(as_relay("cdc"))
    assert facts(f"release {URL}") == (0, {"released": True})
    asyncio.run(as_relay("cdc", leaves=True))
    assert facts(f"status {URL}")[1]["relay_kind"] == "cdc"
    assert "rows wait and no relay runs; run ackwise cdc URL" in ackwise(f"status {URL}")[1]


async def as_relay(kind: str, *, leaves: bool = False) -> None:
    """A relay of this kind takes the outbox, and leaves it or is killed."""
    store = open_outbox(URL)
    await store.open()
    try:
        await store.claim_relay(kind)
        await store.own("relay", lease=60.0, share=64)
        if leaves:
            await store.leave("relay")
    finally:
        await store.close()


def test_status_of_an_empty_outbox_is_fine(path: Path) -> None:
    assert facts(f"status {URL}")[0] == 0


def test_list_names_each_parked_row_and_its_cause_without_its_payload(path: Path) -> None:
    asyncio.run(fill(failed=["[topic] is too small", "no right"]))
    code, said, _ = ackwise(f"list {URL}")
    assert code == 1
    assert "[topic] is too small" in said
    assert "id-1" in said
    assert "secret" not in said
    _, found = facts(f"list {URL} --after 1")
    assert [row["row"] for row in found["parked"]] == [2]


def test_list_of_nothing_says_so(path: Path) -> None:
    assert ackwise(f"list {URL}")[:2] == (0, "no row is parked\n")


def test_show_gives_one_row_and_its_value_only_where_that_is_asked_for(path: Path) -> None:
    asyncio.run(fill(failed=["too large"]))
    code, found = facts(f"show {URL} 1")
    assert code == 0
    assert (found["key"], found["message_id"], found["value_bytes"]) == ("k-0", "id-0", 6)
    assert found["headers"] == [["trace", "base64:/w=="]]
    assert "value" not in found
    assert facts(f"show {URL} 1 --value")[1]["value"] == "secret"
    assert "too large" in ackwise(f"show {URL} 1")[1]


def test_show_of_a_row_that_is_not_parked_says_where_to_look(path: Path) -> None:
    code, _, errors = ackwise(f"show {URL} 7")
    assert code == 2
    assert "no row 7 is parked; ackwise outbox list shows those that are" in errors


def test_requeue_changes_nothing_unless_it_is_told_which_rows(path: Path) -> None:
    asyncio.run(fill(failed=["a", "b"], undecided=1))
    assert facts(f"requeue {URL}") == (0, {"outbox": URL, "parked": 3, "requeued": 0, "undecided": 1})
    _, said, _ = ackwise(f"requeue {URL}")
    assert "2 rows would be requeued; add --all to do it" in said
    assert facts(f"status {URL}")[1]["parked"] == 3


def test_requeue_all_leaves_the_rows_of_which_nobody_knows_how_their_transaction_ended(path: Path) -> None:
    asyncio.run(fill(failed=["a", "b"], undecided=1))
    assert facts(f"requeue {URL} --all")[1]["requeued"] == 2
    _, found = facts(f"list {URL}")
    assert [row["cause"] for row in found["parked"]] == ["nobody knows"]
    assert facts(f"requeue {URL} {found['parked'][0]['row']}")[1]["requeued"] == 1
    assert facts(f"status {URL}")[1]["waiting"] == 3


def test_requeue_of_a_row_that_is_not_parked_changes_nothing(path: Path) -> None:
    asyncio.run(fill(failed=["a"]))
    code, _, errors = ackwise(f"requeue {URL} 1 9")
    assert code == 2
    assert "rows 9 are not parked; nothing was changed" in errors
    assert facts(f"status {URL}")[1]["parked"] == 1


def test_rows_and_all_at_once_are_refused(path: Path) -> None:
    assert ackwise(f"requeue {URL} 1 --all")[0] == 2


def test_requeue_records_what_it_did_where_events_are_wanted(path: Path) -> None:
    asyncio.run(fill(failed=["a", "b"]))
    assert facts(f"requeue {URL} 2 --events events")[1]["requeued"] == 1
    written = b"".join(file.read_bytes() for file in (path.parent / "events").rglob("*") if file.is_file())
    assert b"id-1" in written
    assert b"id-0" not in written


APP = """
from ackwise import App, Message, Outbox

app = App("shop")
app.use(Outbox("sqlite:///shop.db"))
bare = App("bare")

@app.agent("orders")
async def take(message: Message[bytes]) -> None: ...

@bare.agent("orders")
async def take_too(message: Message[bytes]) -> None: ...
"""


def test_an_app_stands_for_its_outbox(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path.parent / "shop_of_outbox.py").write_text(APP)
    monkeypatch.syspath_prepend(path.parent)
    assert facts("init shop_of_outbox:app") == (0, {"ready": True})
    assert facts("status shop_of_outbox:app")[1]["outbox"] == URL
    code, _, errors = ackwise("status shop_of_outbox:bare")
    assert code == 2
    assert "uses no Outbox; add app.use(Outbox(…))" in errors


@each(
    ("arguments", "sentence"),
    [
        ("", "nothing to relay was named; give MODULE:APP, such as billing.worker:app, or --outbox URL"),
        ("shop:app --outbox sqlite:///shop.db", "both shop:app and --outbox were given"),
        ("shop:app --brokers localhost:9092", "--brokers and --events belong to --outbox"),
        ("--outbox shop.db", "the outbox has no scheme"),
        ("--outbox sqlite:///shop.db --brokers nowhere:port", "port"),
    ],
)
def test_what_relay_can_not_do_is_said_in_a_sentence(path: Path, arguments: str, sentence: str) -> None:
    code, _, errors = ackwise(arguments, of="relay")
    assert code == 2
    assert sentence in errors
