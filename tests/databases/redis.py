"""Redis on this machine: one server, a server with a replica, a cluster of three masters; plain or behind TLS."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.databases.server import START_TIMEOUT, Server, free_port, program, running


def redis_server_of(folder: Path, *options: str, port: int | None = None) -> Server:
    """A Redis that is not started yet; `options` are those of the command line. Raises `Missing`."""
    folder.mkdir(parents=True, exist_ok=True)
    number = free_port() if port is None else port
    name = folder / "redis-server"
    if not name.exists():  # Debian's redis-tools has the server under the name of its checker, and it goes by its name
        name.symlink_to(program("redis-check-rdb"))
    base = [str(name), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--daemonize", "no"]
    command = [*base, *([] if "--tls-port" in options else ["--port", str(number)]), *options]
    return Server(folder, number, command, lambda: _answers(number))


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[Server]:
    """One Redis while the block runs. Raises `Missing`."""
    with running(redis_server_of(folder, *options)) as server:
        yield server


@contextmanager
def redis_cluster(folder: Path, masters: int = 3) -> Iterator[Sequence[Server]]:
    """A cluster of `masters` without replicas while the block runs. Raises `Missing`."""
    with ExitStack() as stack:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no")
        nodes = [stack.enter_context(redis_server(folder / str(number), *options)) for number in range(masters)]
        addresses = [f"127.0.0.1:{node.port}" for node in nodes]
        create = [program("redis-cli"), "--cluster", "create", *addresses, "--cluster-yes"]
        done = subprocess.run(create, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        deadline = time.monotonic() + START_TIMEOUT
        while not all(_serves_all_slots(node) for node in nodes):  # they still tell each other
            assert time.monotonic() < deadline, "the nodes of the cluster do not agree"
            time.sleep(0.05)
        yield nodes


def _serves_all_slots(node: Server) -> bool:
    ask = [program("redis-cli"), "-p", str(node.port), "cluster", "info"]
    return "cluster_state:ok" in subprocess.run(ask, capture_output=True, check=True, text=True).stdout
