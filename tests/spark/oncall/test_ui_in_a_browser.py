"""The pages of `ackwise ui` in a real browser: none is wider than its window, none runs a script, and each has its style."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.plugin.operate.deadletters.letters import Shop
from tests.plugin.web.site.site import Site, group_pages, opened
from tests.spark.report.page.test_page_in_a_browser import QUIET, chromium, measured

from ackwise.plugin.cli.deadletteroptions import Where
from ackwise.plugin.web import pages as render
from ackwise.plugin.web.pages import Named
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.oncall.auditspage import audits_page, runs_seen
from ackwise.spark.oncall.storypage import story_page

__all__ = ["chromium"]

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # a browser

PATHS = {
    "status": "/", "letters": "/letters", "hostile": "/letter?id=1/0", "large": "/letter?id=1/1", "story": "/story?message=orders/0/3",
    "audits": "/audits", "none": "/nowhere",
}  # fmt: skip


@pytest.fixture
async def site(billing: Shop) -> AsyncIterator[Site]:
    """All pages, with hostile letters."""
    events = billing.folder / "events"
    named = Named(billing.app, events=(str(events),))
    pages = group_pages(Where().place(billing.app), named)
    pages += [story_page([events], ReconcileConfig(), named), audits_page(runs_seen(events / "runs"), events / "runs", named)]
    async with opened(pages) as found:
        yield found


async def markup_of(site: Site) -> dict[str, str]:
    found = {}
    for name, path in PATHS.items():
        async with site.client.get(path) as answer:
            found[name] = await answer.text()
    return found


async def test_no_page_is_wider_than_its_window(chromium: str, site: Site, tmp_path: Path) -> None:
    pages = await markup_of(site)
    for width in (390, 1280):
        found = await asyncio.to_thread(measured, chromium, pages, width, tmp_path)
        assert found.keys() == pages.keys()
        for name, (has, takes, drawn) in found.items():
            assert (has, drawn) == (width, 1), name
            assert takes <= width, name


async def looked_at(chromium: str, site: Site, path: str, folder: Path) -> tuple[str, str]:
    """What the browser made of a page, and what it has against it."""
    command = [
        chromium, *QUIET, "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--dump-dom", str(site.client.make_url(path)),
    ]  # fmt: skip
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


async def test_the_policy_lets_the_style_of_the_page_through_and_no_other_one(
    chromium: str, site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path in ("/letter?id=1/0", "/story?message=orders/0/3"):
        markup, objections = await looked_at(chromium, site, path, tmp_path)
        assert "<h1>" in markup
        assert "<script" not in markup
        assert "<img" not in markup
        assert objections == "", path
    monkeypatch.setattr(render, "_STYLE", "h1 { width: 900px }")
    _, objections = await looked_at(chromium, site, "/", tmp_path)
    assert "Content Security Policy" in objections
