"""Writes `docs/reference/` from the code: `python docs/generate.py [FOLDER]`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard, is_typeddict

import griffe
from griffe2md import render_object_docs

import outrider
from outrider.app import build
from outrider.config import Config
from outrider.errors import APIError, OutriderError
from outrider.gateway.openapi import document
from outrider.policy.limits import policy_schema
from outrider.telemetry.metrics import Metrics

_ROOT = Path(__file__).parents[1]
#: Longer than any signature: shorter lines are left alone, others given to a formatter where one is installed.
_LINE_LENGTH = 10**6


def main(folder: Path) -> None:
    """Write all pages into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in (cli, config, http, metrics, policy, python):
        lines = [line.rstrip() for line in page().strip().splitlines()]
        (folder / f"{page.__name__}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def cli() -> str:
    """The command line, by its own library."""
    command = [sys.executable, "-m", "typer", "outrider.cli.main", "utils", "docs", "--name", "outrider"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def config() -> str:
    """The configuration file."""
    return "\n".join(["# Configuration", "", *_sections(Config.model_json_schema(), "The file")])


def policy() -> str:
    """Policy files."""
    return "\n".join(["# Policy files", "", *_sections(policy_schema(), "The file")])


def http() -> str:
    """The gateway's routes, and what their bodies may say that is checked; all else goes on to the lane."""
    found = document(build(Config()).router)
    lines = ["# HTTP", "", "The same as OpenAPI: `GET /openapi.json`.", "", "| route | |", "|---|---|"]
    for path, operations in found["paths"].items():
        lines += [f"| `{method.upper()} {path}` | {what['summary']} |" for method, what in operations.items()]
    schemas = found["components"]["schemas"]
    lines += ["", "Of bodies, what is checked or used by the gateway; unknown fields go on to the lane.", ""]
    for name, schema in schemas.items():
        if "properties" in schema:
            lines += _section(name, schema)
    return "\n".join(lines)


def metrics() -> str:
    """Every metric of the gateway."""
    found = Metrics()
    found.watch(num_in_flight=int, num_queued=int)
    found.watch_runs(num_open=int, num_unsaved=int, is_healthy=bool)
    lines = ["# Metrics", "", "`GET /metrics`, in Prometheus' text format.", ""]
    lines += ["| metric | type | labels | |", "|---|---|---|---|"]
    for name, kind, labels, what in sorted(_metrics(found)):
        lines.append(f"| `{name}` | {kind} | {labels} | {what} |")
    return "\n".join(lines)


def _metrics(found: Metrics) -> Iterator[tuple[str, str, str, str]]:
    for collector in found.registry._collector_to_names:
        labels = ", ".join(getattr(collector, "_labelnames", ()))
        for metric in collector.collect():
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            yield name, metric.type, labels, metric.documentation


def python() -> str:
    """The names of `from outrider import ...`."""
    package = griffe.load("outrider", search_paths=[_ROOT / "backend"], resolve_aliases=True)
    options: dict[str, Any] = {"heading_level": 2, "show_root_full_path": False, "show_signature_annotations": True,
        "signature_crossrefs": False, "summary": False, "show_root_members_full_path": False,
        "line_length": _LINE_LENGTH}  # fmt: skip
    lines = [
        "# Python",
        "",
        "`from outrider import ...`: all of it is async but `Client`; times are in seconds.",
        "",
    ]
    names = {name: getattr(outrider, name) for name in outrider.__all__}
    lines += [*_errors({name: what for name, what in names.items() if _is_error(what)}), ""]
    for name, what in names.items():
        if _is_error(what):
            continue
        home = str(getattr(what, "__module__", ""))
        if home.startswith("outrider."):
            path = f"{home.removeprefix('outrider.')}.{name}"
            # Keywords of a call are many, and those that it shares with others stand where they come from.
            own = {"inherited_members": not is_typeddict(what)}
            lines += [render_object_docs(package[path], options | own), ""]
        elif not isinstance(what, str):
            lines += [f"## `{name}`", "", f"`{what}`", ""]
    return "\n".join(lines)


def _is_error(what: Any) -> TypeGuard[type[OutriderError]]:
    return isinstance(what, type) and issubclass(what, OutriderError)


def _errors(found: Mapping[str, type[OutriderError]]) -> Iterator[str]:
    """A row for each class, behind the one that it is a kind of."""
    says = "an `APIError`, which a server reports, has `status`, `code`, `param`, `request_id`, `retry_after_s` too."
    yield from ("## Errors", "", f"Each has a `message`; {says}", "")
    yield from ("| error | is a | status, code | may be tried again | |", "|---|---|---|---|---|")
    for name, kind in found.items():
        base = "" if kind is OutriderError else f"`{kind.__mro__[1].__name__}`"
        wire = again = ""
        # Bases have no answer of their own, and one that keeps a lane's has that lane's.
        if issubclass(kind, APIError) and not kind.__subclasses__() and "__init__" not in vars(kind):
            wire, again = f"{kind.status} `{kind.code}`", "yes" if kind.is_retryable else "no"
        what = " ".join((kind.__doc__ or "").split()).replace("|", "\\|")
        yield f"| `{name}` | {base} | {wire} | {again} | {what} |"


def _sections(schema: Mapping[str, Any], title: str) -> Iterator[str]:
    """A table of keys for the whole and for each part."""
    yield from _section(title, schema)
    for name, part in schema.get("$defs", {}).items():
        yield from _section(name, part)


def _section(title: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"## {title}", "", " ".join(str(schema.get("description", "")).split()), "")
    yield from ("| key | type | default | |", "|---|---|---|---|")
    for key, field in schema.get("properties", {}).items():
        is_needed = key in schema.get("required", ())
        is_plain = isinstance(field.get("default"), str | int | float | bool)
        default = "required" if is_needed else f"`{field['default']}`" if is_plain else ""
        what = " ".join(str(field.get("description", "")).split()).replace("|", "\\|")
        yield f"| `{key}` | {_type(field)} | {default} | {what} |"
    yield ""


def _type(field: Mapping[str, Any]) -> str:
    """In words, from a JSON Schema."""
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " or ".join(dict.fromkeys(_type(one) for one in field[key] if one.get("type") != "null"))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{one}`" for one in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items') or field.get('prefixItems', [{}])[0])}"
    if isinstance(field.get("additionalProperties"), dict):
        return f"mapping to {_type(field['additionalProperties'])}"
    kind = str(field.get("type", "any"))
    bounds = [f"{sign} {field[key]}" for key, sign in _BOUNDS.items() if key in field]
    return " ".join([kind, *([f"({', '.join(bounds)})"] if bounds else [])])


_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}

if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else _ROOT / "docs" / "reference")
