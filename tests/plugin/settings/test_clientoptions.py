from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.settings.clientoptions import EVERY_CLIENT, OPTIONS, OWN_CONSUMER, OWN_PRODUCER, checked_options, tables

CLIENTS: dict[str, Any] = {"consumer": AIOKafkaConsumer, "producer": AIOKafkaProducer, "admin": AIOKafkaAdminClient}
TAKES = {name: set(inspect.signature(client).parameters) - {"topics"} for name, client in CLIENTS.items()}
TUNING = [row for row in OPTIONS.values() if row.setting in (OWN_CONSUMER, OWN_PRODUCER)]

#: What Ackwise itself makes into an option of the clients.
OURS = {"ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password", "sasl_plain_password_file"}


def test_each_option_of_each_client_has_a_row() -> None:
    assert set.union(*TAKES.values()) | OURS == set(OPTIONS)


def test_an_option_is_taken_by_the_clients_that_get_it() -> None:
    for row in OPTIONS.values():
        if row.setting == EVERY_CLIENT and row.name not in OURS:
            assert all(row.name in takes for takes in TAKES.values()), row.name
    assert {row.name for row in TUNING if row.setting == OWN_CONSUMER} <= TAKES["consumer"]
    assert {row.name for row in TUNING if row.setting == OWN_PRODUCER} <= TAKES["producer"]


@each("name", [row.name for row in OPTIONS.values() if row.setting is None])
@each("setting", [EVERY_CLIENT, OWN_CONSUMER, OWN_PRODUCER])
def test_what_is_refused_is_refused_wherever_it_is_set_with_its_reason_and_without_its_value(setting: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{setting} has '{name}', which is not for users to set: \w.{{8,}}") as refusal:
        checked_options(setting, {name: "s3cret"})
    assert "s3cret" not in str(refusal.value)
    assert str(refusal.value).endswith(OPTIONS[name].why)


@each("row", [row for row in OPTIONS.values() if row.least is not None])
def test_a_number_is_taken_within_its_bounds_also_as_the_text_of_a_variable(row: Any) -> None:
    most = row.most or 2**31 - 1
    assert checked_options(row.setting, {row.name: row.least}) == {row.name: row.least}
    assert checked_options(row.setting, {row.name: str(most)}) == {row.name: most}
    refused: list[object] = [row.least - 1, most + 1, "soon", "1e3", 1.5, True, [], "9" * 400]
    for wrong in refused:
        with pytest.raises(ConfigurationError, match=rf"^{row.setting} has {row.name}=.*; it is a whole number from \d+ to \d+$"):
            checked_options(row.setting, {row.name: wrong})


@each("row", TUNING)
def test_tuning_in_another_setting_is_refused_with_the_right_one(row: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"^client_options has '{row.name}', .*; set it in {row.setting}$"):
        checked_options(EVERY_CLIENT, {row.name: 1})


@each(
    ("setting", "options", "sentence"),
    [
        (EVERY_CLIENT, {"security_protocol": "TLS"}, "it is one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (EVERY_CLIENT, {"sasl_mechanism": "LDAP"}, "it is one of PLAIN, "),
        (EVERY_CLIENT, {"ssl_context": "/etc/ca.pem"}, "ssl_context as str; it is an object, and given in the code"),
        (EVERY_CLIENT, {"sasl_plain_password": 12345}, "sasl_plain_password as int; it is a text"),
        (OWN_PRODUCER, {"compression_type": "brotli"}, "it is one of gzip, snappy, lz4, zstd"),
        (OWN_CONSUMER, {"client_rack": 3}, "client_rack as int; it is a text"),
        (OWN_CONSUMER, [("fetch_max_bytes", 1)], "consumer_options is a list; give a dict of options such as fetch_max_bytes"),
        (OWN_CONSUMER, {"fetch_max_byte": 1}, r"no option of the consumer .*; did you mean 'fetch_max_bytes'\?"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(setting: str, options: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as refusal:
        checked_options(setting, options)
    assert "12345" not in str(refusal.value)


def test_a_codec_that_is_not_installed_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiokafka.codec.has_zstd", lambda: False)
    with pytest.raises(ConfigurationError, match=r"compression_type='zstd', which is not installed; pip install aiokafka\[zstd\]"):
        checked_options(OWN_PRODUCER, {"compression_type": "zstd"})
    assert checked_options(OWN_PRODUCER, {"compression_type": "gzip"}) == {"compression_type": "gzip"}


def test_the_published_tables_are_those_of_the_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "tuning.md").read_text()
    assert tables() in page, "docs/how-to/tuning.md is behind the code; run `python -m ackwise.plugin.settings.clientoptions`"


def test_the_defaults_on_the_page_are_those_of_the_clients() -> None:
    for row in OPTIONS.values():
        ours = row.name in ("fetch_max_wait_ms", "heartbeat_interval_ms", "compression_type", *OURS)
        client = CLIENTS["producer" if row.setting == OWN_PRODUCER else "consumer"]
        if row.setting is not None and not ours and row.default != "–":
            assert str(inspect.signature(client).parameters[row.name].default) == row.default, row.name
