"""Options that several commands take together stand in a command's help where their dataclass stands in its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from ackwise.plugin.cli.command import with_options


@dataclass(frozen=True)
class Place:
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None
    port: Annotated[int, typer.Option(help="Where it listens.")] = 9092
    is_secure: Annotated[bool, typer.Option("--secure")] = False


def test_the_fields_of_a_dataclass_are_options_and_reach_the_command_as_one_value() -> None:
    found: list[tuple[str, Place, bool]] = []
    app = typer.Typer()

    @app.command()
    @with_options
    def look(whose: str, *, place: Place, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
        """Look at it."""
        found.append((whose, place, as_json))

    runner = CliRunner()
    assert runner.invoke(app, ["billing"]).exit_code == 0
    assert runner.invoke(app, ["billing", "a", "b", "--port", "1", "--secure", "--json"]).exit_code == 0
    assert found == [("billing", Place(), False), ("billing", Place(["a", "b"], 1, True), True)]
    said = runner.invoke(app, ["--help"]).output
    assert said.index("Look at it.") < said.index("--port") < said.index("--secure") < said.index("--json")
