"""What a power failure can leave of a SQLite store's file: whole exchanges, the oldest first."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest
from tests.stores.claiming_process import key_of

from ackwise.middleware.storage.claimstore import Acquired, Claim, ClaimAnswer, Exchange
from ackwise.stores.sqlite import SQLiteStore

KEYS, EXCHANGES = 20, 12

#: Answers exchanges until the end, and says so after each; `strace` sees what it does in between.
PROGRAM = """
import asyncio, os, sys
from ackwise.middleware.storage.claimstore import Claim, ClaimKey, Exchange
from ackwise.stores.sqlite import SQLiteStore

async def main():
    store = SQLiteStore(sys.argv[1], synchronous=sys.argv[2])
    await store.open()
    for number in range(10):
        os.write(1, b"asked\\n")
        await store.exchange(Exchange([Claim(ClaimKey(bytes([number] * 16), None, 1), 1)]))
        os.write(1, b"answered\\n")
    await store.close()

asyncio.run(main())
"""


def claims_of(number: int, token: int) -> list[Claim]:
    return [Claim(key_of(number * KEYS + i), token) for i in range(KEYS)]


async def find(path: Path) -> list[set[type[ClaimAnswer]]]:
    """What the store says of the keys of each exchange."""
    store = SQLiteStore(path)
    await store.open()
    assert await store.check() == []
    answers = [(await store.exchange(Exchange(claims_of(number, 2)))).claims for number in range(EXCHANGES)]
    await store.close()
    return [{type(answer) for answer in of_one} for of_one in answers]


@pytest.mark.parametrize("torn", [False, True], ids=["cut", "torn"])
async def test_whatever_part_of_the_log_reached_the_disk_a_whole_number_of_exchanges_is_there(tmp_path: Path, torn: bool) -> None:
    """`torn` leaves zeros in place of what did not reach the disk."""
    path, log = tmp_path / "claims.db", tmp_path / "claims.db-wal"
    store = SQLiteStore(path)
    await store.open()
    for number in range(EXCHANGES):
        await store.exchange(Exchange(claims_of(number, 1)))
    at_the_cut, written = path.read_bytes(), log.read_bytes()  # nothing else runs here
    await store.close()
    counts = []
    for part in [len(written) * sixteenth // 16 for sixteenth in range(17)]:
        folder = tmp_path / str(part)
        folder.mkdir()  # nothing else runs here
        (folder / "claims.db").write_bytes(at_the_cut)
        (folder / "claims.db-wal").write_bytes(written[:part] + bytes(len(written) - part if torn else 0))
        found = await find(folder / "claims.db")
        assert all(len(kinds) == 1 for kinds in found), "an exchange is there as a whole or not at all"
        known = [kinds != {Acquired} for kinds in found]
        assert known == sorted(known, reverse=True), "the oldest first"
        counts.append(sum(known))
        shutil.rmtree(folder)
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, EXCHANGES)


@pytest.mark.slow  # starts a process under strace
@pytest.mark.parametrize(("synchronous", "waits"), [("normal", False), ("full", True)])
def test_only_full_waits_for_the_disk_before_it_answers(tmp_path: Path, synchronous: str, waits: bool) -> None:
    if which("strace") is None:
        pytest.skip("needs strace")
    trace = tmp_path / "trace"
    watch = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,write", "-o", str(trace)]
    done = subprocess.run(
        [*watch, sys.executable, "-c", PROGRAM, str(tmp_path / "claims.db"), synchronous], capture_output=True, check=False
    )
    if done.returncode and b"ptrace" in done.stderr:
        pytest.skip("strace may not watch here")
    assert done.returncode == 0, done.stderr
    lines = trace.read_text().splitlines()
    asked = [number for number, line in enumerate(lines) if '"asked' in line]
    answered = [number for number, line in enumerate(lines) if '"answered' in line]
    synced = [any("sync(" in line for line in lines[start:end]) for start, end in zip(asked, answered, strict=True)]
    assert synced == [waits] * 10
