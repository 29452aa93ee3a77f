from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.settings.hostsettings import REBALANCE_TIMEOUT, AppSettings, HostSettings


def test_durations_are_read_as_people_write_them() -> None:
    settings = HostSettings("localhost:9092", "billing", commit_interval="500ms", revoke_timeout="30s")  # type: ignore[arg-type]  # texts become seconds
    assert (settings.commit_interval, settings.revoke_timeout) == (0.5, 30.0)


@each(
    ("setting", "sentence"),
    [
        ({"revoke_timeout": "31s"}, "at most 30 s, half of the rebalance timeout"),
        ({"session_timeout": 5}, "brokers accept 6 to 1800 s"),
        ({"commit_interval": "soon"}, "commit_interval is 'soon', which is not a duration"),
        ({"create_topics": "yes"}, "create_topics is 'yes'; it is one of 'auto', 'never', 'broker'"),
        ({"start": "middle"}, "start is 'middle'"),
        ({"group": "bill ing"}, "group is 'bill ing'"),
        ({"group": ""}, "group is ''"),
        ({"group_instance_id": "pod 0"}, "group_instance_id is 'pod 0'; use up to 200 letters, digits"),
        ({"group_instance_id": "p" * 201}, "use up to 200 letters"),
        ({"group_instance_id": 3}, "group_instance_id is 3; use"),
        ({"group_instance_id": "pod-0", "instance": "web-1"}, "an instance that broadcasts has its own"),
        ({"brokers": "a:1,,b:2"}, "write it as 'host:port'"),
        ({"brokers": ""}, "write it as 'host:port'"),
        ({"brokers": ["localhost:9092"]}, "write it as 'host:port'"),
        ({"brokers": "a:1, kafka-2"}, "broker 'kafka-2' has no port; write it as 'host:port', such as 'kafka-2:9092'"),
        ({"brokers": "a:nine"}, "broker 'a:nine' is no address"),
        ({"brokers": "a:65536"}, "a port from 1 to 65535"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_with_a_sentence(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        HostSettings(**{"brokers": "localhost:9092", "group": "billing", **setting})


def test_credentials_in_the_brokers_are_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        HostSettings("sasl://me:s3cret@host:9092", "billing")
    assert "s3cret" not in str(refusal.value)


def test_printed_settings_show_no_credentials() -> None:
    settings = HostSettings("host:9092", "billing", client_options={"sasl_mechanism": "PLAIN", "sasl_plain_password": "s3cret"})
    assert "s3cret" not in f"{settings!r} {settings}"
    assert "sasl_mechanism': 'PLAIN'" in repr(settings)
    assert "group='billing'" in repr(settings)


@each(
    ("option", "sentence"),
    [
        ("enable_auto_commit", "would commit messages that were merely fetched"),
        ("value_deserializer", "one that raises blocks its partition forever"),
        ("key_deserializer", "one that raises blocks its partition forever"),
        ("group_id", "first argument of App"),
        ("auto_offset_reset", "set start"),
        ("acks", "acknowledged by all in-sync replicas"),
        ("isolation_level", "aborted transaction"),
    ],
)
def test_an_option_of_the_clients_that_would_undo_a_promise_is_refused(option: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=f"client_options has '{option}', which is not for users to set: .*{sentence}"):
        HostSettings("localhost:9092", "billing", client_options={option: "s3cret"})


def test_an_unknown_option_is_refused_with_the_nearest_that_there_is() -> None:
    with pytest.raises(ConfigurationError, match=r"has 'sasl_plain_pasword', which .*; did you mean 'sasl_plain_password'\?") as refusal:
        HostSettings("localhost:9092", "billing", client_options={"sasl_plain_pasword": "s3cret"})
    assert "s3cret" not in str(refusal.value)
    with pytest.raises(
        ConfigurationError, match=r"has 'fetch_max_bytes', which is an option of the consumer .*; set it in consumer_options"
    ):
        HostSettings("localhost:9092", "billing", client_options={"fetch_max_bytes": 1})
    with pytest.raises(ConfigurationError, match=r"'colour'.*; it has security_protocol, ssl_cafile, .*, retry_backoff_ms$"):
        HostSettings("localhost:9092", "billing", client_options={"colour": "blue"})


@each("session", [6.0, 10.0, 45.0, 1800.0])
def test_a_worker_hears_of_a_rebalance_in_time_however_long_its_session_is(session: float) -> None:
    settings = HostSettings("localhost:9092", "billing", session_timeout=session)
    assert settings.heartbeat_interval <= min(session / 3, REBALANCE_TIMEOUT / 10)


def test_heartbeats_are_several_in_a_session() -> None:
    settings = HostSettings("localhost:9092", "billing", session_timeout=30, consumer_options={"heartbeat_interval_ms": 10_000})
    assert settings.heartbeat_interval == 10.0
    with pytest.raises(ConfigurationError, match=r"heartbeat_interval_ms=4000; it is at most a third of session_timeout, 3333"):
        HostSettings("localhost:9092", "billing", consumer_options={"heartbeat_interval_ms": 4000})


def test_the_keywords_of_an_app_are_the_settings_of_its_host() -> None:
    assert AppSettings.__annotations__.keys() | {"brokers", "group", "instance"} == {
        field.name for field in dataclasses.fields(HostSettings)
    }
