"""`ackwise topics …`: checks, creates and exports the topics of a group, and skips unreadable records."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape

from ackwise.middleware.duration import format_duration
from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.plugin.cli.command import Target, find_app, wait_for
from ackwise.plugin.cli.console import shown, to_stdout
from ackwise.plugin.operate.table import Cell, Table

if TYPE_CHECKING:
    from aiokafka import TopicPartition

    from ackwise.plugin.topics.group import Group
    from ackwise.plugin.topics.leftovers import Leftovers, Strays
    from ackwise.plugin.topics.topicexport import Export, Role, User
    from ackwise.plugin.topics.topicplan import TopicReview


HELP: Final = "Check and create a group's topics; skip unreadable records."

#: Seconds for finding open transactions.
_LOOK: Final = 15.0

_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def check(target: Target, as_json: _AsJson = False) -> None:
    """Check every topic that the group needs. Changes nothing.

    Exit code 0: a worker can start. 1: a topic is missing, has too few partitions or replicas, deletes messages too early, or has
    copies that would run out of order because their handler has an order now. 2: the brokers do not answer, or there is no such app.
    """
    reviews = wait_for(_review(_group(target)))
    _show(reviews, {}, as_json)
    raise typer.Exit(int(any(review.todo != "nothing" for review in reviews)))


_Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="TOPIC",
        help="For development: create this topic, which an agent reads, if it is missing, and nothing else; may be repeated.",
        show_default=False,
    ),
]
_OfSource = Annotated[
    int | None,
    typer.Option(
        "--partitions", min=1, metavar="N", help="Partitions of a created --source. Default: the brokers' own.", show_default=False
    ),
]


def create(target: Target, sources: _Sources = None, partitions: _OfSource = None, as_json: _AsJson = False) -> None:
    """Create missing topics of the group and add missing partitions, as a worker does at its start.

    An existing delay topic gets the brokers' timestamps (message.timestamp.type=LogAppendTime); no other setting of an existing topic
    is changed. Source topics are created only by --source. If a problem needs your decision, the command changes nothing.

    Exit code 0: a worker can start; with --source, the topics are there. 1: a problem is left that only you can fix. 2: the brokers do
    not answer or do not allow it, no agent reads the topic of --source, or there is no such app.
    """
    if partitions is not None and not sources:
        raise ConfigurationError("--partitions is for the topics of --source; name them, or leave it out")
    group = _group(target)
    reviews, done = wait_for(_create_sources(group, sources, partitions) if sources else _create(group))
    if sources and not as_json:
        for review in reviews:
            typer.echo(_made(review, review.topic in done))
        return
    _show(reviews, done, as_json)
    raise typer.Exit(int(any(review.todo != "nothing" for review in reviews)))


def _group(target: str) -> Group:
    return find_app(target).group()


async def _create_sources(group: Group, topics: Sequence[str], partitions: int | None) -> tuple[list[TopicReview], dict[str, str]]:
    """Return the reviews of the topics, and the action on each that was created."""
    from ackwise.plugin.topics.topicadmin import create_sources
    from ackwise.plugin.topics.topicplan import TopicReview

    _refuse_unread(group, topics)
    found, created = await create_sources(group.settings, topics, partitions)
    reviews = [TopicReview(topic, "source", None, there, "nothing") for topic, there in found.items()]
    return reviews, dict.fromkeys(created, _DONE["create"])


def _refuse_unread(group: Group, topics: Collection[str]) -> None:
    """Raise `ConfigurationError` if a worker would not read one of `topics`."""
    from ackwise.plugin.topics.topicpatterns import match_topics

    matched = match_topics(group.agents, group.names, topics)
    for topic in topics:
        if (why := matched.disputed.get(topic) or matched.of_groups.get(topic)) is not None:
            raise ConfigurationError(why)
        if topic not in (*group.sources, *matched.topics):
            read = [*map(repr, group.sources), *(f"what matches {pattern}" for pattern in group.patterns.values())]
            raise ConfigurationError(f"no agent of group {group.settings.group!r} reads topic {topic!r}; its agents read {', '.join(read)}")


async def _review(group: Group) -> list[TopicReview]:
    from ackwise.plugin.topics.leftovers import find_copies_elsewhere, find_leftovers, find_strays, look
    from ackwise.plugin.topics.topicadmin import matched_by, read_topics
    from ackwise.plugin.topics.topicplan import TopicReview, review_topics

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
    if not group.names.all:  # an instance that broadcasts has no topics of its group
        reviews += [TopicReview(group.settings.group, "earlier", None, None, "mend", (sentence,)) for sentence in elsewhere]
    reviews = [_with_other_names(review, elsewhere, unread) if review.role == "retry" else review for review in reviews]
    held, _ = await look(group.settings, group.names, lambda reader: reader.open_transactions(group.names.delay), within=_LOOK)
    reviews = [_with_transactions(review, held) if held and review.role == "delay" else review for review in reviews]
    return _with_leftovers(reviews, await find_leftovers(group.settings, group.names, group.agents))


def _of_strays(strays: Strays) -> list[TopicReview]:
    """Return the topics of an earlier configuration, each with the copies left in it."""
    from ackwise.plugin.topics.topicplan import TopicReview

    return [TopicReview(stray.topic, "earlier", None, None, "nothing", (), stray.sentence) for stray in strays.found]


def _with_other_names(review: TopicReview, elsewhere: Sequence[str], unread: str | None) -> TopicReview:
    """Add the copies that wait in topics with other names to the review of the retry topic, or why they are unknown."""
    if elsewhere:
        return review._replace(todo="mend", faults=(*review.faults, *elsewhere))
    advice = None if unread is None else f"copies under other topic names not checked ({unread}); such copies would not come back"
    return review._replace(advice=review.advice or advice)


def _with_transactions(review: TopicReview, held: Mapping[TopicPartition, int]) -> TopicReview:
    """Add the open transactions to the review of the delay topic."""
    places = ", ".join(f"partition {partition.partition} from offset {offset} on" for partition, offset in sorted(held.items()))
    advice = (
        f"a transaction is open in topic {review.topic!r}: no relay reads {places} until it ends. Ackwise writes there without "
        "transactions; find the producer with kafka-transactions.sh, and abort its transaction"
    )
    return review._replace(advice=advice)


def _with_leftovers(reviews: Sequence[TopicReview], leftovers: Leftovers) -> list[TopicReview]:
    """Add to each review the copies that would run out of order; to the retry topic's, why they could not be checked."""
    faults = {leftover.topic: leftover.sentence for leftover in leftovers.found}
    reviewed = [
        review._replace(todo="mend", faults=(*review.faults, faults[review.topic])) if review.topic in faults else review
        for review in reviews
    ]
    if leftovers.unread is None or faults:
        return reviewed
    advice = f"copies from before a handler had its order could not be checked ({leftovers.unread}); such copies run out of order"
    return [review._replace(advice=advice) if review.role == "retry" else review for review in reviewed]


