"""`App`: the handlers of one consumer group, their policies, and the process that runs them."""

from __future__ import annotations

import asyncio
import datetime
import functools
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Generator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.flow.controlrecords import MessageAt, MessageCommand, WaitingAnswer, WaitingMessage, message_at
from ackwise.middleware.flow.pausing import Target, target_of
from ackwise.middleware.log import Log, said
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.publishing import publish
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.handlers.handler import check_agent, refuse_own_topics
from ackwise.plugin.handlers.lifespan import Lifespan
from ackwise.plugin.handlers.observers import Observer
from ackwise.plugin.handlers.usermiddleware import Middleware
from ackwise.plugin.operate.explanation import Explanation, explain
from ackwise.plugin.policyslots import Policy, Slots
from ackwise.plugin.process.supervisor import supervised
from ackwise.plugin.process.watchdog import AT_EXIT, Watchdog, code_of, collect_rarely
from ackwise.plugin.producer.encoding import GivenHeaders, due_of, outgoing
from ackwise.plugin.router import Declared, Router
from ackwise.plugin.running import Running
from ackwise.plugin.settings.config import Config, read_config
from ackwise.plugin.settings.hostsettings import DEFAULT_BROKERS, AppSettings, HostSettings, placed, refuse_unknown
from ackwise.plugin.topics.group import Group, group_of
from ackwise.plugin.topics.topicpatterns import topics_about
from ackwise.plugin.topictemplate import TopicTemplate

if TYPE_CHECKING:
    from typing import Unpack

    from ackwise.middleware.message.outgoing import Acked
    from ackwise.plugin.aiokafkahost import AiokafkaHost
    from ackwise.plugin.delays.cancellations import CancelAnswer


log = Log()

LifespanT = TypeVar("LifespanT", bound=Lifespan)

