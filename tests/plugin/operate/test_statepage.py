"""The page of a worker's state: whole tables, names as text, and nothing that a browser would have to fetch or run."""

from __future__ import annotations

from html.parser import HTMLParser

from tests.tables import each

from ackwise.plugin.operate.explanation import ChainLink, Setting
from ackwise.plugin.operate.state import AgentState, GroupTopics, HeldMessages, LaneState, State
from ackwise.plugin.web.statepage import state_page

STATE = State(
    group="billing",
    agents=(AgentState("bill", ("orders",), 7, 1, 2, 4, 5, 6),),
    lanes=(LaneState("orders", 3, "source", "bill", 120, None, 101, 130, 29, 7, 3, (HeldMessages("<b>no</b> answer", 4, 113, 2.5),)),),
    claims=3,
    store_down=True,
    event_log_outage=False,
    cut_delays=0,
    topics=GroupTopics("billing.retry", "billing.delay", "billing.dlq"),
    chain=(ChainLink("admit", "dedup", "redis://***@host/0"),),
    settings=(Setting("dedup.lease", "30s", "default"),),
)


class Page(HTMLParser):
    """The tables of a page, as rows of texts by caption, and the names of all its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.tables: dict[str, list[list[str]]] = {}
        self.scopes: list[str | None] = []
        self._caption = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.tables[self._caption].append([])
        elif tag in ("td", "th"):
            self.tables[self._caption][-1].append("")
        if tag == "th":
            self.scopes.append(dict(attrs).get("scope"))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "caption" and data.strip():
            self._caption = data
            self.tables[data] = []
        elif self.tags and self.tags[-1] in ("td", "th") and data.strip():
            self.tables[self._caption][-1][-1] += data


def test_each_table_has_a_caption_and_headers_and_rows_as_wide_as_these() -> None:
    page = Page(state_page(STATE))
    assert [len(page.tables), page.tags.count("table"), page.tags.count("caption")] == [7, 7, 7]
    assert {caption: {len(row) for row in rows} for caption, rows in page.tables.items()} == {
        caption: {len(rows[0])} for caption, rows in page.tables.items()
    }
    assert set(page.scopes) == {"col"}


def test_a_partition_is_shown_with_its_offsets_and_what_is_unknown_is_left_open() -> None:
    headers, row = Page(state_page(STATE)).tables["Partitions"]
    shown = dict(zip(headers, row, strict=True))
    assert shown == {
        "topic": "orders", "partition": "3", "agent": "bill", "position": "120", "committed": "–", "watermark": "101", "end": "130",
        "lag": "29", "lag seconds": "–", "in hand": "7", "running": "3", "held": "4", "unreadable": "–",
    }  # fmt: skip


@each(
    ("table", "row"),
    [
        ("Worker", ["claims held", "3"]),
        ("Worker", ["store", "does not answer"]),
        ("Worker", ["outage of the event log", "no"]),
        ("Agents", ["bill", "orders", "7", "1", "2", "4", "5", "6", "0"]),
        ("Held", ["orders", "3", "bill", "113", "4", "<b>no</b> answer", "2.5"]),
        ("Topics of the group", ["billing.delay", "copies that wait, and cancellations"]),
        ("What a message passes", ["admit", "dedup", "redis://***@host/0"]),
        ("Settings", ["dedup.lease", "30s", "default"]),
    ],
)
def test_the_page_says_what_the_state_says(table: str, row: list[str]) -> None:
    assert row in Page(state_page(STATE)).tables[table]


def test_names_are_text_and_nothing_is_run_or_fetched() -> None:
    page = Page(state_page(STATE))
    assert {"script", "link", "img", "iframe", "b"}.isdisjoint(page.tags)
    assert {"src", "href", "onclick"}.isdisjoint(page.attributes)
