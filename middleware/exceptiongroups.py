"""Exception groups, flattened to the exceptions in them. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["is_printable", "leaves"]

#: Exceptions in each other, above which nobody prints them: Python prints one that is in several groups as often.
_MOST: Final = 1000

#: Those of Python itself: a class of the user's may have attributes of its own in their place.
_members = BaseExceptionGroup.__dict__["exceptions"].__get__
_cause = BaseException.__dict__["__cause__"].__get__
_context = BaseException.__dict__["__context__"].__get__


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions that `error` stands for: those in a group, and in the groups within, each once; else itself alone."""
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
    """Whether so few exceptions are in `error`, or led to it, that a traceback of all of them can be printed."""
    seen, known, waiting = 0, set[int](), [error]
    while waiting and seen <= _MOST:
        each = waiting.pop()
        seen += 1
        known.add(id(each))
        before = _context(each) if (cause := _cause(each)) is None else cause
        waiting += () if before is None or id(before) in known else (before,)
        waiting += _members(each) if issubclass(type(each), BaseExceptionGroup) else ()
    return seen <= _MOST
