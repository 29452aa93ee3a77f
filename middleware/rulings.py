"""Rulings: one disposition per message, from what a handler returned, raised or ruled.

Pure; the only place where a failure of user code becomes a decision.

Source: RocketMQ `ConsumeMessageConcurrentlyService.processConsumeResult`, and `docs/semantics.md` where it differs.
"""

from __future__ import annotations

from typing import Any, Final

from ackwise.middleware import raising
from ackwise.middleware.batch import Batch
from ackwise.middleware.disposition import (
    CONSUME_LATER,
    CONSUME_SUCCESS,
    DONE,
    Dead,
    Disposition,
    Failure,
    Later,
    Reason,
)
from ackwise.middleware.errors import InvalidHandlerResult
from ackwise.middleware.exceptiongroups import leaves
from ackwise.middleware.retry import ConsumeLater
from ackwise.middleware.usercode import Raised, Returned, class_name, close_coroutine, is_a, looked

__all__ = ["dispositions_of", "is_success"]

_POLICY: Final = 'which is a policy for app.use; raise Later("30s"), Later(level=3) or Reject("why")'


def is_success(result: Returned[Any] | Raised) -> bool:
    """Whether the handler succeeded."""
    return isinstance(result, Returned) and (result.value is None or result.value is CONSUME_SUCCESS)


def dispositions_of(
    batch: Batch[Any], result: Returned[Any] | Raised, *, handler: str, keep_ack_index_on_error: bool = False
) -> list[Disposition]:
    """One disposition for each message of `batch`, in order.

    A ruling on a single message wins; then the prefix up to `ack_index`, if the handler succeeded (or raised, with
    `keep_ack_index_on_error`); everything else takes the disposition that the result stands for.
    """
    prefix = -1
    if isinstance(result, Raised):
        rest = _raised(batch, result.error, handler)
        if keep_ack_index_on_error and batch.ack_index_was_set:
            prefix = batch.ack_index
    elif is_success(result):
        rest, prefix = _later(batch), batch.ack_index
    elif result.value is CONSUME_LATER:
        rest = _later(batch)
    else:
        rest = _later(batch, InvalidHandlerResult(f"handler {handler!r} returned a {_returned(result.value)}"))
    dispositions: list[Disposition] = [DONE] * (prefix + 1) + [rest] * (len(batch) - prefix - 1)
    for index, ruling in batch.rulings.items():
        dispositions[index] = ruling
    return dispositions


def _returned(value: object) -> str:
    close_coroutine(value)
    if is_a(value, raising.Later, raising.Reject):
        return f"{class_name(value)}; raise it"
    return f"{class_name(value)}; it must return None, CONSUME_SUCCESS or CONSUME_LATER"


def _later(batch: Batch[Any], error: BaseException | None = None) -> Disposition:
    return Later(batch.delay_level, failure=None if error is None else Failure.of(error))


def _raised(batch: Batch[Any], error: BaseException, handler: str) -> Disposition:
    """What `error` says. A group says what all in it say, if that is the same; else it has failed, as any other exception."""
    if any(is_a(leaf, ConsumeLater) for leaf in leaves(error)):
        return _later(batch, InvalidHandlerResult(f"handler {handler!r} raised ConsumeLater, {_POLICY}"))
    said = {_said(leaf) for leaf in leaves(error)}
    match said.pop() if len(said) == 1 else None:
        case "reject":
            return Dead(Reason.REJECTED, Failure.of(error))
        case (None, None):
            return Later(batch.delay_level, failure=Failure("Later", "the handler asked for it"))
        case (level, delay):
            return Later(level or 0, delay, Failure.of(error))
        case _:
            return _later(batch, error)


def _said(error: BaseException) -> tuple[int | None, float | None] | str | None:
    if is_a(error, raising.Reject):
        return "reject"
    if is_a(error, raising.Later):
        return looked(_asked, error, otherwise=(None, None))  # a class of the user's has attributes of its own, or none
    return None


def _asked(error: raising.Later) -> tuple[int | None, float | None]:
    asked = raising.Later(error.delay, level=error.level)
    return asked.level, asked.delay
