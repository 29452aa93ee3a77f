"""The page in a real browser: nothing of it sticks out, on a telephone as on a desk. Needs Chromium, and nothing of Spark."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.spark.report.reports import REPORTS

from ackwise.spark.report.page.render import render

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # a browser

WIDTHS = (320, 390, 1280)
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
#: The page may run no script, so one beside it measures it: the width of each frame, and the width of what is in it.
MEASURE = """<script>onload = () => {
  measured.textContent = [...document.querySelectorAll("iframe")].map(
    frame => [frame.title, frame.contentWindow.innerWidth, frame.contentDocument.documentElement.scrollWidth,
              frame.contentDocument.querySelectorAll("h1").length].join(" ")).join("\\n")
}</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    """The executable. CI installs no browser, so there this is skipped as well."""
    found = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    return found


def measured(chromium: str, pages: Mapping[str, str], width: int, folder: Path) -> dict[str, tuple[int, int, int]]:
    """Of each page: the width that it has, the width that it takes, and how many headings were drawn."""
    frames = "".join(
        f'<iframe title="{name}" style="border:0;width:{width}px;height:900px" srcdoc="{html.escape(page)}"></iframe>'
        for name, page in pages.items()
    )
    sheet = folder / f"at-{width}.html"
    sheet.write_text(f"<!doctype html><body>{frames}<pre id=measured></pre>{MEASURE}", "utf-8")
    command = [chromium, *QUIET, f"--user-data-dir={folder / 'profile'}", "--dump-dom", sheet.as_uri()]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="measured">(.*?)</pre>', answer.stdout, re.DOTALL)
    assert found is not None, answer.stdout[-2000:]
    return {name: (int(has), int(takes), int(drawn)) for name, has, takes, drawn in map(str.split, found[1].splitlines())}


def test_no_page_is_wider_than_its_window(chromium: str, tmp_path: Path) -> None:
    pages = {name: render(report) for name, report in REPORTS.items()}
    for width in WIDTHS:
        found = measured(chromium, pages, width, tmp_path)
        assert found.keys() == pages.keys()
        for name, (has, takes, drawn) in found.items():
            assert (has, drawn) == (width, 1), name
            assert takes <= width, name
    wide = pages["clean"].replace("<h1>", '<h1 style="width:700px">')
    ((_, takes, _),) = measured(chromium, {"wide": wide}, 400, tmp_path).values()
    assert takes > 400
