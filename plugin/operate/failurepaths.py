"""Failure paths: the consequence of each kind of failure, computed by the rulings and the policy that run, so both agree. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from ackwise.middleware.duration import format_duration
from ackwise.middleware.errors import InvalidHandlerResult
from ackwise.middleware.message import raising
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, Dead, Delayed, Reason
from ackwise.middleware.message.message import Delivery, Message, Origin
from ackwise.middleware.pipeline.admission import ALONE_AFTER, DEAD_AFTER
from ackwise.middleware.pipeline.rulings import dispositions_of
from ackwise.middleware.pipeline.settlement import PUBLISH_AGAIN
from ackwise.middleware.pipeline.timeout import HANG_WARNING
from ackwise.middleware.pipeline.worker import FIRST_WAIT, LONGEST_WAIT
from ackwise.middleware.policies.policies import Broadcasting, Dedup, Events, Outbox, Share
from ackwise.middleware.policies.retry import LONGEST_DELAY, ConsumeLater, Order, RetryInPlace, journey
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.usercode import STOPS, Raised, Returned
from ackwise.plugin.policyslots import Slots
from ackwise.plugin.settings.entries import spelled
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicnames import TopicNames


@dataclass(frozen=True, slots=True)
class FailurePath:
    """What one kind of failure leads to.

    `delays` are those between the deliveries of a message that fails so every time, in seconds; `attempts` counts its
    runs, `None` where no attempt is charged. `ends` is the topic and the reason of the dead letter in the end.
    """

    when: str
    then: str
    after: str
    delays: tuple[float, ...]
    attempts: int | None
    ends: str
    offset: str  #: when its offset is passed


#: When an offset is passed.
_COPY_IS_THERE: Final = "once the copy is acknowledged"
_DEAD_LETTER_IS_THERE: Final = "once the dead letter is acknowledged"
_AT_ONCE: Final = "at once"
_DROPPED: Final = "dropped, with an event and a count"
_NOT_YET: Final = "not before it is settled"
_NOT_HERE: Final = "by the next owner"

_BACK: Final = "once it is back"

#: What a share group does with what would be held otherwise, held in the retry lane then.
_COPIED: Final = "copied to the retry topic, no attempt is charged; held there"

#: What waits behind a message that is suspended.
_FOLLOWS: Final[dict[Order, str]] = {None: "", "key": "has its key", "partition": "follows in its partition"}


def failures(settings: HostSettings, slots: Slots, agents: Sequence[Agent], names: TopicNames) -> tuple[FailurePath, ...]:
    """The failures that can happen to this app, in the order in which a message can meet them."""
    return (
        *_Failures(settings, slots, agents, names),
        *(() if slots.broadcasting is None else _of_instance(settings, slots.broadcasting)),
        *(() if slots.share is None else _of_share(settings, slots.share)),
        *(() if slots.outbox is None else _of_outbox(slots.outbox)),
    )


class _Failures:
    def __init__(self, settings: HostSettings, slots: Slots, agents: Sequence[Agent], names: TopicNames) -> None:
        self._settings = settings
        self._slots = slots
        self._later = slots.later
        self._policies = _policies(slots.later, agents)
        self._dedup = slots.dedup
        self._transactional = slots.transactional
        self._broadcasts = slots.broadcasting is not None
        self._agents = agents
        self._shares = slots.share is not None
        kinds = {agent.kind for agent in agents}
        self._has_batches = "batch" in kinds
        self._has_streams = "stream" in kinds
        self._has_handlers = not self._has_streams or len(kinds) > 1
        self._names = names

    def __iter__(self) -> Iterator[FailurePath]:
        if self._has_handlers:
            yield from self._of_handlers()
        if self._has_streams:
            yield from self._of_streams()
        yield from self._of_middleware()
        yield from self._of_messages()
        yield from self._of_surroundings()
        yield from self._of_claims()
        if self._shares:
            yield from self._of_killers()
        elif not self._broadcasts:
            yield from self._of_workers()

    def _of_handlers(self) -> Iterator[FailurePath]:
        if self._transactional is not None and self._has_batches:
            several, then = "the handler raises on a batch of several", "rolled back; run again in halves until the culprit is alone"
            yield self._held(several, then, "at once", "as each half ends")
        for agent in self._agents:
            if agent.in_place is not None:
                yield self._suspended(agent, agent.in_place)
        if any(agent.in_place is None for agent in self._agents):
            for who, later, has_batches in self._policies:
                yield from self._of_errors(who, later)
                yield self._ruled(f"{who} returns CONSUME_LATER", lambda batch: Returned(CONSUME_LATER), later=later)
                yield self._ruled(f"{who} returns anything but None or a status", lambda batch: Returned(True), later=later)
                yield from self._of_wishes(who, later)
                if has_batches:
                    yield from self._of_batches("batch" if len(self._policies) == 1 else f"batch of {who}", later)
            if kept := [agent.name for agent in self._agents if agent.keep_ack_index_on_error]:
                yield FailurePath(
                    f"{' or '.join(kept)} raises after setting ack_index", "messages up to it are done", "", (), 1, "", _AT_ONCE
                )
        timeouts = [] if self._shares else [agent.consume_timeout for agent in self._agents if agent.kind != "stream"]
        for timeout in dict.fromkeys(timeouts):
            if timeout:
                when = f"the handler takes longer than {spelled(timeout)}"
                yield FailurePath(when, "cancelled, and has failed", "", (), 1, "", "as after a failure")
            else:
                yield self._hangs("the handler")
        yield self._held("the handler raises SystemExit or KeyboardInterrupt", "undecided; the worker stops", "")

    def _suspended(self, agent: Agent, in_place: RetryInPlace) -> FailurePath:
        """A handler with an order."""
        delay, limit = float(in_place.delay), in_place.max_reconsume_times
        then = f"suspended in place, and what {_FOLLOWS[agent.order]} waits behind it"
        ends = f"{self._names.dead_letter or 'dropped'}, {Reason.MAX_RECONSUME_TIMES}" if in_place.on_dead == "continue" else ""
        after = (
            f"{format_duration(delay)} × {limit}" if ends else f"{format_duration(delay)} × {limit}, then every {spelled(LONGEST_DELAY)}"
        )
        offset = "once it is done or dead" if ends else "once it is done"
        return FailurePath(f"{agent.name} raises", then, after if limit else "", (delay,) * limit, limit + 1, ends, offset)

    def _of_streams(self) -> Iterator[FailurePath]:
        for who, later in _of_loops(self._later, self._agents):
            yield from self._of_errors(who, later)
            yield from self._of_wishes(who, later)
            yield from self._of_batches("current_batch()" if who == "the agent" else f"current_batch() in {who}", later)
        yield self._ruled("something that the agent sent for a message is not accepted", lambda batch: Raised(RuntimeError()))
        yield self._held("a change of a table is not accepted", "undecided; the worker stops", "")
        yield self._ruled("the agent leaves its loop in the middle of a message, and starts another", lambda batch: Raised(RuntimeError()))
        yield self._held("the agent does not acknowledge an event of noack()", "held until it does, or the worker ends", "")
        yield self._held("the agent returns", "what comes then is held until the worker is started again", "")
        yield self._hangs("the agent")
        yield self._held("the agent raises SystemExit or KeyboardInterrupt", "undecided; the worker stops", "")

    def _of_errors(self, who: str, later: ConsumeLater) -> Iterator[FailurePath]:
        yield self._ruled(f"{who} raises", lambda batch: Raised(RuntimeError()), later=later)
        for kind in dict.fromkeys((*later.retry_by_error, *later.no_retry)):
            if not issubclass(kind, STOPS):
                yield self._ruled(f"{who} raises {kind.__name__}", _raising(kind), later=later)

    def _of_wishes(self, who: str, later: ConsumeLater) -> Iterator[FailurePath]:
        yield self._ruled(f"{who} raises Later(…)", lambda _: Raised(raising.Later(30)), after="as asked", later=later)
        yield self._ruled(f"{who} asks for a level below 0", lambda _: Raised(raising.Later(level=-1)), later=later)
        yield self._ruled(f"{who} raises Reject", lambda batch: Raised(raising.Reject("no")), later=later)

    def _hangs(self, who: str) -> FailurePath:
        return self._held(f"{who} does not come back", f"its partition waits, with a warning every {spelled(HANG_WARNING)}", "")

    def _of_batches(self, spelled_as: str, later: ConsumeLater) -> Iterator[FailurePath]:
        def prefix(batch: Batch[Any]) -> Returned[Any]:
            batch.ack_index = -1
            return Returned(None)

        def one_later(batch: Batch[Any]) -> Returned[Any]:
            batch.later(batch[0], delay=30)
            return Returned(None)

        def one_dead(batch: Batch[Any]) -> Returned[Any]:
            batch.dead(batch[0], "why")
            return Returned(None)

        batch, _, whose = spelled_as.partition(" ")
        whose = whose and f" {whose}"
        yield self._ruled(f"a message above {batch}.ack_index = i{whose}", prefix, later=later)
        yield self._ruled(f"{batch}.later(message, delay=…){whose}", one_later, after="as asked", later=later)
        yield self._ruled(f"{batch}.dead(message, why){whose}", one_dead, reason="why", later=later)

    def _of_middleware(self) -> Iterator[FailurePath]:
        if self._slots.arounds:
            yield self._ruled("a middleware raises", lambda batch: Raised(RuntimeError()))
            yield FailurePath("a middleware returns nothing", "what the handler said stands", "", (), None, "", "as the handler said")
            yield self._ruled("a middleware neither calls the handler nor returns", lambda batch: Raised(InvalidHandlerResult("nothing")))

    def _of_messages(self) -> Iterator[FailurePath]:
        yield self._dead("the value can't be decoded", Reason.UNDECODABLE, attempts=None, then="dead letter with the raw bytes, never run")
        keyed = [agent.dedup or self._dedup or self._transactional for agent in self._agents]
        if any(each is not None and callable(each.key) for each in keyed):
            yield self._ruled("the key function raises", lambda batch: Raised(RuntimeError()))
        for when in filter(None, map(_too_late, self._agents)):
            yield self._dead(when, Reason.EXPIRED, attempts=None, then="dead letter, not run")
        if self._broadcasts:
            return
        if any(agent.order is not None for agent in self._agents):
            yield self._dead("ackwise inplace bury names a message that waits in place", Reason.BURIED, attempts=None)
        yield self._dead("a copy for a handler that is gone, an hour after its first failure", Reason.NO_HANDLER, attempts=None)
        yield self._dead(
            "a message to be sent later whose topic is missing for max_delay after it was due",
            Reason.NO_TARGET,
            attempts=None,
        )
        yield self._dead("a record on the retry topic that is no copy of this group", Reason.FOREIGN_COPY, attempts=None)
        yield self._dead("a copy that the brokers refuse as too large", Reason.TOO_LARGE, then="dead letter, cut until it fits")

    def _of_surroundings(self) -> Iterator[FailurePath]:
        back_off = f"{spelled(FIRST_WAIT)}, doubling to {spelled(LONGEST_WAIT)}"
        if not self._broadcasts:
            yield self._held(
                "the brokers do not acknowledge a copy or dead letter",
                "held; it is sent again, nothing is run again",
                f"every {spelled(PUBLISH_AGAIN)}",
                "once it is acknowledged",
            )
        yield self._held("a commit fails", "nothing; the next commit makes it good", self._commit_interval, "with the next commit")
        if self._dedup is not None:
            yield from self._of_store(self._dedup, back_off)
        if self._transactional is not None:
            away = "the database is unavailable while the handler runs, or refuses a commit for a while"
            then = f"rolled back; {_COPIED}" if self._shares else "rolled back and held; it is run again"
            yield self._held(away, then, back_off)
            doubt = "it is not known whether a commit came through"
            yield self._held(doubt, "held; the key tells, and it is run only if it did not", back_off)
        if self._slots.events is not None:
            yield self._of_disk(self._slots.events, back_off)

    def _of_store(self, dedup: Dedup, back_off: str) -> Iterator[FailurePath]:
        before, after = "the store is down before the handler runs", "the store is down after it ran"
        match dedup.on_store_down:
            case "block" if self._shares:
                yield self._held(before, _COPIED, back_off, _COPY_IS_THERE)
            case "block":
                yield self._held(before, "held; the same claim is asked again", back_off)
            case "fail_open":
                yield self._held(before, "run without a claim, maybe a second time; the store is updated later", "", "as otherwise")
            case "fail_closed":
                yield self._held(before, "not run; the worker stops", "")
        if dedup.on_store_down == "fail_open":
            yield self._held(after, "settled; the store is updated later", back_off, _AT_ONCE)
        else:
            yield self._held(after, "held; the store is updated again, nothing runs again", back_off, "once the store knows")

    def _of_disk(self, events: Events, back_off: str) -> FailurePath:
        when = "the disk of the event log fails"
        if events.mode == "async":
            return self._held(when, "goes on; events wait in memory, and past a bound the messages are held", back_off, "as otherwise")
        return self._held(when, "held; the events are written again, nothing is run again", back_off, "once they are durable")

    def _of_claims(self) -> Iterator[FailurePath]:
        if self._transactional is not None:
            back_off = f"{spelled(FIRST_WAIT)}, doubling to {spelled(LONGEST_WAIT)}"
            if self._transactional.mode == "inbox":
                yield from self._of_finished()
            else:
                twice = "a message that its producer sent twice"
                yield FailurePath(twice, "run twice: offsets do not tell", "", (), 1, "", "as the first time")
                yield self._held("a message waits", "what is behind it in its partition waits too", back_off)
            yield self._held("another worker has the message in a transaction", "waits for that transaction, then as it ended", "")
            yield self._ruled("the handler commits or rolls back by itself", lambda batch: Raised(RuntimeError()))
            if self._transactional.mode == "inbox":
                unseen = "a procedure of the database commits, which can't be seen before"
                yield self._dead(
                    unseen, Reason.ABORTED_AND_COMMITTED, attempts=None, then="dead letter, never run again; what it wrote stays"
                )
            return
        dedup = self._dedup
        if dedup is None:
            yield FailurePath("a message comes a second time", "run again: dedup is off", "", (), 1, "", "as the first time")
            return
        lease = spelled(float(dedup.lease))
        yield from self._of_finished()
        if self._shares:
            yield self._held("another worker holds the claim", _COPIED, f"{lease} at most, if that worker died")
        else:
            yield from self._of_busy(dedup, lease)
        if self._has_handlers:
            yield self._held("the claim is lost to another worker", "the handler is called off, the message claimed again", "")
        if self._has_streams:
            yield self._held("the claim is lost while an agent has the message", "waited for, then claimed again", "")

    def _of_busy(self, dedup: Dedup, lease: str) -> Iterator[FailurePath]:
        """A claim that another worker holds: what has an order waits, however long it takes."""
        when, ordered = "another worker holds the claim", [agent for agent in self._agents if agent.order is not None]
        if dedup.on_busy == "copy" and len(ordered) < len(self._agents):
            then = f"held for {lease}; then copied to the delay topic, no attempt is charged"
            yield self._held(when, then, f"at most {lease} in place", _COPY_IS_THERE)
        if dedup.on_busy == "wait" or ordered:
            of_order = f", and the handler is {' or '.join(agent.name for agent in ordered)}" if dedup.on_busy == "copy" else ""
            yield self._held(f"{when}{of_order}", "held until that claim ends", f"{lease} at most, if that worker died")

    @staticmethod
    def _of_finished() -> Iterator[FailurePath]:
        yield FailurePath("a duplicate of a finished message", "not run", "", (), None, "", _AT_ONCE)
        yield FailurePath(
            "a copy that a later attempt overtook", "dropped: the later one is on its way or done", "", (), None, "", _AT_ONCE
        )

    def _of_workers(self) -> Iterator[FailurePath]:
        partitions = f"{spelled(self._settings.session_timeout)} for its partitions"
        if self._transactional is not None:
            yield self._held("the worker is killed", "what it wrote is rolled back; delivered again, and run once", partitions, _NOT_HERE)
        elif self._dedup is None:
            yield self._held("the worker is killed", "delivered again, and run again", partitions, _NOT_HERE)
        else:
            lease = f"{spelled(float(self._dedup.lease))} for its claims"
            yield self._held(
                "the worker is killed", "delivered again, and run again unless it was completed", f"{partitions}, {lease}", _NOT_HERE
            )
        yield from self._of_killers()
        then = "publishes and commits nothing; delivered again"
        yield self._held(
            "a batch still runs revoke_timeout after its partition was taken away", then, spelled(self._settings.revoke_timeout), _NOT_HERE
        )
        yield self._held(
            "a batch still runs drain_timeout after the stop",
            "cancelled; delivered again",
            spelled(self._settings.drain_timeout),
            _NOT_HERE,
        )

    def _of_killers(self) -> Iterator[FailurePath]:
        if self._dedup is None and self._shares:
            return  # a share group keeps no offsets that could say what was tried
        lease = "" if self._dedup is None else f"{spelled(float(self._dedup.lease))} for its claims"
        yield self._held(f"workers are killed by one message, {ALONE_AFTER} times", "it runs alone", lease, _NOT_HERE)
        yield self._dead(f"… {DEAD_AFTER} times", Reason.CRASHED_WORKER, attempts=None)

    @property
    def _commit_interval(self) -> str:
        return spelled(self._settings.commit_interval or 5.0)

    def _ruled(
        self,
        when: str,
        act: Callable[[Batch[Any]], Raised | Returned[Any]],
        *,
        after: str | None = None,
        reason: str | None = None,
        later: ConsumeLater | None = None,
    ) -> FailurePath:
        """What the rulings and the policy make of a batch of one message; `later` is that of the app unless it is given."""
        batch = Batch([_MESSAGE])
        result = act(batch)
        disposition = dispositions_of(batch, result, handler="")[0]
        if isinstance(disposition, Dead):
            return self._dead(when, reason or disposition.reason)
        assert isinstance(disposition, Delayed), "a failure is later or dead"
        error = result.error if isinstance(result, Raised) else None
        travelled = journey(self._later if later is None else later, disposition, error)
        if not travelled.delays:
            return self._dead(when, travelled.end)
        delays = travelled.delays
        ends = f"{self._names.dead_letter}, {travelled.end}"
        return FailurePath(when, "comes back", after or delays_in_words(delays), delays, travelled.attempts, ends, _COPY_IS_THERE)

    def _dead(self, when: str, reason: str, *, attempts: int | None = 1, then: str = "dead letter at once") -> FailurePath:
        if self._broadcasts:
            return FailurePath(when, _DROPPED, "", (), attempts, "", _AT_ONCE)
        return FailurePath(when, then, "", (), attempts, f"{self._names.dead_letter}, {reason}", _DEAD_LETTER_IS_THERE)

    def _held(self, when: str, then: str, after: str, offset: str = _NOT_YET) -> FailurePath:
        return _held(when, then, offset, after)


def _policies(app: ConsumeLater, agents: Sequence[Agent]) -> list[tuple[str, ConsumeLater, bool]]:
    """Who retries how, and whether among them are handlers of batches: handlers that wait in place and loops are left out."""
    of_handlers = [agent for agent in agents if agent.in_place is None and agent.kind != "stream"]
    found: dict[int, tuple[ConsumeLater, list[Agent]]] = {}
    for agent in of_handlers:
        later = app if agent.later is None else agent.later
        found.setdefault(id(later), (later, []))[1].append(agent)
    return [
        (
            "the handler" if len(found) == 1 else " or ".join(agent.name for agent in some),
            later,
            any(agent.kind == "batch" for agent in some),
        )
        for later, some in found.values()
    ]


def _of_loops(app: ConsumeLater, agents: Sequence[Agent]) -> list[tuple[str, ConsumeLater]]:
    """As `_policies`, of the agents of Faust that are loops."""
    found: dict[int, tuple[ConsumeLater, list[str]]] = {}
    for agent in agents:
        if agent.kind == "stream":
            later = app if agent.later is None else agent.later
            found.setdefault(id(later), (later, []))[1].append(agent.name)
    return [("the agent" if len(found) == 1 else " or ".join(names), later) for later, names in found.values()]


def _too_late(agent: Agent) -> str:
    """When a message of `agent` has expired; empty if none ever does."""
    if not agent.max_age:
        return f"the time in the header `expires` of a message for {agent.name} is past" if agent.expires else ""
    return f"a message for {agent.name} is {spelled(agent.max_age)} old{', or past its header `expires`' if agent.expires else ''}"


_MESSAGE: Final = Message[Any](Delivery("", 0, 0, 0, None, None, (), Origin("", 0, 0, 0)), None)


def _raising(kind: type[BaseException]) -> Callable[[Batch[Any]], Raised]:
    """Raises one of `kind`, made past what the user's own class wants to be given."""
    built_in: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    error = built_in.__new__(kind, *(("", [Exception()]) if issubclass(kind, BaseExceptionGroup) else ()))
    return lambda _: Raised(error)


