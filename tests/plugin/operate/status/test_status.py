"""`ackwise status`: a group seen over all its workers, on a Kafka in memory, and as a process that draws again and again."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any

import pytest
from aiokafka.errors import GroupAuthorizationFailedError
from tests.plugin.operate.deadletters.letters import APP, Shop, letter
from tests.tables import each
from tests.waiting import PATIENCE, until
from typer.testing import CliRunner

from ackwise import CONSUME_LATER, App, ConsumeStatus, Message, RetryInPlace
from ackwise.middleware.flow.controlrecords import PartitionInHand, WorkerRecord, encode_worker
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.consumer import workerstate
from ackwise.plugin.operate.deadletter import LetterId, LetterState, encode_state
from ackwise.plugin.settings.config import Config
from ackwise.plugin.topics.leftovers import CopyReader


def run(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "400"}).invoke(new_app(), ["status", *arguments], prog_name="ackwise")


async def status(*arguments: str, code: int = 0) -> Any:
    """What the command prints; read from its JSON if it is asked for."""
    done = await asyncio.to_thread(run, *arguments)
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout) if "--json" in arguments else done.output


def worker(shop: Shop) -> App:
    """It waits in place with orders that fail, and sends mails back."""
    app = App("billing", brokers=shop.kafka.bootstrap, config=Config(), start="earliest", commit_interval=0.05)

    @app.agent("orders", order="partition", in_place=RetryInPlace(5, delay=30))
    async def bill(message: Message[bytes]) -> None:
        raise RuntimeError

    @app.agent("mails")
    async def mail(message: Message[bytes]) -> ConsumeStatus:
        return CONSUME_LATER

    return app


async def look(shop: Shop) -> Any:
    done = await asyncio.to_thread(run, "billing", "--brokers", shop.kafka.bootstrap, "--json")
    return json.loads(done.stdout) if done.exit_code < 2 else {"partitions": [], "levels": []}


@pytest.mark.slow  # waits for a worker, and for commands until they show all of it
async def test_one_table_has_owners_watermarks_ages_and_what_waits_and_why(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workerstate, "EVERY", 0.1)
    shop.kafka.create_topic("mails")
    for value in (b"bad", b"next"):
        shop.kafka.produce("orders", value)
    shop.kafka.produce("mails", b"later")
    async with worker(shop).running() as running:
        await running.ready()
        found = await until(
            lambda: look(shop),
            lambda seen: (
                any(each["waiting"] for each in seen["partitions"])
                and sum(each["pending"] for each in seen["levels"]) == 1
                and all(each["lag"] == 0 for each in seen["partitions"] if each["topic"] == "mails")
                and (seen["state"], seen["relays"]) == ("Stable", 1)
                and any(each["waiting"] for each in seen["workers"])
            ),
        )
        told = await status("billing", "--brokers", shop.kafka.bootstrap)
    (orders,) = (each for each in found["partitions"] if each["topic"] == "orders")
    assert (orders["committed"], orders["end"], orders["lag"], orders["waiting"]) == (0, 2, 2, 1)
    assert 0 <= orders["due_in"] <= 30
    assert 0 <= orders["lag_seconds"] <= found["lag_seconds"] < 600
    assert orders["owner"].startswith("ackwise 127.0.0.1 …")
    (mails,) = (each for each in found["partitions"] if each["topic"] == "mails")
    assert (mails["lag"], mails["lag_seconds"], mails["due_in"]) == (0, 0.0, None)
    assert {each["topic"] for each in found["partitions"]} == {"mails", "orders", "billing.retry"}
    assert (found["state"], len(found["members"]), found["relays"], found["findings"]) == ("Stable", 1, 1, [])
    (said,) = found["workers"]
    assert (said["pid"], said["version"], said["client"]) == (os.getpid(), version("ackwise"), "ackwise")
    assert sorted(said["partitions"]) == ["billing.retry/0", "mails/0", "orders/0"]
    assert "RuntimeError" in {why for why, _ in said["waiting"]}
    assert orders["worker"] == f"{said['host']}:{said['pid']}"
    assert f"= {orders['worker']}" in told
    assert "RuntimeError" in told
    assert "orders/0" in told
    assert "1 message in place, tried again in" in told
    assert ["10s", "1"] in [line.split() for line in told.splitlines()]


async def test_a_group_without_a_worker_is_a_finding_and_exit_code_1(shop: Shop) -> None:
    shop.kafka.produce("orders", b"a", timestamp=time.time() - 3600)
    found = await status(shop.app, "--json", code=1)
    assert found["findings"][0] == "no worker is in the group, which is Dead; start one"
    assert [each["lag_seconds"] for each in found["partitions"]] == [found["lag_seconds"]] == [pytest.approx(3600, abs=60)]
    assert "lag 1, the oldest 1 h old" in await status(shop.app, code=1)
    assert [(each["committed"], each["lag"], each["owner"]) for each in found["partitions"]] == [(None, 1, None)]


async def test_letters_are_open_until_somebody_has_marked_them(shop: Shop) -> None:
    shop.bury(letter(1), letter(2), letter(3), timestamp=5.0)
    shop.kafka.create_topic("billing.dlq.state")
    mark = LetterState("dropped", 0, 6_000, "orders/0/1")
    # The last is about a letter of an earlier topic of this name: nobody has dropped the letter that is there now.
    for marked in (LetterId(0, 0, 5_000), LetterId(0, 7, 4_000), LetterId(0, 1, 4_000)):
        key, value = encode_state(marked, mark)
        shop.kafka.produce("billing.dlq.state", value, key=key)
    found = await status("billing", "--brokers", shop.kafka.bootstrap, "--json", code=1)
    assert (found["dead_letters"]["letters"], found["dead_letters"]["open"]) == (3, 2)
    assert "2 dead letters are open; run ackwise dlq list to see why" in found["findings"]
    assert "dead letters: 3, of which 2 are open, the newest" in await status(shop.app, code=1)


async def test_what_is_paused_by_command_is_told_and_is_a_finding(shop: Shop) -> None:
    shop.kafka.create_topic("billing.control")
    paused = await asyncio.to_thread(CliRunner().invoke, new_app(), ["pause", shop.app, "bill"], prog_name="ackwise")
    assert paused.exit_code == 0, paused.output
    found = await status(shop.app, "--json", code=1)
    assert [each["what"] for each in found["paused"]] == ["bill"]
    assert [each["paused"] for each in found["partitions"]] == [["bill"]]
    assert "bill is paused by command; ackwise resume lets it go on" in found["findings"]
    assert "bill is paused by command" in await status(shop.app, code=1)


async def test_workers_say_how_they_are_and_one_that_died_long_ago_is_left_out(shop: Shop) -> None:
    shop.kafka.create_topic("billing.control")
    evil = WorkerRecord("2", "node\x1b[2J-4", 18, "1.0.0", "ack\u202ewise", (), (), ("bill by code",), ("its store does not answer",))
    said = [
        (WorkerRecord("1", "node-3", 17, "1.0.0", "ackwise", (PartitionInHand("orders", 0, 5, 2),), (("LookupError", 3),)), 5.0),
        (evil, 6.0),
        (WorkerRecord("3", "node-5", 19, "1.0.0", "ackwise"), 3600.0),
    ]
    for record, ago in said:
        key, value = encode_worker(record)
        shop.kafka.produce("billing.control", value, key=key, timestamp=time.time() - ago)
    shop.kafka.produce("billing.control", b"no record", key=b"worker/4")
    shop.kafka.produce("billing.control", None, key=b"worker/5")
    found = await status(shop.app, "--json", code=1)
    assert [(each["host"], each["in_hand"], each["running"]) for each in found["workers"]] == [("node-3", 5, 2), ("node\x1b[2J-4", 0, 0)]
    assert [each["worker"] for each in found["partitions"]] == ["node-3:17"]
    told = await status(shop.app, code=1)
    assert "3: LookupError" in told
    assert "bill by code" in told
    assert "its store does not answer" in told
    assert "and of what each worker said last" in told
    assert not {"\x1b", "\u202e"} & set(told)


@each(
    ("arguments", "sentence"),
    [
        ("bill!ng", "group is 'bill!ng'"),
        ("billing --interval 0", "--interval is 0; it must be between 0.1 and 3600 seconds"),
        ("billing --brokers kafka", "broker 'kafka' has no port"),
        ("billing --brokers 127.0.0.1:1", "no broker answers"),
        ("nowhere:app", "there is no module 'nowhere'"),
        ("shop:app --brokers 127.0.0.1:1", "shop:app is an app with its own brokers"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments: str, sentence: str) -> None:
    done = run(*arguments.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


async def test_a_group_that_nobody_knows_is_one_sentence(shop: Shop) -> None:
    assert "there is no consumer group 'shipping'" in await status("shipping", "--brokers", shop.kafka.bootstrap, code=2)


async def test_an_app_that_broadcasts_has_no_status_of_a_group(shop: Shop) -> None:
    shop.write_app(APP + "\nfrom ackwise import Broadcasting\napp.use(Broadcasting('web-1'))\n")
    assert "broadcasts" in await status(shop.app, code=2)


async def test_a_client_without_rights_is_told_which_ones_it_needs(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> None:
        raise GroupAuthorizationFailedError

    monkeypatch.setattr(CopyReader, "membership", refused)
    told = await status(shop.app, code=2)
    assert "this client may not look at group 'billing' (GroupAuthorizationFailedError); allow it to describe the group" in told


#: A shell lets what it runs in the background ignore Ctrl-C, and its children inherit that: here they heed it.
HEEDING = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("ackwise.plugin.cli", run_name="__main__")
"""


