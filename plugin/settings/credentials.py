"""Credentials from files: what the environment and a configuration file can say of TLS and passwords, made into what a client takes."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakSet

from ackwise.middleware.errors import ConfigurationError

__all__ = ["is_made_here", "with_credentials"]

T = TypeVar("T")

_FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password")
_PASSWORD_FILE: Final = "sasl_plain_password_file"

#: The contexts that nobody has given.
_MADE: Final[WeakSet[ssl.SSLContext]] = WeakSet()


def with_credentials(options: Mapping[str, object]) -> dict[str, object]:
    """`options` with an `ssl_context` and a password in place of the files that they are in.

    With TLS and neither a context nor files, the authorities of the system are trusted. Raises `ConfigurationError` that says which
    file can't be used, and nothing that is in it.
    """
    found = {name: value for name, value in options.items() if name not in _FILES and name != _PASSWORD_FILE}
    if (password := _password(options)) is not None:
        found["sasl_plain_password"] = password
    protocol = options.get("security_protocol")
    files = {name: str(options[name]) for name in _FILES if options.get(name) is not None}
    if files and protocol not in ("SSL", "SASL_SSL"):
        raise ConfigurationError(f"client_options has {next(iter(files))}, and no TLS; set security_protocol to SSL or SASL_SSL")
    if files and options.get("ssl_context") is not None:
        raise ConfigurationError(f"client_options has both ssl_context and {next(iter(files))}; load the file into the context")
    if protocol in ("SSL", "SASL_SSL") and options.get("ssl_context") is None:
        found["ssl_context"] = _context(files)
    if options.get("sasl_mechanism") == "OAUTHBEARER" and options.get("sasl_oauth_token_provider") is None:
        raise ConfigurationError(
            "client_options has sasl_mechanism='OAUTHBEARER', which needs sasl_oauth_token_provider, an AbstractTokenProvider of "
            "aiokafka that gets your tokens; give it in the code"
        )
    return found


def is_made_here(value: object) -> bool:
    """Whether `value` is a context that `with_credentials` made, of files or of what the system trusts."""
    return isinstance(value, ssl.SSLContext) and value in _MADE


def _password(options: Mapping[str, object]) -> str | None:
    if (path := options.get(_PASSWORD_FILE)) is None:
        return None
    if options.get("sasl_plain_password") is not None:
        raise ConfigurationError(f"client_options has both sasl_plain_password and {_PASSWORD_FILE}; keep one of them")
    return _used(_PASSWORD_FILE, path, lambda: Path(str(path)).read_text().rstrip("\r\n"))


def _context(files: Mapping[str, str]) -> ssl.SSLContext:
    authority, certificate, key = (files.get(name) for name in _FILES[:3])
    context = _used("ssl_cafile", authority, lambda: ssl.create_default_context(cafile=authority))
    _MADE.add(context)
    if certificate is None:
        if key is not None:
            raise ConfigurationError("client_options has ssl_keyfile, and no ssl_certfile; give the certificate that the key is of")
        return context
    password = files.get("ssl_password", "")  # without one OpenSSL would ask the terminal
    names, paths = ("ssl_certfile", certificate) if key is None else ("ssl_certfile or ssl_keyfile", f"{certificate}, {key}")
    _used(names, paths, lambda: context.load_cert_chain(certificate, key, password))
    return context


def _used(name: str, path: object, use: Callable[[], T]) -> T:
    """What `use` returns. Raises `ConfigurationError` for a file that it can't use."""
    try:
        return use()
    except FileNotFoundError:
        why = "there is no such file"
    except ssl.SSLError as error:
        why = f"it has no certificates or key in PEM that can be used ({error.reason or 'no PEM'}); correct it, or ssl_password"
    except OSError as error:
        why = f"it can't be read ({error.strerror})"
    except ValueError:
        why = "it is no text"
    raise ConfigurationError(f"client_options has {name}={str(path)!r}: {why}")
