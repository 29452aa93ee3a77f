"""Life lock: a file that this process keeps locked until it ends, however it ends, so that others on its host can prove its death.

The kernel gives the lock up with the process, or when something in it closes the file; so the file says which process it is, and one that
can be locked proves a death if that process is not to be seen. That holds on one host and on a local file system only; where either is in
doubt there is no proof, and claims are waited for as ever.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


#: File systems whose locks the kernel of this host alone keeps.
_LOCAL: Final = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "reiserfs", "tmpfs", "xfs", "zfs"})

_OWNER: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{16}")

#: Seconds after which the file of a dead process is taken away; its last lease is long over.
_OLD: Final = 86400.0

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_MOUNTS: Final = Path("/proc/self/mountinfo")
_PROCESSES: Final = Path("/proc")


class Life:
    """Proof of life of this process in `folder`, otherwise one among the temporary files.

    `owner` is what it is called in its claims, empty if its death could not be detected.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder
        self._file: int | None = None
        self._process = 0
        self._owner = ""

    @property
    def owner(self) -> str:
        """The name of this process; made when it is first asked for, and again in a process that was forked off."""
        if self._process != os.getpid():
            self._process, self._file = os.getpid(), None  # the parent's stays open here, and so locked as long as either lives
            self._owner = self._begin()
        return self._owner if self._file is not None and _is_named(self._file, self._owner) else ""

    @property
    def _folder(self) -> Path:
        """Raises `OSError` where no temporary file can be written; so it is looked for only when it is needed."""
        return self._given or Path(tempfile.gettempdir()) / f"ackwise-{getattr(os, 'getuid', int)()}"

    def _begin(self) -> str:
        boot = _boot()
        if not boot:
            return ""
        owner = f"{boot}-{os.urandom(8).hex()}"
        try:
            folder = self._folder
            folder.mkdir(mode=0o700, exist_ok=True)
            if not _is_ours(folder.lstat(), stat.S_ISDIR):
                return ""
            _forget_the_old(folder)
            file = os.open(folder / owner, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return ""
        try:
            if not is_local(file):
                raise OSError("no local file system")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(file, _identity(file, owner) + _process("self"))
        except OSError:
            os.close(file)
            with suppress(OSError):
                (folder / owner).unlink()
            return ""
        self._file = file
        return owner

    def dead(self, owners: Iterable[str]) -> frozenset[str]:
        """Those of `owners` whose death is proved."""
        return frozenset(owner for owner in set(owners) if self._is_dead(owner))

    def _is_dead(self, owner: str) -> bool:
        if not _OWNER.fullmatch(owner) or owner == self._owner or not owner.startswith(f"{_boot()}-"):
            return False
        with suppress(OSError), _opened(self._folder / owner) as file:
            if not _is_named(file, owner) or not is_local(file):
                return False
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: another worker may look at the same time
            return not _is_seen(file, owner)
        return False


def _forget_the_old(folder: Path) -> None:
    for path in folder.iterdir():
        if not _OWNER.fullmatch(path.name):
            continue
        with suppress(OSError):  # it is held, or another worker that starts now took it away
            if time.time() - path.lstat().st_mtime <= _OLD:
                continue
            with _opened(path) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


def _is_named(file: int, owner: str) -> bool:
    """Whether it is the file that `owner` made, and not a copy of it: that would be free while its owner lives."""
    try:
        return _is_ours(os.fstat(file), stat.S_ISREG) and os.pread(file, 400, 0).startswith(_identity(file, owner))
    except OSError:
        return False


def _identity(file: int, owner: str) -> bytes:
    facts = os.fstat(file)
    return f"{owner} {facts.st_dev} {facts.st_ino}\n".encode()


def _process(number: str) -> bytes:
    """Which process has this number here: where numbers are counted, the number, and when it started. Raises `OSError` if none has."""
    # Its name may hold anything, brackets and line ends too. Behind it: its state, and as the 20th its start, in ticks since the host's.
    head, _, facts = (_PROCESSES / number / "stat").read_bytes().rpartition(b")")
    words = facts.split()
    if len(words) < 20 or words[0] in (b"Z", b"X"):
        raise ProcessLookupError(f"process {number} has ended")
    return b"%d %s %s\n" % ((_PROCESSES / "self/ns/pid").stat().st_ino, head.split()[0], words[19])


def _is_seen(file: int, owner: str) -> bool:
    """Whether the process that made the file can be seen, and so only lost its lock. In its own container it can't."""
    said = os.pread(file, 400, 0).removeprefix(_identity(file, owner))
    number = said.split()[1:2]
    try:
        # What this process itself was, before it started another program in its place, has ended.
        return bool(number) and number[0].isdigit() and said != _process("self") and said == _process(number[0].decode())
    except OSError:
        return False


def _is_ours(facts: os.stat_result, is_kind: object) -> bool:
    """Whether no other user could have made or changed it."""
    assert callable(is_kind)
    return bool(is_kind(facts.st_mode)) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077


def _boot() -> str:
    """Which start of which host this is; empty where that can't be told."""
    try:
        said = _BOOT.read_bytes().strip()
    except OSError:
        return ""
    return hashlib.blake2b(said, digest_size=4).hexdigest() if said else ""


def is_local(file: int, mounts: Path = _MOUNTS) -> bool:
    """Whether the file system of `file` is known to keep locks on this host alone; NFS and unknown ones are remote."""
    device = os.fstat(file).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    kinds = {_kind(line) for line in lines if line.split(" ", 3)[2:3] == [number]}
    return bool(kinds) and kinds <= _LOCAL


def _kind(line: str) -> str:
    return line.partition(" - ")[2].partition(" ")[0]


THIS_PROCESS: Final = Life()
