"""Files of YAML and JSON: read and checked, with file and line of what is wrong; written whole or not at all."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from outrider.errors import ConfigError

M = TypeVar("M", bound=BaseModel)


def problem_of(error: ValidationError, behind: int = 0) -> str:
    """The first one, behind the key that is wrong; `behind` parts of its place are not the file's."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"][behind:]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def write_whole(path: Path, data: BaseModel) -> None:
    """As JSON; a process that is killed meanwhile leaves the old file."""
    part = path.with_suffix(".part")
    part.write_text(data.model_dump_json() + "\n", encoding="utf-8")
    os.replace(part, path)


def read_text(path: Path) -> str:
    """Unpacked when its name ends in `.gz`. ConfigError when it cannot be read."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def read_yaml(path: Path, kind: type[M]) -> M:
    """ConfigError names the file, the line and the key that is wrong."""
    text = read_text(path)
    try:
        return kind.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"{mark.line + 1}: "
        raise ConfigError(f"{path}:{line} {getattr(error, 'problem', None) or error}") from error
    except ValidationError as error:
        number = _line_of(yaml.compose(text, Loader=yaml.SafeLoader), error.errors()[0]["loc"])
        raise ConfigError(f"{path}:{number}: {problem_of(error)}") from error


def read_lines(path: Path, kind: type[M]) -> list[M]:
    """One JSON object a line; empty lines are passed over. ConfigError names the file, the line and the key."""
    lines = read_text(path).splitlines()
    return [parsed_line(path, number, line, kind) for number, line in enumerate(lines, 1) if line.strip()]


def parsed_line(path: Path, number: int, line: str | bytes, kind: type[M]) -> M:
    """ConfigError as of `read_lines`."""
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        raise ConfigError(f"{path}:{number}: {problem_of(error)}") from error


def _line_of(node: yaml.Node | None, location: Sequence[int | str]) -> int:
    """Of the innermost part of the location that the file has; a missing key is at what should hold it."""
    if node is None:
        return 1
    line = node.start_mark.line + 1
    for part in location:
        found = next((child for key, child in _children(node) if key == part), None)
        if found is None:
            # Of a tagged union the location names the tag too, which stands nowhere in the file.
            continue
        node, line = found, found.start_mark.line + 1
    return line


def _children(node: yaml.Node) -> Iterator[tuple[int | str, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        yield from ((str(key.value), value) for key, value in node.value)
    elif isinstance(node, yaml.SequenceNode):
        yield from enumerate(node.value)
