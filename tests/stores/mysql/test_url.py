"""The URL of a MySQL store, without a server."""

from __future__ import annotations

import subprocess
import sys
from typing import cast

import pytest
from tests.stores.cases import case

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.registry import open_store
from ackwise.stores.mysql import MySQLStore, from_url
from ackwise.stores.mysql.driver import Asyncmy
from ackwise.stores.mysql.url import Address, Options, parse


def test_both_schemes_lead_to_the_store() -> None:
    for scheme in ["mysql", "mariadb"]:
        with case(scheme):
            assert isinstance(open_store(f"{scheme}://user@localhost/db"), MySQLStore)


def test_our_options_are_taken_out_of_the_url_and_those_for_tls_stay() -> None:
    rest, options = parse("mysql://u:p%40ss@h:3307/db?prefix=p_&timeout=2.5&max_size=1&sslmode=verify-full&sslrootcert=/ca.pem")
    assert rest == "mysql://u:p%40ss@h:3307/db?sslmode=verify-full&sslrootcert=%2Fca.pem"
    assert options == Options("p_", 2.5, 1)
    address = Address.of(rest)
    assert (address.host, address.port, address.database, address.user, address.password) == ("h", 3307, "db", "u", "p@ss")
    assert address.tls._asdict() == {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "sslcert": None, "sslkey": None}


def test_what_is_shown_of_a_store_is_where_it_is() -> None:
    store = from_url("mariadb://user:secret@[::1]:3307/db?sslmode=require")
    assert repr(store) == "<MySQLStore mariadb://[::1]:3307/db>"
    assert repr(from_url("mysql://user:secret@h/a%2Fb")) == "<MySQLStore mysql://h:3306/a/b>"
    driver = cast(Asyncmy, store._connections.driver)
    assert "secret" not in repr(driver.server)
    assert "user" not in repr(driver.server)


def test_a_password_may_have_any_characters() -> None:
    """asyncmy itself would take Latin-1 only."""
    assert Address.of("mysql://u:%E2%82%AC%40%2F@h/d").connecting()["password"] == "€@/".encode()


def test_a_url_that_can_not_work_is_refused_without_repeating_secrets() -> None:
    for url, sentence in [
        ("mysql://u@h/x?tiemout=2", "no option 'tiemout'; did you mean timeout?"),
        ("mysql://u@h/x?sslmodus=2", "no option 'sslmodus'; did you mean sslmode?"),
        ("mysql://u@h/x?autocommit=off", "no option 'autocommit'; it has prefix, timeout, max_size, sslmode"),
        ("mysql://u@h/x?password=secret", "password is an option in the URL"),
        ("mysql://u@h/x?timeout=soon", "timeout is 'soon' in the URL of the MySQL store; give a number, such as timeout=2.5"),
        ("mysql://u@h/x?timeout=0", "timeout is 0.0; give the seconds"),
        ("mysql://u@h/x?timeout=nan", "timeout is nan; give the seconds"),
        ("mysql://u@h/x?max_size=0", "at least one connection"),
        ("mysql://u@h/x?max_size=2.5", "max_size is '2.5'"),
        ("mysql://u@h/x?sslmode=sometimes", "sslmode is 'sometimes' in the URL of the MySQL store; it can be disable, require, verify-ca"),
        ("mysql://u@h/x?sslkey=/k", "has an sslkey and no sslcert"),
        ("mysql://u@h/x?sslmode=disable&sslrootcert=/ca", "names files for TLS and says sslmode=disable"),
        ("mysql://u:secret@h", "names no database; write mysql://user:password@host:3306/database"),
        ("mysql://u:secret@/x", "names no host"),
        ("mysql://h/x", "names no user"),
        ("mysql://u:secret@h:port/x", "can't be read"),
        ("mysql://u:secret@h:0/x", "a port in it is no number from 1 to 65535"),
        ("mariadb://u:secret@h:65536/x", "a port in it is no number from 1 to 65535"),
        ("mysql://u:secret@[::1]:65536/x", "a port in it is no number from 1 to 65535"),
        ("mysql://u:sec/ret@h/x", "can't be read"),
        ("mysql://u:1/secret@h/x", "can't be read"),
        ("mysql://u:1?secret@h/x", "can't be read"),
        ("mysql://u:1/secret#@h/x", "can't be read"),
        ("mysql://u:sec@ret?timeout=secret@h/x", "can't be read"),
        ("mysql://u:secret@[h/x", "can't be read"),
        ("postgres://u:secret@h/x", "starts with mysql:// or mariadb://"),
    ]:
        with case(url, sentence):
            with pytest.raises(ConfigurationError) as raised:
                from_url(url)
            assert sentence in str(raised.value)
            assert "secret" not in str(raised.value)


def test_a_store_needs_a_url_or_a_pool() -> None:
    with pytest.raises(ConfigurationError, match="needs a URL, such as mysql://host/database, or a pool, and not both"):
        MySQLStore()


@pytest.mark.slow  # starts a process that has no driver
def test_without_the_driver_the_stores_can_be_imported_and_this_one_says_what_to_install() -> None:
    program = """
import sys
sys.modules["asyncmy"] = None
import ackwise.stores, ackwise.stores.sqlite
from ackwise.plugin.registry import open_store
try:
    open_store("mysql://user@localhost/x")
except Exception as error:
    print(type(error).__name__, error)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told == "PackageMissing the MySQL store needs asyncmy; install it with pip install 'ackwise[mysql]'\n"
