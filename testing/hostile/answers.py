"""Answers of a broker, changed: without a partition, with nothing in them, with an error, or with a bit that flipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["Answer", "Change", "corrupt", "empty", "failed", "short"]

#: A response of aiokafka; its fields are plain attributes.
Answer = Any

#: Returns the answer changed, or `None` if there is nothing in it to change.
Change = Callable[[Answer], Answer | None]

#: The partition that a change of one partition is about.
_ONE: Final = 0

#: The first byte of a batch of records that its checksum covers.
_CHECKED: Final = 21

_Result = tuple[Any, ...]


def short(answer: Answer) -> Answer | None:
    """Without partition 0; without the first topic, where the answer is about topics."""
    if _is_by_partition(answer):
        return _by_partition(answer, lambda result: None if result[0] == _ONE else result)
    return _replaced(answer, lambda results: results[1:])


def empty(answer: Answer) -> Answer | None:
    """As if nothing had been asked."""
    return _replaced(answer, lambda results: [])


def failed(code: int, *, one: bool = False) -> Change:
    """With the error `code`: of the answer where it has an error as a whole, else of all that is in it, or of partition 0 alone."""

    def change(answer: Answer) -> Answer | None:
        fields = answer.SCHEMA.names
        if "error_code" in fields and not one:
            answer.error_code = code
            return empty(answer) if "topics" in fields else answer
        if _is_by_partition(answer):
            return _by_partition(answer, lambda result: result if one and result[0] != _ONE else _with_error(answer, result, code))
        at = 0 if "resources" in fields else 1
        return _replaced(answer, lambda results: [(*result[:at], code, *result[at + 1 :]) for result in results])

    return change


def corrupt(answer: Answer) -> Answer | None:
    """With one bit of the records of partition 0 flipped, whose checksum is wrong then."""
    if not any(result[0] == _ONE and len(result[-1] or b"") > _CHECKED for _, results in answer.topics for result in results):
        return None

    def flip(result: _Result) -> _Result:
        *rest, records = result
        if result[0] != _ONE or len(records or b"") <= _CHECKED:
            return result
        return (*rest, bytes([*records[:_CHECKED], records[_CHECKED] ^ 1, *records[_CHECKED + 1 :]]))

    return _by_partition(answer, flip)


def _is_by_partition(answer: Answer) -> bool:
    return "topics" in answer.SCHEMA.names and not type(answer).__name__.startswith("Metadata")


def _by_partition(answer: Answer, change: Callable[[_Result], _Result | None]) -> Answer | None:
    """`answer` with what `change` makes of the result of each partition; `None` leaves it out."""
    before = answer.topics
    answer.topics = [(*topic[:-1], [made for result in topic[-1] if (made := change(result)) is not None]) for topic in before]
    return answer if answer.topics != before else None


def _replaced(answer: Answer, change: Callable[[list[_Result]], list[_Result]]) -> Answer | None:
    name = next(name for name in ("topics", "topic_errors", "resources") if name in answer.SCHEMA.names)
    before = getattr(answer, name)
    setattr(answer, name, change(before))
    return answer if getattr(answer, name) != before else None


def _with_error(answer: Answer, result: _Result, code: int) -> _Result:
    if type(answer).__name__.startswith("OffsetFetch"):
        partition, _, metadata, _ = result
        return (partition, -1, metadata, code)
    return (result[0], code, *result[2:])
