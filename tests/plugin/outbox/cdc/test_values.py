"""Values of each type of PostgreSQL, against the server's own answer, whatever the database and the role say of their display."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import asyncpg
import pytest
from tests.databases.postgres import USER
from tests.plugin.outbox.cdc.world import World, until
from tests.shared import SharedServer

from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.changes import Change
from ackwise.plugin.outbox.cdcrelay import CdcRelay

pytestmark = pytest.mark.servers

#: A value of each type that a column may have; the first ones are those that are no text in a `Change`.
_VALUES = {
    "bool": "true",
    "bytea": r"\x00ff5c27",
    "int8": "-9223372036854775808",
    "int4": "2147483647",
    "int2": "-32768",
    "oid": "4294967295",
    "float4": "0.3333333432674408",
    "float8": "0.1234567890123456789",
    "numeric": "12345678901234567890.000000000100",
    "money": "$1,234.56",
    "text": 'naïve "text" \\ , {} 🦉',
    "varchar": "äöü",
    "bpchar": "ab  ",
    "char": "c",
    "name": "a name",
    "date": "2024-03-31",
    "time": "23:59:59.999999",
    "timetz": "23:59:59.5+05:30",
    "timestamp": "2024-02-03 04:05:06.000007",
    "timestamptz": "2024-02-03 04:05:06.5+02",
    "interval": "1 year 2 mons -3 days 04:05:06.7",
    "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "json": '{"b": 1.10, "a": [null]}',
    "jsonb": '{"b": 1.10, "a": [null]}',
    "jsonpath": "$.a[*] ? (@ > 1)",
    "xml": "<a>é</a>",
    "bit": "1",
    "varbit": "10110",
    "inet": "10.1.2.3/8",
    "cidr": "10.0.0.0/8",
    "macaddr": "08:00:2b:01:02:03",
    "macaddr8": "08:00:2b:01:02:03:04:05",
    "point": "(0.1,2)",
    "line": "{1,2,0.3}",
    "lseg": "[(0.1,2),(3,4)]",
    "box": "(3,4),(0.1,2)",
    "path": "[(0.1,2),(3,4)]",
    "polygon": "((0.1,2),(3,4),(5,6))",
    "circle": "<(0.1,2),3>",
    "tsvector": "'fat':2 'rat':3",
    "tsquery": "'fat' & 'rat'",
    "pg_lsn": "16/B374D848",
    "pg_snapshot": "10:20:10,14",
    "txid_snapshot": "10:20:10,14",
    "xid": "5",
    "xid8": "5",
    "cid": "5",
    "tid": "(0,1)",
    "oidvector": "1 2",
    "int2vector": "1 2",
    "regclass": "pg_class",
    "regtype": "integer",
    "regproc": "now",
    "regprocedure": "sum(integer)",
    "regoper": "^@",
    "regoperator": "+(integer,integer)",
    "regnamespace": "pg_catalog",
    "regrole": "postgres",
    "regcollation": '"C"',
    "regconfig": "english",
    "regdictionary": "simple",
    "refcursor": "c",
    "aclitem": "postgres=r/postgres",
    "gtsvector": "",
    "int4range": "[1,5)",
    "int8range": "[1,5)",
    "numrange": "[1.10,5)",
    "tsrange": '["2024-01-01 00:00:00",)',
    "tstzrange": '["2024-01-01 00:00:00+02",)',
    "daterange": "[2024-01-01,2024-02-01)",
    "int4multirange": "{[1,5)}",
    "int8multirange": "{[1,5)}",
    "nummultirange": "{[1.10,5)}",
    "tsmultirange": '{["2024-01-01 00:00:00",)}',
    "tstzmultirange": '{["2024-01-01 00:00:00+02",)}',
    "datemultirange": "{[2024-01-01,2024-02-01)}",
    "shop_mood": "so so",
    "shop_pair": '(1,"2024-03-31")',
    "shop_range": "[0.1,0.2]",
    "shop_count": "7",
    "shop_ratio": "0.1234567890123456789",
    "shop_bytes": r"\x00ff",
    "shop_day": "2024-03-31",
    "_int4": "{1,NULL,3}",
    "_float8": "{0.1234567890123456789}",
    "_bytea": r'{"\\x00ff"}',
    "_date": "{2024-03-31}",
    "_interval": '{"1 day -01:00:00"}',
    "_shop_count": "{7}",
    "_text": '{"a,b","",NULL,ä}',
}

#: No user writes these: statistics, what an index keeps, and what the server alone makes.
_NOT_WRITTEN = {"pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"}

_TYPES = """
CREATE TYPE shop_mood AS ENUM ('so so', 'good'); CREATE TYPE shop_pair AS (n int, day date);
CREATE TYPE shop_range AS RANGE (subtype = float8);
CREATE DOMAIN shop_number AS int; CREATE DOMAIN shop_count AS shop_number CHECK (VALUE >= 0);
CREATE DOMAIN shop_ratio AS float8; CREATE DOMAIN shop_bytes AS bytea; CREATE DOMAIN shop_day AS date
"""

#: What a database or a role may say, which changes texts that the server writes.
_DISPLAY = {
    "datestyle": "'SQL, DMY'",
    "intervalstyle": "'iso_8601'",
    "timezone": "'Asia/Kolkata'",
    "extra_float_digits": "-10",
    "bytea_output": "'escape'",
    "quote_all_identifiers": "on",
    "client_encoding": "'LATIN1'",
}

_PLAIN = (
    "SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; SET extra_float_digits = 1; SET bytea_output = 'hex'; "
    "SET quote_all_identifiers = off"
)


async def display_oddly(world: World) -> None:
    """Let the database, and the role in it, say how values are shown."""
    for name, value in _DISPLAY.items():
        await world.database.execute(f"ALTER DATABASE {world.slot} SET {name} = {value}")
        await world.database.execute(f"ALTER ROLE {USER} IN DATABASE {world.slot} SET {name} = {value}")


def reading(world: World, seen: list[Change], *tables: str, **options: Any) -> CdcRelay:
    def mapping(change: Change) -> Outgoing:
        seen.append(change)
        return Outgoing("orders", b"")

    return world.relay(mapping, tables=tables, **options)


def as_read(kind: str, text: str | None) -> object:
    """What is to be in a `Change` for the server's text of a value."""
    if text is None:
        return None
    converters: Mapping[str, Any] = {
        "bool": lambda text: text == "t",
        "bytea": lambda text: bytes.fromhex(text[2:]),
        "shop_bytes": lambda text: bytes.fromhex(text[2:]),
        **dict.fromkeys(("int2", "int4", "int8", "oid", "shop_count"), int),
        **dict.fromkeys(("float4", "float8", "shop_ratio"), float),
    }
    return converters.get(kind, str)(text)


