"""What the sources of changes of all databases have in common. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ackwise.middleware.changes import Change, Operation, UnreadableChange
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.outbox import OutboxRow, RowState, unpacked_headers
from ackwise.middleware.outgoing import Outgoing


def inserted_row(change: Change, address: str) -> OutboxRow | None:
    """Return the row of the outbox that was inserted to be sent. Raise `UnreadableChange` for a row that no outbox of ours wrote."""
    if change.operation is not Operation.INSERT or change.row.get("state") != RowState.LOCAL_COMMIT:
        return None
    row = change.row
    try:
        message = Outgoing(
            row["topic"],
            row["value"],
            key=row["message_key"],
            headers=unpacked_headers(row["headers"]),
            partition=row["partition"],
            message_id=row["message_id"],
        )
        return OutboxRow(row["id"], row["shard"], message, row["attempts"], change.committed_ms)
    except (KeyError, ValueError, TypeError, ConfigurationError) as error:
        what = f"it has no column {error}" if isinstance(error, KeyError) else type(error).__name__
        raise UnreadableChange(
            f"{address}: a row of {change.table}, committed at {change.position}, can't be read ({what}); "
            "run `ackwise outbox check`, and see who changed the table"
        ) from None


def remains(*, is_outbox: bool) -> str:
    """Return what becomes of changes that were lost, as a part of a sentence."""
    if not is_outbox:
        return "changes that were not sent yet will be missing in Kafka"
    rows = "rows that were not sent yet are still in the outbox, and are sent from there then"
    return f"{rows}, but for those that were deleted with their insert"


def require_same(table: str, before: Mapping[str, object], later: Mapping[str, object]) -> None:
    """Raise `ValueError` for a column, by its name, that is gone or has another type; new columns hurt nobody."""
    gone = [f"column {name} is gone" for name in before if name not in later]
    changed = [f"column {name} has another type" for name, column in before.items() if name in later and later[name] != column]
    if gone or changed:
        raise ValueError(
            f"table {table} was changed while it was read, {(gone or changed)[0]}; everything before that was sent and nothing behind "
            "it: make what reads it fit the new columns, and start again"
        )
