"""The private names of Faust and of mode. Only this module uses them.

Faust calls private methods of its classes. For each that Ackwise replaces, the classes here have a method with a plain name, which does
what Faust does until a subclass overrides it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableSequence
from typing import Any, Final, cast

import faust
from faust.types import TP, EventT

from ackwise.plugin.kafka import clients
from ackwise.plugin.kafka.releases import Release

FAUST: Final = Release("faust-streaming", "0.15.3")
MODE: Final = Release("mode-streaming", "0.7")

with MODE.imports():
    from mode import Service
    from mode.threads import QueueServiceThread as QueueServiceThread
    from mode.utils.aiter import aiter

with FAUST.imports():
    from faust.agents.agent import _current_agent
    from faust.channels import Channel
    from faust.streams import maybe_forward as maybe_forward
    from faust.tables.recovery import Recovery
    from faust.transport.conductor import Conductor
    from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Producer
    from faust.transport.drivers.aiokafka import Transport as Transport
    from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth as credentials_to_aiokafka_auth
    from faust.transport.drivers.aiokafka import server_list as server_list

#: What is used here; with its parameters where another function takes its place.
NAMES: Final[Mapping[type[Any], str]] = {
    faust.App: "_conf _config_source _default_options _load_settings(silent) _load_settings_from_source _new_transport() _new_web()",
    faust.Agent: "_actor_by_partition _execute_actor(coro,aref) _on_error _slurp",
    faust.Stream: """_channel_stop_iteration _finalized _format_key(key,value) _iter_ll_forwards _passive_drainer(channel,declare)
        _passive_started _processors _set_current_event""",
    Channel: "_throw(exc)",
    Recovery: "_wait(coro,timeout)",
    Transport: "_really_create_topic",
    Conductor: "_build_handler(tp,channels) _tp_index _update_indices()",
    Consumer: """_committed_offset _getmany(active_partitions,timeout) _new_consumer_thread() _read_offset _thread _unacked_messages
        _wait_next_records(timeout)""",
    AIOKafkaConsumerThread: """_consumer _create_worker_consumer(transport) _ensure_consumer
        _fetch_records(consumer,active_partitions,timeout,max_records)""",
    Producer: "_producer",
}


def require_known() -> None:
    """Raise `ConfigurationError` if an installed library lacks a name that is used here. They are looked up once, in milliseconds."""
    clients.require_known()
    MODE.require({Service: "_crashed", QueueServiceThread: "on_thread_stop()"})
    FAUST.require(NAMES)


def keywords_of(app: Any) -> dict[str, Any]:
    """Return the keywords of `app`; they may be changed until the settings are made."""
    return cast("dict[str, Any]", app._default_options[1])


def settings_of(app: Any) -> Any | None:
    """The settings of `app`, if they are made already: asking for `conf` would make them."""
    return app._conf


def put(app: Any, name: str, value: object) -> None:
    """Let `app` have this setting, whether its settings are made already or not."""
    keywords_of(app)[name] = value
    if app._conf is not None:
        setattr(app._conf, f"_{name}", value)


def was_set(conf: Any, name: str) -> Any:
    """The value that the user has set; `None` where the default holds."""
    return vars(conf).get(f"_{name}")


def source_of(app: Any) -> Mapping[str, Any]:
    """Return the configuration object of `app` as a mapping; empty without one."""
    source = app._config_source
    return cast("Mapping[str, Any]", app._load_settings_from_source(source)) if source else {}


def has_crashed(app: Any) -> bool:
    """Return whether an error has ended `app`."""
    return bool(app._crashed.is_set())


def wrap_transport(app: Any, wrap: Callable[[Any], Any]) -> None:
    """Let `app` use `wrap(transport)`, once it asks for one."""
    make = app._new_transport
    app._new_transport = lambda: wrap(make())


def wrap_web(app: Any, wrap: Callable[[Any], Any]) -> None:
    """Let `app` use `wrap(web server)`, once it asks for one; until then it may be configured."""
    make = app._new_web
    app._new_web = lambda: wrap(make())


def wrap_creation(transport: Any, wrap: Callable[[Callable[..., Awaitable[object]]], Callable[..., Awaitable[None]]]) -> None:
    """Let `transport` create topics as `wrap(really)` does, where `really` is Faust's way."""
    transport._really_create_topic = wrap(transport._really_create_topic)


def throw_into(channel: Any, throw: Callable[[BaseException], None]) -> None:
    """Let `throw` have what is thrown into `channel`."""
    channel._throw = throw


def let_recovery_wait(app: Any) -> None:
    """Let the step before a worker of `app` consumes wait for brokers for as long as they are unavailable.

    Faust has a limit for each call there, takes its end for that of the worker, and recovers nothing and consumes nothing from then on.
    """
    recovery = app.tables.recovery
    wait = recovery._wait

    async def waiting(call: Any, timeout: Any = None) -> None:
        await wait(call)

    recovery._wait = waiting


def read_offset_of(consumer: Any, partition: Any) -> int | None:
    """The last offset of `partition` that `consumer` has given on."""
    return cast("int | None", consumer._read_offset.get(partition))


def registry_of(app: Any) -> object:
    """The registry that the page of `app` for Prometheus shows. Faust keeps it nowhere but in the function of the page."""
    pages = [type(view) for view in app.web.views.values() if type(view).__module__ == "faust.sensors.prometheus"]
    if (found := inspect.getclosurevars(cast(Any, pages[-1]).get).nonlocals.get("registry")) is None:
        raise FAUST.lacks(["the registry of its page for Prometheus"])
    return found


