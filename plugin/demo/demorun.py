"""The demo from its first message to its verdict."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.demo.demoprocesses import DemoFailed, DemoHost, Process, Stock, StockWorker, find_host, run_stock, run_to_end, start
from ackwise.plugin.demo.ledger import LedgerReader
from ackwise.plugin.demo.scenario import LEVELS, DemoOutcome, Observations, Scenario, judge, make_scenario
from ackwise.plugin.demo.shop import Observer, count_members, observe, open_topic, send
from ackwise.plugin.local.java import find_java
from ackwise.plugin.local.localkafka import embedded_broker, local_kafka
from ackwise.plugin.settings.connecting import require_broker

#: Seconds: between looks at the ledger, until a stage without any progress has failed, for a drain.
_LOOK, _STALLED, _DRAIN = 0.05, 60.0, 40.0

#: Silence after which the reconciliation takes a writer for dead.
_WRITER_TIMEOUT: Final = "5s"

T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Told about a stage: its name, how much is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the demo is played."""

    messages: int
    seed: int
    out: Path
    brokers: str | None = None  #: an embedded one if left out
    store: str | None = None  #: SQLite in `out` if left out
    kafka: bool = False  #: start a real one, with its data in `out`
    host: Literal["aiokafka", "faust"] = "aiokafka"

    @property
    def workers(self) -> int:
        """How many bill at the same time; the embedded broker takes one live member per group."""
        return 2 if self.kafka else 1


class OnSpark(NamedTuple):
    """The same audit by Spark, compared with that of this machine."""

    seconds: float
    rows: int
    differ: Mapping[str, int]
    """By table, the rows that only one of both has."""


class Played(NamedTuple):
    """What came of it: the demo's own judgement, and what `ackwise reconcile` reported and where."""

    outcome: DemoOutcome
    reconcile_exit: int
    report: Path
    verdicts: Mapping[str, int]
    flags: Mapping[str, int]
    seconds: float  #: of the audit on this machine
    on_spark: OnSpark | str  #: or why Spark did not audit
    stock: Stock | None = None  #: what the same worker did without Ackwise, where that was played

    @property
    def page(self) -> Path:
        """The report for people, beside the one for programs."""
        return self.report.with_name("report.html")


class _Place(NamedTuple):
    """Where the service runs."""

    brokers: str
    group: str
    topic: str
    is_embedded: bool

    @property
    def stock_topic(self) -> str:
        """Of the worker without Ackwise."""
        return f"{self.topic}-stock"


def play(options: Options, progress: Progress, say: Callable[[str], None]) -> Played:
    """Run the workers, send, kill one half-way, run it again until nothing is left, and audit its events. Blocks.

    `say` is told about a download. Raises `DemoFailed` where a stage can't be played, `ConfigurationError` for options
    that can't work, `Unavailable` without a broker, and `SystemExit` (128 + the signal) when it is told to end.
    """
    scenario, host = make_scenario(options.messages, options.seed), find_host(options.host)
    with _place(options, progress, say) as place:
        observed, stock = _run(_bill(options, host, scenario, place, progress))
    progress("reconcile", 0, 1)
    code, report, seconds = _run(_reconcile(options.out, "local", "reconcile"))
    progress("reconcile", 1, 1)
    on_spark: OnSpark | str = _missing_for_spark()
    if not on_spark:
        progress("spark", 0, 1)
        on_spark = _run(_on_spark(options.out))
        progress("spark", 1, 1)
    found = json.loads(report.read_text())
    return Played(judge(scenario, observed), code, report, found["verdicts"], found["flags"], seconds, on_spark, stock)


