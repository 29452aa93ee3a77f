"""`ackwise topics check` and `create`: the topics that a group needs, as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ackwise.middleware.duration import format_duration
from ackwise.middleware.errors import AckwiseError
from ackwise.plugin.cli.console import shown, to_stdout
from ackwise.plugin.cli.target import Target, find_app
from ackwise.plugin.cli.waiting import wait_for
from ackwise.plugin.pages.table import Cell, Table

if TYPE_CHECKING:
    from aiokafka import TopicPartition

    from ackwise.plugin.group.group import Group
    from ackwise.plugin.group.leftovers import Leftovers
    from ackwise.plugin.group.strays import Strays
    from ackwise.plugin.group.topicplan import TopicReview

__all__ = ["HELP", "check", "create"]

HELP: Final = "The topics that a group needs: look at them, make them, pass what nobody can read."

#: Seconds for a look at transactions that are open.
_LOOK: Final = 15.0

_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def check(target: Target, as_json: _AsJson = False) -> None:
    """Hold every topic that the group needs against what it must be. Changes nothing.

    Exit code 0: a worker can start. 1: a topic is missing, too narrow, too small, deletes messages too early, or has copies that
    would run out of order, since their handler has an order now. 2: the brokers do not answer, or there is no such app.
    """
    reviews = wait_for(_review(_group(target)))
    _show(reviews, {}, as_json)
    raise typer.Exit(int(any(review.todo != "nothing" for review in reviews)))


def create(target: Target, as_json: _AsJson = False) -> None:
    """Create the topics of the group that are missing and extend those that are too narrow, as the start of a worker does.

    Delay topics that exist get the brokers' timestamps (message.timestamp.type=LogAppendTime); no other setting of a topic that
    exists is changed, and topics that agents consume are never created. Where only you can mend something, nothing is done at all.

    Exit code 0: a worker can start. 1: something is left that only you can mend. 2: the brokers do not answer or do not
    allow it, or there is no such app.
    """
    reviews, done = wait_for(_create(_group(target)))
    _show(reviews, done, as_json)
    raise typer.Exit(int(any(review.todo != "nothing" for review in reviews)))


def _group(target: str) -> Group:
    return find_app(target).group()


async def _review(group: Group) -> list[TopicReview]:
    from ackwise.plugin.group.copyreader import look
    from ackwise.plugin.group.leftovers import find_leftovers
    from ackwise.plugin.group.matching import matched_by
    from ackwise.plugin.group.othernames import find_copies_elsewhere
    from ackwise.plugin.group.strays import find_strays
    from ackwise.plugin.group.topicplan import TopicReview, review_topics
    from ackwise.plugin.group.topics import read_topics

    matched = await matched_by(group)
    group = group.matching(matched.topics)
    asked = {*group.sources, *group.names.all, group.names.control, *matched.disputed, *matched.of_groups}
    found = await read_topics(group.settings, asked)
    reviews = [
        *(TopicReview(topic, "source", None, found.get(topic), "mend", (why,)) for topic, why in matched.disputed.items()),
        *(TopicReview(topic, "passed over", None, found.get(topic), "nothing", (), why) for topic, why in matched.of_groups.items()),
        *review_topics(
            group.names,
            group.expected(found),
            found,
            longest_delay=group.levels.seconds[-1],
            rungs=group.settings.rungs,
            in_place=group.in_place,
        ),
    ]
    reviews += _of_strays(await find_strays(group.settings, group.names))
    elsewhere, unread = await find_copies_elsewhere(group.settings, group.names, group.sources)
    if not group.names.all:  # an instance that broadcasts has no topic beside which it could be said
        reviews += [TopicReview(group.settings.group, "earlier", None, None, "mend", (sentence,)) for sentence in elsewhere]
    reviews = [_with_other_names(review, elsewhere, unread) if review.role == "retry" else review for review in reviews]
    held, _ = await look(group.settings, group.names, lambda reader: reader.open_transactions(group.names.delay), within=_LOOK)
    reviews = [_with_transactions(review, held) if held and review.role == "delay" else review for review in reviews]
    return _with_leftovers(reviews, await find_leftovers(group.settings, group.names, group.agents))


def _of_strays(strays: Strays) -> list[TopicReview]:
    """The topics of an earlier configuration, each with what is left in it."""
    from ackwise.plugin.group.topicplan import TopicReview

    return [TopicReview(stray.topic, "earlier", None, None, "nothing", (), stray.sentence) for stray in strays.found]


def _with_other_names(review: TopicReview, elsewhere: Sequence[str], unread: str | None) -> TopicReview:
    """The retry topic, with what waits in topics under other names; or why nobody knows."""
    if elsewhere:
        return review._replace(todo="mend", faults=(*review.faults, *elsewhere))
    advice = None if unread is None else f"nobody knows whether copies wait in topics with other names ({unread}); they would not come back"
    return review._replace(advice=review.advice or advice)


def _with_transactions(review: TopicReview, held: Mapping[TopicPartition, int]) -> TopicReview:
    """The delay topic, with the transactions that are open in it."""
    places = ", ".join(f"partition {partition.partition} from offset {offset} on" for partition, offset in sorted(held.items()))
    advice = (
        f"a transaction is open in topic {review.topic!r}: {places} is read by no relay until it ends. Ackwise writes there without "
        "transactions; find the producer with kafka-transactions.sh, and abort its transaction"
    )
    return review._replace(advice=advice)


def _with_leftovers(reviews: Sequence[TopicReview], leftovers: Leftovers) -> list[TopicReview]:
    """`reviews` with the copies that would run out of order, each at its topic; at the retry topic, why nobody knows of any."""
    faults = {leftover.topic: leftover.sentence for leftover in leftovers.found}
    reviewed = [
        review._replace(todo="mend", faults=(*review.faults, faults[review.topic])) if review.topic in faults else review
        for review in reviews
    ]
    if leftovers.unread is None or faults:
        return reviewed
    advice = f"nobody knows whether copies wait from before a handler had its order ({leftovers.unread}); those that come run out of order"
    return [review._replace(advice=advice) if review.role == "retry" else review for review in reviewed]


async def _create(group: Group) -> tuple[list[TopicReview], dict[str, str]]:
    """How the topics are afterwards, and what was done to which."""
    from ackwise.plugin.group.topicplan import APPEND_TIME
    from ackwise.plugin.group.topics import ensure_topics, set_append_time

    before = await _review(group)
    if not any(review.role == "source" for review in before):
        if group.patterns:
            patterns = " or ".join(group.patterns.values())
            raise AckwiseError(f"no topic matches {patterns} yet, and the group's own are measured by those; create one")
        raise AckwiseError(
            f"group {group.settings.group!r} reads only topics that Faust makes, and none is there yet to measure the others by; start a "
            "worker, which makes them all"
        )
    todo = {review.topic: review.todo for review in before if review.todo != "nothing"}
    stamped = [review.topic for review in before if review.role == "delay" and review.found and review.found.timestamp_type != APPEND_TIME]
    if not (todo or stamped) or "mend" in todo.values():
        return before, {}
    # `never` holds for workers, and who calls this command has made up their mind.
    settings = dataclasses.replace(group.settings, create_topics="auto")
    sources = [review.topic for review in before if review.role == "source"]
    await ensure_topics(settings, group.names, sources, levels=group.levels, in_place=group.matching(sources).in_place)
    await set_append_time(settings, stamped)
    return await _review(group), dict.fromkeys(stamped, "changed") | {topic: _DONE[verb] for topic, verb in todo.items()}


#: The roles of topics that the app does not need.
_NOT_OURS: Final = ("passed over", "earlier")

_DONE: Final = {"create": "created", "extend": "extended"}


def _show(reviews: Sequence[TopicReview], done: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"topics": [_facts(review, done) for review in reviews]}))
        return
    columns = "topic", "role", "partitions", "max bytes", "retention", "verdict"
    cells = [(review.topic, review.role, *_sizes(review), _verdict(review, done)) for review in reviews]
    console = to_stdout()
    console.print(shown(Table("", columns, cells), 1_000))
    for sentence in _advice(reviews):
        console.print(sentence, markup=False)


def _advice(reviews: Sequence[TopicReview]) -> list[str]:
    """What to do: what only the user can mend first, since nothing is created before."""
    faults = [f"{fault}." for review in reviews for fault in review.faults]
    passed = [f"{review.advice}." for review in reviews if review.role in _NOT_OURS]
    better = [f"{review.advice}." for review in reviews if review.advice is not None and review.role not in _NOT_OURS]
    hints = [*passed, *better]
    ours = sum(review.todo in ("create", "extend") for review in reviews)
    if not ours:
        return [*faults, *hints]
    before = "After that, " if faults else ""
    return [*faults, *hints, f"{before}ackwise topics create makes or extends {ours} topics, as the start of a worker does."]


def _sizes(review: TopicReview) -> tuple[str, str, str]:
    found, wanted = review.found, review.wanted
    retention = _cell(found and found.retention_ms, wanted and wanted.retention_ms, _duration)
    return (
        _cell(found and found.partitions, wanted and wanted.partitions),
        _cell(found and found.max_message_bytes, wanted and wanted.max_message_bytes),
        retention,
    )


def _cell(found: int | None, wanted: int | None, spell: Callable[[int], str] = str) -> str:
    """What was found, and what is needed where that is more; -1 is for ever."""
    if found is None:
        return "" if wanted is None else f"[red]needs {spell(wanted)}[/red]"
    if wanted is None or found >= wanted or found == -1:
        return spell(found)
    return f"[red]{spell(found)} < {spell(wanted)}[/red]"


def _duration(milliseconds: int) -> str:
    return "for ever" if milliseconds == -1 else format_duration(milliseconds / 1000)


def _verdict(review: TopicReview, done: Mapping[str, str]) -> Cell:
    if review.role in _NOT_OURS and review.todo == "nothing":
        return Cell(review.role)
    if review.todo == "nothing":
        return Cell(done.get(review.topic, "ok"), "good")
    return Cell("missing" if review.found is None else "wrong", "bad")


def _facts(review: TopicReview, done: Mapping[str, str]) -> dict[str, Any]:
    return {
        "topic": review.topic,
        "role": review.role,
        "wanted": review.wanted and review.wanted._asdict(),
        "found": review.found and review.found._asdict(),
        "todo": review.todo,
        "done": done.get(review.topic),
        "faults": list(review.faults),
        "advice": review.advice,
    }
