"""Admission, the first phase: decodes messages, finds their dedup keys, and asks the store once for the whole batch who may run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ackwise.middleware import identity
from ackwise.middleware.agent import Agent
from ackwise.middleware.disposition import Dead, Done, Duplicate, Failure, Later, Reason
from ackwise.middleware.entry import Entry, Stage
from ackwise.middleware.errors import StoreUnavailable, UndecodableHeader
from ackwise.middleware.events import EventCode
from ackwise.middleware.fate import decide, log_broken_policy
from ackwise.middleware.leases import Leases
from ackwise.middleware.log import Log, said
from ackwise.middleware.message import Delivery, Message
from ackwise.middleware.policies import Dedup, Transactional
from ackwise.middleware.rulings import stops
from ackwise.middleware.store import Acquired, AlreadyDone, Busy, Claim, ClaimAnswer, ClaimKey, Outcome, Stale
from ackwise.middleware.tracebacks import where_raised
from ackwise.middleware.wire import has_raw_names
from ackwise.middleware.worker import Worker

__all__ = ["Admission"]

log = Log()

#: Losses of one attempt after which a message runs alone, and after which it is a dead letter.
ALONE_AFTER = 3
DEAD_AFTER = 10

_MS_PER_DAY = 86_400_000


class Admission:
    """The first phase of the pipeline of `agent`."""

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self._agent = agent
        self._worker = worker
        self._message = agent.message or self._decoded
        self._leases = worker.leases
        dedup = worker.dedup
        self._dedup = dedup
        self._by_coordinates = isinstance(dedup, Transactional) and dedup.mode == "offsets"
        self._id_header = None if dedup is None else dedup.id_header
        self._has_legacy_ids = dedup is not None and dedup.message_id_scope == "legacy"
        self._on_store_down = dedup.on_store_down if isinstance(dedup, Dedup) else "block"
        self._identity = None
        if dedup is not None:
            self._identity = identity.Identity(dedup.namespace, worker.group, agent.name, dedup.epoch)
        self.undeduplicated = 0  #: messages whose key was None or ""
        self.unprotected = 0  #: messages that ran without a claim while the store was down

    def prepare(self, entries: Sequence[Entry]) -> BaseException | None:
        """Decode values and find keys, once per message; returns what stops the app if user code raised that."""
        unidentified: list[tuple[Entry, BaseException]] = []
        broken: list[Exception] = []
        for entry in entries:
            if entry.prepared or entry.stage is not Stage.FETCHED:
                continue
            if entry.delivery.headers and has_raw_names(entry.delivery.headers):
                entry.prepared = True
                entry.rule(Dead(Reason.UNDECODABLE, Failure.of(UndecodableHeader("the name of a header is not UTF-8"))))
                continue
            try:
                entry.message = self._message(entry.delivery)
            except BaseException as error:  # noqa: BLE001  # the decoder is the user's, and one in Rust may panic
                if stops(error):
                    return error
                entry.prepared = True
                entry.rule(Dead(Reason.UNDECODABLE, Failure.of(error)))
                continue
            try:
                self._identify(entry, entry.message)
            except BaseException as error:  # noqa: BLE001  # the key function is the user's: as if the handler had raised
                if stops(error):
                    return error
                entry.prepared = True
                unidentified.append((entry, error))
                if (raised := decide(entry, Later(failure=Failure.of(error)), self._worker.later, error)) is not None:
                    broken.append(raised)
            entry.prepared = True
        self._log_unidentified(unidentified)
        log_broken_policy(self._agent.name, broken)
        return None

    def _decoded(self, delivery: Delivery) -> Message[Any]:
        return Message(delivery, self._agent.decode(delivery.value))

    def _log_unidentified(self, unidentified: Sequence[tuple[Entry, BaseException]]) -> None:
        if not unidentified:
            return
        first, error = unidentified[0]
        log.warning(
            "the key function of Dedup raised, its messages count as failed",
            handler=self._agent.name,
            messages=len(unidentified),
            topic=first.delivery.origin.topic,
            partition=first.delivery.origin.partition,
            offset=first.delivery.origin.offset,
            error=type(error).__name__,
            at=where_raised(error),
        )
        log.debug("what the key function raised", handler=self._agent.name, raised=error)

    def _identify(self, entry: Entry, message: Message[Any]) -> None:
        if self._identity is None or self._dedup is None:
            return
        delivery = entry.delivery
        day: int | None = delivery.origin.timestamp_ms // _MS_PER_DAY
        if self._by_coordinates:
            dedup_id = identity.coordinates_id(*delivery.origin)
        elif self._dedup.key is not None:
            key = self._dedup.key(message)
            if key is not None and not isinstance(key, (str, bytes)):
                raise TypeError(f"the key function of Dedup answered a {type(key).__name__}; it must answer a str, bytes or None")
            if not key:
                self.undeduplicated += 1
                return
            dedup_id, day = identity.business_id(key), None
        elif self._id_header is not None and (given := message.header(self._id_header)):
            dedup_id = identity.legacy_id(given) if self._has_legacy_ids else identity.message_id(delivery.origin.topic, given)
        else:
            dedup_id = identity.coordinates_id(*delivery.origin)
        claim_id, entry.dedup_hash = self._identity.of(dedup_id, delivery.replay_id)
        entry.key = ClaimKey(claim_id, day, delivery.attempt)

    async def claim(self, entries: Sequence[Entry]) -> None:
        """One store call: who may run is ADMITTED, what is finished is RULED, everything else is held."""
        fetched = [entry for entry in entries if entry.stage is Stage.FETCHED]
        claimants: list[Entry] = []
        claims: list[Claim] = []
        for entry in self.elect(fetched):
            if entry.key is None or self._leases is None:
                entry.stage = Stage.ADMITTED
            else:
                entry.token = entry.token or self._leases.token()
                claimants.append(entry)
                claims.append(Claim(entry.key, entry.token))
        if self._leases is None or not claimants:
            return
        if self._on_store_down == "fail_open" and self._leases.is_down:
            self._run_unprotected(claimants, self._leases)
            return
        asked_at = self._worker.monotonic()
        try:
            answers = await self._leases.claim(claims)
        except StoreUnavailable as error:  # the tokens stay: the same claims are asked again
            self._without_store(claimants, self._leases, error)
            return
        answered: list[tuple[Entry, ClaimAnswer]] = []
        unanswered: list[tuple[Entry, StoreUnavailable]] = []
        for entry, answer in zip(claimants, answers, strict=True):
            if isinstance(answer, StoreUnavailable):
                unanswered.append((entry, answer))
            else:
                answered.append((entry, answer))
        if unanswered and self._on_store_down != "fail_open":  # nothing overtakes what a dead process began
            self._await_store(claimants, unanswered[0][1])
            return
        busy = [answer.retry_after for entry, answer in answered if isinstance(answer, Busy) and not entry.elsewhere]
        if busy:
            where = claimants[0].delivery
            log.info(
                "messages wait for claims that are held, here or by another worker",
                handler=self._agent.name,
                topic=where.topic,
                partition=where.partition,
                messages=len(busy),
                at_most=round(max(busy), 3),
            )
        self._leases.add([entry for entry, answer in answered if isinstance(answer, Acquired)], asked_at)
        for entry, answer in answered:
            if isinstance(answer, Acquired):
                self._grant(entry, answer, self._leases)
            else:
                self._refuse(entry, answer)
        if unanswered:  # others may run them by now; the tokens stay here too
            self._await_store([entry for entry, _ in unanswered], unanswered[0][1])

    def _without_store(self, claimants: Sequence[Entry], leases: Leases, error: StoreUnavailable) -> None:
        if self._on_store_down == "fail_open":
            self._run_unprotected(claimants, leases, error)
        else:
            self._await_store(claimants, error)

    def _await_store(self, claimants: Sequence[Entry], error: StoreUnavailable) -> None:
        if self._on_store_down == "fail_closed":
            raise StoreUnavailable(f"{error}; on_store_down is fail_closed: the app stops, and nothing is run or committed") from error
        self._worker.postpone(claimants, "the store is not available", error)

    def _run_unprotected(self, claimants: Sequence[Entry], leases: Leases, error: StoreUnavailable | None = None) -> None:
        """They run without a claim. But what succeeded in this process is not run again, store or not, and a killer waits.

        Without the store nobody would count how many workers a message ends.
        """
        unprotected = []
        for entry in claimants:
            if entry.alone:
                self._worker.postpone([entry], "workers ended while they ran it, and the store is not available")
                continue
            entry.unprotected = True
            if entry.succeeded:
                entry.rule(Done())
            elif entry.key is not None and leases.succeeded(entry.key.id):
                entry.rule(Duplicate())
            elif entry.key is not None and leases.is_running(entry.key.id):
                entry.unprotected = False
                self._worker.postpone([entry], "its key is running here, and the store is not available")
            else:
                entry.stage = Stage.ADMITTED
                unprotected.append(entry)
        self.unprotected += len(unprotected)
        if unprotected and error is not None:  # not for each batch: it was asked a moment ago
            where = unprotected[0].delivery.origin
            log.warning(
                "messages run without a claim, the store is not available",
                handler=self._agent.name,
                topic=where.topic,
                partition=where.partition,
                offset=where.offset,
                messages=len(unprotected),
                error=said(error),
            )

    def elect(self, fetched: Sequence[Entry]) -> list[Entry]:
        """Of each key the highest attempt leads, the first among equals; equal ones follow it, lower ones are stale.

        What is not elected may hold a claim, if the answer was lost: it is given back before the key is claimed for another.
        """
        keys = [entry.key.id for entry in fetched if entry.key is not None]
        if len(set(keys)) == len(keys):
            for entry in fetched:
                entry.leader = None
            return list(fetched)
        leaders: dict[bytes, Entry] = {}
        for entry in fetched:
            if entry.key is not None:
                leader = leaders.get(entry.key.id)
                if leader is None or leader.key is None or entry.key.attempt > leader.key.attempt:
                    leaders[entry.key.id] = entry
        elected = []
        for entry in fetched:
            leader = None if entry.key is None else leaders[entry.key.id]
            if leader is None or leader is entry or leader.key is None or entry.key is None:
                entry.leader = None
                elected.append(entry)
                continue
            if self._leases is not None:
                self._leases.give_back(entry)
            if entry.key.attempt == leader.key.attempt:
                entry.leader = leader
            else:
                entry.rule(Done() if entry.succeeded else Duplicate(stale=True, leader=str(leader.delivery.origin)))
        return elected

    def _grant(self, entry: Entry, claim: Acquired, leases: Leases) -> None:
        entry.fencing_token, entry.lost, entry.took_unreleased = claim
        entry.unprotected, entry.tries = False, 0
        if entry.message is not None:
            entry.message.fencing_token = entry.fencing_token
        if entry.succeeded:
            entry.rule(Done())
        elif entry.key is not None and leases.succeeded(entry.key.id):
            entry.rule(Duplicate())  # another record of this key succeeded here: completed at once, never run
        elif entry.lost >= DEAD_AFTER:
            entry.rule(Dead(Reason.CRASHED_WORKER))
        elif entry.lost >= ALONE_AFTER and not entry.alone:
            entry.alone = True
            leases.give_back(entry)
            entry.postpone(self._worker.monotonic(), f"{entry.lost} workers died of it: it runs alone")
            log.warning(
                "a message runs alone from now on, workers ended while they ran it",
                handler=self._agent.name,
                topic=entry.delivery.origin.topic,
                partition=entry.delivery.origin.partition,
                offset=entry.delivery.origin.offset,
                attempt=entry.delivery.attempt,
                workers=entry.lost,
            )
        else:
            entry.stage = Stage.ADMITTED

    def _refuse(self, entry: Entry, answer: Busy | AlreadyDone | Stale) -> None:
        entry.token = 0
        match answer:
            case Busy(retry_after, _):
                self._worker.postpone([entry], "another worker holds its claim", at_most=retry_after)
                if not entry.elsewhere:
                    entry.elsewhere = True
                    self._worker.record(self._worker.event(EventCode.IN_FLIGHT_ELSEWHERE, self._agent.name, entry))
            case AlreadyDone(outcome):
                entry.rule(Done() if entry.succeeded else Duplicate(dead=outcome is Outcome.DEAD))
            case Stale():
                entry.rule(Done() if entry.succeeded else Duplicate(stale=True))
