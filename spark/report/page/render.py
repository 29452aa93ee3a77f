"""The page's markup, complete in itself: without scripts, fonts or pictures from elsewhere."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from ackwise.spark.report.page.data import ReportData

__all__ = ["render"]


def render(data: ReportData) -> str:
    """Return the page as HTML. All names in it are escaped; the same data gives the same page."""
    return _environment().get_template("report.html").render(data=data)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ackwise.spark.report.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"grouped": _grouped, "percent": _percent, "words": _words}
    return environment


def _grouped(number: int) -> str:
    return f"{number:,}"


def _words(name: str) -> str:
    return name.replace("_", " ").lower()


def _percent(share: float) -> str:
    """Return a share from 0 to 1 as a percentage. Only exactly 0 and 1 become 0 % and 100 %."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    if 0.999 < share < 1:
        return "> 99.9 %"
    return f"{100 * share:.1f}".removesuffix(".0") + " %"
