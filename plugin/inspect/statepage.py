"""State page: the state of a worker as tables alone, without scripts and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from typing import Any, Final

from ackwise.plugin.inspect.state import AgentState, LaneState, State

__all__ = ["state_page"]

_STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
section { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 0 1.5rem; }
caption { font-weight: 600; padding: .3rem 0; text-align: left; }
th, td { border-bottom: 1px solid #8886; padding: .25rem 1.5rem .25rem 0; text-align: left; vertical-align: top; }
""".strip()

_Cell = str | int | float | bool | None


def state_page(state: State) -> str:
    """`state` as an HTML document."""
    tables = [
        _table("Worker", ("what", "now"), _worker(state)),
        _table(
            "Agents",
            ("agent", "topics", "in hand", "waiting", "taken", "held", "undeduplicated", "unprotected", "out of order"),
            [_agent(one) for one in state.agents],
        ),
        _table(
            "Partitions",
            (
                *("topic", "partition", "agent", "position", "committed", "watermark", "end", "lag", "in hand", "running", "held"),
                *("unreadable", "stalled"),
            ),
            [_partition(lane) for lane in state.lanes],
        ),
        _table(
            "Held",
            ("topic", "partition", "agent", "from offset", "messages", "why", "again in, s"),
            [
                (lane.topic, lane.partition, lane.agent, held.offset, held.messages, held.why, held.again_in)
                for lane in state.lanes
                for held in lane.held
            ],
        ),
        _table("Topics of the group", ("topic", "what is in it"), _topics(state)),
        _table("What a message passes", ("phase", "step", "how"), [(step.phase, step.what, step.how) for step in state.chain]),
        _table("Settings", ("setting", "value", "from"), [(one.name, one.value, one.source) for one in state.settings]),
    ]
    title = f"Ackwise: {escape(state.group)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        + "\n".join(tables)
        + "\n</main>\n</body>\n</html>\n"
    )


def _worker(state: State) -> list[tuple[_Cell, ...]]:
    return [
        ("claims held", "no store" if state.claims is None else state.claims),
        ("store", "no store" if state.store_down is None else "does not answer" if state.store_down else "answers"),
        ("outage of the event log", "yes, nothing is begun" if state.event_log_outage else "no"),
        ("delays that were cut to max_delay", state.cut_delays),
        *(
            (f"share group: {name.replace('_', ' ')}", number)
            for name, number in ({} if state.share is None else asdict(state.share)).items()
        ),
        *(() if state.outbox is None else _outbox(asdict(state.outbox))),
    ]


def _agent(one: AgentState) -> tuple[_Cell, ...]:
    return (
        one.agent, ", ".join(one.topics), one.in_hand, one.waiting, one.taken, one.held, one.undeduplicated, one.unprotected,
        one.out_of_order,
    )  # fmt: skip


def _outbox(facts: dict[str, Any]) -> list[tuple[_Cell, ...]]:
    checks = {f"checks {name}": number for name, number in facts.pop("checks").items()}
    return [(f"outbox: {name.replace('_', ' ')}", value) for name, value in (facts | checks).items()]


def _partition(lane: LaneState) -> tuple[_Cell, ...]:
    return (
        lane.topic, lane.partition, lane.agent, lane.position, lane.committed, lane.watermark, lane.end, lane.lag, lane.in_hand,
        lane.running, sum(held.messages for held in lane.held), lane.unreadable, lane.stalled,
    )  # fmt: skip


def _topics(state: State) -> list[tuple[_Cell, ...]]:
    return [
        (state.topics.retry, "copies that are due"),
        (state.topics.delay, "copies that wait, and cancellations"),
        (state.topics.dead_letters, "dead letters"),
    ]


def _table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[_Cell]]) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    none = f'<tr><td colspan="{len(columns)}">none</td></tr>'
    return (
        f'<section aria-label="{escape(caption)}" tabindex="0">\n<table>\n<caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body or none}\n</tbody>\n</table>\n</section>"
    )


def _cell(value: _Cell) -> str:
    return f"<td>{'–' if value is None else escape(str(value))}</td>"