async def _create(group: Group) -> tuple[list[TopicReview], dict[str, str]]:
    """Create and extend topics. Return their reviews afterwards, and the action on each."""
    from ackwise.plugin.topics.topicadmin import ensure_topics, set_append_time
    from ackwise.plugin.topics.topicplan import APPEND_TIME

    before = await _review(group)
    if not any(review.role == "source" for review in before):
        if group.patterns:
            patterns = " or ".join(group.patterns.values())
            raise AckwiseError(
                f"no topic matches {patterns} yet, and the topics of the group get their size from those; create one, "
                "for development with --source"
            )
        raise AckwiseError(
            f"group {group.settings.group!r} reads only topics that Faust creates, and none exists yet to size the others by; start a "
            "worker, which creates them all"
        )
    todo = {review.topic: review.todo for review in before if review.todo != "nothing"}
    stamped = [review.topic for review in before if review.role == "delay" and review.found and review.found.timestamp_type != APPEND_TIME]
    if not (todo or stamped) or "mend" in todo.values():
        return before, {}
    # `never` is for workers; the caller of this command wants the topics.
    settings = dataclasses.replace(group.settings, create_topics="auto")
    sources = [review.topic for review in before if review.role == "source"]
    await ensure_topics(settings, group.names, sources, levels=group.levels, in_place=group.matching(sources).in_place)
    await set_append_time(settings, stamped)
    return await _review(group), dict.fromkeys(stamped, "changed") | {topic: _DONE[verb] for topic, verb in todo.items()}


