"""Faults: what goes wrong on demand between clients and an in-memory Kafka."""

from __future__ import annotations

import asyncio
from typing import Final, Literal

from aiokafka.errors import BrokerResponseError

How = Literal["refused", "lost request", "lost answer", "held"]

#: The requests that are served, by Kafka's names and numbers.
APIS: Final = {
    "Produce": 0,
    "Fetch": 1,
    "ListOffsets": 2,
    "Metadata": 3,
    "OffsetCommit": 8,
    "OffsetFetch": 9,
    "FindCoordinator": 10,
    "JoinGroup": 11,
    "Heartbeat": 12,
    "LeaveGroup": 13,
    "SyncGroup": 14,
    "DescribeGroups": 15,
    "ListGroups": 16,
    "ApiVersions": 18,
    "CreateTopics": 19,
    "DeleteTopics": 20,
    "DeleteRecords": 21,
    "InitProducerId": 22,
    "AddPartitionsToTxn": 24,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26,
    "TxnOffsetCommit": 28,
    "DescribeConfigs": 32,
    "AlterConfigs": 33,
    "CreatePartitions": 37,
    "DeleteGroups": 42,
}


class Fault:
    """One fault, until it has happened `times` often or is ended."""

    def __init__(self, api: str, how: How, *, times: int | None, code: int = 0, topic: str | None = None) -> None:
        self.api = api
        self.how = how
        self.code = code
        self.topic = topic
        self.met = 0  #: requests that it has met
        self._left = times
        self._ended = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Fault {self.api} {self.how}, met {self.met}>"

    def end(self) -> None:
        """It happens no more; what it holds goes on."""
        self._left = 0
        self._ended.set()

    async def over(self) -> None:
        """Return once it is ended."""
        await self._ended.wait()

    def meet(self, api: str, topics: frozenset[str]) -> bool:
        """Whether it happens to this request."""
        if api != self.api or self._left == 0 or (self.topic is not None and self.topic not in topics):
            return False
        self.met += 1
        if self._left is not None:
            self._left -= 1
            if self._left == 0 and self.how != "held":
                self._ended.set()
        return True


class Faults:
    """The faults of one broker, in the order in which they were asked for: of those that match a request the first one happens."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def refuse(self, api: str, error: type[BrokerResponseError], *, times: int | None = 1, topic: str | None = None) -> Fault:
        """Requests are answered with `error` and have no effect. `topic`: those about it alone. `times`: how many, `None` for all."""
        return self._add(api, "refused", times=times, code=int(error.errno), topic=topic)

    def lose_request(self, api: str, *, times: int | None = 1, topic: str | None = None) -> Fault:
        """The connection breaks before a request has any effect."""
        return self._add(api, "lost request", times=times, topic=topic)

    def lose_answer(self, api: str, *, times: int | None = 1, topic: str | None = None) -> Fault:
        """A request has its effect, and the connection breaks before its answer."""
        return self._add(api, "lost answer", times=times, topic=topic)

    def hold(self, api: str, *, times: int | None = None, topic: str | None = None) -> Fault:
        """Requests wait, without effect, until the fault is ended."""
        return self._add(api, "held", times=times, topic=topic)

    def clear(self) -> None:
        """End all of them."""
        for fault in self._faults:
            fault.end()
        self._faults.clear()

    def meet(self, api: str, topics: frozenset[str]) -> Fault | None:
        """Return the fault of this request."""
        return next((fault for fault in self._faults if fault.meet(api, topics)), None)

    def _add(self, api: str, how: How, *, times: int | None, code: int = 0, topic: str | None = None) -> Fault:
        if api not in APIS:
            raise ValueError(f"{api!r} is no request that this Kafka serves; they are {', '.join(APIS)}")
        if times is not None and times < 1:
            raise ValueError(f"times is {times!r}; it must be 1 or more, or None for all requests")
        fault = Fault(api, how, times=times, code=code, topic=topic)
        self._faults.append(fault)
        return fault
