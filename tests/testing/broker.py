"""A Kafka in memory that serves in its own thread: for tests that block, and for workers that are processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from ackwise.testing import MemoryKafka


class ThreadedKafka:
    """As `LocalKafka`, as far as tests of hosts ask for it."""

    def __init__(self) -> None:
        self.kafka = MemoryKafka(min_session_timeout=0.2)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._paused = threading.Event()
        self.start()

    @property
    def bootstrap(self) -> str:
        return self.kafka.bootstrap

    def start(self) -> None:
        self._do(self.kafka.start())

    def stop(self) -> None:
        self._do(self.kafka.stop())

    def kill(self) -> None:
        self.stop()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Nothing answers, and connections stay open."""
        self._paused.clear()
        self._loop.call_soon_threadsafe(self._paused.wait)

    def resume(self) -> None:
        self._paused.set()

    def close(self) -> None:
        self._do(self.kafka.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, what: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(30)
