"""A wall clock that jumps makes no SQLite file forget anything, and ends no lease, until it has said the same for an hour."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.stores.cases import case

from ackwise.middleware.storage.claimstore import (
    Acquired,
    AlreadyDone,
    Busy,
    Claim,
    ClaimAnswer,
    ClaimKey,
    Complete,
    Exchange,
    Outcome,
    Release,
)
from ackwise.middleware.storage.transaction import Finish, Finished, Taken, TransactionAnswer
from ackwise.stores.sqlite import SQLiteInbox, SQLiteStore
from ackwise.stores.sqlite.clock import Clocks, Stamp, _boot, advance

HOUR, DAY = 3600.0, 86400.0


class Host:
    """A host whose clocks a test moves."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000.0
        self.uptime = 5_000.0
        self.boot = "first"

    def clocks(self) -> Clocks:
        return Clocks(lambda: self.wall, lambda: self.uptime, self.boot)

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.uptime += seconds

    def restart(self, *, off_for: float) -> None:
        self.wall += off_for
        self.uptime, self.boot = 10.0, self.boot + "'"


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "claims.db"


def key(number: int = 0) -> ClaimKey:
    return ClaimKey(number.to_bytes(16, "big"), None, 1)


async def asked(path: Path, host: Host, exchange: Exchange) -> list[ClaimAnswer]:
    """The answer to claims of a process that is started for them: it knows only what the file knows."""
    store = SQLiteStore(path, clock=host.clocks())
    await store.open()
    try:
        return (await store.exchange(exchange)).claims
    finally:
        await store.close()


async def claim(path: Path, host: Host, token: int = 9, number: int = 0) -> ClaimAnswer:
    return (await asked(path, host, Exchange([Claim(key(number), token)])))[0]


async def complete(path: Path, host: Host, number: int = 0) -> None:
    await asked(path, host, Exchange(completes=[Complete(key(number), 1, Outcome.OK)]))


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM ackwise_claims").fetchone()[0])


@pytest.mark.parametrize("jump", [2 * DAY, -2 * DAY])
async def test_a_clock_that_jumps_for_one_exchange_forgets_no_finished_key(path: Path, host: Host, jump: float) -> None:
    await complete(path, host)
    host.pass_by(60)
    host.wall += jump
    await asked(path, host, Exchange())
    assert rows(path) == 1
    assert await claim(path, host) == AlreadyDone(Outcome.OK)
    host.wall -= jump
    host.pass_by(60)
    assert await claim(path, host) == AlreadyDone(Outcome.OK)


async def test_a_running_store_that_sees_the_clock_jump_forgets_nothing(path: Path, host: Host) -> None:
    store = SQLiteStore(path, clock=host.clocks())
    await store.open()
    await store.exchange(Exchange(completes=[Complete(key(), 1, Outcome.OK)]))
    host.wall += 2 * DAY
    assert (await store.exchange(Exchange([Claim(key(), 2)]))).claims == [AlreadyDone(Outcome.OK)]
    host.pass_by(1)
    assert await store.cleanup() == 0
    assert "the wall clock is 172800 s ahead of" in (await store.check())[0]
    await store.close()


async def test_what_is_finished_while_the_clock_is_ahead_is_remembered_for_a_retention_whoever_was_right(path: Path, host: Host) -> None:
    await complete(path, host)
    host.wall += 2 * DAY
    await complete(path, host, 1)
    for _ in range(4):
        host.pass_by(HOUR / 3)
        await asked(path, host, Exchange())
    assert await claim(path, host, number=1) == AlreadyDone(Outcome.OK)


async def test_a_clock_that_has_said_the_same_for_an_hour_is_believed(path: Path, host: Host) -> None:
    await complete(path, host)
    host.wall += 2 * DAY
    for _ in range(3):
        assert await claim(path, host) == AlreadyDone(Outcome.OK)
        host.pass_by(HOUR / 2.5)
    await asked(path, host, Exchange())
    assert await claim(path, host) == Acquired(1)


async def test_a_jumped_clock_lets_nobody_take_over_a_lease_that_runs(path: Path, host: Host) -> None:
    assert await claim(path, host, token=1) == Acquired(1)
    host.pass_by(10)
    host.wall += 2 * DAY
    assert await claim(path, host, token=2) == Busy(pytest.approx(20))  # type: ignore[arg-type]  # stands for a float
    host.pass_by(25)
    assert await claim(path, host, token=2) == Acquired(2, 1, True)


async def test_a_lease_moves_with_the_clock_when_it_is_believed_again(path: Path, host: Host) -> None:
    host.pass_by(1)
    await asked(path, host, Exchange())
    host.wall += 2 * DAY
    for _ in range(2):
        await asked(path, host, Exchange())
        host.pass_by(HOUR - 10)
    assert await claim(path, host, token=1) == Acquired(1)
    host.pass_by(20)
    assert await claim(path, host, token=2) == Busy(pytest.approx(10))  # type: ignore[arg-type]  # stands for a float
    host.pass_by(11)
    assert await claim(path, host, token=2) == Acquired(2, 1, True)


async def test_after_a_restart_of_the_host_a_lease_ends_after_its_time(path: Path, host: Host) -> None:
    await complete(path, host, 1)
    assert await claim(path, host, token=1) == Acquired(1)
    host.restart(off_for=3 * DAY)
    assert isinstance(await claim(path, host, token=2), Busy)
    host.pass_by(31)
    assert await claim(path, host, token=2) == Acquired(2, 1, True)
    assert await claim(path, host, number=1) == AlreadyDone(Outcome.OK)


