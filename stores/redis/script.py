"""`Layout` places records among the keys of a Redis; `Question` encodes part of an exchange for the script and decodes its reply.

All users of a namespace must share one layout. `script.lua` explains the bytes.
"""

from __future__ import annotations

import hashlib
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, groupby
from struct import Struct, pack
from typing import NamedTuple, TypeVar

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.claimstore import (
    FIRST,
    Ack,
    Acquired,
    AlreadyDone,
    Answered,
    Busy,
    ClaimAnswer,
    ClaimKey,
    Column,
    ColumnExchange,
    ColumnResult,
    Exchange,
    ExchangeResult,
    Outcome,
    Stale,
)

_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_VERSION = 3
_PAGE_FILL = 90
"""Completed records of a page that is as full as expected; a chance surplus still fits into the 128 of a listpack."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`retention` (seconds) and `keys` count for `compact` only, `buckets` on a cluster only. Raises `ConfigurationError`.

    Plain: one key for each record. Compact: completed records are fields of shared hashes ("pages"), which Redis keeps in a
    seventh of the memory; a page is for one half of the retention and for the ids that start alike.
    """

    namespace: str = "ackwise"  #: what all keys start with
    compact: bool = False
    retention: float = 86400.0  #: the longest that an exchange may ask for
    keys: int = 1_000_000  #: how many completed records there are at a time
    buckets: int = 0  #: hash tags that the keys of a cluster are spread over; 0 on one server

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigurationError(
                f"the namespace of the Redis store is {self.namespace!r}; give 1 to 64 letters, digits, dots, hyphens or underscores"
            )
        if not 1.0 <= self.retention <= 10 * 365 * 86400.0:
            raise ConfigurationError(f"retention is {self.retention} for the Redis store; give seconds, from 1 to ten years of them")
        if self.keys < 1:
            raise ConfigurationError(f"keys is {self.keys} for the Redis store; give how many completed messages it remembers at a time")
        if not 0 <= self.buckets <= 256:
            raise ConfigurationError(f"buckets is {self.buckets} for the Redis store; a cluster takes 1 to 256, one server none")

    @property
    def period(self) -> int:
        """Milliseconds that a page is for; 0 if there are no pages."""
        return math.ceil(self.retention * 500) if self.compact else 0

    @property
    def page_bits(self) -> int:
        """How many bits of an id choose its page. Records of one retention end in two periods, hence half of the keys."""
        return min(24, max(0, math.ceil(math.log2(self.keys / 2 / _PAGE_FILL)))) if self.compact else 0

    def settings(self) -> tuple[bytes, int]:
        """The layout's parameters for the script: period and page bits."""
        return self.period.to_bytes(6, "big"), self.page_bits

    def key(self, place: bytes) -> bytes:
        """The key of the record at `place`, 16 bytes of a hash. A namespace has no colon and no brace, so none reaches into another."""
        if self.buckets:
            return b"{%b:%02x}:%b" % (self.namespace.encode(), place[-1] % self.buckets, place)
        return b"%b:%b" % (self.namespace.encode(), place)

    def keys_of(self, places: Iterable[bytes]) -> list[bytes]:
        """The keys of the records at `places`."""
        if self.buckets:
            return [self.key(place) for place in places]
        prefix = b"%b:" % self.namespace.encode()
        return [prefix + place for place in places]

    def groups(self, keys: Sequence[bytes]) -> list[Sequence[int]]:
        """The positions of the keys that are in one slot, for each slot."""
        if not self.buckets:
            return [range(len(keys))] if keys else []
        groups: dict[int, list[int]] = {}
        for position, key in enumerate(keys):
            groups.setdefault(key[-1] % self.buckets, []).append(position)
        return list(groups.values())

    @property
    def mark(self) -> bytes:
        """The key that stores the layout of the namespace; no record's key has its length."""
        return b"%b:layout" % self.namespace.encode()

    @property
    def memory(self) -> bytes:
        """The key that stores the start of the namespace's memory; no record's key has its length."""
        return (b"{%b:since}" if self.buckets else b"%b:since") % self.namespace.encode()

    def __str__(self) -> str:
        """The value of the key `mark`."""
        words = [f"{_VERSION}", "layout=compact" if self.compact else "layout=plain"]
        words += [f"retention={self.retention:g}", f"pages={2**self.page_bits}"] if self.compact else []
        words += [f"buckets={self.buckets}"] if self.buckets else []
        return " ".join(words)

    def agree(self, found: str, where: str) -> None:
        """Raise `ConfigurationError` if the namespace was laid out otherwise than this says."""
        if found == str(self):
            return
        version = found.split(" ", 1)[0]
        if version.isdecimal() and int(version) != _VERSION:
            raise ConfigurationError(
                f"{where}: the namespace {self.namespace} has version {version}, and this Ackwise knows version {_VERSION} alone; "
                "start the Ackwise that made it, or use another namespace"
            )
        raise ConfigurationError(
            f"{where}: the namespace {self.namespace} is laid out as {found!r}, and this store wants {str(self)!r}; "
            "give the options that it was made with, or use another namespace"
        )


