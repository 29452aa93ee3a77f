"""What a share group is refused with, and what explain and doctor say of it."""

from __future__ import annotations

from typing import Any

import pytest

from ackwise import App, Dedup, Message, RetryInPlace, Share, Transactional, reliable
from ackwise.errors import ConfigurationError
from ackwise.plugin.modes.shareclient import read_share_group
from ackwise.plugin.operate.machinechecks import needs
from ackwise.plugin.policyslots import Slots
from ackwise.plugin.settings.config import Config, Given


def an_app(*things: Any, **agent: Any) -> App:
    async def bill(message: Message[bytes]) -> None: ...

    app = App("billing", config=Config())
    app.use(*things)
    app.agent("orders", **agent)(bill)
    return app


def refusals(app: App) -> str:
    return " ".join(app.explain().refusals)


def test_settings_that_can_not_work_are_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"consumers": 0}, "consumers of Share is 0; it is a whole number from 1"),
        ({"consumers": True}, "consumers of Share is True"),
        ({"lock": 0}, "lock of Share is 0 s; it must be above 0"),
        ({"client_options": [1]}, "client_options of Share is a list"),
        ({"client_options": {"group.id": "x"}}, "'group.id', which is not for users to set: it is the group of App"),
    ]
    for wrong, sentence in refused:
        with pytest.raises(ConfigurationError) as raised:
            Share(**wrong)
        assert sentence in str(raised.value)


def test_an_order_and_offsets_in_a_database_are_refused_and_rows_are_not() -> None:
    for order in ("key", "partition"):
        app = an_app(Share(), order=order, in_place=RetryInPlace(3))
        assert f"agent 'bill' has order='{order}', and Share hands out records of one partition to all workers at once" in refusals(app)
    assert "a share group has no offsets" in refusals(an_app(Share(), Transactional("sqlite:///x.db", mode="offsets")))
    assert refusals(an_app(Share(), Transactional("sqlite:///x.db"))) == ""


def test_a_loop_of_the_users_own_refuses_it() -> None:
    consumer: Any = object()
    with pytest.raises(ConfigurationError, match="the consumer of reliable is the member of an ordinary group"):
        reliable(consumer, "orders", Share())


def test_explain_says_who_gets_what_and_what_becomes_of_failures() -> None:
    explanation = an_app(Share(consumers=2, lock="20s"), Dedup("sqlite:///claims.db")).explain()
    chain = {link.what: link.how for link in explanation.chain}
    assert chain["share group billing.share"] == "any worker gets any record, locked for 20s; 2 consumers here"
    settings = {setting.name: (setting.value, setting.source) for setting in explanation.settings}
    assert settings["share.lock"] == ("20s", "code")
    assert any("has not started 15s after it was locked" in path.when for path in explanation.failures)
    assert settings["share.consumers"] == ("2", "code")
    paths = {path.when: path.then for path in explanation.failures}
    assert paths["another worker holds the claim"].startswith("copied to the retry topic, no attempt is charged")
    assert paths["the store is down before the handler runs"].startswith("copied to the retry topic, no attempt is charged")
    lost = next(then for when, then in paths.items() if "each of the broker's deliveries" in when)
    assert lost == "lost: the broker gives it up"
    assert not any("revoke_timeout" in when for when in paths)
    assert any("experimental" in warning for warning in explanation.warnings)
    without = an_app(Dedup("sqlite:///claims.db")).explain()
    assert not any("share" in setting.name for setting in without.settings)
    assert any("revoke_timeout" in path.when for path in without.failures)


def test_it_may_be_switched_on_outside_of_the_code_and_doctor_asks_for_its_client() -> None:
    share = Slots(Config({("share", "consumers"): Given(3, "ackwise.toml")})).share
    assert share == Share(3)
    assert needs(None, None, share) == {"share": "Share of this app is its client"}


@pytest.mark.kafka
async def test_doctor_compares_the_settings_of_the_share_group(kafka: Any) -> None:
    from ackwise.plugin.modes.shareclient import ensure_share_group
    from ackwise.plugin.operate.brokerchecks import share_group
    from ackwise.plugin.settings.hostsettings import HostSettings

    settings, share = HostSettings(kafka.bootstrap, "examined"), Share(lock=20.0)
    found = await share_group(settings, share)
    assert (found.verdict, "share.isolation.level is read_uncommitted" in found.found) == ("warning", True)
    await ensure_share_group(settings, share)
    assert (await share_group(settings, share)).verdict == "ok"
    assert (await read_share_group(settings, share))["share.record.lock.duration.ms"] == "20000"
