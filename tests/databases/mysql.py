"""MySQL on this machine, in its own folder: Debian's unstable has a package, which runs here with the libraries that it was built for.

With `TESTS_ON_MYSQL=1` the tests that start a MariaDB start a MySQL in its place; `make nightly` runs those tests once more so.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.databases.server import Missing, Server, free_port, greets, program, running

WANTED: Final = os.environ.get("TESTS_ON_MYSQL") == "1"

_KEYS: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PACKAGE: Final = "mysql-server-core"

#: Below the unpacked packages.
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"


#: Tests of what is MariaDB's alone, or that look at it with MariaDB's own words, by the name of their function; and what that is.
OF_MARIADB: Final[Mapping[str, str]] = {
    "test_a_mariadb_greets": "the name",
    "test_a_connection_is_in_autocommit_again_however_the_block_ended": "@@in_transaction",
    "test_a_check_back_waits_no_longer_than_it_may_and_leaves_the_session_as_it_was": "@@in_transaction",
    "test_a_deadlock_that_others_cause_is_not_seen_by_the_caller": "tables of sequences",
    "test_after_a_wait_the_lease_begins_with_the_answer": "SET STATEMENT … FOR",
    "test_a_claim_waits_for_an_uncommitted_claim_and_answers_by_how_it_ends": "SET STATEMENT … FOR",
    "test_a_take_over_waits_for_an_uncommitted_one_and_answers_by_how_it_ends": "SET STATEMENT … FOR",
    "test_a_claim_that_waits_too_long_is_unavailable_and_says_for_what": "SET STATEMENT … FOR",
    "test_a_pool_that_was_given_stays_open_and_keeps_its_settings": "@@tx_isolation",
    "test_a_pool_that_was_given_keeps_its_settings_and_stays_open": "sql_mode SIMULTANEOUS_ASSIGNMENT",
    "test_a_server_without_tls_is_refused_if_the_url_asks_for_it": "a server without TLS, which MySQL makes certificates for",
    "test_a_full_disk_is_told_of_and_nothing_of_the_exchange_is_applied": "one file for all tables",
    "test_a_change_says_table_operation_and_both_rows": "the server's number in the id, which is a UUID with hyphens on MySQL",
    "test_a_large_transaction_is_read_twice_and_sent_in_parts": "tables of sequences",
    "test_a_log_that_was_reset_or_is_another_one_is_told": "the server's number, which is a UUID on MySQL",
    "test_a_wrong_setting_is_named_with_what_to_do": "log_bin_compress",
    "test_each_missing_right_is_named": "the right BINLOG MONITOR",
    "test_each_type_is_read_as_it_was_written": "INET6",
    "test_a_type_that_is_not_read_is_told": "columns that are COMPRESSED",
    "test_what_changes_a_table_as_a_whole_on_mariadb_alone_stops_the_relay_too": "statements that only MariaDB has",
    "test_statements_in_place_of_rows_stop_it_however_they_are_written": "SET STATEMENT … FOR",
    "test_a_table_that_the_log_does_not_report_in_full_is_refused_with_what_to_do": "SYSTEM VERSIONING",
    "test_old_formats_of_times_in_the_log_itself_are_told": "mysql56_temporal_format",
}

#: Statements of the tests that have another name since MySQL 8.4.
_RENAMED: Final = (("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"), ("RESET MASTER", "RESET BINARY LOGS AND GTIDS"))


def said(statement: str) -> str:
    """`statement` of MariaDB as the server of this run understands it."""
    for before, now in _RENAMED if WANTED else ():
        statement = statement.replace(before, now)
    return statement


@contextmanager
def mysql_server(folder: Path, *options: str) -> Iterator[Server]:
    """A MySQL while the block runs, whose root has no password, from everywhere. Raises `Missing`."""
    folder.mkdir(parents=True, exist_ok=True)
    root, port = _unpacked(), free_port()
    rights = folder / "rights.sql"
    rights.write_text("CREATE USER root@'%'; GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION; CREATE DATABASE test;\n", "utf-8")
    command = [f"{root}/{_LIBRARIES}/ld-linux-x86-64.so.2", "--library-path", f"{root}/{_LIBRARIES}", f"{root}/usr/sbin/mysqld"]
    command += ["--no-defaults", f"--basedir={root}/usr", f"--lc-messages-dir={root}/usr/share/mysql", "--secure-file-priv="]
    command += [f"--plugin-dir={root}/usr/lib/mysql/plugin", f"--user={getpass.getuser()}", f"--datadir={folder / 'data'}"]
    made = subprocess.run(
        [*command, "--initialize-insecure", f"--init-file={rights}"], capture_output=True, text=True, check=False, cwd=folder
    )
    assert made.returncode == 0, made.stdout + made.stderr
    command += [f"--port={port}", f"--socket={folder / 'socket'}", "--bind-address=127.0.0.1", f"--tmpdir={folder}", "--mysqlx=OFF"]
    command += ["--max-allowed-packet=16M", "--innodb-buffer-pool-size=64M", "--skip-name-resolve", "--performance-schema=OFF"]
    if not any(option.startswith("--log-bin") for option in options):
        command += ["--skip-log-bin"]  # it writes one unless told otherwise
    with running(Server(folder, port, [*command, *options], lambda: greets(port))) as server:
        yield server


def _unpacked() -> Path:
    """The folder of the unpacked packages, in the user's cache; fetched if they are not there yet. Raises `Missing`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ackwise"
    place = cache / "mysql"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "mysql.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            with tempfile.TemporaryDirectory(prefix=".mysql-", dir=cache) as work:
                _fetch(Path(work)).rename(place)
    if not (place / _LIBRARIES).is_dir():
        raise Missing(f"MySQL's package in {place} is not for this machine: {_LIBRARIES} is missing")
    return place


def _fetch(work: Path) -> Path:
    """Download the package and all that it needs, and unpack them below `work`. Nothing is installed. Raises `Missing`."""
    apt_get, apt_cache, unpack = program("apt-get"), program("apt-cache"), program("dpkg-deb")
    if not Path(_KEYS).exists():
        raise Missing(f"MySQL comes from Debian's packages, and {_KEYS} is missing; install debian-archive-keyring")
    for part in ("lists/partial", "archives/partial", "packages", "root"):
        (work / part).mkdir(parents=True)
    (work / "sources.list").write_text(f"deb [signed-by={_KEYS}] http://deb.debian.org/debian sid main\n", "utf-8")
    settings = {
        "Dir::Etc::SourceList": work / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": work / "lists",
        "Dir::Cache": work,
        "APT::Sandbox::User": getpass.getuser(),
    }
    options = [each for name, value in settings.items() for each in ("-o", f"{name}={value}")]
    _run([apt_get, *options, "-qq", "update"], work)
    kept = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    listed = _run([apt_cache, *options, "depends", "--recurse", *kept, _PACKAGE], work)
    names = {name for name in re.findall(r"^([a-z0-9][a-z0-9.+-]*)$", listed, re.MULTILINE) if "perl" not in name}
    _run([apt_get, *options, "-qq", "download", *sorted(names)], work / "packages")
    for package in sorted((work / "packages").glob("*.deb")):
        _run([unpack, "-x", str(package), str(work / "root")], work)
    return work / "root"


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"MySQL could not be fetched from Debian's packages: {' '.join(command[-2:])}: {done.stderr.strip()[-300:]}")
    return done.stdout
