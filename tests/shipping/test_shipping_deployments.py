"""Compose files and Kubernetes: what is named exists, and lanes are started as our launcher does it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from outrider.config import UrlSection, load_config
from outrider.profiles import SGLangSection, SpeculationSection
from outrider.runtimes.launch import server_arguments
from outrider.version import __version__
from shipping.dockerfiles import DOCKER, ROOT, is_command

KUBERNETES = ROOT / "k8s"
COMPOSE = {path.name: path for path in DOCKER.glob("compose.*.yaml")}
LANES = ("eagle3", "ngram", "plain")


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def objects(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def flags(arguments: list[str]) -> dict[str, str]:
    """Flag to value; `--flag value` and `--flag=value` are the same."""
    found: dict[str, str] = {}
    last = ""
    for part in arguments:
        if part.startswith("--"):
            last, _, found[last] = part.partition("=")
            found[last] = part.partition("=")[2]
        else:
            found[last] = part
    return found


def launched(lane: UrlSection, model: str, max_running: int) -> dict[str, str]:
    """What our launcher would give to a server that speculates as the gateway's configuration says of the lane."""
    how = lane.speculation or SpeculationSection()
    section = SGLangSection(name=lane.name, kind="sglang", model=model, max_running=max_running, speculation=how)
    found = flags(server_arguments(section, 30000, lambda name: name))
    return {flag: value for flag, value in found.items() if flag not in ("--host", "--port")}


def url_lanes(path: Path) -> dict[str, UrlSection]:
    lanes = load_config(path).lanes
    assert all(isinstance(lane, UrlSection) for lane in lanes)
    return {lane.name: lane for lane in lanes if isinstance(lane, UrlSection)}


def commands_in_compose() -> dict[str, list[str]]:
    services = loaded(COMPOSE["compose.gpu.yaml"])["services"]
    return {name.removeprefix("lane-"): one["command"] for name, one in services.items() if name.startswith("lane-")}


def commands_in_kubernetes() -> dict[str, list[str]]:
    found = {}
    for name in LANES:
        (patch,) = loaded(KUBERNETES / "lanes" / name / "kustomization.yaml")["patches"]
        (container,) = yaml.safe_load(patch["patch"])["spec"]["template"]["spec"]["containers"]
        found[name] = container["args"]
    return found


@pytest.mark.parametrize(
    ("commands", "config"),
    [
        (commands_in_compose, DOCKER / "config" / "gateway.gpu.yaml"),
        (commands_in_kubernetes, KUBERNETES / "gateway-config.yaml"),
    ],
    ids=["compose", "kubernetes"],
)
def test_lanes_are_started_as_the_gateway_is_told(commands: Any, config: Path) -> None:
    """Each server's arguments are those of our launcher for what the gateway's configuration says of the lane."""
    started, lanes = commands(), url_lanes(config)
    assert set(started) == set(lanes) == set(LANES)
    for name, lane in lanes.items():
        given = flags(started[name])
        assert given == launched(lane, given["--model-path"], int(given["--max-running-requests"])), name


