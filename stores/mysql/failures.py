"""Failures of the driver or the server as errors of ours: a sentence for each class of failure, and no secret in any."""

from __future__ import annotations

import re
import ssl
from typing import Final

from asyncmy.errors import MySQLError

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.sql.operation import Problem

#: What asyncmy raises, and what the network below it does. RuntimeError is for a pool that is being closed and for a missing package.
FAILURES = (MySQLError, OSError, RuntimeError)

NO_RIGHT = (1142, 1143, 1227)
NO_SUCH_TABLE = 1146
NO_SUCH_SAVEPOINT = 1305
DUPLICATE = 1062

_UNREACHABLE = 2003

_LOST_CODES = (0, 1047, 1053, 1158, 1159, 1160, 1161, 1290, 1317, 1792, 1836, 1927, _UNREACHABLE, 2006, 2013, 2014, 2055, 4031)
"""The connection is lost or was ended, the server stops or starts, left its cluster or became a replica."""

_PROBLEMS: Final[dict[int | None, Problem]] = {
    **dict.fromkeys(_LOST_CODES, Problem.LOST),
    1020: Problem.CONFLICT,  # the record changed
    1205: Problem.CONFLICT,  # it was locked for too long, and the server undid the statement
    1213: Problem.CONFLICT,  # a deadlock
    1969: Problem.BUSY,
    3024: Problem.BUSY,
    NO_SUCH_SAVEPOINT: Problem.ENDED,
    NO_SUCH_TABLE: Problem.MISSING,
    DUPLICATE: Problem.DUPLICATE,
    **dict.fromkeys(NO_RIGHT, Problem.FORBIDDEN),
}

_RIGHTS = (
    "this user may not do what the {what} needs{command}; let somebody who may create tables run `{init}`, "
    "then grant SELECT, INSERT, UPDATE and DELETE on the tables of the {what}, and SELECT on that of the schema"
)
_LET_IN = "the server does not let this user in; check user and password of the URL, and from where the user may come"
_READ_ONLY = "the server takes no writes, it is a replica or read_only is on; name the primary"
_SLOW = (
    "the server did not finish within {timeout:g} s; somebody may hold {held} in an open transaction, "
    "or it is overloaded: see information_schema.innodb_trx"
)
_LOST = "the connection was lost; it is made anew with the next exchange"
_ENDED = "the server ended the connection; it stops or starts, or somebody killed it"
_DISK = "the server's disk or tablespace is full; make room"
_MEMORY = "the server is out of memory"
_CONNECTIONS = "the server has no connection left for this user; raise max_connections, or lower max_size of the URL"
_METHOD = "the server wants a way of authentication that asyncmy does not have; give the user another one"

_YOURS = {
    1044: "this user may not use the database; grant it, or correct the URL",
    1045: _LET_IN,
    1049: "this database does not exist; create it, or correct the URL",
    1064: "it does not understand the SQL of the {what}; MariaDB 10.5 or MySQL 8.0.19 is needed, or later",
    1130: _LET_IN,
    1142: _RIGHTS,
    1143: _RIGHTS,
    NO_SUCH_TABLE: "the tables of the {what} are missing; run `{init}`",
    1251: _METHOD,
    1665: "its binlog_format is STATEMENT, which can't carry claims; set it to MIXED or ROW",
    1698: _LET_IN,
    2059: _METHOD,
    2061: _METHOD,
    3159: "the server takes connections with TLS only; write sslmode=verify-full into the URL",
    4151: _LET_IN,
}

