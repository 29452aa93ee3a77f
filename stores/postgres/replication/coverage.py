"""What "all rows of a table" depends on: rows of the catalogue, which are compared each time before the position is kept.

The log has the changes of what the publication had at the time, under the name that the table had at the time. So a change of either passes
changes over in silence. A change that was taken back counts too: it leaves another oid or another transaction (`xmin`) behind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ackwise.stores.sql.operation import Statement, Steps


class Table(NamedTuple):
    """A table's name. As a text it can be given to `--table`."""

    schema: str
    name: str

    def __str__(self) -> str:
        return ".".join(part if _PLAIN.fullmatch(part) else _quoted(part) for part in self)

    @property
    def quoted(self) -> str:
        """The name as SQL."""
        return ".".join(map(_quoted, self))


_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


Coverage = Mapping[str, Mapping[str, str]]
"""By table (quoted), or `root oid` for partitions: what it depends on, as `kind oid`, and the state of that."""


class Seen(NamedTuple):
    """A look at the catalogue."""

    end: str
    """Where the log ended just before."""
    coverage: Coverage
    names: Mapping[str, str]
    """Those of relations, by `kind oid`."""


_NOW: Final = "SELECT pg_current_wal_insert_lsn()::text, to_regclass('pg_catalog.pg_publication_namespace') IS NOT NULL"

#: `line` is the table and what it is a partition of. Partitions are listed once for their root, however many of them are read.
_FACTS: Final = """
WITH given AS MATERIALIZED (
    SELECT given.name, c.oid, c.relkind, c.relpersistence, c.relreplident, c.relhassubclass, c.relispartition
    FROM unnest($2::text[]) AS given (name) JOIN pg_class AS c ON c.oid = to_regclass(given.name)
), line AS MATERIALIZED (
    SELECT name, oid, relispartition FROM given
    UNION SELECT name, relid, true FROM given, pg_partition_ancestors(given.oid) AS relid WHERE relispartition
), trees AS MATERIALIZED (
    SELECT root, relid, parentrelid
    FROM (SELECT DISTINCT pg_partition_root(oid)::oid AS root FROM given WHERE relispartition) AS roots, pg_partition_tree(root)
), facts AS MATERIALIZED (
    SELECT name, 'table' AS kind, NULL::oid AS who, concat_ws('/', oid, relkind, relpersistence) AS state FROM given
    UNION ALL SELECT name, 'identity', NULL, relreplident::text FROM given
    UNION ALL SELECT name, 'children', NULL, '' FROM given WHERE relhassubclass
    UNION ALL SELECT name, 'child', inhrelid, i.xmin::text FROM given JOIN pg_inherits AS i ON inhparent = given.oid
    UNION ALL SELECT name, 'place', inhparent, i.xmin::text FROM line JOIN pg_inherits AS i ON inhrelid = line.oid AND relispartition
    UNION ALL SELECT 'root ' || root, 'partition', relid, i.xmin::text
        FROM trees JOIN pg_inherits AS i ON inhrelid = relid AND inhparent = parentrelid
    UNION ALL SELECT name, 'publication', NULL, concat_ws('/', p.oid, p.xmin) FROM given, pg_publication AS p WHERE pubname = $1
    UNION ALL SELECT name, 'entry', prrelid, concat_ws('/', r.oid, r.xmin)
        FROM line JOIN pg_publication_rel AS r ON prrelid = line.oid JOIN pg_publication AS p ON p.oid = prpubid AND pubname = $1
    {of_schemas}
)
SELECT name, kind, who, state, (
    SELECT format('%I.%I', nspname, relname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace WHERE c.oid = who
) FROM facts
"""

#: Since PostgreSQL 15.
_OF_SCHEMAS: Final = """
    UNION ALL SELECT line.name, 'schema', pnnspid, concat_ws('/', n.oid, n.xmin) FROM line JOIN pg_class AS c ON c.oid = line.oid
        JOIN pg_publication_namespace AS n ON pnnspid = relnamespace JOIN pg_publication AS p ON p.oid = pnpubid AND pubname = $1
"""


def look(publication: str, tables: Sequence[Table]) -> Steps[Seen]:
    """Return what `tables` depend on now."""
    (now,) = yield [Statement(_NOW)]
    ((end, has_schemas),) = now.rows
    facts = _FACTS.format(of_schemas=_OF_SCHEMAS if has_schemas else "")
    (found,) = yield [Statement(facts, (publication, [table.quoted for table in tables]))]
    coverage: dict[str, dict[str, str]] = {}
    names: dict[str, str] = {}
    for table, kind, who, state, named in found.rows:
        key = kind if who is None else f"{kind} {who}"
        coverage.setdefault(table, {})[key] = state
        if named is not None:
            names[key] = named
    return Seen(end, coverage, names)


#: What a difference means, by its kind, the plainest first: where it is gone, where it is new, and where it changed if that is another.
_MEANS: Final = {
    "table": (
        "{table} is gone: it was dropped, renamed, or moved to another schema",
        "",
        "{table} is another table than before: it was dropped or renamed, and made again, or it is unlogged",
    ),
    "publication": (
        "the publication {publication} is gone",
        "",
        "the publication {publication} is another one than before: it was changed, or dropped and made again",
    ),
    "entry": (
        "{who} was taken out of the publication {publication}",
        "{who} was added to the publication {publication}, which had it in another way before",
        "{who} was taken out of the publication {publication} and added again, or given a WHERE or a list of columns",
    ),
    "schema": (
        "the schema of {table} was taken out of the publication {publication}",
        "the schema of {table} was added to the publication {publication}, which had the table in another way before",
        "the schema of {table} was taken out of the publication {publication} and added again",
    ),
    "place": (
        "{table} was detached from what it was a partition of",
        "{table} was attached to a partitioned table",
        "{table} was detached from what it was a partition of, and attached again",
    ),
    "child": ("", "{who} inherits from {table}, and the log names its rows by {who}: name it with --table, too", ""),
    "children": ("", "{table} has or had a child that inherits from it, and the log names the child's rows by the child", ""),
    "partition": (
        "",
        "{who} was attached as a partition beside what is read, and the log names its rows by {who}: name it with --table, too",
        "",
    ),
    "identity": ("", "", "the replica identity of {table} was changed"),
}


def difference(before: Coverage, now: Seen, publication: str, tables: Sequence[Table]) -> str | None:
    """Return what changed of those of `tables` that there were before, as the start of a sentence; `None` if nothing did.

    A partition or child that is gone leaves nothing out, and REPLICA IDENTITY FULL puts more into the log.
    """
    quoted = {table.quoted: table for table in tables}
    for name in (*quoted, *sorted(now.coverage.keys() - quoted.keys())):
        is_now = now.coverage.get(name, {})
        was = before.get(name)
        if was is None:
            if (
                earlier := next((each for each, facts in before.items() if facts.get("table", 0) == is_now.get("table")), None)
            ) is not None:
                return f"{earlier} was renamed to {quoted[name]}"
            continue
        changed = [key for key in was.keys() | is_now.keys() if was.get(key) != is_now.get(key) and not _adds(key, is_now.get(key))]
        for kind, (gone, new, other) in _MEANS.items():
            for key in sorted(key for key in changed if key.partition(" ")[0] == kind):
                table, means = quoted.get(name, name), gone if key not in is_now else new if key not in was else other or new
                return means.format(table=table, publication=publication, who=now.names.get(key, table))
    return None


def _adds(key: str, state: str | None) -> bool:
    """Whether nothing is left out with this new `state`, `None` if it is gone."""
    return (state is None and key.startswith(("partition", "child"))) or (key == "identity" and state == "f")
