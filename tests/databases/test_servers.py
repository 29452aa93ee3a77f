"""What the tests start servers with does what it says."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path

import pytest
from tests.databases.mariadb import mariadb_server
from tests.databases.postgres import USER, postgres_server
from tests.databases.proxy import Proxy, proxy_to
from tests.databases.redis import redis_cluster, redis_server
from tests.databases.server import program, skip_if_missing


@pytest.mark.servers
def test_a_redis_answers_keeps_its_port_over_a_restart_and_can_be_frozen(tmp_path: Path) -> None:
    with skip_if_missing("Redis"), redis_server(tmp_path) as server:
        ask = [program("redis-cli"), "-p", str(server.port), "ping"]
        assert subprocess.run(ask, capture_output=True, check=True, text=True).stdout == "PONG\n"
        server.freeze()
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(ask, capture_output=True, check=True, timeout=0.3)
        server.thaw()
        server.restart()
        assert subprocess.run(ask, capture_output=True, check=True, text=True).stdout == "PONG\n"


@pytest.mark.servers
def test_a_cluster_serves_every_slot(tmp_path: Path) -> None:
    with skip_if_missing("Redis Cluster"), redis_cluster(tmp_path) as nodes:
        ask = [program("redis-cli"), "-p", str(nodes[0].port), "cluster", "info"]
        assert "cluster_slots_assigned:16384" in subprocess.run(ask, capture_output=True, check=True, text=True).stdout


@pytest.mark.servers
def test_a_postgresql_answers_and_survives_a_kill() -> None:
    with skip_if_missing("PostgreSQL"), postgres_server() as server:
        ask = [program("psql"), "-h", "127.0.0.1", "-p", str(server.port), "-U", USER, "-Atc", "select 7"]
        assert subprocess.run(ask, capture_output=True, check=True, text=True).stdout == "7\n"
        server.kill()
        server.start()
        assert subprocess.run(ask, capture_output=True, check=True, text=True).stdout == "7\n"


@pytest.mark.servers
def test_a_mariadb_greets(tmp_path: Path) -> None:
    with skip_if_missing("MariaDB"), mariadb_server(tmp_path) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        assert b"MariaDB" in client.recv(200)


class Echo:
    """A server that answers what it hears."""

    async def __aenter__(self) -> Echo:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()


async def ask(proxy: Proxy, seconds: float = 5.0) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"ping")
    try:
        async with asyncio.timeout(seconds):
            return await reader.read(100)
    finally:
        writer.transport.abort()


async def test_the_proxy_passes_on_and_counts() -> None:
    async with Echo() as echo, proxy_to(echo.port) as proxy:
        assert await ask(proxy) == b"ping"
        assert (proxy.requests, proxy.connections) == (1, 1)


async def test_the_proxy_swallows_cuts_and_refuses() -> None:
    async with Echo() as echo, proxy_to(echo.port) as proxy:
        proxy.swallow_replies = True
        with pytest.raises(TimeoutError):
            await ask(proxy, seconds=0.1)
        proxy.swallow_replies = False
        proxy.cut_after = lambda said: said == b"ping"
        with pytest.raises(ConnectionResetError):
            await ask(proxy)
        proxy.cut_after, proxy.refuse = None, True
        with pytest.raises(ConnectionResetError):
            await ask(proxy)
