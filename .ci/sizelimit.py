"""Fails where the repository grew without a reason: compares `make size` with `.ci/size.json`.

python .ci/sizelimit.py           # a figure above the file's fails; so does a commit that raised the file without saying why
python .ci/sizelimit.py --write   # write the figures of now

A commit that raises a figure has a line in its body that starts with `size:` and says why.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

CHECKOUT: Final = Path(__file__).resolve().parent.parent
KEPT: Final = CHECKOUT / ".ci" / "size.json"

#: Part of a figure by which it may differ between machines: what a batch passes through depends on Python's version.
NOISE: Final = {"functions of a batch": 0.03, "classes of a batch": 0.03, "calls of a batch": 0.03}

Figures = Mapping[str, int]


class Version(NamedTuple):
    """A commit that changed the file of figures."""

    commit: str
    body: str
    figures: Figures


def figures_of(size: Mapping[str, Any]) -> dict[str, int]:
    """Return the figures that may not grow, of the JSON of `make size`."""
    total, path = size["library"]["total"], size["path"]
    return {
        "library lines": total["lines"],
        "library files": total["files"],
        "library classes": total["classes"],
        "test lines": size["test_lines"],
        "public names": size["public_names"],
        "settings": size["settings"],
        "commands": size["commands"],
        **{f"{name} of a batch": path[name] for name in ("functions", "classes", "calls")},
    }


def grown(before: Figures, after: Figures, noise: Mapping[str, float] = NOISE) -> Iterator[str]:
    """Yield a sentence for each figure that is larger in `after`."""
    for name, number in after.items():
        if name in before and number > before[name] * (1 + noise.get(name, 0.0)):
            yield f"{name} grew from {before[name]:,} to {number:,}"


def unexplained(versions: Sequence[Version]) -> Iterator[str]:
    """Yield a sentence for each commit of `versions`, oldest first, that raised a figure without a line `size: …` in its body."""
    for before, after in pairwise(versions):
        if not any(line.startswith("size:") for line in after.body.splitlines()):
            for sentence in grown(before.figures, after.figures, {}):
                yield f"commit {after.commit[:12]}: {sentence}, and no line of its body starts with 'size:'"


def history() -> list[Version]:
    """Return the versions of the file of figures, oldest first; none outside of a repository."""
    versions = []
    for commit in git("log", "--reverse", "--format=%H", "--", str(KEPT)).split():
        try:
            figures = json.loads(git("show", f"{commit}:.ci/size.json"))
        except ValueError:
            continue  # the commit that removed it, or a history that is cut here
        versions.append(Version(commit, git("log", "-1", "--format=%b", commit), figures))
    return versions


def git(*arguments: str) -> str:
    """Return what git prints, or nothing outside of a repository."""
    return subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False).stdout


def main() -> int:
    """Compare, or write with `--write`; return the exit code."""
    size = subprocess.run([sys.executable, CHECKOUT / ".ci" / "size.py", "--json"], capture_output=True, text=True, check=True).stdout
    figures = figures_of(json.loads(size))
    if "--write" in sys.argv[1:]:
        KEPT.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
        return 0
    complaints = [
        f"{sentence}; make it smaller, or run python .ci/sizelimit.py --write and say why in the commit's body: size: …"
        for sentence in grown(json.loads(KEPT.read_text("utf-8")), figures)
    ] + [*unexplained(history())]
    for complaint in complaints:
        print(f"size: {complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
