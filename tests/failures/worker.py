"""A worker in its own process, so that it can be killed or stopped: consumes the mixed messages of a scenario."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.failures.calls import Fault, Tap, current, install
from tests.failures.world import World


async def _consume(world: World, fault: Fault | None) -> None:
    tap, stop = Tap(world.ledger, [fault] if fault else []), asyncio.Event()
    current.set(tap)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    world.ledger.write("started")
    await world.host(tap).run(stop)


def main(brokers: str, folder: Path, group: str, fault: Fault | None, fields: dict[str, Any]) -> None:
    """Work until SIGTERM; `fault` is where it is killed or stopped, `fields` are others of `World`."""
    sys.modules["pyarrow"] = None  # type: ignore[assignment]  # half a second of each start, for rolls that nobody reads here
    logging.basicConfig(level="WARNING", format="%(asctime)s %(message)s")
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        world = World(brokers, folder, group, **fields)
        _note_syncs(world, patch)
        asyncio.run(_consume(world, fault))


def _note_syncs(world: World, patch: pytest.MonkeyPatch) -> None:
    """Write down how much of each event log is on the disk."""
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        size, path = os.fstat(descriptor).st_size, Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)
        if ".wal" in path.suffixes:
            world.ledger.write("synced", log=path.name.removeprefix(".").removesuffix(".tmp"), size=size)

    patch.setattr(os, "fsync", noted)
