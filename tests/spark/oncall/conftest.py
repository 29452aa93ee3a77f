"""A Kafka in memory, an app of the group `billing`, its events, and an audit of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.plugin.operate.deadletters.conftest import shop
from tests.plugin.operate.deadletters.letters import APP, Shop, letter
from tests.plugin.web.site.site import hostile_letters
from tests.spark.commands.test_why import night
from tests.spark.reconciling import root_of
from tests.spark.report.reports import ANOMALIES

from ackwise.spark.report.summary import to_json

__all__ = ["billing", "shop"]

#: What must be on no page.
SECRET = "hunter2hunter2"

_APP = """
from ackwise import App, Dedup, Events

app = App("billing", brokers={brokers!r}, client_options={{"sasl_plain_username": "ann", "sasl_plain_password": "hunter2hunter2"}})
app.use(Dedup("postgresql://ann:hunter2hunter2@db.example/claims"), Events({folder!r} + "/events"))
"""


@pytest.fixture
def billing(shop: Shop) -> Shop:
    """With letters, events and an audit, and secrets in its settings."""
    shop.write_app(_APP + APP[APP.index("\n@dataclass") :].replace("@dataclass", "from dataclasses import dataclass\n\n@dataclass", 1))
    root: Path = root_of(shop.folder / "events", night("billing"))
    run = root / "runs" / "20260101T000000Z-1"
    run.mkdir(parents=True)
    (run / "summary.json").write_text(to_json(ANOMALIES))
    (run / "report.html").write_text("<p>its report</p>")
    shop.bury(letter(3), letter(4))
    shop.bury(*hostile_letters(), partition=1)
    shop.kafka.produce("orders", b"x")
    return shop