#: The roles of topics that the app does not need.
_NOT_OURS: Final = ("passed over", "earlier")

_DONE: Final = {"create": "created", "extend": "extended"}


def _made(review: TopicReview, is_new: bool) -> str:
    """Return what became of a topic of --source, as a sentence."""
    partitions, replicas = (review.found.partitions, review.found.replication) if review.found else (0, 0)
    has = f"{partitions} {'partition' if partitions == 1 else 'partitions'} and {replicas} {'replica' if replicas == 1 else 'replicas'}"
    return f"topic {review.topic!r} was created with {has}" if is_new else f"topic {review.topic!r} exists already, with {has}"


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
    """Return the remedies. Those for the user come first: nothing is created before they are done."""
    faults = [f"{fault}." for review in reviews for fault in review.faults]
    passed = [f"{review.advice}." for review in reviews if review.role in _NOT_OURS]
    better = [f"{review.advice}." for review in reviews if review.advice is not None and review.role not in _NOT_OURS]
    hints = [*passed, *better]
    ours = sum(review.todo in ("create", "extend") for review in reviews)
    if not ours:
        return [*faults, *hints]
    before = "After that, " if faults else ""
    return [*faults, *hints, f"{before}ackwise topics create creates or extends {ours} topics, as a worker does at its start."]


def _sizes(review: TopicReview) -> tuple[str, str, str]:
    found, wanted = review.found, review.wanted
    retention = _cell(found and found.retention_ms, wanted and wanted.retention_ms, _duration)
    return (
        _cell(found and found.partitions, wanted and wanted.partitions),
        _cell(found and found.max_message_bytes, wanted and wanted.max_message_bytes),
        retention,
    )


def _cell(found: int | None, wanted: int | None, spell: Callable[[int], str] = str) -> str:
    """Render `found`, and `wanted` if it is larger; -1 is unlimited."""
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


#: Replicas of a topic, and in-sync replicas, if no broker is asked.
_REPLICAS, _IN_SYNC = 3, 2

_Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="[bold]acls[/bold]: commands of Kafka's scripts. [bold]terraform[/bold]: for the provider Mongey/kafka. "
        "[bold]strimzi[/bold]: KafkaTopic and KafkaUser.",
    ),
]
_Roles = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="ROLE",
        help="worker, relay, producer, canceller, operator or dashboard; may be repeated. Default: all of them.",
        show_default=False,
    ),
]
_Principal = Annotated[
    str | None,
    typer.Option(
        metavar="USER",
        help="The user of the one --role, such as [bold]User:billing[/bold]. Default: User:GROUP-ROLE.",
        show_default=False,
    ),
]
_Partitions = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Ask no broker; assume that the widest source has N partitions, three replicas and Kafka's defaults.",
        show_default=False,
    ),
]

_DEFAULT: Final = "acls"


def export(
    target: Target,
    form: _Format = _DEFAULT,
    roles: _Roles = None,
    principal: _Principal = None,
    partitions: _Partitions = None,
) -> None:
    """Print the five topics of the group and the rights on them, as input of another tool. Changes nothing.

    The topics are as [bold]ackwise topics create[/bold] would create them now. A worker with relay = inside includes the rights of a
    relay. With these topics and rights a worker starts with create_topics = never.

    Exit code 0: printed. 2: there is no such format, role or app, a source is missing, or the brokers do not answer.
    """
    from ackwise.plugin.topics.topicexport import FORMATS

    if (lines := FORMATS.get(form)) is None:
        raise ConfigurationError(f"there is no format {form!r}; choose one of {', '.join(FORMATS)}")
    chosen = _roles(roles or ())
    if principal is not None and len(chosen) != 1:
        raise ConfigurationError("--principal names the user of one role; give that with --role")
    group = find_app(target).group()
    if not group.names.all:
        raise ConfigurationError(f"group {group.settings.group!r} broadcasts and sends nothing back, so it has no topics")
    typer.echo("\n".join(lines(wait_for(_exported(group, chosen, principal, partitions)))))


