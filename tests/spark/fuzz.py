"""Histories that no pipeline would write: any event in any order, from writers that vanish, at times that jump."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from tests.spark.histories import DAY, NOW, SECOND, TOPIC, History, hash_of

from ackwise.middleware.events import OUTGOING, EventCode

__all__ = ["universe"]

_LETTERS: Final = "RRCCCCSSSFFBBXDDEKLTAGIIOOYYZJJUU"


def universe(number: int) -> History:
    """One made-up group; the same number gives the same one."""
    draw = random.Random(number)
    mode = draw.choice(["before_settle", "before_settle", "async"])
    topic = f"orders {number}" if draw.random() < 0.4 else TOPIC
    cluster = f"cluster {number}" if topic != TOPIC else "c"
    history = History(f"universe {number}", topic=topic, cluster=cluster, session={"levels": [1, 10, 60], "lease": draw.choice([30, 600])})
    if draw.random() < 0.2:
        history.events.clear()  # nobody says when it began
    base = draw.choice([0, 58, 120])
    history.written = draw.choices([NOW - 3 * DAY, NOW, NOW + 2 * DAY], [16, 2, 1])[0]
    writers = [f"w{n}" for n in range(draw.randint(1, 3))]
    killed = [writer for writer in writers[1:] if draw.random() < 0.5]
    for writer in killed:
        history.mark(writer, died_on=draw.choice([None, "boot 1", "boot 1"]), rolled_on=draw.choice([None, "boot 1", "boot 1", "boot 2"]))
    for writer in (writer for writer in writers if writer not in killed):
        if draw.random() < 0.7:
            keys: dict[str, Any] = draw.choice([{}, {}, {"namespace": "shop", "lease": 30}, {"namespace": "shop"}])
            marks: dict[str, Any] = {"marks": draw.choice([None, True, 1]), "boot_id": draw.choice([None, "boot 1", 1])}
            order: dict[str, Any] = draw.choice(
                [{}, {}, *({"order": {"bill": name}} for name in ("key", "key", "partition", "none", None))]
            )
            history.start(writer, at=_time(draw), mode=mode, **keys, **marks, **order)
        history.rolled_on[history.number(writer)] = "boot 1"
    for _ in range(draw.randint(5, 40)):
        _happen(history, draw, writer := draw.choice(writers), base, was_killed=writer in killed)
    if topic != TOPIC:
        for _ in range(draw.choice([0, 0, 6, 25])):
            _send(history, draw, draw.choice(writers), base)
        for _ in range(draw.randint(1, 30)):
            offset = draw.choice([None, *range(max(0, base - 5), base + 20), draw.choice([2**62, 2**63 - 1])])
            history.produce(
                offset, ago=draw.choice([None, draw.uniform(0, 12 * 86400), 700]), aborted=draw.choice([None, False, False, True])
            )
    if draw.random() < 0.5:
        history.look(draw.choice(writers), "delay", 5, 5, ago=draw.uniform(0, 3600))
        history.look(draw.choice(writers), "retry", 5, 5, ago=draw.uniform(0, 3600))
    if draw.random() < 0.3:
        _die(history, draw.choice(writers))
    _tell_clocks(history, random.Random(f"clocks of {number}"))
    history.events += draw.sample(history.events, len(history.events) // 4)
    draw.shuffle(history.events)
    return history


def _happen(history: History, draw: random.Random, writer: str, base: int, *, was_killed: bool) -> None:
    ago = draw.choice([None, None, draw.uniform(-60, 7200), draw.uniform(0, 2 * DAY / SECOND)])
    weights = [60, 12, 8, 6, 2, 3, 1, 4, 2, 4, 20]
    if was_killed:  # an hour ago or longer, and its log is whole
        ago, weights = draw.uniform(3600, 7200), [60, 40, 4, 0, 0, 0, 0, 0, 0, 0, 10]
    offset = base + draw.randrange(12)
    match draw.choices(["message", "range", "commit", "assign", "revoke", "skip", "end", "look", "odd", "again", "run"], weights)[0]:
        case "message":
            letters = "".join(draw.choices(_LETTERS, k=draw.randint(1, 4)))
            attempt = draw.choice([1, 1, 1, 2, 2, 3])
            fields: dict[str, Any] = {"dedup_epoch": 1} if draw.random() < 0.05 else {"handler": "other"} if draw.random() < 0.05 else {}
            if draw.random() < 0.1:
                fields |= {"took_unreleased": True, "lost": 1}
            if draw.random() < 0.3:
                fields |= {"due_ts": _time(draw)}
            if draw.random() < 0.1:
                fields |= {"exec_id": draw.choice([None, 1, 2**40, 2**60])}
            if draw.random() < 0.05:
                fields |= {"dedup_hash": None}
            if draw.random() < 0.03:
                fields |= {
                    "attrs": draw.choice(['{"out_of_order":true}', '{"out_of_order":true,"store":"down"}', '{"out_of_order":false}'])
                }
            elif draw.random() < 0.1:
                fields |= {"attrs": draw.choice(['{"outcome":"dead"}', '{"leader":"orders/0/1","outcome":"dead"}', '{"outcome":"ok"}'])}
            elif draw.random() < 0.1:
                of: dict[str, object] = draw.choice([{"writer": history.number("w0")}, {"writer": "w0"}, {}])
                leader: dict[str, object] = draw.choice(
                    [{}, {}, {"leader": f"{history.topic}/0/{base}"}, {"leader": None}, {"outcome": "dead"}]
                )
                fields |= {"exec_id": draw.choice([None, (history.number("w0") << 20) + 1, 5]), "attrs": json.dumps({**of, **leader})}
            elif draw.random() < 0.1:
                redrives = ["redrive-1", "redrive-2", "redrive-2\n", "redrive-x", "redrive-", 7, None]
                fields |= {"attrs": json.dumps({"redrive": draw.choice(redrives), "letter": "g.dlq/0/1"})}
            if draw.random() < 0.8:
                written = (
                    history.written - (1000 - offset) * SECOND
                    if draw.random() < 0.98
                    else draw.choice([NOW, NOW + 5000 * DAY]) - draw.randrange(20) * 100 * SECOND
                )
                fields |= {"record_ts": written}
            key = draw.choice([None, None, "a", "b"])
            fields |= {"order_hash": draw.choice([None, 7, 7, -8])}
            history.say(writer, f"{offset}@{attempt}:{letters}", ago=ago, key=key, level=draw.choice([None, 0, 1, 3, 9]), **fields)
        case "range":
            code = draw.choice(["RECEIVED_RANGE", "RECEIVED_RANGE", "MARKED", "GAP", "SEEK"])
            reason = draw.choice([{}, {"reason": "operator"}, {"reason": "out-of-range"}, {"reason": "out-of-range", "goes_on_at": offset}])
            where: dict[str, Any] = (
                {"topic": f"{history.group}.retry"}
                if code in ("RECEIVED_RANGE", "MARKED") and draw.random() < 0.2
                else {"topic": history.topic}
            )
            proof: dict[str, Any] = {"proved": draw.choice([None, True, False])} if code == "GAP" else {}
            if code == "MARKED":
                masks: list[Any] = [None, None, [draw.getrandbits(64) - 2**63 for _ in range(draw.randint(0, 3))], [-1, "x"], 7]
                reason = {"masks": draw.choice(masks)}
                proof = {"handler": draw.choice([None, "bill", "bill", "other"])}
            history.say(
                writer, f"{code}[{offset},{offset + draw.choice([0, 1, 3, 8, 70])})", ago=ago, attrs=json.dumps(reason) if reason else None,
                **where, **proof,
            )  # fmt: skip
        case "commit":
            history.say(writer, f"W={offset + draw.choice([0, 1, 2, 64])}", ago=ago)
        case "assign":
            role = draw.choice(["source", "source", "source", None, "retry"])
            topic = f"{history.group}.retry" if role == "retry" else history.topic
            named = (draw.choice([writer, "w0", "w1", "gone"]), draw.choice([-1, 0, 3, 9, 30])) if draw.random() < 0.1 else None
            history.assign(writer, offset, role=role, topic=topic, at=_time(draw), from_commit=draw.random() < 0.5, named=named)
        case "revoke":
            history.add(writer, EventCode.REVOKED, at=_time(draw), topic=history.topic, partition=0, offset=offset)
        case "skip":
            history.skip(writer, draw.randint(1, 70))
        case "end":
            history.add(writer, EventCode.SESSION_END, at=_time(draw))
        case "look":
            history.look(writer, draw.choice(["delay", "retry", "source"]), draw.choice([None, 3, 5]), 5, ago=draw.uniform(0, 3600))
        case "run":
            _run(history, draw, writer, offset, None if ago is None else NOW - round(ago * SECOND))
        case "again":
            attempt = draw.choice([1, 1, 2])
            where = {"topic": history.topic if attempt == 1 else f"{history.group}.retry"}
            history.say(writer, f"RECEIVED_RANGE[{offset},{offset + 1})", ago=ago, **where)
            history.say(writer, f"{offset}@{attempt}:{draw.choice(['CS', 'CS', 'CF', 'C', 'I'])}", ago=ago)
            history.say(draw.choice(["w0", "w1"]), f"{offset}@{attempt}:{draw.choice(['CS', 'S', 'D'])}", ago=ago, dedup_epoch=1)
        case _:
            odd: dict[str, Any] = draw.choice(
                [{"partition": 0, "offset": None}, {"partition": None, "offset": 3}, {"attrs": json.dumps({"committed": 3})}]
            )
            if draw.random() < 0.5:
                told = draw.choice([1, 2, 3, 4, 5, 15, 20, 21, 23, 24, 25, 26, 27, 41])
                wrong = draw.choice([-(2**63), -1, 2**62, 2**63 - 1])
                beyond: dict[str, Any] = {"partition": 0, "offset": offset, "range_end": offset + 1} | draw.choice(
                    [{"offset": wrong}, {"range_end": wrong}]
                )
                history.add(writer, told, topic=history.topic, handler="bill", from_commit=True, **beyond)
                return
            history.add(writer, draw.choice([3, 15, 18, 20, 26, 29, 30, 33, 41, 99]), topic=history.topic, dedup_hash=hash_of("a"), **odd)


def _run(history: History, draw: random.Random, writer: str, first: int, at: int | None) -> None:
    """A call of a handler with several messages, most of which succeed; rarely one that says more than that."""
    offsets = [first + place for place in range(draw.choice([1, 2, 5, 20, 70])) if draw.random() < 0.95] or [first]
    rare: dict[str, Any] = draw.choice([{"took_unreleased": True}, {"lost": 1}, {"attempt": 2}, {"attrs": "{}"}, {"dedup_epoch": 1}])
    same: dict[str, Any] = {"topic": history.topic, "partition": 0, "attempt": 1, "handler": draw.choice(["bill"] * 9 + ["other"])}
    same |= rare if draw.random() < 0.15 else {}
    start, ids = draw.choice([EventCode.CLAIMED] * 3 + [EventCode.STARTED]), (history.number(writer) << 20) + draw.randrange(2**18, 2**19)
    written = draw.choice([None, history.written - 1000 * SECOND, history.written])
    skewed = at is not None and draw.random() < 0.1
    own = [
        {
            "offset": offset,
            "exec_id": None if start is EventCode.STARTED and draw.random() < 0.1 else ids + place,
            "dedup_hash": hash_of(draw.choice(["a", "b"] if draw.random() < 0.05 else [str(offset)])),
            "record_ts": None if written is None else written + offset * SECOND,
        }
        for place, offset in enumerate(offsets)
    ]
    keys: list[int | None] = draw.choice([[None], [7], [7, -8, 9], [3]])  # of the order
    for place, each in enumerate(own):
        history.add(writer, start, at=at, **{**same, **each}, order_hash=keys[place % len(keys)])
    succeeded = [each for each in own if draw.random() < 0.9]
    later = {name: value for name, value in same.items() if name not in ("took_unreleased", "lost")}
    for each in draw.choice([succeeded, succeeded, succeeded[::-1], [*succeeded, *succeeded[:1]]]):
        history.add(writer, EventCode.SUCCEEDED, at=None if at is None else at + (-SECOND if skewed else SECOND), **{**later, **each})


def _tell_clocks(history: History, draw: random.Random) -> None:
    """Some writers have a clock that nobody sets; the other one of some of them is set between two events, and be it of one run."""
    for writer in sorted({event["client"] for event in history.events} - {"founder"}):
        mine, began = [event for event in history.events if event["client"] == writer], draw.randrange(10**9)
        if draw.random() < 0.3:
            set_at, by = draw.randrange(2 * len(mine)), draw.choice([1, 300, 700, 7200, -700, -7200]) * SECOND
            for place, event in enumerate(mine):
                event["mono_ns"] = (event["event_ts"] - NOW + 10 * DAY - (by if place >= set_at else 0)) * 1000 + began


def _die(history: History, writer: str) -> None:
    """The writer has been silent for two hours."""
    for event in history.events:
        if event["client"] == writer:
            event["event_ts"] -= 7200 * SECOND


def _send(history: History, draw: random.Random, writer: str, base: int) -> None:
    code, answers = draw.choice(sorted(OUTGOING)), ["commit", "rollback", "unknown", None]
    offset = draw.choice([None, base + draw.randrange(20)]) if code in (EventCode.PRODUCED, EventCode.OUTBOX_SENT) else None
    message_id = draw.choice([None, *(f"{history.group}-{n}" for n in range(9))])
    history.send(
        writer, code, message_id, offset, ago=draw.choice([600, 601, draw.uniform(0, 5000), 12 * 86400]), answer=draw.choice(answers)
    )


def _time(draw: random.Random) -> int:
    return NOW - round(draw.choice([draw.uniform(-60, 600), draw.uniform(0, 10800), draw.uniform(0, 2 * DAY / SECOND)]) * SECOND)