SCRIPT = files("ackwise.stores.redis").joinpath("script.lua").read_text("utf-8")
SCRIPT_NAME = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

AnyAnswer = TypeVar("AnyAnswer")

_LIMIT = 500
"""Requests; Redis serves no other client while a script runs, and this many take it some milliseconds."""

_COLUMN = Struct(">BHIB")
_SETTINGS = Struct(">6s6sB6sBB")
_COUNT = Struct(">H")
_EXCEPTION = Struct(">HB")
_CLAIM_ANSWER = Struct(">HBII")
_CLAIM, _RELEASE, _SEND_BACK, _RENEW = 0, 4, 5, 6
_WITH_TEXT = (0, 3)
"""The answers that a text of as many bytes follows as their second number says: busy and done."""
_ACKS = {ord("O"): Ack.OK, ord("R"): Ack.RESTORED, ord("L"): Ack.LOST, ord("D"): Ack.LOST_DONE}
_CLAIM_ANSWERS: tuple[Callable[[int, int, str], ClaimAnswer], ...] = (
    lambda milliseconds, _, owner: Busy(milliseconds / 1000, owner),
    lambda epoch, lost, _: Acquired(epoch, lost, False),
    lambda epoch, lost, _: Acquired(epoch, lost, True),
    lambda outcome, _, unrecorded: AlreadyDone(Outcome(outcome), unrecorded),
    lambda *_: Stale(),
)


class _Part(NamedTuple):
    """Some keys of one column."""

    kind: int
    attempt: int
    """What a release sends back; of a complete, the length of what is unrecorded."""
    tokens: Sequence[int]
    unrecorded: bytes = b""

    def packed(self) -> bytes:
        count, first = len(self.tokens), self.tokens[0]
        in_a_row = isinstance(self.tokens, range) and self.tokens.step == 1 and first % 2**32 + count <= 2**32
        tokens = pack(">Q", first) if in_a_row else pack(f">{count}Q", *self.tokens)
        return _COLUMN.pack(self.kind, count, self.attempt, in_a_row) + tokens + self.unrecorded


class Question(NamedTuple):
    """Some requests of an exchange whose keys are in one slot."""

    positions: Sequence[int]
    """Of the requests among all of the exchange, in ascending order."""
    keys: Sequence[bytes]
    parts: Sequence[_Part]
    settings: bytes
    owners: Sequence[str] = ("",)
    """This process, then those that are gone."""

    def command(self, *, whole_script: bool = False) -> tuple[str | int | bytes, ...]:
        """The bytes sent to Redis; those with the whole script also load it."""
        script = ("EVAL", SCRIPT) if whole_script else ("EVALSHA", SCRIPT_NAME)
        return (*script, len(self.keys), *self.keys, self.settings, b"".join([part.packed() for part in self.parts]), *self.owners)

    def one_by_one(self) -> list[Question]:
        """The same, a question for each key."""
        parts = [part._replace(tokens=(token,)) for part in self.parts for token in part.tokens]
        each = zip(self.positions, self.keys, parts, strict=True)
        return [Question((position,), (key,), (part,), self.settings, self.owners) for position, key, part in each]

    def together(self, answers: Sequence[bytes]) -> bytes:
        """The answer to this question, from those to `one_by_one`."""
        exceptions = [_COUNT.pack(place) + answer[4:] for place, answer in enumerate(answers) if len(answer) > _COUNT.size]
        return _COUNT.pack(len(answers)) + b"".join(exceptions)


