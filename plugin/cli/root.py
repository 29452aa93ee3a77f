"""Root of the command line: our commands, and those of other distributions, added by entry points."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from ackwise.middleware.errors import AckwiseError
from ackwise.plugin.cli import dlq, inplace, outbox
from ackwise.plugin.cli.cdc import cdc
from ackwise.plugin.cli.console import say_error
from ackwise.plugin.cli.demo import demo
from ackwise.plugin.cli.doctor import doctor
from ackwise.plugin.cli.explain import explain
from ackwise.plugin.cli.pause import cancel, pause, resume
from ackwise.plugin.cli.plan import HELP as PLAN_HELP
from ackwise.plugin.cli.plan import apply
from ackwise.plugin.cli.plan import show as show_plan
from ackwise.plugin.cli.relay import relay
from ackwise.plugin.cli.run import run
from ackwise.plugin.cli.status import status
from ackwise.plugin.cli.store import HELP as STORE_HELP
from ackwise.plugin.cli.store import check as check_store
from ackwise.plugin.cli.store import cleanup, init
from ackwise.plugin.cli.topics import HELP as TOPICS_HELP
from ackwise.plugin.cli.topics import check, create, skip
from ackwise.plugin.cli.topics import export as export_topics
from ackwise.plugin.registry import announced

#: Exit code for errors that the user can fix, such as a setting, a name or a missing broker; 1 is for verdicts.
_USER_MISTAKE: Final = 2

_HELP: Final = """RocketMQ's consumption guarantees for Kafka consumers: ack index, consume-later, dead letters, deduplication.

[bold]ackwise demo[/bold] kills a worker and checks its ledger, [bold]ackwise doctor[/bold] checks that a worker can run on
this machine, and [bold]ackwise run app:app[/bold] runs one.

Exit code 0: no problem. 1: a problem was found, or Ackwise itself failed. 2: an error that you can fix, in one sentence.
3: reconcile or why has too few events to decide. 128 + n: ended by signal n."""


class _Group(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))


class _Command(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    """Return the parameters without `<bool>`: `--json <bool>` in a help would look as if it took a value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class _Root(_Group):
    """The root: without a command it prints its help. An `AckwiseError` of any command becomes one sentence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except AckwiseError as error:
            if ctx.params.get("show_traceback"):
                traceback.print_exception(error)
            say_error(str(error))
            ctx.exit(_USER_MISTAKE)


def new_app() -> typer.Typer:
    """Return all commands. One that can't be loaded fails only when it is called."""
    app = typer.Typer(name="ackwise", cls=_Root, help=_flowing(_HELP), rich_markup_mode="rich", pretty_exceptions_enable=False)
    app.callback()(_root)
    _add(app, "run", run)
    _add(app, "relay", relay)
    _add(app, "cdc", cdc)
    _add(app, "cancel", cancel)
    _add(app, "demo", demo)
    _add(app, "explain", explain)
    _add(app, "doctor", doctor)
    _add(app, "status", status)
    _add(app, "pause", pause)
    _add(app, "resume", resume)
    of_inplace = typer.Typer(cls=_Group, help=inplace.HELP, no_args_is_help=True)
    _add(of_inplace, "list", inplace.show_list)
    _add(of_inplace, "retry", inplace.retry)
    _add(of_inplace, "bury", inplace.bury)
    app.add_typer(of_inplace, name="inplace")
    topics = typer.Typer(cls=_Group, help=TOPICS_HELP, no_args_is_help=True)
    _add(topics, "check", check)
    _add(topics, "create", create)
    _add(topics, "export", export_topics)
    _add(topics, "skip", skip)
    app.add_typer(topics, name="topics")
    store = typer.Typer(cls=_Group, help=STORE_HELP, no_args_is_help=True)
    _add(store, "init", init)
    _add(store, "check", check_store)
    _add(store, "cleanup", cleanup)
    app.add_typer(store, name="store")
    of_outbox = typer.Typer(cls=_Group, help=outbox.HELP, no_args_is_help=True)
    _add(of_outbox, "init", outbox.init)
    _add(of_outbox, "check", outbox.check)
    _add(of_outbox, "status", outbox.status)
    _add(of_outbox, "list", outbox.show_list)
    _add(of_outbox, "show", outbox.show)
    _add(of_outbox, "requeue", outbox.requeue)
    _add(of_outbox, "decide", outbox.decide)
    _add(of_outbox, "release", outbox.release)
    _add(of_outbox, "cleanup", outbox.cleanup)
    app.add_typer(of_outbox, name="outbox")
    letters = typer.Typer(cls=_Group, help=dlq.HELP, no_args_is_help=True)
    _add(letters, "list", dlq.show_list)
    _add(letters, "show", dlq.show)
    _add(letters, "redrive", dlq.redrive)
    _add(letters, "export", dlq.export)
    _add(letters, "import", dlq.import_file)
    _add(letters, "drop", dlq.drop)
    app.add_typer(letters, name="dlq")
    plan = typer.Typer(cls=_Group, help=PLAN_HELP, no_args_is_help=True)
    _add(plan, "show", show_plan)
    _add(plan, "apply", apply)
    app.add_typer(plan, name="plan")
    for point in sorted(announced("ackwise.commands"), key=lambda point: point.name):
        try:
            _add(app, point.name, point.load())
        except ImportError as error:
            _add(app, point.name, _unavailable(point.name, error))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ackwise {version('ackwise')}")
        raise typer.Exit


def _root(
    _: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")] = False,
    show_traceback: Annotated[bool, typer.Option("--traceback", help="Print the traceback of an error before its sentence.")] = False,
) -> None:
    """Options of every command."""


def _add(app: typer.Typer, name: str, function: Callable[..., None]) -> None:
    app.command(name, cls=_Command, help=_flowing(inspect.getdoc(function) or ""))(function)


def _flowing(text: str) -> str:
    """Join the lines of each paragraph: the terminal wraps them."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _unavailable(name: str, error: ImportError) -> Callable[[], None]:
    def command() -> None:
        """Not available: a package is missing. Exit code 2."""
        raise AckwiseError(f"ackwise {name} can't be loaded ({error}); install the package that it needs")

    return command
