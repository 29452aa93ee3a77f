"""Columns of each type, as a real MariaDB writes them into its log."""

from __future__ import annotations

import copy
import json
import pickle
import random
import re
from typing import Any

import pytest
from tests.databases.mysql import WANTED
from tests.shared import SharedServer
from tests.stores.cases import case
from tests.stores.mysql.database import mysql_database

from ackwise.middleware.storage.changes import Change
from ackwise.stores.mysql.binlog import MySQLChanges
from ackwise.stores.mysql.binlog.rows import Column, Padded, decoder_of

pytestmark = pytest.mark.servers

#: Type, what is written, what is read.
COLUMNS: list[tuple[str, str, Any]] = [
    ("TINYINT", "-128", -128),
    ("TINYINT UNSIGNED", "255", 255),
    ("YEAR", "2024", 2024),
    ("SMALLINT", "-5", -5),
    ("MEDIUMINT", "-8388608", -8388608),
    ("INT UNSIGNED", "4000000000", 4_000_000_000),
    ("BIGINT", "-9223372036854775808", -(2**63)),
    ("BIGINT UNSIGNED", "18446744073709551615", 2**64 - 1),
    ("DECIMAL(10,3)", "-12345.678", "-12345.678"),
    ("DECIMAL(65,30)", "1.000000000000000000000000000001", "1.000000000000000000000000000001"),
    ("DECIMAL(5,0) UNSIGNED", "99999", "99999"),
    ("DECIMAL(5,2)", "0.05", "0.05"),
    ("FLOAT", "1.5", 1.5),
    ("FLOAT UNSIGNED", "16777.217", 16777.217),  # the server itself writes 16777.2
    ("DOUBLE", "-2.25", -2.25),
    ("BIT(10)", "b'1000000001'", 513),
    ("VARCHAR(300) CHARACTER SET latin1", "'café'", "café"),
    ("CHAR(3)", "'ab'", "ab"),
    ("CHAR(200) CHARACTER SET utf8mb4", "'zé'", "zé"),
    ("VARCHAR(9) CHARACTER SET utf16", "'é'", "é"),
    ("MEDIUMTEXT CHARACTER SET utf8mb4", "'✓'", "✓"),
    ("VARBINARY(10)", "x'00ff'", b"\x00\xff"),
    ("BINARY(4)", "x'00010000'", b"\x00\x01\x00\x00"),
    ("LONGBLOB", "x'ff00'", b"\xff\x00"),
    ("ENUM('a,b','c''d')", "'c''d'", "c'd"),
    ("SET('x','y','z')", "'x,z'", "x,z"),
    ("DATE", "'2024-02-29'", "2024-02-29"),
    ("TIME(3)", "'-12:34:56.789'", "-12:34:56.789"),
    ("TIME", "'838:59:59'", "838:59:59"),
    ("DATETIME(6)", "'2024-01-02 03:04:05.000678'", "2024-01-02 03:04:05.000678"),
    ("DATETIME(1)", "'9999-12-31 23:59:59.9'", "9999-12-31 23:59:59.9"),
    ("TIMESTAMP(2) NULL", "'2024-05-06 07:08:09.12'", "2024-05-06 07:08:09.12"),
    ("JSON", "'{\"a\":1}'", '{"a":1}'),
    ("INET6", "'::1'", b"\0" * 15 + b"\1"),
    ("INT", "NULL", None),
]


async def test_each_type_is_read_as_it_was_written(mariadb_with_log: SharedServer) -> None:
    async with mysql_database(mariadb_with_log) as database:
        columns = ", ".join(f"c{number} {type_}" for number, (type_, _, _) in enumerate(COLUMNS))
        await database.fetch(f"CREATE TABLE kinds ({columns}) CHARACTER SET utf8mb4")
        source = MySQLChanges(database.url, tables=["kinds"], create=True)
        await source.open()
        async with database.connected() as connection, connection.cursor() as cursor:
            await cursor.execute("SET time_zone = '+00:00', NAMES utf8mb4")
            await cursor.execute(f"INSERT INTO kinds VALUES ({', '.join(value for _, value, _ in COLUMNS)})")
        (change, _) = await source.read(10)
        await source.close()
    assert isinstance(change, Change)
    read = {COLUMNS[int(name[1:])][0]: value for name, value in change.row.items()}
    assert read == {type_: value for type_, _, value in COLUMNS}


