"""The private names of aiokafka's clients. Only this module uses them.

Requests are in `protocolrequests.py`, record batches in `recordbatches.py`: those have private names as well. A client may be a consumer, a
producer or an admin client.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError, KafkaError, for_code

from ackwise.middleware.log import Log, said
from ackwise.plugin.kafka.protocolrequests import AIOKAFKA, ApiVersionRequest, MetadataRequest
from ackwise.plugin.kafka.timeouts import answer

with AIOKAFKA.imports():
    from aiokafka.client import AIOKafkaClient as AIOKafkaClient
    from aiokafka.cluster import ClusterMetadata
    from aiokafka.conn import AIOKafkaConnection, collect_hosts
    from aiokafka.consumer.fetcher import Fetcher as Fetcher
    from aiokafka.consumer.fetcher import FetchError
    from aiokafka.consumer.group_coordinator import GroupCoordinator as GroupCoordinator
    from aiokafka.consumer.group_coordinator import NoGroupCoordinator
    from aiokafka.consumer.subscription_state import Assignment, Subscription, SubscriptionState, TopicPartitionState
    from aiokafka.producer.sender import Sender

log = Log()

#: What a client proves itself with.
_CREDENTIALS: Final = (
    "security_protocol",
    "ssl_context",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_kerberos_service_name",
    "sasl_kerberos_domain_name",
    "sasl_oauth_token_provider",
)

#: What is used here; with its parameters where another function takes its place.
NAMES: Final[Mapping[type[Any], str]] = {
    AIOKafkaConsumer: """_auto_offset_reset _client _closed _coordinator _enable_auto_commit _fetch_max_wait_ms _fetcher _group_id
        _group_instance_id _isolation_level _key_deserializer _rebalance_timeout_ms _session_timeout_ms _subscription
        _value_deserializer""",
    AIOKafkaProducer: "_sender client",
    AIOKafkaAdminClient: "_client _send_request",
    AIOKafkaClient: f"""_bootstrap_servers _client_id _conns _md_synchronizer _md_update_waiter _sync_task add_topic bootstrap close
        cluster fetch_all_metadata force_metadata_update get_random_node send set_topics {" ".join(f"_{each}" for each in _CREDENTIALS)}""",
    AIOKafkaConnection: "close connect",
    ClusterMetadata: "brokers controller leader_for_partition partitions_for_topic update_metadata",
    SubscriptionState: "_assignment_waiters fetch_context subscription",
    Subscription: "_reassignment_in_progress _topics assignment",
    Assignment: "state_value",
    TopicPartitionState: "has_valid_position position",
    GroupCoordinator: """_assignors _client _commit_refresh_task _coordination_task _heartbeat_task _send_req(request) check_errors
        coordinator_dead ensure_coordinator_known member_id request_rejoin""",
    NoGroupCoordinator: "_reset_committed_task assign_all_partitions(check_unknown)",
    Fetcher: """_fetch_max_bytes _fetch_max_wait_ms _fetch_requests_routine _fetch_task _fetcher_timeout _isolation_level
        _max_partition_fetch_bytes _pending_tasks _records _subscriptions""",
    Sender: "_sender_task sender_task",
}

#: Milliseconds that the broker keeps a fetch which finds nothing while nothing is expected: at least, at most, and for each partition. What
#: otherwise is asked of that broker, such as the ends of its logs, waits as long, and has five seconds.
_IDLE_WAIT, _LONGEST_IDLE_WAIT, _OF_EACH = 500, 4_000, 2

#: Seconds until a client looks at its partitions again by itself, as aiokafka has it.
_LOOK: Final = 0.2

#: Seconds until the task that learns the metadata starts again.
_LEARN_AGAIN: Final = 1.0


def positions_of(consumer: Any, partitions: Iterable[TopicPartition], *, before_errors: bool = False) -> dict[TopicPartition, int]:
    """The client's position of each of `partitions` that has one, without waiting for it.

    Left out, but for `before_errors`, is what `standing_before_errors`.
    """
    assignment = consumer._subscription.subscription and consumer._subscription.subscription.assignment
    if not assignment:
        return {}
    failed = {} if before_errors else consumer._fetcher._records
    states = ((each, assignment.state_value(each)) for each in partitions if not isinstance(failed.get(each), FetchError))
    return {partition: state.position for partition, state in states if state and state.has_valid_position}


def leader_of(consumer: Any, partition: TopicPartition) -> int | None:
    """The broker that leads `partition`, as far as the client knows; -1 for none, `None` if it does not know the partition."""
    return cast("int | None", consumer._client.cluster.leader_for_partition(partition))


def missing_topics(consumer: Any) -> list[str]:
    """The topics that `consumer` is subscribed to and whose partitions it does not know."""
    cluster = consumer._client.cluster
    return sorted(topic for topic in consumer.subscription() if not cluster.partitions_for_topic(topic))


def has_no_partitions(consumer: Any, topic: str) -> bool:
    """Return whether the client knows no partition of `topic`, though it knows the cluster: it was deleted, or is unavailable."""
    cluster = consumer._client.cluster
    return bool(cluster.brokers()) and not cluster.partitions_for_topic(topic)


def subscribe_instead(consumer: Any, topics: Iterable[str]) -> bool:
    """Subscribe `consumer`, a member of a group, to `topics` instead, and let the group join again; return whether that was possible now.

    aiokafka's own `subscribe` forgets the assignment at once, and what is then drained could not be committed. While the group is joining,
    the answer may have partitions of the topics before, which the client takes for its own error.
    """
    subscription = consumer._subscription.subscription
    if subscription is None or subscription._reassignment_in_progress:
        return False
    subscription._topics = frozenset(topics)
    consumer._client.set_topics(subscription._topics)
    consumer._coordinator.request_rejoin()
    return True


def partitions_of(consumer: Any, topics: Iterable[str]) -> set[TopicPartition]:
    """The partitions of `topics`, as far as the client knows them."""
    cluster = consumer._client.cluster
    return {TopicPartition(topic, partition) for topic in topics for partition in cluster.partitions_for_topic(topic) or ()}


def hear_assignments(consumer: Any, hear: Callable[[], None]) -> None:
    """Call `hear` whenever `consumer`, which is in no group, has taken the partitions of its topics, and taken them again.

    aiokafka tells no listener of that, and forgets all positions each time.
    """
    coordinator = consumer._coordinator
    assign = coordinator.assign_all_partitions

    def assign_and_tell(check_unknown: bool = False) -> None:
        before = consumer._subscription.subscription.assignment
        assign(check_unknown)
        if consumer._subscription.subscription.assignment is not before:
            hear()

    coordinator.assign_all_partitions = assign_and_tell


def look_for_topics(consumer: Any) -> asyncio.Future[bool]:
    """Let the client ask for its metadata now, which it would do every five minutes; what is new makes the group join again.

    Return what ends with whether a broker answered.
    """
    return cast("asyncio.Future[bool]", consumer._client.force_metadata_update())


def is_closed(consumer: Any) -> bool:
    """Return whether `consumer` was stopped."""
    return bool(consumer._closed)


def has_left_the_group(consumer: Any) -> bool:
    """Return whether the task that keeps the membership has ended, though `consumer` was not stopped: nothing starts it again."""
    task = _coordination_of(consumer)
    return not consumer._closed and task is not None and task.done()


def member_id_of(consumer: Any) -> str:
    """Return the member id of `consumer` in its group."""
    return cast(str, consumer._coordinator.member_id)


def raise_group_errors(consumer: Any) -> None:
    """Raise what the coordinator of its group refuses `consumer`, as `getmany` does; Faust does not ask."""
    consumer._coordinator.check_errors()


def rejoin_if_broken(consumer: Any) -> None:
    """Let `consumer` join its group again if something has ended its heartbeats, or an error the task that learns what was committed.

    Nothing else starts them again, and aiokafka raises that error in each fetch from then on. Heartbeats that were cancelled from
    inside end as if in order; of a member they must not.
    """
    coordinator = consumer._coordinator
    for name, is_over in (("_heartbeat_task", not getattr(coordinator, "member_id", "")), ("_commit_refresh_task", True)):
        task = getattr(coordinator, name, None)
        if task is None or not task.done():
            continue
        if not is_over or (not task.cancelled() and task.exception() is not None):
            coordinator.request_rejoin()


def keep_awake(consumer: Any) -> None:
    """Let `consumer`, which is started, never wait in silence for its own task that something has cancelled.

    aiokafka tells those who wait for an assignment of errors alone, and starts the task that learns the metadata only once.
    """

    def fail_waiters(_: asyncio.Task[None]) -> None:
        for waiter in consumer._subscription._assignment_waiters:
            if not waiter.done() and not consumer._closed:
                waiter.set_exception(KafkaConnectionError("the client has left the group by itself"))

    def restart(_: asyncio.Task[None]) -> None:
        asyncio.get_running_loop().call_later(_LEARN_AGAIN, learn)

    def learn() -> None:  # once, also where another caller keeps the same client awake
        if not consumer._closed and client._sync_task is not None and client._sync_task.done():
            if not client._md_update_waiter.done():  # who waits for an answer that never came would wait for the next in minutes
                client._md_update_waiter.set_result(None)
            client._sync_task = asyncio.create_task(client._md_synchronizer())
            client._sync_task.add_done_callback(restart)

    client = consumer._client
    for task, act in ((_coordination_of(consumer), fail_waiters), (getattr(client, "_sync_task", None), restart)):
        if task is not None:
            task.add_done_callback(act)


def has_stopped_fetching(consumer: Any) -> bool:
    """Return whether the client's own task that fetches has ended."""
    return bool(consumer._fetcher._fetch_task.done())


