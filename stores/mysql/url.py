"""The URL of a MySQL claim store or inbox: address, user, TLS, our options, and the text that may be shown."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlencode

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.protocol.options import numbered, split

_FORM = "mysql://user:password@host:3306/database or mariadb://…, with every special character of the password as %XX"
_TEXTS = ("prefix", "sslrootcert", "sslcert", "sslkey")
_MODES = ("disable", "require", "verify-ca", "verify-full")


class Options(NamedTuple):
    """The parsed URL of a store."""

    prefix: str = "ackwise_"
    timeout: float = 5.0
    max_size: int = 2


class _Tls(NamedTuple):
    """The TLS options of the URL, with libpq's names and meaning."""

    sslmode: str | None = None
    sslrootcert: str | None = None
    sslcert: str | None = None
    sslkey: str | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address; its text has neither user nor password."""

    scheme: str
    host: str
    port: int
    database: str
    user: str = field(repr=False)
    password: str = field(repr=False)
    tls: _Tls

    @classmethod
    def of(cls, url: str) -> Address:
        """Return the address of `url`, whose only options may be for TLS. Raise `ConfigurationError`, which repeats no secret."""
        parts, pairs = _split(url, _Tls._fields)
        tls = _Tls(**dict(pairs))
        if tls.sslmode not in (None, *_MODES):
            raise ConfigurationError(f"sslmode is {tls.sslmode!r} in the URL of the MySQL store; it can be {', '.join(_MODES)}")
        if tls.sslkey and not tls.sslcert:
            raise ConfigurationError("the URL of the MySQL store has an sslkey and no sslcert; name both, or neither")
        if tls.sslmode == "disable" and any(tls[1:]):
            raise ConfigurationError("the URL of the MySQL store names files for TLS and says sslmode=disable; leave one of them out")
        database = unquote(parts.path[1:])
        for what, named in (("host", parts.hostname), ("database", database), ("user", parts.username)):
            if not named:
                raise ConfigurationError(f"the URL of the MySQL store names no {what}; write {_FORM}")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(parts.scheme, parts.hostname or "", parts.port or 3306, database, user, password, tls)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}/{self.database}"

    def connecting(self) -> dict[str, Any]:
        """Return the TLS arguments of asyncmy. Raise `ConfigurationError` for unreadable files."""
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password.encode(),
            "database": self.database,
            "ssl": self._context(),
            "autocommit": True,
        }

    def _context(self) -> ssl.SSLContext | None:
        mode, authority, certificate, key = self.tls
        mode = mode or ("verify-full" if any(self.tls) else "disable")
        if mode == "disable":
            return None
        try:
            context = ssl.create_default_context(cafile=authority)
            if certificate:
                context.load_cert_chain(certificate, key)
        except (OSError, ValueError):
            raise ConfigurationError(f"{self}: sslrootcert, sslcert or sslkey is no readable PEM file; correct the URL") from None
        context.check_hostname = mode == "verify-full"
        if mode == "require":
            context.verify_mode = ssl.CERT_NONE
        return context


def parse(url: str, defaults: Options | None = None) -> tuple[str, Options]:
    """The URL without the options that are the store's, and those, otherwise `defaults`. Raises `ConfigurationError`, without a secret."""
    parts, pairs = _split(url, (*Options._fields, *_Tls._fields))
    texts = {name: text for name, text in pairs if name in Options._fields}
    rest = urlencode([(name, text) for name, text in pairs if name not in Options._fields])
    return parts._replace(query=rest).geturl(), (defaults or Options())._replace(**numbered(texts, "MySQL"))


def _split(url: str, known: Sequence[str]) -> tuple[SplitResult, list[tuple[str, str]]]:
    return split(url, "MySQL", _FORM, ("mysql", "mariadb"), known, _TEXTS, one_host=True)
