"""How brokers are written, and what is said of one that nobody can connect to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from tests.tables import each

from ackwise.middleware.errors import Unavailable
from ackwise.plugin.settings.connecting import Address, parse_brokers, reach, require_broker


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


@each(
    ("text", "addresses"),
    [
        ("localhost:9092", [Address("localhost", 9092)]),
        ("a:1, b.example:65535", [Address("a", 1), Address("b.example", 65535)]),
        ("[::1]:9092", [Address("::1", 9092)]),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, addresses: list[Address]) -> None:
    assert parse_brokers(text) == addresses
    assert ", ".join(map(str, addresses)) == text


async def test_each_address_that_nobody_listens_on_says_why(listener: socket.socket) -> None:
    found = await reach(f"127.0.0.1:1,there-is-no-such-host.invalid:1,{'x' * 70}:1,{address(listener)}")
    assert list(found.values()) == ["connection refused", "no such host", "no host can be called that", None]


async def test_a_host_with_two_addresses_has_one_reason() -> None:
    assert list((await reach("localhost:1")).values()) == ["connection refused"]


async def test_an_address_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", never)
    assert list((await reach("10.0.0.1:9092", timeout=0.01)).values()) == ["no answer within 0.01 s"]


async def test_one_broker_that_listens_is_enough(listener: socket.socket) -> None:
    await require_broker(f"127.0.0.1:1,{address(listener)}")


async def test_without_any_every_reason_is_in_the_sentence() -> None:
    with pytest.raises(Unavailable, match=r"no broker answers \(127\.0\.0\.1:1: connection refused; \[::1\]:2: .+\); start Kafka there"):
        await require_broker("127.0.0.1:1,[::1]:2")
