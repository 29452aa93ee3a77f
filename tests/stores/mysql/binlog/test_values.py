"""Columns of each type, as a real MariaDB writes them into its log."""

from __future__ import annotations

from typing import Any

import pytest
from tests.shared import SharedServer
from tests.stores.mysql.database import mysql_database

from ackwise.middleware.storage.changes import Change
from ackwise.stores.mysql.binlog import MySQLChanges

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
