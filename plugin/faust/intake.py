"""Intake of one agent, or of one stream that it derived: its pipeline, and the inlets that it takes messages from."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import faust
from faust.types import TP

from ackwise.middleware.agent import Agent as Handler
from ackwise.middleware.inflight import InFlight
from ackwise.middleware.pipeline import Pipeline
from ackwise.plugin.faust.declaredagents import never, undecoded
from ackwise.plugin.faust.inlet import Inlet
from ackwise.plugin.faust.message import AckedMessage, StreamMessage, decoder, says_types
from ackwise.plugin.faust.stream import Stream
from ackwise.plugin.group.lane import MAX_MESSAGES, Lane

__all__ = ["Intake"]


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
    ) -> None:
        """`prefetch`: messages that are admitted together where the agent takes them one by one; `derive` feeds what it derives;
        `function` is what it calls, if it was declared with one.
        """
        self.name = name
        self.agent = agent
        self.topics = tuple(str(topic) for topic in channel.topics)
        self.made = self.topics if channel.internal else ()  # by Faust, while its stream begins
        self.pipeline: Pipeline | None = None
        self.lanes: weakref.WeakSet[Lane] = weakref.WeakSet()
        self._function = function
        self._decode = decoder(app, channel, None if function is None or says_types(channel) else function.decode)
        self._derive = derive
        self._max_batch = prefetch
        self._inlets: weakref.WeakSet[Inlet] = weakref.WeakSet()

    @property
    def handler(self) -> Handler:
        """It as the spine knows it."""
        if self._function is not None:
            return replace(self._function, message=self._decode)
        return Handler(self.name, self.topics, "stream", never, undecoded, max_batch=self._max_batch, message=self._decode)

    def inlet(self, active: set[TP] | None) -> Inlet:
        """A new one, for the partitions `active`, or for all."""
        inlet = Inlet(active)
        self._inlets.add(inlet)
        return inlet

    def dismiss(self, inlet: Inlet) -> None:
        """Nobody takes from `inlet` any more."""
        self._inlets.discard(inlet)

    def derive(self, stream: Stream) -> None:
        """Feed `stream`, which the agent derived from one of its own."""
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
