"""A worker in a process of its own, so that it can be killed or stopped: consumes the mixed messages of a scenario.

The one argument is JSON: brokers, folder, group, the fault at which it is killed (or null), and other fields of `World`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.failures.calls import Fault, Tap, current, install
from tests.failures.world import World


async def consume(brokers: str, folder: str, group: str, fault: list[object] | None, fields: dict[str, Any]) -> None:
    world = World(brokers, Path(folder), group, **fields)
    tap, stop = Tap(world.ledger, None if fault is None else Fault(*fault)), asyncio.Event()  # type: ignore[arg-type]  # as it was written
    current.set(tap)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    world.ledger.write("started")
    await world.host(tap).run(stop)


if __name__ == "__main__":
    sys.modules["pyarrow"] = None  # type: ignore[assignment]  # half a second of each start, for rolls that nobody reads here
    logging.basicConfig(level="WARNING", format="%(asctime)s %(message)s")
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        asyncio.run(consume(**json.loads(sys.argv[1])))
