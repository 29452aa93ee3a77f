"""Certificates for servers of the tests, made by openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.databases.server import program


@dataclass(frozen=True, slots=True)
class Certificates:
    """A certificate for 127.0.0.1 with its key, the authority that signed it, and another one that did not."""

    authority: Path
    stranger: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make them in `folder`. Raises `Missing`."""
    made = Certificates(folder / "authority.pem", folder / "stranger.pem", folder / "server.pem", folder / "server.key")
    for authority in (made.authority, made.stranger):
        usage = ("-addext", "keyUsage = critical, keyCertSign, cRLSign")  # Python 3.13 verifies by the letter of RFC 5280
        _openssl("req", "-x509", *_new_key(authority.with_suffix(".key")), "-out", authority, "-subj", f"/CN={authority.stem}", *usage)
    request, names = folder / "request.pem", folder / "names.txt"
    names.write_text("subjectAltName = IP:127.0.0.1\nauthorityKeyIdentifier = keyid\nsubjectKeyIdentifier = hash\n", "utf-8")
    _openssl("req", *_new_key(made.key), "-out", request, "-subj", "/CN=server")
    signer = ("-CA", made.authority, "-CAkey", made.authority.with_suffix(".key"), "-CAcreateserial")
    _openssl("x509", "-req", "-in", request, *signer, "-extfile", names, "-out", made.certificate, "-days", "2")
    return made


def _new_key(path: Path) -> tuple[str | Path, ...]:
    return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run([program("openssl"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
