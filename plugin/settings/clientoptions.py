"""Options of aiokafka's clients: which of them users set, for which client, and why not the others.

One table says it all: the check, the sentence that refuses, and the page `docs/how-to/tuning.md`.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ackwise.middleware.errors import ConfigurationError

#: The settings that options are given in, and whose options they are.
EVERY_CLIENT, OWN_CONSUMER, OWN_PRODUCER = "client_options", "consumer_options", "producer_options"

_OF: Final = {
    EVERY_CLIENT: "every Kafka client of a worker",
    OWN_CONSUMER: "the consumer of the sources and of the retry topic",
    OWN_PRODUCER: "the producers of copies, of dead letters and of what handlers publish",
}

#: Codecs that aiokafka has, and what each needs to be installed.
_CODECS: Final = ("gzip", "snappy", "lz4", "zstd")

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER")


@dataclass(frozen=True, slots=True)
class ClientOption:
    """One option. It is set in `setting`; `None`: not at all, and `why` says what to do instead."""

    name: str
    setting: str | None
    why: str
    """What it does, or why it is not for users."""
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    default: str = "–"
    is_object: bool = False
    """It is no text and no number, so that no file and no variable can hold it."""
    check: Callable[[str], None] | None = None
    """Raises `ConfigurationError` for a text that can't be used."""

    def read(self, value: object) -> object:
        """`value` as the client takes it: the text of a number, as variables have it, becomes one. Raises `ConfigurationError`."""
        if self.least is None and self.most is None:
            return self._chosen(value)
        if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not self._least <= value <= self._most:
            raise ConfigurationError(f"{self.setting} has {self.name}={value!r}; it is a whole number {self.range}")
        return value

    @property
    def range(self) -> str:
        """The numbers that it may be, in words."""
        return f"from {self._least} to {self._most}"

    @property
    def _least(self) -> int:
        return 0 if self.least is None else self.least

    @property
    def _most(self) -> int:
        return 2**31 - 1 if self.most is None else self.most

    def _chosen(self, value: object) -> object:
        if self.choices and value not in self.choices:
            raise ConfigurationError(f"{self.setting} has {self.name}={value!r}; it is one of {', '.join(self.choices)}")
        if isinstance(value, str | os.PathLike) is self.is_object:
            wanted = "an object, and given in the code" if self.is_object else "a text"
            raise ConfigurationError(f"{self.setting} has {self.name} as {type(value).__name__}; it is {wanted}")
        if self.check is not None:
            self.check(str(value))
        return value


def _check_codec(name: str) -> None:
    from aiokafka import codec  # settings without options need no Kafka client

    if not getattr(codec, f"has_{name}")():
        raise ConfigurationError(f"producer_options has compression_type={name!r}, which is not installed; pip install aiokafka[{name}]")


def _every(name: str, why: str, **more: object) -> ClientOption:
    return ClientOption(name, EVERY_CLIENT, why, **more)  # type: ignore[arg-type]  # the fields of a row


def _consumer(name: str, why: str, **more: object) -> ClientOption:
    return ClientOption(name, OWN_CONSUMER, why, **more)  # type: ignore[arg-type]  # as above


def _producer(name: str, why: str, **more: object) -> ClientOption:
    return ClientOption(name, OWN_PRODUCER, why, **more)  # type: ignore[arg-type]  # as above


def _refused(name: str, why: str) -> ClientOption:
    return ClientOption(name, None, why)


