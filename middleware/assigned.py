"""The partition that a handler's task works on, and whether it is still ours."""

from __future__ import annotations

from contextvars import ContextVar

from ackwise.middleware.settlement import Assignment

__all__ = ["Undecided", "check_cut_off", "current_assignment"]

#: The partition whose messages the task that asks works on.
current_assignment: ContextVar[Assignment | None] = ContextVar("ackwise_assignment", default=None)


class Undecided(BaseException):
    """Raised by a call that ended without a decision. Its messages are not ruled on, no attempt is counted, they come up again."""


def check_cut_off() -> None:
    """Ask before user code is called once more for the same messages. Raises `Undecided` if their partition is no longer ours."""
    assignment = current_assignment.get()
    if assignment is not None and assignment.cut_off:
        raise Undecided("its partition was revoked, nothing more is begun")
