"""The effect of a handler's statement on the open transaction: it opens or undoes a savepoint, or ends the transaction. Pure.

Each driver's hook passes every statement of a connection to the watchers while a `watched` block lasts. Before the statement a watcher may
write rows that belong before it, or raise to refuse it; afterwards it is notified.
"""

from __future__ import annotations

import enum
import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
Step = TypeVar("Step")
Step_co = TypeVar("Step_co", covariant=True)


class Effect(enum.Enum):
    """The effect of a statement on the open transaction."""

    SAVEPOINT = "it opens a savepoint"
    UNDOES = "it undoes what came after a savepoint"
    COMMITS = "it commits visibly"
    COMMITS_BY_ITSELF = "it ends the transaction before it does what it is for"
    ROLLS_BACK = "it rolls all back"
    ANYTHING = "it may do any of these, as a procedure can"
    ACTS_AS = "it leaves the transaction as it is, and changes whose rights count"
    SESSION = "it leaves the transaction as it is, and may change anything else that outlasts it, or a role unseen"


#: Those of the statements of a packet that do something, in their order.
Effects: TypeAlias = tuple[Effect, ...]

ENDING: Final = frozenset({Effect.COMMITS, Effect.COMMITS_BY_ITSELF, Effect.ROLLS_BACK})

PREPARED: Final = "a savepoint, or what may end a transaction, can't be a prepared statement inside a transaction of Ackwise; execute it"


def undoes(effects: Effects) -> bool:
    """Return whether a packet starts by taking back what was done before it."""
    return effects[0] in (Effect.UNDOES, Effect.ROLLS_BACK)


class Watcher(Protocol[Step_co]):
    """A participant of the transaction that is open on a connection."""

    def before(self, effects: Effects) -> Step_co | None:
        """A statement with `effects`, at least one, comes next: return what has to be done first, or raise to refuse it."""
        ...

    def after(self, effects: Effects) -> None:
        """It was executed."""
        ...


class Watched(Generic[Step]):
    """A connection with those who watch it; the last to come is the first to be asked. `Step` is what a driver does for them."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self.watchers: list[Watcher[Step]] = []
        self.is_ours = False  #: a statement of the watchers' own

    def effects(self, packet: str | bytes) -> Effects:
        """Return what `packet` does that the watchers have to know."""
        if self.is_ours:
            return ()
        return self._grammar.effects(packet if isinstance(packet, str) else packet.decode("utf-8", "surrogateescape"))

    def steps(self, effects: Effects) -> Generator[Step, None, None]:
        """Return what is to be done before a statement with `effects`, one watcher after the other. Raises what they raise."""
        self.is_ours = True
        try:
            for watcher in reversed(self.watchers):
                if (step := watcher.before(effects)) is not None:
                    yield step
        finally:
            self.is_ours = False

    def done(self, effects: Effects) -> None:
        """Tell all watchers that such a statement was executed."""
        for watcher in [*self.watchers]:
            watcher.after(effects)


class Watch(AbstractContextManager[None], Generic[Step]):
    """Lets a watcher see what is executed on a connection, from `start` until `stop` or while the block lasts; `hook` is a driver's."""

    def __init__(self, watched: Watched[Step], watcher: Watcher[Step]) -> None:
        self.watched, self._watcher = watched, watcher
        self._is_on = False

    @abstractmethod
    def hook(self) -> None:
        """Look at statements from now on."""

    @abstractmethod
    def unhook(self) -> None:
        """Leave nothing of `hook`."""

    def start(self) -> None:
        """From now on."""
        if not self.watched.watchers:
            self.hook()
        self.watched.watchers.append(self._watcher)
        self._is_on = True

    def stop(self) -> None:
        """No longer. Stopping twice does nothing."""
        if self._is_on:
            self._is_on = False
            self.watched.watchers.remove(self._watcher)
            if not self.watched.watchers:
                self.unhook()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


async def execute(
    watched: Watched[Awaitable[object]], packet: str | bytes, send: Callable[[], Awaitable[T]], *, is_alone: bool = False
) -> T:
    """Return what `send` does, which executes `packet`; the watchers are asked before. It `is_alone` if the transaction is gone."""
    effects = watched.effects(packet) or ((Effect.COMMITS_BY_ITSELF,) if is_alone else ())
    if not effects:
        return await send()
    with closing(watched.steps(effects)) as steps:
        for step in steps:
            await step
    answer = await send()
    watched.done(effects)
    return answer


@dataclass(frozen=True, slots=True)
class Grammar:
    """How the statements of a database are recognised, and what those do that are more than reading or writing."""

    hidden: re.Pattern[str]
    """Comments, texts and quoted names."""
    rules: tuple[tuple[re.Pattern[str], Effect | None], ...]
    """The start of a statement, in capitals with single spaces, and what it does; the first that fits."""
    otherwise: Effect | None = None
    several: bool = True
    """True if a packet may be several statements."""
    anywhere: str = ""
    """Words with an effect anywhere in a statement that reads or writes."""

    def effects(self, packet: str) -> Effects:
        """Return what the statements of `packet` do."""
        if _OFTEN.match(packet) and not (self.several and ";" in packet) and not (self.anywhere and self.anywhere in packet.lower()):
            return ()
        bare = self.hidden.sub(" ", packet)
        return tuple(filter(None, map(self._effect, bare.split(";") if self.several else [bare])))

    def _effect(self, bare: str) -> Effect | None:
        statement = " ".join(bare.split()).upper().lstrip("( ")
        if not statement:
            return None
        return next((effect for beginning, effect in self.rules if beginning.match(statement)), self.otherwise)


