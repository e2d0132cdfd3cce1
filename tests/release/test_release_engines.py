"""What only an engine of containers, a GPU or a cluster can show; where there is none it is told as not run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import aiohttp
import pytest

from not_run import not_run
from release.conftest import ROOT
from release.environment import TOOLS
from release.processes import asked, ran
from shipping.dockerfiles import DOCKER

pytestmark = [pytest.mark.release, pytest.mark.timeout(3600)]


def works(*command: str) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


def needs_docker(what: str, command: str, *, on_gpus: bool = False) -> None:
    """Leaves the test where no engine runs, and says which command does it where one does."""
    if not works("docker", "info") or (on_gpus and not works("nvidia-smi")):
        gpus = " and GPUs" if on_gpus else ""
        not_run(f"{what}, for want of a Docker engine{gpus}; where there is one: {command}")


async def test_compose_on_a_laptop() -> None:
    """The two images are built on their real bases, the model is fetched, and the gateway answers."""
    up = "docker compose --file docker/compose.cpu.yaml up --build"
    needs_docker("gateway and engine on their real base image, by compose", up)
    compose = ["docker", "compose", "--project-name", "outrider-release-check", "--file", "docker/compose.cpu.yaml"]
    try:
        ran(*compose, "up", "--build", "--detach", "--wait", "engine", "gateway", cwd=ROOT)
        await asked("http://127.0.0.1:8000")
    finally:
        ran(*compose, "down", "--volumes", cwd=ROOT)


async def test_compose_on_gpus() -> None:
    """The lanes answer through the gateway, Prometheus has seen all of them, and Grafana has the dashboard."""
    up = "HF_TOKEN=... GRAFANA_PASSWORD=... docker compose --file docker/compose.gpu.yaml up --build"
    needs_docker("three lanes of SGLang before Prometheus and Grafana, by compose", up, on_gpus=True)
    variables = os.environ | {"GRAFANA_PASSWORD": "release-check"}
    compose = ["docker", "compose", "--project-name", "outrider-release-check", "--file", "docker/compose.gpu.yaml"]
    (board,) = (DOCKER / "grafana" / "dashboards").glob("*.json")
    uid = json.loads(board.read_text(encoding="utf-8"))["uid"]
    count = "http://localhost:9090/api/v1/query?query=count(up%3D%3D1)"
    try:
        ran(*compose, "up", "--build", "--detach", "--wait", cwd=ROOT, variables=variables)
        await asked("http://127.0.0.1:8000")
        seen = ran(*compose, "exec", "prometheus", "wget", "-qO-", count, cwd=ROOT, variables=variables)
        assert json.loads(seen.stdout)["data"]["result"][0]["value"][1] == "4"
        admin = aiohttp.BasicAuth("admin", variables["GRAFANA_PASSWORD"])
        grafana = aiohttp.ClientSession("http://127.0.0.1:3000", auth=admin)
        async with grafana as http, http.get(f"/api/dashboards/uid/{uid}") as response:
            assert response.status == 200, await response.text()
    finally:
        ran(*compose, "down", "--volumes", cwd=ROOT, variables=variables)


def test_the_image_of_sglang() -> None:
    """It is built, and SGLang finds our plugin in it."""
    needs_docker("the image of SGLang", "docker build --file docker/sglang.Dockerfile .")
    tag = "outrider-sglang:check"
    ran("docker", "build", "--file", "docker/sglang.Dockerfile", "--tag", tag, ".", cwd=ROOT)
    code = "from importlib.metadata import entry_points as e; print([p.name for p in e(group='sglang.srt.plugins')])"
    assert "outrider" in ran("docker", "run", "--rm", "--entrypoint", "python", tag, "-c", code).stdout


async def test_a_cluster_takes_the_objects() -> None:
    """Its server checks them, admission included; nothing is kept."""
    status, _ = await TOOLS.run("kubectl", "get", "namespace", "outrider", "--request-timeout", "3s")
    if status != 0:
        command = "kubectl apply --kustomize k8s --dry-run=server"
        not_run(f"a cluster's checks of k8s/, for want of one with the namespace outrider; where there is: {command}")
    objects = ("kubectl", "apply", "--kustomize", str(ROOT / "k8s"), "--dry-run", "server", "-o", "json")
    status, out = await TOOLS.run(*objects)
    assert status == 0 and json.loads(out)["items"], out
