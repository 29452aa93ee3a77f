"""A question is written to Redis byte for byte as the driver writes it."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Connection
from tests.stores.cases import case

from ackwise.stores.redis.connection import PlainConnection


def test_a_command_is_written_as_the_driver_writes_it() -> None:
    tables: list[list[Any]] = [[], [b"ackwise:" + bytes(16)], [b"a:%d\r\n" % number for number in range(9)], ["text", "word"]]
    for name in ["EVALSHA", "EVAL", "GET"]:
        for keys in tables:
            with case(name, keys):
                command = (name, "return 1 -- ü", len(keys), *keys, b"\r\n$1\r\n", b"", "owner", "")
                assert b"".join(PlainConnection().pack_command(*command)) == b"".join(Connection().pack_command(*command))