def questions(exchange: ColumnExchange, layout: Layout, *, always_write: bool) -> list[Question]:
    """All that `exchange` asks for. With `always_write` Redis writes even if nothing changes, which gives WAIT something to wait for."""
    parts = [(column, _completed(column)) for column in exchange.completes]
    parts += [(column, _released(column)) for column in exchange.releases]
    parts += [(column, _Part(_RENEW, 0, column.tokens)) for column in exchange.renews]
    parts += [(column, _Part(_CLAIM, column.attempt, column.tokens)) for column in exchange.claims]
    keys = layout.keys_of(chain.from_iterable(_places(column) for column, _ in parts))
    repeated = len(set(keys)) < len(keys)
    times = _milliseconds(exchange.lease), _milliseconds(exchange.retention)
    settings = _SETTINGS.pack(*times, always_write, *layout.settings(), repeated)
    owners = (exchange.owner, *exchange.gone)
    asked = [part for _, part in parts if part.tokens]
    if len(keys) <= _LIMIT and not layout.buckets:
        return [Question(range(len(keys)), keys, asked, settings, owners)] if keys else []
    return [
        Question(positions, [keys[i] for i in positions], _of(asked, positions), settings, owners)
        for group in layout.groups(keys)
        for positions in _pieces(group)
    ]


def result(exchange: ColumnExchange, answered: Iterable[tuple[Question, bytes]]) -> ColumnResult:
    """Return the answers of all questions of `exchange`. Raises `StoreUnavailable` if one is about another number of keys."""
    columns = [*exchange.completes, *exchange.releases, *exchange.renews, *exchange.claims]
    first_claim = sum(len(column.ids) for column in columns[: len(columns) - len(exchange.claims)])
    acks: dict[int, Ack] = {}
    claims: dict[int, ClaimAnswer] = {}
    for question, answer in answered:
        (count,) = _COUNT.unpack_from(answer)
        if count != len(question.keys):
            raise StoreUnavailable(f"Redis answered {count} keys and was asked about {len(question.keys)}: its answer can't be used")
        at = _COUNT.size
        while at < len(answer):
            place, code = _EXCEPTION.unpack_from(answer, at)
            position = question.positions[place]
            if position < first_claim:
                acks[position] = _ACKS[code]
                at += _EXCEPTION.size
                continue
            _, _, a, b = _CLAIM_ANSWER.unpack_from(answer, at)
            at += _CLAIM_ANSWER.size
            end = at + b if code in _WITH_TEXT else at
            claims[position] = _CLAIM_ANSWERS[code](a, b, answer[at:end].decode("ascii", "replace"))
            at = end
    completed, begin = _by_column(exchange.completes, acks, 0)
    released, begin = _by_column(exchange.releases, acks, begin)
    renewed, begin = _by_column(exchange.renews, acks, begin)
    claimed, _ = _by_column(exchange.claims, claims, begin)
    return ColumnResult(claimed, completed, released, renewed)


