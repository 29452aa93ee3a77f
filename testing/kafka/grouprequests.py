"""Requests of the members of consumer groups, and about groups."""

from __future__ import annotations

from collections.abc import Callable

from aiokafka.errors import BrokerResponseError, GroupIdNotFound, InvalidSessionTimeoutError, MemberIdRequired, NonEmptyGroup

from ackwise.testing.kafka.cluster import Cluster
from ackwise.testing.kafka.frames import NODE, Answer, Asked, Serve, Values, tried
from ackwise.testing.kafka.group import Committed, ConsumerGroup


class GroupRequests:
    """The requests to a group coordinator."""

    def __init__(self, cluster: Cluster, port: Callable[[], int], sessions: tuple[float, float]) -> None:
        """`port` is where the broker is reached. `sessions`: the least and the longest time-out of one, in seconds."""
        self._cluster = cluster
        self._port = port
        self._sessions = sessions
        self.serves: dict[str, Serve] = {
            "FindCoordinator": self._find_coordinator,
            "JoinGroup": self._join_group,
            "SyncGroup": self._sync_group,
            "Heartbeat": self._heartbeat,
            "LeaveGroup": self._leave_group,
            "OffsetCommit": self._offset_commit,
            "OffsetFetch": self._offset_fetch,
            "ListGroups": self._list_groups,
            "DescribeGroups": self._describe_groups,
            "DeleteGroups": self._delete_groups,
        }

    async def _find_coordinator(self, asked: Asked, refused: int) -> Answer:
        return {"error_code": refused, "coordinator_id": NODE, "host": "127.0.0.1", "port": self._port()}

    async def _join_group(self, asked: Asked, refused: int) -> Answer:
        body = asked.body
        nothing = {"generation_id": -1, "group_protocol": "", "leader_id": "", "member_id": body["member_id"], "members": []}
        answer: Answer = {"error_code": refused, **nothing}
        if refused:
            return answer
        session = body["session_timeout"] / 1000
        try:
            if not self._sessions[0] <= session <= self._sessions[1]:
                raise InvalidSessionTimeoutError(f"{session} s, it may be {self._sessions[0]:g} to {self._sessions[1]:g}")
            return await self._cluster.group(body["group"]).join(
                member_id=body["member_id"],
                instance=body.get("group_instance_id"),
                client_id=asked.client_id,
                session=session,
                rebalance=body.get("rebalance_timeout", body["session_timeout"]) / 1000,
                protocol_type=body["protocol_type"],
                protocols=[(each["protocol_name"], each["protocol_metadata"]) for each in body["group_protocols"]],
                asks_twice=asked.version >= 4,
            )
        except MemberIdRequired as error:
            return answer | {"error_code": error.errno, "member_id": str(error.args[0])}
        except BrokerResponseError as error:
            return answer | {"error_code": error.errno}

    async def _sync_group(self, asked: Asked, refused: int) -> Answer:
        body = asked.body
        if refused:
            return {"error_code": refused, "member_assignment": b""}
        try:
            assignment = await self._cluster.group(body["group"]).sync(
                member_id=body["member_id"],
                instance=body.get("group_instance_id"),
                generation=body["generation_id"],
                assignments={each["member_id"]: each["member_metadata"] for each in body["group_assignment"]},
            )
        except BrokerResponseError as error:
            return {"error_code": error.errno, "member_assignment": b""}
        return {"error_code": 0, "member_assignment": assignment}

    async def _heartbeat(self, asked: Asked, refused: int) -> Answer:
        def beat(body: Values) -> None:
            self._cluster.group(body["group"]).heartbeat(
                member_id=body["member_id"], instance=body.get("group_instance_id"), generation=body["generation_id"]
            )

        return tried(refused, beat, asked.body)

    async def _leave_group(self, asked: Asked, refused: int) -> Answer:
        return tried(refused, lambda body: self._cluster.group(body["group"]).leave(body["member_id"]), asked.body)

    async def _offset_commit(self, asked: Asked, refused: int) -> Answer:
        body, group = asked.body, self._cluster.group(asked.body["consumer_group"])
        if not refused:
            refused = tried(0, self._check_commit, group, body)["error_code"]

        def commit(topic: str, wanted: Values) -> None:
            self._cluster.log(topic, wanted["partition"])
            group.commit((topic, wanted["partition"]), wanted["offset"], wanted["metadata"] or "")

        return {
            "topics": [
                {
                    "topic": topic["topic"],
                    "partitions": [
                        {"partition": wanted["partition"], "error_code": tried(refused, commit, topic["topic"], wanted)["error_code"]}
                        for wanted in topic["partitions"]
                    ],
                }
                for topic in body["topics"]
            ]
        }

    def _check_commit(self, group: ConsumerGroup, body: Values) -> None:
        group.check_commit(
            member_id=body["consumer_id"], instance=body.get("group_instance_id"), generation=body["consumer_group_generation_id"]
        )

    async def _offset_fetch(self, asked: Asked, refused: int) -> Answer:
        group, wanted = self._cluster.groups.get(asked.body["consumer_group"]), asked.body["topics"]
        offsets = {} if group is None else group.offsets
        if wanted is None:
            names = sorted({topic for topic, _ in offsets})
            wanted = [{"topic": name, "partitions": sorted(number for topic, number in offsets if topic == name)} for name in names]
        nothing = Committed(-1, "")
        return {
            "error_code": refused,
            "topics": [
                {
                    "topic": topic["topic"],
                    "partitions": [
                        {"partition": number, "error_code": refused, **offsets.get((topic["topic"], number), nothing)._asdict()}
                        for number in topic["partitions"]
                    ],
                }
                for topic in wanted
            ],
        }

    async def _list_groups(self, asked: Asked, refused: int) -> Answer:
        return {
            "error_code": refused,
            "groups": [{"group": name, "protocol_type": group.protocol_type} for name, group in sorted(self._cluster.groups.items())],
        }

    async def _describe_groups(self, asked: Asked, refused: int) -> Answer:
        groups = [self._cluster.groups.get(name) or ConsumerGroup(name) for name in asked.body["groups"]]
        if refused:
            return {"groups": [{**group.described(), "error_code": refused, "state": "", "members": []} for group in groups]}
        return {"groups": [{**group.described(), **({} if group.name in self._cluster.groups else {"state": "Dead"})} for group in groups]}

    async def _delete_groups(self, asked: Asked, refused: int) -> Answer:
        def delete(name: str) -> None:
            if name not in self._cluster.groups:
                raise GroupIdNotFound(name)
            if self._cluster.groups[name].members:
                raise NonEmptyGroup(name)
            del self._cluster.groups[name]

        return {
            "results": [{"group_id": name, "error_code": tried(refused, delete, name)["error_code"]} for name in asked.body["groups_names"]]
        }
