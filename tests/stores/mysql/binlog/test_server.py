"""What follows from what a server says of its log."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.databases.mariadb import WITH_LOG, mariadb_server
from tests.databases.server import skip_if_missing
from tests.stores.cases import case
from tests.stores.mysql.database import MySQLDatabase

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.mysql.binlog import MySQLChanges
from ackwise.stores.mysql.binlog.position import Place
from ackwise.stores.mysql.binlog.server import Log, Settings, findings, left_out

LOG = Log([("binlog.000002", 500), ("binlog.000003", 300)])
FINE = Settings("1", 1, True, 0)


def test_a_database_that_the_log_leaves_out_is_found() -> None:
    for only, ignored, found in [
        ("", "", []),
        ("shop", "", []),
        ("other,shop", "", []),
        ("other", "", ["shop"]),
        ("", "other,shop", ["shop"]),
        ("", "shopping", []),
    ]:
        with case(only, ignored, found):
            assert left_out(["shop"], only, ignored) == found


def test_what_is_behind_is_counted_over_files() -> None:
    assert LOG.behind(Place(2, 400, "binlog.000002", 0)) == 400
    assert LOG.behind(Place(3, 300, "binlog.000003", 0)) == 0
    assert LOG.behind(Place(1, 4, "binlog.000001", 0)) is None


def test_what_is_wrong_or_unwise_is_a_sentence() -> None:
    for settings, place, said in [
        (FINE, Place(2, 4, "binlog.000002", 0), ""),
        (FINE, Place(1, 4, "binlog.000001", 0), "the file binlog.000001 of the log is gone"),
        (FINE._replace(expires=86400), Place(2, 4, "binlog.000002", 0), "reads the oldest file of the log"),
        (FINE._replace(syncs=False), Place(3, 4, "binlog.000003", 0), "sync_binlog is not 1"),
        (FINE._replace(expires=60), Place(3, 4, "binlog.000003", 0), "the log is kept for 60 s"),
    ]:
        with case(settings, place, said):
            found = findings(settings, LOG, place)
            assert len(found) == bool(said)
            assert all(said in sentence for sentence in found)


@pytest.mark.servers
async def test_a_table_of_a_database_that_the_log_leaves_out_is_refused(tmp_path: Path) -> None:
    with skip_if_missing("MariaDB"), mariadb_server(tmp_path, *WITH_LOG, "--binlog-ignore-db=archive") as server:
        database = MySQLDatabase(server, "test")
        await database.fetch("CREATE DATABASE archive")
        await database.fetch("CREATE TABLE archive.orders (id INT PRIMARY KEY)")
        source = MySQLChanges(database.url, tables=["archive.orders"], create=True)
        with pytest.raises(ConfigurationError, match="archive"):
            await source.open()
        await source.close()
