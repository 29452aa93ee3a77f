"""What the programs of the pages do with messages."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import run, snippets
from tests.servers import RawKafka
from tests.tables import each

from ackwise import Message
from ackwise.middleware.message import raising
from ackwise.middleware.message.disposition import Dead, Delayed
from ackwise.testing import batch, message


@each("page", ["README.md", "docs/index.md"])
async def test_the_ten_lines_bill_the_small_order_and_send_back_the_large_one(
    page: str, here: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    run(page, here)
    orders = batch([{"id": "a", "amount": 5}, {"id": "b", "amount": 10_001}])
    assert await here.bill(orders) is None
    assert [orders.ruling(0), orders.ruling(1)] == [None, Delayed(delay=3600)]
    assert capsys.readouterr().out == "billed a\n"


async def test_the_order_that_opens_later_comes_back_then(here: types.ModuleType) -> None:
    run("docs/how-to/delays.md", here)
    with pytest.raises(raising.Later) as raised:
        await here.bill(message({"opens_in": 90}))
    assert raised.value.delay == 90
    assert await here.bill(message({"opens_in": 0})) is None


def test_a_deduplicated_order_is_known_by_its_id(here: types.ModuleType) -> None:
    run("docs/how-to/dedup.md", here)
    assert here.replay.key(message({"order_id": "a"})) == "a"


async def test_the_negative_amount_alone_is_dead(here: types.ModuleType) -> None:
    run("docs/how-to/dead-letters.md", here)
    orders = batch([here.Order("a", 5), here.Order("b", -5)])
    await here.bill(orders)
    assert [orders.ruling(0), orders.ruling(1)] == [None, Dead("negative amount")]


async def test_a_changed_price_is_gone_from_the_cache_of_this_instance(here: types.ModuleType) -> None:
    run("docs/how-to/broadcasting.md", here)
    assert here.app.explain().group == "prices-cache@web-1"
    for _ in range(2):
        await here.evict(message({"article": "apple"}))
    assert here.cache == {}


async def test_the_session_is_committed_only_if_the_handler_succeeded(here: types.ModuleType) -> None:
    run("docs/how-to/middleware.md", here)

    async def write(order: Message[Any]) -> None:
        here.session.get().execute("CREATE TABLE IF NOT EXISTS orders (id)")
        here.session.get().execute("INSERT INTO orders VALUES (?)", (order.value,))
        if order.value == "bad":
            raise ValueError("the bank is closed")

    await here.in_session(message("good"), write)
    with pytest.raises(ValueError, match="the bank is closed"):
        await here.in_session(message("bad", offset=1), write)
    with here.closing(here.sqlite3.connect("ledger.db")) as ledger:
        assert ledger.execute("SELECT id FROM orders").fetchall() == [("good",)]


def test_the_store_of_the_page_passes_the_suite_as_the_page_runs_it(tmp_path: Path) -> None:
    written = [snippet.code for snippet in snippets("docs/store-protocol.md") if snippet.language == "python"]
    (tmp_path / "test_page.py").write_text("\n".join(written))
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "test_page.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, " passed" in done.stdout) == (0, True), done.stdout + done.stderr


async def test_the_loop_ships_what_is_not_for_venice(
    raw_kafka: RawKafka, here: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await raw_kafka.create("packages")
    await raw_kafka.produce("packages", b'{"id": "a", "city": "Venice"}', b'{"id": "b", "city": "Rome"}')
    monkeypatch.setenv("BROKERS", raw_kafka.bootstrap)
    run("docs/how-to/loop.md", here)
    loop = asyncio.create_task(here.main())
    copies = []
    for _ in range(300):
        copies = await raw_kafka.records("delivery.delay") if "delivery.delay" in await raw_kafka.topics() else []
        if copies or loop.done():
            break
        await asyncio.sleep(0.2)
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
    assert [copy.value for copy in copies] == [b'{"id": "a", "city": "Venice"}']
    assert capsys.readouterr().out == "shipped b\n"