def delays_in_words(delays: Sequence[float]) -> str:
    """The delays in order; equal ones together, at most twenty."""
    groups = [(delay, len(list(equal))) for delay, equal in groupby(delays)]
    texts = [format_duration(delay) if delay else "0s" for delay, _ in groups]
    counted = [text if times == 1 else f"{text} × {times}" for text, (_, times) in zip(texts, groups, strict=True)]
    return ", ".join(counted[:_SHOWN_DELAYS]) + (" …" if len(counted) > _SHOWN_DELAYS else "")


_SHOWN_DELAYS: Final = 20


def _held(when: str, then: str, offset: str, after: str = "") -> FailurePath:
    return FailurePath(when, then, after, (), None, "", offset)


def _of_instance(settings: HostSettings, policy: Broadcasting) -> Iterator[FailurePath]:
    """Those that only an instance that broadcasts has: what it misses, and what it runs again."""
    begins = "end" if settings.start == "latest" else "start"
    yield _held("the instance is killed", "what it had not committed is run again by itself", _BACK)
    yield _held(f"a batch still runs {spelled(settings.drain_timeout)} after the stop", "cancelled; run again by this instance", _BACK)
    yield _held(
        "the instance is unavailable for longer than a topic keeps its records", "what was deleted is missed, with an event", "at its start"
    )
    yield _held("an instance of a new name starts", f"starts at the {begins} of the topics", "at its start")
    yield _held("an instance of the same name is running", "the second does not start, or stops", "not by that one")
    if policy.offsets_file is not None:
        yield _held(
            "the offsets file can't be written, as on a full disk", "goes on; the next commit makes it good", "with the next commit"
        )
        yield _held("the offsets file is damaged, or another's", "the instance does not start", "not before it is fixed")