async def test_the_table_of_values_has_each_type_that_a_column_may_have(world: World) -> None:
    await world.database.execute(_TYPES)
    found = await world.rows(
        "SELECT typname FROM pg_type WHERE typtype IN ('b', 'r', 'm') AND typcategory <> 'A' AND typnamespace = 'pg_catalog'::regnamespace"
    )
    assert {name for (name,) in found} - _NOT_WRITTEN - _VALUES.keys() == set()


async def test_each_type_is_read_as_the_server_writes_it_whatever_the_database_shows(world: World) -> None:
    await world.database.execute(_TYPES)
    await world.database.execute("CREATE TABLE things (id int PRIMARY KEY)")
    await display_oddly(world)
    shuffled = random.Random(7).sample([*_VALUES], len(_VALUES))
    seen: list[Change] = []
    async with world.running(reading(world, seen, "things")):
        for kind in shuffled:
            quoted = '"char"' if kind == "char" else kind
            await world.database.execute(f'ALTER TABLE things ADD "c {kind}" {quoted}')
        await world.database.execute(f"{_PLAIN}; INSERT INTO things VALUES (1)")
        written = []
        for kind in shuffled:
            try:
                await world.database.execute(f"""UPDATE things SET "c {kind}" = '{_VALUES[kind].replace("'", "''")}'""")
                written.append(kind)
            except asyncpg.FeatureNotSupportedError:
                assert kind == "gtsvector"  # it can't be written
        await world.database.execute("INSERT INTO things SELECT 2")
        texts = ", ".join(f"""CASE WHEN "c {kind}" IS NOT NULL THEN format('%s', "c {kind}") END""" for kind in shuffled)
        answer = await world.database.fetchrow(f"SELECT {texts} FROM things WHERE id = 1")
        assert answer is not None
        await until(lambda: len(seen) == 2 + len(written))
    row, empty = seen[-2].row, seen[-1].row
    assert {kind: row[f"c {kind}"] for kind in shuffled} == {kind: as_read(kind, text) for kind, text in zip(shuffled, answer, strict=True)}
    assert {row[f"c {kind}"] is None for kind in written} == {False}
    assert {empty[f"c {kind}"] for kind in shuffled} == {None}


