"""Loading: what ships is valid, and every mistake is found at its line and column."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.config import packaged_data
from outrider.errors import PolicyError
from outrider.policy.loader import Problem, load_file, load_policies, validate_file

SHIPPED = sorted(packaged_data("policies").glob("*.yaml"))
GOOD = """\
version: 1
workload: good
match: {tasks: [code]}
rules:
  - name: cool
    when:
      temperature: {max: 0.3}
      requests: {min: 0, max: 1}
    drafter: ngram
    k: 5
    reason: cheap
  - name: rest
    off: true
    reason: dear
"""


def write(directory: Path, text: str, name: str = "file.yaml") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def short(problems: list[Problem]) -> list[tuple[int, int, str, str]]:
    return [(found.line, found.column, found.path, found.message) for found in problems]


def test_six_policies_ship() -> None:
    """The package has a file for each of its workloads."""
    assert load_policies(packaged_data("policies"), "default").workloads == (
        "chat", "code", "creative", "default", "extract", "off",
    )  # fmt: skip


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_files_are_valid(path: Path) -> None:
    """Nothing that ships has a problem, and editors find the schema from its first line."""
    assert validate_file(path) == []
    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=policy.schema.json\n")


def test_off_is_a_key_not_a_boolean(tmp_path: Path) -> None:
    """Scalars are read as YAML 1.2 does, so `off: true` needs no quotes and `yes` is no truth value."""
    assert validate_file(write(tmp_path, GOOD)) == []
    wrong = write(tmp_path, GOOD.replace("off: true", "off: yes"))
    assert short(validate_file(wrong)) == [(13, 10, "rules[1].off", "expected true, found 'yes'")]


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "path", "message"),
    [
        ("version: 1", "version: 2", 1, 10, "version", "expected 1, found 2"),
        ("version: 1\n", "", 1, 1, "version", "is missing, expected 1"),
        ("workload: good", "wrkload: good", 2, 1, "wrkload", "unknown key, did you mean 'workload'?"),
        ("match: {tasks: [code]}", "match: {tasks: []}", 3, 16, "match.tasks", "expected an item, found none"),
        ("[code]", "[code, poetry]", 3, 23, "match.tasks[1]", "found 'poetry'"),
        ("{tasks: [code]}", "code", 3, 8, "match", "expected a mapping, found 'code'"),
        ("temperature: {", "temprature: {", 7, 7, "rules[0].when.temprature", "did you mean 'temperature'?"),
        ("temperature: {", "zzz: {", 7, 7, "rules[0].when.zzz", "expected one of tasks, temperature, prompt_tokens"),
        ("{max: 0.3}", "{max: warm}", 7, 26, "rules[0].when.temperature.max", "a valid number, found 'warm'"),
        ("{max: 0.3}", "{max: -1}", 7, 26, "rules[0].when.temperature.max", "greater than or equal to 0, found -1"),
        ("{max: 0.3}", "{max: .inf}", 7, 26, "rules[0].when.temperature.max", "a finite number, found inf"),
        ("{max: 0.3}", "{}", 7, 20, "rules[0].when.temperature", "expected min, max or both"),
        ("{min: 0, max: 1}", "{min: 3, max: 1}", 8, 17, "rules[0].when.requests", "expected min <= max, found min 3"),
        ("{min: 0, max: 1}", "{max: 0.5}", 8, 23, "rules[0].when.requests.max", "a valid integer, found 0.5"),
        ("drafter: ngram", "drafter: eagle9", 9, 14, "rules[0].drafter", "or 'medusa', found 'eagle9'"),
        ("drafter: ngram", "drafter: prediction", 9, 14, "rules[0].drafter", "'prediction' is taken by itself"),
        ("name: rest", "name: prediction", 12, 11, "rules[1].name", "'prediction' is reserved"),
        ("    drafter: ngram\n", "", 5, 5, "rules[0].drafter", "is missing, expected a drafter"),
        ("k: 5", "k: 17", 10, 8, "rules[0].k", "expected less than or equal to 16, found 17"),
        ("k: 5", "k: true", 10, 8, "rules[0].k", "expected a valid integer, found true"),
        ("k: 5", "k:", 10, 7, "rules[0].k", "expected a value, found nothing"),
        ("k: 5", "k: !!python/name:os.system 5", 10, 8, "rules[0].k", "found the tag"),
        ("k: 5", "k: 5\n    k: 6", 11, 5, "rules[0].k", "each key once, found again (first on line 10)"),
        ("    off: true", "    off: true\n    k: 3", 14, 5, "rules[1].k", "unknown key, expected one of name, when"),
        ("name: rest", "name: cool", 12, 11, "rules[1].name", "expected a name of its own"),
        ("name: rest", "name: The Rest", 12, 11, "rules[1].name", "expected a name of lower-case letters"),
        ("reason: dear", "reason: ''", 14, 13, "rules[1].reason", "expected at least 1 character"),
        ("k: 5", "k: [5", 11, 11, "the file", "not valid YAML"),
        ("k: 5", "k: &five 5\n    x: *five", 11, 8, "the file", "aliases are not supported"),
    ],
)  # fmt: skip
def test_mistakes_are_found_in_place(
    tmp_path: Path, old: str, new: str, line: int, column: int, path: str, message: str
) -> None:
    """One mistake, one problem or more: the first is at the mistake and says what was expected."""
    assert GOOD.count(old) == 1
    found = validate_file(write(tmp_path, GOOD.replace(old, new)))
    at_mistake = [problem for problem in found if (problem.line, problem.column) == (line, column)]
    assert [problem.path for problem in at_mistake] == [path], short(found)
    assert message in at_mistake[0].message


def test_all_problems_are_listed_in_order(tmp_path: Path) -> None:
    """A file is checked to its end."""
    text = GOOD.replace("k: 5", "k: five").replace("version: 1", "version: x").replace("off: true", "of: true")
    paths = [problem.path for problem in validate_file(write(tmp_path, text))]
    assert paths == ["version", "rules[0].k", "rules[1].drafter", "rules[1].k", "rules[1].of"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a mapping, found an empty file"),
        (b"# only a comment\n", "expected a mapping, found an empty file"),
        (b"- 1\n", "expected a mapping, found a list"),
        (b"version: \xff\n", "expected UTF-8 text, found byte 0xff at offset 9"),
        (b"version: \x07\n", "expected text, found the character"),
        (b"[" * 5000, "nested too deeply"),
        (b"a: 1\n---\nb: 2\n", "not valid YAML: but found another document"),
    ],
)
def test_files_that_are_no_policy(tmp_path: Path, content: bytes, message: str) -> None:
    """Empty, binary, endless and double files have one clear problem."""
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    problems = validate_file(path)
    assert len(problems) == 1
    assert message in str(problems[0])


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is a problem, not a traceback."""
    assert short(validate_file(tmp_path / "no.yaml")) == [
        (1, 1, "the file", "cannot be read: No such file or directory")
    ]