@pytest.mark.parametrize("type_", ["TEXT COMPRESSED", "VARCHAR(9) COMPRESSED"])
async def test_a_type_that_is_not_read_is_told(mariadb_with_log: SharedServer, type_: str) -> None:
    from ackwise.middleware.storage.changes import UnreadableChange

    async with mysql_database(mariadb_with_log) as database:
        await database.fetch(f"CREATE TABLE kinds (packed {type_})")
        source = MySQLChanges(database.url, tables=["kinds"], create=True)
        await source.open()
        await database.fetch("INSERT INTO kinds VALUES ('x')")
        with pytest.raises(UnreadableChange, match=r"column packed has type 14[01], which is not read from the log"):
            await source.read(10)
        await source.close()


@pytest.mark.parametrize(
    ("column", "data"),
    [
        (Column("", 18, (0, 0)), (1 << 39 | (2024 * 13 + 1) << 22 | 1 << 17 | 24 << 12).to_bytes(5, "big")),
        (Column("", 18, (0, 0)), (1 << 39 | (2024 * 13 + 1) << 22 | 1 << 17 | 60 << 6).to_bytes(5, "big")),
        (Column("", 18, (2, 0)), (1 << 39 | (2024 * 13 + 1) << 22 | 1 << 17).to_bytes(5, "big") + b"\x64"),
        (Column("", 19, (0, 0)), (0x800000 | 839 << 12).to_bytes(3, "big")),
        (Column("", 19, (0, 0)), (0x800000 | 60).to_bytes(3, "big")),
        (Column("", 10, (0, 0)), (2024 << 9 | 13 << 5 | 1).to_bytes(3, "little")),
        (Column("", 10, (0, 0)), (10_000 << 9 | 1 << 5 | 1).to_bytes(3, "little")),
    ],
)
def test_a_date_or_a_time_out_of_its_range_is_refused(column: Column, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"a (date|time) has "):
        decoder_of(column)(data, 0)


def test_a_number_with_zeros_in_front_is_a_number_still() -> None:
    number = Padded(42, 6)
    assert (number, str(number), f"{number}", json.dumps(number)) == (42, "000042", "000042", "42")
    assert str(copy.deepcopy(number)) == str(pickle.loads(pickle.dumps(number))) == "000042"


#: Type, values, and how the server is asked for them: as a text, as bytes, or as a number.
EVERY_TYPE: list[tuple[str, list[str], str]] = [
    *[(type_, [value], "text") for type_, value, read in COLUMNS if isinstance(read, str)],
    *[(type_, [value], "bytes") for type_, value, read in COLUMNS if isinstance(read, bytes)],
    *[
        (type_, [value], "text")
        for type_, value, read in COLUMNS
        if isinstance(read, int | float) and type_ not in ("BIT(10)", "FLOAT UNSIGNED")
    ],
    ("BIT(10)", ["b'1000000001'", "0"], "number"),
    ("BIT(1)", ["1", "0"], "number"),
    ("BIT(64)", ["~0", "1"], "number"),
    ("TINYINT(4) ZEROFILL", ["7", "200", "0"], "text"),
    ("INT(6) ZEROFILL", ["42", "0", "1234567"], "text"),
    ("BIGINT ZEROFILL", ["42"], "text"),
    ("DECIMAL(8,2) ZEROFILL", ["12.5", "0"], "text"),
    ("DECIMAL(4,0) ZEROFILL", ["12", "0"], "text"),
    ("YEAR", ["'0000'", "1901", "2155", "0"], "text"),
    ("FLOAT", ["1.1", "-0.3", "1e-30", "0"], "text"),
    ("DOUBLE", ["1.1", "-0.3", "0"], "text"),
    ("DECIMAL(9,9)", ["-0.000000001", "0"], "text"),
    ("VARCHAR(9) CHARACTER SET latin1", ["CONVERT(x'81E98D8F909D80' USING latin1)"], "text"),
    ("ENUM('é','\u20ac') CHARACTER SET latin1", ["'\u20ac'", "'é'", "NULL"], "text"),
    ("SET('я','b') CHARACTER SET cp1251", ["'я,b'", "''"], "text"),
    ("ENUM('a') CHARACTER SET ascii", ["'a'"], "text"),
    ("TEXT CHARACTER SET cp866", ["CONVERT(x'80FCFD' USING cp866)"], "text"),
    ("TEXT CHARACTER SET dec8", ["'ÿ'"], "text"),
    ("VARCHAR(3) CHARACTER SET ucs2", ["'é'"], "text"),
    ("VARCHAR(3) CHARACTER SET utf32", ["'é'"], "text"),
    ("VARCHAR(3) CHARACTER SET utf16le", ["'é'"], "text"),
    ("CHAR(3) CHARACTER SET sjis", ["'表'"], "text"),
    ("CHAR(3) CHARACTER SET euckr", ["'갂'"], "text"),
    ("TINYTEXT CHARACTER SET big5", ["'表'"], "text"),
    ("LONGTEXT CHARACTER SET greek", ["'β'"], "text"),
    ("CHAR(255)", ["'ab'", "''"], "text"),
    ("BINARY(255)", ["x'00ff'", "''"], "bytes"),
    ("TINYBLOB", ["x'00'"], "bytes"),
    ("DATE", ["'0000-00-00'", "'2024-00-00'", "'9999-12-31'", "'1000-01-01'"], "text"),
    ("TIME(6)", ["'-838:59:59.999999'", "'-00:00:00.000001'", "'00:00:00'"], "text"),
    ("TIME(1)", ["'-00:00:01.5'", "'-12:34:00.1'"], "text"),
    ("TIME", ["'-00:00:01'", "'-838:59:59'"], "text"),
    ("DATETIME", ["'0000-00-00'", "'2024-00-01 00:00:00'"], "text"),
    ("DATETIME(3)", ["'1000-01-01 00:00:00.001'", "'9999-12-31 23:59:59.999'"], "text"),
    ("TIMESTAMP NULL", ["'0000-00-00'", "'2038-01-19 03:14:07'", "'1970-01-01 00:00:01'"], "text"),
    ("TIMESTAMP(6) NULL", ["'2024-01-01 00:00:00.000001'", "'0000-00-00'"], "text"),
    ("GEOMETRY", ["ST_GeomFromText('POINT(1 2)')", "NULL"], "bytes"),
    ("POINT", ["ST_GeomFromText('POINT(1 2)', 4326)"], "bytes"),
    ("POLYGON", ["ST_GeomFromText('POLYGON((0 0,1 0,1 1,0 0))')"], "bytes"),
    ("GEOMETRYCOLLECTION", ["NULL"], "bytes"),
    ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE uca1400_ai_ci", ["'é'"], "text"),
    ("UUID", ["'123e4567-e89b-12d3-a456-426655440000'"], "bytes"),
    ("INET4", ["'1.2.3.0'"], "bytes"),
    ("INT AS (1 + 1) VIRTUAL", ["DEFAULT"], "text"),
    ("VARCHAR(9) CHARACTER SET latin1 AS ('é') PERSISTENT", ["DEFAULT"], "text"),
    ("INT DEFAULT 7 INVISIBLE", ["DEFAULT"], "text"),
]

