"""A start with a release of a client library that Ackwise was not written for: refused by the name that it lacks, or logged."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.kafka import aiokafkainternals, clients, protocolrequests, recordbatches
from ackwise.plugin.kafka.protocolrequests import AIOKAFKA
from ackwise.plugin.kafka.releases import Release
from ackwise.plugin.loop import reliable

CHECKOUT = Path(__file__).resolve().parents[3]


class Client:
    """What a library has."""

    def __init__(self) -> None:
        self._fetcher = None

    def _send(self, request: object, node: int = 0) -> None: ...


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let that release be installed, and nothing be known of it yet."""

    def install(release: str) -> None:
        monkeypatch.setattr(importlib.metadata, "version", lambda package: release)
        monkeypatch.setattr(AIOKAFKA, "_is_known", False)

    return install


def logged(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [
        vars(record)["fields"] for record in caplog.records if vars(record).get("event", "").startswith("client library version not tested")
    ]


def test_the_installed_aiokafka_has_each_name_that_is_used() -> None:
    Release("aiokafka", AIOKAFKA.written_for).require({**aiokafkainternals.NAMES, **recordbatches.NAMES, **protocolrequests.NAMES})


def test_the_release_that_ackwise_was_written_for_is_the_one_that_it_asks_for() -> None:
    (asked,) = (
        each
        for each in tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]
        if each.startswith(AIOKAFKA.package)
    )
    assert f">={AIOKAFKA.written_for}," in asked


@pytest.mark.parametrize("lacking", ["_coordinator", "_client", "__init__(first,...)", "_send(request)"])
def test_a_release_that_lacks_a_name_is_refused_with_what_to_install(lacking: str, installed: Callable[[str], None]) -> None:
    installed("0.15.2")
    with pytest.raises(ConfigurationError, match=re.escape(f"aiokafka 0.15.2 is installed and lacks Client.{lacking}; ")) as refused:
        Release("aiokafka", "0.14").require({Client: f"_fetcher {lacking}"})
    assert str(refused.value).endswith("pip install 'aiokafka==0.14.*'")


def test_what_an_object_gets_what_a_class_has_and_parameters_are_found() -> None:
    Release("aiokafka", "0.14").require({Client: "_fetcher _send _send(request,node) _send(request,...) __init__()"})


def test_a_module_that_moved_is_refused_as_a_name_is(installed: Callable[[str], None]) -> None:
    installed("0.15.2")
    release = Release("aiokafka", "0.14")
    lacks = r"aiokafka 0\.15\.2 is installed and lacks aiokafka\.consumer\.fetcher\.Nothing; "
    with pytest.raises(ConfigurationError, match=lacks), release.imports():
        from aiokafka.consumer.fetcher import Nothing  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ConfigurationError, match=r"lacks aiokafka\.nothing; "), release.imports():
        import aiokafka.nothing  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.parametrize(("release", "times"), [("0.14.0", 0), ("0.14.3", 0), ("0.15.0", 1), ("0.13.1", 1), ("0.140.0", 1)])
def test_another_release_that_has_all_names_is_logged_once_and_works(
    release: str, times: int, installed: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    installed(release)
    caplog.set_level(logging.WARNING, "ackwise")
    for _ in range(2):
        clients.require_known()
    assert logged(caplog) == [{"package": "aiokafka", "release": release, "tested": "0.14"}] * times


def test_a_program_without_the_metadata_of_its_libraries_starts(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    release = Release("ackwise-nothing-of-this-name", "0.14")
    release.require({Client: "_fetcher"})
    assert [each["release"] for each in logged(caplog)] == ["of unknown release"]
    with pytest.raises(ConfigurationError, match=r"of unknown release is installed and lacks Client\._renamed"):
        Release(release.package, "0.14").require({Client: "_renamed"})


def test_what_an_object_gets_is_found_though_a_tracer_has_wrapped_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Client.__init__

    @functools.wraps(made)
    def traced(self: Client) -> None:
        made(self)

    monkeypatch.setattr(Client, "__init__", traced)
    Release("aiokafka", "0.14").require({Client: "_fetcher __init__()"})


@pytest.mark.parametrize("make", [AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient])
async def test_no_client_starts_with_a_release_that_lacks_a_name(
    make: Callable[..., Any], installed: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("0.15.0")
    monkeypatch.setitem(aiokafkainternals.NAMES, AIOKafkaConsumer, "_renamed")
    client = make(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=r"aiokafka 0\.15\.0 is installed and lacks AIOKafkaConsumer\._renamed"):
        async with clients.opened(client):
            raise AssertionError("it was started")


async def test_a_loop_of_the_users_own_is_refused_with_such_a_release(
    installed: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("0.15.0")
    monkeypatch.setitem(aiokafkainternals.NAMES, AIOKafkaConsumer, "_renamed")
    consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1", group_id="billing", enable_auto_commit=False, auto_offset_reset="none")
    try:
        with pytest.raises(ConfigurationError, match=r"lacks AIOKafkaConsumer\._renamed"):
            reliable(consumer, "orders")
    finally:
        await consumer.stop()


def test_each_private_name_that_is_used_is_in_the_table_of_its_module() -> None:
    """A name that is used and not in a table would show its absence late."""
    for module in (aiokafkainternals, recordbatches, protocolrequests):
        text = Path(str(module.__file__)).read_text("utf-8")
        known = set(re.findall(r"\b_?[a-z]\w*", " ".join(module.NAMES.values())))
        own = set(re.findall(r"\b(?:def|class) (_\w+)|^(_\w+)[ :]|self\.(_\w+)", text, re.MULTILINE))
        used = set(re.findall(r"(?<!self)(?<!\))\.(_[a-z]\w*)", text))
        assert used - known - {name for names in own for name in names} - {"_replace"} == set(), module.__name__
