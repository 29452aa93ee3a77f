"""Checks of the brokers by the doctor: reachability, supported requests, topics, rights, and the share group of an app."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError, for_code

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.policies.policies import Share
from ackwise.middleware.runs.agent import readers_of
from ackwise.plugin.kafka.aiokafkainternals import newest_versions
from ackwise.plugin.kafka.topicreader import TopicReader
from ackwise.plugin.modes.shareclient import read_share_group, wanted
from ackwise.plugin.operate.machinechecks import Finding
from ackwise.plugin.settings.connecting import Address
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.group import Group
from ackwise.plugin.topics.leftovers import find_copies_elsewhere, find_strays
from ackwise.plugin.topics.topicadmin import matched_by, read_topics, with_matching
from ackwise.plugin.topics.topicpatterns import Matched
from ackwise.plugin.topics.topicplan import TopicReview, review_topics


async def share_group(settings: HostSettings, share: Share) -> Finding:
    """Raises `ConfigurationError` if brokers know no share groups or tell nothing of this one, `Unavailable` if they don't answer."""
    found = await read_share_group(settings, share)
    subject = f"group {share.group_of(settings.group)}"
    needed = {name: value for name, value in wanted(settings, share).items() if found[name] != value}
    if not needed:
        return Finding(subject, "ok", ", ".join(f"{name} {value}" for name, value in found.items()))
    listed = ", ".join(f"{name} is {found[name] or 'not set'}" for name in needed)
    return Finding(subject, "warning", listed, f"the start of a worker sets {', '.join(needed.values())}, if it may")


#: Requests by Kafka's number for them: what a worker sends, and what it sends to make its topics.
_TO_WORK: Final = {0: "Produce", 1: "Fetch", 2: "ListOffsets", 8: "OffsetCommit", 9: "OffsetFetch", 11: "JoinGroup"}
_TO_MAKE_TOPICS: Final = {19: "CreateTopics", 32: "DescribeConfigs", 37: "CreatePartitions"}


def judge_addresses(found: Mapping[Address, str | None]) -> Finding:
    """Findings on the addresses that were given; `found` has the error of each."""
    away = [f"{address}: {why}" for address, why in found.items() if why is not None]
    if not away:
        return Finding("brokers", "ok", f"{', '.join(map(str, found))} {'takes' if len(found) == 1 else 'take'} connections")
    if len(away) < len(found):
        return Finding("brokers", "warning", "; ".join(away), "start it, or leave it out of brokers; the others answer")
    return Finding("brokers", "problem", "; ".join(away), "start Kafka there, or correct brokers")


async def cluster(admin: AIOKafkaAdminClient) -> list[Finding]:
    """How many brokers there are, and which requests they understand."""
    described = await admin.describe_cluster()
    brokers = described["brokers"]
    names = ", ".join(f"{broker['node_id']} at {broker['host']}:{broker['port']}" for broker in brokers)
    newest = await newest_versions(admin)
    return [Finding("cluster", "ok", f"{len(brokers)} {'broker' if len(brokers) == 1 else 'brokers'}: {names}"), judge_requests(newest)]


def judge_requests(newest: Mapping[int, int]) -> Finding:
    """Whether the brokers understand what a worker sends; `newest` has the newest version of each request."""
    if missing := [name for key, name in _TO_WORK.items() if key not in newest]:
        return Finding("requests", "problem", f"the brokers know no {', '.join(missing)}", "use brokers of Kafka 2.1 or newer")
    if missing := [name for key, name in _TO_MAKE_TOPICS.items() if key not in newest]:
        return Finding("requests", "warning", f"the brokers know no {', '.join(missing)}", "set create_topics to 'broker'")
    return Finding("requests", "ok", ", ".join(f"{name} v{newest[key]}" for key, name in (_TO_WORK | _TO_MAKE_TOPICS).items()))


def judge_throttling(seconds: float, client_id: str) -> Finding:
    """Whether brokers delayed what the doctor asked; `seconds` is the sum of what their answers said."""
    if not seconds:
        return Finding("throttling", "ok", "no broker delayed an answer to the doctor; workers have ackwise_broker_throttle_seconds_total")
    found = f"brokers delayed their answers to the doctor by {seconds:.1f} s: a quota of this user or of client id {client_id!r} is used up"
    return Finding("throttling", "warning", found, "raise it with kafka-configs.sh, or let the group send and read less")


async def patterns(group: Group) -> list[Finding]:
    """What the patterns of the group match now."""
    return judge_patterns(group, await matched_by(group)) if group.patterns else []


def judge_patterns(group: Group, matched: Matched) -> list[Finding]:
    """A line of what each pattern matches, and one for each topic that it matches and that is not read."""
    findings = []
    for name, pattern in group.patterns.items():
        its = [topic for topic in matched.topics if readers_of(group.agents, topic)[0].name == name]
        if its:
            findings.append(Finding("patterns", "ok", f"{pattern} of {name} matches {', '.join(its)}"))
        else:
            advice = "its topics are found once they are made; correct the pattern if they are there"
            findings.append(Finding("patterns", "warning", f"{pattern} of {name} matches no topic", advice))
    findings += [Finding("patterns", "problem", *_parted(sentence)) for sentence in matched.disputed.values()]
    return findings + [Finding("patterns", "warning", *_parted(sentence)) for sentence in matched.of_groups.values()]


