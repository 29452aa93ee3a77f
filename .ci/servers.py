"""Installs what the tests start servers from, where it may: as root on Debian or one of its kin.

    python3 .ci/servers.py

Only packages of programs, none that brings a service: nothing is started, and no server of the machine is touched.
Elsewhere it says what is missing and leaves; tests that need it then say so and are skipped, and in CI they fail.
"""

import os
import subprocess
import sys
from pathlib import Path
from shutil import which

POSTGRES_BIN = "/usr/lib/postgresql"

#: The Debian package that brings a program, and what the program is for.
PROGRAMS = {
    "redis-check-rdb": ("redis-tools", "Redis"),  # this is the server, under its other name
    "redis-cli": ("redis-tools", "Redis Cluster"),
    "initdb": ("postgresql", "PostgreSQL"),
    "mariadbd": ("mariadb-server-core", "MariaDB"),
    "my_print_defaults": ("mariadb-client-core", "MariaDB"),
    "openssl": ("openssl", "certificates of the tests"),
    "setpriv": ("util-linux", "running servers that refuse to be root"),
}


def main() -> None:
    """Install what is missing; leave with 0 in any case, since the tests say what they lack."""
    packages = sorted({package for program, (package, _) in PROGRAMS.items() if not is_there(program)})
    if not packages:
        return
    if os.geteuid() or not which("apt-get"):
        missing = ", ".join(sorted({what for program, (_, what) in PROGRAMS.items() if not is_there(program)}))
        say(f"not installed and not mine to install: {missing}; as root: apt-get install {' '.join(packages)}")
        return
    say(f"installing {', '.join(packages)} for the tests")
    if "postgresql" in packages:
        keep_postgresql_from_making_a_cluster()
    install(packages)


def is_there(program: str) -> bool:
    """Is the program on the PATH, or among PostgreSQL's, which Debian keeps off it?"""
    sbin = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return bool(which(program, path=sbin) or list(Path(POSTGRES_BIN).glob(f"*/bin/{program}")))


def keep_postgresql_from_making_a_cluster() -> None:
    config = Path("/etc/postgresql-common/createcluster.conf")
    if not config.exists():
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text("create_main_cluster = false\n", "utf-8")


def install(packages: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}

    def apt_get(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["apt-get", "-qq", *arguments], env=environment, capture_output=True, text=True, check=False)

    done = apt_get("-y", "--no-install-recommends", "install", *packages)
    if done.returncode:  # a machine where nobody has run `apt-get update` has no lists, or old ones
        apt_get("update")
        done = apt_get("-y", "--no-install-recommends", "install", *packages)
    if done.returncode:
        say(f"apt-get could not install {', '.join(packages)}: {done.stderr.strip()[-300:]}")


def say(sentence: str) -> None:
    print(f"ackwise: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
