"""Builds wheel and source distribution into dist/, and tries them as their users will: in empty environments, one Python after the other.

    python .ci/dist.py [PYTHON ...]

    agree (version, changelog, tag) → build → twine check → for each Python: wheel alone → wheel with extras: examples → source distribution

Without a PYTHON it tries each supported one that it finds. Nothing is published; what failed is said in a sentence, and the code is 1.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")

#: What the examples and their tests import. They come from the source distribution, and Ackwise from the wheel.
EXTRAS = "cdc,events,faust,mysql,postgres,redis,share,sqlalchemy"
FOR_EXAMPLES = ("aiosqlite", "fastapi", "httpx", "hypothesis", "pytest>=8.4", "pytest-asyncio>=1.2", "pytest-timeout>=2.3")


class Disagreement(Exception):
    """What stands in one place is not what stands in another."""


def main(pythons: Sequence[str]) -> None:
    """Build and try. Raises `Disagreement`, or ends with the sentence of what failed."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    require_agreement(project["version"], (CHECKOUT / "CHANGELOG.md").read_text(), tags_here())
    folder = CHECKOUT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", folder, CHECKOUT)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    if not (found := list(pythons or pythons_here())):
        raise Disagreement(f"there is no Python {', '.join(SUPPORTED)} here; name one: make dist PYTHONS=/path/to/python3.12")
    for python in found:
        with tempfile.TemporaryDirectory() as place:
            try_alone(python, wheel, Path(place))
            try_examples(python, wheel, source, Path(place))
            try_source(python, source, Path(place))
    say(f"{wheel.name} and {source.name} are in dist/")


def require_agreement(version: str, changelog: str, tags: Sequence[str]) -> None:
    """Raise `Disagreement` unless the changelog's first version is this one, or both are unreleased, and a tag here names it."""
    first = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    newest = first.group(1) if first else "nothing"
    expected = "Unreleased" if ".dev" in version else version
    if newest != expected:
        raise Disagreement(f"pyproject.toml has version {version}, and CHANGELOG.md starts with {newest}; it has to start with {expected}")
    for tag in tags:
        if tag.startswith("v") and tag != f"v{version}":
            raise Disagreement(f"pyproject.toml has version {version}, and this commit has the tag {tag}; it has to be v{version}")


def tags_here() -> list[str]:
    done = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return done.stdout.split()


def pythons_here() -> Iterator[str]:
    """A command for each supported Python that works here."""
    for version in SUPPORTED:
        command = shutil.which(f"python{version}")
        if command and subprocess.run([command, "-c", ""], capture_output=True, check=False).returncode == 0:
            yield command
        else:
            say(f"there is no Python {version} here, so it is not tried")


def try_alone(python: str, wheel: Path, place: Path) -> None:
    """The wheel without extras: it imports, its command runs, and this is its size."""
    installed = environment(python, place / "alone", str(wheel))
    run(installed, "-c", "import ackwise", folder=place)
    run(installed.with_name("ackwise"), "--help", folder=place, quiet=True)
    size = sum(file.lstat().st_size for file in (place / "alone").rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    say(f"{version_of(installed)}: the wheel alone works; with what it needs, and pip, it takes {size / 1e6:.0f} MB")


def try_examples(python: str, wheel: Path, source: Path, place: Path) -> None:
    """The examples of the source distribution run on the installed wheel, with a real Kafka."""
    installed = environment(python, place / "examples", f"{wheel}[{EXTRAS}]", *FOR_EXAMPLES)
    with tarfile.open(source) as archive:
        archive.extractall(place, filter="data")
    unpacked = place / source.name.removesuffix(".tar.gz")
    (unpacked / "__init__.py").unlink()  # what is imported as ackwise is the wheel
    run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_examples.py", folder=unpacked)
    say(f"{version_of(installed)}: the examples run on the wheel")


def try_source(python: str, source: Path, place: Path) -> None:
    """The source distribution builds where nothing is installed, and what was built imports."""
    installed = environment(python, place / "source", str(source))
    run(installed, "-c", "import ackwise", folder=place)
    say(f"{version_of(installed)}: the source distribution works")


def environment(python: str, folder: Path, *packages: str) -> Path:
    """A new environment with these packages; returns its Python."""
    run(python, "-m", "venv", folder)
    installed = folder / "bin" / "python"
    run(installed, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)
    return installed


def version_of(python: Path) -> str:
    done = subprocess.run([python, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run(*command: object, folder: Path | None = None, quiet: bool = False) -> None:
    """Run a command whose failure ends everything; what it printed says why."""
    words = [str(part) for part in command]
    done = subprocess.run(words, cwd=folder, stdout=subprocess.DEVNULL if quiet else None, check=False)
    if done.returncode:
        sys.exit(f"dist: {' '.join(words)} ended with code {done.returncode}; see above")


def say(sentence: str) -> None:
    print(f"dist: {sentence}", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Disagreement as error:
        sys.exit(f"dist: {error}")