def columns_of(exchange: Exchange) -> ColumnExchange:
    """The same in columns, with the keys in the same order. A key may stand in a column twice here, and Redis gets both."""
    return ColumnExchange(
        _columns([(key, token, Outcome.OK, None, "") for key, token in exchange.claims]),
        _columns([(key, token, outcome, None, unrecorded) for key, token, outcome, unrecorded in exchange.completes]),
        _columns([(key, token, Outcome.OK, sent_back, "") for key, token, sent_back in exchange.releases]),
        _columns([(key, token, Outcome.OK, None, "") for key, token in exchange.renews]),
        exchange.lease,
        exchange.retention,
        exchange.owner,
        exchange.gone,
    )


def key_by_key(result: ColumnResult) -> ExchangeResult:
    """The answers to what `columns_of` made columns of."""
    return ExchangeResult(
        [answered.exceptions.get(place, FIRST) for answered in result.claims for place in range(answered.keys)],
        [answered.exceptions.get(place, Ack.OK) for answered in result.completes for place in range(answered.keys)],
        [answered.exceptions.get(place, Ack.OK) for answered in result.releases for place in range(answered.keys)],
        [answered.exceptions.get(place, Ack.OK) for answered in result.renews for place in range(answered.keys)],
    )


def _columns(requests: Sequence[tuple[ClaimKey, int, Outcome, int | None, str]]) -> list[Column]:
    found = []
    for (day, attempt, outcome, sent_back, unrecorded), some in groupby(
        requests, lambda asked: (asked[0].day, asked[0].attempt, asked[2], asked[3], asked[4])
    ):
        same = list(some)
        ids, tokens = [asked[0].id for asked in same], [asked[1] for asked in same]
        found.append(Column(ids, day, attempt, tokens, outcome, sent_back, unrecorded))
    return found


def _by_column(columns: Sequence[Column], exceptions: dict[int, AnyAnswer], begin: int) -> tuple[list[Answered[AnyAnswer]], int]:
    """The answers to columns of one kind whose first key is at the position `start`, and the position behind their last one."""
    found, positions = list[Answered[AnyAnswer]](), sorted(exceptions)
    at = bisect_left(positions, begin)
    for column in columns:
        end = begin + len(column.ids)
        behind = bisect_left(positions, end, at)
        found.append(Answered(len(column.ids), {position - begin: exceptions[position] for position in positions[at:behind]}))
        begin, at = end, behind
    return found, begin


def _completed(column: Column) -> _Part:
    unrecorded = column.unrecorded.encode("ascii", "replace")
    return _Part(column.outcome.value, len(unrecorded), column.tokens, unrecorded)


def _released(column: Column) -> _Part:
    if column.sent_back is None:
        return _Part(_RELEASE, 0, column.tokens)
    return _Part(_SEND_BACK, column.sent_back, column.tokens)


def _of(parts: Sequence[_Part], positions: Sequence[int]) -> list[_Part]:
    """What the parts ask at these positions, in ascending order."""
    found, begin, at = [], 0, 0
    for part in parts:
        end = begin + len(part.tokens)
        behind = bisect_left(positions, end, at)
        mine = [position - begin for position in positions[at:behind]]
        if mine:
            in_a_row = mine[-1] - mine[0] == len(mine) - 1
            tokens = part.tokens[mine[0] : mine[-1] + 1] if in_a_row else [part.tokens[place] for place in mine]
            found.append(part._replace(tokens=tokens))
        begin, at = end, behind
    return found


def _places(column: Column) -> Sequence[bytes]:
    """Where the records are, in 16 bytes each: the key's id. With a day, the first half of it and a hash of both."""
    if column.day is None:
        return column.ids
    # The first half stays, since events name keys by it.
    salted = hashlib.blake2b(digest_size=8, salt=column.day.to_bytes(8, "big", signed=True))
    places = []
    for key_id in column.ids:
        rest = salted.copy()
        rest.update(key_id)
        places.append(key_id[:8] + rest.digest())
    return places


def _milliseconds(seconds: float) -> bytes:
    return math.ceil(seconds * 1000).to_bytes(6, "big")


def _pieces(positions: Sequence[int]) -> list[Sequence[int]]:
    return [positions[start : start + _LIMIT] for start in range(0, len(positions), _LIMIT)]