_ROWS: Final = (
    _every("security_protocol", "how connections are protected", choices=_PROTOCOLS, default="PLAINTEXT"),
    _every("ssl_cafile", "file (PEM) of the authorities that brokers are trusted by", default="the system's"),
    _every("ssl_certfile", "file (PEM) of the client's own certificate"),
    _every("ssl_keyfile", "file (PEM) of its key", default="in ssl_certfile"),
    _every("ssl_password", "password of that key"),
    _every("ssl_context", "an `ssl.SSLContext`, given in the code in place of the four above", is_object=True),
    _every("sasl_mechanism", "how the client proves who it is", choices=_MECHANISMS, default="PLAIN"),
    _every("sasl_plain_username", "user, for PLAIN and SCRAM"),
    _every("sasl_plain_password", "its password"),
    _every("sasl_plain_password_file", "file that has the password, in place of it"),
    _every("sasl_oauth_token_provider", "for OAUTHBEARER, an `AbstractTokenProvider` of aiokafka, given in the code", is_object=True),
    _every("sasl_kerberos_service_name", "for GSSAPI", default="kafka"),
    _every("sasl_kerberos_domain_name", "for GSSAPI"),
    _every("metadata_max_age_ms", "time until topics and leaders are asked for again", least=100, default="300000"),
    _every("connections_max_idle_ms", "time until an idle connection is closed", least=1000, default="540000"),
    _every("retry_backoff_ms", "wait before a client repeats a request", least=10, most=60_000, default="100"),
    _consumer("fetch_max_bytes", "bytes of one fetch", least=1024, default="52428800"),
    _consumer("max_partition_fetch_bytes", "bytes of one partition in a fetch", least=1024, default="1048576"),
    _consumer("fetch_min_bytes", "bytes that a fetch waits for, `fetch_max_wait_ms` at most", least=1, default="1"),
    _consumer(
        "fetch_max_wait_ms",
        "time that a fetch waits while handlers are at work; one of an idle worker waits 500 to 5000 ms",
        least=1,
        most=30_000,
        default="50",
    ),
    _consumer(
        "max_poll_interval_ms",
        "time after which a worker that hangs as a whole leaves the group. A slow handler never counts: the worker polls beside it",
        least=60_000,
        default="300000",
    ),
    _consumer(
        "heartbeat_interval_ms",
        "time between heartbeats, by which a worker also learns of a rebalance; at most a third of `session_timeout`",
        least=100,
        most=20_000,
        default="3000, or a fifth of `session_timeout`",
    ),
    _consumer("client_rack", "where the worker is, so that it fetches from a replica nearby"),
    _producer("compression_type", "compression of what is sent", choices=_CODECS, check=_check_codec, default="none"),
    _producer("linger_ms", "time that a batch is waited for; each settled batch takes so much longer", least=0, most=1000, default="0"),
    _producer("max_batch_size", "bytes of a batch to one partition", least=1024, default="16384"),
    _refused("acks", "copies are acknowledged by all in-sync replicas"),
    _refused("api_version", "the versions are agreed on with each broker"),
    _refused("auto_commit_interval_ms", "offsets are committed when their messages are settled; set commit_interval"),
    _refused("auto_offset_reset", "a lost position would skip messages silently; set start"),
    _refused("bootstrap_servers", "set brokers"),
    _refused("check_crcs", "a damaged record must not reach a handler"),
    _refused("client_id", "set client_id beside client_options"),
    _refused("consumer_timeout_ms", "Ackwise polls by itself"),
    _refused("enable_auto_commit", "it would commit messages that were merely fetched, and lose them"),
    _refused("enable_idempotence", "a copy that comes twice is recognised by its attempt"),
    _refused("exclude_internal_topics", "topics of Kafka's own are not consumed"),
    _refused("group_id", "it is the first argument of App"),
    _refused("group_instance_id", "set group_instance_id beside client_options"),
    _refused("isolation_level", "what an aborted transaction wrote must not be consumed"),
    _refused("key_deserializer", "one that raises blocks its partition forever; message.key is bytes"),
    _refused("key_serializer", "copies are the bytes of their origin"),
    _refused("loop", "the clients run in the event loop of the worker"),
    _refused("max_poll_records", "a handler gets as many as its batch holds; set max_batch of the agent"),
    _refused("max_request_size", "the brokers decide how large a copy may be"),
    _refused("partition_assignment_strategy", "all members of a group must have the same one, also during an upgrade"),
    _refused("partitioner", "a copy goes to the partition of its origin; name one where you publish"),
    _refused("rebalance_timeout_ms", "it is 60 s, twice the largest revoke_timeout"),
    _refused("request_timeout_ms", "each call has its own time limit"),
    _refused("session_timeout_ms", "set session_timeout"),
    _refused("transaction_timeout_ms", "copies are not written in transactions"),
    _refused("transactional_id", "copies are not written in transactions"),
    _refused("value_deserializer", "one that raises blocks its partition forever; annotate the handler with the type of its values"),
    _refused("value_serializer", "copies are the bytes of their origin"),
)

#: By name.
OPTIONS: Final[Mapping[str, ClientOption]] = {row.name: row for row in _ROWS}


def checked_options(setting: str, options: Mapping[str, object]) -> dict[str, object]:
    """`options`, which were given in `setting`, as the clients take them. Raises `ConfigurationError`; it repeats no password."""
    if not isinstance(options, Mapping):
        example = next(row.name for row in _ROWS if row.setting == setting)
        raise ConfigurationError(f"{setting} is a {type(options).__name__}; give a dict of options such as {example}")
    return {name: _row(setting, name).read(value) if value is not None else None for name, value in options.items()}


def _row(setting: str, name: str) -> ClientOption:
    """The row of an option that may be set there. Raises `ConfigurationError`."""
    known = [row.name for row in _ROWS if row.setting == setting]
    if (row := OPTIONS.get(name)) is None:
        near = difflib.get_close_matches(str(name), known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
        raise ConfigurationError(f"{setting} has {name!r}, which is no option of {_OF[setting]}; {advice}")
    if row.setting is None:
        raise ConfigurationError(f"{setting} has {name!r}, which is not for users to set: {row.why}")
    if row.setting != setting:
        raise ConfigurationError(f"{setting} has {name!r}, which is an option of {_OF[row.setting]}; set it in {row.setting}")
    return row


def tables() -> str:
    """The published tables, in Markdown: what is passed on, and what is refused."""
    lines = []
    for setting, whose in _OF.items():
        rows = [f"| `{row.name}` | {_values(row)} | {_default(row)} | {row.why} |" for row in _ROWS if row.setting == setting]
        lines += [f"### {setting}", "", f"For {whose}.", "", "| option | values | default | |", "|---|---|---|---|", *rows, ""]
    refused = [f"| `{row.name}` | {row.why} |" for row in _ROWS if row.setting is None]
    return "\n".join([*lines, "### Refused", "", "| option | because |", "|---|---|", *refused])


def _values(row: ClientOption) -> str:
    if row.choices:
        return ", ".join(f"`{choice}`" for choice in row.choices)
    if row.least is not None:
        return f"{row.least} to {row.most}" if row.most is not None else f"{row.least} and more"
    return "object" if row.is_object else "text"


def _default(row: ClientOption) -> str:
    return f"`{row.default}`" if re.fullmatch(r"[A-Za-z0-9]+", row.default) else row.default


_BEGIN, _END = "<!-- options: written by python -m ackwise.plugin.settings.clientoptions -->", "<!-- end of options -->"


def _rewrite(page: Path) -> None:
    before, _, rest = page.read_text().partition(_BEGIN)
    page.write_text(f"{before}{_BEGIN}\n\n{tables()}\n\n{_END}{rest.partition(_END)[2]}")


if __name__ == "__main__":
    _rewrite(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/how-to/tuning.md"))
