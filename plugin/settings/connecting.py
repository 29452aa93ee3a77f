"""Connecting to brokers: addresses, credentials from files as options of a client, and redaction of passwords in texts."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from weakref import WeakSet

from ackwise.middleware.errors import ConfigurationError, Unavailable

_HIDDEN: Final = "***"

#: Options of the Kafka clients that say how a client proves itself, and not with what.
_SHOWN_OPTIONS: Final = frozenset(
    {
        "connections_max_idle_ms",
        "metadata_max_age_ms",
        "retry_backoff_ms",
        "sasl_mechanism",
        "sasl_plain_password_file",
        "security_protocol",
        "ssl_cafile",
        "ssl_certfile",
        "ssl_keyfile",
    }
)


def shown_url(text: str) -> str:
    """`text` with `***` for the user, the password and the query of a URL, or for all where they can't be told apart. A path stays."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    userinfo, at, rest = rest.rpartition("@")  # the last one: a password may hold anything, also what it should not
    if "=" in userinfo.replace("#", "?").partition("?")[2]:
        return f"{scheme}://{_HIDDEN}"  # an option with an @ in it, or a password that looks like one: where each ends is ambiguous
    address, query, _ = rest.replace("#", "?").partition("?")
    return f"{scheme}://{_HIDDEN + at if at else ''}{address}{query + _HIDDEN if query else ''}"


def shown_store(store: object) -> str:
    """What events and the log call a store: its URL as `shown_url` shows it, or the class of the object."""
    return shown_url(store) if isinstance(store, str) else type(store).__name__


def shown_options(options: Mapping[str, object]) -> dict[str, str]:
    """`client_options` with `***` for every value but those that are known to hold no secret; without those that are `None`."""
    return {name: str(value) if name in _SHOWN_OPTIONS else _HIDDEN for name, value in options.items() if value is not None}


#: Seconds until an address that does not answer is given up; a connection within a continent takes a tenth of one.
_TIMEOUT: Final = 5.0

_FORM: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^:\[\]\s/@]+):(?P<port>\d{1,5})")


class Address(NamedTuple):
    """Where one broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_brokers(brokers: object) -> list[Address]:
    """The addresses in a text such as `"kafka-1:9092, kafka-2:9092"`. Raises `ConfigurationError`, which repeats no credentials."""
    if isinstance(brokers, str) and ("://" in brokers or "@" in brokers):
        raise ConfigurationError("brokers is a URL; write it as 'host:port' without a scheme, and credentials into client_options")
    if not isinstance(brokers, str) or not all(address.strip() for address in brokers.split(",")):
        raise ConfigurationError(f"brokers is {brokers!r}; write it as 'host:port', several with commas between")
    return [_parse(address.strip()) for address in brokers.split(",")]


def _parse(text: str) -> Address:
    match = _FORM.fullmatch(text)
    if match is not None and 0 < int(match["port"]) < 2**16:
        return Address(match["host"].strip("[]"), int(match["port"]))
    if match is None and ":" not in text:
        raise ConfigurationError(f"broker {text!r} has no port; write it as 'host:port', such as '{text}:9092'")
    raise ConfigurationError(f"broker {text!r} is no address; write it as 'host:port', with a port from 1 to 65535")


async def reach(brokers: str, *, timeout: float = _TIMEOUT) -> dict[Address, str | None]:
    """For each address what keeps us from connecting to it; `None` where a broker listens. All are tried at once, for `timeout` seconds."""
    addresses = parse_brokers(brokers)
    found = await asyncio.gather(*(_obstacle(address, timeout) for address in addresses))
    return dict(zip(addresses, found, strict=True))


async def require_broker(brokers: str, *, timeout: float = _TIMEOUT) -> None:
    """Return once one of the addresses takes a connection. Raises `Unavailable`, which says of each why it does not.

    A Kafka client tries them one after the other and long, and tells its log the reasons.
    """
    found = await reach(brokers, timeout=timeout)
    reasons = [f"{address}: {why}" for address, why in found.items() if why is not None]
    if len(reasons) == len(found):
        raise Unavailable(f"no broker answers ({'; '.join(reasons)}); start Kafka there, or correct brokers")


async def _obstacle(address: Address, timeout: float) -> str | None:
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(*address)
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except socket.gaierror:
        return "no such host"
    except OSError as error:
        return _words(error)
    except UnicodeError:
        return "no host can be called that"
    writer.close()
    return None


def _words(error: OSError) -> str:
    """A host may have several addresses; asyncio then gives one error for all, whose numbers are in its text alone."""
    number = error.errno or next((int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))), None)
    return os.strerror(number).lower() if number else str(error)


T = TypeVar("T")

_FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password")
_PASSWORD_FILE: Final = "sasl_plain_password_file"

#: The contexts that were not given.
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
