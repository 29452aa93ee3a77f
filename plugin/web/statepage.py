"""The state page: the state of a worker as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ackwise.plugin.operate.explanation import tables_of
from ackwise.plugin.operate.state import LaneState, State
from ackwise.plugin.operate.table import Table, Value
from ackwise.plugin.web.pages import document


def state_page(state: State) -> str:
    """Render `state` as an HTML document."""
    return document("state.html", group=state.group, title=f"Ackwise: {state.group}", pages=(), path="", tables=list(_tables(state)))


def _tables(state: State) -> Iterator[Table]:
    yield Table("Worker", ("what", "now"), list(_worker(state)))
    columns: tuple[str, ...]
    columns = "agent", "topics", "in hand", "waiting", "taken", "held", "undeduplicated", "unprotected", "out of order"
    agents = [{**asdict(one), "topics": ", ".join(one.topics)} for one in state.agents]
    yield Table("Agents", columns, [[one[name.replace(" ", "_")] for name in columns] for one in agents])
    columns = (
        *("topic", "partition", "agent", "position", "committed", "watermark", "end", "lag", "lag seconds", "in hand", "running", "held"),
        "unreadable",
    )
    yield Table("Partitions", columns, [_partition(lane, columns) for lane in state.lanes])
    held = [(lane, held) for lane in state.lanes for held in lane.held]
    yield Table(
        "Held",
        ("topic", "partition", "agent", "from offset", "messages", "why", "again in, s"),
        [(lane.topic, lane.partition, lane.agent, of.offset, of.messages, of.why, of.again_in) for lane, of in held],
    )
    own = (
        (state.topics.retry, "copies that are due"),
        (state.topics.delay, "copies that wait, and cancellations"),
        (state.topics.dead_letters, "dead letters"),
    )
    yield Table("Topics of the group", ("topic", "content"), own)
    yield from tables_of(state.chain, state.settings)


def _worker(state: State) -> Iterator[tuple[str, Value]]:
    yield "claims held", "no store" if state.claims is None else state.claims
    yield "store", "no store" if state.store_down is None else "does not answer" if state.store_down else "answers"
    yield "outage of the event log", "yes, no message starts" if state.event_log_outage else "no"
    yield "delays that were cut to max_delay", state.cut_delays
    for what, facts in (("share group", state.share), ("outbox", state.outbox)):
        for name, value in _flat({} if facts is None else asdict(facts)):
            yield f"{what}: {name}", value


def _flat(facts: dict[str, Any]) -> Iterator[tuple[str, Value]]:
    for name, value in facts.items():
        yield from (
            ((f"{name} {inner}", number) for inner, number in value.items())
            if isinstance(value, dict)
            else ((name.replace("_", " "), value),)
        )


def _partition(lane: LaneState, columns: tuple[str, ...]) -> list[Value]:
    facts = asdict(lane) | {"held": sum(held.messages for held in lane.held)}
    return [facts[name.replace(" ", "_")] for name in columns]
