"""`ackwise dlq …`: lists dead letters by cause, shows one, redrives them, and marks them as dropped."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from rich.text import Text

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.disposition import Reason
from ackwise.plugin.cli import deadletteroptions
from ackwise.plugin.cli.command import wait_for, with_options
from ackwise.plugin.cli.console import new_table, shown, text, to_stderr, to_stdout
from ackwise.plugin.cli.plan import Sending, Yes, end, progress, stop_by_signal, table_of

if TYPE_CHECKING:
    from ackwise.plugin.operate.deadletter import Letter, Selection
    from ackwise.plugin.operate.deadlettertopics import Place
    from ackwise.plugin.operate.resend import Resent


HELP: Final = "Dead letters: list them by cause, show one, redrive them, or drop them."


@with_options
def show_list(
    whose: deadletteroptions.Whose,
    *,
    letters: Annotated[bool, typer.Option("--letters", help="List single dead letters, newest first, instead of causes.")] = False,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="With --letters or --json: maximum number of dead letters.")
    ] = 100,
    meant: deadletteroptions.Letters,
    where: deadletteroptions.Where,
    as_json: deadletteroptions.AsJson = False,
) -> None:
    """List dead letters by cause (reason, exception, its place, handler, topic) with counts, ages and the newest dead letter.

    Open dead letters need attention; redriven and dropped ones are counted separately. The whole topic is read, without a consumer
    group; values are not shown.

    Exit code 0: no dead letter is open. 1: some are open. 2: there is no such topic, or the brokers do not answer.
    """
    selection, place = meant.selection(again=True), where.place(whose)
    from ackwise.plugin.operate.deadlettertopics import list_letters

    with progress("letters") as (on_total, on_progress):
        looking = list_letters(place, selection, limit if letters or as_json else 0, on_total=on_total, on_progress=on_progress)
        found, unreadable = wait_for(looking)
    opened, expired, foreign = found.count("open"), found.count("open", Reason.EXPIRED), found.count("foreign")
    from ackwise.plugin.operate.deadlettertables import cause_facts, causes_table, letter_facts, letters_table, remarks

    if as_json:
        each = [letter_facts(*letter) for letter in found.newest]
        typer.echo(
            json.dumps(
                {
                    "topic": place.names.dead_letter,
                    "open": opened,
                    "expired": expired,
                    "foreign": foreign,
                    "causes": cause_facts(found),
                    "letters": each,
                }
            )
        )
    elif not found.kinds:
        to_stdout().print("no dead letters")
    else:
        to_stdout().print(shown(letters_table(found) if letters else causes_table(found, time.time() * 1000)))
    for sentence in remarks(found, unreadable, place):
        to_stderr().print(sentence, soft_wrap=True)
    raise typer.Exit(int(bool(opened)))


@with_options
def show(
    whose: deadletteroptions.Whose,
    letter: Annotated[str, typer.Argument(metavar="LETTER", help="PARTITION/OFFSET of the dead letter, such as [bold]0/17[/bold].")],
    *,
    traceback: Annotated[bool, typer.Option("--full-traceback", help="Include the traceback.")] = False,
    where: deadletteroptions.Where,
    as_json: deadletteroptions.AsJson = False,
) -> None:
    """Show one dead letter: its cause, headers and value, and the command that prints its history.

    With an app the value is shown as its handler would get it; otherwise as text or hex digits. Long values are cut.

    Exit code 0: shown. 2: there is no such dead letter, or the brokers do not answer.
    """
    partition, offset = deadletteroptions.id_of(letter)
    place = where.place(whose)
    from ackwise.plugin.operate.deadlettertopics import look_up

    found = wait_for(look_up(place, partition, offset))
    if found is None:
        raise ConfigurationError(f"there is no dead letter {letter} in {place.names.dead_letter!r}; ackwise dlq list --letters shows them")
    from ackwise.plugin.operate.deadlettertables import contents, letter_facts

    facts = letter_facts(*found) | contents(place, found[0], with_traceback=traceback or as_json)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    table = new_table("", "")
    for name, given in facts.items():
        if given not in (None, "", [], {}):
            words = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            lines = words.splitlines() if name == "traceback" else [words]
            table.add_row(name.replace("_", " "), Text("\n").join(text(line, 10_000) for line in lines))
    to_stdout().print(table)


@with_options
def redrive(
    target: deadletteroptions.WhoseApp,
    *,
    meant: deadletteroptions.Letters,
    again: deadletteroptions.Again = False,
    expired: deadletteroptions.Expired = False,
    sending: Sending,
    as_json: deadletteroptions.AsJson = False,
) -> None:
    """Send dead letters again, after their cause is fixed. Changes nothing without --yes.

    They go to the retry topic of their group. A copy has the key, value and headers of the dead letter and starts at attempt 1. Its
    replay id lets it run although the store knows the message as dead. Sent dead letters are noted in GROUP.dlq.state, which is
    created if missing. They are noted in portions: a killed call continues where it stopped. Ctrl-C finishes the current portion.

    Messages that expired before they ran are left without --expired. Redriven messages do not expire again.

    Exit code 0: nothing is left. 1: dead letters are left, for the reasons shown. 2: it failed; one sentence gives the reason. 130:
    interrupted.
    """
    result = wait_for(_redrive(deadletteroptions.app_place(target), meant.selection(again=again), None, sending, expired=expired))
    _end(result, sending.execute, as_json)


@with_options
def export(
    whose: deadletteroptions.Whose,
    file: deadletteroptions.NewFile,
    *,
    meant: deadletteroptions.Letters,
    again: deadletteroptions.Again = False,
    where: deadletteroptions.Where,
    as_json: deadletteroptions.AsJson = False,
) -> None:
    """Write open dead letters to a new file: one line of JSON each; key, value and header values in base64. Only the owner of the file
    may read it.

    Exit code 0: done. 2: it failed and wrote no file; one sentence gives the reason.
    """
    from ackwise.plugin.operate.deadlettertopics import export as write

    with progress("letters") as (on_total, on_progress):
        number = wait_for(write(where.place(whose), meant.selection(again=again), file, on_total=on_total, on_progress=on_progress))
    if as_json:
        typer.echo(json.dumps({"letters": number}))
    else:
        to_stdout().print(f"{number:,} dead letters written")


@with_options
def import_file(
    target: deadletteroptions.WhoseApp,
    file: deadletteroptions.OldFile,
    *,
    again: deadletteroptions.Again = False,
    expired: deadletteroptions.Expired = False,
    sending: Sending,
    as_json: deadletteroptions.AsJson = False,
) -> None:
    """Redrive the dead letters of a file that export wrote. Changes nothing without --yes.

    Lines of the file may be removed first. The rules of redrive apply: it refuses the same dead letters, and skips those that were
    redriven or dropped before.

    Exit code 0: nothing is left. 1: dead letters are left, for the reasons shown. 2: it failed; one sentence gives the reason. 130:
    interrupted.
    """
    from functools import partial

    from ackwise.plugin.operate.deadletterfile import check_letters, letters_of

    place = deadletteroptions.app_place(target)
    check_letters(file, place.group)
    source, selection = partial(letters_of, file, place.group), deadletteroptions.Letters().selection(again=again)
    _end(wait_for(_redrive(place, selection, source, sending, expired=expired)), sending.execute, as_json)


@with_options
def drop(
    whose: deadletteroptions.Whose,
    *,
    meant: deadletteroptions.Letters,
    again: deadletteroptions.Again = False,
    execute: Yes = False,
    where: deadletteroptions.Where,
    as_json: deadletteroptions.AsJson = False,
) -> None:
    """Mark dead letters as dropped, so that they are no longer open. Changes nothing without --yes.

    Nothing is deleted; without --yes they are counted. The mark is in GROUP.dlq.state, which is created if missing. A dropped dead
    letter can still be redriven with --again.

    Exit code 0: done. 2: it failed; one sentence gives the reason. 130: interrupted.
    """
    number, stopped = wait_for(_drop(where.place(whose), meant.selection(again=again), execute=execute))
    if as_json:
        typer.echo(json.dumps({"executed": execute, "stopped": stopped, "letters": number}))
    elif execute:
        to_stdout().print(f"{number:,} dead letters dropped" + ("; stopped, call it again to continue" if stopped else ""))
    else:
        to_stdout().print(f"{number:,} dead letters would be dropped; nothing was changed, add --yes to do it")
    raise typer.Exit(128 + signal.SIGINT if stopped else 0)


def _end(outcome: Resent, executed: bool, as_json: bool) -> NoReturn:
    """Print the fates of dead letters and exit with the matching code."""
    fates = table_of(outcome, "handler", "letters")
    facts = {"recorded": outcome.recorded, "letters": fates.records}
    end(outcome, fates, facts, "no dead letter is selected", executed=executed, as_json=as_json)


async def _redrive(
    place: Place, selection: Selection, source: Callable[[], AsyncIterator[Letter]] | None, sending: Sending, *, expired: bool
) -> Resent:
    from ackwise.plugin.operate.resenddeadletters import redrive as send_again

    with progress("letters") as (on_total, on_progress):
        return await send_again(
            place, selection, execute=sending.execute, expired=expired, source=source, rate=sending.rate, stop=stop_by_signal(),
            on_total=on_total, on_progress=on_progress,
        )  # fmt: skip


async def _drop(place: Place, selection: Selection, *, execute: bool) -> tuple[int, bool]:
    from ackwise.plugin.operate.resenddeadletters import drop as mark

    return await mark(place, selection, execute=execute, stop=stop_by_signal())
