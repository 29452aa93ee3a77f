"""Files of events that are damaged: columns that are not those of events, and content that can't be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ackwise.spark.events.logs import Logs
from ackwise.spark.events.reading import footer_of
from ackwise.stores.journal.sums import is_sealed, wrong_sum

if TYPE_CHECKING:
    from ackwise.spark.events.sources import Evidence

__all__ = ["damage", "strangeness", "without_damaged"]

#: The last schema that was right: files have the same one, and to compare it takes less time than to look at each column.
_RIGHT: Final[list[Any]] = []
#: Without these a row is no event.
_IDENTITY: Final = ("writer_id", "seq", "event_type", "event_ts")


def strangeness(path: Path) -> str:
    """Return why a Parquet file is not one of events, worded to follow its name, or an empty text. Reads its footer.

    Only pages have a checksum of their own: a bit that flips in the footer may give a column another name or type.
    """
    import pyarrow as pa

    from ackwise.stores.journal.parquet import SCHEMA

    try:
        given = footer_of(path).schema
        if any(given.equals(known) for known in _RIGHT):
            return ""
        found = given.to_arrow_schema()
    except (pa.ArrowException, OSError, ValueError):
        return "has a damaged footer"
    types = {field.name: field.type for field in found}
    for field in SCHEMA:
        if field.name not in types:
            return f"has no column {field.name!r}, so it is not a file of events of this version or is damaged"
        if types[field.name] != field.type and _kind(types[field.name]) != _kind(field.type):
            return f"has another type of column {field.name!r}, so it is not a file of events of this version or is damaged"
    _RIGHT[:] = [given]
    return ""


def damage(path: Path) -> str:
    """Return why a file of events is not as it was written, worded to follow its name, or an empty text. Reads all of it.

    A file without a sum was collected by Spark: of its rows it is only seen that each is an event.
    """
    try:
        if wrong_sum(path):
            return "has a wrong checksum, so it is damaged or was renamed"
        return "" if is_sealed(path) else _strays(path)
    except OSError as error:
        return f"can't be read: {error.strerror or error}"


def _strays(path: Path) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(columns=list(_IDENTITY)):
                if any(column.null_count for column in batch.columns):
                    return "has rows without writer, number, type or time, so they are no events"
    except (pa.ArrowException, OSError, ValueError):
        return "can't be read to its end"
    return ""


def without_damaged(evidence: Evidence) -> Evidence | None:
    """Return the same without the files that can't be read to their ends, each named; `None` if all can be. Reads all of them."""
    from ackwise.spark.events.sources import writer_of

    damaged = [path for path in evidence.files if not _is_whole(path)]
    if not damaged:
        return None
    sentences = tuple(f"{path} is damaged; its events count as missing" for path in damaged)
    logs = Logs(evidence.logs.unreadable | {writer_of(path) for path in damaged}, evidence.logs.still_written)
    files = tuple(path for path in evidence.files if path not in damaged)
    return replace(evidence, files=files, logs=logs, unreadable=(*evidence.unreadable, *sentences))


def _is_whole(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for number in range(file.num_row_groups):
                file.read_row_group(number)
    except (pa.ArrowException, OSError, ValueError):
        return False
    return True


def _kind(type: Any) -> str:
    """What Spark takes for the same: integers of any width, dictionaries of texts."""
    import pyarrow as pa

    if pa.types.is_dictionary(type):
        return _kind(type.value_type)
    if pa.types.is_list(type):
        return f"list of {_kind(type.value_type)}"
    if pa.types.is_signed_integer(type):
        return "integer"
    return "text" if pa.types.is_string(type) or pa.types.is_large_string(type) else str(type)
