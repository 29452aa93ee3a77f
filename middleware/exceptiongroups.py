"""Exception groups, flattened to the exceptions in them. Pure."""

from __future__ import annotations

__all__ = ["leaves"]


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions that `error` stands for: those in a group, and in the groups within; else itself alone."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for member in error.exceptions for leaf in leaves(member)]
