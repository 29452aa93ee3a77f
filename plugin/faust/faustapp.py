"""`use` and `App`: the guarantees of Ackwise for the agents and handler functions of a `faust.App`.

`use` adds them to a stock app; `App` is Faust's with Ackwise on from the start and with types for what it adds. Each handler function is
called by its own agent and returns statuses as on the other host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import faust
from faust.types import TopicT

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.message.disposition import ConsumeStatus
from ackwise.middleware.owntask import ended, in_a_task, outcome_of
from ackwise.middleware.pipeline.settlement import Undecided, current_assignment
from ackwise.middleware.runs.agent import Agent as Handler
from ackwise.middleware.usercode import Called, Raised, Stops, is_a
from ackwise.plugin.faust.faustagents import Agent, is_fed, undecoded
from ackwise.plugin.faust.fausthost import FaustHost
from ackwise.plugin.faust.faustinternals import FaustApp, keywords_of, settings_of
from ackwise.plugin.faust.faustmessages import says_types
from ackwise.plugin.faust.faustmiddleware import Around
from ackwise.plugin.faust.faustsettings import Settings, keywords, put_in, refuse_unknown
from ackwise.plugin.faust.fauststream import Stream
from ackwise.plugin.faust.work import Work
from ackwise.plugin.handlers.decoder import name_of
from ackwise.plugin.handlers.handler import HandlerOf, check_agent, inspect_handler
from ackwise.plugin.settings.config import read_config

if TYPE_CHECKING:
    from typing import Unpack

    import faust

    from ackwise.plugin.app import Usable
    from ackwise.plugin.faust.fausthost import FaustHost
    from ackwise.plugin.faust.faustsettings import FaustSettings


def use(app: faust.App, *things: Usable, agents: Sequence[str] = (), **settings: Unpack[FaustSettings]) -> None:
    """Let the agents that are declared on `app` from here on lose nothing: policies, one of a kind, and observers, as for `App.use`;
    and middleware, which wraps handler functions, while other agents are loops.

    Without any, `ConsumeLater(16)` and `DeadLetter()` are on. Call it right after the app is made, before its first agent;
    it may be called again. With `agents`, names, `things` are for those agents alone: policies in place of the app's, and middleware, as
    `use=` of an agent of Ackwise's `App`. `settings` are `create_topics`, `revoke_timeout`, `drain_timeout`, `start_timeout` and
    `clock_skew` of `HostSettings`, which the app takes as well, as keywords `ackwise_create_topics` and so on; the others are Faust's own.
    Raises `ConfigurationError`.
    """
    refuse_unknown(settings, owner="use()")
    keywords(app)  # refuses what Faust would drop
    anything: Any = app
    options = keywords_of(app)
    host = anything.__dict__.get("ackwise")
    if host is None:
        host = FaustHost(app, read_config(environ=options.get("env")))
        host.install()
        anything.ackwise = host
    elif app.agents:
        raise ConfigurationError(
            f"app.use() comes after agent {next(iter(app.agents))!r} was declared; call it right after the app is made"
        )
    slots = cast(FaustHost, host).slots
    for name in (agents,) if isinstance(agents, str) else agents:
        slots.use_for(name, things)
    for thing in () if agents else things:
        slots.use(thing)
    for name, value in settings.items():
        options[f"ackwise_{name}"] = value
        if (conf := settings_of(app)) is not None and name not in host.config.of():
            setattr(conf, f"ackwise_{name}", value)


T = TypeVar("T")
HandlerT = TypeVar("HandlerT", bound=Callable[[Any], Coroutine[Any, Any, ConsumeStatus | None]])


@overload
def handler(
    app: faust.App,
    *topics: str | faust.TopicT,
    model: type[T],
    name: str | None = None,
    max_batch: int = 200,
    max_wait: float | str = 0.0,
    keep_ack_index_on_error: bool = False,
    max_age: float | str = 0.0,
    expires: bool = False,
) -> HandlerOf[T]: ...
@overload
def handler(
    app: faust.App,
    *topics: str | faust.TopicT,
    model: UnionType | None = None,
    name: str | None = None,
    max_batch: int = 200,
    max_wait: float | str = 0.0,
    keep_ack_index_on_error: bool = False,
    max_age: float | str = 0.0,
    expires: bool = False,
) -> Callable[[HandlerT], HandlerT]: ...
def handler(
    app: faust.App,
    *topics: str | faust.TopicT,
    model: Any = None,
    name: str | None = None,
    max_batch: int = 200,
    max_wait: float | str = 0.0,
    keep_ack_index_on_error: bool = False,
    max_age: float | str = 0.0,
    expires: bool = False,
) -> Any:
    """Register an `async def` handler of `topics`, names or one topic of Faust; the handler itself is returned unchanged.

    It is what `App.agent` of the other host takes, with the same arguments, and what it returns or raises means the same. Values
    are decoded as the topic of Faust says, if that has a type or a serializer, otherwise by `model` or the annotation. An agent of
    Faust with the handler's name calls it, for one batch or message at a time: `app.agents[name]` sends to it. It answers
    nobody who asks it. Raises `ConfigurationError`.
    """
    if topics and callable(topics[0]) and not isinstance(topics[0], TopicT):
        raise ConfigurationError(f'@app.handler on {name_of(topics[0])!r} names no topic; write @app.handler("orders")')

    def register(function: HandlerT) -> HandlerT:
        host = _host(app)
        called = name_of(function) if name is None else name
        channel = _topic(app, called, topics)
        by_schema = channel is not None and says_types(channel)
        if by_schema and model is not None:
            raise ConfigurationError(
                f"handler {called!r} was given a model, and its topic says how values are decoded; leave out one of them"
            )
        seen = inspect_handler(function, model=model, decode=undecoded if by_schema else None)
        declared = Handler(
            name=called,
            topics=tuple(map(str, topics if channel is None else channel.topics)),
            kind=seen.kind,
            call=seen.call,
            decode=seen.decoding.decode,
            max_batch=max_batch,
            max_wait=parse_duration(max_wait, what="max_wait"),
            keep_ack_index_on_error=keep_ack_index_on_error,
            max_age=parse_duration(max_age, what="max_age"),
            expires=expires,
            consume_timeout=0.0,  # Faust runs its agents by itself
        )
        check_agent(declared)
        if called in app.agents:
            raise ConfigurationError(f"two agents are called {called!r}; give one of them a name=")
        declared = host.slots.wrapped(declared, lambda: app.conf.id)
        agent = app.agent(channel or app.topic(*declared.topics), name=called)(_call_in_a_loop)
        cast(Agent, agent).handler = declared
        agent.help = function.__doc__ or ""
        return function

    return register


def _host(app: faust.App) -> FaustHost:
    anything: Any = app
    if anything.__dict__.get("ackwise") is None:
        use(app)
    return cast("FaustHost", anything.ackwise)


def _topic(app: faust.App, called: str, topics: tuple[str | TopicT, ...]) -> TopicT | None:
    """The topic of Faust that was given, or `None` for names."""
    given = [topic for topic in topics if isinstance(topic, TopicT)]
    if not given:
        return None
    if len(topics) > 1:
        raise ConfigurationError(
            f'handler {called!r} reads several topics, not all of them by name; give names, or one app.topic("a", "b", value_type=…)'
        )
    if not is_fed(given[0]):
        raise ConfigurationError(f"handler {called!r} reads topics by a pattern or without acks, which can't be settled; name its topics")
    return given[0]


async def _call_in_a_loop(stream: Any) -> None:
    """What an agent of Faust runs for its handler function."""
    if (source := cast(Stream, stream).source) is None:
        raise AckwiseError("a handler function is called in a worker only; call it yourself with a batch or a message to test it")
    declared = source.handler
    if declared.around is not None:
        async for members in cast(Stream, stream).flights():
            await Around(declared, cast(Stream, stream), members).run()
        return
    async for work in cast(Stream, stream).works(together=declared.kind == "batch"):
        await _call(declared, work)


async def _call(declared: Handler, work: Work) -> None:
    """Call the handler in its own task: what cancels the actor is kept apart from what the handler leaves behind."""
    current_assignment.set(work.members[0].assignment)  # what is called together is of one partition
    task, found = in_a_task(declared.call, work.batch if declared.kind == "batch" else work.batch[0])
    is_cancelled = await ended(task)
    result = outcome_of(found)
    if is_cancelled and isinstance(result, Raised) and is_a(result.error, asyncio.CancelledError):
        raise result.error
    _conclude(declared, work, result)
    if is_cancelled:  # and the handler did not let it through
        raise asyncio.CancelledError


def _conclude(declared: Handler, work: Work, result: Called) -> None:
    if isinstance(result, Stops):
        work.stop(result.error)
    elif isinstance(result, Raised) and is_a(result.error, Undecided):
        work.forsake()
    else:
        work.conclude(result, keep_ack_index_on_error=declared.keep_ack_index_on_error)


class App(FaustApp):
    """As `faust.App`, and its agents lose nothing: `ConsumeLater(16)` and `DeadLetter()` are on without a call of `use`.

    The keywords that start with `ackwise_` are settings of `HostSettings` that Faust does not have; they may stand in the
    configuration object as well, and a file and the environment win over both, as for the App of Ackwise. In `conf` is
    what holds. Raises `ConfigurationError`, also for a setting that starts with `ackwise_` and that there is not.
    """

    Settings = Settings
    ackwise: FaustHost  #: what runs the agents; its `explain()` says what becomes of their messages

    def __init__(
        self,
        id: str,
        *,
        ackwise_create_topics: Literal["auto", "never", "broker"] | None = None,
        ackwise_revoke_timeout: float | str | None = None,
        ackwise_drain_timeout: float | str | None = None,
        ackwise_start_timeout: float | str | None = None,
        ackwise_clock_skew: float | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            id,
            ackwise_create_topics=ackwise_create_topics,
            ackwise_revoke_timeout=ackwise_revoke_timeout,
            ackwise_drain_timeout=ackwise_drain_timeout,
            ackwise_start_timeout=ackwise_start_timeout,
            ackwise_clock_skew=ackwise_clock_skew,
            **options,
        )
        use(self)

    def use(self, *things: Usable, agents: Sequence[str] = (), **settings: Unpack[FaustSettings]) -> None:
        """Add policies, one of a kind and in any order, middleware and observers; before the first agent.

        With `agents`, names, what is given is for those agents alone: policies in place of the app's, and middleware.
        `settings` are those that the app takes itself, without `ackwise_`. Raises `ConfigurationError`.
        """
        use(self, *things, agents=agents, **settings)

    @overload
    def handler(
        self,
        *topics: str | faust.TopicT,
        model: type[T],
        name: str | None = None,
        max_batch: int = 200,
        max_wait: float | str = 0.0,
        keep_ack_index_on_error: bool = False,
        max_age: float | str = 0.0,
        expires: bool = False,
    ) -> HandlerOf[T]: ...
    @overload
    def handler(
        self,
        *topics: str | faust.TopicT,
        model: UnionType | None = None,
        name: str | None = None,
        max_batch: int = 200,
        max_wait: float | str = 0.0,
        keep_ack_index_on_error: bool = False,
        max_age: float | str = 0.0,
        expires: bool = False,
    ) -> Callable[[HandlerT], HandlerT]: ...
    def handler(self, *topics: str | faust.TopicT, **options: Any) -> Any:
        """Register an `async def` handler function of `topics`; see `ackwise.plugin.faust.handler`. Raises `ConfigurationError`."""
        return handler(self, *topics, **options)

    def load_settings(self, *, silent: bool) -> Any:
        """Like Faust's, with what a file and the environment set."""
        settings = cast(Settings, super().load_settings(silent=silent))
        put_in(settings, self.ackwise.config)
        return settings