def _of_outbox(outbox: Outbox) -> Iterator[FailurePath]:
    """Those of the rows that wait to be sent: what is sent twice, and what is parked."""

    def of_row(when: str, then: str, after: str) -> FailurePath:
        return _held(when, then, "none: a row has no offset", after)

    lease = spelled(float(outbox.lease))
    held = "its key waits until it is requeued" if outbox.on_error == "block" else "later rows of its key go on"
    yield of_row("the brokers do not acknowledge a row", "its key waits; it is sent again", "1s × 1.6 each time, at most 2m, ± 20%")
    yield of_row(f"… {outbox.max_attempts} times", f"parked; {held}", "")
    yield of_row("the brokers refuse a row for good", f"parked; {held}", "")
    yield of_row("no broker answers", "rows wait, no attempt is counted", "1s, growing to 10s")
    yield of_row("the database of the outbox is unavailable", "rows wait; what was acknowledged is deleted later", "1s, doubling to 10s")
    yield of_row("the relay is killed before the acknowledgement", "sent by another one", f"{lease} for its shards")
    yield of_row("the relay is killed before the row is deleted", "sent again, under the same message id", f"{lease} for its shards")
    yield of_row("the relay stalls longer than its lease", "it sends nothing more; another one has its shards", lease)


def _of_share(settings: HostSettings, share: Share) -> Iterator[FailurePath]:
    """Those that only a worker in a share group has: what is copied uncharged, delivered again, and given up by the broker."""
    copied = "copied to the retry topic, no attempt is charged"
    lock, timeout = spelled(float(share.lock)), spelled(share.seconds)
    yield _held("the broker delivers a message again", f"{copied}, and run from there", _COPY_IS_THERE)
    yield _held(f"a message has not started {timeout} after it was locked", copied, _COPY_IS_THERE)
    yield _held(
        f"a handler still runs {timeout} after its message was locked", "cancelled, and comes back as if it had raised", _COPY_IS_THERE
    )
    yield _held("the lock has ended when a message is accepted", "refused, with an event; delivered again", "once it is copied")
    yield _held("the worker is killed", "delivered again", "by another worker", lock)
    yield _held(
        "a worker is killed in each of the broker's deliveries (5 unless set) before it has copied the message",
        "lost: the broker gives it up",
        "by the broker",
    )
    yield _held(f"a handler still runs {spelled(settings.drain_timeout)} after the stop", "cancelled; delivered again", "by another worker")
