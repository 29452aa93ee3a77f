"""An app of Faust in a release that Ackwise was not written for: refused by the name that it lacks, or logged."""

from __future__ import annotations

import importlib.metadata
import logging
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import faust
import pytest

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.faust import faustinternals
from ackwise.plugin.faust.faustapp import use
from ackwise.plugin.faust.faustinternals import FAUST, MODE
from ackwise.plugin.kafka.releases import Release

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def app(request: pytest.FixtureRequest) -> faust.App:
    return faust.App(request.node.name.partition("[")[0], broker="kafka://127.0.0.1:1", store="memory://")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let that release of Faust and of mode be installed, and nothing be known of it yet."""

    def install(release: str) -> None:
        monkeypatch.setattr(importlib.metadata, "version", lambda package: release)
        for library in (FAUST, MODE):
            monkeypatch.setattr(library, "_is_known", False)

    return install


def test_the_installed_faust_and_mode_have_each_name_that_is_used() -> None:
    for library in (FAUST, MODE):
        assert importlib.metadata.version(library.package).startswith(library.written_for)
    Release(FAUST.package, FAUST.written_for).require(faustinternals.NAMES)


def test_the_release_that_ackwise_was_written_for_is_the_one_that_the_extra_brings() -> None:
    extra = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["faust"]
    assert f"{FAUST.package}=={FAUST.written_for}" in extra


@pytest.mark.parametrize("lacking", ["_renamed", "_new_web(other)"])
def test_no_app_is_made_reliable_by_a_release_that_lacks_a_name(
    lacking: str, app: faust.App, installed: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("0.16.0")
    monkeypatch.setitem(cast(Any, faustinternals.NAMES), faust.App, lacking)
    with pytest.raises(ConfigurationError, match=re.escape(f"faust-streaming 0.16.0 is installed and lacks App.{lacking}; ")) as refused:
        use(app)
    assert str(refused.value).endswith("pip install 'faust-streaming==0.15.3.*'")
    assert not hasattr(app, "ackwise")


def test_another_release_that_has_all_names_is_logged_once_and_works(
    app: faust.App, installed: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    installed("0.16.0")
    caplog.set_level(logging.WARNING, "ackwise")
    for _ in range(2):
        use(app)
    logged: list[Any] = [
        vars(record)["fields"] for record in caplog.records if vars(record)["event"].startswith("client library version not tested")
    ]
    assert [(each["package"], each["release"]) for each in logged] == [("mode-streaming", "0.16.0"), ("faust-streaming", "0.16.0")]


def test_a_page_for_prometheus_that_keeps_its_registry_elsewhere_is_refused() -> None:
    view = type("Page", (), {"__module__": "faust.sensors.prometheus", "get": lambda self: None})()
    with pytest.raises(ConfigurationError, match="lacks the registry of its page for Prometheus; "):
        faustinternals.registry_of(SimpleNamespace(web=SimpleNamespace(views={"metrics": view})))


def test_each_private_name_of_faust_that_is_used_is_in_the_table() -> None:
    text = Path(str(faustinternals.__file__)).read_text("utf-8")
    known = set(re.findall(r"\b_[a-z]\w*", " ".join(faustinternals.NAMES.values()))) | {"_crashed"}
    used = set(re.findall(r"\.(_[a-z]\w*)|\bdef (_[a-z]\w*)", text))
    assert {name for names in used for name in names if name} - known == set()
