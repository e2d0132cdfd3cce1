"""Reads policy files: the only place of the policy with YAML and I/O. Every problem has a line and a column."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from outrider.core import DRAFTERS, LaneAbility
from outrider.errors import PolicyError
from outrider.policy.decide import PolicySet
from outrider.policy.learning import Learner
from outrider.policy.limits import Location, WorkloadPolicy, beyond, contradictions, unmet
from outrider.policy.wording import expected, model_at, path_of, unknown_key

_SCALARS = {
    "null": re.compile(r"(?:~|null|Null|NULL|)$"),
    "bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"),
    "int": re.compile(r"[-+]?[0-9]{1,18}$"),
    "float": re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$"),
}
_YAML = "tag:yaml.org,2002:"
_KEYS, _COLLECTIONS = ("str", *_SCALARS), (f"{_YAML}map", f"{_YAML}seq")
_REFERENCE = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}")


class _Loader(yaml.SafeLoader):
    """YAML with the scalars of version 1.2, as editors read it: in 1.1 the key `off` would be the value false."""

    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {  # noqa: RUF012 - PyYAML's own name
        None: [(f"{_YAML}{name}", pattern) for name, pattern in _SCALARS.items()]
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        # An alias can make a small file huge or endless, and no policy needs one.
        if self.check_event(yaml.AliasEvent):
            mark: Any = self.peek_event().start_mark  # type: ignore[no-untyped-call] # missing in the stubs
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", mark)
        return super().compose_node(parent, index)


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing wrong in a policy file; `line` and `column` count from 1."""

    file: str
    line: int
    column: int
    path: str
    """For example `rules[2].k`; `the file` when it is about all of it."""
    message: str
    """What was expected, and what was found."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.path}: {self.message}"


@dataclass(slots=True)
class _Document:
    """The data of a file, where each part of it stands, and what no model could see in the data."""

    file: str
    env: Mapping[str, str]
    keys: dict[Location, yaml.Mark] = field(default_factory=dict)
    values: dict[Location, yaml.Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def report(self, location: Location, message: str, mark: yaml.Mark | None = None) -> None:
        """Add a problem; without a mark at the value, or at what encloses it when it is missing."""
        where = location
        while mark is None and where and where not in self.values:
            where = where[:-1]
        mark = mark or self.values.get(where)
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = Problem(self.file, line, column, path_of(location), message)
        if problem not in self.problems:
            self.problems.append(problem)

    def build(self, node: yaml.Node, location: Location = ()) -> Any:
        """Plain data of a node; notes positions, and reports duplicate keys, empty values and tags."""
        self.values[location] = node.start_mark
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _COLLECTIONS:
            self.report(location, f"expected no tag, found {node.tag}", node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return self._build_mapping(node, location)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*location, index)) for index, item in enumerate(node.value)]
        text = self._filled_in(node, location)
        value = None if text is None else _scalar(node, text)
        if text is not None and value is None:
            found = "nothing" if node.tag.endswith(":null") else f"the tag {node.tag}"
            self.report(location, f"expected a value, found {found}", node.start_mark)
        return value

    def _filled_in(self, node: yaml.Node, location: Location) -> str | None:
        """The scalar's text with `${env.NAME}` replaced; None after reporting a name that is not set."""
        unset = [name for name in _REFERENCE.findall(node.value) if name not in self.env]
        for name in unset:
            self.report(location, f"the environment variable {name} is not set", node.start_mark)
        return None if unset else _REFERENCE.sub(lambda found: self.env[found[1]], node.value)

    def _build_mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
            here = (*location, key)
            if key_node.tag.removeprefix(_YAML) not in _KEYS:
                self.report(here, f"expected no tag, found {key_node.tag}", key_node.start_mark)
            if key in data:
                first = self.keys[here].line + 1
                self.report(here, f"expected each key once, found again (first on line {first})", key_node.start_mark)
                continue
            self.keys[here] = key_node.start_mark
            data[key] = self.build(value_node, here)
        return data


@dataclass(frozen=True, slots=True)
class Source:
    """Where policies come from, and what they are checked against."""

    directories: Sequence[Path]
    """Folders of `*.yaml`; a workload of a later folder replaces that of an earlier one."""
    default: str = "default"
    """The workload for requests that no file matches."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What `${env.NAME}` is looked up in."""


def load_policies(source: Source, learner: Learner | None = None) -> PolicySet:
    """The policies of all folders, in the order of folders and file names.

    PolicyError when there are none, when a file is wrong (the first problem, as `file:line:column: path: message`),
    when two files of one folder have one workload name, and when `default` names no workload.
    """
    by_name: dict[str, tuple[WorkloadPolicy, _Document]] = {}
    for directory in source.directories:
        by_name |= _read_folder(directory, source.env)
    where = ", ".join(map(str, source.directories))
    if not by_name:
        raise PolicyError(f"{where}: no policy files (*.yaml) here")
    for policy, document in by_name.values():
        for location, message in unmet(policy, by_name):
            document.report(location, message)
        if document.problems:
            raise PolicyError(str(min(document.problems)))
    if source.default not in by_name:
        raise PolicyError(
            f"{where}: unknown default workload {source.default!r}, known: {', '.join(sorted(by_name))}"
        )
    return PolicySet([policy for policy, _ in by_name.values()], source.default, learner)


