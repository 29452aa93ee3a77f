"""The page about Kubernetes: its manifests are such that a worker starts, is watched, and may end in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml  # type: ignore[import-untyped]  # ships no types
from tests.docs.pages import snippets
from tests.tables import each

from ackwise import App, Watch
from ackwise.middleware.policies.delaytopic import CANCELLATIONS, width
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.settings.config import read_config
from ackwise.plugin.settings.entries import ENTRIES, variable_of
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.web.metricnames import GROUP, METRICS
from ackwise.plugin.web.workerpages import Watching

#: Seconds until the process has ended after its drain, whatever hangs.
LAST_RESORT = 10


def manifests() -> list[Any]:
    return [found for each in snippets("docs/how-to/kubernetes.md") if each.language == "yaml" for found in yaml.safe_load_all(each.code)]


DEPLOYMENT, BUDGET, STATEFUL, SCALED = manifests()
POD = DEPLOYMENT["spec"]["template"]["spec"]
(WORKER,) = POD["containers"]


def test_they_are_a_deployment_and_what_protects_it() -> None:
    assert [each["kind"] for each in manifests()] == ["Deployment", "PodDisruptionBudget", "StatefulSet", "ScaledObject"]
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == BUDGET["spec"]["selector"]["matchLabels"] == labels


def test_the_command_line_is_one_that_ackwise_takes() -> None:
    assert WORKER["command"] == ["ackwise"]  # nothing in front of it keeps the signal
    root: Any = typer.main.get_command(new_app())
    name, *arguments = WORKER["args"]
    parsed = root.commands[name].make_context(name, arguments).params
    assert parsed["watch"] == 9464


def test_each_variable_sets_an_entry() -> None:
    known = {variable_of(path) for path in ENTRIES}
    assert [each["name"] for each in WORKER["env"] if each["name"] not in known] == []


def test_the_worker_is_scaled_by_what_its_group_reads_and_by_a_metric_of_it() -> None:
    assert SCALED["spec"]["scaleTargetRef"]["name"] == DEPLOYMENT["metadata"]["name"]
    names, (*logs, measured) = TopicNames("billing"), SCALED["spec"]["triggers"]
    read = [(log["metadata"]["consumerGroup"], log["metadata"]["topic"]) for log in logs]
    assert read == [("billing", "orders"), ("billing", names.retry), (names.relay_group, names.delay)]
    assert logs[-1]["metadata"]["partitionLimitation"] == f"{CANCELLATIONS + 1}-{width() - 1}"
    metric, group = re.findall(r"[a-z_]{9,}", measured["metadata"]["query"])
    assert (METRICS[metric].unit, group) == ("s", GROUP)


@each("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_each_probe_asks_a_page_that_is_served_at_the_port_that_is_watched(probe: str) -> None:
    asked = WORKER[probe]["httpGet"]
    ports = {port["name"]: port["containerPort"] for port in WORKER["ports"]}
    assert str(ports[asked["port"]]) == WORKER["args"][WORKER["args"].index("--watch") + 1]
    assert asked["path"] == ("/ready" if probe == "readinessProbe" else "/live")
    assert asked["path"] in Watching(Watch(), lambda: pytest.fail("nobody asks what is explained"))._pages()
    assert {each["name"]: each.get("value") for each in WORKER["env"]}["ACKWISE_WATCH__HOST"] == "0.0.0.0"  # probes come from outside


def test_a_pod_has_the_time_to_drain() -> None:
    drain: Any = ENTRIES[("drain_timeout",)].default
    assert POD["terminationGracePeriodSeconds"] > drain + LAST_RESORT


def test_a_loop_that_is_busy_for_half_a_minute_is_not_restarted() -> None:
    probe = WORKER["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > 30


def test_pods_are_replaced_one_after_the_other() -> None:
    assert DEPLOYMENT["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_a_static_member_has_the_name_of_its_pod_and_a_session_that_outlasts_its_restart() -> None:
    pod = STATEFUL["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    assert STATEFUL["spec"]["selector"]["matchLabels"] == STATEFUL["spec"]["template"]["metadata"]["labels"]
    variables = {each["name"]: each.get("value", each.get("valueFrom")) for each in worker["env"]}
    assert variables["ACKWISE_GROUP_INSTANCE_ID"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    environ = {name: value for name, value in variables.items() if isinstance(value, str)} | {"ACKWISE_GROUP_INSTANCE_ID": "billing-0"}
    settings = App("billing", config=read_config(Path("/nowhere"), environ)).settings
    assert settings.group_instance_id == "billing-0"
    assert settings.session_timeout > pod["terminationGracePeriodSeconds"] + LAST_RESORT
    assert pod["terminationGracePeriodSeconds"] == POD["terminationGracePeriodSeconds"]
