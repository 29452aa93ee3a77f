"""Arrays of Arrow as NumPy has them, and back, by their buffers.

pyarrow's own conversions import pandas where it is installed, which takes longer than many a question.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow.compute import call_function as call

__all__ = ["Flags", "Numbers", "arrow", "begins", "flat", "is_there", "lengths", "no_rows", "numbers", "texts"]

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_KINDS: Final = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


def arrow(values: npt.NDArray[Any], there: Flags | None = None) -> pa.Array:
    """Return numbers or flags as an array of Arrow, with nulls where nothing is `there`."""
    is_valid = None if there is None else _packed(there)
    if values.dtype == np.bool_:
        return pa.Array.from_buffers(pa.bool_(), len(values), [is_valid, _packed(values)])
    return pa.Array.from_buffers(pa.int64(), len(values), [is_valid, pa.py_buffer(np.ascontiguousarray(values, np.int64))])


def texts(values: Collection[str]) -> pa.Array:
    """Return texts as an array of Arrow."""
    encoded = [value.encode("utf-8", "surrogatepass") for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(encoded), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


def numbers(column: Any, none: int) -> Numbers:
    """Return the numbers of a column, times as microseconds and flags as 0 and 1; `none` for null. They are not to be changed."""
    found = [_numbers_of(chunk, none) for chunk in _chunks(column)]
    return found[0] if len(found) == 1 else np.concatenate([np.zeros(0, np.int64), *found])


def is_there(column: Any) -> Flags:
    """Return which values of a column are not null."""
    found = [_is_valid(chunk) for chunk in _chunks(column)]
    return found[0] if len(found) == 1 else np.concatenate([np.zeros(0, np.bool_), *found])


def lengths(lists: Any) -> Numbers:
    """Return how many values each list of a column has; 0 for none."""
    return numbers(call("list_value_length", [lists]), 0)


def begins(lists: Any) -> Numbers:
    """Return where the values of each list begin among those of all."""
    found = lengths(lists)
    return np.cumsum(found) - found


def flat(lists: Any) -> pa.Array:
    """Return the values of all lists."""
    return (lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists).flatten()


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return a table without rows."""
    return pa.Table.from_batches([], schema)


def _numbers_of(array: pa.Array, none: int) -> Numbers:
    if not len(array):
        return np.zeros(0, np.int64)
    _, content = array.buffers()
    if pa.types.is_boolean(array.type):
        values = _unpacked(content, array)
    else:
        values = np.frombuffer(content, _KINDS[array.type.bit_width], len(array) + array.offset)[array.offset :]
    if not array.null_count:
        return values.astype(np.int64, copy=False)
    found: Numbers = values.astype(np.int64)
    found[~_is_valid(array)] = none
    return found


def _is_valid(array: pa.Array) -> Flags:
    valid = array.buffers()[0] if array.null_count else None
    return np.ones(len(array), np.bool_) if valid is None else _unpacked(valid, array)


def _unpacked(bits: pa.Buffer, array: pa.Array) -> Flags:
    every = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(array) + array.offset, bitorder="little")
    return every[array.offset :].view(np.bool_)


def _packed(flags: Flags) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _chunks(column: Any) -> list[pa.Array]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]
