"""A question is written to Redis byte for byte as the driver writes it."""

from __future__ import annotations

import pytest
from redis.asyncio import Connection

from ackwise.stores.redis.packing import PlainConnection


@pytest.mark.parametrize(
    "keys", [[], [b"ackwise:" + bytes(16)], [b"a:%d\r\n" % number for number in range(9)], [b"long", b"longer"], ["text", "word"]]
)
@pytest.mark.parametrize("name", ["EVALSHA", "EVAL", "GET"])
def test_a_command_is_written_as_the_driver_writes_it(name: str, keys: list[bytes | str]) -> None:
    command = (name, "return 1 -- ü", len(keys), *keys, b"\r\n$1\r\n", b"", "owner", "")
    assert b"".join(PlainConnection().pack_command(*command)) == b"".join(Connection().pack_command(*command))
