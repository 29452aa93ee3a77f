"""Addresses of brokers: how they are written, and a check that somebody listens there."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from typing import Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError, Unavailable

__all__ = ["Address", "parse_brokers", "reach", "require_broker"]

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
    """For each address what keeps us from connecting to it; `None` where somebody listens. All are tried at once, for `timeout` seconds."""
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
