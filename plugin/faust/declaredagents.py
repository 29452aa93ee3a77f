"""Declared agents of an app of Faust: what is known of them before they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

import faust
from faust.types import TopicT

from ackwise.middleware.agent import Agent as Handler
from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.plugin.handler import refuse_own_topics
from ackwise.plugin.inspect.explain import Explanation, TopicUse
from ackwise.plugin.settings.config import Config
from ackwise.plugin.settings.entries import ENTRIES, dotted

__all__ = ["Declared", "declared", "discover", "is_fed", "never", "undecoded"]

#: What the entries of an agent that have no meaning here are said with instead.
_INSTEAD: Final = {
    "max_wait": "the loop says it, in take(…, within=…)",
    "keep_ack_index_on_error": "the loop says it, message by message: current_batch().done(message) holds whatever is raised afterwards",
}

#: The same for any agent, also one with a handler function.
_NEVER: Final = {
    "concurrency": "Faust has it, as @app.agent(concurrency=…)",
    "consume_timeout": "Faust runs its agents by itself, and nothing can cancel one message of a stream",
}

_DERIVED: Final = "those of group_by and through, known once an agent has begun: each is a source of AGENT/TOPIC, made by Faust"

_MAX_BATCH: Final = cast(int, ENTRIES[("agents", "NAME", "max_batch")].default)


class Declared(NamedTuple):
    """What the agents of an app read."""

    agents: list[Handler]  #: those that Ackwise feeds, with what files and the environment set
    internal: tuple[str, ...]  #: topics among theirs that Faust makes itself
    left_alone: tuple[str, ...]  #: a sentence for each of the others

    @property
    def topics(self) -> tuple[str, ...]:
        """What they read, each topic once, sorted."""
        return tuple(sorted({topic for agent in self.agents for topic in agent.topics}))

    def max_batch(self, name: str) -> int:
        """Messages that are admitted together for the agent `name`, where it takes them one by one."""
        return next((agent.max_batch for agent in self.agents if agent.name == name), _MAX_BATCH)

    def function(self, name: str) -> Handler | None:
        """The handler function that the agent `name` calls, if it does."""
        return next((agent for agent in self.agents if agent.name == name and agent.kind != "stream"), None)

    def annotated(self, explanation: Explanation) -> Explanation:
        """`explanation`, with what Faust has a hand in."""
        topics = [
            replace(topic, use=f"{topic.use}, made by Faust") if topic.topic in self.internal else topic for topic in explanation.topics
        ]
        return replace(explanation, topics=(*topics, TopicUse("…", _DERIVED)), warnings=(*explanation.warnings, *self.left_alone))


def declared(app: faust.App, config: Config, *, dead_letter: str | None, topic_names: str) -> Declared:
    """The agents of `app`. Their channels are made for it, which connects to nothing. `dead_letter` is the topic of `DeadLetter`,
    `topic_names` the setting.

    Raises `ConfigurationError` for an entry that names an agent there is not, or means nothing to agents of Faust, and
    for an agent that reads what its own group writes.
    """
    agents, internal, left_alone = [], set[str](), []
    for name, agent in app.agents.items():
        channel: Any = agent.channel
        if is_fed(channel):
            handler: Handler | None = getattr(agent, "handler", None)  # one from another library has no handler function
            _refuse_meaningless(name, config, _NEVER if handler is not None else _INSTEAD | _NEVER)
            if handler is None:
                handler = Handler(name, tuple(map(str, channel.topics)), "stream", never, undecoded)
            refuse_own_topics(handler, group=app.conf.id, dead_letter=dead_letter, topic_names=topic_names)
            agents.append(handler)
            internal |= set(handler.topics) if channel.internal else set()
        else:
            left_alone.append(f"agent {name!r} reads {_reads(channel)}, which Ackwise leaves to Faust: what it raises on is lost")
    return Declared(config.agents(agents), tuple(sorted(internal)), tuple(left_alone))


def discover(app: faust.App) -> None:
    """Import the modules that `app` looks for agents in, as its worker does first. Raises `ConfigurationError` if one can't be imported."""
    conf: Any = app.conf
    if not conf.autodiscover or (conf.autodiscover is True and conf.origin is None):
        return
    try:
        app.discover()
    except Exception as error:  # the user's modules are the user's code
        said = " ".join(str(error).split())
        raise ConfigurationError(f"a module that autodiscover finds can't be imported, it raises {type(error).__name__}: {said}") from error


def is_fed(channel: Any) -> bool:
    """Whether Ackwise feeds who reads `channel`: it does for topics that have names."""
    return isinstance(channel, TopicT) and bool(channel.acks) and not channel.pattern


def _reads(channel: Any) -> str:
    if not isinstance(channel, TopicT):
        return "a channel in memory"
    return "topics by a pattern" if channel.pattern else "a topic without acks"


def _refuse_meaningless(name: str, config: Config, instead: Mapping[str, str]) -> None:
    for entry, given in config.of_agent(name).items():
        if entry in instead:
            path = dotted(("agents", name, entry))
            raise ConfigurationError(f"{path} is set by {given.source}, and has no meaning for an agent of Faust: {instead[entry]}")


async def never(_: object) -> None:
    """What is called of a stream's agent, which is not."""
    raise AckwiseError("a stream's agent is not called, it takes its messages")


def undecoded(_: bytes | None) -> object:
    """How a stream's agent decodes a value, which it does not."""
    raise AckwiseError("a stream's agent decodes whole messages")
