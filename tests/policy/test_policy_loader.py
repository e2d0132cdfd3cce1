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
from outrider.core import DrafterAbility, LaneAbility
from outrider.errors import PolicyError
from outrider.policy.loader import Problem, Source, load_policies, validate_file

SHIPPED = sorted(packaged_data("policies").glob("*.yaml"))
GOOD = """\
version: 1
workload: good
match: {tasks: [code]}
drafters:
  ngram: {max_k: 5}
  suffix:
    min_k: 2
    max_k: 4
temperature:
  - {max: 0.3}
  - max: 0.9
    max_k: 2
load: [{max: 3}]
"""


def write(directory: Path, text: str, name: str = "file.yaml") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def short(problems: list[Problem]) -> list[tuple[int, int, str, str]]:
    return [(found.line, found.column, found.path, found.message) for found in problems]


def test_six_policies_ship() -> None:
    """The package has a file for each of its workloads."""
    assert load_policies(Source([packaged_data("policies")])).workloads == (
        "chat", "code", "creative", "default", "extract", "off",
    )  # fmt: skip


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_files_are_valid(path: Path) -> None:
    """Nothing that ships has a problem, and editors find the schema from its first line."""
    assert validate_file(path) == []
    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=policy.schema.json\n")


def test_scalars_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    """As editors read them: `yes` is no truth value, and `off` no boolean."""
    named_off = write(tmp_path, GOOD.replace("workload: good", "workload: off"))
    assert validate_file(named_off) == []
    wrong = write(tmp_path, GOOD + "exact: yes\n")
    assert short(validate_file(wrong)) == [(14, 8, "exact", "expected a valid boolean, found 'yes'")]


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "path", "message"),
    [
        ("version: 1", "version: 2", 1, 10, "version", "expected 1, found 2"),
        ("version: 1\n", "", 1, 1, "version", "is missing, expected 1"),
        ("workload: good", "wrkload: good", 2, 1, "wrkload", "unknown key, did you mean 'workload'?"),
        ("workload: good", "workload: Good One", 2, 11, "workload", "expected a name of lower-case letters"),
        ("match: {tasks: [code]}", "match: {tasks: []}", 3, 16, "match.tasks", "expected an item, found none"),
        ("[code]", "[code, poetry]", 3, 23, "match.tasks[1]", "found 'poetry'"),
        ("{tasks: [code]}", "code", 3, 8, "match", "expected a mapping, found 'code'"),
        ("{tasks: [code]}", "{}", 3, 8, "match", "expected at least one condition"),
        ("tasks: [code]", "task: [code]", 3, 9, "match.task", "did you mean 'tasks'?"),
        ("  ngram:", "  ngrm:", 5, 3, "drafters.ngrm", "unknown key, did you mean 'ngram'?"),
        ("  ngram:", "  zzz:", 5, 3, "drafters.zzz", "unknown key, expected one of ngram, suffix"),
        ("{max_k: 5}", "{maxk: 5}", 5, 11, "drafters.ngram.maxk", "did you mean 'max_k'?"),
        ("{max_k: 5}", "{max_k: 17}", 5, 18, "drafters.ngram.max_k", "less than or equal to 16, found 17"),
        ("{max_k: 5}", "{max_k: true}", 5, 18, "drafters.ngram.max_k", "expected a valid integer, found true"),
        ("{max_k: 5}", "{max_k: }", 5, 17, "drafters.ngram.max_k", "expected a value, found nothing"),
        ("{max_k: 5}", "{max_k: !!python/name:os.system 5}", 5, 18, "drafters.ngram.max_k", "found the tag"),
        ("{max_k: 5}", "!foo {max_k: 5}", 5, 10, "drafters.ngram", "expected no tag, found !foo"),
        ("{max_k: 5}", "!!set {max_k: }", 5, 10, "drafters.ngram", "expected no tag, found tag:yaml.org,2002:set"),
        ("[code]", "!foo [code]", 3, 16, "match.tasks", "expected no tag, found !foo"),
        ("{max_k: 5}", "{!foo max_k: 5}", 5, 11, "drafters.ngram.max_k", "expected no tag, found !foo"),
        ("{max_k: 5}", "{max_k: 5, max_k: 6}", 5, 21, "drafters.ngram.max_k", "found again (first on line 5)"),
        ("min_k: 2", "min_k: 5", 7, 5, "drafters.suffix", "expected min_k <= max_k, found min_k 5 and max_k 4"),
        ("{max: 0.3}", "{max: warm}", 10, 11, "temperature[0].max", "a valid number, found 'warm'"),
        ("{max: 0.3}", "{max: -1}", 10, 11, "temperature[0].max", "greater than or equal to 0, found -1"),
        ("{max: 0.3}", "{max: .inf}", 10, 11, "temperature[0].max", "a finite number, found inf"),
        ("{max: 0.3}", "{max_k: 3}", 10, 5, "temperature[0]", "only the last band may leave it out"),
        ("max: 0.9", "max: 0.2", 11, 10, "temperature[1].max", "expected more than 0.3, where the band before ends"),
        ("[{max: 3}]", "[{max: 3}, {max: 3}]", 13, 24, "load[1].max", "expected more than 3"),
        ("[{max: 3}]", "[{max: ${env.NOT_SET}}]", 13, 15, "the file", "${env.NAME} inside braces or brackets needs"),
        ("max_k: 4", "max_k: ${env.NOT_SET}", 8, 12, "drafters.suffix.max_k", "variable NOT_SET is not set"),
        ("max_k: 4", "max_k: ${env.WORDS}", 8, 12, "drafters.suffix.max_k", "a valid integer, found 'a b'"),
        ("max_k: 4", "max_k: [4", 9, 12, "the file", "not valid YAML"),
        ("max_k: 4", "max_k: &four 4\n    prior: *four", 9, 12, "the file", "aliases are not supported"),
    ],
)  # fmt: skip
def test_mistakes_are_found_in_place(
    tmp_path: Path, old: str, new: str, line: int, column: int, path: str, message: str
) -> None:
    """One mistake, one problem or more: the first is at the mistake and says what was expected."""
    assert GOOD.count(old) == 1
    found = validate_file(write(tmp_path, GOOD.replace(old, new)), {"WORDS": "a b"})
    at_mistake = [problem for problem in found if (problem.line, problem.column) == (line, column)]
    assert [problem.path for problem in at_mistake] == [path], short(found)
    assert message in at_mistake[0].message