def _roles(given: Sequence[str]) -> list[Role]:
    from ackwise.plugin.topics.topicexport import ROLES

    for role in given:
        if role not in ROLES:
            raise ConfigurationError(f"there is no role {role!r}; choose of {', '.join(ROLES)}")
    return [role for role in ROLES if role in given or not given]


async def _exported(group: Group, roles: Collection[Role], principal: str | None, partitions: int | None) -> Export:
    from ackwise.plugin.topics.topicadmin import read_topics, with_matching
    from ackwise.plugin.topics.topicexport import Export
    from ackwise.plugin.topics.topicplan import Topic, made_topics

    if partitions is None:
        group = await with_matching(group)
        found = await read_topics(group.settings, group.sources)
    else:
        like = Topic(partitions, _REPLICAS, max_message_bytes=1048588, retention_ms=604800000, min_insync_replicas=_IN_SYNC)
        found = dict.fromkeys(group.sources, like)
    if not (sources := group.expected(found)):
        raise ConfigurationError("the app names no source whose size is known; create it first, or give --partitions")
    topics = made_topics(
        group.names,
        sources,
        found,
        longest_delay=group.levels.seconds[-1],
        rungs=group.settings.rungs,
    )
    return Export(topics, [_user(group, role, principal) for role in roles], group.settings.brokers)


def _user(group: Group, role: Role, principal: str | None) -> User:
    from ackwise.plugin.topics.topicexport import User, rights_of

    relays = role == "worker" and group.settings.relay == "inside"
    given = principal or f"{group.names.group}-{role}"
    rights = rights_of(role, group.names, group.sources, targets=group.sources if group.settings.delayed_sends else (), relays=relays)
    return User(role, given if ":" in given else f"User:{given}", rights)


def skip(
    target: Target,
    records: Annotated[str, typer.Argument(metavar="RECORDS", help="TOPIC/PARTITION/FIRST-LAST, such as [bold]orders/3/120-128[/bold].")],
    execute: Annotated[bool, typer.Option("--yes", help="Do it. Without --yes the command only shows what it would skip.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of sentences.")] = False,
) -> None:
    """Skip unreadable records, so that their partition goes on. Changes nothing without --yes.

    The records are never handled, and an event records why. They stay in the topic. The group must have no members, and the records
    must be at its position, within one unreadable record batch. In the mode `offsets` of Transactional the position in the database
    moves as well.

    Exit code 0: skipped, or shown. 2: the records are readable or elsewhere, the group has members, or the brokers or the database
    do not answer.
    """
    from ackwise.plugin.operate.skipping import parse_passage
    from ackwise.plugin.operate.skipping import skip as pass_over

    passage = parse_passage(records)
    found = wait_for(pass_over(find_app(target).group(), passage, execute=execute))
    if as_json:
        facts = {
            "records": str(passage),
            "batch": list(found.batch),
            "error": found.error,
            "recorded": found.has_events,
            "done": found.is_done,
        }
        typer.echo(json.dumps(facts))
        return
    console = to_stdout()
    first, last = found.batch
    console.print(f"{escape(str(passage))} can't be read ({escape(found.error)}), in a record batch of {first} to {last}", soft_wrap=True)
    if not found.has_events:
        console.print("[yellow]the app has no Events[/], so no event will record that this was on purpose", soft_wrap=True)
    done = f"skipped; the group continues at {passage.last + 1}" if found.is_done else "nothing was changed; add --yes to skip it"
    console.print(done, soft_wrap=True)
