"""What the command line says of itself: help, completion, and the page about it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click.testing
import pytest
import typer
from tests.tables import each
from typer.testing import CliRunner

from ackwise.plugin.cli.root import new_app

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


def walk(command: Any, path: str = "ackwise") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, f"{path} {name}")


ROOT: Any = typer.main.get_command(new_app())
COMMANDS = dict(walk(ROOT))
LEAVES = {path: command for path, command in COMMANDS.items() if not hasattr(command, "commands")}


def test_these_are_the_commands() -> None:
    assert {path.removeprefix("ackwise ") for path in LEAVES} >= {
        "run", "demo", "explain", "doctor", "reconcile", "topics check", "topics create",
        "store init", "store check", "store cleanup",
    }  # fmt: skip


@each("path", COMMANDS)
def test_every_option_says_what_it_does(path: str) -> None:
    silent = [parameter.opts for parameter in COMMANDS[path].params if not getattr(parameter, "help", None)]
    assert silent == []


@each("path", LEAVES)
def test_the_help_of_every_command_names_its_exit_codes(path: str) -> None:
    assert "Exit code 0: " in LEAVES[path].help
    assert " 2: " in LEAVES[path].help


@each("path", [path for path, command in LEAVES.items() if any("--yes" in parameter.opts for parameter in command.params)])
def test_a_command_that_changes_nothing_without_yes_says_so_in_its_first_line(path: str) -> None:
    assert LEAVES[path].help.splitlines()[0].endswith("Changes nothing without --yes.")


def test_a_verb_is_a_command_once_and_those_of_one_thing_are_together() -> None:
    assert {path for path in LEAVES if "inplace" in path} == {f"ackwise inplace {verb}" for verb in ("list", "retry", "bury")}
    assert {"ackwise waiting", "ackwise release", "ackwise bury"} & {*LEAVES} == set()


@each("path", LEAVES)
def test_every_command_and_option_is_on_the_page(path: str) -> None:
    page = PAGE.read_text("utf-8")
    section = page.partition(f"\n## {path.split()[1]}\n")[2].partition("\n## ")[0]
    assert path in section
    options = [option for parameter in LEAVES[path].params for option in parameter.opts if option.startswith("--")]
    assert [option for option in options if option not in section] == []


def ackwise(*arguments: str, **environment: str) -> str:
    command = [sys.executable, "-m", "ackwise.plugin.cli", *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout


@each("path", COMMANDS)
def test_help_fits_into_80_columns_and_nothing_is_cut(path: str) -> None:
    done = click.testing.CliRunner(env={"COLUMNS": "80"}).invoke(ROOT, [*path.split()[1:], "--help"], prog_name="ackwise")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    assert "<bool>" not in done.stdout, "a flag looks as if it took a value"


def test_ackwise_alone_prints_its_help_and_ends_with_0() -> None:
    bare, asked = (CliRunner().invoke(new_app(), words, prog_name="ackwise") for words in ([], ["--help"]))
    assert (bare.exit_code, bare.stdout, bare.stderr) == (0, asked.stdout, "")
    assert "Usage: " in bare.stdout


def complete_bash(line: str) -> set[str]:
    words = line.split(" ")
    return set(ackwise(_ACKWISE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)).split())


@pytest.mark.slow  # starts the command twice, as Bash does
def test_bash_completes_commands_and_options() -> None:
    assert complete_bash("ackwise ") == {path.split()[1] for path in LEAVES}
    assert {"--kafka", "--brokers", "--json"} <= complete_bash("ackwise demo --")


@pytest.mark.slow  # starts the command in a process, as Zsh does
def test_zsh_completes_commands_with_what_they_do() -> None:
    said = ackwise(_ACKWISE_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="ackwise ")
    assert '"run":"Run the handlers of an app' in said
    assert said.count('":"') == len({path.split()[1] for path in LEAVES})


@pytest.mark.slow  # starts Bash, and the command from it
def test_the_script_for_bash_calls_the_command_that_is_installed(tmp_path: Path) -> None:
    """As a shell does it: source what `--show-completion` prints, and ask it for the words after the cursor."""
    bin_folder = Path(sys.executable).parent
    if not (bin_folder / "ackwise").exists() or shutil.which("bash") is None:
        pytest.skip("needs bash and the installed command")
    script = """
        ackwise --show-completion > completion.sh && . ./completion.sh
        COMP_WORDS=(ackwise topics c) COMP_CWORD=2
        _ackwise_completion ackwise
        echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["check", "create"], "")
