"""A client of a share group that does what it should not: nothing is taken for accepted, and the worker goes on where it can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, IllegalStateException, KafkaError, KafkaException

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.message.message import TopicPartition
from ackwise.middleware.policies.policies import Share
from ackwise.plugin.modes.shareclient import Caller, Record, ShareClient, admin_config, consumer_config
from ackwise.plugin.settings.hostsettings import HostSettings

ORDERS = TopicPartition("orders", 0)
AWAY = KafkaError(KafkaError._TRANSPORT, "gone")


class Message:
    """A record as confluent-kafka gives it."""

    def __init__(
        self, offset: int = 0, *, count: int | None = 1, error: KafkaError | None = None, headers: Any = None, kind: int = 1
    ) -> None:
        self._offset, self._count, self._error, self._headers, self._kind = offset, count, error, headers, kind

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return self._kind, 1_700_000_000_000

    def key(self) -> bytes | None:
        return b"k"

    def value(self) -> bytes | None:
        return b"v"

    def headers(self) -> Any:
        if isinstance(self._headers, Exception):
            raise self._headers
        return self._headers

    def delivery_count(self) -> int | None:
        return self._count


class Consumer:
    """A consumer of confluent-kafka that a test plays."""

    def __init__(self) -> None:
        self.polled: list[Message] | BaseException = []
        self.refuse: BaseException | None = None
        self.acknowledged: list[tuple[str, int, int, object]] = []
        self.commits = 0
        self.is_closed = False

    def poll(self, timeout: float) -> list[Message]:
        if isinstance(self.polled, BaseException):
            raise self.polled
        return self.polled

    def acknowledge_offset(self, topic: str, partition: int, offset: int, kind: object) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.acknowledged.append((topic, partition, offset, kind))

    def commit_async(self) -> None:
        self.commits += 1

    def close(self) -> None:
        self.is_closed = True


class Desk:
    def __init__(self) -> None:
        self.told: list[tuple[TopicPartition, list[int], str | None]] = []
        self.consumer = Consumer()
        self.client = ShareClient({}, ["orders"], self._told, group="billing.share")
        self.client._consumer = self.consumer  # type: ignore[assignment]

    def _told(self, place: TopicPartition, offsets: Sequence[int], refused: str | None) -> None:
        self.told.append((place, [*offsets], refused))

    async def settle(self) -> None:
        """Until the thread has done what was asked."""
        await self.client._caller.call(lambda: None)
        await asyncio.sleep(0)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    yield made
    await made.client.close()


async def test_records_come_by_partition_and_apart_if_they_were_delivered_before(desk: Desk) -> None:
    desk.consumer.polled = [Message(3), Message(4, count=2), Message(5, count=None, kind=0, headers=[("h", None)])]
    poll = await desk.client.poll()
    assert poll is not None
    assert poll.first == {ORDERS: [Record(3, 1_700_000_000_000, b"k", b"v", ()), Record(5, -1, b"k", b"v", (("h", None),))]}
    assert [record.offset for record in poll.again[ORDERS]] == [4]


async def test_what_the_client_can_not_read_of_headers_is_a_name_that_is_no_utf8(desk: Desk) -> None:
    for error in (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"), SystemError("a result with an exception")):
        desk.consumer.polled = [Message(3, headers=error)]
        poll = await desk.client.poll()
        assert poll is not None
        assert poll.first[ORDERS][0].headers == (("\udcff", None),), error


async def test_an_error_among_records_is_logged_and_the_others_come(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.consumer.polled = [Message(error=AWAY), Message(3)]
    poll = await desk.client.poll()
    assert poll is not None
    assert [record.offset for record in poll.first[ORDERS]] == [3]
    assert "share group client reported an error" in caplog.text


async def test_a_poll_that_fails_is_made_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.modes.shareclient._POLL_AGAIN", 0.0)
    desk.consumer.polled = KafkaException(AWAY)
    assert await desk.client.poll() is None
    desk.consumer.polled = [Message(3)]
    assert await desk.client.poll() is not None


async def test_what_the_client_can_not_go_on_with_ends_the_worker(desk: Desk) -> None:
    desk.consumer.polled = [Message(error=KafkaError(KafkaError._FATAL, "no rights", fatal=True))]
    with pytest.raises(AckwiseError, match=r"Kafka refuses this worker of share group 'billing\.share'"):
        await desk.client.poll()


async def test_acknowledgements_are_sent_at_once(desk: Desk) -> None:
    desk.client.accept(ORDERS, [3, 4])
    desk.client.release(ORDERS, [5])
    await desk.settle()
    accept, release = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
    assert desk.consumer.acknowledged == [("orders", 0, 3, accept), ("orders", 0, 4, accept), ("orders", 0, 5, release)]
    assert desk.consumer.commits == 2


async def test_what_the_client_has_given_up_counts_as_refused(desk: Desk) -> None:
    desk.consumer.refuse = IllegalStateException("no longer in flight")
    desk.client.accept(ORDERS, [3, 4])
    await desk.settle()
    assert desk.told == [(ORDERS, [3, 4], "the client has given it up")]


async def test_the_brokers_word_is_handed_to_the_event_loop(desk: Desk) -> None:
    for error in (None, KafkaException(KafkaError(KafkaError.INVALID_RECORD_STATE))):
        await desk.client._caller.call(lambda error=error: desk.client._told({ORDERS_OF_CLIENT: {4, 3}}, error))  # type: ignore[misc]
        await desk.settle()
    assert desk.told == [(ORDERS, [3, 4], None), (ORDERS, [3, 4], "INVALID_RECORD_STATE")]


class _Place:
    topic, partition = "orders", 0


ORDERS_OF_CLIENT = _Place()


async def test_a_call_that_nobody_waits_for_any_more_is_made_all_the_same() -> None:
    caller, made = Caller("test"), list[int]()
    caller.call(lambda: made.append(1)).cancel()
    await caller.call(lambda: made.append(2))
    assert made == [1, 2]
    with pytest.raises(ZeroDivisionError):
        await caller.call(lambda: 1 // 0)
    caller.end()


async def test_options_that_the_client_refuses_are_a_sentence() -> None:
    client = ShareClient(
        {"group.id": "g", "bootstrap.servers": "nowhere:1", "no.such.option": "1"}, ["orders"], lambda *_: None, group="billing.share"
    )
    with pytest.raises(ConfigurationError, match=r"client_options of Share can't be used: .*no\.such\.option"):
        await client.open()
    await client.close()


def test_credentials_of_the_app_are_those_of_its_share_consumers() -> None:
    options = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "u", "sasl_plain_password": "p"}
    share = Share(client_options={"ssl.ca.location": "ca.pem", "max.poll.records": 7})
    assert consumer_config(HostSettings("b:1", "billing", client_options=options, client_id="c"), share) == {
        "bootstrap.servers": "b:1", "client.id": "c", "log_level": 3, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN",
        "sasl.username": "u", "sasl.password": "p", "ssl.ca.location": "ca.pem", "group.id": "billing.share",
        "share.acknowledgement.mode": "explicit", "max.poll.records": 7
    }  # fmt: skip


def test_credentials_that_the_other_client_can_not_be_told_are_asked_for() -> None:
    settings = HostSettings("b:1", "billing", client_options={"ssl_context": object()})
    with pytest.raises(ConfigurationError, match=r"'ssl_context'.*give Share\(client_options=…\)"):
        admin_config(settings, Share())
    assert admin_config(settings, Share(client_options={"ssl.ca.location": "ca.pem"}))["ssl.ca.location"] == "ca.pem"
