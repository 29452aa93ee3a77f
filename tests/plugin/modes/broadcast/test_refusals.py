"""What can't go together with Broadcasting is refused with a sentence, at the start and by `explain`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ackwise import App, Broadcasting, ConsumeLater, DeadLetter, Dedup, Message, Transactional, reliable
from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.settings.config import Config, Given, read_config
from ackwise.testing import TestApp


def app_of(*things: Any, config: Config | None = None, **settings: Any) -> App:
    app = App("cache", brokers="nowhere:1", config=config or Config(), **settings)
    app.use(*things)

    @app.agent("changes")
    async def evict(message: Message[bytes]) -> None:
        if message.value == b"bad":
            raise ValueError("bad")

    return app


async def refusal(app: App) -> str:
    with pytest.raises(ConfigurationError) as refused:
        await app.serve(asyncio.Event())
    assert app.explain().refusals == (str(refused.value),) or "both store the keys" in str(refused.value)
    return str(refused.value)


async def test_what_can_not_apply_is_refused_also_if_a_file_sets_it() -> None:
    for policy, said in (
        (Dedup("memory://"), "Broadcasting and Dedup are both on: every instance gets every message"),
        (Transactional("sqlite:///x.db"), "Broadcasting and Transactional are both on"),
        (ConsumeLater(3), "Broadcasting drops failed messages, so ConsumeLater would do nothing; leave it out"),
        (DeadLetter("dead"), "Broadcasting drops failed messages, so DeadLetter would do nothing"),
    ):
        assert said in await refusal(app_of(Broadcasting("web-1"), policy))
    config = Config({("consume_later", "max_reconsume_times"): Given(3, "ackwise.toml")})
    assert "consume_later.max_reconsume_times, set by ackwise.toml" in await refusal(app_of(Broadcasting("web-1"), config=config))


def test_a_name_that_can_not_be_part_of_a_group_a_file_without_a_path_and_a_second_policy_are_refused() -> None:
    wrong: list[tuple[Any, Any, str]] = [
        *((name, None, "instance of Broadcasting is") for name in ("", "a b", "a@b", "é", "a" * 101, None, 7)),
        *(("web-1", file, "offsets_file of Broadcasting is") for file in ("", 7)),
    ]
    for name, file, said in wrong:
        with pytest.raises(ConfigurationError, match=said):
            Broadcasting(name, offsets_file=file)
    with pytest.raises(ConfigurationError, match="Broadcasting was used twice"):
        app_of(Broadcasting("web-1"), Broadcasting("web-2"))


def test_a_loop_of_the_user_s_own_can_not_broadcast() -> None:
    consumer: Any = object()
    with pytest.raises(ConfigurationError, match=r"reliable\(\) can't broadcast: .*; use App"):
        reliable(consumer, "changes", Broadcasting("web-1"))


def test_the_instance_may_be_named_by_the_environment(tmp_path: Path) -> None:
    config = read_config(tmp_path, environ={"ACKWISE_BROADCASTING__INSTANCE": "web-7"})
    explained = app_of(config=config).explain()
    assert explained.group == "cache@web-7"
    assert ("broadcasting.instance", "web-7", "ACKWISE_BROADCASTING__INSTANCE") in [
        (setting.name, setting.value, setting.source) for setting in explained.settings
    ]


def test_explain_shows_the_mode_and_no_topics_of_its_own() -> None:
    explained = app_of(Broadcasting("web-1", offsets_file=Path("web.offsets"))).explain()
    assert [(use.topic, use.use) for use in explained.topics] == [("changes", "source of evict")]
    assert ("commit", "offsets", "every 5s, to the file web.offsets, in no group") in [
        (link.phase, link.what, link.how) for link in explained.chain
    ]
    raises = next(path for path in explained.failures if path.when == "the handler raises")
    assert (raises.then, raises.ends, raises.attempts) == ("dropped, with an event and a count", "", 1)
    assert not [path for path in explained.failures if "copy" in path.when or "dead letter" in path.then]


def test_explain_says_where_a_new_instance_begins_and_who_said_so() -> None:
    said: list[tuple[dict[str, Any], str, str]] = [({}, "latest", "Broadcasting"), ({"start": "earliest"}, "earliest", "default")]
    for settings, begins, source in said:
        (start,) = (each for each in app_of(Broadcasting("web-1"), **settings).explain().settings if each.name == "start")
        assert (start.value, start.source) == (begins, source), settings


async def test_the_kit_says_that_a_message_was_dropped() -> None:
    async with TestApp(app_of(Broadcasting("web-1"))) as worker:
        fates = [await worker.deliver("changes", value) for value in (b"good", b"bad")]
    assert [(fate.kind, fate.error) for fate in fates] == [("done", None), ("dropped", "not-retried")]
