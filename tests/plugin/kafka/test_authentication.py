"""Ways to prove who a client is, to a real Kafka with TLS, SASL and ACLs, and what is said where the broker does not let it in."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from confluent_kafka import Consumer
from confluent_kafka import admin as confluent
from tests.servers import PROPERTIES, kafka_or_skip
from tests.waiting import until

from ackwise import App, ConsumeLater, Later, Producer
from ackwise.middleware.errors import AckwiseError, ConfigurationError, PublishUnavailable
from ackwise.plugin.local import localkafka
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicadmin import read_topics
from ackwise.stores.sqlite.outbox import SQLiteOutbox

pytestmark = [pytest.mark.kafka, pytest.mark.slow]  # its own broker, with certificates

PASSWORD, WRONG = "right-s3cret", "wr0ng-s3cret"
USER = "us3r-worker"

#: Every listener by its name: how it is protected, and whose certificate it shows.
LISTENERS: Mapping[str, tuple[str, str | None]] = {
    "plain": ("PLAINTEXT", None),
    "password": ("SASL_PLAINTEXT", None),
    "both": ("SASL_SSL", "server"),
    "mutual": ("SSL", "server"),
    "tokens": ("SASL_SSL", "server"),
    "expired": ("SSL", "expired"),
    "elsewhere": ("SSL", "elsewhere"),
}

APP = """
import os, ssl
from ackwise import App, ConsumeLater

app = App(
    "refused",
    brokers=os.environ["BROKERS"],
    client_options={
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=os.environ["CA"]),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": os.environ["NAME"],
        "sasl_plain_password": os.environ["PASSWORD"],
    },
)
app.use(ConsumeLater())

@app.agent("orders")
async def bill(value: bytes) -> None: ...
"""


class Guarded(NamedTuple):
    """A broker that wants to know who asks: its ports by listener, and the folder of the certificates."""

    ports: Mapping[str, int]
    folder: Path

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def settings(self, listener: str, options: Mapping[str, Any]) -> HostSettings:
        return HostSettings(self.address(listener), group="billing", client_options=options)

    def trusting(self, authority: str = "ca", *, proving: str | None = None) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=self.folder / f"{authority}.pem")
        if proving is not None:
            context.load_cert_chain(self.folder / f"{proving}.pem", self.folder / f"{proving}.key")
        return {"ssl_context": context}


def with_password(mechanism: str, password: str = PASSWORD, protocol: str = "SASL_PLAINTEXT", user: str = USER) -> dict[str, Any]:
    names = ("security_protocol", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password")
    return dict(zip(names, (protocol, mechanism, user, password), strict=True))


def make_certificates(folder: Path) -> None:
    """`ca` and `stranger`, who are authorities, and what `ca` has signed."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "stranger"):
        new = ("-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2")
        allowed = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        openssl("req", *new, "-subj", f"/CN={name}", *allowed)
    for name, host, days in (("server", "IP:127.0.0.1", 2), ("elsewhere", "DNS:a.example", 2), ("expired", "IP:127.0.0.1", 0)):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "names").write_text(f"subjectAltName={host}\nauthorityKeyIdentifier=keyid\n")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", str(days), "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signer)
        (folder / f"{name}.keystore").write_text((folder / f"{name}.key").read_text() + (folder / f"{name}.pem").read_text())


