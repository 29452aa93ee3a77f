"""The URL of a PostgreSQL store, without a server."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.stores.cases import case

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.registry import open_store
from ackwise.stores.postgres import PostgresStore, from_url
from ackwise.stores.postgres.url import Options, parse

#: Hosts and options with a port that there is not.
PORTS = (
    "h:0/x",
    "h:65536/x",
    "h:99999999999999999999/x",
    "h:-1/x",
    "h1:1,h2:70000/x",
    "[::1]:70000/x",
    "h/x?port=0",
    "/x?port=1,65536",
)


def test_a_port_may_be_any_that_there_is_or_left_out() -> None:
    for place in ("h", "h:", "h:1", "h:65535", "[::1]", "[::1]:5432", "h1,h2:2", "h1:1,[::2]:2", ""):
        with case(place):
            assert parse(f"postgres://u:secret@{place}/x?port=,65535")[0]


def test_both_schemes_lead_to_the_store() -> None:
    for scheme in ["postgresql", "postgres"]:
        with case(scheme):
            assert isinstance(open_store(f"{scheme}://localhost/db"), PostgresStore)


def test_our_options_are_taken_out_of_the_url_and_the_drivers_stay() -> None:
    rest, options = parse(
        "postgres://u:p%40ss@h1:1,h2:2/db?schema=s&prefix=p_&timeout=2.5&max_size=1&sslmode=verify-full"
        "&statement_cache_size=0&synchronous_commit=off"
    )
    assert rest == "postgres://u:p%40ss@h1:1,h2:2/db?sslmode=verify-full"
    assert options == Options("s", "p_", 2.5, 1, 0, "off")


def test_what_is_shown_of_a_store_is_where_it_is() -> None:
    assert repr(from_url("postgresql://u:secret@h1:1,h2:2/db?sslkey=/k")) == "<PostgresStore postgresql://h1:1,h2:2/db>"


def test_a_url_that_can_not_work_is_refused_without_repeating_secrets() -> None:
    for url, sentence in [
        ("postgres://h/x?tiemout=2", "no option 'tiemout'; did you mean timeout?"),
        ("postgres://h/x?sslmodus=2", "no option 'sslmodus'; did you mean sslmode?"),
        ("postgres://h/x?jit=off", "no option 'jit'; it has schema, prefix"),
        ("postgres://h/x?password=secret", "password is an option in the URL"),
        ("postgres://h/x?timeout=soon", "timeout is 'soon' in the URL of the PostgreSQL store; give a number, such as timeout=2.5"),
        ("postgres://h/x?timeout=0", "timeout is 0.0; give the seconds"),
        ("postgres://h/x?timeout=nan", "timeout is nan; give the seconds"),
        ("postgres://h/x?max_size=0", "at least one connection"),
        ("postgres://h/x?max_size=2.5", "max_size is '2.5'"),
        ("postgres://h/x?statement_cache_size=-1", "give 0 behind PgBouncer"),
        ("postgres://h/x?synchronous_commit=sometimes", "synchronous_commit is 'sometimes'; it can be on, off, local"),
        ("postgres://h/x?schema=", "schema is empty"),
        ("postgres://u:secret@h:99999/x", "a port in it is no number from 1 to 65535"),
        ("postgres://u:secret@h:5432,i:0/x", "a port in it is no number from 1 to 65535"),
        ("postgres://u:sec@ret?timeout=secret@h/x", "can't be read"),
        ("postgres://u:secret@[h/x", "can't be read"),
        *((f"postgres://u:secret@{place}", "is no number from 1 to 65535") for place in PORTS),
        ("mysql://u:secret@h/x", "starts with postgresql:// or postgres://"),
    ]:
        with case(url, sentence):
            with pytest.raises(ConfigurationError) as raised:
                from_url(url)
            assert sentence in str(raised.value)
            assert "secret" not in str(raised.value)


def test_a_store_needs_a_url_or_a_pool() -> None:
    with pytest.raises(ConfigurationError, match="needs a URL, such as postgresql://host/database, or a pool, and not both"):
        PostgresStore()


@pytest.mark.slow  # starts a process that has no driver
def test_without_the_driver_the_stores_can_be_imported_and_this_one_says_what_to_install() -> None:
    program = """
import sys
sys.modules["asyncpg"] = None
import ackwise.stores, ackwise.stores.sqlite
from ackwise.plugin.registry import open_store
try:
    open_store("postgres://localhost/x")
except Exception as error:
    print(type(error).__name__, error)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told == "PackageMissing the PostgreSQL store needs asyncpg; install it with pip install 'ackwise[postgres]'\n"
