"""`App`: Faust's, with Ackwise on from the start and with types for what Ackwise adds."""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import faust

from ackwise.plugin.faust.handlers import HandlerT, handler
from ackwise.plugin.faust.host import FaustHost
from ackwise.plugin.faust.internals import FaustApp
from ackwise.plugin.faust.settings import Settings, put_in
from ackwise.plugin.faust.stockapp import use
from ackwise.plugin.handler import HandlerOf

if TYPE_CHECKING:
    from typing import Unpack

    from ackwise.plugin.app import Usable
    from ackwise.plugin.faust.settings import FaustSettings

__all__ = ["App"]

T = TypeVar("T")


class App(FaustApp):
    """As `faust.App`, and its agents lose nothing: `ConsumeLater(16)` and `DeadLetter()` are on without a call of `use`.

    The keywords that begin with `ackwise_` are settings of `HostSettings` that Faust does not have; they may stand in the
    configuration object as well, and a file and the environment win over both, as for the App of Ackwise. In `conf` is
    what holds. Raises `ConfigurationError`, also for a setting that begins with `ackwise_` and that there is not.
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

    def use(self, *things: Usable, **settings: Unpack[FaustSettings]) -> None:
        """Add policies, one of a kind and in any order, middleware and observers; before the first agent.

        `settings` are those that the app takes itself, without `ackwise_`. Raises `ConfigurationError`.
        """
        use(self, *things, **settings)

    @overload
    def handler(
        self,
        *topics: str | faust.TopicT,
        model: type[T],
        name: str | None = None,
        max_batch: int = 200,
        max_wait: float | str = 0.0,
        keep_ack_index_on_error: bool = False,
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
    ) -> Callable[[HandlerT], HandlerT]: ...
    def handler(self, *topics: str | faust.TopicT, **options: Any) -> Any:
        """Register an `async def` handler function of `topics`; see `ackwise.plugin.faust.handler`. Raises `ConfigurationError`."""
        return handler(self, *topics, **options)

    def load_settings(self, *, silent: bool) -> Any:
        """As Faust's, with what a file and the environment set."""
        settings = cast(Settings, super().load_settings(silent=silent))
        put_in(settings, self.ackwise.config)
        return settings
