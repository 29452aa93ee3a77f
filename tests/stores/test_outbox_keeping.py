"""What stays of the rows of an outbox is said by settings, or by options of its URL."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.cases import case

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.registry import open_outbox
from ackwise.stores.mysql.binlog import MySQLChanges
from ackwise.stores.postgres.replication import PostgresChanges
from ackwise.stores.protocol.outbox import Keeping, keeping_of

ALL = "?keep_sent=3600&keep_parked=60&blank=value,key"
URLS = ["postgresql://u:p@127.0.0.1/shop", "mysql://u:p@127.0.0.1/shop", "sqlite:///shop.db"]


def test_every_outbox_takes_the_options() -> None:
    for url in URLS:
        with case(url):
            outbox: Any = open_outbox(url + ALL)
            assert outbox.keeping == Keeping(sent=3600.0, parked=60.0, blank=("value", "key"))
            plain: Any = open_outbox(url)
            assert plain.keeping == Keeping()


def test_the_other_options_stay_in_the_url() -> None:
    assert keeping_of("postgresql://u:a%3Fb@h/db?keep_sent=1&sslmode=require&blank=") == (
        "postgresql://u:a%3Fb@h/db?sslmode=require",
        Keeping(sent=1.0, blank=()),
    )
    assert keeping_of("sqlite:///a.db?keep_parked=5") == ("sqlite:///a.db", Keeping(parked=5.0))


def test_change_data_capture_takes_the_url_of_its_outbox() -> None:
    PostgresChanges(URLS[0] + ALL)
    MySQLChanges(URLS[1] + ALL)


def test_what_makes_no_sense_is_refused_with_a_sentence() -> None:
    for options, sentence in [
        ("keep_sent=week", "keep_sent is 'week' in the URL of the outbox; give seconds, such as keep_sent=604800"),
        ("keep_sent=-1", "keep_sent is -1.0; give the seconds that sent rows are kept, 0 or more"),
        ("keep_parked=inf", "keep_parked is inf; give the seconds that parked rows are kept, 0 or more"),
        ("blank=value,topic", "blank is ('value', 'topic'); name what of a sent row is removed, some of value, key, headers"),
    ]:
        with case(options, sentence):
            with pytest.raises(ConfigurationError) as caught:
                keeping_of(f"sqlite:///shop.db?{options}")
            assert str(caught.value) == sentence


def test_it_says_what_stays() -> None:
    for keeping, said in [
        (Keeping(), "sent rows are deleted, parked rows stay until they are requeued"),
        (Keeping(sent=60.0), "sent rows stay for 60 s without value and key and headers, parked rows stay until they are requeued"),
        (
            Keeping(sent=60.0, blank=(), parked=5.0),
            "sent rows stay for 60 s with all that they say, cleanup deletes parked rows of 5 s unsent",
        ),
    ]:
        with case(keeping, said):
            assert str(keeping) == said
