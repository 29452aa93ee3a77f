"""`Watch`: a worker serves its health, its metrics and its state over HTTP, for those who watch it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from ackwise.middleware.errors import ConfigurationError

__all__ = ["PORT", "Watch"]

#: The port that OpenTelemetry's exporters for Prometheus use unless told otherwise.
PORT: Final = 9464


@dataclass(frozen=True)
class Watch:
    """Serve this worker's health, metrics and state over HTTP: `/live`, `/ready`, `/metrics` and `/ackwise/`.

    Bound to this machine alone unless `host` says otherwise: the pages have no login. They name topics, agents and settings, and have
    no key, payload or password. `port` 0 takes any free one, which the log names. Needs `ackwise[watch]`. Raises `ConfigurationError`
    for a port or a host that can't be one; a port that is in use is refused at the start.
    """

    port: Annotated[int, "port of the pages for those who watch the worker; turns Watch on"] = PORT
    host: Annotated[str, "address that the pages are served on; `0.0.0.0` is every address of the machine"] = "127.0.0.1"

    def __post_init__(self) -> None:
        if not isinstance(self.port, int) or isinstance(self.port, bool) or not 0 <= self.port <= 65535:
            raise ConfigurationError(f"port of Watch is {self.port!r}; it must be a whole number from 0 to 65535")
        if not isinstance(self.host, str) or not self.host.strip() or not self.host.isprintable():
            raise ConfigurationError(f"host of Watch is {self.host!r}; give an address of this machine, such as '127.0.0.1'")
