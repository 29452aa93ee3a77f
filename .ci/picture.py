"""Draws docs/images/report.svg from the output of a real run of `ackwise reconcile`.

    python3 .ci/picture.py FOLDER [PICTURE]

FOLDER has the `report.html` and `summary.json` of the run. The answers are the page's own sentences, the numbers those of the summary.
"""

import json
import re
import sys
import textwrap
from html import escape, unescape
from pathlib import Path

WIDTH = 960
FONT = "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\""
COLOURS = {"good": "#059669", "bad": "#dc2626", "doubt": "#d97706"}
RED = {
    "MULTI_EXECUTED", "PHANTOM_SUPPRESSED", "RETRY_LOST", "RETENTION_LOSS", "STUCK", "LOST", "LOST_PRODUCED", "NEVER_SEEN",
}  # fmt: skip


def plain(html: str) -> str:
    """Return the text of `html` without tags."""
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


def line(x: float, y: float, words: str, *, size: float = 12, fill: str = "#0f172a", weight: int = 400, anchor: str = "start") -> str:
    """Return one line of text."""
    style = f'font-size="{size:g}" fill="{fill}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'  <text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'


def answers(page: str, y: float) -> tuple[list[str], float]:
    """Return the cards of the page's first questions, and where they end."""
    asked = re.findall(r'<section class="(\w+)">\s*<h2>(.*?)</h2>\s*(.*?)</section>', page.partition('<section class="do">')[0], re.DOTALL)
    wide = (WIDTH - 48 - 16 * (len(asked) - 1)) / len(asked)
    cards = [
        (kind, plain(question), [plain(said) for said in re.findall(r"<p[^>]*>(.*?)</p>", rest, re.DOTALL)])
        for kind, question, rest in asked
    ]
    wrapped = [[part for said in words[1:] for part in textwrap.wrap(said, int(wide / 6.4))] for _, _, words in cards]
    high = 72 + 17 * max(map(len, wrapped))
    drawn = []
    for number, ((kind, question, words), parts) in enumerate(zip(cards, wrapped, strict=True)):
        x, colour = 24 + number * (wide + 16), COLOURS.get(kind, "#475569")
        drawn.append(f'  <rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high}" rx="6" fill="#f8fafc" stroke="{colour}"/>')
        drawn += [line(x + 14, y + 24, question, fill="#475569"), line(x + 14, y + 46, words[0], size=17, fill=colour, weight=700)]
        drawn += [line(x + 14, y + 66 + 17 * row, part) for row, part in enumerate(parts)]
    return drawn, y + high


def verdicts(counts: dict[str, int], y: float) -> tuple[list[str], float]:
    """Return a bar for each verdict, and where they end."""
    drawn, most = [line(24, y, "Verdicts", size=14, weight=600)], max(counts.values())
    for row, (verdict, count) in enumerate(counts.items()):
        top, colour = y + 14 + 24 * row, COLOURS["bad"] if verdict in RED else "#6366f1"
        drawn.append(line(24, top + 13, verdict))
        drawn.append(f'  <rect x="230" y="{top + 2:g}" width="{max(2, 560 * count / most):.0f}" height="14" rx="2" fill="{colour}"/>')
        drawn.append(line(WIDTH - 24, top + 13, f"{count:,} messages", anchor="end"))
    return drawn, y + 14 + 24 * len(counts)


def accounts(rows: list[dict[str, int | str]], y: float) -> tuple[list[str], float]:
    """Return the table of the partitions, and where it ends."""
    drawn = [line(24, y, "Accounts: each offset of a partition has exactly one verdict", size=14, weight=600)]
    places = {"from": 480, "before": 600, "offsets": 720, "gaps": 820, "difference": WIDTH - 24}
    drawn.append(line(24, y + 22, "partition", fill="#475569"))
    drawn += [line(x, y + 22, name, fill="#475569", anchor="end") for name, x in places.items()]
    for number, row in enumerate(rows):
        below = y + 42 + 20 * number
        drawn.append(line(24, below, f"{row['topic']}/{row['partition']}"))
        shown = zip(places.values(), ("start", "committed", "offsets", "gaps", "balance"), strict=True)
        drawn += [line(x, below, f"{row[name]:,}", anchor="end") for x, name in shown]
    return drawn, y + 42 + 20 * len(rows)


def picture(folder: Path) -> str:
    """Return the picture of the run in `folder`."""
    page, summary = (folder / "report.html").read_text("utf-8"), json.loads((folder / "summary.json").read_text("utf-8"))
    title = plain(page.partition("<h1>")[2].partition("</h1>")[0])
    subject = plain(page.partition('<p class="subject">')[2].partition("</p>")[0])
    drawn = [line(24, 40, title, size=18, weight=700), line(24, 62, f"{subject} · exit code {summary['exit_code']}", fill="#475569")]
    below = 82.0
    for part in (answers, verdicts, accounts):
        more, below = part(page if part is answers else summary[part.__name__], below)
        drawn, below = drawn + more, below + 34
    high = below - 18
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high:g}" width="{WIDTH}" height="{high:g}" role="img" {FONT}>'
    frame = f'  <rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{high - 1:g}" rx="8" fill="#ffffff" stroke="#cbd5e1"/>'
    return "\n".join([head, f"  <title>{escape(title)}</title>", frame, *drawn, "</svg>\n"])


if __name__ == "__main__":
    target = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/images/report.svg")
    target.write_text(picture(Path(sys.argv[1])), "utf-8")
