"""Admission, the first phase: decodes messages, finds their dedup keys, and asks the store once for the whole batch who may run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final

from ackwise.middleware.claims.leases import Leases, Moment
from ackwise.middleware.errors import CodecUnavailable, StoreUnavailable, UndecodableHeader
from ackwise.middleware.events import EventCode
from ackwise.middleware.log import Log, said
from ackwise.middleware.message.disposition import Dead, Delayed, Done, Duplicate, Failure, Reason, Unrecorded
from ackwise.middleware.message.keys import DEFAULT_KEY, Identity, business_id, coordinates_id, identifies, key_from, message_id
from ackwise.middleware.message.message import Delivery, Message, delivery_of
from ackwise.middleware.message.wire import has_raw_names
from ackwise.middleware.pipeline.decoding import CODEC_AWAY, decoded, decoded_ahead, ends, has_failed, take, unavailable
from ackwise.middleware.pipeline.start import hold_back
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.policies import Dedup, Transactional
from ackwise.middleware.policies.retry import SendBack
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.redelivery import decide
from ackwise.middleware.runs.run import Run, Stage, apart, count, divide, pick
from ackwise.middleware.storage.claimstore import FIRST, Acquired, AlreadyDone, Busy, ClaimAnswer, Outcome, Stale
from ackwise.middleware.usercode import Raised, Returned, Stops, class_name, where_raised

log = Log()

#: Losses of one attempt after which a message runs alone, and after which it is a dead letter.
ALONE_AFTER = 3
DEAD_AFTER = 10

#: Why a copy of a message was sent that another call has, as its `ackwise-reason` says.
_HELD_ELSEWHERE: Final = "ClaimHeldElsewhere"

#: Seconds within which the rate lets all start that is claimed. A batch starts as a whole, so that it is claimed when it may start.
AHEAD = 2.0

_MS_PER_DAY = 86_400_000

_headers = attrgetter("headers")


class Admission:
    """The first phase of the pipeline of `agent`."""

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self._agent = agent
        self._worker = worker
        self._leases = worker.leases
        dedup = worker.dedup if agent.dedup is None else agent.dedup
        self._dedup = dedup
        self._by_coordinates = isinstance(dedup, Transactional) and dedup.mode == "offsets"
        self._key_of = dedup.key if dedup is not None and callable(dedup.key) else None
        self._id_header = None if dedup is None else dedup.message_id_header
        self._on_store_down = dedup.on_store_down if isinstance(dedup, Dedup) else "block"
        self._identity = None
        if dedup is not None:
            self._identity = Identity(dedup.namespace, worker.group, agent.name, dedup.epoch)
        #: Seconds in place after which a message whose claim is held elsewhere leaves as a copy; `None`: it waits however long that takes.
        self._leaves_after = _leaves_after(agent, worker, dedup)
        self.ahead = 0.0 if agent.kind == "batch" else AHEAD  #: seconds within which what is claimed may start by its rate
        self.left = 0  #: messages that left as copies, since another call had their key
        self.undeduplicated = 0  #: messages whose key was None or ""
        self.unprotected = 0  #: messages that ran without a claim while the store was down

    async def prepare(self, runs: list[Run]) -> BaseException | None:
        """Like `decode`, whatever the decoder has to wait for; and what the rate of the handler does not let start now is withheld."""
        if self._agent.decodes_async:
            await self._decode_ahead(runs)
        stopped = self.decode(runs)
        if stopped is not None or self._worker.flow.rate_limit_of(self._agent.name) is None:
            return stopped
        return self._worker.flow.limit(self._agent.name, runs, ahead=self.ahead)

    async def renew(self, runs: list[Run]) -> BaseException | None:
        """Like `decode`, where a handler has had values that are to run again."""
        if not any(map(_is_due, runs)):
            return None
        if self._agent.decodes_async:
            await self._decode_ahead(runs)
        return self.decode(runs)

    def decode(self, runs: list[Run]) -> BaseException | None:
        """Decode values, again where a handler has had them, and find keys, once per message.

        Returns what stops the app if user code raised that.
        """
        unidentified: list[tuple[Run, BaseException]] = []
        broken: list[Raised | Stops] = []
        stopped: BaseException | None = None
        away: CodecUnavailable | None = None
        for run in runs:
            if run.stage is Stage.WITHHELD:  # it is as it was fetched
                run.stage, run.disposition = Stage.FETCHED, None
        settling = [run for run in runs if run.stage is not Stage.FETCHED]  # what is decided, and not for the first time here
        for run in [run for run in runs if run.stage is Stage.FETCHED and _is_due(run)]:
            is_known = run.prepared
            if any(map(_headers, run.records)):
                self._refuse_raw_names(runs, run)
            if stopped is not None or run.stage is not Stage.FETCHED or not len(run):
                continue
            if away is None:
                stopped, away = self._decode(runs, run)
            else:
                _withhold(run)  # behind one that could not be decoded now none is
            if is_known or stopped is not None or run.stage is not Stage.FETCHED or not len(run):
                continue
            if self._agent.order_by is not None:
                stopped = self._find_order(runs, run, self._agent.order_by, broken)
            if stopped is None and run.stage is Stage.FETCHED and len(run):
                stopped = self._identify(runs, run, unidentified, broken)
        if away is not None:  # all at once: apart, each of them would ask for itself when it is due
            self._worker.postpone([run for run in runs if run.stage is Stage.WITHHELD], CODEC_AWAY, away)
        if unidentified:
            self._log_unidentified(unidentified)
        if broken:
            self._worker.report_broken(self._agent.name, broken)
        if stopped is None and self._worker.flow.breaker_of(self._agent.name) is not None:
            self._worker.flow.judge(self._agent.name, runs, settling)
        return stopped

    def _refuse_raw_names(self, runs: list[Run], run: Run) -> None:
        raw = [place for place, record in enumerate(run.records) if record.headers and has_raw_names(record.headers)]
        for single in pick(runs, run, raw):
            single.rule(Dead(Reason.UNDECODABLE, Failure.of(UndecodableHeader("the name of a header is not UTF-8"))))

    async def _decode_ahead(self, runs: Sequence[Run]) -> None:
        """Let an asynchronous decoder decode what `decode` then takes; nothing is decided here."""
        for run in runs:
            if _is_due(run) and run.stage in (Stage.FETCHED, Stage.WITHHELD):
                run.ahead = ahead = await decoded_ahead(run, self._agent)
                if not isinstance(last := ahead[-1], Returned) and ends(last):
                    return  # what is behind it is not decoded, and waits

    def _decode(self, runs: list[Run], run: Run) -> tuple[BaseException | None, CodecUnavailable | None]:
        """What can't be decoded is dead, what can't be decoded now is held. Returns what stops the app, and why something is held."""
        values, bad = decoded(run, self._agent)
        for place, raised in bad.items():
            if isinstance(raised, Stops):
                return raised.error, None
            if (away := unavailable(raised)) is not None:
                (behind,) = divide(runs, run, [range(place, len(run))])
                _withhold(behind)
                if behind is run:
                    return None, away
                values, bad = values[:place], {before: error for before, error in bad.items() if before < place}
                take(run, values, self._agent)
                self._fall_out(runs, run, bad)
                return None, away
        take(run, values, self._agent)
        if bad:
            self._fall_out(runs, run, bad)
        return None, None

    def _fall_out(self, runs: list[Run], run: Run, bad: Mapping[int, Raised | Stops]) -> None:
        broken: list[Raised | Stops] = []
        for single, raised in zip(pick(runs, run, bad), bad.values(), strict=True):
            single.prepared = False  # it must never run: if it comes up again, it is decoded again
            if has_failed(raised):
                self._fail(single, raised, broken)
            else:
                single.rule(Dead(Reason.UNDECODABLE, Failure.of(raised.error)))
        self._worker.report_broken(self._agent.name, broken)

    def _fail(self, run: Run, raised: Raised | Stops, broken: list[Raised | Stops]) -> None:
        """Fail the messages as if the handler had raised the error."""
        failed, in_place = Delayed(failure=Failure.of(raised.error)), self._agent.in_place
        if (of_policy := decide(run, failed, self._worker.later_of(self._agent), raised.error, in_place=in_place)) is not None:
            broken.append(of_policy)

    def _find_order(
        self, runs: list[Run], run: Run, order_by: Callable[[Message[Any]], object], broken: list[Raised | Stops]
    ) -> BaseException | None:
        """Find the keys for the order; a message whose function raises has failed, in place and under the key of its record."""
        keys: list[Hashable] = []
        bad: dict[int, Raised] = {}
        for place, message in enumerate(run.messages()):
            key = key_from(order_by, message)
            if isinstance(key, Stops):
                run.prepared = False
                return key.error
            if isinstance(key, Raised):
                bad[place], key = key, message.key
            keys.append(key)
        run.order_keys = keys
        for single, raised in zip(pick(runs, run, bad), bad.values(), strict=True):
            single.prepared = False
            self._fail(single, raised, broken)
        if bad:
            self._log_unordered(run, bad)
        return None

    def _log_unordered(self, run: Run, bad: Mapping[int, Raised]) -> None:
        error = next(iter(bad.values())).error
        log.warning(
            "function of order_by raised",
            handler=self._agent.name,
            messages=len(bad),
            topic=run.place.topic,
            partition=run.place.partition,
            error=class_name(error),
            at=where_raised(error),
        )
        log.debug("what the function of order_by raised", handler=self._agent.name, raised=error)

    def _log_unidentified(self, unidentified: Sequence[tuple[Run, BaseException]]) -> None:
        first, error = unidentified[0]
        log.warning(
            "key function of Dedup raised",
            handler=self._agent.name,
            messages=len(unidentified),
            topic=first.origin.topic,
            partition=first.origin.partition,
            offset=first.origin.offset,
            error=class_name(error),
            at=where_raised(error),
        )
        log.debug("what the key function raised", handler=self._agent.name, raised=error)

    def _identify(
        self, runs: list[Run], run: Run, unidentified: list[tuple[Run, BaseException]], broken: list[Raised | Stops]
    ) -> BaseException | None:
        """Find the claim keys. A run has one day, or none."""
        if self._identity is None or self._dedup is None:
            return None
        if self._key_of is not None and not self._by_coordinates:
            return self._identify_by_key(runs, run, self._identity, self._key_of, unidentified, broken)
        if isinstance(run.records[0], Delivery):
            for single in apart(runs, run):
                self._identify_delivery(single, self._identity)
            return None
        days = {time // _MS_PER_DAY for time in (min(run.times()), max(run.times()))}
        if len(days) > 1:
            for part in self._by_day(runs, run):
                self._identify_records(part, self._identity)
        else:
            self._identify_records(run, self._identity)
        return None

    def _by_day(self, runs: list[Run], run: Run) -> list[Run]:
        places: dict[int, list[int]] = {}
        for place, time in enumerate(run.times()):
            places.setdefault(time // _MS_PER_DAY, []).append(place)
        return divide(runs, run, list(places.values()))

    def _identify_records(self, run: Run, ids: Identity) -> None:
        topic, partition = run.place
        run.claims.day = run.times()[0] // _MS_PER_DAY
        if self._id_header is not None and any(map(_headers, run.records)):
            found = [ids.of(self._dedup_id(delivery_of(run.place, record))) for record in run.records]
            run.claims.ids, run.claims.hashes = [claim_id for claim_id, _ in found], [hash_ for _, hash_ in found]
        elif ids.is_salted:
            given = zip(run.offsets, run.times(), strict=True)
            found = [ids.of(coordinates_id(topic, partition, offset, time)) for offset, time in given]
            run.claims.ids, run.claims.hashes = [claim_id for claim_id, _ in found], [hash_ for _, hash_ in found]
        else:
            run.claims.ids = ids.of_coordinates(topic, partition, run.offsets, run.times())
            run.claims.of_coordinates = True

    def _identify_delivery(self, run: Run, ids: Identity) -> None:
        delivery = run.delivery
        claim_id, hash_ = ids.of(self._dedup_id(delivery), delivery.replay_id)
        run.claims.day, run.claims.ids, run.claims.hashes = delivery.origin.timestamp_ms // _MS_PER_DAY, [claim_id], [hash_]
        if delivery.replay_id is not None:
            run.claims.base_id = ids.of(self._dedup_id(delivery))[0]

    def _dedup_id(self, delivery: Delivery) -> bytes:
        if self._id_header is not None:
            given = next((value for name, value in reversed(delivery.headers) if name == self._id_header), None)
            if given:
                return message_id(delivery.origin.topic, given)
        return coordinates_id(*delivery.origin)

    def _identify_by_key(
        self,
        runs: list[Run],
        run: Run,
        ids: Identity,
        key_of: Callable[[Message[Any]], object],
        unidentified: list[tuple[Run, BaseException]],
        broken: list[Raised | Stops],
    ) -> BaseException | None:
        """By the key function, which is the user's: what it raises counts as if the handler had raised it."""
        found: list[tuple[bytes, int]] = []
        without: dict[int, Raised | None] = {}
        for place, message in enumerate(run.messages()):
            key = key_from(key_of, message, may_be_default=True)
            if isinstance(key, Stops):
                run.prepared = False
                return key.error
            if isinstance(key, Raised) or not identifies(key):
                without[place] = key if isinstance(key, Raised) else None
                found.append((b"", 0))
                continue
            replay_id = message.delivery.replay_id if len(run) == 1 else None
            dedup_id = self._dedup_id(message.delivery) if key is DEFAULT_KEY else business_id(key)
            found.append(ids.of(dedup_id, replay_id))
            if replay_id is not None:
                run.claims.base_id = ids.of(dedup_id)[0]
        run.claims.ids, run.claims.hashes = [claim_id for claim_id, _ in found], [hash_ for _, hash_ in found]
        for single, raised in zip(pick(runs, run, without), without.values(), strict=True):
            single.claims.ids = single.claims.hashes = None
            if raised is None:
                self.undeduplicated += 1
                continue
            single.prepared = False  # nor does it run without the key that it may have another time
            unidentified.append((single, raised.error))
            self._fail(single, raised, broken)
        return None

    async def claim(self, runs: list[Run]) -> None:
        """One store call: who may run is ADMITTED, what is finished is RULED, everything else is held."""
        claimants: list[Run] = []
        for run in self.elect(runs):
            if run.claims.ids is None or self._leases is None:
                run.stage = Stage.ADMITTED
            else:
                run.claims.tokens = run.claims.tokens or self._leases.tokens(len(run))
                claimants.append(run)
        if self._leases is not None and claimants:
            await self._ask(runs, claimants, self._leases)
        if self._agent.order == "partition":
            hold_back(runs, self._leases, self._worker.monotonic())

    async def _ask(self, runs: list[Run], claimants: Sequence[Run], leases: Leases) -> None:
        if self._on_store_down == "fail_open" and leases.is_down:
            self._run_unprotected(runs, claimants, leases)
            return
        asked_at = leases.now()
        try:
            answers = await leases.claim([run.column() for run in claimants])
        except StoreUnavailable as error:  # the tokens stay: the same claims are asked again
            self._without_store(runs, claimants, leases, error)
            return
        unanswered = [answer for of_run in answers for answer in of_run.values() if isinstance(answer, StoreUnavailable)]
        if unanswered and self._on_store_down != "fail_open":  # nothing overtakes what a dead process started
            self._await_store(claimants, unanswered[0])
            return
        if any(answers):
            self._log_busy(claimants, answers)
        waiting: list[Run] = []
        left = self.left
        for run, of_run in zip(claimants, answers, strict=True):
            waiting += self._answer(runs, run, of_run, asked_at, leases)
        if self.left > left:
            log.info(
                "duplicates of running messages copied",
                handler=self._agent.name,
                topic=claimants[0].place.topic,
                partition=claimants[0].place.partition,
                messages=self.left - left,
            )
        if waiting:  # others may run them by now; the tokens stay here too
            self._await_store(waiting, unanswered[0])

    def _answer(
        self, runs: list[Run], run: Run, answers: Mapping[int, ClaimAnswer | StoreUnavailable], asked_at: Moment, leases: Leases
    ) -> list[Run]:
        """Grant `run`; what was answered otherwise, or succeeded here before, falls out. Returns what was not answered."""
        assert run.claims.ids is not None
        again = () if run.succeeded or leases.is_new(run) else leases.succeeded(run.claims.ids)
        if not answers and not again:
            leases.add([run], asked_at)
            self._grant(run, FIRST, leases, succeeded=False)
            return []
        answers = {**dict.fromkeys(again, FIRST), **answers}
        waiting = []
        fallen = pick(runs, run, answers)
        for single, place in zip(fallen, sorted(answers), strict=True):
            match answers[place]:
                case StoreUnavailable():
                    waiting.append(single)
                case Acquired() as claim:
                    leases.add([single], asked_at)
                    self._grant(single, claim, leases, succeeded=place in again)
                case refused:
                    self._refuse(single, refused)
        if len(run) and run not in fallen:
            leases.add([run], asked_at)
            self._grant(run, FIRST, leases, succeeded=False)
        return waiting

    def _log_busy(self, claimants: Sequence[Run], answers: Sequence[Mapping[int, ClaimAnswer | StoreUnavailable]]) -> None:
        busy = [
            answer.retry_after
            for run, of_run in zip(claimants, answers, strict=True)
            for answer in of_run.values()
            if isinstance(answer, Busy) and run.elsewhere_since is None
        ]
        if busy:
            log.info(
                "messages wait for claims held elsewhere",
                handler=self._agent.name,
                topic=claimants[0].place.topic,
                partition=claimants[0].place.partition,
                messages=len(busy),
                at_most=round(max(busy), 3),
            )

    def _without_store(self, runs: list[Run], claimants: Sequence[Run], leases: Leases, error: StoreUnavailable) -> None:
        if self._on_store_down == "fail_open":
            self._run_unprotected(runs, claimants, leases, error)
        else:
            self._await_store(claimants, error)

    def _await_store(self, claimants: Sequence[Run], error: StoreUnavailable) -> None:
        if self._on_store_down == "fail_closed":
            raise StoreUnavailable(f"{error}; on_store_down is fail_closed: the app stops, and nothing is run or committed") from error
        self._worker.postpone(claimants, "the store is not available", error)

    def _run_unprotected(self, runs: list[Run], claimants: Sequence[Run], leases: Leases, error: StoreUnavailable | None = None) -> None:
        """They run without a claim. But what succeeded in this process is not run again, store or not, and a killer waits.

        Without the store the workers that a message ends would not be counted.
        """
        unprotected = []
        for run in claimants:
            if run.claims.ids is None:
                continue
            if run.alone:
                self._worker.postpone([run], "workers ended while they ran it, and the store is not available")
                continue
            if run.succeeded:
                run.claims.unprotected = True
                run.rule(Done())
                continue
            for single in pick(runs, run, leases.succeeded(run.claims.ids)):
                single.claims.unprotected = True
                single.rule(Duplicate())
            if run.stage is not Stage.FETCHED or not len(run):
                continue
            if elsewhere := pick(runs, run, leases.running(run.claims.ids)):
                self._worker.postpone(elsewhere, "its key is running here, and the store is not available")
            if len(run) and run not in elsewhere:
                run.claims.unprotected = True
                run.claims.grant = Acquired(0)
                for message in run.made or ():
                    message.fencing_token = None
                run.stage = Stage.ADMITTED
                unprotected.append(run)
        self.unprotected += count(unprotected)
        if unprotected and error is not None:  # not for each batch: it was asked a moment ago
            where = unprotected[0].origin
            log.warning(
                "messages run without a claim",
                handler=self._agent.name,
                topic=where.topic,
                partition=where.partition,
                offset=where.offset,
                messages=count(unprotected),
                error=said(error),
            )

    def elect(self, runs: list[Run]) -> list[Run]:
        """What may be claimed of the FETCHED `runs`: of each key the highest attempt leads, the first among equals.

        Equal ones follow it, lower ones are stale; leaders and followers are runs of one. What is not elected may hold a claim,
        if the answer was lost: it is given back before the key is claimed for another.
        """
        fetched = [run for run in runs if run.stage is Stage.FETCHED]
        for run in fetched:
            run.leader = None
        keyed = [run for run in fetched if run.claims.ids is not None]
        keys = [*chain.from_iterable(run.claims.ids or () for run in keyed)]
        if len(set(keys)) == len(keys):
            return fetched
        repeated = {key_id for key_id, times in Counter(keys).items() if times > 1}
        rivals: dict[bytes, list[Run]] = {}
        for run in keyed:
            for single in pick(runs, run, [place for place, key_id in enumerate(run.claims.ids or ()) if key_id in repeated]):
                rivals.setdefault((single.claims.ids or (b"",))[0], []).append(single)
        for singles in rivals.values():
            leader, *others = sorted(singles, key=lambda single: (-single.attempt, single.first))
            for run in others:
                if self._leases is not None:
                    self._leases.give_back(run)
                if run.attempt == leader.attempt:
                    run.leader = leader
                else:
                    run.rule(Done() if run.succeeded else Duplicate(stale=True, leader=str(leader.origin)))
        return [run for run in runs if run.stage is Stage.FETCHED and run.leader is None]

    def _grant(self, run: Run, claim: Acquired, leases: Leases, *, succeeded: bool) -> None:
        run.claims.grant = claim
        run.claims.unprotected, run.tries = False, 0
        for message in run.made or ():
            message.fencing_token = claim.epoch
        if run.succeeded:
            run.rule(Done())
        elif succeeded:
            run.rule(Duplicate())  # another record of this key succeeded here: completed at once, never run
        elif claim.lost >= DEAD_AFTER:
            run.rule(Dead(Reason.CRASHED_WORKER))
        elif claim.lost >= ALONE_AFTER and not run.alone:
            run.alone = True
            leases.give_back(run)
            run.postpone(self._worker.monotonic(), f"{claim.lost} workers died of it: it runs alone")
            log.warning(
                "message isolated after it ended workers",
                handler=self._agent.name,
                topic=run.origin.topic,
                partition=run.origin.partition,
                offset=run.origin.offset,
                attempt=run.attempt,
                workers=claim.lost,
            )
        else:
            run.stage = Stage.ADMITTED

    def _refuse(self, run: Run, answer: Busy | AlreadyDone | Stale) -> None:
        run.claims.tokens = None
        match answer:
            case Busy(retry_after, _):
                now = self._worker.monotonic()
                if run.elsewhere_since is None:
                    run.elsewhere_since = now
                    self._worker.record(EventCode.IN_FLIGHT_ELSEWHERE, self._agent.name, run)
                lasted = now - run.elsewhere_since
                if self._leaves_after is None or run.succeeded or lasted < self._leaves_after:
                    self._worker.postpone([run], "another worker holds its claim", at_most=retry_after)
                else:
                    self._leave(run, max(retry_after, self._leaves_after))
            case AlreadyDone(outcome, unrecorded):
                run.rule(Done() if run.succeeded else Duplicate(dead=outcome is Outcome.DEAD, ran=Unrecorded.read(unrecorded)))
            case Stale():
                run.rule(Done() if run.succeeded else Duplicate(stale=True))

    def _leave(self, run: Run, delay: float) -> None:
        """Send a copy back without charging an attempt, so that nothing behind `run` waits for a call that has its key."""
        later = self._worker.later_of(self._agent)
        delay = min(delay, later.max_delay)
        run.send_back = SendBack(delay, later.levels.fitting(delay) or 0, charged=False)
        run.error = _HELD_ELSEWHERE
        run.rule(Delayed())
        self.left += len(run)


def _leaves_after(agent: Agent, worker: Worker, dedup: Dedup | Transactional | None) -> float | None:
    """With an order nothing may overtake a message, and in a broadcast there are no copies."""
    if not isinstance(dedup, Dedup) or dedup.on_busy == "wait" or agent.order is not None or worker.dropping is not None:
        return None
    return float(dedup.lease)


def _withhold(run: Run) -> None:
    run.ahead = None
    run.stage = Stage.WITHHELD


def _is_due(run: Run) -> bool:
    """Return whether its values are to be decoded: they were not yet, or a handler has had them. What has succeeded is not run again."""
    return not run.prepared or (run.is_used and not run.succeeded)
