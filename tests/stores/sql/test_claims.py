"""Exchanges in rounds without a database: what is asked together, and what is asked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ackwise.middleware.storage.claimstore import Ack, Acquired, Busy, Claim, ClaimKey, Complete, Exchange, ExchangeResult, Outcome, Renew
from ackwise.stores.protocol.transitions import Answer, Asked, Kind
from ackwise.stores.sql.claims import exchange_in_rounds
from ackwise.stores.sql.operation import Answer as Rows
from ackwise.stores.sql.operation import Packet, Statement, Steps, run_now


def key(number: int) -> ClaimKey:
    return ClaimKey(bytes([number] * 16), None, 1)


class Server:
    """Answers every request; those of `contested` keys at the second time only."""

    def __init__(self, *contested: ClaimKey) -> None:
        self.rounds: list[list[tuple[int, Kind]]] = []
        self._contested = {one.id for one in contested}

    def send(self, packet: Packet) -> Sequence[Rows]:
        return [Rows() for _ in packet]

    def ask(self, some: Sequence[Asked], _: Exchange) -> Steps[Mapping[int, Answer]]:
        yield [Statement("ASK")]
        self.rounds.append([(one.place[0][0], one.kind) for one in some])
        lost = {one.place[0] for one in some} & self._contested
        self._contested -= lost
        return {one.position: self._answer(one) for one in some if one.place[0] not in lost}

    def _answer(self, one: Asked) -> Answer:
        return Acquired(one.place[0][0]) if one.kind is Kind.CLAIM else Ack.OK


def exchanged(server: Server, exchange: Exchange) -> ExchangeResult:
    return run_now(exchange_in_rounds(exchange, server.ask), server)


def test_requests_travel_together_sorted_and_are_answered_in_their_order() -> None:
    server = Server()
    result = exchanged(server, Exchange([Claim(key(3), 1), Claim(key(1), 1)], [Complete(key(2), 1, Outcome.OK)]))
    assert server.rounds == [[(1, Kind.CLAIM), (2, Kind.COMPLETE), (3, Kind.CLAIM)]]
    assert result == ExchangeResult([Acquired(3), Acquired(1)], [Ack.OK], [], [])


def test_what_somebody_was_faster_with_is_asked_again_alone() -> None:
    server = Server(key(2))
    result = exchanged(server, Exchange([Claim(key(number), 1) for number in (1, 2, 3)]))
    assert [[number for number, _ in some] for some in server.rounds] == [[1, 2, 3], [2]]
    assert result.claims == [Acquired(1), Acquired(2), Acquired(3)]
    assert not any(isinstance(answer, Busy) for answer in result.claims)


def test_a_key_that_is_asked_for_twice_is_asked_for_in_turn() -> None:
    server = Server()
    result = exchanged(server, Exchange([Claim(key(1), 1)], renews=[Renew(key(1), 1), Renew(key(2), 1)]))
    assert server.rounds == [[(1, Kind.RENEW), (2, Kind.RENEW)], [(1, Kind.CLAIM)]]
    assert result == ExchangeResult([Acquired(1)], [], [], [Ack.OK, Ack.OK])


def test_nothing_is_asked_for_nothing_and_much_in_parts() -> None:
    server = Server()
    assert exchanged(server, Exchange()) == ExchangeResult([], [], [], [])
    assert server.rounds == []
    many = [ClaimKey(number.to_bytes(16, "big"), None, 1) for number in range(2500)]
    exchanged(server, Exchange([Claim(one, 1) for one in many]))
    assert [len(some) for some in server.rounds] == [1000, 1000, 500]
