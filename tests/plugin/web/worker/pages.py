"""A worker on a Kafka in memory, with its pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import until

from ackwise import App, Message, Watch
from ackwise.plugin.settings.config import Config
from ackwise.plugin.web.metricnames import GROUP
from ackwise.testing.kafka.broker import MemoryKafka

QUICK: dict[str, Any] = {"commit_interval": 0.1, "drain_timeout": 5.0}


def named(name: str, labels: Mapping[str, str]) -> str:
    shown = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()) if label != GROUP)
    return f"{name}{{{shown}}}" if shown else name


class Pages:
    """The pages of a worker, over HTTP as its watchers get them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self.url + path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def metrics(self) -> dict[str, float]:
        """The samples by name and labels, in the order of the alphabet, without the group."""
        _, text = await self.get("/metrics")
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {named(sample.name, sample.labels): sample.value for sample in samples}

    async def until(self, is_so: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """The metrics, once it is so."""
        found: dict[str, float] = await until(self.metrics, is_so)
        return found


def port_of(caplog: pytest.LogCaptureFixture) -> int:
    """The port of the worker that was watched last."""
    lines = [record for record in caplog.records if getattr(record, "event", "") == "watched"]
    return int(vars(lines[-1])["fields"]["address"].rpartition(":")[2])


def _is_watched(caplog: pytest.LogCaptureFixture) -> bool:
    return any(getattr(record, "event", "") == "watched" for record in caplog.records)


@asynccontextmanager
async def running(app: App, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Pages]:
    """`app` at work, once its pages are there."""
    caplog.set_level("INFO", "ackwise")
    stop = asyncio.Event()
    serving = asyncio.create_task(app.serve(stop))
    try:
        await until(lambda: serving.done() or _is_watched(caplog))
        if serving.done():
            serving.result()
        yield Pages(port_of(caplog))
    finally:
        stop.set()
        await serving


def an_app(kafka: MemoryKafka, handler: Callable[[Message[bytes]], Any], *things: Any, **settings: Any) -> App:
    app = App("billing", brokers=kafka.bootstrap, config=Config(), **{**QUICK, **settings})
    app.use(Watch(0), *things)
    app.agent("orders", name="bill")(handler)
    return app
