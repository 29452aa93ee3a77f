"""Agents of a Faust app: as declared before they run, as restarted in place when they raise, and their intake of messages.

Faust's supervisor would give the stream of a crashed actor to a successor, and the abandoned actor, finalised later, would stop it. It
would also pause an agent for seconds, or end its worker after a few failures. Here an agent restarts once the messages that were out of
its streams have dispositions.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, cast

import faust
from faust.types import TP, TopicT

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.log import Log, said
from ackwise.middleware.message.raising import Later, Reject
from ackwise.middleware.owntask import ended, in_a_task, outcome_of
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.streaming import InFlight
from ackwise.middleware.runs.agent import Agent as Handler
from ackwise.middleware.usercode import Returned, Stops, awaited, class_name, is_a, where_raised
from ackwise.plugin.consumer.backlog import MAX_MESSAGES
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.faust.faustinternals import FaustAgent, chain_of
from ackwise.plugin.faust.faustmessages import AckedMessage, Inlet, StreamMessage, decoder, says_types
from ackwise.plugin.faust.fauststream import Stream
from ackwise.plugin.handlers.handler import refuse_own_topics
from ackwise.plugin.operate.explanation import Explanation, TopicUse
from ackwise.plugin.settings.config import Config
from ackwise.plugin.settings.entries import ENTRIES, dotted

log = Log()

#: Rest of an agent that raises before it takes a message: seconds at first, doubling up to the second.
_FIRST_REST: Final = 0.5
_LONGEST_REST: Final = 10.0


class Feeder(Protocol):
    """What feeds the streams of agents."""

    def attach(self, stream: Stream, agent: faust.Agent) -> None:
        """Feed `stream`, if it reads a topic."""


class Agent(FaustAgent):
    """What `@app.agent` makes once Ackwise is used."""

    handler: Handler | None = None  #: the handler function that its loop calls, if it was declared with one

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """Like Faust's, fed by Ackwise where its channel is a topic."""
        stream = super().stream(*args, **kwargs)
        feeder: Feeder = cast(Any, self.app).ackwise
        feeder.attach(cast(Stream, stream), self)
        return stream

    async def on_isolated_partitions_revoked(self, revoked: set[TP]) -> None:
        """Like Faust's; and what the actors of these partitions read is read no more, before the next assignment is looked at."""
        for tp in revoked:
            if (aref := self.actor_of(tp)) is not None:
                for stream in _chain(cast(Stream, aref.stream)):
                    stream.retire()
        await super().on_isolated_partitions_revoked(revoked)

    async def run_actor(self, coro: Awaitable[Any], aref: Any) -> None:
        """Run the agent, and run it again after whatever it raised, for as long as its actor lives."""
        root = cast(Stream, aref.stream)
        if root.inlet is None:
            return await super().run_actor(coro, aref)
        self.become_current()
        rest = 0.0
        while True:
            task, found = in_a_task(_same, coro)  # what cancels the actor is kept apart from what the agent leaves behind
            is_cancelled = await ended(task)
            outcome = outcome_of(found)
            if isinstance(outcome, Returned):
                await self._leave(root, partial(Stream.end, task=task))
                if not (self.app.should_stop or aref.should_stop):
                    log.error("agent returned", handler=self.name)
                return None
            error = outcome.error
            if isinstance(outcome, Stops):
                told = [stream.halt(error) for stream in _chain(root)]
                await self._leave(root, Stream.forsake)
                if not any(told):
                    raise error
                return None
            if not is_a(error, asyncio.CancelledError):
                await self._call_on_error(error)
            elif is_cancelled:
                await self._leave(root, Stream.forsake)
                if self.should_stop or aref.should_stop:
                    raise error
                return await self._give_way(aref, error)
            rest = await self._fail(root, error, rest)
            coro = self._begin_again(aref, root)

    async def _fail(self, root: Stream, error: BaseException, rest: float) -> float:
        """What was out of its streams has failed. Where nothing was, it rests for longer than `rest`; returns for how long."""
        if sum(stream.fail(error) for stream in _chain(root)):
            return 0.0
        rest = min(_LONGEST_REST, rest * 2 or _FIRST_REST)
        log.error(
            "agent raised before its first message",
            handler=self.name,
            error=said(error) if is_a(error, AckwiseError) else class_name(error),
            at=where_raised(error),
            retry_in=rest,
        )
        await asyncio.sleep(rest)
        return rest

    def _begin_again(self, aref: Any, root: Stream) -> Awaitable[Any]:
        root.restore()
        aref.it = self.fun(root)
        return self.begun(aref)

    async def _call_on_error(self, error: BaseException) -> None:
        if self.error_handler is None or is_a(error, Later, Reject):
            return
        outcome = await awaited(self.error_handler, self, error)
        if not isinstance(outcome, Returned):
            log.error(
                "on_error of an agent raised",
                handler=self.name,
                error=class_name(outcome.error),
                at=where_raised(outcome.error),
            )

    async def _give_way(self, aref: Any, error: BaseException) -> None:
        """As Faust: the supervisor starts it again."""
        await aref.crash(error)
        self.supervisor.wakeup()

    async def _leave(self, root: Stream, part: Callable[[Stream], None]) -> None:
        """The actor ends: its streams do too, ready for one that would take them over."""
        streams = _chain(root)
        for stream in streams:
            part(stream)
        await root.stop()
        for stream in streams:
            stream.service_reset()


