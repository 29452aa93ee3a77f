"""The page of stories: what `ackwise why` prints, of hostile events as well, and a sentence where it can't tell. Starts no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.plugin.web.site.site import HOSTILE, Document, Site, opened
from tests.spark.commands.test_why import asked, night
from tests.spark.histories import NOW, SECOND, History
from tests.spark.reconciling import root_of

from ackwise.middleware.log import plain
from ackwise.plugin.web.pages import Named
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.oncall.storypage import story_page


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return root_of(tmp_path / "root", night("billing"))


async def ask(site: Site, message: str) -> Document:
    async with site.client.get("/story", params={"message": message}) as answer:
        return Document(await answer.text())


async def test_a_story_says_what_why_says_and_has_the_command_that_says_it(root: Path) -> None:
    named = Named("billing", events=(str(root),))
    async with opened([story_page([root], ReconcileConfig(), named)]) as site:
        page = await ask(site, "orders/0/3")
    said = asked("orders/0/3", root).stdout.splitlines()
    sentences = [line for line in said if line and not line.startswith(("time (UTC)", "20"))]
    assert len(sentences) > 4
    assert [sentence for sentence in sentences if sentence.strip() not in page.text] == []
    assert "committed orders/0 to 6, which passes 3" in page.text
    assert page.commands == [f"ackwise why orders/0/3 {root}"]


async def test_a_dead_message_has_the_command_that_lists_the_letters_of_its_handler(tmp_path: Path) -> None:
    history = History("billing").assign("w1", 0, at=NOW - 100 * SECOND, from_commit=False)
    history.say("w1", "RECEIVED_RANGE[0,1) 0:CFX", ago=90, error="KeyError")
    root = root_of(tmp_path / "root", history)
    async with opened([story_page([root], ReconcileConfig(), Named("shop:app"))]) as site:
        page = await ask(site, "orders/0/0")
    assert "ackwise dlq list shop:app --letters --handler bill" in page.commands


async def test_other_records_of_its_key_lead_to_their_stories(root: Path) -> None:
    async with opened([story_page([root], ReconcileConfig(), Named("billing"))]) as site:
        page = await ask(site, "orders/0/0")
    assert "/story?message=orders%2F0%2F5" in page.links


async def test_what_nobody_knows_is_a_sentence(root: Path, tmp_path: Path) -> None:
    async with opened([story_page([root], ReconcileConfig(), Named("billing"))]) as site:
        assert "no event is about a record" in (await ask(site, "nobody")).text
        page = await ask(site, HOSTILE)
        assert "no event is about a record" in page.text
        assert "script" not in page.tags
        assert "Key or message id" in (await site.page("/story")).text
        assert (await site.page("/story?message=%20")).commands == []
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "none"):
        async with opened([story_page([folder], ReconcileConfig(), Named("billing"))]) as site:
            assert str(folder) in (await ask(site, "orders/0/0")).text
    async with opened([story_page([], ReconcileConfig(), Named("billing"))]) as site:
        assert "no folder of events is known, so there is no story to show" in (await ask(site, "orders/0/0")).text


async def test_hostile_events_become_no_markup(tmp_path: Path) -> None:
    history = History(HOSTILE).assign("w1", 0, at=NOW - 100 * SECOND, from_commit=False)
    history.start("w1", at=NOW - 101 * SECOND, host=HOSTILE, pid=7)
    history.say("w1", "RECEIVED_RANGE[0,1) 0:CF", ago=90, error=HOSTILE, key="k")
    root = root_of(tmp_path / "root", history)
    async with opened([story_page([root], ReconcileConfig(), Named("billing"))]) as site:
        markup = await site.get("/story?message=orders/0/0")
    page = Document(markup)
    assert page.text.count("<script>alert(1)</script>") >= 3
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert page.handlers == []
    assert plain(markup.replace("\n", ""), 10**7) == markup.replace("\n", "")
