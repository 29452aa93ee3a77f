"""The pages of a group on a Kafka in memory: they say what the commands say, with the command that acts on it, whatever is in a letter."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.plugin.operate.deadletters.letters import APP, Shop, failure, letter
from tests.plugin.web.site.site import Document, group_pages, hostile_letters, opened
from typer.testing import CliRunner

from ackwise.middleware.log import plain
from ackwise.plugin.cli.deadletteroptions import Where
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.operate.deadlettertopics import Place, place_of_group
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.web.lastseen import Seen
from ackwise.plugin.web.pages import Named, Page

#: What our own markup is made of.
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "nav", "main", "section", "h1", "h2", "p", "a", "ul", "li", "span"),
    *("strong", "code", "pre", "dl", "dt", "dd", "div", "table", "caption", "thead", "tbody", "tr", "th", "td"),
}  # fmt: skip


def pages_of(shop: Shop) -> list[Page]:
    """With the app named."""
    return group_pages(Where().place(shop.app), Named(shop.app))


def a_group(brokers: str) -> Place:
    return place_of_group(HostSettings(brokers, "billing"))


async def printed(*arguments: str) -> str:
    """What a command prints."""
    runner = CliRunner(env={"COLUMNS": "4000"})
    return (await asyncio.to_thread(runner.invoke, new_app(), list(arguments), prog_name="ackwise")).stdout


async def test_the_first_page_says_what_status_says_and_beside_each_finding_what_to_call(shop: Shop) -> None:
    shop.bury(letter())
    shop.kafka.produce("orders", b"x")
    shop.kafka.create_topic("billing.delay", 14)
    shop.kafka.produce("billing.delay", b"x", partition=10)
    async with opened(pages_of(shop)) as site:
        page = await site.page("/")
    said = (await printed("status", shop.app)).splitlines()
    findings = [line.removeprefix("! ") for line in said if line.startswith("! ")]
    assert len(findings) == 3
    headline = said[0].partition(", the oldest")[0]  # both look at a time of their own
    assert [sentence for sentence in (headline, *findings, said[-1]) if sentence not in page.text] == []
    assert "orders/0nobody-10" in page.text  # the row of the partition
    assert "5s1" in page.text
    assert page.commands == [
        f"ackwise run {shop.app}",
        f"ackwise relay {shop.app}",
        f"ackwise dlq list {shop.app}",
        f"ackwise status {shop.app}",
    ]
    assert "/letters" in page.links


async def test_a_group_that_was_named_with_its_brokers_is_named_so_in_each_command(shop: Shop) -> None:
    shop.bury(letter())
    named = Named("billing", brokers=shop.kafka.bootstrap)
    async with opened(group_pages(a_group(shop.kafka.bootstrap), named)) as site:
        page, letters = await site.page("/"), await site.page("/letters")
    assert f"ackwise dlq list billing --brokers {shop.kafka.bootstrap}" in page.commands
    assert "ackwise run MODULE:APP" in page.commands  # only an app can be run, or send letters again
    assert letters.commands[0].startswith("ackwise dlq redrive MODULE:APP --cause ")


async def test_letters_are_listed_by_their_causes_as_dlq_list_does_and_each_cause_has_its_redrive(shop: Shop) -> None:
    shop.bury(*(letter(offset) for offset in range(3)), letter(9, why=failure("TimeoutError", "charge", 7)), timestamp=1.0)
    async with opened(pages_of(shop)) as site:
        page = await site.page("/letters")
        found = json.loads(await printed("dlq", "list", shop.app, "--json"))
        one = await site.page(f"/letters?cause={found['causes'][1]['cause']}")
        await site.get("/letters?cause=../etc", 404)
    causes = [each["cause"] for each in found["causes"]]
    assert page.commands == [*(f"ackwise dlq redrive {shop.app} --cause {cause}" for cause in causes), f"ackwise dlq list {shop.app}"]
    assert [each for each in ("TimeoutError shop/billing.py:charge", "4 open in billing.dlq", *causes) if each not in page.text] == []
    assert {f"/letters?cause={causes[0]}", "/letter?id=0/0", "/letter?id=0/3"} <= set(page.links)
    assert "/letter?id=0/3" in one.links
    assert "/letter?id=0/0" not in one.links


async def test_a_record_that_nobody_wrote_as_a_letter_is_said_and_can_not_be_sent_again(shop: Shop) -> None:
    shop.kafka.produce("billing.dlq", b"anything", partition=0)
    async with opened(pages_of(shop)) as site:
        page, one = await site.page("/letters"), await site.page("/letter?id=0/0")
    assert "1 records were not written by this group" in page.text
    assert not [each for each in (*page.commands, *one.commands) if "redrive" in each]


async def test_a_letter_is_shown_as_dlq_show_does_with_its_value_as_model_and_the_commands_that_act_on_it(shop: Shop) -> None:
    shop.bury(letter(3))
    async with opened(pages_of(shop)) as site:
        page = await site.page("/letter?id=0/0")
        for nonsense in ("/letter", "/letter?id=", "/letter?id=0", "/letter?id=0/-1", "/letter?id=%2e%2e/1", "/letter?id=0/" + "9" * 40):
            assert "the id of a dead letter is missing" in await site.get(nonsense, 404)
    facts = json.loads(await printed("dlq", "show", shop.app, "0/0", "--json"))
    for name in ("reason", "error", "place", "handler", "message", "key", "message_text", "line", "value", "decoded"):
        assert facts[name] in page.text, name
    assert "Order(id='a', amount=1)" in page.text
    assert page.commands == [
        "ackwise why orders/0/3 EVENTS",
        f"ackwise dlq redrive {shop.app} 0/0",
        f"ackwise dlq drop {shop.app} 0/0",
        f"ackwise dlq show {shop.app} 0/0",
    ]
    assert "/story?message=orders%2F0%2F3" in page.links


async def test_a_letter_that_is_not_there_is_a_sentence(shop: Shop) -> None:
    async with opened(pages_of(shop)) as site:
        page = await site.page("/letter?id=0/7")
    assert "there is no dead letter 0/7 in 'billing.dlq'" in page.text
    assert page.commands == []


async def test_a_letter_that_was_dropped_is_sent_again_with_again(shop: Shop) -> None:
    shop.bury(letter())
    await shop.run("drop", shop.app, "0/0", "--yes")
    async with opened(pages_of(shop)) as site:
        page = await site.page("/letter?id=0/0")
    assert f"ackwise dlq redrive {shop.app} 0/0 --again" in page.commands


async def test_what_has_expired_is_sent_again_with_expired(shop: Shop) -> None:
    shop.bury(letter(reason="expired"))
    async with opened(pages_of(shop)) as site:
        page, letters = await site.page("/letter?id=0/0"), await site.page("/letters")
    assert f"ackwise dlq redrive {shop.app} 0/0 --expired" in page.commands
    assert [command.endswith(" --expired") for command in letters.commands if "redrive" in command] == [True]


async def test_a_model_that_can_not_be_shown_is_said(shop: Shop) -> None:
    shop.write_app(APP.replace("    amount: int\n", "    amount: int\n\n    def __repr__(self):\n        raise RuntimeError\n"))
    shop.bury(letter())
    async with opened(pages_of(shop)) as site:
        page = await site.page("/letter?id=0/0")
    assert "not shown: RuntimeError in the __repr__ of Order" in page.text


async def everything(shop: Shop) -> list[tuple[str, str]]:
    """Each page of a group with hostile letters, and its markup."""
    shop.bury(*hostile_letters())
    paths = "/", "/letters", "/letter?id=0/0", "/letter?id=0/1", "/letter?id=0/2"
    async with opened(pages_of(shop)) as site:
        return [(path, await site.get(path)) for path in paths]


async def test_nothing_of_a_letter_becomes_markup_turns_a_line_around_or_is_of_any_size(shop: Shop) -> None:
    for path, markup in await everything(shop):
        page = Document(markup)
        assert set(page.tags) <= TAGS, path
        assert page.handlers == [], path
        assert all(link.startswith("/") and not link.startswith("//") for link in page.links), path
        assert plain(markup.replace("\n", ""), 10**7) == markup.replace("\n", ""), path  # nothing that does not print
        assert len(markup) < 2_000_000, path


async def test_what_is_hostile_is_shown_spelled_out_so_that_it_can_be_seen(shop: Shop) -> None:
    shown = dict(await everything(shop))
    page = Document(shown["/letter?id=0/0"])
    assert page.text.count("<script>alert(1)</script><img src=x onerror=alert(2)>\"'&;$(reboot)`\\x1b[31m\\x00\\n\\u202eevil") >= 8
    assert page.commands[0].startswith("ackwise why '<script>")  # in the quotes of a shell
    assert "and 50 more" in Document(shown["/letter?id=0/1"]).text


async def test_brokers_that_are_away_are_a_sentence_on_each_page() -> None:
    async with opened(group_pages(a_group("127.0.0.1:1"))) as site:
        for path in ("/", "/letters", "/letter?id=0/0"):
            page = await site.page(path)
            assert "127.0.0.1:1: connection refused); start Kafka there" in page.text


async def test_what_was_seen_before_the_brokers_went_away_is_still_shown(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seen, "_is_fresh", lambda self: False)
    shop.bury(letter())
    place = a_group(shop.kafka.bootstrap)
    async with opened(group_pages(place)) as site:
        before = await site.page("/")
        await shop.kafka.stop()
        after = await site.page("/")
    assert "connection refused" in after.text
    assert "The following is the last known status." in after.text
    assert [each for each in before.commands if each not in after.commands] == []
