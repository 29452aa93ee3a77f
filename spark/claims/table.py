"""The claims of a PostgreSQL store as rows, read by Spark's JDBC."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.policies.policies import Dedup
from ackwise.plugin.cli.command import find_app
from ackwise.spark.claims.comparison import Claims
from ackwise.spark.session.jars import add_jdbc_driver
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.url import Options, address_of, parse

__all__ = ["ClaimTable", "claim_table"]

_APP: Final = re.compile(r"[\w.]+:\w+")
#: Options of the URL that the JDBC driver has by the same name. The store's own timeouts mean nothing to it.
_SSL: Final = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey"})

# The first 8 of the 16 bytes of a key are the hash that the events carry, unless an epoch or a replay was mixed in.
_CLAIMS: Final = """
SELECT ('x' || left(replace(k::text, '-', ''), 16))::bit(64)::bigint AS dedup_hash, k::text AS key, outcome::int AS outcome, token,
    outcome <> 0 AND holder <> '' AS unrecorded,
    (extract(epoch FROM leased_until) * 1000000)::bigint AS leased_until, (extract(epoch FROM kept_until) * 1000000)::bigint AS kept_until,
    (extract(epoch FROM now()) * 1000000)::bigint AS now
FROM {table} WHERE kept_until > now()"""


@dataclass(frozen=True, slots=True)
class ClaimTable:
    """The address of a claim table, and the means to read it."""

    address: str
    """Without user, password and options."""
    url: str
    """For JDBC, without user and password."""
    user: str | None
    password: str | None
    tables: Tables

    def __repr__(self) -> str:
        return f"ClaimTable({self.address})"

    def read(self, spark: SparkSession, progress: Callable[[str], None]) -> Claims:
        """Return the claims of the store. Raises `Unavailable` or `ConfigurationError` if it can't be read."""
        add_jdbc_driver(spark, progress)
        query = " UNION ALL ".join(_CLAIMS.format(table=name) for name in (self.tables.claims, self.tables.daily_claims))
        options = {"url": self.url, "driver": "org.postgresql.Driver", "query": query, "fetchsize": "10000"}
        options |= {name: value for name, value in (("user", self.user), ("password", self.password)) if value is not None}
        try:
            return Claims(self.address, spark.read.format("jdbc").options(**options).load())
        except (PySparkException, Py4JError) as error:
            # The driver's message may have the user's name in it, and Spark has left the rest out.
            if "42P01" in str(error) or "does not exist" in str(error):
                raise ConfigurationError(
                    f"{self.address} has no table {self.tables.claims}; `ackwise store init` creates it; schema and prefix stand in the URL"
                ) from error
            raise Unavailable(f"the claims in {self.address} can't be read; check address, user, password and rights") from error


def claim_table(store: str) -> ClaimTable:
    """The claims of a store's URL, or of the app that is named as `module:app`.

    Raises `ConfigurationError`, without secrets, for anything but a store in PostgreSQL.
    """
    url = _of_app(store) if _APP.fullmatch(store) else store
    if url.partition("://")[0] not in ("postgres", "postgresql"):
        raise ConfigurationError("--claims reads stores in PostgreSQL alone; give postgresql://host/database, or the app that uses one")
    driver, ours = parse(url)
    parts = urlsplit(driver)
    options = dict(parse_qsl(parts.query))
    for name in options:
        if name not in _SSL and name != "application_name":
            raise ConfigurationError(f"the JDBC driver has no {name!r}; write host, port and database into the URL of --claims, without it")
    query = urlencode({name: value for name, value in options.items() if name in _SSL} | {"ApplicationName": "ackwise reconcile"})
    host = parts.netloc.rpartition("@")[2] or "localhost"
    return ClaimTable(
        address=address_of(url),
        url=f"jdbc:postgresql://{host}{parts.path or '/'}?{query}",
        user=_unquoted(parts.username) or os.environ.get("PGUSER"),
        password=_unquoted(parts.password) or os.environ.get("PGPASSWORD"),
        tables=_tables(ours),
    )


def _of_app(target: str) -> str:
    policy = find_app(target).group().dedup
    if not isinstance(policy, Dedup) or not isinstance(policy.store, str):
        raise ConfigurationError(f"the app {target} does not use Dedup with the URL of a store; give --claims the URL")
    return policy.store


def _tables(options: Options) -> Tables:
    return Tables(options.schema, options.prefix)


def _unquoted(text: str | None) -> str | None:
    return None if text is None else unquote(text)
