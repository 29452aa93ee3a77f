"""PostgreSQL on this machine, in its own folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.databases.server import Server, free_port, program, running

#: Who owns the cluster and may do everything in it; nobody is asked for a password.
USER = "postgres"


@contextmanager
def postgres_server(**settings: object) -> Iterator[Server]:
    """A PostgreSQL while the block runs; `settings` are those of `postgresql.conf`. Raises `Missing`.

    Its folder is beside those of the tests, which root alone may enter: PostgreSQL refuses to be root.
    """
    programs = {name: program(name) for name in ("initdb", "postgres", "pg_isready")}
    folder, port = Path(tempfile.mkdtemp(prefix="ackwise-postgres-")), free_port()
    data, as_owner = folder / "data", _as_owner(folder)
    try:
        make = [*as_owner, programs["initdb"], "-D", str(data), "-A", "trust", "-U", USER, "-N", "-E", "UTF8", "--locale=C"]
        done = subprocess.run(make, capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        told = {
            "port": port,
            "unix_socket_directories": f"'{folder}'",
            "listen_addresses": "'127.0.0.1'",
            "max_connections": 200,
            **settings,
        }
        with (data / "postgresql.conf").open("a", encoding="utf-8") as conf:
            conf.writelines(f"{name} = {value}\n" for name, value in told.items())
        command = [*as_owner, programs["postgres"], "-D", str(data)]
        ready = [programs["pg_isready"], "-q", "-h", "127.0.0.1", "-p", str(port)]
        is_ready = partial(_succeeds, ready)
        with running(Server(folder, port, command, is_ready, stop=signal.SIGINT)) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, check=False).returncode == 0


def _as_owner(folder: Path) -> list[str]:
    """What a command is prefixed with to run as the owner of `folder`: as root, the user that Debian's package makes."""
    if os.geteuid():
        return []
    shutil.chown(folder, USER, USER)
    return [program("setpriv"), "--reuid", USER, "--regid", USER, "--init-groups"]
