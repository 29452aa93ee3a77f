from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from ackwise import App, Events
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.policies.retry import Order
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin import registry


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> object:
    """Entry points as if another distribution had brought them."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(registry, "announced", lambda group: EntryPoints(point for point in points if point.group == group))
    return lambda group, name, target: points.append(EntryPoint(name, target, group))


def made(url: str, **options: object) -> tuple[str, dict[str, object]]:
    return url, options


def test_the_scheme_of_a_url_chooses_the_store() -> None:
    assert type(registry.open_store("memory://")).__name__ == "MemoryStore"


def test_a_path_is_a_folder_of_events(tmp_path: Path) -> None:
    folder = tmp_path / "100%41"
    sink = registry.open_sink(str(folder), group="billing", mode="async", permissions=0o640, facts={})
    assert (type(sink).__name__, getattr(sink, "root", None)) == ("Journal", folder)


def test_another_distribution_adds_a_store_and_a_sink(add: object) -> None:
    assert callable(add)
    add("ackwise.stores", "tape", f"{__name__}:made")
    add("ackwise.events", "tape", f"{__name__}:made")
    store: object = registry.open_store("tape://drive")
    assert store == ("tape://drive", {})
    facts = {"lease": 30.0}
    options = {"group": "billing", "mode": "async", "attrs": facts}
    sink: object = registry.open_sink("tape://drive", group="billing", mode="async", permissions=0o640, facts=facts)
    assert sink == ("tape://drive", options)


def test_a_session_says_the_order_of_each_handler(add: Callable[[str, str, str], None]) -> None:
    add("ackwise.events", "tape", f"{__name__}:made")
    app = App("billing", brokers="127.0.0.1:1")
    app.use(Events("tape://drive"))
    agents = [Agent(name, ("orders",), "batch", bytes, bytes, order=order) for name, order in ORDERS]  # type: ignore[arg-type]  # never called
    sink: Any = app._slots.open_sink("billing", ["orders"], agents)
    assert sink[1]["attrs"]["order"] == {"bill": "none", "ship": "partition", "mail": "key"}


ORDERS: list[tuple[str, Order]] = [("bill", None), ("ship", "partition"), ("mail", "key")]


def test_an_unknown_scheme_names_the_nearest_known() -> None:
    with pytest.raises(ConfigurationError, match=r"no store is known for sqlit://; did you mean sqlite://"):
        registry.open_store("sqlit:///claims.db")


def test_a_scheme_that_resembles_none_names_them_all() -> None:
    with pytest.raises(ConfigurationError, match=r"the known ones are .*memory://, .*sqlite://"):
        registry.open_store("zzz://")


def test_a_message_never_holds_the_password_of_the_url(add: object) -> None:
    assert callable(add)
    add("ackwise.stores", "broken", "ackwise.there_is_no_such_module:from_url")
    for url in ("reddis://me:s3cret@host/0", "me:s3cret@host/0", "broken://me:s3cret@host/0"):
        with pytest.raises(ConfigurationError) as refusal:
            registry.open_store(url)
        assert "s3cret" not in str(refusal.value)


def test_a_store_whose_package_is_missing_says_so(add: object) -> None:
    assert callable(add)
    add("ackwise.stores", "broken", "ackwise.there_is_no_such_module:from_url")
    with pytest.raises(ConfigurationError, match="install the package that it needs"):
        registry.open_store("broken://")
