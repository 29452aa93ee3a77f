"""What an app of Faust says for Ackwise, in which place, and what is refused; stock apps and the App with types alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faust
import pytest
from tests.faust.desk import desk

from ackwise import Dedup
from ackwise.errors import ConfigurationError
from ackwise.plugin.faust import App
from ackwise.plugin.settings.hostsettings import HostSettings


async def loop(stream: Any) -> None:
    async for _ in stream:
        pass


def stock(**options: Any) -> Any:
    app: Any = faust.App("shop", **{"env": {}, **options})
    app.use()
    return app


def typed(**options: Any) -> Any:
    return App("shop", **{"env": {}, **options})


def settings(app: Any) -> HostSettings:
    found: HostSettings = app.ackwise.settings()
    return found


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        make()
    return str(refused.value)


BOTH = pytest.mark.parametrize("make", [stock, typed])


@pytest.fixture(autouse=True)
def _in_a_folder_without_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@BOTH
def test_what_is_nearer_to_the_machine_wins(make: Callable[..., Any], tmp_path: Path) -> None:
    """The keywords of the app, its configuration object, a file, the environment, but not under Faust's prefix."""
    keywords = {"ackwise_create_topics": "never", "ackwise_revoke_timeout": "5s", "ackwise_drain_timeout": 7, "ackwise_clock_skew": 0}
    made = settings(make(**keywords, ackwise_start_timeout="2m"))
    assert (made.create_topics, made.start_timeout) == ("never", 120.0)
    assert (made.revoke_timeout, made.drain_timeout, made.clock_skew) == (5.0, 7.0, 0.0)
    app = make(**keywords)
    app.config_from_object(SimpleNamespace(ackwise_revoke_timeout="6s", ackwise_clock_skew=1, broker="kafka://kafka-1:9092"))
    assert (settings(app).revoke_timeout, settings(app).clock_skew, settings(app).brokers) == (6.0, 1.0, "kafka-1:9092")
    (tmp_path / "ackwise.toml").write_text('drain_timeout = "8s"\nclock_skew = "2s"\n')
    made = settings(make(**keywords, env={"ACKWISE_CLOCK_SKEW": "3s"}))
    assert (made.drain_timeout, made.clock_skew) == (8.0, 3.0)
    env = {"SHOP_ACKWISE_CLOCK_SKEW": "1s", "ACKWISE_CLOCK_SKEW": "3s", "SHOP_BROKER_URL": "kafka://kafka-1:9092"}
    made = settings(make(env_prefix="SHOP", env=env))
    assert (made.clock_skew, made.brokers) == (3.0, "kafka-1:9092")


@BOTH
@pytest.mark.parametrize("configured", [False, True])
def test_a_keyword_of_use_is_one_of_the_app(make: Callable[..., Any], configured: bool) -> None:
    app = make(ackwise_revoke_timeout=5)
    if configured:
        app.finalize()
    app.use(revoke_timeout="6s", clock_skew=1)
    assert (settings(app).revoke_timeout, settings(app).clock_skew) == (6.0, 1.0)


def test_in_the_conf_of_the_app_with_types_is_what_holds(tmp_path: Path) -> None:
    (tmp_path / "ackwise.toml").write_text('drain_timeout = "8s"\n')
    app = typed(ackwise_create_topics="broker", env={"ACKWISE_CLOCK_SKEW": "3s"}, broker_rebalance_timeout=30.0)
    conf = app.conf
    assert (conf.ackwise_create_topics, conf.ackwise_revoke_timeout) == ("broker", 15.0)
    assert (conf.ackwise_drain_timeout, conf.ackwise_clock_skew) == (8.0, 3.0)
    assert settings(app).revoke_timeout == conf.ackwise_revoke_timeout


@pytest.mark.parametrize("configured", [False, True])
def test_what_use_was_given_is_in_the_conf_unless_the_environment_set_it(configured: bool) -> None:
    app = typed(env={"ACKWISE_CLOCK_SKEW": "3s"})
    if configured:
        app.finalize()
    app.use(clock_skew="4s", drain_timeout="5s")
    assert (app.conf.ackwise_clock_skew, app.conf.ackwise_drain_timeout) == (3.0, 5.0)


def test_the_app_with_types_takes_what_is_set_in_its_conf() -> None:
    app = typed()
    app.conf.ackwise_drain_timeout = "9s"
    assert settings(app).drain_timeout == 9.0


