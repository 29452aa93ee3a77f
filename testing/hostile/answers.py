"""Answers of a broker, changed: without a partition, with nothing in them, with an error, or with a bit that flipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["Answer", "Change", "corrupt", "empty", "failed", "short"]

#: A response of aiokafka; its fields are plain attributes.
Answer = Any

#: Returns the answer changed, or `None` if there is nothing in it to change.
Change = Callable[[Answer], Answer | None]

#: The partition that a change of one partition is about; of a delay topic that of 1 s, since no relay asks for partition 0 in its group.
_ONE, _ONE_OF_DELAYS = 0, 3

#: The first byte of a batch of records that its checksum covers.
_CHECKED: Final = 21

_Result = tuple[Any, ...]


def short(answer: Answer) -> Answer | None:
    """Without one partition; without the first topic, where the answer is about topics."""
    if _is_by_partition(answer):
        return _by_partition(answer, lambda result, one: None if result[0] == one else result)
    return _replaced(answer, lambda results: results[1:])


def empty(answer: Answer) -> Answer | None:
    """As if nothing had been asked."""
    return _replaced(answer, lambda results: [])


def failed(code: int, *, one: bool = False) -> Change:
    """With the error `code`: of the answer where it has an error as a whole, else of all that is in it, or of one partition alone."""

    def change(answer: Answer) -> Answer | None:
        fields = answer.SCHEMA.names
        if "error_code" in fields and not one:
            answer.error_code = code
            return empty(answer) if "topics" in fields else answer
        if _is_by_partition(answer):
            return _by_partition(answer, lambda result, it: result if one and result[0] != it else _with_error(answer, result, code))
        at = 0 if "resources" in fields else 1
        return _replaced(answer, lambda results: [(*result[:at], code, *result[at + 1 :]) for result in results])

    return change


def corrupt(answer: Answer) -> Answer | None:
    """With one bit of the records of one partition flipped, whose checksum is wrong then."""

    def flip(result: _Result, one: int) -> _Result:
        *rest, records = result
        if result[0] != one or len(records or b"") <= _CHECKED:
            return result
        return (*rest, bytes([*records[:_CHECKED], records[_CHECKED] ^ 1, *records[_CHECKED + 1 :]]))

    return _by_partition(answer, flip)


def _is_by_partition(answer: Answer) -> bool:
    return "topics" in answer.SCHEMA.names and not type(answer).__name__.startswith("Metadata")


def _by_partition(answer: Answer, change: Callable[[_Result, int], _Result | None]) -> Answer | None:
    """`answer` with what `change` makes of the result of each partition; `None` leaves it out."""
    before, answer.topics = answer.topics, []
    for name, *more, results in before:
        one = _ONE_OF_DELAYS if name.endswith(".delay") else _ONE
        answer.topics.append((name, *more, [made for result in results if (made := change(result, one)) is not None]))
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