@asynccontextmanager
async def watching(shop: Shop, *arguments: str, out: int = PIPE) -> AsyncIterator[asyncio.subprocess.Process]:
    command = [sys.executable, "-c", HEEDING, "status", shop.app, "--watch", "--interval", "0.1", *arguments]
    environment = {**os.environ, "TERM": "xterm"}
    process = await asyncio.create_subprocess_exec(*command, cwd=shop.folder, stdout=out, stderr=PIPE, env=environment)
    try:
        async with asyncio.timeout(PATIENCE):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.slow  # starts the command in a process
async def test_watch_prints_an_object_per_line_in_a_pipe_and_ends_with_0_on_ctrl_c(shop: Shop) -> None:
    async with watching(shop, "--json") as process:
        assert process.stdout is not None
        seen = [json.loads(await process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
    assert [each["group"] for each in seen] == ["billing"] * 3
    assert (process.returncode, b"Traceback" in said) == (0, False)


@pytest.mark.slow  # starts the command in a process, on a terminal
async def test_watch_draws_over_itself_on_a_terminal_and_ends_with_0_on_ctrl_c(shop: Shop) -> None:
    ours, theirs = pty.openpty()
    seen = bytearray()

    def read_until_redrawn() -> None:
        with suppress(OSError):  # nobody has the other end any more
            while seen.count(b"group billing: ") < 3:
                seen.extend(os.read(ours, 4096))

    try:
        async with watching(shop, out=theirs) as process:
            os.close(theirs)
            await asyncio.to_thread(read_until_redrawn)
            process.send_signal(signal.SIGINT)
            _, said = await process.communicate()
    finally:
        os.close(ours)
    assert (process.returncode, b"Traceback" in said) == (0, False)
    assert seen.count(b"group billing: ") >= 3
    assert b"\x1b[2K" in seen  # a line is wiped before it is written again
