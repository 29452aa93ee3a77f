from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.outbox.outboxrelay import AloneSettings
from ackwise.plugin.settings.connecting import with_credentials

TLS = {"security_protocol": "SSL"}


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        with_credentials(options)
    return str(caught.value)


def test_with_tls_and_nothing_else_the_authorities_of_the_system_are_trusted() -> None:
    context: Any = with_credentials(TLS)["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_context_of_the_code_is_left_as_it_is() -> None:
    context = ssl.create_default_context()
    assert with_credentials(TLS | {"ssl_context": context})["ssl_context"] is context


def test_without_tls_no_context_is_made() -> None:
    assert with_credentials({"security_protocol": "SASL_PLAINTEXT"}) == {"security_protocol": "SASL_PLAINTEXT"}
    assert with_credentials({}) == {}


def test_a_password_is_read_from_its_file_without_the_end_of_its_line(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(" s3 cret \r\n")
    assert with_credentials({"sasl_plain_password_file": str(tmp_path / "password")}) == {"sasl_plain_password": " s3 cret "}


@each("option", ["ssl_cafile", "ssl_certfile", "sasl_plain_password_file"])
def test_a_file_that_is_not_there_or_a_folder_is_one_sentence(tmp_path: Path, option: str) -> None:
    assert refusal(**TLS, **{option: str(tmp_path / "none")}).endswith("none': there is no such file")
    assert f"client_options has {option}={str(tmp_path)!r}: " in refusal(**TLS, **{option: str(tmp_path)})


@each("option", ["ssl_cafile", "ssl_certfile"])
def test_a_file_without_a_certificate_is_one_sentence_with_nothing_of_what_is_in_it(tmp_path: Path, option: str) -> None:
    (tmp_path / "wrong.pem").write_text("s3cret")
    said = refusal(**TLS, **{option: str(tmp_path / "wrong.pem")})
    assert "it has no certificates or key in PEM that can be used" in said
    assert "s3cret" not in said


def test_a_password_file_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"\xff\xfes3cret")
    assert refusal(sasl_plain_password_file=str(tmp_path / "password")).endswith("it is no text")


def test_files_that_would_not_be_used_are_refused() -> None:
    assert "no TLS; set security_protocol" in refusal(ssl_cafile="ca.pem")
    assert "no TLS; set security_protocol" in refusal(ssl_cafile="ca.pem", security_protocol="SASL_PLAINTEXT")
    assert "both ssl_context and ssl_cafile" in refusal(**TLS, ssl_cafile="ca.pem", ssl_context=ssl.create_default_context())
    assert "ssl_keyfile, and no ssl_certfile" in refusal(**TLS, ssl_keyfile="own.key")
    said = refusal(sasl_plain_password="s3cret", sasl_plain_password_file="password")
    assert "both sasl_plain_password and sasl_plain_password_file" in said
    assert "s3cret" not in said


def test_tokens_need_their_provider() -> None:
    options = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    assert "needs sasl_oauth_token_provider" in refusal(**options)
    assert with_credentials(options | {"sasl_oauth_token_provider": object()})["sasl_mechanism"] == "OAUTHBEARER"


def test_a_relay_without_an_app_checks_its_options_as_an_app_does() -> None:
    assert isinstance(AloneSettings("kafka:9093", client_options=dict(TLS)).client_options["ssl_context"], ssl.SSLContext)
    with pytest.raises(ConfigurationError, match="client_options has 'acks', which is not for users to set"):
        AloneSettings("kafka:9093", client_options={"acks": "0"})
