"""A hostile client: aiokafka in whose fetcher, coordinator, producer and admin client calls come to harm, on whatever broker.

    with hostile_client("worker.Fetch:raises-after@2", "worker.commit:never"):
        ...

`install` does it for longer, under every client that is made afterwards. Which plan a call passes through depends on the context that
it is made in (`under`), so that several workers in one process have a plan each; `HOSTILE` in the environment is the plan
of a process as a whole (`install_from_environment`).

A call is named by who makes it and what it does. Who: `relay`, `topics` (the admin client), `control` (what is read from and written
to the control topic), or `worker` for all others, consumer and producer alike. What: a request to a broker (`Fetch`, `ListOffsets`,
`OffsetFetch`, `OffsetCommit`, `Heartbeat`, `JoinGroup`, `SyncGroup`, `LeaveGroup`, `FindCoordinator`, `Produce`, `Metadata`,
`CreateTopics`, ...), or a step within the client: `drain` (what was fetched is taken), `commit`, `send` (a record, or a batch of them),
`close` (of the fetcher) and `leave` (of the coordinator).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Protocol
from unittest import mock

from aiokafka import AIOKafkaProducer

from ackwise.plugin.kafka.aiokafkainternals import AIOKafkaClient, Fetcher, GroupCoordinator, client_id_of
from ackwise.plugin.kafka.fetchbuffer import Taking
from ackwise.plugin.kafka.protocolrequests import ProduceRequest, produced_topics
from ackwise.testing.hostile.plan import Fault, Plan


class Patch(Protocol):
    """Replaces an attribute, such as pytest's `MonkeyPatch`."""

    def setattr(self, owner: Any, name: str, value: Any, /) -> None:
        """Let `owner` have `value` under that name."""


#: The plan of what runs in this context; their own threads start without one.
under: Final[ContextVar[Plan | None]] = ContextVar("under", default=None)

#: Requests whose class is not called as the protocol calls them.
_CALLED: Final = {"Offset": "ListOffsets"}

#: The steps within a client.
_STEPS: Final[tuple[tuple[type[Any], str, str], ...]] = (
    (Fetcher, "fetched_records", "drain"),
    (Taking, "take", "drain"),
    (Fetcher, "close", "close"),
    (GroupCoordinator, "commit_offsets", "commit"),
    (GroupCoordinator, "close", "leave"),
    (AIOKafkaProducer, "send_and_wait", "send"),
    (AIOKafkaProducer, "send_batch", "send"),
)


@contextmanager
def hostile_client(*faults: str | Fault) -> Iterator[Plan]:
    """Let every call of aiokafka in this process that `faults` name come to harm while the block runs, and yield what becomes of them.

    A fault is written `who.What:harm@first x times`, without the space: `worker.Fetch:raises-after@2x3` loses the answers of the
    second to fourth fetch. `HARMS` has every harm by its name. Raises `ValueError` for what is no fault.
    """
    plan = Plan(*(Fault.parse(fault) if isinstance(fault, str) else fault for fault in faults))
    with ExitStack() as undo:

        class Undone:
            def setattr(self, owner: Any, name: str, value: Any) -> None:
                undo.enter_context(mock.patch.object(owner, name, value))

        install(Undone(), of_process=plan)
        yield plan


def install(patch: Patch, *, of_process: Plan | None = None) -> None:
    """Let every call of aiokafka pass through the plan of its context, or through `of_process` where there is none."""

    def wrap(owner: type[Any], method: str, name: Callable[..., str]) -> None:
        real = getattr(owner, method)

        @functools.wraps(real)
        async def call(self: Any, *arguments: Any, **options: Any) -> Any:
            plan = under.get() or of_process
            if plan is None:
                return await real(self, *arguments, **options)
            if owner is AIOKafkaClient:
                plan.clients.add(self)
            return await plan.pass_through(name(self, *arguments), lambda: real(self, *arguments, **options))

        patch.setattr(owner, method, call)

    wrap(AIOKafkaClient, "send", lambda client, _, request: f"{_who_sends(client, request)}.{_what(request)}")
    for owner, method, step in _STEPS:
        wrap(owner, method, functools.partial(_step, step))


def install_from_environment(patch: Patch, suffered: Path) -> None:
    """Install the plan that `HOSTILE` holds, for the whole process, which writes each fault that strikes into the file `suffered`."""

    def tell(fault: Fault) -> None:
        with suffered.open("a") as file:
            file.write(f"{fault}\n")

    if text := os.environ.get("HOSTILE"):
        install(patch, of_process=Plan(*Plan.parse(text).faults, tell=tell))


def _who(client: Any) -> str:
    name = client_id_of(client)
    return next((who for who in ("relay", "topics", "control") if name.endswith(f"-{who}")), "worker")


def _who_sends(client: Any, request: object) -> str:
    """A worker says how it is through the client that its copies take."""
    topics = produced_topics(request) if isinstance(request, ProduceRequest) else []
    return "control" if topics and all(map(_is_control, topics)) else _who(client)


def _is_control(topic: object) -> bool:
    return isinstance(topic, str) and topic.endswith(".control")


def _what(request: object) -> str:
    name = type(request).__name__.removesuffix("Request")
    return _CALLED.get(name, name)


def _step(step: str, owner: Any, *arguments: object) -> str:
    maker = owner.consumer if isinstance(owner, Taking) else owner
    is_control = step == "send" and any(map(_is_control, arguments))
    return f"{'control' if is_control else _who(maker)}.{step}"
