"""What `ackwise explain` says of apps of Faust; `python -m tests.faust.test_explain` writes the file that it is held to again."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import faust
import pytest
from rich.console import Console

from ackwise import Batch, Broadcasting, ConsumeLater, Dedup, Events, Message, RateLimit, Share, Transactional, Watch
from ackwise.errors import ConfigurationError
from ackwise.plugin.cli.explain import print_explanation
from ackwise.plugin.faust import App
from ackwise.plugin.faust.fausthost import FaustHost
from ackwise.plugin.operate.explanation import Explanation

GOLDEN = Path(__file__).with_name("golden") / "explain.txt"


async def loop(stream: Any) -> None:
    async for _ in stream:
        pass


def shop(**options: Any) -> Any:
    """A stock app with the two lines, whose machine sets nothing."""
    app: Any = faust.App("shop", **{"broker": "kafka://kafka-1:9092;kafka-2:9092", "env": {}, **options})
    app.use(Dedup("sqlite:///claims.db"), ConsumeLater(3, no_retry=KeyError), Events("events"), drain_timeout="10s")
    app.agent(app.topic("orders", "refunds"), name="bill")(loop)
    return app


def everything() -> Any:
    env = {"ACKWISE_DEDUP__LEASE": "1m", "ACKWISE_AGENTS__BILL__MAX_BATCH": "50", "ACKWISE_AGENTS__BILL__MAX_AGE": "1d"}
    app = shop(ackwise_clock_skew=1, broker_rebalance_timeout=30.0, broker_session_timeout=20.0, env=env)
    app.agent(name="inner")(loop)
    app.agent(app.channel(), name="aside")(loop)
    return app


def host(app: Any) -> FaustHost:
    found: FaustHost = app.ackwise
    return found


def printed(explained: Explanation) -> str:
    text = io.StringIO()
    print_explanation(explained, Console(file=text, width=1000, color_system=None))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def settings(app: Any) -> dict[str, tuple[str, str]]:
    return {setting.name: (setting.value, setting.source) for setting in host(app).explain().settings}


def test_policies_for_named_agents_are_theirs_alone() -> None:
    app: Any = faust.App("shop", broker="kafka://kafka-1:9092", env={})
    app.use(Dedup("sqlite:///claims.db"), ConsumeLater(3))
    app.use(ConsumeLater(7, levels="1s"), RateLimit("5/s"), Dedup(key=lambda message: message.key), agents=["bill"])
    app.agent(app.topic("orders"), name="bill")(loop)
    app.agent(app.topic("parcels"), name="ship")(loop)
    of_bill, of_ship = host(app).group().agents
    assert of_bill.later is not None
    assert of_bill.dedup is not None
    assert (of_bill.later.max_reconsume_times, of_bill.dedup.store, of_ship.later, of_ship.dedup) == (7, "sqlite:///claims.db", None, None)
    assert {path.when: path.attempts for path in host(app).explain().failures}.items() >= {"bill raises": 8, "ship raises": 4}.items()


def test_policies_for_an_agent_that_there_is_not_and_middleware_for_a_loop_are_refused() -> None:
    async def through(message: Message[Any], call_next: Any) -> object:
        return await call_next(message)

    app: Any = faust.App("shop", broker="kafka://kafka-1:9092", env={})
    app.use(ConsumeLater(7), agents=["bil"])
    app.agent(app.topic("orders"), name="bill")(loop)
    with pytest.raises(ConfigurationError, match=r"use\(\) was called for agent 'bil', and there is none; did you mean 'bill'\?"):
        host(app).explain()
    app = faust.App("shop", broker="kafka://kafka-1:9092", env={})
    app.use(through, agents=["bill"])
    app.agent(app.topic("orders"), name="bill")(loop)
    (said,) = host(app).explain().refusals
    assert "middleware 'through' takes a message, and agent 'bill' is a loop; it would never run" in said


def test_the_explanation_is_the_one_on_file() -> None:
    text = printed(host(everything()).explain())
    assert text == GOLDEN.read_text("utf-8"), "python -m tests.faust.test_explain writes it again"


def test_each_setting_says_which_of_faust_s_it_is() -> None:
    found = settings(everything())
    assert found["brokers"] == ("kafka-1:9092,kafka-2:9092", "broker of the app")
    assert found["session_timeout"] == ("20s", "broker_session_timeout of the app")
    assert found["revoke_timeout"] == ("15s", "half of broker_rebalance_timeout of the app")
    assert found["drain_timeout"] == ("10s", "code")
    assert found["clock_skew"] == ("1s", "code")
    assert found["dedup.lease"] == ("1m", "ACKWISE_DEDUP__LEASE")
    assert found["agents.bill.max_batch"] == ("50", "ACKWISE_AGENTS__BILL__MAX_BATCH")
    assert "agents.bill.max_wait" not in found


def test_a_password_of_the_app_is_not_shown() -> None:
    app = shop(broker_credentials=faust.SASLCredentials(username="me", password="hush", mechanism="PLAIN"))
    assert "hush" not in printed(host(app).explain())


def test_what_the_start_would_refuse_is_said() -> None:
    for options, sentence in (
        ({"processing_guarantee": "exactly_once"}, 'processing_guarantee="exactly_once" commits offsets in transactions'),
        ({"producer_threaded": True}, "producer_threaded sends changes of tables from a thread"),
        ({"stream_publish_on_commit": True}, "stream_publish_on_commit sends what an agent sent when the offset is committed"),
    ):
        (said,) = host(shop(**options)).explain().refusals
        assert said.startswith(sentence)


def test_a_policy_that_agents_of_faust_can_t_take_is_said() -> None:
    for policy, sentence in (
        (Transactional("sqlite:///shop.db"), "Transactional gives handlers a connection"),
        (Share(), "Share was used, and Faust's worker is the member of an ordinary group"),
        (Watch(9464), "Watch was used, and Faust's worker has no pages of Ackwise; its web server shows the same"),
        (Broadcasting("web-1"), "Broadcasting gives every instance its own group"),
    ):
        app: Any = App("shop", env={})
        app.use(policy)
        app.agent(app.topic("orders"), name="bill")(loop)
        (said,) = app.ackwise.explain().refusals
        assert said.startswith(sentence)


def test_an_agent_that_ackwise_does_not_feed_is_said_and_without_another_there_is_nothing_to_explain() -> None:
    for pattern in (None, "orders.*"):
        app = shop()
        app.agent(app.channel() if pattern is None else app.topic(pattern=pattern), name="aside")(loop)
        (said,) = host(app).explain().warnings
        assert said.startswith("agent 'aside' reads ")
        assert host(app).group().sources == ("orders", "refunds")
    alone = App("shop", env={})
    alone.agent(alone.channel(), name="aside")(loop)
    with pytest.raises(ConfigurationError, match="app 'shop' has no agent that reads a topic by its name"):
        alone.ackwise.explain()


def test_an_agent_that_reads_what_its_group_writes_is_refused() -> None:
    app = shop()
    app.agent(app.topic("shop.retry"), name="loop")(loop)
    with pytest.raises(ConfigurationError, match=r"agent 'loop' reads 'shop\.retry', a topic that group 'shop' writes itself"):
        host(app).explain()


def test_topics_that_faust_makes_count_once_they_are_there() -> None:
    group = host(everything()).group()
    assert group.sources == ("orders", "refunds", "shop-inner")
    assert group.expected({"orders"}) == ("orders", "refunds")
    assert group.expected({"shop-inner"}) == ("orders", "refunds", "shop-inner")


def test_agents_in_modules_that_faust_looks_for_itself_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_by_faust.py").write_text(
        "from tests.faust.test_explain import DISCOVERED as app, loop\napp.agent(app.topic('parcels'), name='ship')(loop)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr("tests.faust.test_explain.DISCOVERED", shop(autodiscover=["found_by_faust"]), raising=False)
    assert host(sys.modules["tests.faust.test_explain"].DISCOVERED).group().sources == ("orders", "parcels", "refunds")
    del sys.modules["found_by_faust"]


def test_a_module_that_can_t_be_discovered_is_one_sentence() -> None:
    with pytest.raises(ConfigurationError, match="a module that autodiscover finds can't be imported, it raises ModuleNotFoundError"):
        host(shop(autodiscover=["there_is_no_such_module"])).explain()


def test_loops_and_handler_functions_are_told_apart() -> None:
    app = shop()
    failures = {failure.when for failure in host(app).explain().failures}
    assert "the agent raises" in failures
    assert "the handler raises" not in failures

    @app.handler("parcels", name="ship", max_wait="1s")  # type: ignore[untyped-decorator]  # every app has it
    async def ship(batch: Batch[bytes]) -> None: ...

    explained = host(app).explain()
    assert {"the agent raises", "the handler raises"} <= {failure.when for failure in explained.failures}
    assert [(step.what, step.how) for step in explained.chain if step.phase == "execute"] == [
        ("bill", "loop over a stream"),
        ("ship", "handler that takes a batch"),
    ]
    assert settings(app)["agents.ship.max_wait"] == ("1s", "code")


if __name__ == "__main__":
    GOLDEN.write_text(printed(host(everything()).explain()), "utf-8")