@contextmanager
def _place(options: Options, progress: Progress, say: Callable[[str], None]) -> Iterator[_Place]:
    """The folder, and a broker while the block runs. Not a coroutine: an interrupt must end a download at once."""
    group = f"billing-{time.strftime('%Y%m%d-%H%M%S')}"  # so that a second demo meets neither topics nor claims of the first
    if options.brokers is not None:
        _run(require_broker(options.brokers))
    _make(options.out)
    if options.brokers is not None:
        yield _Place(options.brokers, group, f"{group}-orders", is_embedded=False)
    elif options.kafka:
        progress("start", 0, 1)
        with local_kafka(options.out / "kafka", say=say) as kafka:
            progress("start", 1, 1)
            yield _Place(kafka.bootstrap, group, f"{group}-orders", is_embedded=False)
    else:
        with embedded_broker() as broker:
            yield _Place(broker.bootstrap, group, f"{group}-orders", is_embedded=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigurationError(f"{folder} is there already; give --out a new folder") from None
    except OSError as error:
        raise ConfigurationError(f"{folder} can't be made ({error.strerror}); give --out a folder that can") from error


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(_until_signalled(work))


async def _until_signalled(work: Coroutine[Any, Any, T]) -> T:
    """Ends the workers, too, when it is stopped."""
    task = asyncio.ensure_future(work)
    signals: list[int] = []

    def end(number: int) -> None:
        signals.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        raise SystemExit(128 + signals[0]) from None


async def _bill(
    options: Options, host: DemoHost, scenario: Scenario, place: _Place, progress: Progress
) -> tuple[Observations, Stock | None]:
    if not place.is_embedded:
        await open_topic(place.brokers, place.topic)
        if host.has_stock:
            await open_topic(place.brokers, place.stock_topic)

    def worker(number: int) -> AbstractAsyncContextManager[Process]:
        log = options.out / f"worker-{number}.log"
        return start(*host.command, log=log, environment=_environment(options, place))

    ledger = LedgerReader(options.out / "ledger.jsonl")
    async with AsyncExitStack() as running:
        workers = [await running.enter_async_context(worker(number)) for number in range(1, options.workers + 1)]
        if len(workers) > 1:
            await _wait_for_members(workers, place)
        stock = await running.enter_async_context(_stock(host, options, scenario, place)) if host.has_stock else None
        sending = _send(scenario, place, progress)
        positions, _ = await asyncio.gather(sending, _kill_half_way(workers, ledger, scenario, progress))
        workers[0] = await running.enter_async_context(worker(options.workers + 1))
        observer = await running.enter_async_context(observe(place.brokers, place.group, place.topic, LEVELS))
        await _wait_for_all(workers, ledger, observer, scenario, lambda done: progress("bill", done, len(scenario.fates)))
        await asyncio.gather(*(worker.drain(_DRAIN) for worker in workers))
        observed = Observations(
            positions=positions,
            ledger=ledger.refresh(),
            dead_letters=await observer.refresh_dead_letters(),
            retried=await observer.retried(),
            in_flight=host.in_flight,
            kills=1,
        )
        return observed, await stock.end(observer) if stock is not None else None


async def _send(scenario: Scenario, place: _Place, progress: Progress) -> list[tuple[int, int]]:
    sent = len(scenario.records)
    return await send(place.brokers, place.topic, scenario.records, lambda done: progress("send", done, sent))


async def _kill_half_way(workers: Sequence[Process], ledger: LedgerReader, scenario: Scenario, progress: Progress) -> None:
    patience = _Patience(workers)
    while (done := len(ledger.refresh())) < len(scenario.prices) // 2:
        progress("bill", done, len(scenario.fates))
        await patience.wait(done)
    await workers[0].kill()
    progress("kill", 1, 1)


async def _wait_for_members(workers: Sequence[Process], place: _Place) -> None:
    """Until each worker has its partitions: one that comes late would find everything billed."""
    patience = _Patience(workers)
    while (members := await count_members(place.brokers, place.group)) < len(workers):
        await patience.wait(members)


def _environment(options: Options, place: _Place) -> dict[str, str]:
    return {
        "BILLING_BROKERS": place.brokers,
        "BILLING_GROUP": place.group,
        "BILLING_TOPIC": place.topic,
        "BILLING_STORE": options.store or f"sqlite:///{options.out.absolute() / 'claims.db'}",
        "BILLING_CREATE_TOPICS": "broker" if place.is_embedded else "auto",
        "BILLING_FOLDER": str(options.out),
    }


def _stock(host: DemoHost, options: Options, scenario: Scenario, place: _Place) -> AbstractAsyncContextManager[StockWorker]:
    folder = options.out / "stock"
    folder.mkdir()
    return run_stock(host.command, _environment(options, place), folder, place.brokers, place.stock_topic, scenario)


async def _wait_for_all(
    workers: Sequence[Process], ledger: LedgerReader, observer: Observer, scenario: Scenario, progress: Callable[[int], None]
) -> None:
    """Until every order is billed or dead, and workers and relays have nothing left to do."""
    patience, open_keys = _Patience(workers), set(scenario.fates)
    seen = 0
    while True:
        entries, letters = ledger.refresh(), await observer.refresh_dead_letters()
        open_keys -= {entry.order for entry in entries[seen:]}
        open_keys -= {letter.key for letter in letters}
        seen = len(entries)
        progress(len(scenario.fates) - len(open_keys))
        if not open_keys and await observer.is_idle():
            return
        await patience.wait(seen + len(letters))


class _Patience:
    """Waits, and gives up once nothing moved for a while."""

    def __init__(self, workers: Sequence[Process]) -> None:
        self._workers = workers
        self._done = -1
        self._since = time.monotonic()

    async def wait(self, done: int) -> None:
        """Until the next look. Raises `DemoFailed` if a worker ended, or `done` is stalled for too long."""
        for worker in self._workers:
            worker.check_alive()
        now = time.monotonic()
        if done != self._done:
            self._done, self._since = done, now
        elif now - self._since > _STALLED:
            logs = ", ".join(str(worker.log) for worker in self._workers)
            raise DemoFailed(f"nothing moves since {_STALLED:.0f} s, with {done} done; the workers say why in {logs}")
        await asyncio.sleep(_LOOK)


async def _reconcile(out: Path, engine: str, name: str) -> tuple[int, Path, float]:
    """Audit with one engine; return the exit code, the report, and the seconds that it took."""
    log, began = out / f"{name}.log", time.monotonic()
    arguments = (str(out / "events"), "--out", str(out / name), "--writer-timeout", _WRITER_TIMEOUT, "--engine", engine)
    code = await run_to_end("reconcile", *arguments, log=log, environment={"COLUMNS": "160"})  # its tables are wide
    report = out / name / "summary.json"
    if not report.exists():
        raise DemoFailed(f"the reconciliation ended with exit code {code} and without a report; it says why in {log}")
    return code, report, time.monotonic() - began


async def _on_spark(out: Path) -> OnSpark:
    _, _, seconds = await _reconcile(out, "spark", "reconcile-spark")
    log = out / "comparison.log"
    async with start("ackwise.spark.commands.samerows", str(out / "reconcile"), str(out / "reconcile-spark"), log=log) as process:
        if await process.wait() != 0:
            raise DemoFailed(f"the tables of both audits can't be compared; the reason is in {log}")
    found = json.loads(log.read_text().splitlines()[-1])
    return OnSpark(seconds, found["rows"], found["differ"])


def _missing_for_spark() -> str:
    """Return why Spark can't audit here, as a sentence, or an empty text."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed"
    try:
        find_java()
    except ConfigurationError as error:
        return str(error)
    return ""
