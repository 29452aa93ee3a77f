"""Counts what the repository consists of, for `make size`.

    python .ci/size.py [--json]

Lines are all lines of Python files, with comments and empty ones. It imports the standard library only; what has to be imported or run to
be counted is a process of its own, so it needs the environment of `make test`.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

CHECKOUT: Final = Path(__file__).resolve().parent.parent
FOLDERS: Final = ("middleware", "plugin", "stores", "spark", "testing")

#: Prints the public names, the settings and the commands, as three numbers.
_INTERFACE: Final = """
import ackwise, typer
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.settings.entries import ENTRIES

def commands(command):
    inner = getattr(command, "commands", None)
    return 1 if inner is None else sum(map(commands, inner.values()))

print(len(ackwise.__all__), len(ENTRIES), commands(typer.main.get_command(new_app())))
"""


class Folder(NamedTuple):
    """The Python files of a folder, counted."""

    lines: int
    files: int
    classes: int
    longest: tuple[int, str]  #: lines and name of the longest file


def main(arguments: Sequence[str]) -> None:
    """Count, and print tables or one JSON object."""
    parser = argparse.ArgumentParser(prog="make size", description="Counts what the repository consists of.")
    parser.add_argument("--json", action="store_true", help="one JSON object, and no tables")
    as_json = parser.parse_args(arguments).json
    library = {name: folder([*(CHECKOUT / name).rglob("*.py")]) for name in FOLDERS}
    library["total"] = folder([*CHECKOUT.glob("*.py"), *(file for name in FOLDERS for file in (CHECKOUT / name).rglob("*.py"))])
    tests = folder([*(CHECKOUT / "tests").rglob("*.py")])
    names, settings, commands = (int(number) for number in output("-c", _INTERFACE).split())
    counts: dict[str, int] = {
        "test lines": tests.lines,
        "test files": tests.files,
        "test items": items(),
        "public names": names,
        "settings": settings,
        "commands": commands,
    }
    path: dict[str, int] = json.loads(output("-m", "benchmarks.path", "--json"))
    longest = library["total"].longest
    if as_json:
        found = {
            "library": {
                name: {"lines": counted.lines, "files": counted.files, "classes": counted.classes} for name, counted in library.items()
            },
            **{name.replace(" ", "_"): number for name, number in counts.items()},
            "longest_file": {"name": longest[1], "lines": longest[0]},
            "path": path,
        }
        say(json.dumps(found, indent=2))
        return
    say(f"{'library':<14}{'lines':>10}{'files':>10}{'classes':>10}")
    for name, counted in library.items():
        say(f"{name:<14}{counted.lines:>10,}{counted.files:>10,}{counted.classes:>10,}")
    say("")
    for name, number in counts.items():
        say(f"{name:<14}{number:>10,}")
    say(f"{'longest file':<14}{longest[0]:>10,}  {longest[1]}")
    say("")
    say(f"a healthy batch of {path.pop('messages')} messages")
    for name, number in path.items():
        say(f"{name:<14}{number:>10,}")


def folder(files: Sequence[Path]) -> Folder:
    """Count the lines and classes of Python files."""
    texts = {file.relative_to(CHECKOUT).as_posix(): file.read_text() for file in files}
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    return Folder(
        lines=sum(lines.values()),
        files=len(lines),
        classes=sum(sum(1 for _ in classes(text)) for text in texts.values()),
        longest=max((number, name) for name, number in lines.items()),
    )


def classes(text: str) -> Iterator[str]:
    """The names of all classes in a module, nested ones too."""
    return (node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))


def items() -> int:
    """The number of tests that pytest collects."""
    said = output("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    found = re.search(r"^(\d+) tests collected", said, re.MULTILINE)
    if found is None:
        sys.exit(f"size: pytest collected no tests; it printed {said[-300:]!r}")
    return int(found.group(1))


def output(*arguments: str) -> str:
    """What Python prints with these arguments in the checkout. Ends with a sentence if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / ".dev")}
    done = subprocess.run([sys.executable, *arguments], cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"size: {' '.join(arguments[:2])} ended with code {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def say(line: str) -> None:
    print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
