"""The page's markup, complete in itself: without scripts, fonts or pictures from elsewhere.

The templates read the report itself. What is more than a value of it comes from the functions in `_SECTIONS`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from ackwise.spark.report.page import sentences, tables
from ackwise.spark.report.page.answers import headline, loss, repeat, waiting
from ackwise.spark.report.page.charts import exports_lanes, late_sentence, timeline_lanes
from ackwise.spark.report.page.history import runs, runs_lanes
from ackwise.spark.report.page.latency import latency_curves, latency_sentence
from ackwise.spark.report.page.matrices import failures_matrix, verdicts_matrix
from ackwise.spark.report.page.strips import strips_drawn
from ackwise.spark.report.report import RunReport
from ackwise.spark.report.todo import todo
from ackwise.spark.report.tone import tone_of_finding

__all__ = ["render"]

_SECTIONS: Final = {name: getattr(module, name) for module in (sentences, tables) for name in module.__all__} | {
    function.__name__: function
    for function in (
        *(headline, loss, repeat, todo, waiting, tone_of_finding, verdicts_matrix, failures_matrix, strips_drawn),
        *(timeline_lanes, exports_lanes, runs, runs_lanes, late_sentence, latency_curves, latency_sentence),
    )
}


def render(report: RunReport) -> str:
    """Return the page as HTML. All names in it are escaped; the same report gives the same page."""
    return _environment().get_template("report.html").render(report=report)


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
    environment.filters["grouped"] = "{:,}".format
    sections: dict[str, Any] = _SECTIONS
    environment.globals |= sections
    return environment
