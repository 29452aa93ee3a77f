"""A real Kafka for the tests of this folder, started when the first of them asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.plugin.localbroker import LocalKafka, local_kafka


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """It creates topics that are asked for by name, as brokers do unless told otherwise."""
    with ExitStack() as running:
        try:
            broker = running.enter_context(local_kafka(tmp_path_factory.mktemp("kafka"), properties={"auto.create.topics.enable": "true"}))
        except (ConfigurationError, Unavailable) as error:
            if "CI" in os.environ:
                raise
            pytest.skip(f"no Kafka on this machine: {error}")
        yield broker
