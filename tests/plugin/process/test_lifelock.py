"""Death is proved by a lock that the kernel gave up, on this host and a local file system; nothing else proves it."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest
from tests.databases.postgres import USER
from tests.databases.server import Endpoint
from tests.tables import each

from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.storage.claimstore import Acquired, Busy, Claim, ClaimKey, Column, Exchange
from ackwise.plugin.process import lifelock
from ackwise.plugin.process.lifelock import Life, is_local
from ackwise.plugin.registry import open_store
from ackwise.stores.sqlite import SQLiteStore

FOLDER = Path("/tmp/ackwise-tests-of-life")

#: Where no lock proves a life the rest of this file has nothing to test; in CI that is a failure.
pytestmark = pytest.mark.skipif(os.environ.get("CI") != "true" and not Life(FOLDER).owner, reason="no local file system, or not Linux")

WORKER = """
import sys
from pathlib import Path
from ackwise.plugin.process.lifelock import Life
life = Life(Path(sys.argv[1]))
print(life.owner, flush=True)
sys.stdin.read()
"""


@contextmanager
def process(folder: Path, program: str = WORKER) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A worker that lives until it is killed, and its name."""
    worker = subprocess.Popen([sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    try:
        yield worker, worker.stdout.readline().strip()
    finally:
        worker.kill()
        worker.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lives"


def test_a_lock_proves_a_life_where_this_is_run() -> None:
    assert Life(FOLDER).owner, "not Linux, or no local file system under /tmp"


@pytest.mark.slow  # starts a process and kills it
def test_a_process_that_was_killed_is_proved_dead_and_never_before(folder: Path) -> None:
    here = Life(folder)
    with process(folder) as (worker, owner):
        assert owner != here.owner != ""
        assert here.dead([owner]) == frozenset()
        worker.send_signal(signal.SIGSTOP)
        assert here.dead([owner]) == frozenset(), "it is stalled and may go on"
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        assert here.dead([owner, "", here.owner]) == {owner}
        assert Life(folder).dead([owner]) == {owner}, "another worker finds the same"


FORKING = WORKER.replace("sys.stdin.read()", "import os\nif os.fork() == 0:\n    os.read(0, 1)\n    os._exit(0)\nos.kill(os.getpid(), 9)")


CLAIMING = """
import asyncio, sys
from pathlib import Path
from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.storage.claimstore import Column
from ackwise.plugin.process.lifelock import Life
from ackwise.plugin.registry import open_store

async def claim():
    store = open_store(URL)
    await store.open()
    life = Life(Path(sys.argv[1]))
    await Leases(store, witness=life).claim([Column([bytes(16)], None, 1, [7])])
    print(life.owner, flush=True)
    sys.stdin.read()

asyncio.run(claim())
"""


def claiming(url: str) -> str:
    return CLAIMING.replace("URL", repr(url))


@pytest.mark.slow  # starts a process that claims in a file, and kills it
async def test_what_a_killed_process_had_claimed_in_a_file_is_taken_over_before_its_lease_ends(folder: Path) -> None:
    store = SQLiteStore(f"{folder}.db")
    await store.open()
    leases = Leases(store, witness=Life(folder))
    with process(folder, claiming(f"sqlite:///{folder}.db")) as (worker, owner):
        (alive,) = (await leases.claim([Column([bytes(16)], None, 1, [8])]))[0].values()
        assert isinstance(alive, Busy)
        assert alive.owner == owner
        worker.kill()
        worker.wait()
        assert await leases.claim([Column([bytes(16)], None, 1, [8])]) == [{0: Acquired(2, 1, True)}]
    await store.close()


@pytest.mark.slow  # starts a process that claims in a server, and kills it
@pytest.mark.parametrize("kind", ["postgres", "mariadb", "redis"])
async def test_what_a_killed_process_had_claimed_in_a_server_is_taken_over_before_its_lease_ends_and_never_while_it_lives(
    folder: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    server: Endpoint = request.getfixturevalue(kind)
    prefix = f"t{os.urandom(4).hex()}_"
    url = {
        "postgres": f"postgresql://{USER}@127.0.0.1:{server.port}/postgres?prefix={prefix}",
        "mariadb": f"mariadb://root@127.0.0.1:{server.port}/test?prefix={prefix}",
        "redis": f"redis://127.0.0.1:{server.port}?namespace={prefix}",
    }[kind]
    store = open_store(url)
    await store.open()
    here = Life(folder)
    leases = Leases(store, witness=here)
    asked = [Column([bytes(16)], None, 1, [8])]
    with process(folder, claiming(url)) as (worker, owner):
        for signalled in (signal.SIGSTOP, signal.SIGCONT):
            worker.send_signal(signalled)
            (alive,) = (await leases.claim(asked))[0].values()
            assert isinstance(alive, Busy)
            assert alive.owner == owner
        worker.kill()
        worker.wait()
        for _ in range(2):
            assert await leases.claim(asked) == [{0: Acquired(2, 1, True)}]
    with process(folder) as (_, other):
        assert here.owner not in here.dead([owner, other])
        (held,) = (await store.exchange(Exchange([Claim(ClaimKey(bytes(16), None, 1), 9)], owner=other, gone=[owner]))).claims
    assert isinstance(held, Busy)
    assert held.owner == here.owner
    await store.close()


CLOSING = WORKER.replace("sys.stdin.read()", "import os\nos.closerange(3, 4096)\nprint(life.owner == '', flush=True)\nsys.stdin.read()")
REPLACED = WORKER.replace(
    "sys.stdin.read()",
    "import os\nif len(sys.argv) == 2:\n"
    "    os.execv(sys.executable, [sys.executable, '-c', open('/proc/self/cmdline').read().split(chr(0))[2], sys.argv[1], life.owner])\n"
    "print(life.dead(sys.argv[2:]) == {sys.argv[2]}, flush=True)",
)


@pytest.mark.slow  # starts a process that closes its descriptors
def test_a_process_whose_descriptors_were_closed_is_not_proved_dead_until_it_is(folder: Path) -> None:
    here = Life(folder)
    with process(folder, CLOSING) as (worker, owner):
        assert worker.stdout is not None
        assert worker.stdout.readline() == "True\n"
        with (folder / owner).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert here.dead([owner]) == frozenset()
        worker.kill()
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        assert here.dead([owner]) == {owner}, "nobody has asked how it ended yet"
        worker.wait()
        assert here.dead([owner]) == {owner}


@pytest.mark.slow  # starts a process that starts another program in its place
def test_what_a_process_was_before_it_started_another_program_in_its_place_is_dead_to_that(folder: Path) -> None:
    with process(folder, REPLACED) as (worker, _):
        assert worker.stdout is not None
        worker.stdout.readline()
        assert worker.stdout.readline() == "True\n"


@pytest.mark.slow  # starts a process and kills it
def test_a_number_that_another_process_has_now_proves_no_life(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with process(folder) as (worker, owner):
        worker.kill()
        worker.wait()
    here = Life(folder)
    number, proc = str(worker.pid), tmp_path / "proc"
    (proc / number).mkdir(parents=True)
    (proc / "self" / "ns").mkdir(parents=True)
    (proc / "self" / "ns" / "pid").symlink_to("/proc/self/ns/pid")
    (proc / "self" / "stat").symlink_to("/proc/self/stat")
    monkeypatch.setattr(lifelock, "_PROCESSES", proc)
    start = (folder / owner).read_text().split()[-1]
    for seen, state in ((start, "S"), (start, "Z"), ("1", "S")):
        (proc / number / "stat").write_text(f"{number} (a) b (\n) {state} " + "0 " * 18 + f"{seen} 0 0\n")
        assert here.dead([owner]) == (frozenset() if (seen, state) == (start, "S") else {owner})


@pytest.mark.slow  # starts a process that leaves a child behind
def test_a_process_whose_child_lives_is_not_proved_dead(folder: Path) -> None:
    with process(folder, FORKING) as (worker, owner):
        worker.wait()
        assert Life(folder).dead([owner]) == frozenset()


@pytest.mark.slow  # starts a process that forks another one off
def test_a_process_that_was_forked_off_has_a_name_of_its_own(folder: Path) -> None:
    program = WORKER.replace(
        "print(life.owner, flush=True)", "import os\nfirst = life.owner\nif os.fork():\n    os.wait()\n    os._exit(0)"
    )
    program = program.replace("sys.stdin.read()", "print(first != life.owner != '', flush=True)")
    with process(folder, program) as (_, said):
        assert said == "True"


@pytest.mark.slow  # waits for a process
def test_a_copy_of_the_file_proves_nothing(folder: Path, tmp_path: Path) -> None:
    with process(folder) as (_, owner):
        (tmp_path / "copied").mkdir(mode=0o700)
        shutil.copy2(folder / owner, tmp_path / "copied" / owner)
        assert Life(tmp_path / "copied").dead([owner]) == frozenset()


@pytest.mark.slow  # starts a process and kills it
def test_another_host_and_an_earlier_start_prove_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with process(folder) as (worker, owner):
        worker.kill()
        worker.wait()
        (tmp_path / "boot").write_text("another start\n")
        monkeypatch.setattr(lifelock, "_BOOT", tmp_path / "boot")
        there = Life(folder)
        assert there.owner.partition("-")[0] != owner.partition("-")[0]
        assert there.dead([owner]) == frozenset()
        monkeypatch.undo()
        assert Life(folder).dead([owner]) == {owner}


@each("name", ["../x", "8d5f3c1a-0123456789abcdef/../x", "x" * 64, "8d5f3c1a-0123456789abcde\n", "*"])
def test_a_name_that_is_none_opens_no_file(folder: Path, name: str) -> None:
    assert Life(folder).dead([name]) == frozenset()


def test_no_file_a_link_a_pipe_and_a_file_that_others_may_write_prove_nothing(folder: Path, tmp_path: Path) -> None:
    here = Life(folder)
    boot = here.owner.partition("-")[0]
    names = [f"{boot}-{number:016x}" for number in range(4)]
    (tmp_path / "elsewhere").write_text("x")
    (folder / names[0]).symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / names[1], 0o600)
    (folder / names[2]).touch()
    (folder / names[2]).chmod(0o666)
    assert here.dead(names) == frozenset()


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert Life(tmp_path / "open").owner == ""


@each("kind", ["nfs4", "cifs", "9p", "virtiofs", "fuse.glusterfs", "ceph"])
def test_a_file_system_that_is_not_known_to_be_local_is_not_trusted(folder: Path, tmp_path: Path, kind: str) -> None:
    device = os.stat(tmp_path).st_dev
    mounts = tmp_path / "mountinfo"
    line = f"27 1 {os.major(device)}:{os.minor(device)} / / rw,relatime shared:1 - {{}} server:/data rw\n"
    with closing_file(tmp_path / "file") as file:
        mounts.write_text(line.format("ext4"))
        assert is_local(file.fileno(), mounts)
        mounts.write_text(line.format("ext4") + line.format(kind))
        assert not is_local(file.fileno(), mounts)
        mounts.write_text("")
        assert not is_local(file.fileno(), mounts)
        assert not is_local(file.fileno(), tmp_path / "missing")


@contextmanager
def closing_file(path: Path) -> Iterator[IO[str]]:
    with closing(path.open("w")) as file:
        yield file


def test_where_no_proof_is_possible_there_is_no_name_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Life(tmp_path / "deep" / "er").owner == ""
    monkeypatch.setattr(lifelock, "_MOUNTS", tmp_path / "missing")
    monkeypatch.setattr(lifelock, "is_local", lambda file: False)
    assert Life(tmp_path / "lives").owner == ""
    assert list((tmp_path / "lives").iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr(lifelock, "_BOOT", tmp_path / "missing")
    assert (Life(tmp_path / "lives").owner, Life(tmp_path / "lives").dead(["8d5f3c1a-0123456789abcdef"])) == ("", frozenset())


def test_where_no_temporary_file_can_be_written_a_process_has_no_name_and_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_folder() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    here = Life()
    assert here.owner == ""
    assert here.dead([f"{lifelock._boot()}-{'0' * 16}"]) == frozenset()


def test_a_file_that_another_worker_takes_away_at_the_same_time_costs_no_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([self / f"{lifelock._boot()}-{'0' * 16}"]))
    assert Life(folder).owner != ""


def test_a_lock_that_somebody_closed_is_named_no_more(folder: Path) -> None:
    here = Life(folder)
    assert here.owner
    assert here._file is not None
    os.close(here._file)
    assert here.owner == ""


@pytest.mark.slow  # starts two processes and kills one
def test_files_of_the_dead_are_taken_away_after_a_day(folder: Path) -> None:
    with process(folder) as (living, name), process(folder) as (dead, dead_name):
        dead.kill()
        dead.wait()
        for path in (folder / name, folder / dead_name):
            os.utime(path, (1.0, 1.0))
        assert Life(folder).owner
        assert [(folder / name).exists(), (folder / dead_name).exists()] == [True, False]
        assert living.poll() is None


def test_the_lock_is_one_that_other_programs_see(folder: Path) -> None:
    here = Life(folder)
    with (folder / here.owner).open("r+") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