async def topics(group: Group) -> list[Finding]:
    """Whether the topics of the group are there and fit."""
    if group.settings.create_topics == "broker":
        return [Finding("topics", "ok", "they are left to the broker's auto-creation, and were not looked at")]
    group = await with_matching(group)
    found = await read_topics(group.settings, {*group.sources, *group.names.all, group.names.control})
    reviews = review_topics(
        group.names,
        group.expected(found),
        found,
        longest_delay=group.levels.seconds[-1],
        rungs=group.settings.rungs,
        in_place=group.in_place,
    )
    strays = await find_strays(group.settings, group.names)
    elsewhere, _ = await find_copies_elsewhere(group.settings, group.names, group.sources)
    return [
        *judge_topics(reviews, are_created=group.settings.create_topics == "auto"),
        *(Finding("topics", "problem", *_parted(sentence)) for sentence in elsewhere),
        *(Finding("topics", "warning", *_parted(stray.sentence)) for stray in strays.found),
    ]


def judge_topics(reviews: Sequence[TopicReview], *, are_created: bool) -> list[Finding]:
    """A line for each fault, and one for what is missing, which is no problem if the start of a worker creates it."""
    findings = []
    for fault in (fault for review in reviews for fault in review.faults):
        found, _, advice = fault.rpartition("; ")
        findings.append(Finding("topics", "problem", found, advice))
    if any(review.role == "control" and review.todo == "create" for review in reviews) and not are_created:
        advice = "run ackwise topics create; workers start without it"
        findings.append(Finding("topics", "warning", "the control topic is missing, ackwise pause reaches no worker", advice))
    findings += [Finding("topics", "warning", *_parted(review.advice)) for review in reviews if review.role == "control" and review.advice]
    absent = [review.topic for review in reviews if review.todo in ("create", "extend") and (are_created or review.role != "control")]
    if absent:
        found = f"{len(absent)} are missing or too narrow, {absent[0]} first"
        if are_created:
            findings.append(Finding("topics", "warning", found, "the start of a worker makes them, and ackwise topics create does it now"))
        else:
            findings.append(Finding("topics", "problem", found, "run ackwise topics create, since create_topics is 'never'"))
    return findings or [Finding("topics", "ok", f"all {len(reviews)} are there and fit")]


def _parted(sentence: str) -> tuple[str, str]:
    found, _, advice = sentence.rpartition("; ")
    return found, advice


async def membership(admin: AIOKafkaAdminClient, group: Group) -> list[Finding]:
    """Whether this client may read the group and that of its relay, and who is in them."""
    found = [await _membership(admin, name) for name in _groups(group)]
    return [*found[:1], *(judge_relay(group.settings, each) for each in found[1:])]


def _groups(group: Group) -> list[str]:
    """Those that its worker joins: that of the relay only where something is sent back."""
    policy = group.slots.broadcasting
    if policy is not None:
        return [group.settings.group] if policy.offsets_file is None else []
    return [group.settings.group, group.names.relay_group]


def judge_relay(settings: HostSettings, membership: Finding) -> Finding:
    """Whether a relay moves copies where no worker does; `membership` is the finding on the relay's group."""
    if settings.relay == "inside" or membership.verdict != "ok" or not membership.found.startswith("0 "):
        return membership
    found = f"{membership.found}, and no worker is one (relay = apart)"
    return Finding(membership.subject, "warning", found, "run ackwise relay MODULE:APP, or copies wait")


async def _membership(admin: AIOKafkaAdminClient, group: str) -> Finding:
    subject = f"group {group}"
    try:
        (answer,) = await admin.describe_consumer_groups([group])
        described: Any = answer.to_object()["groups"][0]
        if described["error_code"]:
            raise for_code(described["error_code"])
        committed = await admin.list_consumer_group_offsets(group)
    except KafkaError as error:
        found = f"it can't be looked at ({type(error).__name__})"
        if isinstance(error, GroupAuthorizationFailedError | TopicAuthorizationFailedError):
            return Finding(subject, "problem", found, "allow this client to read and describe the group and its topics")
        return Finding(subject, "warning", found, "try again in a moment; a cluster that has just started knows no groups yet")
    members = len(described["members"])
    return Finding(subject, "ok", f"{members} {'member' if members == 1 else 'members'} now, committed on {len(committed)} partitions")


async def records(admin: AIOKafkaAdminClient, group: Group) -> list[Finding]:
    """Whether this client may read what a worker reads, and whether records of the sources claim to be from the future."""
    reader = TopicReader(admin, committed=False)
    sources = await reader.partitions((await with_matching(group)).sources)
    needed = [topic for topic in group.names.all if topic != group.names.dead_letter]
    ours = await reader.partitions([*needed, group.names.control] if needed else [])
    if not sources and not ours:
        return [Finding("reading", "ok", "there is no topic yet to read")]
    now_ms = round((time.time() + group.settings.clock_skew) * 1000)
    ahead = await reader.offsets(sources, now_ms)
    early = {partition: (offset, (at - now_ms) / 1000) for partition, (offset, at) in ahead.items() if offset >= 0}
    return [await _reading(reader, [*sources, *ours]), judge_times(early)]


async def _reading(reader: TopicReader, partitions: Sequence[TopicPartition]) -> Finding:
    try:
        await reader.try_to_read(partitions)
    except ConfigurationError as error:
        return Finding("reading", "problem", *_parted(str(error)))
    return Finding("reading", "ok", f"{len(partitions)} partitions were read from; whether this client may write was not tried")


def judge_times(early: Mapping[TopicPartition, tuple[int, float]]) -> Finding:
    """Whether some clock is wrong; `early` has the first record from the future in a partition: its offset, and by how many seconds."""
    if not early:
        return Finding("record times", "ok", "no record of a source is from the future")
    (topic, number), (offset, seconds) = next(iter(early.items()))
    found = f"{topic}/{number} has a record at offset {offset} that is {seconds:.1f} s from the future"
    return Finding("record times", "warning", found, "compare the clocks of this machine, of the brokers and of the producers")