def properties(ports: Mapping[str, int], controller: int, folder: Path) -> dict[str, str]:
    every = {"CONTROLLER": ("PLAINTEXT", controller)} | {name.upper(): (LISTENERS[name][0], port) for name, port in ports.items()}
    found = {
        **PROPERTIES,
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, (_, port) in every.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, (protocol, _) in every.items()),
        "inter.broker.listener.name": "PLAIN",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER};User:CN=server",
    }
    for name, (protocol, certificate) in LISTENERS.items():
        prefix = f"listener.name.{name}."
        if certificate is not None:
            found[f"{prefix}ssl.keystore.type"] = found[f"{prefix}ssl.truststore.type"] = "PEM"
            found[f"{prefix}ssl.keystore.location"] = str(folder / f"{certificate}.keystore")
            found[f"{prefix}ssl.truststore.location"] = str(folder / "ca.pem")
            found[f"{prefix}ssl.client.auth"] = "required" if name == "mutual" else "none"
        if protocol.startswith("SASL"):
            module = "org.apache.kafka.common.security"
            if name == "tokens":  # without a signature, as brokers take them where nobody has set up more
                found[f"{prefix}sasl.enabled.mechanisms"] = "OAUTHBEARER"
                found[f"{prefix}oauthbearer.sasl.jaas.config"] = f"{module}.oauthbearer.OAuthBearerLoginModule required;"
                continue
            found[f"{prefix}sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
            found[f"{prefix}plain.sasl.jaas.config"] = f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            for size in (256, 512):
                found[f"{prefix}scram-sha-{size}.sasl.jaas.config"] = f"{module}.scram.ScramLoginModule required;"
    return found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """One broker for all that is tested here. `us3r-worker` may do everything, and `bare` nothing."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    controller, *free = localkafka._free_ports(1 + len(LISTENERS))
    broker = Guarded(dict(zip(LISTENERS, free, strict=True)), folder)
    with kafka_or_skip(tmp_path_factory.mktemp("guarded"), properties(broker.ports, controller, folder)):
        clients: Any = confluent  # its types leave out what it exports
        admin = clients.AdminClient({"bootstrap.servers": broker.address("plain")})
        for name, size in (
            (USER, clients.ScramMechanism.SCRAM_SHA_256),
            (USER, clients.ScramMechanism.SCRAM_SHA_512),
            ("bare", clients.ScramMechanism.SCRAM_SHA_512),
        ):
            made = clients.UserScramCredentialUpsertion(name, clients.ScramCredentialInfo(size, 4096), PASSWORD.encode())
            for future in admin.alter_user_scram_credentials([made]).values():
                future.result(60)
        yield broker


@pytest.fixture(autouse=True)
async def _tls_has_said_goodbye() -> AsyncIterator[None]:
    """Waits for closed connections: the end of TLS is a message that the broker answers, and clients do not wait for that."""
    yield
    loop: Any = asyncio.get_running_loop()
    await until(lambda: not any(transport._sock is not None for transport in list(loop._transports.values())))


async def test_a_password_lets_in_with_and_without_tls_and_a_wrong_one_is_a_sentence_without_it(guarded: Guarded) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert await read_topics(guarded.settings("password", with_password(mechanism)), {"none"}) == {}
        options = with_password(mechanism, protocol="SASL_SSL") | guarded.trusting()
        assert await read_topics(guarded.settings("both", options), {"none"}) == {}
        with pytest.raises(ConfigurationError, match=rf"refuses the credentials \({mechanism}\); check sasl_plain_username") as caught:
            await read_topics(guarded.settings("password", with_password(mechanism, WRONG)), {"none"})
        assert WRONG not in str(caught.value)
        assert USER not in str(caught.value)


async def test_a_certificate_of_our_own_lets_in_also_from_files_without_a_context_in_the_code(guarded: Guarded) -> None:
    folder = guarded.folder
    files = {"ssl_cafile": folder / "ca.pem", "ssl_certfile": folder / "server.pem", "ssl_keyfile": folder / "server.key"}
    for options in (guarded.trusting(proving="server"), files):
        assert await read_topics(guarded.settings("mutual", {"security_protocol": "SSL"} | options), {"none"}) == {}


class Tokens(AbstractTokenProvider):
    """Tokens for `us3r-worker` that last for an hour."""

    async def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]  # its base has no types
        now = time.time()
        parts = {"alg": "none"}, {"sub": USER, "iat": now - 60, "exp": now + 3600}
        return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


async def test_a_token_of_a_provider_lets_in(guarded: Guarded) -> None:
    options = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Tokens()}
    assert await read_topics(guarded.settings("tokens", options | guarded.trusting()), {"none"}) == {}


async def test_whatever_keeps_a_client_out_is_a_sentence(guarded: Guarded) -> None:
    tls = {"security_protocol": "SSL"}
    for listener, options, sentence in (
        ("both", tls | guarded.trusting("stranger"), "of an authority that ssl_context does not know"),
        ("both", with_password("PLAIN", protocol="SASL_SSL"), "ssl_context does not know; name its file: ssl_cafile"),
        ("expired", tls | guarded.trusting(), "a certificate that has expired; renew it"),
        ("elsewhere", tls | guarded.trusting(), "a certificate for another host; name it in brokers"),
        ("plain", tls | guarded.trusting(), "speaks no TLS on this port|do not agree on TLS|security_protocol and the credentials"),
        ("plain", with_password("PLAIN"), "takes no SASL on this port; correct the port in brokers, or security_protocol"),
        ("mutual", tls | guarded.trusting(), "security_protocol and the credentials in client_options"),
    ):
        with pytest.raises(AckwiseError, match=sentence):
            await read_topics(guarded.settings(listener, options), {"none"})


async def test_an_app_that_only_sends_says_why_it_is_not_let_in(guarded: Guarded) -> None:
    with pytest.raises(PublishUnavailable, match=r"do not answer a producer \(broker .* refuses the credentials"):
        async with Producer(guarded.address("password"), client_options=with_password("PLAIN", WRONG)) as producer:
            await producer.send("orders", b"1")


@pytest.mark.parametrize(
    "command",
    [("run",), ("doctor",), *(pytest.param(each, marks=pytest.mark.nightly) for each in (("relay",), ("topics", "check"), ("pause",)))],
    ids=" ".join,
)
def test_a_command_with_a_wrong_password_ends_with_one_sentence(guarded: Guarded, tmp_path: Path, command: tuple[str, ...]) -> None:
    done = ran(guarded, tmp_path, command, password=WRONG)
    assert "refuses the credentials (SCRAM-SHA-512)" in done
    assert "check sasl_plain_username, sasl_plain_password and sasl_mechanism" in done
    assert f"exit {1 if command == ('doctor',) else 2}" in done
    assert "Traceback" not in done
    assert WRONG not in done


@pytest.mark.nightly
def test_a_worker_without_rights_ends_with_one_sentence(guarded: Guarded, tmp_path: Path) -> None:
    done = ran(guarded, tmp_path, ("run",), password=PASSWORD, user="bare")
    assert "exit 2" in done
    assert "Traceback" not in done
    assert "uthoriz" in done or "not allowed" in done or "give this client" in done


def ran(guarded: Guarded, folder: Path, command: tuple[str, ...], *, password: str, user: str = USER) -> str:
    """What `ackwise` has printed, and its exit code."""
    (folder / "shop.py").write_text(APP)
    ours = {"BROKERS": guarded.address("both"), "CA": str(guarded.folder / "ca.pem"), "NAME": user, "PASSWORD": password}
    words = [sys.executable, "-m", "ackwise.plugin.cli", *command, "shop:app"]
    done = subprocess.run(words, cwd=folder, env=os.environ | ours, capture_output=True, text=True, timeout=120, check=False)
    return f"{done.stdout}{done.stderr}\nexit {done.returncode}"


def test_a_command_without_an_app_connects_with_tls_and_a_password_from_a_file(guarded: Guarded, tmp_path: Path) -> None:
    words = ("status", "nobodys")
    done = ran_without_app(guarded, tmp_path, words, PASSWORD)
    assert "there is no consumer group 'nobodys'" in done
    assert not any(said in done for said in ("Traceback", "refuses", PASSWORD)), done
    refused = ran_without_app(guarded, tmp_path, words, WRONG)
    assert "refuses the credentials (SCRAM-SHA-512)" in refused
    assert "exit 2" in refused
    assert WRONG not in refused


@pytest.mark.nightly
def test_a_relay_of_an_outbox_without_an_app_sends_over_tls_with_a_password_from_a_file(guarded: Guarded, tmp_path: Path) -> None:
    clients: Any = confluent
    admin = clients.AdminClient({"bootstrap.servers": guarded.address("plain")})
    admin.create_topics([clients.NewTopic("invoices", 1, 1)])["invoices"].result(60)
    asyncio.run(written(tmp_path / "outbox.db"))
    with started_without_app(guarded, tmp_path, ("relay", "--outbox", "sqlite:///outbox.db"), PASSWORD) as relay:
        consumer = Consumer({"bootstrap.servers": guarded.address("plain"), "group.id": "reads", "auto.offset.reset": "earliest"})
        consumer.subscribe(["invoices"])
        found = None
        for _ in range(240):
            if relay.poll() is not None or (found := consumer.poll(0.5)) is not None:
                break
        consumer.close()
        relay.send_signal(signal.SIGTERM)
        _, said = relay.communicate(timeout=60)
    assert found is not None, said
    assert found.value() == b"paid"
    assert PASSWORD not in said


async def written(path: Path) -> None:
    """One row in a new outbox."""
    outbox = SQLiteOutbox(path)
    await outbox.open()
    connection = sqlite3.connect(path, isolation_level=None)
    async with outbox.transaction(connection):
        outbox.send("invoices", b"paid")
    connection.close()
    await outbox.close()


def variables(guarded: Guarded, folder: Path, password: str) -> dict[str, str]:
    """All that a command without an app is told of the broker; the password is in a file."""
    (folder / "password").write_text(f"{password}\n")
    options = {
        "SECURITY_PROTOCOL": "SASL_SSL",
        "SSL_CAFILE": str(guarded.folder / "ca.pem"),
        "SASL_MECHANISM": "SCRAM-SHA-512",
        "SASL_PLAIN_USERNAME": USER,
        "SASL_PLAIN_PASSWORD_FILE": str(folder / "password"),
    }
    return {"ACKWISE_BROKERS": guarded.address("both")} | {f"ACKWISE_CLIENT_OPTIONS__{name}": value for name, value in options.items()}


def ran_without_app(guarded: Guarded, folder: Path, words: tuple[str, ...], password: str) -> str:
    """What `ackwise` has printed, and its exit code."""
    with started_without_app(guarded, folder, words, password) as command:
        printed, said = command.communicate(timeout=120)
    return f"{printed}{said}\nexit {command.returncode}"


def started_without_app(guarded: Guarded, folder: Path, words: tuple[str, ...], password: str) -> subprocess.Popen[str]:
    environ = os.environ | variables(guarded, folder, password)
    command = [sys.executable, "-m", "ackwise.plugin.cli", *words]
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def test_a_whole_worker_consumes_retries_and_commits_with_scram_over_tls(guarded: Guarded) -> None:
    options = with_password("SCRAM-SHA-512", protocol="SASL_SSL") | guarded.trusting()
    admin = AIOKafkaAdminClient(bootstrap_servers=guarded.address("both"), **options)
    await admin.start()
    try:
        await admin.create_topics([NewTopic("paid", 1, 1)])
    finally:
        await admin.close()
    app = App("payments", brokers=guarded.address("both"), client_options=options)
    app.use(ConsumeLater(levels=["100ms"]))
    seen: list[bytes] = []
    came_back = asyncio.Event()

    @app.agent("paid")
    async def book(value: bytes) -> None:
        seen.append(value)
        if len(seen) == 1:
            raise Later
        came_back.set()

    async with asyncio.timeout(120), app.running() as worker:
        await worker.ready()
        async with Producer(guarded.address("both"), client_options=options) as producer:
            await producer.send("paid", b"one")
        await came_back.wait()
    assert seen == [b"one", b"one"]