def images(node: Any) -> Iterator[str]:
    """Every value of a key `image`, wherever it stands."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "image":
                yield value
            else:
                yield from images(value)
    elif isinstance(node, list):
        for item in node:
            yield from images(item)


@pytest.mark.parametrize("name", COMPOSE)
def test_a_compose_file_names_what_exists(name: str) -> None:
    """Dockerfiles, mounted files, services that others wait for, commands of ours; and images by exact tags."""
    compose = loaded(COMPOSE[name])
    services = compose["services"]
    for one in services.values():
        if "build" in one:
            assert (DOCKER / one["build"]["context"]).resolve() == ROOT
            assert (ROOT / one["build"]["dockerfile"]).is_file()
        for volume in one.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DOCKER / source).exists() if source.startswith(".") else source in compose["volumes"], volume
        assert set(one.get("depends_on", ())) <= set(services)
        if one["image"].startswith(("outrider-gateway", "outrider-engine")) and "command" in one:
            assert is_command(one["command"])
        assert one["cap_drop"] == ["ALL"] and one["security_opt"] == ["no-new-privileges:true"]
    for image in images(compose):
        tag = __version__ if image.startswith("outrider-") else r"v?\d+\.\d+\.\d+"
        assert re.fullmatch(rf"[\w./-]+:{tag}", image), image


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_the_gateway_finds_its_lanes(kind: str) -> None:
    """Every lane's host is a service of the compose file; so is every target of Prometheus."""
    services = loaded(COMPOSE[f"compose.{kind}.yaml"])["services"]
    config = DOCKER / "config" / f"gateway.{kind}.yaml"
    assert any(str(config.relative_to(DOCKER)) in volume for volume in services["gateway"]["volumes"])
    for lane in url_lanes(config).values():
        assert {urlsplit(url).hostname for url in lane.urls} <= set(services)
        assert {urlsplit(url).port for url in lane.urls} == {30000}
    if "prometheus" in services:
        jobs = loaded(DOCKER / "prometheus" / "prometheus.yml")["scrape_configs"]
        targets = [target for job in jobs for one in job["static_configs"] for target in one["targets"]]
        assert {target.split(":")[0] for target in targets} == {"gateway", *(f"lane-{name}" for name in LANES)}


def test_no_port_is_open_to_others_unasked() -> None:
    """Without a key anybody may ask; so ports are this machine's until the operator says otherwise."""
    for path in COMPOSE.values():
        for one in loaded(path)["services"].values():
            for port in one.get("ports", ()):
                assert port.startswith(("127.0.0.1:", "${OUTRIDER_BIND:-127.0.0.1}:"))


def test_every_name_of_a_lane_is_a_headless_service() -> None:
    """The gateway asks for the addresses of what the folder of each lane makes, with its port and namespace."""
    (service,) = (one for one in objects(KUBERNETES / "lane" / "lane.yaml") if one["kind"] == "Service")
    assert service["spec"]["clusterIP"] == "None" and not service["spec"].get("publishNotReadyAddresses")
    root = loaded(KUBERNETES / "kustomization.yaml")
    for name, lane in url_lanes(KUBERNETES / "gateway-config.yaml").items():
        suffix = loaded(KUBERNETES / "lanes" / name / "kustomization.yaml")["nameSuffix"]
        host = f"{service['metadata']['name']}{suffix}.{root['namespace']}.svc.cluster.local"
        assert lane.resolve and lane.urls == (f"http://{host}:{service['spec']['ports'][0]['port']}",)
        assert f"lanes/{name}" in root["resources"]
    assert {one["newTag"] for one in root["images"]} == {__version__}


def pods() -> dict[str, dict[str, Any]]:
    files = (KUBERNETES / "gateway.yaml", KUBERNETES / "lane" / "lane.yaml")
    found = [one for file in files for one in objects(file) if one["kind"] in ("Deployment", "StatefulSet")]
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in found}


@pytest.mark.parametrize("name", ["gateway", "lane"])
def test_pods_are_closed(name: str) -> None:
    """Not root, no writable root, no capability, no token of the cluster; asked on paths that are there."""
    spec = pods()[name]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    gateway = {"startup": "/live", "liveness": "/live", "readiness": "/ready"}
    # SGLang's /health makes the engine write a token; its /ready asks only whether it would.
    assert paths == (
        gateway if name == "gateway" else {"startup": "/ready", "liveness": "/health", "readiness": "/ready"}
    )


def test_a_pod_may_take_as_long_as_its_parts_to_stop() -> None:
    """The cluster's patience is longer than the pause before the stop and the gateway's grace."""
    spec = pods()["gateway"]
    pause_s = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace_s = load_config(KUBERNETES / "gateway-config.yaml").server.shutdown_grace_s
    assert spec["terminationGracePeriodSeconds"] > pause_s + grace_s
