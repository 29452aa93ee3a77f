"""Rows of event files as events, by the local engine: from a table of Arrow to another one."""

from __future__ import annotations

from typing import cast

import pyarrow as pa

from ackwise.middleware.events import EVENT_COLUMNS
from ackwise.spark.events.runs import explode
from ackwise.spark.local.frame import DataFrame as LocalFrame
from ackwise.spark.local.session import local_engine
from ackwise.stores.journal.parquet import SCHEMA

__all__ = ["EVENTS", "exploded"]

#: The columns of an event.
EVENTS = pa.schema([SCHEMA.field(column.name) for column in EVENT_COLUMNS])


def exploded(rows: pa.Table, *also: str) -> pa.Table:
    """Return a row per event, see `explode`, with the columns `also` of its row."""
    with local_engine() as session:
        found = explode(session.createDataFrame(rows), *also)
        table = cast("LocalFrame", found).arrow()
    return table.cast(pa.schema([EVENTS.field(name) if name in EVENTS.names else rows.schema.field(name) for name in table.column_names]))