async def test_an_outbox_goes_on_whatever_the_database_shows(world: World) -> None:
    await display_oddly(world)
    async with world.running():
        await world.write(b"\x00\xff", key=b"k\\")
        await world.is_sent_and_deleted(b"\x00\xff")
    assert world.kafka.sent[0].key == b"k\\"


async def test_a_domain_that_is_made_while_the_log_is_read_is_its_base_type(world: World) -> None:
    await world.database.execute("CREATE TABLE things (id int PRIMARY KEY); CREATE DOMAIN early AS int")
    seen: list[Change] = []
    async with world.running(reading(world, seen, "things")):
        await world.database.execute("CREATE DOMAIN late AS early; ALTER TABLE things ADD n late, ADD m early")
        await world.database.execute("INSERT INTO things VALUES (1, 2, 3)")
        await world.database.execute("ALTER TABLE things ADD o early[]; INSERT INTO things VALUES (2, NULL, 3, '{4}')")
        await until(lambda: len(seen) == 2)
    assert [dict(change.row) for change in seen] == [{"id": 1, "n": 2, "m": 3}, {"id": 2, "n": None, "m": 3, "o": "{4}"}]


@pytest.mark.parametrize("encoding", ["LATIN1", "WIN1252", "SQL_ASCII", "EUC_JP", "EUC_TW"])
async def test_a_database_of_another_encoding_is_read_in_it(postgres: SharedServer, world: World, encoding: str) -> None:
    name = f"{world.slot}_{encoding.lower()}"
    base = f"postgresql://{USER}@127.0.0.1:{postgres.port}"
    await world.database.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    text = {"EUC_JP": "日本", "EUC_TW": "日本"}.get(encoding, "naïve")
    seen: list[Change] = []
    database = await asyncpg.connect(f"{base}/{name}")
    try:
        other = World(f"{base}/{name}", database, world.slot + "_other")
        await database.execute(f'CREATE TABLE "{text}" (id int PRIMARY KEY, "{text}" text)')
        async with other.running(reading(other, seen, f'"{text}"', publication=f"it's \\ {text}")):
            await database.execute(f"""INSERT INTO "{text}" VALUES (1, '{text}')""")
            if encoding in ("WIN1252", "SQL_ASCII"):  # bytes that no encoding reads
                await database.execute(f"""INSERT INTO "{text}" VALUES (2, convert_from('\\x81', '{encoding}'))""")
            await database.execute(f"""INSERT INTO "{text}" VALUES (3, '{text}')""")
            await until(lambda: bool(seen) and seen[-1].row["id"] == 3)
        assert {change.row[text] for change in seen} - {"\udc81"} == {text}
        assert seen[0].table == f"public.{text}"
        await other.drop_slot()
    finally:
        await database.close()
        await world.database.execute(f"DROP DATABASE {name} WITH (FORCE)")
