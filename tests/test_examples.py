"""Every example runs as its first lines say, on a real Kafka."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.servers import RawKafka
from tests.waiting import PATIENCE, until

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.claimstore import Claim, ClaimKey, Complete, Exchange, Outcome
from ackwise.plugin.registry import open_store

EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass
class Running:
    """An example at work: what it prints, line by line, and in the end its exit code and its log."""

    process: asyncio.subprocess.Process
    log: list[dict[str, Any]] = field(default_factory=list)

    async def lines(self, count: int) -> list[str]:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return [(await self.process.stdout.readline()).decode().rstrip() for _ in range(count)]

    async def stop(self) -> str:
        """What it still prints when it is told to end; it must end well."""
        self.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            out, errors = await self.process.communicate()
        assert self.process.returncode == 0, errors.decode()
        self.log = [json.loads(line) for line in errors.decode().splitlines() if line.startswith("{")]
        return out.decode()


@asynccontextmanager
async def running(name: str, folder: Path, kafka: RawKafka, *options: str, app: bool = True, faust: bool = False) -> AsyncIterator[Running]:
    """The example `name`, copied to `folder`, as `ackwise run` runs it or (`app=False`) as a script; or as a worker of Faust."""
    shutil.copy(EXAMPLES / name, folder)
    module = name.removesuffix(".py")
    command = ["-m", "ackwise.plugin.cli", "run", f"{module}:app", "--log-format", "json", *options] if app else [name]
    if faust:
        command, app = ["-m", "faust", "-A", module, "worker", "-l", "info", "--without-web"], False
    environment = {**os.environ, "ACKWISE_BROKERS" if app else "BROKERS": kafka.bootstrap}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def write(kafka: RawKafka, topic: str, *values: object) -> None:
    await kafka.produce(topic, *(json.dumps(value).encode() for value in values))


async def test_billing_charges_brings_back_and_rejects(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("orders")
    orders = [("a", 5), ("b", 0), ("c", 20_000), ("a", 5)]
    await write(raw_kafka, "orders", *({"id": id, "amount": amount} for id, amount in orders))
    async with running("billing.py", tmp_path, raw_kafka, "--log-level", "debug") as worker:
        charged = await worker.lines(2)
        rest = await worker.stop()
    assert (charged, rest) == (["charged a 5", "charged c 20000"], "")
    assert [letter.value for letter in await raw_kafka.records("billing.dlq")] == [b'{"id": "b", "amount": 0}']
    events = [line["event"] for line in worker.log if line["logger"] == "ackwise" and line["level"] != "debug"]
    assert [*events[:3], events[-1]] == ["environment variables override settings", "starting", "running", "stopped"]
    assert [line for line in worker.log if "amount" in json.dumps(line) or "no price" in json.dumps(line)] == []


async def test_two_workers_in_a_share_group_resize_the_pictures_of_one_partition(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("uploads")
    async with running("share_group.py", tmp_path, raw_kafka) as one, running("share_group.py", tmp_path, raw_kafka) as two:
        for name in ("a", "late", "b", "a"):
            await write(raw_kafka, "uploads", {"name": name})
        said: list[str] = []
        async with asyncio.timeout(PATIENCE):
            reading = {asyncio.ensure_future(worker.lines(1)): worker for worker in (one, two)}
            while len(said) < 3:
                done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    worker = reading.pop(task)
                    said += task.result()
                    reading[asyncio.ensure_future(worker.lines(1))] = worker
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
        assert sorted(said) == ["resized a", "resized b", "resized late"]
        assert [await worker.stop() for worker in (one, two)] == ["", ""]


async def test_notify_rejects_retries_when_told_to_and_buries_what_can_not_be_sent(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("notifications")
    addresses = ["stranger@example.org", "nobody", "zoë@example.org", "friend@example.org"]
    await write(raw_kafka, "notifications", *({"address": address, "text": "hello"} for address in addresses), {"address": 7})
    async with running("notify.py", tmp_path, raw_kafka) as worker:
        sent = await worker.lines(2)
        rest = await worker.stop()
    assert (sent, rest) == (["sent friend@example.org hello", "sent stranger@example.org hello"], "")
    letters = await raw_kafka.records("notify.dlq")
    assert [dict(letter.headers)["ackwise-reason"] for letter in letters] == [b"rejected", b"not-retried", b"undecodable"]
    assert "example.org" not in json.dumps(worker.log)


async def test_limits_bills_each_customer_at_its_own_rate(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("charges")
    ann = [{"id": f"a{number}", "customer": "ann", "amount": 1} for number in range(14)]
    await write(raw_kafka, "charges", *ann, {"id": "b0", "customer": "bob", "amount": 1})
    async with running("limits.py", tmp_path, raw_kafka) as worker:
        billed = await worker.lines(15)
        await worker.stop()
    assert sorted(line.split()[1] for line in billed) == sorted([*(f"a{number}" for number in range(14)), "b0"])
    assert billed.index("billed b0 bob 1") <= 10  # ann's burst, and what was billed beside it; four of hers wait


async def test_reminder_comes_when_it_is_time_and_not_if_it_is_called_off(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("reminders")
    due = time.time() + 15.0
    async with running("reminder.py", tmp_path, raw_kafka) as worker:
        await write(raw_kafka, "reminders", {"text": "at once", "at": 0}, {"text": "never", "at": due}, {"text": "in time", "at": due})
        assert await worker.lines(1) == ["remember at once"]
        environment = {**os.environ, "ACKWISE_BROKERS": raw_kafka.bootstrap}
        command = [sys.executable, "reminder.py", "reminders/0/1", "reminders/0/7"]
        called = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE)
        said, _ = await called.communicate()
        assert said.decode().splitlines() == ["reminders/0/1 accepted", "reminders/0/7 unknown"]
        assert await worker.lines(1) == ["remember in time"]
        assert time.time() >= due
        assert await worker.stop() == ""


async def test_publish_sends_an_invoice_for_each_order_and_a_reminder_later(raw_kafka: RawKafka, tmp_path: Path) -> None:
    for topic in ("sales", "bills", "nudges"):
        await raw_kafka.create(topic)
    async with running("publish.py", tmp_path, raw_kafka) as worker:
        environment = {**os.environ, "ACKWISE_BROKERS": raw_kafka.bootstrap}
        command = [sys.executable, "publish.py", "ann", "bob"]
        ordering = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE)
        said, _ = await ordering.communicate()
        assert [line.split()[:2] for line in said.decode().splitlines()] == [["ordered", "sales"]] * 2
        lines = await worker.lines(4)
        assert await worker.stop() == ""
    assert sorted(lines) == ["invoice ann 12", "invoice bob 12", "remind ann", "remind bob"]
    ordered, reminded = await raw_kafka.records("sales"), await raw_kafka.records("nudges")
    assert min(record.timestamp for record in reminded) >= min(record.timestamp for record in ordered) + 2_000
    for topic in ("bills", "nudges"):
        assert [name for record in await raw_kafka.records(topic) for name, _ in record.headers] == ["message-id"] * 2


async def test_session_commits_with_success_and_leaves_nothing_of_a_failure(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("payments")
    await write(raw_kafka, "payments", {"account": "a", "amount": -5}, {"account": "b", "amount": 3})
    async with running("session.py", tmp_path, raw_kafka) as worker:
        took = await worker.lines(3)
        await worker.stop()
    assert [line.split()[0] for line in took] == ["payments/0/0", "payments/0/1", "payments/0/0"]
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
        assert ledger.execute("SELECT * FROM entries ORDER BY account").fetchall() == [("a", -5), ("b", 3)]


async def test_transactional_moves_money_once_and_leaves_nothing_of_an_overdraft(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("transfers")
    transfers = [("t1", "ann", "bob", 30), ("t2", "bob", "ann", 500), ("t3", "bob", "ann", 10), ("t1", "ann", "bob", 30)]
    names = ("id", "source", "target", "amount")
    await write(raw_kafka, "transfers", *(dict(zip(names, transfer, strict=True)) for transfer in transfers))
    async with running("transactional.py", tmp_path, raw_kafka) as worker:
        assert sorted(await worker.lines(2)) == ["booked t1", "booked t3"]
        await worker.stop()
    with closing(sqlite3.connect(tmp_path / "bank.db")) as bank:
        assert bank.execute("SELECT * FROM accounts ORDER BY name").fetchall() == [("ann", 80), ("bob", 120)]


async def test_outbox_tells_of_each_order_that_was_taken_and_of_no_other(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("taken")
    async with running("outbox.py", tmp_path, raw_kafka, app=False) as shop:
        told = await shop.lines(5)
        await shop.process.wait()
    assert [line.partition(":")[0] for line in told] == [
        *("ann ordered for 70", "bob ordered for 20", "ann can't pay 50", "ann ordered for 30", "3 messages are in the outbox")
    ]
    command = ["-m", "ackwise.plugin.cli", "relay", "--outbox", "sqlite:///shop.db", "--brokers", raw_kafka.bootstrap]
    relay = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=tmp_path, stderr=asyncio.subprocess.PIPE)
    try:
        await until(lambda: raw_kafka.records("taken"), lambda taken: len(taken) >= 3)
        relay.send_signal(signal.SIGINT)
        _, errors = await relay.communicate()
        assert relay.returncode == 0, errors.decode()
    finally:
        if relay.returncode is None:
            relay.kill()
    sent = [(record.key, json.loads(record.value or b"")["amount"]) for record in await raw_kafka.records("taken")]
    assert sent == [(b"ann", 70), (b"bob", 20), (b"ann", 30)]


async def test_in_order_books_each_account_in_order_and_lets_others_pass(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("entries")
    for account, amount in (("ann", 5000), ("bob", -1), ("ann", -4900), ("cleo", 7), ("bob", 3)):
        entry = json.dumps({"account": account, "amount": amount}).encode()
        await raw_kafka.produce("entries", entry, key=account.encode())
    async with running("in_order.py", tmp_path, raw_kafka) as worker:
        booked = await worker.lines(4)
        rest = await worker.stop()
    assert booked == [
        "booked cleo 7 balance 7",
        "booked bob 3 balance 3",
        "booked ann 5000 balance 5000",
        "booked ann -4900 balance 100",
    ]
    assert rest == ""
    assert [letter.key for letter in await raw_kafka.records("ledger.dlq")] == [b"bob"]
    assert await raw_kafka.records("ledger.retry") == []


async def test_classic_listener_stops_a_batch_at_its_first_failure(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("bookings")
    await write(raw_kafka, "bookings", *({"amount": amount} for amount in (1, 2, -3, 4)))
    async with running("classic_listener.py", tmp_path, raw_kafka) as worker:
        said = await worker.lines(5)
        assert await worker.stop() == ""
    assert said[:3] == ["booked 1", "booked 2", "entry 2 failed: ValueError('the account is closed today')"]
    assert sorted(said[3:]) == ["booked -3", "booked 4"]


async def test_side_by_side_waits_for_nothing_slow_and_brings_back_what_hangs(raw_kafka: RawKafka, tmp_path: Path) -> None:
    for topic in ("pages", "pictures"):
        await raw_kafka.create(topic)
    await write(raw_kafka, "pages", *({"address": address} for address in ("large.example", "silent.example", "fast.example")))
    await write(raw_kafka, "pictures", *({"name": name, "seconds": seconds} for name, seconds in (("slow", 1.0), ("a", 0), ("b", 0))))
    async with running("side_by_side.py", tmp_path, raw_kafka) as worker:
        said = await worker.lines(6)
        rest = await worker.stop()
    fetched, drawn = ([line for line in said if line.startswith(word)] for word in ("fetched", "drawn"))
    assert fetched == ["fetched fast.example", "fetched large.example", "fetched silent.example"]
    assert (sorted(drawn[:2]), drawn[2], rest) == (["drawn a", "drawn b"], "drawn slow", "")
    late = [line["fields"] for line in worker.log if "exceeded its consume timeout" in line["event"]]
    assert [(each["handler"], each["offset"], each["seconds"]) for each in late] == [("fetch", 1, 1.0)]


async def test_observer_counts_what_becomes_of_messages(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("visits")
    await raw_kafka.produce("visits", b"/home", b"/help", b"nowhere")
    async with running("observer.py", tmp_path, raw_kafka) as worker:
        (dead,) = await worker.lines(1)
        await worker.stop()
    assert dead == "dead visits/0/2 rejected {('visits', 'SUCCEEDED'): 2, ('visits', 'DEAD_LETTERED'): 1}"


@pytest.mark.nightly
@pytest.mark.slow  # waits for two sessions to end
async def test_evict_reaches_every_instance_and_after_a_kill_goes_on_where_it_was(
    raw_kafka: RawKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await raw_kafka.create("prices")
    monkeypatch.setenv("ACKWISE_START", "earliest")  # a new instance would start at the end
    monkeypatch.setenv("ACKWISE_SESSION_TIMEOUT", "6s")
    monkeypatch.setenv("ACKWISE_COMMIT_INTERVAL", "0")

    @asynccontextmanager
    async def instance(name: str, file: str | None) -> AsyncIterator[Running]:
        with monkeypatch.context() as of_it:
            of_it.setenv("ACKWISE_BROADCASTING__INSTANCE", name)
            if file is not None:
                of_it.setenv("ACKWISE_BROADCASTING__OFFSETS_FILE", file)
            async with running("evict.py", tmp_path, raw_kafka) as worker:
                yield worker

    both = [("web-1", None), ("web-2", "web-2.offsets")]
    await write(raw_kafka, "prices", {"article": "apple"}, {"article": ""}, {"article": "fig"})
    async with instance(*both[0]) as one, instance(*both[1]) as two:
        assert [await worker.lines(2) for worker in (one, two)] == [["evicted apple", "had no fig"]] * 2
        await write(raw_kafka, "prices", {"article": "pear"})
        assert [await worker.lines(1) for worker in (one, two)] == [["evicted pear"]] * 2
    await write(raw_kafka, "prices", {"article": "plum"})  # both were killed
    for which in both:
        async with instance(*which) as again:
            seen = await again.lines(1)
            while seen[-1] != "had no plum":  # what was killed before its commit comes first, once more
                seen += await again.lines(1)
            assert await again.stop() == ""
        assert seen in (["had no plum"], ["evicted pear", "had no plum"])
    assert (tmp_path / "web-2.offsets").exists()


async def test_own_loop_ships_brings_back_and_rejects(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("parcels")
    parcels = [("a", "Rome"), ("b", "Venice"), ("c", "Atlantis"), ("a", "Rome")]
    await write(raw_kafka, "parcels", *({"id": id, "city": city} for id, city in parcels))
    async with running("own_loop.py", tmp_path, raw_kafka, app=False) as worker:
        shipped = await worker.lines(2)
        rest = await worker.stop()
    assert (shipped, rest) == (["shipped a Rome", "shipped b Venice"], "")
    assert [letter.value for letter in await raw_kafka.records("shipping.dlq")] == [b'{"id": "c", "city": "Atlantis"}']


async def test_simple_consumer_recognises_each_scan_once_and_asks_again_for_an_empty_one(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("scans")
    await write(raw_kafka, "scans", *({"id": id, "pages": pages} for id, pages in [("a", 3), ("b", 0), ("c", 120)]))
    async with running("simple_consumer.py", tmp_path, raw_kafka, app=False) as worker:
        recognised = await worker.lines(3)
        rest = await worker.stop()
    assert sorted(recognised) == ["recognised a 3", "recognised b 0", "recognised c 120"]
    assert (recognised[-1], rest) == ("recognised b 0", "")
    assert await raw_kafka.records("recognition.dlq") == []


async def test_faust_orders_charges_what_the_bank_refused_at_first_and_counts_it_once(raw_kafka: RawKafka, tmp_path: Path) -> None:
    for topic in ("purchases", "invoices"):
        await raw_kafka.create(topic)
    orders = [("a", "ann", 5), ("b", "bob", 20_000), ("c", "ann", 7)]
    names = ("id", "customer", "amount")
    await write(raw_kafka, "purchases", *(dict(zip(names, order, strict=True)) for order in orders), "no order")
    charged = ["charged a", "charged c", "charged b"]
    posted = ["posted a", "posted c", "posted b"]
    ordered = ["ann ordered for 5", "bob ordered for 20000", "ann ordered for 12"]
    said: list[str] = []
    async with running("faust_orders.py", tmp_path, raw_kafka, faust=True) as worker, asyncio.timeout(PATIENCE):
        assert worker.process.stderr is not None
        async for line in worker.process.stderr:  # where Faust's log has what agents print
            said.append(line.decode().rpartition("] ")[2].strip())
            if {*charged, *posted, *ordered} <= set(said):
                break
        await until(lambda: raw_kafka.records("shop.dlq"), lambda letters: len(letters) >= 2)
        await worker.stop()
    # What two agents print is in no order: a busy one may post the first invoices when the last order was charged.
    assert [line for line in said if line.startswith("charged ")] == charged
    assert [line for line in said if line.startswith("posted ")] == posted
    assert [line for line in said if " ordered for " in line] == ordered
    assert all(said.index(one) < said.index(other) for one, other in zip(charged, posted, strict=True))
    assert [letter.value for letter in await raw_kafka.records("shop.dlq")] == [b'"no order"'] * 2  # of each agent


async def test_custom_store_remembers_across_a_restart(raw_kafka: RawKafka, tmp_path: Path) -> None:
    await raw_kafka.create("letters")
    for written, filed in (([b"a", b"b"], ["filed a", "filed b"]), ([b"a", b"c"], ["filed c"])):
        for value in written:
            await raw_kafka.produce("letters", value, key=value)
        async with running("custom_store.py", tmp_path, raw_kafka) as worker:
            assert await worker.lines(len(filed)) == filed
            assert await worker.stop() == ""


async def test_a_web_application_bills_orders_beside_its_requests(raw_kafka: RawKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    await raw_kafka.create("web-orders")
    monkeypatch.setenv("BROKERS", raw_kafka.bootstrap)
    web = load("web").web
    async with httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://web") as client:
        async with web.router.lifespan_context(web):
            assert (await client.get("/ready")).status_code == 503
            await write(raw_kafka, "web-orders", *({"id": id, "customer": "ann", "amount": 5} for id in "ab"))
            await until(lambda: client.get("/billed"), lambda answer: answer.json() == {"ann": 10})
            assert (await client.get("/ready")).json() == {"ready": True}
        assert (await client.get("/ready")).status_code == 503


async def test_faststream_and_a_worker_consume_in_one_process(raw_kafka: RawKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    await raw_kafka.create("beside-orders")
    await raw_kafka.create("beside-clicks")
    monkeypatch.setenv("BROKERS", raw_kafka.bootstrap)
    example = load("faststream_beside")
    await write(raw_kafka, "beside-orders", *({"id": id, "amount": 5} for id in "ab"))
    await write(raw_kafka, "beside-clicks", *({"page": "/"} for _ in range(3)))
    running = asyncio.create_task(example.stream.run())
    await until(lambda: len(example.billed) >= 2 and example.clicks["/"] >= 3)
    example.stream.exit()
    await running
    assert sorted(example.billed) == ["a", "b"]


# The store of the example, apart from Kafka


def load(name: str) -> Any:
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.slow  # it waits for the disk at every step
@pytest.mark.nightly
async def test_custom_store_passes_the_suite_of_all_stores(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "custom_store.py", tmp_path)
    (tmp_path / "mine.py").write_text(
        "from custom_store import JsonFileStore\ndef new(place, clock): return JsonFileStore(place / 'claims.json', clock=clock)\n"
    )
    options = ("-q", "-p", "no:asyncio", "--ackwise-store=mine:new", "--ackwise-store-features=persistent=yes,injected_clock=yes")
    suite = await asyncio.create_subprocess_exec(sys.executable, "-m", "pytest", *options, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
    said, _ = await suite.communicate()
    assert (suite.returncode, b" passed" in said) == (0, True), said.decode()


async def test_custom_store_is_open_in_one_process_only(tmp_path: Path) -> None:
    module = load("custom_store")
    first, second = module.JsonFileStore(tmp_path / "claims.json"), module.JsonFileStore(tmp_path / "claims.json")
    await first.open()
    with pytest.raises(ConfigurationError, match="is open in another process"):
        await second.open()
    await second.close()
    await first.close()


async def test_custom_store_answers_nothing_that_is_not_on_the_disk(tmp_path: Path) -> None:
    store = load("custom_store").JsonFileStore(tmp_path / "claims.json")
    await store.open()
    (tmp_path / "claims.tmp").mkdir()
    with pytest.raises(StoreUnavailable, match="can't be written"):
        await store.exchange(Exchange())
    await store.close()


async def test_custom_store_is_found_by_its_url_once_it_is_announced(tmp_path: Path) -> None:
    announced = EXAMPLES.joinpath("custom_store.py").read_text().partition('"ackwise.stores"]\n')[2].splitlines()[0].strip()
    information = tmp_path / "custom_store-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: custom-store\nVersion: 1\n")
    (information / "entry_points.txt").write_text(f"[ackwise.stores]\n{announced.replace(chr(34), '')}\n")
    shutil.copy(EXAMPLES / "custom_store.py", tmp_path)
    question = "from ackwise.plugin.registry import open_store; print(type(open_store('jsonfile://claims.json')).__name__)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", question, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert printed == b"JsonFileStore\n"


@pytest.mark.spark
@pytest.mark.slow  # starts Spark
async def test_audit_counts_verdicts_accounts_failures_and_what_the_store_alone_knows(tmp_path: Path) -> None:
    from tests.spark.histories import History
    from tests.spark.reconciling import root_of

    from ackwise.plugin.local.java import find_java

    root = root_of(
        tmp_path / "events", History("g").say("w1", "RECEIVED_RANGE[0,4) 0:CS 1:CF 2:CS W=4", error="ValueError").say("w1", "3:CS")
    )
    url = f"sqlite:///{tmp_path}/claims.db"
    store = open_store(url)
    await store.open()
    keys = [ClaimKey(bytes([number] * 16), None, 1) for number in range(3)]
    await store.exchange(Exchange([Claim(key, 7) for key in keys]))
    await store.exchange(Exchange((), [Complete(key, 7, Outcome.OK) for key in keys[:2]]))
    await store.close()
    environment = {**os.environ, "JAVA_HOME": str(find_java().path), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLES / "audit.py"), str(root), url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=tmp_path,
        env=environment,
    )
    out, errors = await program.communicate()
    assert program.returncode == 0, errors.decode()
    assert out.decode().splitlines() == [
        "EXACTLY_ONCE 3",
        "LOST 1",
        "orders/0: 4 offsets, {'EXACTLY_ONCE': 3, 'LOST': 1}",
        "ValueError: failed 1 times",
        "done in the store, and of no event: 2",
    ]


def test_no_example_is_without_a_test() -> None:
    here = Path(__file__).read_text("utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in here and f'load("{path.stem}")' not in here] == []


@pytest.mark.slow  # runs the example for eight seconds, and kills its workers
@pytest.mark.nightly
@pytest.mark.timeout(280)
async def test_an_order_is_paid_once_and_shipped_once_whoever_is_killed(raw_kafka: RawKafka, tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "order_service.py", tmp_path)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("order_service.py", "--seconds", "8"),
        cwd=tmp_path,
        env={**os.environ, "BROKERS": raw_kafka.bootstrap},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    assert (process.returncode, said.decode().endswith(" workers killed: each paid once and shipped once\n")) == (0, True), said.decode()