_THEIRS = {
    0: _LOST,
    3: _DISK,
    1021: _DISK,
    1037: _MEMORY,
    1038: _MEMORY,
    1040: _CONNECTIONS,
    1041: _MEMORY,
    1047: "the server is not part of its cluster at the moment, or not ready; look at wsrep_cluster_status",
    1053: _ENDED,
    1114: _DISK,
    1153: "the exchange is larger than the server's max_allowed_packet; raise that to 1M or more",
    1203: _CONNECTIONS,
    1205: "somebody holds {held} in an open transaction for too long; look for it in information_schema.innodb_trx",
    1213: "the server found a deadlock each time it was asked; look at SHOW ENGINE INNODB STATUS",
    1226: _CONNECTIONS,
    1290: _READ_ONLY,
    1317: _ENDED,
    1792: _READ_ONLY,
    1836: _READ_ONLY,
    1927: _ENDED,
    1969: _SLOW,
    2006: _LOST,
    2013: _LOST,
    3024: _SLOW,
}


def problem_of(error: Exception) -> Problem:
    """Return what one of `FAILURES` means."""
    if isinstance(error, MySQLError):
        return _PROBLEMS.get(_code(error), Problem.REFUSED)
    return Problem.BUSY if isinstance(error, TimeoutError) else Problem.LOST


def as_store_error(
    error: Exception, address: str, timeout: float, what: str = "claim store", init: str = "ackwise store init URL"
) -> ConfigurationError | StoreUnavailable:
    """`error` as one of ours; `address` is the store's, without secrets, `what` its tables belong to, and `init` what makes them."""
    code, cause = _code(error), error.__cause__
    if code == _UNREACHABLE and isinstance(cause, OSError):
        return _of_the_network(cause, address, timeout)
    if not isinstance(error, MySQLError):
        return _of_the_network(error, address, timeout)
    message = str(error.args[-1]) if error.args else ""
    if code is None:
        return StoreUnavailable(f"{address}: what answers does not speak MySQL's protocol ({message}); check host and port of the URL")
    for sentences, kind in ((_YOURS, ConfigurationError), (_THEIRS, StoreUnavailable)):
        if code in sentences:
            held = f"a row of the {what}" if what == OUTBOX.tables else "a claim of this batch"
            said = sentences[code].format(timeout=timeout, command=_command(message), what=what, init=init, held=held)
            return kind(f"{address}: {said}")
    return StoreUnavailable(f"{address}: the server refused ({code}: {_anonymous(message)})")


def _of_the_network(error: Exception, address: str, timeout: float) -> ConfigurationError | StoreUnavailable:
    match error:
        case ssl.SSLCertVerificationError():
            return ConfigurationError(
                f"{address}: its certificate is not trusted ({error.verify_message}); correct sslrootcert, or the host in the URL"
            )
        case ssl.SSLError() if error.reason == "WRONG_VERSION_NUMBER":
            return ConfigurationError(f"{address}: the server speaks no TLS, and sslmode asks for it; turn it on there")
        case ssl.SSLError():
            return StoreUnavailable(f"{address}: TLS failed ({error.reason}); check the certificates and sslmode on both sides")
        case TimeoutError():
            return StoreUnavailable(
                f"{address}: no answer within {timeout:g} s; see whether the server runs and the network lets us through"
            )
        case OSError():
            return StoreUnavailable(f"{address}: it can't be reached ({error.strerror or 'connection lost'}); start it, or correct the URL")
        case RuntimeError() if "package is required" in str(error):
            package = str(error).split("'")[1]
            return ConfigurationError(f"{address}: asyncmy needs {package} for the way this user is authenticated; pip install {package}")
        case RuntimeError():
            return StoreUnavailable(f"{address}: the store is being closed")
        case _:
            return StoreUnavailable(f"{address}: {_LOST}")


def _code(error: Exception) -> int | None:
    code = error.args[0] if isinstance(error, MySQLError) and error.args else None
    return code if isinstance(code, int) else None


def _command(message: str) -> str:
    """What was denied, in brackets, without the user to whom."""
    found = re.match(r"([A-Z, ]+) command denied", message)
    return f" ({found[1]})" if found else ""


def _anonymous(message: str) -> str:
    return re.sub(r"'[^']*'@'[^']*'", "this user", message)[:200]
