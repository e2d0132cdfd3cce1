"""What the dashboard and the alerts ask Prometheus for."""

from __future__ import annotations

import json

import yaml

from shipping.dockerfiles import DOCKER


def queries() -> dict[str, str]:
    """Where it stands -> what is asked."""
    found = {}
    for path in sorted((DOCKER / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                found[f"{panel['title']}, {target['refId']}"] = target["expr"]
    for group in yaml.safe_load((DOCKER / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"]:
        found |= {rule["alert"]: rule["expr"] for rule in group["rules"]}
    return found
