"""Requests about topics, their settings and the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiokafka.errors import (
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)

from ackwise.plugin.kafka.protocolrequests import NO_TOPIC_ID
from ackwise.testing.kafka.cluster import DEFAULTS, Cluster, check_configs, is_topic_name
from ackwise.testing.kafka.frames import NODE, Answer, Asked, Serve, Values, tried, versions
from ackwise.testing.kafka.partition import PartitionLog

_OF_TOPIC: Final = 2
"""The type of a resource that is a topic."""


class TopicRequests:
    """The requests about topics."""

    def __init__(self, cluster: Cluster, port: Callable[[], int]) -> None:
        """`port` is where the broker is reached."""
        self._cluster = cluster
        self._port = port
        self.serves: dict[str, Serve] = {
            "ApiVersions": self._api_versions,
            "Metadata": self._metadata,
            "CreateTopics": self._create_topics,
            "DeleteTopics": self._delete_topics,
            "CreatePartitions": self._create_partitions,
            "DescribeConfigs": self._describe_configs,
            "AlterConfigs": self._alter_configs,
            "DeleteRecords": self._delete_records,
        }

    async def _api_versions(self, asked: Asked, refused: int) -> Answer:
        return {"error_code": refused, "api_versions": versions()}

    async def _metadata(self, asked: Asked, refused: int) -> Answer:
        names = asked.body.get("topics")
        if names is not None:
            names = [each if isinstance(each, str) else each["topic"] for each in names]
        if names is None or (asked.version == 0 and not names):
            names = sorted(self._cluster.topics)
        return {
            "brokers": [{"node_id": NODE, "host": "127.0.0.1", "port": self._port()}],
            "controller_id": NODE,
            "topics": [self._metadata_of(name, refused, may_create=asked.body.get("allow_auto_topic_creation", True)) for name in names],
        }

    def _metadata_of(self, name: str, refused: int, *, may_create: bool) -> Answer:
        if not is_topic_name(name):
            refused = refused or InvalidTopicError.errno
        if self._cluster.auto_create and may_create and name not in self._cluster.topics and not refused:
            self._cluster.create(name, 1, {})
        code = refused or (0 if name in self._cluster.topics else UnknownTopicOrPartitionError.errno)
        partitions = [] if code else range(len(self._cluster.topics[name].partitions))
        return {
            "error_code": code,
            "topic": name,
            "topic_id": NO_TOPIC_ID if code else self._cluster.topics[name].id,
            "partitions": [
                {"error_code": 0, "partition": number, "leader": NODE, "replicas": [NODE], "isr": [NODE]} for number in partitions
            ],
        }

    async def _create_topics(self, asked: Asked, refused: int) -> Answer:
        def create(wanted: Values) -> None:
            partitions = len(wanted["replica_assignment"]) or wanted["num_partitions"]
            if not wanted["replica_assignment"] and wanted["replication_factor"] not in (-1, 1):
                raise InvalidReplicationFactorError("this Kafka has one broker")
            self._cluster.create(
                wanted["topic"],
                1 if partitions == -1 else partitions,
                {each["config_key"]: each["config_value"] for each in wanted["configs"]},
                try_only=asked.body.get("validate_only", False),
            )

        return {"topic_errors": [{"topic": each["topic"], **tried(refused, create, each)} for each in asked.body["create_topic_requests"]]}

    async def _delete_topics(self, asked: Asked, refused: int) -> Answer:
        answers = [{"topic": name, "error_code": tried(refused, self._cluster.delete, name)["error_code"]} for name in asked.body["topics"]]
        return {"topic_error_codes": answers}

    async def _create_partitions(self, asked: Asked, refused: int) -> Answer:
        def create(wanted: Values) -> None:
            logs, total = self._cluster.topic(wanted["topic"]).partitions, wanted["new_partitions"]["count"]
            if total <= len(logs):
                raise InvalidPartitionsError(f"{wanted['topic']} has {len(logs)} partitions, {total} were asked for")
            if not asked.body["validate_only"]:
                logs += [PartitionLog() for _ in range(total - len(logs))]

        return {"topic_errors": [{"topic": each["topic"], **tried(refused, create, each)} for each in asked.body["topic_partitions"]]}

    async def _describe_configs(self, asked: Asked, refused: int) -> Answer:
        answers = []
        for resource in asked.body["resources"]:
            entries: list[Answer] = []

            def describe(resource: Values = resource, entries: list[Answer] = entries) -> None:
                if resource["resource_type"] != _OF_TOPIC:
                    return
                topic = self._cluster.topic(resource["resource_name"])
                for name, value in {**DEFAULTS, **topic.configs}.items():
                    if resource["config_names"] is None or name in resource["config_names"]:
                        entries.append(
                            {
                                "config_names": name,
                                "config_value": value,
                                "read_only": False,
                                "is_default": name not in topic.configs,
                                "config_source": 1 if name in topic.configs else 5,
                                "is_sensitive": False,
                                "config_synonyms": [],
                            }
                        )

            answers.append({**tried(refused, describe), **_named(resource), "config_entries": entries})
        return {"resources": answers}

    async def _alter_configs(self, asked: Asked, refused: int) -> Answer:
        def alter(resource: Values) -> None:
            if resource["resource_type"] == _OF_TOPIC:
                topic, configs = self._cluster.topic(resource["resource_name"]), resource["config_entries"]
                wanted = {each["config_name"]: each["config_value"] for each in configs}
                check_configs(wanted)
                if not asked.body["validate_only"]:
                    topic.configs = wanted

        return {"resources": [{**tried(refused, alter, each), **_named(each)} for each in asked.body["resources"]]}

    async def _delete_records(self, asked: Asked, refused: int) -> Answer:
        def delete(topic: str, partition: Values) -> None:
            log, before = self._cluster.log(topic, partition["partition_index"]), partition["offset"]
            if not -1 <= before <= log.end:
                raise OffsetOutOfRangeError(f"{before} is outside of {log.start} to {log.end}")
            log.trim(log.end if before < 0 else before)

        topics = []
        for topic in asked.body["topics"]:
            partitions = []
            for partition in topic["partitions"]:
                code = tried(refused, delete, topic["name"], partition)["error_code"]
                low = -1 if code else self._cluster.log(topic["name"], partition["partition_index"]).start
                partitions.append({"partition_index": partition["partition_index"], "low_watermark": low, "error_code": code})
            topics.append({"name": topic["name"], "partitions": partitions})
        return {"topics": topics}


def _named(resource: Values) -> Answer:
    return {"resource_type": resource["resource_type"], "resource_name": resource["resource_name"]}
