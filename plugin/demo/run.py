"""The demo from its first message to its verdict."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ackwise.plugin.demo.ledger import LedgerReader
from ackwise.plugin.demo.outcome import Observed, Outcome, judge
from ackwise.plugin.demo.processes import DemoFailed, Process, run_to_end, start
from ackwise.plugin.demo.scenario import LEVELS, MAX_BATCH, Scenario, make_scenario
from ackwise.plugin.demo.shop import PARTITIONS, Observer, observe, open_topic, send
from ackwise.plugin.localbroker import embedded_broker

__all__ = ["IN_FLIGHT", "Options", "Played", "play"]

#: Messages that can be claimed and unfinished at one moment: a batch on each partition of the source and of the retry topic.
IN_FLIGHT: Final = MAX_BATCH * PARTITIONS * 2

#: Seconds: between looks at the ledger, until a stage without any progress has failed, for a drain.
_LOOK, _STALLED, _DRAIN = 0.05, 60.0, 40.0

#: Silence after which the reconciliation takes a writer for dead.
_WRITER_TIMEOUT: Final = "5s"

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


class Played(NamedTuple):
    """What came of it: the demo's own judgement, and what `ackwise reconcile` said and where."""

    outcome: Outcome
    reconcile_exit: int
    report: Path
    verdicts: Mapping[str, int]
    flags: Mapping[str, int]


class _Place(NamedTuple):
    """Where the service runs."""

    brokers: str
    group: str
    topic: str
    is_embedded: bool


async def play(options: Options, progress: Progress) -> Played:
    """Send, run the worker, kill it half-way, run it again until nothing is left, and check the books.

    Raises `DemoFailed` where a stage can't be played, `ConfigurationError` for options that can't work.
    """
    options.out.mkdir(parents=True, exist_ok=False)
    scenario = make_scenario(options.messages, options.seed)
    with _place(options) as place:
        observed = await _bill(options, scenario, place, progress)
    progress("reconcile", 0, 1)
    code, report = await _reconcile(options.out)
    progress("reconcile", 1, 1)
    said = json.loads(report.read_text())
    return Played(judge(scenario, observed), code, report, said["verdicts"], said["flags"])


@contextmanager
def _place(options: Options) -> Iterator[_Place]:
    group = f"billing-{time.strftime('%Y%m%d-%H%M%S')}"  # so that a second demo meets neither topics nor claims of the first
    if options.brokers is not None:
        yield _Place(options.brokers, group, f"{group}-orders", is_embedded=False)
        return
    with embedded_broker() as broker:
        yield _Place(broker.bootstrap, group, f"{group}-orders", is_embedded=True)


async def _bill(options: Options, scenario: Scenario, place: _Place, progress: Progress) -> Observed:
    if not place.is_embedded:
        await open_topic(place.brokers, place.topic)
    sent = len(scenario.records)
    positions = await send(place.brokers, place.topic, scenario.records, lambda done: progress("send", done, sent))
    ledger = LedgerReader(options.out / "ledger.jsonl")
    async with _worker(1, options, place) as worker:
        half = len(scenario.prices) // 2
        await _wait_for_ledger(worker, ledger, half, lambda done: progress("bill", done, len(scenario.fates)))
        await worker.kill()
    progress("kill", 1, 1)
    async with _worker(2, options, place) as worker, observe(place.brokers, place.group, place.topic, LEVELS) as observer:
        await _wait_for_all(worker, ledger, observer, scenario, lambda done: progress("bill", done, len(scenario.fates)))
        await worker.drain(_DRAIN)
        return Observed(
            positions=positions,
            ledger=ledger.refresh(),
            dead_letters=await observer.refresh_dead_letters(),
            retried=await observer.retried(),
            in_flight=IN_FLIGHT,
            kills=1,
        )


def _worker(number: int, options: Options, place: _Place) -> AbstractAsyncContextManager[Process]:
    environment = {
        "BILLING_BROKERS": place.brokers,
        "BILLING_GROUP": place.group,
        "BILLING_TOPIC": place.topic,
        "BILLING_STORE": options.store or f"sqlite:///{options.out.absolute() / 'claims.db'}",
        "BILLING_CREATE_TOPICS": "broker" if place.is_embedded else "auto",
        "BILLING_FOLDER": str(options.out),
    }
    return start("run", "ackwise.plugin.demo.worker:app", log=options.out / f"worker-{number}.log", environment=environment)


async def _wait_for_ledger(worker: Process, ledger: LedgerReader, entries: int, progress: Callable[[int], None]) -> None:
    patience = _Patience(worker)
    while (done := len(ledger.refresh())) < entries:
        progress(done)
        await patience.wait(done)


async def _wait_for_all(
    worker: Process, ledger: LedgerReader, observer: Observer, scenario: Scenario, progress: Callable[[int], None]
) -> None:
    """Until every order is billed or dead, and worker and relay have nothing left to do."""
    patience, open_keys = _Patience(worker), set(scenario.fates)
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

    def __init__(self, worker: Process) -> None:
        self._worker = worker
        self._done = -1
        self._since = time.monotonic()

    async def wait(self, done: int) -> None:
        """Until the next look. Raises `DemoFailed` if the worker ended, or `done` stands still for too long."""
        self._worker.check_alive()
        now = time.monotonic()
        if done != self._done:
            self._done, self._since = done, now
        elif now - self._since > _STALLED:
            raise DemoFailed(f"billing stands still at {done} orders since {_STALLED:.0f} s; the worker's log is {self._worker.log}")
        await asyncio.sleep(_LOOK)


async def _reconcile(out: Path) -> tuple[int, Path]:
    log = out / "reconcile.log"
    arguments = (str(out / "events"), "--out", str(out / "reconcile"), "--writer-timeout", _WRITER_TIMEOUT)
    code = await run_to_end("reconcile", *arguments, log=log, environment={"COLUMNS": "160"})  # its tables are wide
    report = out / "reconcile" / "summary.json"
    if not report.exists():
        raise DemoFailed(f"the reconciliation ended with exit code {code} and without a report; it says why in {log}")
    return code, report
