"""Failures of the driver or the server as errors of ours: a sentence for each class of failure, and no secret in any."""

from __future__ import annotations

import ssl

import asyncpg

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.sql.operation import Problem

#: What asyncpg raises, and what the network below it does. The server's errors are `PostgresError`, asyncpg's own the next two.
FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

_PROBLEMS = {
    "40001": Problem.CONFLICT,
    "40P01": Problem.CONFLICT,
    "08": Problem.LOST,
    "57P": Problem.LOST,
    "25006": Problem.LOST,  # it became a standby
    "26000": Problem.LOST,  # it forgot our prepared statements
    "55P03": Problem.BUSY,
    "57014": Problem.BUSY,
    "25P02": Problem.ENDED,
    "3B001": Problem.ENDED,
    "42P01": Problem.MISSING,
    "3F000": Problem.MISSING,
    "23505": Problem.DUPLICATE,
    "42501": Problem.FORBIDDEN,
}
"""The beginning of an SQLSTATE, and what it means; the first that fits."""

_YOURS = {
    "28P01": "the password is wrong; correct it in the URL",
    "28": "PostgreSQL does not let this user in; check user and password of the URL, and pg_hba.conf",
    "3D000": "this database does not exist; create it, or correct the URL",
    "42501": "this user may not do what the {what} needs ({message}); let an owner run `{init}`, then grant "
    "SELECT, INSERT, UPDATE and DELETE on the tables of the {what}",
    "42P01": "the tables of the {what} are missing; run `{init}`",
    "3F000": "the schema of the {what} is missing; run `{init}`",
    "08P01": "what answers does not take our connection ({message}); behind PgBouncer write statement_cache_size=0 into the URL",
}
"""The beginning of an SQLSTATE, and what it says; the first that fits."""

_THEIRS = {
    "25006": "the server takes no writes; it is a standby or default_transaction_read_only is on: name the primary, or all hosts of it",
    "53100": "the server's disk is full; make room",
    "53200": "the server is out of memory ({message})",
    "53300": "the server has no connection left; raise max_connections, or lower max_size of the URL",
    "55P03": "somebody holds a claim of this batch in an open transaction for longer than {timeout} s; look for it in pg_stat_activity",
    "57014": "the server did not finish within {timeout} s; see what holds it up in pg_stat_activity",
    "57P": "the server is starting or stopping ({message})",
    "40": "the server found a deadlock or a conflict each time it was asked ({message})",
    "08": "the connection was lost; it is made anew with the next exchange",
}


def problem_of(error: Exception) -> Problem:
    """Return what one of `FAILURES` means."""
    if isinstance(error, asyncpg.PostgresError):
        return next((problem for state, problem in _PROBLEMS.items() if _state(error).startswith(state)), Problem.REFUSED)
    if isinstance(error, TimeoutError):
        return Problem.BUSY
    if isinstance(error, asyncpg.InterfaceError) and "another operation is in progress" in str(error):
        return Problem.ENDED
    return Problem.REFUSED if isinstance(error, ValueError) else Problem.LOST


def as_store_error(
    error: Exception, address: str, timeout: float, what: str = "claim store", init: str = "ackwise store init URL"
) -> ConfigurationError | StoreUnavailable:
    """`error` as one of ours; `address` is the store's, without secrets, `what` its tables belong to, and `init` what makes them."""
    if isinstance(error, asyncpg.PostgresError):
        for sentences, kind in ((_YOURS, ConfigurationError), (_THEIRS, StoreUnavailable)):
            for state, sentence in sentences.items():
                if _state(error).startswith(state):
                    return kind(f"{address}: {sentence.format(message=error.args[0], timeout=timeout, what=what, init=init)}")
        return StoreUnavailable(f"{address}: PostgreSQL refused ({_state(error)}: {error.args[0]})")
    return _of_the_network(error, address, timeout)


def _of_the_network(error: Exception, address: str, timeout: float) -> ConfigurationError | StoreUnavailable:
    match error:
        case ssl.SSLCertVerificationError():
            return ConfigurationError(
                f"{address}: its certificate is not trusted ({error.verify_message}); correct sslrootcert, or the host in the URL"
            )
        case ssl.SSLError():
            return StoreUnavailable(f"{address}: TLS failed ({error.reason}); check the certificates and sslmode on both sides")
        case asyncpg.TargetServerAttributeNotMatched():
            return StoreUnavailable(f"{address}: {_THEIRS['25006']}")
        case TimeoutError():
            return StoreUnavailable(f"{address}: no answer within {timeout} s; see whether the server runs and the network lets us through")
        case ConnectionError() if "SSL" in str(error):
            return ConfigurationError(f"{address}: the server speaks no TLS, and sslmode asks for it; turn ssl on there")
        case FileNotFoundError():
            return ConfigurationError(f"{address}: a file is not there: the server's socket, or a certificate or key of the URL")
        case OSError():
            return StoreUnavailable(f"{address}: it can't be reached ({error.strerror or 'connection lost'}); start it, or correct the URL")
        case asyncpg.DataError():
            return StoreUnavailable(f"{address}: a value of the exchange does not fit its column; report this")
        case ValueError():
            # What asyncpg says here may quote the URL.
            return ConfigurationError(f"{address}: asyncpg can't read the URL; check its port, its sslmode and the files that it names")
        case _:
            return StoreUnavailable(f"{address}: the connection was lost; it is made anew with the next exchange")


def _state(error: asyncpg.PostgresError) -> str:
    return str(getattr(error, "sqlstate", None) or "")