def has_stopped_sending(producer: Any) -> bool:
    """Whether the task that sends, or the one that reads metadata, has ended: nothing starts it again, and each send would wait forever."""
    tasks = producer._sender.sender_task, producer.client._sync_task
    return any(task is not None and task.done() for task in tasks)


def buffered(consumer: Any) -> list[TopicPartition]:
    """The partitions of which the client has records, or an error, that was not taken."""
    return list(consumer._fetcher._records)


def standing_before_errors(consumer: Any) -> set[TopicPartition]:
    """The partitions of which the client has an error that was not reported yet.

    Its position says nothing then: of bytes that are no whole record batch it moves one further without having read anything. And a
    seek would drop the error, so that nobody ever hears of it.
    """
    raising = [partition for partition, found in consumer._fetcher._records.items() if isinstance(found, FetchError)]
    return {*positions_of(consumer, raising, before_errors=True)} if raising else set()


def fetch_wait(consumer: Any) -> int:
    """Milliseconds that the broker may keep a fetch which finds nothing."""
    return cast(int, consumer._fetcher._fetch_max_wait_ms)


def set_fetch_wait(consumer: Any, milliseconds: int) -> None:
    """From its next fetch on the broker may keep one that finds nothing for so long.

    Whatever comes meanwhile, an answer, a seek or a partition that goes on, wakes the client's own task that fetches. Otherwise it looks at
    every partition five times a second.
    """
    fetcher = consumer._fetcher
    fetcher._fetch_max_wait_ms = milliseconds
    fetcher._fetcher_timeout = max(_LOOK, 2 * milliseconds / 1000)


