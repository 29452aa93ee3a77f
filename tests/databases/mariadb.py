"""MariaDB on this machine, in its own folder."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.databases import mysql
from tests.databases.server import Server, free_port, greets, program, running

#: Options of a server whose log can be read for change data capture.
WITH_LOG = ("--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--server-id=1", "--sync-binlog=1")


@contextmanager
def mariadb_server(folder: Path, *options: str) -> Iterator[Server]:
    """A MariaDB while the block runs, whose root has no password; a MySQL in its place if the run wants that. Raises `Missing`."""
    if mysql.WANTED:
        with mysql.mysql_server(folder, *options) as server:
            yield server
        return
    folder.mkdir(parents=True, exist_ok=True)
    data, port, user = folder / "data", free_port(), getpass.getuser()
    programs = [program("mariadb-install-db"), program("my_print_defaults")]
    make = [programs[0], "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", f"--user={user}"]
    # A server that starts deletes what others have in their folder for temporary tables.
    temporary = f"--tmpdir={folder}"
    done = subprocess.run([*make, temporary], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [f"--user={user}", f"--datadir={data}", f"--port={port}", f"--socket={folder / 'socket'}", "--bind-address=127.0.0.1", temporary]
    small = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M", "--skip-name-resolve", "--performance-schema=OFF"]
    command = [program("mariadbd"), "--no-defaults", *told, *small, *options]
    with running(Server(folder, port, command, lambda: greets(port))) as server:
        yield server
