"""User code: every call of a user's function, and every look at a user's object, goes through here.

A call returns `Returned`, `Raised` or `Stops`; a look returns a value of ours. An exception may fail to print itself, a value may
raise when it is compared, and a key function may call `sys.exit`. Such objects are known by type and identity alone. Exception groups
are flattened, and a traceback is reduced to the line of user code that raised.
"""

from __future__ import annotations

import os
import sysconfig
import traceback as tracebacks
import types
from collections.abc import Callable, Generator, Iterable
from contextvars import copy_context
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Generic, TypeVar

#: Exceptions in each other, above which they are not printed: Python prints one that is in several groups as often.
_MOST: Final = 1000

#: Those of Python itself: a class of the user's may have its own attributes in their place.
_members = BaseExceptionGroup.__dict__["exceptions"].__get__
_cause = BaseException.__dict__["__cause__"].__get__
_context = BaseException.__dict__["__context__"].__get__


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions that `error` stands for: those in a group, and in the groups within, each once; otherwise itself alone."""
    if not issubclass(type(error), BaseExceptionGroup):
        return [error]
    found: list[BaseException] = []
    known, waiting = set[int](), [error]
    while waiting:
        each = waiting.pop()
        if id(each) in known:
            continue
        known.add(id(each))
        if issubclass(type(each), BaseExceptionGroup):
            waiting += reversed(_members(each))
        else:
            found.append(each)
    return found


def is_printable(error: BaseException) -> bool:
    """Return whether so few exceptions are in `error`, or led to it, that a traceback of all of them can be printed."""
    seen, known, waiting = 0, set[int](), [error]
    while waiting and seen <= _MOST:
        each = waiting.pop()
        seen += 1
        known.add(id(each))
        before = _context(each) if (cause := _cause(each)) is None else cause
        waiting += () if before is None or id(before) in known else (before,)
        waiting += _members(each) if issubclass(type(each), BaseExceptionGroup) else ()
    return seen <= _MOST


T = TypeVar("T")
OtherT = TypeVar("OtherT")

#: What stops the app, and rules on nothing.
STOPS: Final = (SystemExit, KeyboardInterrupt, GeneratorExit)

#: What stands for an object that can't be printed.
_UNPRINTABLE: Final = "<unprintable>"

#: Python's own types, and how one of a class derived from them is made one of these; `bool` has no such class.
_PLAIN: Final[dict[type, Callable[[Any], Any]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: b"".join((value,)),
}

_name_of = type.__dict__["__name__"].__get__  # a metaclass of the user's may have its own


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Returned(Generic[T]):
    """User code returned `value`."""

    value: T


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Raised:
    """User code raised `error`."""

    error: BaseException


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Stops:
    """User code raised `error`, which stops the app."""

    error: BaseException


Called = Returned[Any] | Raised | Stops
"""What a call came to."""


def called(function: Callable[..., T], *arguments: Any) -> Returned[T] | Raised | Stops:
    """Call `function` in its own context: a variable that it sets is seen by no other call."""
    try:
        return Returned(copy_context().run(function, *arguments))
    except BaseException as error:  # noqa: BLE001  # user code: whatever it raises has a consequence
        return failure_of(error)


def failures_of(function: Callable[[T], object], values: Iterable[T]) -> list[Raised | Stops]:
    """Call `function` with each of `values`, as `called` does, and return what it raised: a healthy one is as cheap as a loop."""
    failures: list[Raised | Stops] = []
    for value in values:
        try:
            copy_context().run(function, value)
        except BaseException as error:  # noqa: BLE001  # as in `called`
            failures.append(failure_of(error))
    return failures


@types.coroutine
def awaited(function: Callable[..., Any], *arguments: Any) -> Generator[Any, Any, Called]:
    """Like `called`, of an asynchronous function. The task is the caller's, and what cancels that reaches the function."""
    run = copy_context().run
    coroutine = _call(function, arguments)
    step: Callable[[Any], Any] = coroutine.send
    given: Any = None
    while True:
        try:
            waits_for = run(step, given)
        except StopIteration as answer:
            return Returned(answer.value)
        except BaseException as error:  # noqa: BLE001  # as in `called`
            return failure_of(error)
        try:
            step, given = coroutine.send, (yield waits_for)
        except GeneratorExit:
            run(coroutine.close)
            raise
        except BaseException as error:  # noqa: BLE001  # the task is cancelled: the function gets the cancellation
            step, given = coroutine.throw, error


async def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return await function(*arguments)


def failure_of(error: BaseException) -> Raised | Stops:
    """What it means that user code raised `error`."""
    return Stops(error) if stops(error) else Raised(error)


def stops(error: BaseException) -> bool:
    """Return whether `error` stops the app: it is one of `STOPS`, or a group of nothing else."""
    return all(is_a(leaf, *STOPS) for leaf in leaves(error))


def is_a(value: object, *kinds: type) -> bool:
    """Return whether `value` is of one of `kinds`. `isinstance` asks the object, too, which may raise."""
    return issubclass(type(value), kinds)


def looked(look: Callable[..., T], *arguments: Any, otherwise: OtherT) -> T | OtherT:
    """What `look` finds out about `arguments`; `otherwise` if one of them raises, whatever that is."""
    outcome = called(look, *arguments)
    return outcome.value if isinstance(outcome, Returned) else otherwise


def class_name(value: object) -> str:
    """The name of the class of `value`."""
    return str.__str__(_name_of(type(value)))


def plain(value: object) -> object:
    """A text, a number or bytes of a class of the user's as Python's own; anything else as it is."""
    kind = type(value)
    if kind is bool or kind in _PLAIN:
        return value
    copy = next((copy for own, copy in _PLAIN.items() if issubclass(kind, own)), None)
    return value if copy is None else copy(value)


def shown(value: object, how: Callable[[Any], object] = str, otherwise: str = _UNPRINTABLE) -> str:
    """`value` as a text, by `how`; `otherwise` if it can't be printed, whatever that raises."""
    text = plain(looked(how, value, otherwise=otherwise))
    return text if type(text) is str else otherwise


def close_coroutine(value: object) -> None:
    """A plain function was to return a value. Had it returned a coroutine, Python would complain that it was never awaited."""
    if type(value) is types.CoroutineType:
        looked(value.close, otherwise=None)


_INSTALLED: Final = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))

_traceback_of = BaseException.__dict__["__traceback__"].__get__


def where_raised(error: BaseException) -> str | None:
    """`file:line` of the innermost frame of user code; of the innermost frame at all where there is none.

    User code is what belongs to neither Ackwise nor an installed package, and the installed package that Ackwise called: an app
    may be installed itself. `None` for an exception without a traceback.
    """
    return looked(_where_raised, error, otherwise=None)


def _where_raised(error: BaseException) -> str | None:
    frames = list(tracebacks.walk_tb(_traceback_of(error)))
    foreign = [(frame, line) for frame, line in frames if _package(frame) != "ackwise"]
    called = _package(foreign[0][0]) if foreign else None
    users = [(frame, line) for frame, line in foreign if not _is_installed(frame) or _package(frame) == called]
    for frame, line in reversed(users or frames):
        return f"{frame.f_code.co_filename}:{line}"
    return None


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_installed(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(("<", *_INSTALLED))