#: Spared a closer look: nearly every statement is one of these.
_OFTEN: Final = re.compile(r"\s*(?:select|insert|update|delete)\s", re.IGNORECASE)

_TEXT: Final = r"'(?:[^']|'')*+'"
_NAME: Final = r'"(?:[^"]|"")*+"'
_LINE: Final = r"--[^\n]*"
_COMMENT: Final = r"/\*.*?\*/"


def _hidden(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.DOTALL | re.IGNORECASE)


def _rules(*rules: tuple[str, Effect | None]) -> tuple[tuple[re.Pattern[str], Effect | None], ...]:
    return tuple((re.compile(rf"(?:{beginning})(?!\w)"), effect) for beginning, effect in rules)


POSTGRES: Final = Grammar(
    _hidden(
        r"(?<!\w)e'(?:[^'\\]|\\.|'')*+'",
        _TEXT,
        _NAME,
        r"\$((?:[a-z_]\w*)?)\$.*?\$\1\$",
        _LINE,
        r"/\*(?:[^*/]|\*(?!/)|/(?!\*)|/\*.*?\*/)*+\*/",  # one inside of another
        r"\bbegin\s+atomic\b.*?;\s*end\b",  # the body of a function
    ),
    _rules(
        ("SAVEPOINT", Effect.SAVEPOINT),
        ("(ROLLBACK|ABORT)( WORK| TRANSACTION)? TO", Effect.UNDOES),
        ("(COMMIT|ROLLBACK) PREPARED", None),
        ("ROLLBACK|ABORT", Effect.ROLLS_BACK),
        ("COMMIT|END", Effect.COMMITS),
        ("PREPARE TRANSACTION", Effect.COMMITS_BY_ITSELF),
        ("SET( LOCAL| SESSION)? (ROLE|SESSION AUTHORIZATION)|RESET (ROLE|ALL|SESSION AUTHORIZATION)", Effect.ACTS_AS),
        (r".*(?<!\w)SET_CONFIG|DISCARD|DO|CALL", Effect.SESSION),
    ),
    anywhere="set_config",
)

SQLITE: Final = Grammar(
    _hidden(_TEXT, _NAME, r"`[^`]*+`", r"\[[^\]]*+\]", _LINE, _COMMENT),
    _rules(
        ("SAVEPOINT", Effect.SAVEPOINT),
        ("ROLLBACK( TRANSACTION)? TO", Effect.UNDOES),
        ("ROLLBACK", Effect.ROLLS_BACK),
        ("COMMIT|END", Effect.COMMITS),
    ),
    several=False,
)

_READS_AND_WRITES: Final = (
    "SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|VALUES|TABLE|SHOW|EXPLAIN|DESCRIBE|DESC|DO|SET|USE|HELP|HANDLER|KILL|RELEASE|PREPARE|DEALLOCATE|"
    "ANALYZE|CHECKSUM|LOAD|SIGNAL|RESIGNAL|GET"
)
_COMMITS_BY_ITSELF: Final = (
    "ALTER|BACKUP|BEGIN|CACHE|CHANGE|CHECK|CLONE|CREATE|DROP|FLUSH|GRANT|IMPORT|INSTALL|LOCK|OPTIMIZE|PURGE|RENAME|REPAIR|RESET|RESTART|REVOKE|"
    "SHUTDOWN|START|STOP|TRUNCATE|UNINSTALL|UNLOCK|XA"
)

# What comes after "/*!" is executed.
MARIADB: Final = Grammar(
    _hidden(
        r"'(?:[^'\\]|\\.|'')*+'",
        r'"(?:[^"\\]|\\.|"")*+"',
        r"`[^`]*+`",
        r"--(?=\s|$)[^\n]*",
        r"#[^\n]*",
        r"/\*(?!M?!).*?\*/",
        r"/\*M?!\d*",
        r"\*/(?!\*)",
    ),
    _rules(
        ("SAVEPOINT", Effect.SAVEPOINT),
        ("ROLLBACK( WORK)? TO", Effect.UNDOES),
        ("ROLLBACK", Effect.ROLLS_BACK),
        ("COMMIT", Effect.COMMITS),
        ("BEGIN NOT ATOMIC|SET STATEMENT", Effect.ANYTHING),
        (r"SET PASSWORD|SET .*(?<![^@]@)\bAUTOCOMMIT *+:?= *+(?!(?:0|OFF|FALSE)(?!\w)).*", Effect.COMMITS_BY_ITSELF),
        ("SET|USE", Effect.SESSION),
        (r"(CREATE( OR REPLACE)?|DROP) TEMPORARY", None),
        (r"ANALYZE( LOCAL| NO_WRITE_TO_BINLOG)? TABLE|LOAD INDEX", Effect.COMMITS_BY_ITSELF),
        (_READS_AND_WRITES, None),
        (_COMMITS_BY_ITSELF, Effect.COMMITS_BY_ITSELF),
    ),
    otherwise=Effect.ANYTHING,
)
