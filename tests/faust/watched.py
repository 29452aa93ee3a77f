"""An app of Faust that is looked at while it runs: its web server is on, with Faust's page for Prometheus.

What an order is called says what its agent does. `WATCHED` in the environment (JSON) has the brokers, the group, the
topic, the folder, the port, and whether the web server has its own thread.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import faust
from faust.sensors.prometheus import setup_prometheus_sensors

from ackwise import ConsumeLater, Dedup, Later, Reject

WATCHED = json.loads(os.environ["WATCHED"])

app = faust.App(
    WATCHED["group"],
    broker=f"kafka://{WATCHED['brokers']}",
    datadir=WATCHED["folder"],
    store="memory://",
    topic_partitions=1,
    topic_replication_factor=1,
    broker_commit_interval=0.2,
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    web_bind="127.0.0.1",
    web_port=WATCHED["port"],
    web_in_thread=WATCHED["in_thread"],
)
app.use(ConsumeLater(3, levels="1h"), Dedup("memory://", key=lambda message: message.value))  # type: ignore[attr-defined]  # every app has it
setup_prometheus_sensors(app, name_prefix="shop")


@app.agent(app.topic(WATCHED["topic"], value_type=str), name="bill")
async def bill(orders: Any) -> None:
    async for order in orders:
        if order == "declined":
            raise Later("1h")
        if order == "unpayable":
            raise Reject("nobody can pay that")
        while order == "slow" and not may_go_on():  # noqa: ASYNC110  # another process says so
            await asyncio.sleep(0.05)


def may_go_on() -> bool:
    """Whether the test lets an agent end that is slow."""
    return Path(WATCHED["folder"], "go on").exists()