def _same(awaitable: Awaitable[Any]) -> Awaitable[Any]:
    return awaitable


def _chain(root: Stream) -> list[Stream]:
    return cast("list[Stream]", chain_of(root))


#: What to write instead of the entries of an agent that have no meaning here.
_INSTEAD: Final = {
    "max_wait": "the loop says it, in take(…, within=…)",
    "keep_ack_index_on_error": "the loop says it, message by message: current_batch().done(message) holds whatever is raised afterwards",
}

#: The same for any agent, also one with a handler function.
_NEVER: Final = {
    "concurrency": "Faust has it, as @app.agent(concurrency=…)",
    "consume_timeout": "Faust runs its agents by itself, and nothing can cancel one message of a stream",
}

_DERIVED: Final = "those of group_by and through, known once an agent has started: each is a source of AGENT/TOPIC, made by Faust"

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

    def expiry(self, name: str) -> dict[str, Any]:
        """When messages of the agent `name` expire, as fields of a handler."""
        return next(({"max_age": agent.max_age, "expires": agent.expires} for agent in self.agents if agent.name == name), {})

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
    """Return whether Ackwise feeds who reads `channel`: it does for topics that have names."""
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


class Intake:
    """`name` stands in copies, claims and events; `topics` are what it reads."""

    def __init__(
        self,
        app: faust.App,
        name: str,
        agent: faust.Agent,
        channel: Any,
        *,
        prefetch: int,
        derive: Callable[[Stream, faust.Agent], None],
        function: Handler | None = None,
        expiry: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`prefetch`: messages that are admitted together where the agent takes them one by one; `derive` feeds what it derives;
        `function` is what it calls, if it was declared with one; `expiry` says when its messages expire, as `Declared.expiry` does.
        """
        self.name = name
        self.agent = agent
        self.topics = tuple(str(topic) for topic in channel.topics)
        self.made = self.topics if channel.internal else ()  # by Faust, while its stream starts
        self.pipeline: Pipeline | None = None
        self.lanes: weakref.WeakSet[Lane] = weakref.WeakSet()
        self._function = function
        self._expiry = expiry
        self._decode = decoder(app, channel, None if function is None or says_types(channel) else function.decode)
        self._derive = derive
        self._max_batch = prefetch
        self._inlets: weakref.WeakSet[Inlet] = weakref.WeakSet()

    @property
    def handler(self) -> Handler:
        """It as the spine knows it."""
        if self._function is not None:
            return replace(self._function, message=self._decode)
        return Handler(self.name, self.topics, "stream", never, undecoded, max_batch=self._max_batch, message=self._decode, **self._expiry)

    def inlet(self, active: set[TP] | None) -> Inlet:
        """A new one, for the partitions `active`, or for all."""
        inlet = Inlet(active)
        self._inlets.add(inlet)
        return inlet

    def dismiss(self, inlet: Inlet) -> None:
        """`inlet` has no reader any more."""
        self._inlets.discard(inlet)

    def derive(self, stream: Stream) -> None:
        """Feed `stream`, which the agent derived from its stream."""
        self._derive(stream, self.agent)

    def demand(self, count: int) -> None:
        """Its agent takes `count` messages at a time: as many are admitted together, by each of its actors."""
        wanted = count * self.agent.concurrency
        if wanted > self._max_batch:
            self._max_batch = wanted
            if self.pipeline is not None:
                self.pipeline.agent = replace(self.pipeline.agent, max_batch=wanted)
            for lane in self.lanes:
                self.widen(lane)

    def widen(self, lane: Lane) -> None:
        """Let `lane` hold as much as its agent takes at a time, and what follows it meanwhile."""
        self.lanes.add(lane)
        lane.capacity = max(MAX_MESSAGES, 3 * self._max_batch)

    def hand_over(self, members: Sequence[InFlight]) -> None:
        """Let `members` wait for the agent, each in the inlet that serves its partition."""
        inlets = list(self._inlets)
        for member in [] if inlets else members:
            member.leave_undecided()  # its actors are gone, and others not there yet
        for member in members:
            cast(AckedMessage, cast(StreamMessage, member.message).event.message).acknowledge = None
        if len(inlets) == 1:
            inlets[0].put(members)
            return
        for member in members:
            for inlet in ([inlet for inlet in inlets if _serves(inlet, member)] or inlets)[:1]:
                inlet.put([member])


def _serves(inlet: Inlet, member: InFlight) -> bool:
    return inlet.active is None or TP(member.message.topic, member.message.partition) in inlet.active