@BOTH
def test_a_setting_that_there_is_not_or_a_value_that_can_t_be_used_is_refused(make: Callable[..., Any]) -> None:
    advice = {
        "ackwise_revok_timeout": "did you mean 'ackwise_revoke_timeout'?",
        "ackwise_dedup": "it has ackwise_topic_names, ackwise_create_topics, "
        "ackwise_revoke_timeout, ackwise_drain_timeout, ackwise_start_timeout, ackwise_clock_skew",
        "ackwise_commit_interval": "set broker_commit_interval of the app",
    }
    for name, end in advice.items():
        sentence = refusal(lambda name=name: make(**{name: 5}))  # type: ignore[misc]
        assert sentence.startswith(f"the app has no setting {name!r}")
        assert sentence.endswith(end)
    app = make()
    app.config_from_object(SimpleNamespace(ackwise_revok_timeout=5))
    assert refusal(lambda: settings(app)) == "the app has no setting 'ackwise_revok_timeout'; did you mean 'ackwise_revoke_timeout'?"
    assert "drain_timeout is 'soon'" in refusal(lambda: settings(make(ackwise_drain_timeout="soon")))
    app = make()
    assert refusal(lambda: app.use(drain_timeot=1)) == "use() has no setting 'drain_timeot'; did you mean 'drain_timeout'?"
    assert refusal(lambda: app.use(start="latest")) == "use() has no setting 'start' on Faust; set consumer_auto_offset_reset of the app"


def test_an_entry_that_faust_has_itself_is_refused_and_not_passed_over() -> None:
    for variable, value, entry, of_faust in (
        ("ACKWISE_BROKERS", "kafka-1:9092", "brokers", "broker"),
        ("ACKWISE_COMMIT_INTERVAL", "1s", "commit_interval", "broker_commit_interval"),
        ("ACKWISE_CLIENT_OPTIONS__SASL_PLAIN_PASSWORD", "hush", "client_options", "broker_credentials"),
    ):
        sentence = refusal(lambda env={variable: value}: settings(stock(env=env)))  # type: ignore[misc]
        assert sentence == f"{entry} is set by {variable}, and Faust says it itself; remove it, and set {of_faust} of the app"


def test_a_drain_that_the_broker_would_not_wait_for_is_refused() -> None:
    sentence = refusal(lambda: settings(stock(ackwise_revoke_timeout=20, broker_rebalance_timeout=30.0)))
    assert sentence.startswith("revoke_timeout is 20 s, and broker_rebalance_timeout allows 15 s, half of it")


def test_policies_hold_as_files_and_the_environment_set_them(tmp_path: Path) -> None:
    (tmp_path / "ackwise.toml").write_text("[consume_later]\nmax_reconsume_times = 3\n")
    app = typed(env={"ACKWISE_DEDUP__LEASE": "7s", "ACKWISE_EVENTS__SINK": "events"})
    app.use(Dedup("memory://"))
    slots = app.ackwise.slots
    assert (slots.later.max_reconsume_times, slots.dedup.lease, slots.events.sink) == (3, 7.0, "events")


def test_the_app_with_types_has_ackwise_on_and_takes_policies_before_its_first_agent() -> None:
    app = typed()
    app.use(Dedup("memory://"))
    app.agent(app.topic("orders"), name="bill")(loop)
    assert refusal(lambda: app.use(Dedup("memory://"))).startswith("app.use() comes after agent 'bill' was declared")
    assert app.ackwise.group().sources == ("orders",)


def test_an_entry_that_a_loop_says_itself_or_for_an_agent_that_there_is_not_is_refused() -> None:
    def declared(**env: str) -> str:
        app = stock(env=env)
        app.agent(app.topic("orders"), name="bill")(loop)
        return refusal(app.ackwise.declared)

    for entry, value, instead in (
        ("max_wait", "1s", "in take(…, within=…)"),
        ("keep_ack_index_on_error", "true", "current_batch().done(message)"),
    ):
        variable = f"ACKWISE_AGENTS__BILL__{entry.upper()}"
        sentence = declared(**{variable: value})
        assert sentence.startswith(f"agents.bill.{entry} is set by {variable}, and has no meaning for an agent")
        assert instead in sentence
    unknown = "ACKWISE_AGENTS__BIL__MAX_BATCH names an agent that there is not; did you mean 'bill'?"
    assert declared(ACKWISE_AGENTS__BIL__MAX_BATCH="50") == unknown


async def test_an_entry_says_how_much_an_agent_is_given_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def declare(app: faust.App) -> None:
        for name, topic in (("bill", "orders"), ("ship", "parcels")):
            app.agent(app.topic(topic), name=name)(loop)

    monkeypatch.setenv("ACKWISE_AGENTS__BILL__MAX_BATCH", "50")
    async with desk(monkeypatch, declare) as here:
        assert {name: intake.handler.max_batch for name, intake in here.host.intakes.items()} == {"bill": 50, "ship": 200}
