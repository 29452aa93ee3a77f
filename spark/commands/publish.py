"""`ackwise publish`: sends the exported events of an app to a Kafka topic, from where `ackwise collect` fetches them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.markup import escape

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.plugin.cli.command import Target, find_app, wait_for
from ackwise.plugin.cli.console import to_stderr, to_stdout

if TYPE_CHECKING:
    from ackwise.plugin.topics.group import Group
    from ackwise.spark.events.sources import Exported

__all__ = ["Sent", "publish", "send"]


class Sent(NamedTuple):
    """The counts of one run."""

    files: int
    events: int
    writers: int
    there: Exported


def publish(
    target: Target, topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic for the events, which must be there.")]
) -> None:
    """Send the events that an app exported to a Kafka topic, one JSON record for each: for hosts whose folders nobody can reach.

    Files that the topic has already are not sent again; what was under way when a run broke off is, which does no harm.
    Events that a worker has not rolled into a file yet are sent by the next run.

    Exit code 0: the topic has all files. 2: it could not be done, or not whole.
    """
    from ackwise.spark.report.words import counted

    group = find_app(target).group()
    logging.getLogger("ackwise").addHandler(logging.NullHandler())
    try:
        sent = wait_for(send(group, _folder(group, target), topic))
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"publish needs {error.name}, which is not installed: pip install 'ackwise[events]'") from error
    except OSError as error:
        raise AckwiseError(f"{error.filename or topic}: {error.strerror or error}; run it again") from error
    sentence = f"{counted(sent.files, 'file')}, {counted(sent.events, 'event')} of {counted(sent.writers, 'writer')}: sent to {topic}"
    to_stdout().print(escape(sentence if sent.files else f"nothing to send: {topic} has all files"), soft_wrap=True)
    for path in sent.there.foreign:
        to_stderr().print(f"[yellow]![/] {escape(str(path))} is not named as events are and was not sent", soft_wrap=True)
    if sent.there.torn:
        first, why = next(iter(sent.there.torn.items()))
        raise AckwiseError(f"{len(sent.there.torn)} files were not sent, and their events count as missing: {first} {why}")


async def send(group: Group, root: Path, topic: str) -> Sent:
    """Send what the topic lacks of the files below `root`, to the brokers of `group`. Raises `AckwiseError` and `OSError`."""
    # Here, since the command line loads this module to list its commands.
    import asyncio

    from rich.progress import Progress

    from ackwise.plugin.topics.eventtopic import event_topic
    from ackwise.spark.events.sources import as_written, events_of, exported, writer_of
    from ackwise.spark.topic.published import published
    from ackwise.spark.topic.records import records_of
    from ackwise.stores.journal import recover

    async with event_topic(group.settings, topic) as to:
        await asyncio.to_thread(recover, root)
        there = exported(root)
        events = 0
        console = to_stderr()
        bar = Progress(console=console, transient=True, disable=not console.is_terminal)
        # A topic that was made anew lacks what was sent to the one before it.
        kept = [] if to.is_untouched else there.files
        with published(root, to.cluster, topic, kept) as known, bar as progress:
            there = as_written(there, known)
            missing = [file for file in there.files if file not in known]
            for file in progress.track(missing, description=f"sending to {escape(topic)}"):
                records = list(records_of(file))
                await to.publish(records)
                known.add(file)
                named = events_of(file)
                events += 0 if named is None else named.after - named.first
    return Sent(len(missing), events, len({writer_of(file) for file in missing}), there)


def _folder(group: Group, target: str) -> Path:
    from ackwise.stores.journal.sink import root_of

    if group.events is None:
        raise ConfigurationError(f"the app {target} exports no events; give it Events with a folder")
    if not isinstance(group.events.sink, str):
        kind = type(group.events.sink).__name__
        raise ConfigurationError(f"the app {target} gives its events to a {kind} of its own; only files in a folder are published")
    root = root_of(group.events.sink)
    if not root.is_dir():
        raise ConfigurationError(f"{root} is not a folder; the app {target} exports its events there once it runs")
    return root