def test_load_reports_the_first_problem(tmp_path: Path) -> None:
    """The error of a start is one line with the place."""
    path = write(tmp_path, GOOD.replace("k: 5", "k: 99"))
    line = f"{path}:10:8: rules[0].k: expected less than or equal to 16, found 99"
    for load in (lambda: load_policies(tmp_path, "good"), lambda: load_file(path)):
        with pytest.raises(PolicyError) as caught:
            load()
        assert caught.value.message == line


def test_workload_names_are_unique(tmp_path: Path) -> None:
    """Two files of one name: the second is refused and names the first."""
    write(tmp_path, GOOD, "a.yaml")
    second = write(tmp_path, GOOD, "b.yaml")
    with pytest.raises(PolicyError, match=r"'good' is used by a\.yaml") as caught:
        load_policies(tmp_path, "good")
    assert caught.value.message.startswith(f"{second}:2:11: workload: ")


def test_unknown_default_names_the_known(tmp_path: Path) -> None:
    """A default that no file defines stops the start."""
    write(tmp_path, GOOD)
    with pytest.raises(PolicyError, match="unknown default workload 'gone', known: good"):
        load_policies(tmp_path, "gone")


def test_directory_without_policies(tmp_path: Path) -> None:
    """An empty or missing directory is refused."""
    for directory in (tmp_path, tmp_path / "gone"):
        with pytest.raises(PolicyError, match="no policy files"):
            load_policies(directory, "default")


def mapping_paths(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where the mappings are."""
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    here = [path] if isinstance(data, dict) else []
    return here + [found for key, child in children for found in mapping_paths(child, (*path, key))]


def leaf_paths(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where the values of a fixed set or type are."""
    if isinstance(data, dict | list):
        children = data.items() if isinstance(data, dict) else enumerate(data)
        return [found for key, child in children for found in leaf_paths(child, (*path, key))]
    return [] if path[-1] in ("description", "reason", "name", "workload") else [path]


def put(data: Any, path: tuple[str | int, ...], value: Any) -> None:
    for part in path[:-1]:
        data = data[part]
    data[path[-1]] = value


def shown(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]


@given(st.sampled_from(SHIPPED), st.booleans(), st.data())
@settings(max_examples=80, deadline=None)
def test_mutated_files_have_a_problem_in_place(source: Path, is_key: bool, data: st.DataObject) -> None:
    """An unknown key anywhere, and a wrong value anywhere, is found at its path, line and column."""
    document = yaml.load(source.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    document.pop("description")
    where = data.draw(st.sampled_from(mapping_paths(document) if is_key else leaf_paths(document)))
    path = (*where, "zzz-marker") if is_key else where
    put(document, path, 1 if is_key else "zzz-marker")
    text = yaml.safe_dump(document, sort_keys=False).replace("'", "")
    line, column = next(
        (n, row.index("zzz-marker")) for n, row in enumerate(text.splitlines()) if "zzz-marker" in row
    )
    with tempfile.TemporaryDirectory() as directory:
        found = validate_file(write(Path(directory), text))
    assert (line + 1, column + 1, shown(path)) in [(p.line, p.column, p.path) for p in found], short(found)


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#,? \n\t0.5", max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_text_gives_problems(text: str) -> None:
    """No text that is not a policy gets through or raises."""
    with tempfile.TemporaryDirectory() as directory:
        assert validate_file(write(Path(directory), text))