async def test_a_host_that_is_only_up_now_and_then_forgets_in_the_end(path: Path, host: Host) -> None:
    await complete(path, host)
    answers = []
    for _ in range(3):
        host.restart(off_for=2 * DAY)
        await asked(path, host, Exchange())
        answers.append(await claim(path, host, token=9))
        await asked(path, host, Exchange(releases=[Release(key(), 9)]))
    assert answers[0] == AlreadyDone(Outcome.OK)
    assert isinstance(answers[2], Acquired)


async def test_time_that_passes_ends_what_is_remembered_as_before(path: Path, host: Host) -> None:
    await complete(path, host)
    host.pass_by(DAY - 1)
    assert await claim(path, host) == AlreadyDone(Outcome.OK)
    host.pass_by(1)
    assert await claim(path, host) == Acquired(1)


async def test_the_log_says_once_that_a_clock_jumped(path: Path, host: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ackwise")
    store = SQLiteStore(path, clock=host.clocks())
    await store.open()
    await store.exchange(Exchange([Claim(key(), 1)]))
    host.wall += DAY
    for _ in range(3):
        await store.exchange(Exchange([Claim(key(), 1)]))
    host.wall -= DAY
    await store.exchange(Exchange([Claim(key(), 1)]))
    await store.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "wall clock jumped" in caplog.text


async def finished(path: Path, host: Host, *, finish: bool = False) -> list[TransactionAnswer]:
    inbox = SQLiteInbox(path, clock=host.clocks())
    await inbox.open()
    try:
        async with inbox.begin(retention=DAY) as transaction:
            answers = await transaction.claim([key()])
            if finish:
                await transaction.finish([Finish(key(), ("orders", 0, 1), 7, Outcome.OK, 1)])
            return answers
    finally:
        await inbox.close()


async def test_an_inbox_forgets_nothing_either_when_the_clock_jumps(path: Path, host: Host) -> None:
    assert await finished(path, host, finish=True) == [Taken()]
    host.wall += 2 * DAY
    assert await finished(path, host) == [Finished(Outcome.OK, ("orders", 0, 1), 7)]
    inbox = SQLiteInbox(path, clock=host.clocks())
    assert await inbox.cleanup() == 0
    assert "the wall clock is 172800 s ahead" in (await inbox.check())[0]
    host.wall -= 2 * DAY
    assert await finished(path, host) == [Finished(Outcome.OK, ("orders", 0, 1), 7)]
    host.pass_by(DAY)
    assert await finished(path, host) == [Taken()]


async def test_what_an_inbox_finishes_while_the_clock_is_ahead_is_remembered_for_a_retention_whoever_was_right(
    path: Path, host: Host
) -> None:
    await finished(path, host)
    host.wall += 2 * DAY
    assert await finished(path, host, finish=True) == [Taken()]
    for _ in range(5):  # until the clock is believed
        host.pass_by(HOUR / 3)
        assert await finished(path, host) == [Finished(Outcome.OK, ("orders", 0, 1), 7)]


def test_small_steps_are_followed_and_large_ones_doubted() -> None:
    stamp = Stamp(100.0, 100.0, 10.0, "a")
    assert advance(stamp, 105.9, 15.0, "a") == Stamp(105.9, 105.9, 15.0, "a")
    assert advance(stamp, 107.0, 15.0, "a") == Stamp(105.0, 107.0, 15.0, "a", 0.0)
    assert advance(stamp, 50.0, 15.0, "a") == Stamp(105.0, 50.0, 15.0, "a", 0.0)
    assert advance(stamp, 5000.0, 15.0, "b") == Stamp(100.0, 5000.0, 15.0, "b", 0.0)
    assert advance(None, 5000.0, 15.0, "b") == Stamp(5000.0, 5000.0, 15.0, "b")


def test_containers_of_one_host_with_boot_ids_of_their_own_count_the_same_time() -> None:
    for steps in [(2.0,), (2.0, 0.005)]:
        with case(steps):
            stamp, passed = Stamp(1000.0, 1000.0, 10.0, "a"), 0.0
            for boot in "ba" * 50:
                for step in steps:
                    passed += step
                    stamp = advance(stamp, 1000.0 + passed, 10.0 + passed, boot)
                    assert (stamp.now, stamp.doubted) == (1000.0 + passed, None)


def test_a_jump_in_containers_of_one_host_is_doubted_for_an_hour() -> None:
    stamp, passed = Stamp(1000.0, 1000.0, 10.0, "a"), 0.0
    while passed < HOUR - 60:
        for boot in "ba":
            passed += 20
            stamp = advance(stamp, 1000.0 + 2 * DAY + passed, 10.0 + passed, boot)
            assert stamp.now == pytest.approx(1000.0 + passed, abs=20)
            assert stamp.doubted is not None


def test_time_namespaces_of_one_host_do_not_pass_for_one_another(tmp_path: Path) -> None:
    """Their uptimes start at different times, though the host says the same boot id to all."""
    starts = set()
    for name, namespace in (("host", "time:[1]"), ("restored", "time:[2]"), ("old kernel", None)):
        proc = tmp_path / name
        (proc / "sys/kernel/random").mkdir(parents=True)
        (proc / "sys/kernel/random/boot_id").write_text("0d1f\n")
        (proc / "self/ns").mkdir(parents=True)
        if namespace:
            (proc / "self/ns/time").symlink_to(namespace)
        starts.add(_boot(proc))
    assert starts == {"0d1f time:[1]", "0d1f time:[2]", "0d1f"}
    before = Stamp(1000.0, 1000.0, 10.0, "0d1f time:[1]")
    assert advance(before, 1001.0, 500_000.0, "0d1f time:[2]").now == 1001.0
