"""Objects of a user's that raise whatever is done to them: values, exceptions, and classes of these."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

TestT = TypeVar("TestT", bound=Callable[..., Any])


class Odd(BaseException):
    """Neither an `Exception` nor what stops a program."""


#: What the objects raise.
KINDS: Final = (ValueError, Odd, SystemExit, KeyboardInterrupt, GeneratorExit, RecursionError)

#: What Python itself needs to make an object and to let go of it.
_NEEDED: Final = {
    "__new__",
    "__init__",
    "__init_subclass__",
    "__class_getitem__",
    "__del__",
    "__dict__",
    "__doc__",
    "__slots__",
    "__weakref__",
}

_LOOKS: Final = (
    {name for kind in (object, int, str, list, dict) for name in vars(kind) if name.startswith("__") and name.endswith("__")}
    | {"__bool__", "__call__", "__await__", "__aiter__", "__enter__", "__exit__", "__index__", "__int__", "__float__", "__bytes__"}
    | {"__fspath__", "__set_name__", "__length_hint__", "__next__", "__getattr__"}
) - _NEEDED

#: What an exception has besides.
_OF_ERRORS: Final = {"__traceback__", "__cause__", "__context__", "__suppress_context__", "__notes__", "exceptions", "args", "message"}
_OF_ERRORS_FOR_THE_LATER: Final = {"delay", "level", "add_note", "with_traceback"}


def _raising(error: type[BaseException]) -> Any:
    def look(*_: object, **__: object) -> Any:
        raise error("it was looked at")

    return look


def hostile_value(error: type[BaseException] = ValueError, *bases: type) -> Any:
    """An object, a `bases` if given, that raises `error` whatever is asked of it."""
    names = {name: _raising(error) for name in _LOOKS - {"__class__"}}
    kind: Any = type("Hostile", bases, {**names, "__class__": property(_raising(error))})
    return bases[0].__new__(kind, *(("x",) if issubclass(kind, str) else ())) if bases else object.__new__(kind)


def hostile_error(error: type[BaseException] = ValueError, base: type[BaseException] = Exception) -> BaseException:
    """An exception, a `base`, that raises `error` whatever is asked of it."""
    asked = {name: property(_raising(error)) for name in (*_OF_ERRORS, *_OF_ERRORS_FOR_THE_LATER, "__class__")}
    kind: Any = type("HostileError", (base,), {**{name: _raising(error) for name in _LOOKS - {"__class__"}}, **asked})
    arguments: Any = ("several", [ValueError()]) if issubclass(base, BaseExceptionGroup) else ()
    made: BaseException = base.__new__(kind, *arguments)
    return made


def contained(test: TestT) -> TestT:
    """Let a test fail in the usual way, whatever escapes from what it tests: pytest itself could not print that."""

    @functools.wraps(test)
    async def run_async(*args: Any, **fixtures: Any) -> None:
        why = None
        try:
            await test(*args, **fixtures)
        except BaseException as error:  # noqa: BLE001  # as said
            why = _why(error)
        _fail(why)

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        why = None
        try:
            test(*args, **fixtures)
        except BaseException as error:  # noqa: BLE001  # as said
            why = _why(error)
        _fail(why)

    kept: Any = run_async if inspect.iscoroutinefunction(test) else run
    return kept  # type: ignore[no-any-return]


def _why(error: BaseException) -> str:
    return str(error) if type(error) is AssertionError else f"{type(error).__name__} escaped"


def _fail(why: str | None) -> None:
    """Without what was raised as its context."""
    if why is not None:
        raise AssertionError(why)
