"""What older versions ask Redis: 13 bytes for each request, and an answer for each. `redis.lua` explains the bytes."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from ackwise.middleware.store import Ack, Acquired, AlreadyDone, Busy, ClaimAnswer, ClaimKey, Exchange, ExchangeResult, Outcome, Stale
from ackwise.stores.redis.layout import Layout

__all__ = ["Question", "questions", "result"]

_LIMIT = 500
"""Requests; Redis serves nobody else while a script runs, and this many take it some milliseconds."""

_REQUEST = Struct(">BQI")
_SETTINGS = Struct(">6s6sB6sB")
_CLAIM_ANSWER = Struct(">BII")
_CLAIM, _RELEASE, _SEND_BACK, _RENEW = 0, 4, 5, 6
_BUSY = 0
_ACKS = {ord("O"): Ack.OK, ord("R"): Ack.RESTORED, ord("L"): Ack.LOST, ord("D"): Ack.LOST_DONE}
_CLAIM_ANSWERS: tuple[Callable[[int, int], ClaimAnswer], ...] = (
    lambda milliseconds, _: Busy(milliseconds / 1000),
    lambda epoch, lost: Acquired(epoch, lost, False),
    lambda epoch, lost: Acquired(epoch, lost, True),
    lambda outcome, _: AlreadyDone(Outcome(outcome)),
    lambda _, __: Stale(),
)


class Question(NamedTuple):
    """Some requests of an exchange whose keys are in one slot."""

    positions: Sequence[int]
    """Of the requests among all of the exchange, in ascending order."""
    keys: Sequence[bytes]
    requests: Sequence[bytes]
    settings: bytes
    owners: Sequence[str] = ("",)
    """This process, then those that are gone."""


def questions(exchange: Exchange, layout: Layout, *, always_write: bool) -> list[Question]:
    """All that `exchange` asks for. With `always_write` Redis writes even if nothing changes, which gives WAIT something to wait for."""
    asked = [(key, _REQUEST.pack(outcome, token, key.attempt)) for key, token, outcome in exchange.completes]
    asked += [(key, _release(token, sent_back)) for key, token, sent_back in exchange.releases]
    asked += [(key, _REQUEST.pack(_RENEW, token, 0)) for key, token in exchange.renews]
    asked += [(key, _REQUEST.pack(_CLAIM, token, key.attempt)) for key, token in exchange.claims]
    keys = [layout.key(_place(key)) for key, _ in asked]
    requests = [request for _, request in asked]
    settings = _SETTINGS.pack(_milliseconds(exchange.lease), _milliseconds(exchange.retention), always_write, *layout.settings())
    owners = (exchange.owner, *exchange.gone)
    return [
        Question(positions, [keys[i] for i in positions], [requests[i] for i in positions], settings, owners)
        for group in layout.groups(keys)
        for positions in _pieces(group)
    ]


def result(exchange: Exchange, answered: Iterable[tuple[Question, bytes]]) -> ExchangeResult:
    """Return the answers of all questions of `exchange`, in the order of its requests."""
    claims: list[ClaimAnswer] = [Stale()] * len(exchange.claims)
    first_claim = len(exchange) - len(claims)
    acks = [Ack.LOST] * first_claim
    for question, answer in answered:
        split = bisect_left(question.positions, first_claim)
        for position, ack in zip(question.positions[:split], answer[:split], strict=True):
            acks[position] = _ACKS[ack]
        for position, said in zip(question.positions[split:], _claim_answers(answer[split:]), strict=True):
            claims[position - first_claim] = said
    completed, released = len(exchange.completes), len(exchange.completes) + len(exchange.releases)
    return ExchangeResult(claims, acks[:completed], acks[completed:released], acks[released:])


def _claim_answers(answer: bytes) -> Iterator[ClaimAnswer]:
    position = 0
    while position < len(answer):
        code, a, b = _CLAIM_ANSWER.unpack_from(answer, position)
        position += _CLAIM_ANSWER.size
        if code == _BUSY:
            yield Busy(a / 1000, answer[position : position + b].decode("ascii", "replace"))
            position += b
        else:
            yield _CLAIM_ANSWERS[code](a, b)


def _release(token: int, sent_back: int | None) -> bytes:
    return _REQUEST.pack(_RELEASE, token, 0) if sent_back is None else _REQUEST.pack(_SEND_BACK, token, sent_back)


def _place(key: ClaimKey) -> bytes:
    """Where the record is, in 16 bytes: the key's id, with its day hashed in if it has one."""
    if key.day is None:
        return key.id
    return hashlib.blake2b(key.id, digest_size=16, salt=key.day.to_bytes(8, "big", signed=True)).digest()


def _milliseconds(seconds: float) -> bytes:
    return math.ceil(seconds * 1000).to_bytes(6, "big")


def _pieces(positions: Sequence[int]) -> list[Sequence[int]]:
    return [positions[start : start + _LIMIT] for start in range(0, len(positions), _LIMIT)]
