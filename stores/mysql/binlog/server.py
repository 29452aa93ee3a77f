"""What the server says of its binary log, and what follows from it."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.mysql.binlog.memory import Place, number_of
from ackwise.stores.mysql.schema import server
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps

#: Seconds of log below which a relay that stays away is in danger.
_SHORT: Final = 86400

_NEEDED: Final = (
    ("log_bin", ("ON",), "the binary log is off; start the server with log_bin"),
    ("binlog_format", ("ROW",), "binlog_format is {found}; set it to ROW, and let the applications connect anew"),
    ("binlog_row_image", ("FULL",), "binlog_row_image is {found}; set it to FULL, and let the applications connect anew"),
    ("binlog_row_metadata", ("FULL",), "binlog_row_metadata is {found}, so the log does not name columns; set it to FULL"),
    ("log_bin_compress", ("OFF", ""), "log_bin_compress is {found}, which is not read; turn it off"),
    ("binlog_transaction_compression", ("OFF", ""), "binlog_transaction_compression is {found}, which is not read; turn it off"),
    ("binlog_row_value_options", ("",), "binlog_row_value_options is {found}, which is not read; empty it"),
)

_ASKED: Final = (*(name for name, _, _ in _NEEDED), "server_id", "server_uuid", "sync_binlog", "binlog_expire_logs_seconds")

#: Python's names of character sets where they differ; `None` is for bytes.
_ENCODINGS: Final[Mapping[str, str | None]] = {
    "binary": None,
    "latin1": "cp1252",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "euckr": "euc-kr",
    "ujis": "euc-jp",
    "sjis": "shift-jis",
    "macroman": "mac-roman",
    "tis620": "tis-620",
}


class Settings(NamedTuple):
    """What matters of the server's settings."""

    server: str
    """What tells the server from others, with the times at which its files began: MySQL's uuid, or the server_id."""
    server_id: int
    syncs: bool
    expires: int
    """Seconds that the log is kept; 0 is for ever."""


class Log(NamedTuple):
    """The files of the log with their sizes, in order."""

    files: Sequence[tuple[str, int]]

    def behind(self, place: Place) -> int | None:
        """Bytes from `place` to the end; `None` if its file is gone."""
        if place.file not in dict(self.files):
            return None
        return max(0, sum(size for file, size in self.files if number_of(file) >= place.number) - place.position)


def settings(address: str) -> Steps[Settings]:
    """The settings. Raises `ConfigurationError` with what to change."""
    names = ", ".join(f"'{name}'" for name in _ASKED)
    (said,) = yield [Statement(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")]
    found: dict[str, str] = {name: value for name, value in said.rows}  # noqa: C416
    for name, allowed, sentence in _NEEDED:
        if found.get(name, "") not in allowed:
            raise ConfigurationError(
                f"{address}: change data capture can't read the log: {sentence.format(found=found.get(name, 'missing'))}"
            )
    server_id = int(found["server_id"])
    if server_id == 0:
        raise ConfigurationError(f"{address}: server_id is 0, and the server sends its log to nobody then; give it one, such as 1")
    expires = int(found.get("binlog_expire_logs_seconds") or 0)
    return Settings(found.get("server_uuid") or str(server_id), server_id, found.get("sync_binlog") == "1", expires)


def require_own_id(server_id: int, address: str) -> Steps[None]:
    """Raise `ConfigurationError` if a replica has our server id: the server would end the connection of one for the other."""
    try:
        (replicas,) = yield [Statement("SHOW SLAVE HOSTS")]
    except Failure:  # no right to ask, or MySQL 8.4, which has another word for it
        return
    if any(int(replica[0]) == server_id for replica in replicas.rows):
        raise ConfigurationError(f"{address}: a replica has the server id {server_id}, which is ours by our name; choose another --slot")


def end_of_log(address: str) -> Steps[Place]:
    """Where the log ends now, between two transactions. Raises `ConfigurationError` for a missing right."""
    file, position, *_ = (yield from _asked(address, "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"))[0]
    return Place(number_of(file), int(position), file, 0)


def require_logged(address: str, databases: Collection[str]) -> Steps[None]:
    """Raise `ConfigurationError` if the log leaves out one of these databases."""
    _, _, only, ignored, *_ = (yield from _asked(address, "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"))[0]
    for database in left_out(databases, only, ignored):
        raise ConfigurationError(
            f"{address}: the log leaves out the database {database}; correct binlog_do_db and binlog_ignore_db of the server"
        )


def left_out(databases: Collection[str], only: str, ignored: str) -> list[str]:
    """Those of `databases` that a log with these lists, comma-separated as the server shows them, does not tell of."""
    return [each for each in databases if (only and each not in only.split(",")) or each in ignored.split(",")]


def log_files(address: str) -> Steps[Log]:
    """The files of the log. Raises `ConfigurationError` for a missing right."""
    return Log([(row[0], int(row[1])) for row in (yield from _asked(address, "SHOW BINARY LOGS"))])


def _asked(address: str, *statements: str) -> Steps[Sequence[Sequence[Any]]]:
    for statement in statements:
        try:
            (answer,) = yield [Statement(statement)]
        except Failure as failure:
            if failure.problem is Problem.FORBIDDEN:
                raise ConfigurationError(
                    f"{address}: this user may not ask about the binary log; GRANT BINLOG MONITOR ON *.* TO this user "
                    "(on MySQL: REPLICATION CLIENT)"
                ) from None
            if statement == statements[-1]:
                raise
        else:
            return answer.rows
    raise AssertionError("there is a statement")


def encodings() -> Steps[dict[int, str | None]]:
    """Python's names of the character sets by the number of a collation; those that Python does not know are left out."""
    table = "COLLATION_CHARACTER_SET_APPLICABILITY" if "MariaDB" in (yield from server()) else "COLLATIONS"
    question = "SELECT ID, CHARACTER_SET_NAME FROM information_schema.{} WHERE ID IS NOT NULL AND CHARACTER_SET_NAME IS NOT NULL"
    try:
        (answer,) = yield [Statement(question.format(table))]
    except Failure:  # MariaDB before 10.10, where this table has no numbers
        (answer,) = yield [Statement(question.format("COLLATIONS"))]
    found = {}
    for number, charset in answer.rows:
        encoding = _ENCODINGS.get(charset, charset)
        if encoding is None or _is_known(encoding):
            found[int(number)] = encoding
    return found


def _is_known(encoding: str) -> bool:
    try:
        codecs.lookup(encoding)
    except LookupError:
        return False
    return True


def findings(said: Settings, log: Log, place: Place) -> tuple[str, ...]:
    """What is wrong or unwise, a sentence each."""
    found: list[str] = []
    if log.behind(place) is None:
        found.append(f"the file {place.file} of the log is gone, which was to be read on: changes are missing between it and what is left")
    elif len(log.files) > 1 and log.files[0][0] == place.file and said.expires:
        found.append(
            f"the relay reads the oldest file of the log, {place.file}, which is the next one to be removed; bring it or Kafka back"
        )
    if not said.syncs:
        found.append("sync_binlog is not 1: after a crash of the machine the log may lack transactions that the tables have")
    if 0 < said.expires < _SHORT:
        found.append(f"the log is kept for {said.expires} s (binlog_expire_logs_seconds): a relay that is away longer loses changes")
    return tuple(found)