def chain_of(stream: Any) -> list[Any]:
    """`stream`, and those that were derived from it."""
    return list(stream._iter_ll_forwards())


class FaustApp(faust.App):
    """An app."""

    def _load_settings(self, *, silent: bool = False) -> Any:
        return self.load_settings(silent=silent)

    def load_settings(self, *, silent: bool) -> Any:
        return super()._load_settings(silent=silent)


class FaustAgent(faust.Agent):
    """An agent."""

    async def _execute_actor(self, coro: Awaitable[Any], aref: Any) -> None:
        await self.run_actor(coro, aref)

    async def run_actor(self, coro: Awaitable[Any], aref: Any) -> None:
        await super()._execute_actor(coro, aref)

    def become_current(self) -> None:
        """Be the agent that works, for calls in this task."""
        _current_agent.set(self)

    def actor_of(self, tp: TP) -> Any | None:
        """The actor that has this partition alone."""
        return self._actor_by_partition.get(tp)

    def begun(self, aref: Any) -> Awaitable[Any]:
        """Return the awaitable that runs the actor, whose function was called."""
        return aref if isinstance(aref, Awaitable) else self._slurp(aref, aiter(aref))

    @property
    def error_handler(self) -> Callable[..., Any] | None:
        return self._on_error


class FaustStream(faust.Stream[Any]):
    """A stream."""

    @property
    def processors(self) -> MutableSequence[Any]:
        return self._processors

    def set_current(self, event: EventT[Any] | None) -> None:
        """Let `event` be the current one, here and for calls in this task."""
        self._set_current_event(event)

    def mark_finalized(self, value: bool) -> None:
        """Say whether it can be changed no more."""
        self._finalized = value

    def mark_forwarding(self) -> None:
        """Say that forwarding has started."""
        self._passive_started.set()

    def leave_channel(self) -> None:
        """Take no more from its channel."""
        self._channel_stop_iteration(self.channel)

    async def _format_key(self, key: Any, value: Any) -> Any:
        return await self.make_key(key, value)

    async def make_key(self, key: Any, value: Any) -> Any:
        return await super()._format_key(key, value)

    async def _passive_drainer(self, channel: Any, declare: bool = False) -> None:
        await self.forward_into(channel, declare)

    async def forward_into(self, channel: Any, declare: bool) -> None:
        """Forward what is read, for `through` and `group_by`."""
        await super()._passive_drainer(channel, declare)


class FaustConsumer(Consumer):
    """A consumer."""

    @property
    def thread(self) -> Any:
        return self._thread

    def _new_consumer_thread(self) -> Any:
        return self.make_thread()

    def make_thread(self) -> Any:
        return super()._new_consumer_thread()

    async def _getmany(self, active_partitions: Any, timeout: float) -> Any:
        return await self.fetch_from(active_partitions, timeout)

    async def fetch_from(self, active_partitions: Any, timeout: float) -> Any:
        return await super()._getmany(active_partitions, timeout)

    async def _wait_next_records(self, timeout: float) -> Any:
        return await self.next_records(timeout)

    async def next_records(self, timeout: float) -> Any:
        return await super()._wait_next_records(timeout)

    def forget_unacked(self, message: Any) -> None:
        """`message` will not be acknowledged."""
        self._unacked_messages.discard(message)

    def note_committed(self, offsets: Mapping[TP, int]) -> None:
        """These next offsets are committed."""
        self._committed_offset.update(offsets)


class FaustThread(AIOKafkaConsumerThread):
    """The thread of a consumer."""

    @property
    def client(self) -> Any | None:
        """The client of aiokafka, once it is made."""
        return self._consumer

    def require_client(self) -> Any:
        """The client of aiokafka. Raises what Faust raises before it is started."""
        return self._ensure_consumer()

    def _create_worker_consumer(self, transport: Any) -> Any:
        return self.make_client(transport)

    def make_client(self, transport: Any) -> Any:
        return super()._create_worker_consumer(transport)

    async def _fetch_records(self, consumer: Any, active_partitions: Any, timeout: Any = None, max_records: Any = None) -> Any:
        return await self.fetch_records(consumer, active_partitions, timeout, max_records)

    async def fetch_records(self, consumer: Any, active_partitions: Any, timeout: Any = None, max_records: Any = None) -> Any:
        return await super()._fetch_records(consumer, active_partitions, timeout=timeout, max_records=max_records)


class FaustConductor(Conductor):
    """What hands messages to channels."""

    async def _update_indices(self) -> Iterable[str]:
        return await self.subscribed()

    async def subscribed(self) -> Iterable[str]:
        return await super()._update_indices()

    def _build_handler(self, tp: TP, channels: Any) -> Any:
        return self.make_handler(tp, channels)

    def make_handler(self, tp: TP, channels: Any) -> Any:
        return super()._build_handler(tp, channels)

    def channels_of(self, tp: TP) -> set[Any]:
        """Those that get the messages of `tp`."""
        return set(self._tp_index.get(tp, ()))


class FaustProducer(Producer):
    """A producer."""

    @property
    def client(self) -> Any | None:
        """The client of aiokafka, once it is made."""
        return self._producer
