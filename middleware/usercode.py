"""User code: every call of what the user wrote, and every look at an object of the user's, goes through here.

A call comes to `Returned`, `Raised` or `Stops`, and to nothing else; a look comes to a value of ours. An exception may fail to print
itself, a value may raise when it is compared, and a key function may call `sys.exit`. Such objects are known by type and identity alone.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Iterable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ackwise.middleware.exceptiongroups import leaves

__all__ = [
    "STOPS",
    "Called",
    "Raised",
    "Returned",
    "Stops",
    "awaited",
    "called",
    "class_name",
    "close_coroutine",
    "failure_of",
    "failures_of",
    "is_a",
    "looked",
    "plain",
    "shown",
    "stops",
]

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

_name_of = type.__dict__["__name__"].__get__  # a metaclass of the user's may have one of its own


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
    """Call `function` in a context of its own: a variable that it sets is seen by no other call."""
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
    """As `called`, of an asynchronous function. The task is the caller's, and what cancels that reaches the function."""
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
        except BaseException as error:  # noqa: BLE001  # the task is cancelled: the function is told
            step, given = coroutine.throw, error


async def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return await function(*arguments)


def failure_of(error: BaseException) -> Raised | Stops:
    """What it means that user code raised `error`."""
    return Stops(error) if stops(error) else Raised(error)


def stops(error: BaseException) -> bool:
    """Whether `error` stops the app: it is one of `STOPS`, or a group of nothing else."""
    return all(is_a(leaf, *STOPS) for leaf in leaves(error))


def is_a(value: object, *kinds: type) -> bool:
    """Whether `value` is of one of `kinds`. `isinstance` asks the object, too, which may raise."""
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
    """A plain function was to return a value. Had it returned a coroutine, Python would complain that nobody awaits that."""
    if type(value) is types.CoroutineType:
        looked(value.close, otherwise=None)