def test_all_problems_are_listed_in_order(tmp_path: Path) -> None:
    """A file is checked to its end."""
    text = GOOD.replace("max_k: 5", "max_k: five").replace("version: 1", "version: x").replace("max: 3", "mx: 3")
    paths = [problem.path for problem in validate_file(write(tmp_path, text))]
    assert paths == ["version", "drafters.ngram.max_k", "load[0].mx"]


def test_the_environment_is_filled_in(tmp_path: Path) -> None:
    """A whole value has the type it would have in the file; in flow style it needs quotes."""
    text = GOOD.replace("max_k: 4", "max_k: ${env.K}").replace("good", "a-${env.NAME}").replace("0.3", '"${env.T}"')
    write(tmp_path, text)
    env = {"K": "3", "NAME": "b", "T": "0.25"}
    policy = load_policies(Source([tmp_path], "a-b", env=env)).policy("a-b")
    assert (policy.workload, policy.temperature[0].max) == ("a-b", 0.25)
    assert policy.drafters["suffix"].max_k == 3


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
    path = write(tmp_path, GOOD.replace("max_k: 5", "max_k: 99"))
    line = f"{path}:5:18: drafters.ngram.max_k: expected less than or equal to 16, found 99"
    with pytest.raises(PolicyError) as caught:
        load_policies(Source([tmp_path], "good"))
    assert caught.value.message == line


def test_workload_names_are_unique_in_a_folder(tmp_path: Path) -> None:
    """Two files of one name: the second is refused and names the first."""
    write(tmp_path, GOOD, "a.yaml")
    second = write(tmp_path, GOOD, "b.yaml")
    with pytest.raises(PolicyError, match=r"'good' is used by a\.yaml") as caught:
        load_policies(Source([tmp_path], "good"))
    assert caught.value.message.startswith(f"{second}:2:11: workload: ")


def test_later_folders_replace_workloads_of_earlier_ones(tmp_path: Path) -> None:
    """By name of the workload, whatever the files are called; the others stay."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    write(first, GOOD, "a.yaml")
    write(first, GOOD.replace("good", "other"), "b.yaml")
    write(second, GOOD.replace("max_k: 5", "max_k: 1"), "z.yaml")
    policies = load_policies(Source([first, second], "good"))
    assert policies.workloads == ("good", "other")
    assert policies.policy("good").drafters["ngram"].max_k == 1
    assert load_policies(Source([second, first], "good")).policy("good").drafters["ngram"].max_k == 5


def test_lanes_and_trials_are_checked_at_their_place(tmp_path: Path) -> None:
    """What no lane can do, and a trial of a workload that is not there, has line and column too."""
    path = write(tmp_path, GOOD + "trial: {workload: gone, mode: shadow}\n")
    with pytest.raises(PolicyError, match=r":14:19: trial\.workload: expected a known workload, one of good"):
        load_policies(Source([tmp_path], "good"))
    write(tmp_path, GOOD)
    lanes = (LaneAbility("one", (DrafterAbility("ngram", (1, 2)),)),)
    assert [(p.line, p.path) for p in validate_file(path, lanes=lanes)] == [
        (5, "drafters.ngram.max_k"),
        (7, "drafters.suffix"),
    ]
    few = (LaneAbility("one", (DrafterAbility("ngram", tuple(range(1, 6))), DrafterAbility("suffix", (1,)))),)
    assert short(validate_file(path, lanes=few)) == [
        (8, 12, "drafters.suffix.max_k", "expected at most 1, the largest k of any lane, found max_k 4")
    ]


def test_defaults_and_bands_are_held_against_lanes(tmp_path: Path) -> None:
    """A k that a file leaves at its default, and one that only a band names; a band without one bounds nothing."""
    text = "version: 1\nworkload: a\ndrafters: {ngram: {}}\ntemperature: [{max: 0.5, max_k: 9}, {max: 1}]\n"
    path = write(tmp_path, text + "load: [{max: 4, max_k: 4}]\n")
    lanes = (LaneAbility("one", (DrafterAbility("ngram", (1, 4)),)),)
    assert short(validate_file(path, lanes=lanes)) == [
        (3, 19, "drafters.ngram", "expected at most 4, the largest k of any lane, found max_k 5"),
        (4, 33, "temperature[0].max_k", "expected at most 4, the largest k of any lane, found 9"),
    ]


def test_unknown_default_names_the_known(tmp_path: Path) -> None:
    """A default that no file defines stops the start."""
    write(tmp_path, GOOD)
    with pytest.raises(PolicyError, match="unknown default workload 'gone', known: good"):
        load_policies(Source([tmp_path], "gone"))


def test_directory_without_policies(tmp_path: Path) -> None:
    """An empty or missing directory is refused."""
    for directory in (tmp_path, tmp_path / "gone"):
        with pytest.raises(PolicyError, match="no policy files"):
            load_policies(Source([directory]))


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
    return [] if path[-1] in ("description", "workload") else [path]


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