def idle_wait(partitions: int) -> int:
    """Milliseconds for a fetch of `partitions` partitions while nothing is expected of them.

    Each answer names all of them: with thousands that costs more than all the rest of an idle worker.
    """
    return min(max(_OF_EACH * partitions, _IDLE_WAIT), _LONGEST_IDLE_WAIT)


def revive(consumer: Any) -> BaseException | None:
    """Start the client's own task that fetches again if it has ended, and return what ended it: it would never fetch again.

    A client that is being stopped has ended it by itself, and waits for what the task had started.
    """
    fetcher = consumer._fetcher
    if consumer._closed or not (ended := fetcher._fetch_task).done():
        return None
    for task in fetcher._pending_tasks:
        task.cancel()
        task.add_done_callback(_take_note)
    fetcher._pending_tasks.clear()  # the new one would wait for what failed, and fail of it again
    fetcher._fetch_task = asyncio.create_task(fetcher._fetch_requests_routine())
    return asyncio.CancelledError() if ended.cancelled() else ended.exception() or asyncio.CancelledError()


def _coordination_of(consumer: Any) -> asyncio.Task[None] | None:
    return getattr(consumer._coordinator, "_coordination_task", None)


def _take_note(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


class ConsumerOptions(NamedTuple):
    """How a consumer was made. Durations are seconds."""

    group: str
    group_instance_id: str
    session_timeout: float
    rebalance_timeout: float
    auto_offset_reset: str
    commits_by_itself: bool
    has_deserializer: bool
    is_closed: bool
    is_started: bool


def options_of(consumer: Any) -> ConsumerOptions:
    """Return the options of `consumer`; `identity_of` returns its credentials."""
    return ConsumerOptions(
        consumer._group_id or "",
        consumer._group_instance_id or "",
        consumer._session_timeout_ms / 1000,
        consumer._rebalance_timeout_ms / 1000,
        consumer._auto_offset_reset,
        consumer._enable_auto_commit,
        consumer._key_deserializer is not None or consumer._value_deserializer is not None,
        consumer._closed,
        consumer._fetcher is not None,
    )


def configure(consumer: Any, *, fetch_wait_ms: int, isolation_level: str) -> None:
    """Set options of `consumer`, which the user has made and not started yet."""
    consumer._fetch_max_wait_ms = fetch_wait_ms
    consumer._isolation_level = isolation_level


def connections_of(client: Any) -> Any:
    """Return the object that has the connections of `client`, or of a part of it."""
    if isinstance(client, AIOKafkaClient):
        return client
    return getattr(client, "client", None) or getattr(client, "_client", None)  # a producer calls it so


def client_id_of(client: Any) -> str:
    """The name that `client` has at the brokers; empty for one without connections, as a fake one."""
    return str(getattr(connections_of(client), "_client_id", ""))


def identity_of(client: Any) -> dict[str, Any]:
    """The keywords `client_id`, and what it proves itself with, for a client that brokers take for the same one."""
    connections = connections_of(client)
    found = {name: getattr(connections, f"_{name}", None) for name in ("client_id", *_CREDENTIALS)}
    return {name: value for name, value in found.items() if value is not None}


def addresses_of(client: Any) -> list[tuple[str, int]]:
    """The addresses that `client` was given, each with a port."""
    return [(host, port) for host, port, _ in collect_hosts(connections_of(client)._bootstrap_servers, randomize=False)]


async def connect(host: str, port: int, identity: Mapping[str, Any], *, within: float) -> None:
    """Connect to one broker as a client of this identity does, and close that. Raises what keeps it out, or `TimeoutError`."""
    connection = AIOKafkaConnection(host, port, request_timeout_ms=round(within * 1000), **identity)
    try:
        async with asyncio.timeout(within):
            await connection.connect()
    finally:
        connection.close()


def any_broker(client: Any) -> int | None:
    """One that `client` knows; `None` if it knows none."""
    return cast("int | None", connections_of(client).get_random_node())


async def send(client: Any, broker: int | None, request: Any) -> Any:
    """Return the answer of `broker` to `request`. Raise aiokafka's errors, including `NotImplementedError`."""
    return await connections_of(client).send(broker, request)


def watch_answers(client: Any, look: Callable[[int, Any], None]) -> None:
    """Let `look` see each answer of a broker, by its number, to a request of `client` that expects one; once for each client."""
    connections = connections_of(client)
    attributes = getattr(connections, "__dict__", None)  # a fake client may have none
    if attributes is None or "send" in attributes:
        return

    async def watched(broker: int, request: Any, **options: Any) -> Any:
        answer = await type(connections).send(connections, broker, request, **options)
        look(broker, answer)
        return answer

    connections.send = watched


async def cluster_id(client: Any) -> str | None:
    """The id of the cluster that `client` is connected to; `None` if its brokers know none. Raises `KafkaError`."""
    answer = await send(client, any_broker(client), MetadataRequest([], allow_auto_topic_creation=False))
    return getattr(answer, "cluster_id", None)


async def learn_topic(client: Any, topic: str) -> None:
    """Let `client` know the partitions of `topic`. Raises `KafkaError`, such as what the brokers say of the topic.

    A broker is asked first, and only then the client: that logs an error at each look for a topic which is not there.
    """
    connections = connections_of(client)
    brokers = [broker.nodeId for broker in connections.cluster.brokers()]
    random.shuffle(brokers)
    for broker in brokers:
        try:
            told = await send(connections, broker, MetadataRequest([topic]))
        except KafkaError:  # another one may answer
            continue
        for code, name, *_ in told.topics:
            if name == topic and code:
                raise for_code(code)(f"of topic {topic!r}")
        break
    for _ in range(2):  # the first answer may be to a request that was made without the topic
        connections.add_topic(topic)
        await connections.force_metadata_update()
        if connections.cluster.partitions_for_topic(topic) is not None:
            return


def learn_brokers(client: Any, metadata: Any) -> None:
    """Let `client` know the brokers in an answer about topics."""
    connections_of(client).cluster.update_metadata(metadata)


async def ask_coordinator(consumer: Any, request: Any) -> Any:
    """Return the answer to `request` of the coordinator of the group of `consumer`. Raise `KafkaError`."""
    await consumer._coordinator.ensure_coordinator_known()
    return await consumer._coordinator._send_req(request)


def replace_send(consumer: Any, send: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Let the coordinator of `consumer` be asked by `send`; return how it was asked before."""
    before: Callable[[Any], Awaitable[Any]] = consumer._coordinator._send_req
    consumer._coordinator._send_req = send
    return before


def replace_assignors(consumer: Any, make: Callable[[Any], Any]) -> None:
    """Let the group of `consumer` be assigned by what `make` returns for each assignor."""
    consumer._coordinator._assignors = [make(each) for each in consumer._coordinator._assignors]


def rejoin(consumer: Any) -> None:
    """Let `consumer` join its group again."""
    consumer._coordinator.request_rejoin()


def static_ids_of(consumer: Any) -> tuple[str, str] | None:
    """The group and the instance id of `consumer`; `None` if it is no static member."""
    instance = getattr(consumer, "_group_instance_id", None)
    return (consumer._group_id, instance) if instance and consumer._group_id is not None else None


def forget_coordinator(consumer: Any) -> None:
    """Let `consumer` look for the coordinator of its group again."""
    consumer._coordinator.coordinator_dead()


def fetch_options(consumer: Any) -> dict[str, int]:
    """Return the fetch options of `consumer`: maximum wait (milliseconds), bytes per partition, isolation level."""
    fetcher = consumer._fetcher
    most = min(fetcher._max_partition_fetch_bytes, fetcher._fetch_max_bytes)
    return {"wait_ms": fetcher._fetch_max_wait_ms, "most": most, "isolation": fetcher._isolation_level}


def isolation_of(consumer: Any) -> int:
    """Return the isolation level of `consumer`: 1 for read_committed, otherwise 0."""
    return cast(int, consumer._fetcher._isolation_level)


async def partition_counts(consumer: Any, topics: Iterable[str]) -> dict[str, int]:
    """Return the number of partitions of each existing one of `topics`, asked now. Raise `KafkaError`."""
    metadata = await consumer._client.fetch_all_metadata()
    return {topic: len(found) for topic in topics if (found := metadata.partitions_for_topic(topic))}


async def newest_versions(admin: Any) -> dict[int, int]:
    """The newest version of each request that the brokers of `admin` know. Raises `KafkaError`."""
    response = await admin._send_request(ApiVersionRequest())
    return {key: newest for key, _, newest, *_ in response.api_versions}


async def has_controller(admin: Any) -> bool:
    """Return whether the brokers name a controller. Without one aiokafka would raise `AttributeError`; after a start they may name none."""
    if admin._client.cluster.controller is None:
        await admin._client.force_metadata_update()
    return admin._client.cluster.controller is not None


async def show_alive(consumer: Any) -> None:
    """Show the group of `consumer` that this member is alive, as a fetch does."""
    with consumer._subscription.fetch_context():
        await asyncio.sleep(0)


def serve_last(consumer: Any, partitions: Iterable[TopicPartition]) -> None:
    """Let the others come first next time. The client would serve a partition until all it has fetched of it, a megabyte, is used up."""
    waiting = consumer._fetcher._records
    for partition in partitions:
        if partition in waiting:
            waiting.move_to_end(partition)


#: The tasks of a client, by the part that has them. One that is left sends heartbeats for a member without a worker.
_TASKS: Final = {
    "_coordinator": ("_coordination_task", "_heartbeat_task", "_commit_refresh_task", "_reset_committed_task"),
    "_fetcher": ("_fetch_task",),
    "_sender": ("_sender_task",),
}


class _Closed(dict[Any, Any]):
    """Connections of a closed client. One that comes after that, since a request was under way or is made still, is closed at once."""

    def __setitem__(self, key: Any, connection: Any) -> None:
        connection.close()
        super().__setitem__(key, connection)


async def tear_down(client: Any, *, within: float) -> None:
    """End the tasks and connections that `client` has left, and all that it starts yet. Raises nothing."""
    tasks = [getattr(getattr(client, part, None), name, None) for part, names in _TASKS.items() for name in names]
    tasks += getattr(getattr(client, "_fetcher", None), "_pending_tasks", ())
    for task in tasks:
        if task is not None and not task.done():
            task.cancel()
            task.add_done_callback(_take_note)
    connections = connections_of(client)
    if connections is None:
        return
    connections._conns = _Closed(getattr(connections, "_conns", {}))
    try:
        await answer(connections.close(), within=within)
    except Exception as error:  # noqa: BLE001  # whatever it was, it can't be fixed here
        log.debug("connections of a Kafka client not closed", error=said(error))
    finally:
        # It waits for its own task first, and raises what that ended with.
        for connection in list(connections._conns.values()):
            connection.close()
