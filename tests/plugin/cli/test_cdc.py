"""`ackwise cdc` as a user calls it: what it says before anything is read."""

from __future__ import annotations

import shlex

import pytest
from tests.databases.postgres import USER
from tests.shared import SharedServer
from tests.tables import each
from typer.testing import CliRunner

from ackwise.plugin.cli.root import new_app


def ackwise(arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `ackwise …`, as the program ends."""
    done = CliRunner().invoke(new_app(), shlex.split(arguments), prog_name="ackwise", terminal_width=200)
    return done.exit_code, done.stdout, done.stderr


def refused(arguments: str) -> str:
    """What is said on stderr by a command that ends with 2: one line, no traceback."""
    code, said, errors = ackwise(f"cdc {arguments}")
    assert (code, said) == (2, "")
    assert "Traceback" not in errors
    return " ".join(errors.split())


@each(
    ("arguments", "sentence"),
    [
        ("shop", "the database of change data capture has no scheme; write it as a URL such as 'postgresql://host/shop'"),
        ("oracle://host/shop", "oracle"),
        ("sqlite:///shop.db", "sqlite"),
        ("postgresql://host/shop --slot 'a b'", "the slot is called 'a b'; use up to 63 lower-case letters, digits and '_'"),
        ("mariadb://u@host/shop --slot 'a b'", "the slot is called 'a b'; use up to 64 letters, digits and any of '_.-'"),
        ("mariadb://u:secret@host", "the URL of the MySQL store names no database"),
        ("postgresql://host/shop --table orders", "--table and --map belong together"),
        ("postgresql://host/shop --map shop:f", "--table and --map belong together"),
        ("postgresql://host/shop --table orders --map json:__name__", "--map needs a function that takes a Change"),
    ],
)
def test_what_can_not_work_is_one_sentence_and_exit_code_2(arguments: str, sentence: str) -> None:
    said = refused(arguments)
    assert sentence in said
    assert "secret" not in said


@pytest.mark.servers
def test_a_missing_slot_is_one_sentence(postgres: SharedServer) -> None:
    url = f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres"
    assert "there is no replication slot absent" in refused(f"{url} --slot absent --status")


@pytest.mark.servers
def test_a_missing_position_is_one_sentence(mariadb_with_log: SharedServer) -> None:
    url = f"mariadb://root@127.0.0.1:{mariadb_with_log.port}/mysql?prefix=cli_"
    said = refused(f"'{url}' --slot absent --status --json")
    assert "no position is kept under the name absent; --create-slot makes one" in said