Usable = Policy | Middleware | Observer
"""What an app can use."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

#: Seconds after `drain_timeout` until the process ends even if a task hangs.
_EXIT_AFTER: Final = 9.8

#: Seconds for the tasks of the worker after an error, and for its threads after the main thread.
_TASKS_END, _THREADS_END = 5.0, 5.0


class App(Router):
    """The handlers of one consumer group.

    `settings` are those of `HostSettings`: `commit_interval="5s"`, `create_topics="never"` and so on. Without `use`,
    `ConsumeLater(16)` and `DeadLetter()` are on, `Dedup` and `Events` are off. `config` overrides all of that; by default it is read
    from the working folder and the environment. Raises `ConfigurationError`.
    """

    def __init__(
        self, group: str, *, brokers: str = DEFAULT_BROKERS, config: Config | None = None, **settings: Unpack[AppSettings]
    ) -> None:
        super().__init__()
        refuse_unknown("App", settings)
        self._config = read_config() if config is None else config
        self.settings = self._config.host_settings(group, brokers=brokers, **settings)
        self._slots = Slots(self._config)
        self._says_start = "start" in settings or "start" in self._config.of()
        self._agents: list[Agent] = []
        self._is_started = False
        self._is_running = False
        self._host: AiokafkaHost | None = None  #: the current or the last one

    def __repr__(self) -> str:
        return f"<App {self.settings.group!r} with {', '.join(agent.name for agent in self._agents) or 'no agents'}>"

    def use(self, *things: Usable) -> None:
        """Add policies, one of a kind and in any order; middleware, of which the first used is the outermost; and observers.

        A middleware is `async def mw(work, call_next)`; the annotation of `work` says whether it wraps handlers of a `Batch`, of a
        `Message`, or all (`Batch[Any] | Message[Any]`). Its `None` keeps the result of the handler, errors included. An observer is
        `def observe(event)`: it sees every event and can change nothing; what it raises is counted and logged. Raises
        `ConfigurationError`, also after the start.
        """
        if self._is_started:
            raise ConfigurationError("use() was called after the app was started; call it before")
        for thing in things:
            self._slots.use(thing)

    def lifespan(self, function: LifespanT) -> LifespanT:
        """Register an `async def` that yields once. The code before the `yield` runs before the worker connects, the code after it after
        the worker has drained and left its group.

            @app.lifespan
            async def resources():
                async with asyncpg.create_pool(DSN) as pool:
                    yield pool

        It yields one object or a tuple. Handlers get such an object by a parameter of its class, next to their message:
        `async def bill(order: Order, pool: asyncpg.Pool)`. If it raises, the worker does not start. A function that returns an async
        context manager works as well. Lifespans are entered in order and left in reverse. Raises `ConfigurationError`.
        """
        if self._is_started:
            raise ConfigurationError("a lifespan was added after the app was started; add it before")
        self._slots.lifespans.add(function)
        return function

    def _add(self, declared: Declared) -> None:
        agent = declared.agent
        if self._is_started:
            raise ConfigurationError("an agent was added after the app was started; add it before")
        check_agent(agent)
        taken = [topic for other in self._agents for topic in other.topics]
        for topic in agent.topics:
            if topic in taken:
                raise ConfigurationError(f"topic {topic!r} has two agents; one app delivers it to one")
        if agent.pattern is not None and agent.pattern in [other.pattern for other in self._agents]:
            raise ConfigurationError(f"pattern {agent.pattern.pattern!r} has two agents; one app delivers a topic to one")
        if any(other.name == agent.name for other in self._agents):
            raise ConfigurationError(f"two agents are called {agent.name!r}; give one of them a name=")
        self._agents.append(agent)
        self._slots.agents[agent.name] = declared.used
        if declared.resources is not None:
            self._slots.lifespans.handlers.append(declared.resources)

    def include(self, router: Router) -> None:
        """Add the handlers of `router` to the app. Raises `ConfigurationError`, also after the start."""
        if not isinstance(router, Router) or isinstance(router, App):
            raise ConfigurationError(f"include() was given {router!r}; give it a Router, on which agents are registered as on an app")
        for declared in router.included():
            self._add(declared)

    def agents(self) -> list[Agent]:
        """Return the agents, wrapped in their middleware. Raises `ConfigurationError` for conflicts among all that was added."""
        if not self._agents:
            raise ConfigurationError(f'app {self.settings.group!r} has no agents; add one with @app.agent("orders")')
        for agent in self._agents:
            refuse_own_topics(
                agent, group=self.settings.group, dead_letter=self._slots.dead_letter.topic, topic_names=self.settings.topic_names
            )
        self._slots.lifespans.check()
        self._slots.check_middleware({agent.kind for agent in self._agents}, "no agent of this app does; it would never run")
        return [self._slots.wrapped(agent, lambda: self.settings.group) for agent in self._config.agents(self._agents)]

    def explain(self) -> Explanation:
        """Return how this app handles its messages, and the source of each setting. Connects to nothing and starts nothing.

        Raises `ConfigurationError` for the conflicts that a start would refuse.
        """
        return explain(self._placed(), self._slots, self.agents(), self._config, origins=self._origins())

    def group(self) -> Group:
        """Return what this app needs of Kafka and of this machine, for commands. Raises `ConfigurationError` as `explain` does."""
        return group_of(self._placed(), self._slots, self.agents())

    def _placed(self) -> HostSettings:
        """Return the effective settings; with `Broadcasting` each instance has its own group."""
        broadcasting = self._slots.broadcasting
        return self.settings if broadcasting is None else placed(self.settings, broadcasting, says_start=self._says_start)

    def _origins(self) -> Mapping[str, str]:
        return {} if self._slots.broadcasting is None or self._says_start else {"start": "Broadcasting"}

    async def pause(self, what: str) -> None:
        """Pause a handler (`"bill"`) or a partition (`"orders/3"`) in this process; may be called before the start.

        Running calls finish. No message is lost, and no attempt is counted. A partition whose handlers are all paused is not fetched.
        `ackwise pause` pauses in every worker. Raises `ConfigurationError`.
        """
        if self._slots.pausing.pause(self._target(what), "code"):
            log.info("paused from code", group=self.settings.group, paused=what)

    async def resume(self, what: str) -> None:
        """Undo a `pause` of this process; pauses by command stay. Raises `ConfigurationError`."""
        if self._slots.pausing.resume(self._target(what), "code"):
            log.info("resumed from code", group=self.settings.group, resumed=what)

    @property
    def _retry_topic(self) -> str:
        return TopicTemplate(self.settings.topic_names).name(self.settings.group, "retry")

    def _target(self, what: str) -> Target:
        topics = topics_about(what, self._agents)
        return target_of(what, handlers=[agent.name for agent in self._agents], topics={*topics, self._retry_topic})

    def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: str | bytes | None = None,
        headers: GivenHeaders = (),
        partition: int | None = None,
        message_id: str | None = None,
        source: Message[Any] | None = None,
        delay: float | str | None = None,
        at: datetime.datetime | float | None = None,
    ) -> Awaitable[Acked | None]:
        """Send a message; await the result. In a handler it is sent when the handler's message is done, and dropped if that fails.

        In a handler: the message is stored with the one in flight and sent when that is settled, with acks=all; only then that one counts
        as done. A kill in between sends it again under the same id: consumers with `Dedup(key=message_id)` run it once. The id is
        `message_id`, or is computed from group, handler, origin and content. A handler of batches passes its message as `source`. A plain
        `def` calls this without `await`.

        Outside of a handler: send it at once, as `Producer.send` does, and return its place. While the app runs all calls share one
        connection, otherwise each call connects; use a `Producer` to send many.

        `value` is bytes, str, `None`, or a value that JSON can hold, such as a pydantic model. Without a `partition` the key decides, as
        in Kafka's clients. With `delay` (seconds, or a text such as `"5m"`) or `at` (an aware datetime, or epoch seconds) it is sent at
        that time, never early, by topics of the group: see `delayed_sends`. Under `Transactional` it needs `Outbox` in the same database,
        and is a row of the same transaction.

        Raises `ConfigurationError` for a message that can't be sent; `InvalidRuling` if `source` is not in flight; outside of a handler
        `PublishRefused` and `PublishUnavailable`.
        """
        message = outgoing(topic, value, key=key, headers=headers, partition=partition, message_id=message_id)
        due = None if delay is None and at is None else functools.partial(due_of, delay, at)
        if publish(message, source, has_id=message_id is not None, due=due):
            return _Kept()
        if source is not None:
            raise ConfigurationError("app.publish was given source= outside of a handler, where no message is in flight; leave it out")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigurationError(
                "app.publish was called outside of a handler and of an event loop, such as in a thread that a handler started, where it "
                "can't be awaited; await it in an `async def`"
            ) from None
        return self._slots.outside.send(self.settings, message, delay=delay, at=at)

    def waiting(self) -> list[WaitingMessage]:
        """Return the messages that failed and wait in place in this process, sorted by partition and offset."""
        return [] if self._host is None else self._host.waiting.messages()

    async def retry(self, message: str) -> WaitingAnswer:
        """Retry a message that waits in place in this process at once; `message` is its place, such as `"orders/3/17"`.

        Messages before it are retried first. Return "accepted"; "running": its handler has it now; "unknown": it does not wait here.
        A requested burial stays requested. Raises `ConfigurationError`.
        """
        at = self._message_at(message)
        return "unknown" if self._host is None else self._host.waiting.retry(at, "code")

    async def bury(self, message: str) -> WaitingAnswer:
        """Turn a message that waits in place in this process into a dead letter with the reason `buried`; the messages after it continue.

        Return "accepted": it waited here, and its handler is not called again. "running": its handler has it now; it is buried if that
        attempt fails. "unknown": it does not wait here. The command is in the control topic before this returns, so the message is buried
        even if this process dies. It may be called again.

        Raises `ConfigurationError`, also without a control topic, and `Unavailable` if the brokers do not answer: then the message may or
        may not be buried.
        """
        from ackwise.plugin.topics.controltopic import write_commands  # the Kafka client is imported by those who run it

        at, host = self._message_at(message), self._host
        if host is None:
            return "unknown"
        answer, timestamp_ms = host.waiting.find(at)
        if answer == "unknown":
            return answer
        group = self.group()
        if not group.names.all:
            raise ConfigurationError(f"{group.settings.group!r} broadcasts, so it has neither dead letters nor a topic for commands")
        await write_commands(group.settings, group.names, [MessageCommand(at, "bury", timestamp_ms, round(time.time() * 1000))])
        found = host.waiting.bury(at, timestamp_ms, "code")
        return answer if found == "unknown" else found  # this worker may have read and executed it already

    def _message_at(self, message: str) -> MessageAt:
        return message_at(message, {*topics_about(message, self._agents), self._retry_topic})

    async def cancel(self, message_id: str) -> CancelAnswer:
        """Cancel a message that waits in the delay topic; `message_id` is `topic/partition/offset` of its first record.

        Return "accepted": it will not be delivered. "too late": it is due, or was delivered already. "unknown": no message with that id
        waits. The app need not run, and each call connects again. Raises `ConfigurationError` for an invalid id, and another
        `AckwiseError` if the brokers do not answer: then it may or may not be cancelled; cancel again to find out.
        """
        from ackwise.plugin.delays.cancellations import cancel  # the Kafka client is imported by those who run it

        return (await cancel(self.group(), [message_id]))[message_id]

    def run(self, *, watch: int | None = None) -> None:
        """Run until SIGINT or SIGTERM, then drain; the second signal cancels what still runs, the third kills.

        The process ends ten seconds after `drain_timeout` at the latest, even if a task hangs. After an error a hanging thread, such as
        one of a store, does not keep the process alive.

        The process should belong to the app alone: its garbage collector is set to run less often.

        `watch` is the port of the pages; it overrides `Watch` and the configuration.

        Raises as `serve`, and `SystemExit` (128 + the signal) when a second signal ended it.
        """
        self._slots.watch_port = watch
        collect_rarely()
        AT_EXIT.disarm()
        watchdog = Watchdog()
        try:
            asyncio.run(self._serve_until_signalled(watchdog))
        except BaseException as error:
            AT_EXIT.arm(_THREADS_END, code_of(error))
            raise
        finally:
            watchdog.disarm()

    @property
    def watch_port(self) -> int | None:
        """The port of the pages of `Watch`; `None` without `Watch`."""
        return None if (watch := self._slots.watch) is None else watch.port

    async def _serve_until_signalled(self, watchdog: Watchdog) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_take_note)
        serving = asyncio.ensure_future(self.serve(stop))
        second: list[signal.Signals] = []

        def on_signal(number: signal.Signals) -> None:
            if stop.is_set():
                second.append(number)
                for each in _SIGNALS:
                    loop.remove_signal_handler(each)
                watchdog.arm(_EXIT_AFTER, 128 + number)
                serving.cancel()
            else:
                watchdog.arm(self.settings.drain_timeout + _EXIT_AFTER, self._code)
                log.info("stop requested", signal=number.name, at_most=self.settings.drain_timeout)
                stop.set()

        for each in _SIGNALS:
            loop.add_signal_handler(each, on_signal, each)
        try:
            await serving
        except asyncio.CancelledError:
            if not second:
                raise
            raise SystemExit(128 + second[0]) from None
        except BaseException as error:
            watchdog.arm(_TASKS_END, code_of(error))  # the event loop waits for tasks and threads before the caller sees the error
            raise

    async def serve(self, stop: asyncio.Event) -> None:
        """Run in the event loop of the caller until `stop` is set, then drain and return.

        It may be called again after that: the memory of this process, such as successes that no store has yet, is kept.

        Raises `ConfigurationError` if it can't start, any internal error, and the `SystemExit` or `KeyboardInterrupt` of a handler.
        """
        await self._run(self._begin(), stop)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Running]:
        """Run while the block runs, such as in the lifespan of a web application; at its end drain and leave the group.

            async with app.running() as worker:
                await worker.ready()

        An error that ends the worker does not end the block: `worker.ended()` waits for it, and it is raised at the end of the block if
        that raises nothing. `worker.is_ready` is for probes. Errors that need no connection are raised at once.
        """
        host, stop = self._begin(), asyncio.Event()
        worker = Running(self._run(host, stop), host.has_joined)
        try:
            yield worker
        finally:
            stop.set()
            await worker.close()
        await worker.ended()

    async def _run(self, host: AiokafkaHost, stop: asyncio.Event) -> None:
        try:
            with supervised(host.has_joined, stop):
                async with self._slots.outside.beside(self.settings):
                    await host.run(stop)
        finally:
            self._is_running = False

    def _begin(self) -> AiokafkaHost:
        """Return the host of a new worker. Raises `ConfigurationError`, or `AckwiseError` while an old call of a handler still runs."""
        before = self._host
        if self._is_running:
            raise ConfigurationError("this app runs already; make another one for a second worker in this process")
        if before is not None and (left := before.left_running):
            raise AckwiseError(
                f"a call of handler {left[0]!r} still runs since the app was stopped, so a message could run twice; "
                "end the call, or start in a new process"
            )
        from ackwise.plugin.aiokafkahost import host_of  # the Kafka client is imported by those who run it

        host = host_of(self._slots, self._placed(), self.agents(), before=before)
        self._host, self._is_started, self._is_running = host, True, True
        return host

    def _code(self) -> int:
        """Return the exit code of a process that did not end in time after the stop; an error keeps its code."""
        return 0 if self._host is None or self._host.failed_by is None else code_of(self._host.failed_by)


class _Kept:
    """The result of publishing in a handler: the message is stored already, and awaiting takes no time."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


def _take_note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a failed call of the Kafka client that was abandoned: the client shields some calls, and they may fail later."""
    from aiokafka.errors import KafkaError  # the Kafka client is imported by those who run it

    error = context.get("exception")
    if isinstance(error, KafkaError) and "never retrieved" in str(context.get("message")):
        log.debug("abandoned call of the Kafka client failed", error=said(error))
    else:
        loop.default_exception_handler(context)