def texts_of(source: Source) -> dict[str, str]:
    """Each workload's file as it stands, of those that `load_policies` takes."""
    found = {n: one.file for folder in source.directories for n, (_, one) in _read_folder(folder, source.env).items()}
    return {name: Path(file).read_text(encoding="utf-8") for name, file in found.items()}


def _read_folder(directory: Path, env: Mapping[str, str]) -> dict[str, tuple[WorkloadPolicy, _Document]]:
    found: dict[str, tuple[WorkloadPolicy, _Document]] = {}
    for path in _files(directory):
        policy, document = _read(path, env)
        if policy is not None and policy.workload in found:
            first = Path(found[policy.workload][1].file)
            document.report(("workload",), _not_its_own(policy.workload, first))
        if policy is None or document.problems:
            raise PolicyError(str(min(document.problems)))
        found[policy.workload] = (policy, document)
    return found


def digest_of(source: Source) -> str:
    """Of the names and bytes of all files; changes when they do."""
    digest = hashlib.sha256()
    for path in (path for directory in source.directories for path in _files(directory)):
        with contextlib.suppress(OSError):  # a file that goes away meanwhile is a problem of the load that follows
            digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def validate_file(
    path: Path,
    env: Mapping[str, str] | None = None,
    lanes: Collection[LaneAbility] = (),
    folders: Iterable[Path] = (),
) -> list[Problem]:
    """All problems of one policy file, in the order of their positions; empty when it can be loaded.

    Other files of its folder must not have its workload's name; its trial may name a workload of theirs, or of
    `folders`. With `lanes`, some of them must be able to do what the file allows.
    """
    policy, document = _read(path, env or {})
    if policy is not None:
        others = [
            (other, _read(other, env or {})[0]) for folder in {path.parent, *folders} for other in _files(folder)
        ]
        names = {policy.workload, *(found.workload for _, found in others if found is not None)}
        for other, found in others:
            if other.parent == path.parent and other.name < path.name and found and found.workload == policy.workload:
                document.report(("workload",), _not_its_own(policy.workload, other))
        for location, message in (*unmet(policy, names), *beyond(policy, lanes)):
            document.report(location, message)
    return sorted(document.problems)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.yaml"))


def _not_its_own(workload: str, other: Path) -> str:
    return f"expected a name of its own, {workload!r} is used by {other.name}"


def _read(path: Path, env: Mapping[str, str]) -> tuple[WorkloadPolicy | None, _Document]:
    """The policy, or None and a document with at least one problem."""
    document = _Document(str(path), env)
    node = _compose(path, document)
    if node is None:
        return None, document
    data = document.build(node)
    try:
        policy = WorkloadPolicy.model_validate(data)
    except ValidationError as error:
        _report_all(error, document)
        return None, document
    for location, message in contradictions(policy):
        document.report(location, message)
    return (None if document.problems else policy), document


def _compose(path: Path, document: _Document) -> yaml.Node | None:
    """The root node; None after reporting why there is none."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except OSError as error:
        document.report((), f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        found = f"byte {error.object[error.start]:#04x} at offset {error.start}"
        document.report((), f"expected UTF-8 text, found {found}")
    except RecursionError:
        document.report((), "nested too deeply")
    except yaml.reader.ReaderError as error:
        document.report((), f"expected text, found the character {error.character!r} at offset {error.position}")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        is_unquoted = mark is not None and any("${env." in line for line in text.splitlines()[mark.line :][:1])
        hint = "; ${env.NAME} inside braces or brackets needs quotes" if is_unquoted else ""
        document.report((), f"not valid YAML: {error.problem}{hint}", mark)
    else:
        if node is None:
            document.report((), "expected a mapping, found an empty file")
        return node
    return None


def _scalar(node: yaml.Node, text: str) -> str | bool | int | float | None:
    """None for an empty value, and for tags that we do not read. What came from the environment has the type that it
    would have had in the file."""
    kind = node.tag.removeprefix(_YAML)
    if text != node.value:
        kind = next((name for name, pattern in _SCALARS.items() if pattern.match(text)), "str")
    if kind == "str":
        return text
    if kind not in _SCALARS or not _SCALARS[kind].match(text):
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        return int(text)
    return float(text.replace(".inf", "inf").replace(".nan", "nan")) if kind == "float" else None


def _report_all(error: ValidationError, document: _Document) -> None:
    for item in error.errors(include_url=False):
        location = item["loc"]
        mark = None
        if location[-1:] == ("[key]",):
            location = location[:-1]
            message = unknown_key(str(location[-1]), DRAFTERS)
            mark = document.keys.get(location)
        elif item["type"] == "extra_forbidden":
            message = unknown_key(str(location[-1]), tuple(model_at(location[:-1]).model_fields))
            mark = document.keys.get(location)
        elif item["type"] == "missing":
            message = f"is missing, expected {model_at(location[:-1]).model_fields[str(location[-1])].description}"
        elif item["input"] is None or (item["type"] == "too_short" and item["input"]):
            continue  # build() has reported the empty value, or the items that do not count have errors of their own
        else:
            message = expected(item, location)
        document.report(location, message, mark)
