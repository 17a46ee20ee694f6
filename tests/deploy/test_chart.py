"""The Helm chart: its values, its templates, and what comes out of them."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import msgspec
import pytest
from tests.conftest import require_program
from tests.deploy.commands import DEPLOY, lines_of, parse

from homing import __version__
from homing.app import LANES, STAGES
from homing.senders.egress import METADATA
from homing.settings import FIELDS

CHART = DEPLOY / "helm/homing"
TEMPLATES = sorted((CHART / "templates").iterdir())
VALUES: dict[str, Any] = msgspec.yaml.decode((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


# ── without helm ─────────────────────────────────────────────────────────────────────────────────


def test_the_chart_is_of_this_version() -> None:
    chart = msgspec.yaml.decode((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert chart["name"] == CHART.name


def test_the_defaults_are_what_the_schema_wants() -> None:
    jsonschema_rs.Draft7Validator(SCHEMA).validate(VALUES)
    assert set(SCHEMA["properties"]) - {"global"} == set(VALUES)


@pytest.mark.parametrize(
    "wrong",
    [
        {"config": {"HOMING_PORT_": [1]}},
        {"config": {"homing_port": "1"}},
        {"workers": [{"name": "Mail Outbox"}]},
        {"workers": [{"name": "a", "lanes": ["mail"]}]},
        {"serve": {"replicas": -1}},
        {"image": {"repository": "x", "digest": "sha256:1"}},
        {"replica": 1},
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    assert not jsonschema_rs.Draft7Validator(SCHEMA).is_valid({**VALUES, **wrong})


def test_the_schema_knows_the_lanes() -> None:
    lanes = SCHEMA["properties"]["workers"]["items"]["properties"]["lanes"]["items"]["enum"]
    assert set(lanes) == {*LANES, *(stage for stages in STAGES.values() for stage in stages)}


def test_templates_use_what_there_is() -> None:
    text = "\n".join(path.read_text() for path in TEMPLATES)
    defined = set(re.findall(r'define "([^"]+)"', text))
    assert set(re.findall(r'include "([^"]+)"', text)) == defined
    for path in set(re.findall(r"\.Values\.([A-Za-z.]+)", text)):
        value: Any = VALUES
        for name in path.split("."):
            assert name in value, path
            value = value[name]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_block_ends(path: Path) -> None:
    words = Counter(re.findall(r"\{\{-?\s*(if|with|range|define|end)\b", path.read_text()))
    assert words.pop("end", 0) == sum(words.values())


def test_the_notes_name_commands_that_there_are() -> None:
    notes = (CHART / "templates/NOTES.txt").read_text().replace("{{ $exec }}", "kubectl exec --")
    commands = list(lines_of(notes))
    assert len(commands) == 3
    for arguments in commands:
        parse(arguments)


# ── with helm ────────────────────────────────────────────────────────────────────────────────────

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "everything": {
        "ingress": {"enabled": True, "className": "nginx", "tls": [{"secretName": "t", "hosts": ["h"]}]},
        "serviceMonitor": {"enabled": True, "authorization": {"secretName": "k"}, "labels": {"a": "b"}},
        "workers": [
            {"name": "mails", "lanes": ["mail_outbox", "email_log:send"], "autoscaling": {"enabled": True,
             "minReplicas": 1, "maxReplicas": 3, "targetCPUUtilizationPercentage": 70}},
            {"name": "hooks", "lanes": ["dispatch_jobs"], "replicas": 3,
             "podDisruptionBudget": {"enabled": True, "minAvailable": 2}},
        ],
        "templatesConfigMap": "templates",
        "secretKeys": {"brokerUrl": "broker-url", "jobsDatabaseUrl": "jobs-url"},
        "config": {"HOMING_RETENTION": "mail_outbox.sent=30d", "HOMING_REJECT_4XX": True,
                   "HOMING_JOBS_BATCH": 500},
        "imagePullSecrets": [{"name": "r"}],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
        ],
        "podAnnotations": {"x": "y"},
        "podLabels": {"team": "mail"},
        "priorityClassName": "high",
        "toolbox": {"enabled": True},
        "networkPolicy": {
            "serveFrom": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
        },
    },
    "nothing": {"workers": [], "migrate": {"enabled": False}, "networkPolicy": {"enabled": False},
                "serviceAccount": {"create": False}, "serve": {"podDisruptionBudget": {"enabled": False}}},
}  # fmt: skip


@cache
def helm() -> str:
    return require_program("helm")


@cache
def rendered(case: str, release: str = "homing") -> list[dict[str, Any]]:
    """As the chart makes it; `homing` is the release whose Service gives Kubernetes's own HOMING_PORT."""
    values = json.dumps({"existingSecret": "homing-secrets", **CASES[case]})
    done = subprocess.run(
        [helm(), "template", release, CHART, "--values", "-"],
        input=values,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    documents = [msgspec.yaml.decode(text) for text in re.split(r"^---$", done.stdout, flags=re.MULTILINE)]
    return [one for one in documents if one]


def pods(case: str) -> dict[str, dict[str, Any]]:
    found = [one for one in rendered(case) if one["kind"] in {"Deployment", "Job"}]
    return {one["metadata"]["name"]: one["spec"]["template"] for one in found}


@pytest.mark.parametrize("case", CASES)
def test_pods_are_restricted(case: str) -> None:
    """As the Pod Security Standard `restricted` has it, and with a root that cannot be written to."""
    for template in pods(case).values():
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False, "or a Service called homing sets HOMING_PORT"
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


@pytest.mark.parametrize("case", CASES)
def test_pods_run_commands_with_settings_that_there_are(case: str) -> None:
    for name, template in pods(case).items():
        (container,) = template["spec"]["containers"]
        assert ("args" in container) != name.endswith("-toolbox")
        parse(container.get("args", ["doctor"]))
        names = [entry["name"] for entry in container["env"]]
        assert len(names) == len(set(names))
        assert set(names) <= {*FIELDS, *(f"{field}_FILE" for field in FIELDS)}
        assert all(isinstance(entry["value"], str) for entry in container["env"])
        files = [e["value"] for e in container["env"] if e["name"].endswith("_FILE")]
        assert all(file.startswith("/etc/homing/secrets/") for file in files)


@pytest.mark.parametrize("case", CASES)
def test_probes_and_services_find_their_ports(case: str) -> None:
    for name, template in pods(case).items():
        (container,) = template["spec"]["containers"]
        if "ports" not in container:
            assert name.endswith("-toolbox") or "-migrate-" in name
            continue
        (port,) = container["ports"]
        environment = {entry["name"]: entry["value"] for entry in container["env"]}
        said = environment["HOMING_PORT" if name.endswith("-serve") else "HOMING_METRICS_PORT"]
        assert (port["name"], str(port["containerPort"])) == ("http", said)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["port"] == "http"
            assert asked["httpHeaders"] == [{"name": "Host", "value": "localhost"}]
        assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
        assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
        grace = float(environment["HOMING_GRACE_SECONDS"])
        assert template["spec"]["terminationGracePeriodSeconds"] >= grace + 10


@pytest.mark.parametrize("case", CASES)
def test_selectors_choose_pods(case: str) -> None:
    labels = [template["metadata"]["labels"] for template in pods(case).values()]
    for one in rendered(case):
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            chosen = spec["selector"]
        elif one["kind"] in {"Deployment", "PodDisruptionBudget", "ServiceMonitor", "PodMonitor"}:
            chosen = spec["selector"]["matchLabels"]
        else:
            continue
        matching = [some for some in labels if chosen.items() <= some.items()]
        several = one["kind"] == "PodMonitor"
        assert len(matching) == 1 or (several and matching), (one["kind"], one["metadata"]["name"])


def policies(case: str) -> dict[str, dict[str, Any]]:
    found = [one for one in rendered(case) if one["kind"] == "NetworkPolicy"]
    return {one["metadata"]["name"]: one["spec"] for one in found}


def chosen(policy: dict[str, Any], case: str) -> set[str]:
    wanted = policy["podSelector"]["matchLabels"].items()
    return {name for name, pod in pods(case).items() if wanted <= pod["metadata"]["labels"].items()}


@pytest.mark.parametrize("case", ["plain", "everything"])
def test_each_pod_is_reached_by_whom_it_serves(case: str) -> None:
    every, serve, metrics = (policies(case)[f"homing{what}"] for what in ("", "-serve", "-metrics"))
    assert chosen(every, case) == set(pods(case))
    assert every["ingress"] == []
    assert chosen(serve, case) == {"homing-serve"}
    assert chosen(metrics, case) == {name for name in pods(case) if "-work-" in name}
    assert serve["ingress"][0]["ports"] == metrics["ingress"][0]["ports"] == [{"port": "http"}]
    named = CASES[case].get("networkPolicy", {})
    assert serve["ingress"][0].get("from") == named.get("serveFrom")
    assert metrics["ingress"][0]["from"] == named.get("metricsFrom", [{"podSelector": {}}])


def test_no_pod_asks_the_clouds_metadata() -> None:
    (rule,) = policies("plain")["homing"]["egress"]
    excepted = [cidr for to in rule["to"] for cidr in to["ipBlock"]["except"]]
    assert sorted(excepted) == sorted(f"{one}/{one.max_prefixlen}" for one in METADATA), "as for webhooks"
    assert policies("everything")["homing"]["egress"] == CASES["everything"]["networkPolicy"]["egress"]


def test_the_pod_with_all_secrets_is_there_on_request_only() -> None:
    assert "homing-toolbox" not in pods("plain")
    assert "homing-toolbox" in pods("everything")


def test_a_pod_writes_little() -> None:
    for template in pods("plain").values():
        scratch = [one["emptyDir"] for one in template["spec"]["volumes"] if "emptyDir" in one]
        assert scratch == [{"sizeLimit": "64Mi"}] * 2


def test_a_release_is_complete() -> None:
    kinds = Counter(one["kind"] for one in rendered("everything"))
    assert kinds == {
        "Deployment": 4, "Job": 1, "Service": 1, "ServiceAccount": 1, "PodDisruptionBudget": 2,
        "HorizontalPodAutoscaler": 1, "NetworkPolicy": 3, "Ingress": 1, "ServiceMonitor": 1, "PodMonitor": 1,
    }  # fmt: skip
    (job,) = [one for one in rendered("everything") if one["kind"] == "Job"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    (scaled,) = [
        o
        for o in rendered("everything")
        if o["metadata"]["name"] == "homing-work-mails" and o["kind"] == "Deployment"
    ]
    assert "replicas" not in scaled["spec"], "the autoscaler says how many"
    assert scaled["spec"]["template"]["spec"]["containers"][0]["args"] == [
        "work",
        "mail_outbox",
        "email_log:send",
    ]
    assert Counter(one["kind"] for one in rendered("nothing")) == {"Deployment": 1, "Service": 1}


def test_a_release_without_a_secret_is_refused_in_words() -> None:
    done = subprocess.run([helm(), "template", "r", CHART], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "existingSecret: name the Secret" in done.stderr


def test_helm_lint_finds_nothing() -> None:
    done = subprocess.run(
        [helm(), "lint", "--strict", "--set", "existingSecret=s", CHART],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("case", CASES)
def test_kubernetes_knows_every_field(case: str) -> None:
    for one in rendered(case):
        # Those of the Prometheus operator are not among its schemas.
        if not one["apiVersion"].startswith("monitoring."):
            kubernetes_validate.validate(one, "1.31", strict=True)
