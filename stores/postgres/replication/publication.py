"""The publication that says which tables the log tells of: checked, and made where it is missing."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps

_PUBLICATION: Final = "SELECT pubinsert, pubupdate, pubdelete, pubviaroot FROM pg_publication WHERE pubname = $1"
# As JSON, since columns came with later versions.
_TABLES: Final = "SELECT to_jsonb(t)::text FROM pg_publication_tables t WHERE pubname = $1"


def ensure(name: str, tables: Sequence[str], *, columns: Collection[str], needs: Sequence[str], create: bool) -> Steps[tuple[str, ...]]:
    """Check that the publication has `tables` (`schema.table`, the first are required and the last is the heartbeat's) as they are.

    `columns` of each required table must be in it, and `needs` are the operations. With `create` it is made if it is missing.
    Returns findings. Raises `ConfigurationError`.
    """
    made = f"CREATE PUBLICATION {_quoted(name)} FOR TABLE {', '.join(map(_quoted_table, tables))} WITH (publish = '{', '.join(needs)}')"
    found, there = yield [Statement(_PUBLICATION, (name,)), Statement(_TABLES, (name,))]
    if not found.rows:
        if not create:
            raise ConfigurationError(f"there is no publication {name}; --create-slot makes it, or run: {made}")
        try:
            yield [Statement(made)]
        except Failure as failure:
            if failure.problem is not Problem.FORBIDDEN:
                raise
            raise ConfigurationError(
                f"this user may not make the publication ({failure.error.args[0]}); let an owner of the tables run: {made}"
            ) from None
        return ()
    published = [json.loads(each) for (each,) in there.rows]
    operations = [operation for operation, is_there in zip(("insert", "update", "delete"), found.rows[0], strict=False) if is_there]
    *required, heartbeat = tables
    if wrong := wrong_with(name, required, published, operations, columns=columns, needs=needs):
        raise ConfigurationError(wrong)
    if heartbeat not in {f"{each['schemaname']}.{each['tablename']}" for each in published}:
        return (
            f"the publication {name} has no table {heartbeat}, so no heartbeat comes back; ALTER PUBLICATION {name} ADD TABLE {heartbeat}",
        )
    return ()


def wrong_with(
    name: str,
    required: Sequence[str],
    published: Sequence[dict[str, Any]],
    operations: Collection[str],
    *,
    columns: Collection[str],
    needs: Sequence[str],
) -> str | None:
    """Why changes would be passed over with this publication, a sentence; `None` if none would."""
    by_table = {f"{each['schemaname']}.{each['tablename']}": each for each in published}
    for table in required:
        if (each := by_table.get(table)) is None:
            return f"the publication {name} has no table {table}; ALTER PUBLICATION {name} ADD TABLE {table}"
        if each.get("rowfilter"):
            return f"the publication {name} leaves out rows of {table} (a WHERE), which would never be sent; make one without it"
        if missing := sorted(set(columns) - set(each.get("attnames") or columns)):
            return f"the publication {name} leaves out column {missing[0]} of {table}; make one with all columns"
    if missing := [operation for operation in needs if operation not in operations]:
        return f"the publication {name} does not publish {missing[0]}; ALTER PUBLICATION {name} SET (publish = '{', '.join(needs)}')"
    return None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted_table(table: str) -> str:
    schema, _, name = table.partition(".")
    return f"{_quoted(schema)}.{_quoted(name)}"