#: Types that MySQL does not have, or writes into its log in a form that is not read.
OF_MARIADB = re.compile("INET|UUID|JSON|uca1400|PERSISTENT")

ASKED = {"text": "CAST({} AS CHAR CHARACTER SET utf8mb4)", "bytes": "CAST({} AS BINARY)", "number": "{} + 0"}


async def test_every_type_in_one_table_in_any_order_is_what_the_server_answers(mariadb_with_log: SharedServer) -> None:
    chosen = random.Random(7)
    async with mysql_database(mariadb_with_log) as database, database.connected() as connection, connection.cursor() as cursor:
        await cursor.execute("SET time_zone = '+00:00', NAMES utf8mb4, sql_mode = 'ALLOW_INVALID_DATES'")
        known = [kind for kind in EVERY_TYPE if not (WANTED and OF_MARIADB.search(kind[0]))]
        for table in [f"kinds{number}" for number in range(12)]:
            types = chosen.sample(known, len(known))
            names = {f"c{number}": kind for number, kind in enumerate(types)}
            columns = ", ".join(f"{name} {type_}" for name, (type_, _, _) in names.items())
            await cursor.execute(f"CREATE TABLE {table} ({columns}, id INT PRIMARY KEY) CHARACTER SET utf8mb4")
            source = MySQLChanges(database.url, tables=[table], create=True, name=table)
            await source.open()
            for number in range(3):
                values = ", ".join(values[number % len(values)] for _, values, _ in types)
                await cursor.execute(f"INSERT INTO {table} ({', '.join(names)}, id) VALUES ({values}, {number})")
            read = [change.row for _ in range(3) for change in await source.read(2) if isinstance(change, Change)]
            await source.close()
            asked = ", ".join(ASKED[how].format(name) for name, (_, _, how) in names.items())
            await cursor.execute(f"SELECT {asked} FROM {table} ORDER BY id")
            for row, answer in zip(read, await cursor.fetchall(), strict=True):
                for (name, (type_, _, how)), value in zip(names.items(), answer, strict=True):
                    with case(table, type_, value):
                        ours = row[name]
                        assert (ours if ours is None or how != "text" else _as_written(ours)) == value


def _as_written(value: object) -> str:
    """The server writes a whole FLOAT without a point, and exponents in its own way."""
    return f"{value:.15g}" if isinstance(value, float) else str(value)
