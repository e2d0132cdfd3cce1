"""Linters of other makers over images, compose files, Kubernetes, YAML, shell and queries: no complaint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from release.conftest import ROOT
from release.environment import TOOLS
from shipping.dashboards import queries

pytestmark = pytest.mark.release

#: Written as environment variables by who starts the files.
GIVEN = {"GRAFANA_PASSWORD": "none", "HF_TOKEN": "none"}
#: The oldest that has all that is used (a pause before the stop), and the newest that the checker knows.
KUBERNETES = ("1.32", "1.37")
_PARSE = "import json, sys, promql_parser as p; [p.parse(one) for one in json.loads(sys.argv[1])]"


async def clean(*command: str, variables: dict[str, str] | None = None) -> str:
    """What the program printed. It must have ended well."""
    status, out = await TOOLS.run(*command, cwd=ROOT, variables=variables)
    assert status == 0, out
    return out


async def test_hadolint() -> None:
    """Dockerfiles, the shell in them included."""
    assert await clean("hadolint", *(str(one) for one in sorted((ROOT / "docker").glob("*.Dockerfile")))) == ""


async def test_yamllint() -> None:
    """All YAML that ships; warnings count."""
    assert await clean("yamllint", "--strict", "docker", "k8s", "configs", "policies", "workloads") == ""


async def test_shellcheck() -> None:
    """The scripts of the tree."""
    scripts = [ROOT / ".ci" / "run", *sorted((ROOT / "tests").rglob("*.sh"))]
    assert await clean("shellcheck", *map(str, scripts)) == ""


@pytest.mark.parametrize("name", ["cpu", "gpu"])
async def test_docker_compose(name: str) -> None:
    """Compose itself reads the files, with every variable; nothing is started, which needs an engine."""
    out = await clean("docker-compose", "--file", f"docker/compose.{name}.yaml", "config", "--format", "json",
        variables=GIVEN)  # fmt: skip
    assert "gateway" in json.loads(out)["services"]


async def test_a_compose_file_without_its_password_is_refused() -> None:
    """Grafana has no default password here."""
    status, out = await TOOLS.run("docker-compose", "--file", "docker/compose.gpu.yaml", "config", cwd=ROOT)
    assert status != 0 and "GRAFANA_PASSWORD" in out


async def test_kubernetes(tmp_path: Path) -> None:
    """Kustomize renders, each object is valid in both versions, and selectors and references meet what they mean."""
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(await clean("kubectl", "kustomize", "k8s"), encoding="utf-8")
    for version in KUBERNETES:
        await clean("kubernetes-validate", "--kubernetes-version", version, "--strict", "--quiet", str(rendered))
    objects = list(yaml.safe_load_all(rendered.read_text(encoding="utf-8")))
    workloads = {one["metadata"]["name"]: one for one in objects if one["kind"] in ("Deployment", "StatefulSet")}
    pods = {name: one["spec"]["template"]["metadata"]["labels"] for name, one in workloads.items()}
    assert set(pods) == {"gateway", "lane-eagle3", "lane-ngram", "lane-plain"}

    def chosen(labels: dict[str, str]) -> list[str]:
        return [name for name, has in pods.items() if labels.items() <= has.items()]

    for one in objects:
        name, spec = one["metadata"]["name"], one.get("spec", {})
        if one["kind"] == "Service":
            assert chosen(spec["selector"]) == [name]
        elif one["kind"] in ("PodDisruptionBudget", "Deployment", "StatefulSet"):
            assert chosen(spec["selector"]["matchLabels"]) == [name]
        elif one["kind"] == "HorizontalPodAutoscaler":
            assert workloads[spec["scaleTargetRef"]["name"]]["kind"] == spec["scaleTargetRef"]["kind"]
        elif one["kind"] == "NetworkPolicy" and name in ("gateway", "lane"):
            expected = [pod for pod in pods if pod.startswith(name)]
            assert chosen(spec["podSelector"]["matchLabels"]) == expected
    assert {one["metadata"].get("namespace") for one in objects if one["kind"] != "Namespace"} == {"outrider"}


async def test_queries() -> None:
    """Prometheus' language, with the one word that Grafana replaces."""
    asked = [one.replace("$__rate_interval", "5m") for one in queries().values()]
    await clean("python", "-c", _PARSE, json.dumps(asked))


async def test_dead_code() -> None:
    """Vulture finds nothing that nothing uses: in the package, the tests and what makes the reference."""
    assert await clean("vulture", "--min-confidence", "60") == ""


async def test_the_checks_themselves(tmp_path: Path) -> None:
    """Each tool complains of a fault that is put before it."""
    (tmp_path / "bad.Dockerfile").write_text("FROM python\nRUN cd /tmp && sudo true\n")
    (tmp_path / "bad.yaml").write_text("a: 1\na: 2\n")
    (tmp_path / "bad.sh").write_text("#!/bin/sh\nrm -rf $1/*\n")
    (tmp_path / "bad.py").write_text("def nobody_calls_this():\n    pass\n")
    (tmp_path / "pod.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {contaners: []}\n")
    for command in (
        ("hadolint", "bad.Dockerfile"),
        ("yamllint", "--strict", "bad.yaml"),
        ("shellcheck", "bad.sh"),
        ("kubernetes-validate", "--strict", "pod.yaml"),
        ("vulture", "bad.py"),
        ("python", "-c", _PARSE, json.dumps(["rate(outrider_requests_total[5m)"])),
    ):
        status, out = await TOOLS.run(*command, cwd=tmp_path)
        assert status != 0, f"{command[0]}: {out}"
